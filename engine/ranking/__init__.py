"""Ranking measures: from labels to scores of queries."""
