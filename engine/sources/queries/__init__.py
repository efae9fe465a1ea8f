"""Queries with their reference answers, read from every supported layout."""
