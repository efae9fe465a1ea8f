"""Haystack's part of docs/guide/recipes.md, with its own store and BM25."""

import sys

import own_llm
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

store = InMemoryDocumentStore()
store.write_documents([Document(content=text, meta={"title": "t"}) for text in own_llm.TEXTS])
pipeline = Pipeline()
pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=2))
names = {"questions": own_llm.QUESTIONS, "pipeline": pipeline}
exec(own_llm.recipe(sys.argv[1], "Haystack"), names)
own_llm.check("haystack.jsonl")
own_llm.check(InMemoryBM25Retriever(store))  # as it is: called with top_k
