"""LangChain's part of docs/guide/recipes.md, with its own vector store and documents."""

import sys

import own_llm
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore


class Words(Embeddings):
    """A vector of the words that a text has."""

    WORDS = sorted({word for text in own_llm.TEXTS for word in text.lower().strip(".").split()})

    def embed_query(self, text):
        return [float(word in text.lower().split()) for word in self.WORDS]

    def embed_documents(self, texts):
        return [self.embed_query(text.strip(".")) for text in texts]


store = InMemoryVectorStore(Words())
store.add_documents([Document(text, metadata={"title": "t"}) for text in own_llm.TEXTS])
names = {"questions": own_llm.QUESTIONS, "retriever": store.as_retriever(search_kwargs={"k": 2})}
exec(own_llm.recipe(sys.argv[1], "LangChain"), names)
own_llm.check("langchain.jsonl")
own_llm.check(names["retriever"])
