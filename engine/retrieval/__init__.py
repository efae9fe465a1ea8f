"""Retrievers: BM25 on Lucene, dense retrieval with FAISS, encoders, and fusion of runs."""
