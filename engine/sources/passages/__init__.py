"""Passages: cutting articles into them, writing them as a corpus, and reading corpora."""
