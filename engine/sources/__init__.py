"""Articles, passages, queries, runs and judgments, read from and written to files of any layout."""
