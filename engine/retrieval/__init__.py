"""Retrievers: BM25 on Lucene, dense retrieval with FAISS, and their fusion."""
