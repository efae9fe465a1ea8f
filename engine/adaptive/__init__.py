"""Choosers name the passages to label next and the queries to read next, from the labels and scores so far."""
