"""Runs, judgments and preferences, with the texts of their passages; exports for other tools."""
