"""LlamaIndex's part of docs/guide/recipes.md, with its own index of keywords, which needs no model."""

import sys

import own_llm
from llama_index.core import Settings, SimpleKeywordTableIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

Settings.llm = MockLLM()  # else a client of a server is looked for
nodes = [TextNode(text=text) for text in own_llm.TEXTS]
index = SimpleKeywordTableIndex(nodes)


class WithScores:
    """Its retriever, of which this kind gives no scores: by rank."""

    def retrieve(self, question):
        found = index.as_retriever(retriever_mode="simple", num_chunks_per_query=2).retrieve(
            question
        )
        for place, node in enumerate(found):
            node.score = 1 / (1 + place)
        return found


names = {"questions": own_llm.QUESTIONS, "retriever": WithScores()}
exec(own_llm.recipe(sys.argv[1], "LlamaIndex"), names)
own_llm.check("llamaindex.jsonl")
own_llm.check(index.as_retriever(retriever_mode="simple", num_chunks_per_query=2))
