"""Queries with their reference answers, from every layout; users' questions."""
