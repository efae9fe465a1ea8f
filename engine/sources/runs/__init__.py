"""Runs, judgments, preferences and edits: what is known about ranked lists, in and out."""
