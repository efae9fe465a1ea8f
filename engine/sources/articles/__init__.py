"""Articles: MediaWiki dumps, JSONL, Parquet and SQuAD documents, streamed as prose."""
