"""Ranking measures, each one class: its name, its labels, its sums and its value."""
