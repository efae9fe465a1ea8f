"""Passages: cut from articles, written as a corpus, read, and indexed by id."""
