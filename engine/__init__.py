"""Measures how useful a retriever is to the LLM that reads its results (eRAG and its rivals)."""

__version__ = "0.1.0"
