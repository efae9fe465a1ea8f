"""Three retrievers compared: which one serves the LLM best, and how certain is that?

Run it with ``python docs/examples/three_retrievers.py``. Retrievers and LLM are stand-ins of a few lines: put
your own retrievers or ranked lists into ``runs``, and name an LLM (``reader="bundled"`` is one that needs no download).
"""

import math
import re

import erag_engine

CAPITALS = dict(
    pair.split(":")
    for pair in [
        "Aruba:Oranjestad",
        "Peru:Lima",
        "Kenya:Nairobi",
        "Japan:Tokyo",
        "Norway:Oslo",
        "Ghana:Accra",
        "Cuba:Havana",
        "Chad:Ndjamena",
        "Qatar:Doha",
        "Nepal:Kathmandu",
        "Spain:Madrid",
        "Egypt:Cairo",
        "Chile:Santiago",
        "Fiji:Suva",
        "Laos:Vientiane",
        "Mali:Bamako",
        "Malta:Valletta",
        "Oman:Muscat",
        "Togo:Lome",
        "Samoa:Apia",
        "Yemen:Sanaa",
        "Zambia:Lusaka",
        "Iran:Tehran",
        "Iraq:Baghdad",
    ]
)
passages = {}
for number, (country, capital) in enumerate(CAPITALS.items()):
    passages[f"{country}-1"] = f"{capital} is the capital of {country}."
    passages[f"{country}-2"] = (
        f"The capital of {country} is large, and Smallville is the least of its cities."
    )
    passages[f"{country}-3"] = f"Coffee from {country}."
    if number % 2:
        passages[f"{country}-4"] = f"Hotels in {country}."
queries = {f"what is the capital of {name}": [capital] for name, capital in CAPITALS.items()}

words = {doc_id: re.findall(r"\w+", text.lower()) for doc_id, text in passages.items()}
counts = {
    word: sum(word in text for text in words.values()) for text in words.values() for word in text
}
idf = {word: math.log(len(words) / count) for word, count in counts.items()}


def retriever(score):
    """A retriever: the k best passages for a question, as {doc_id: score}."""

    def retrieve(question, k):
        query = question.lower().split()
        scores = {doc_id: score(query, text) for doc_id, text in words.items()}
        return dict(sorted(scores.items(), key=lambda item: -item[1])[:k])

    return retrieve


def read(prompts):
    """The LLM: of the names that its passages offer, it believes the one next to the question."""
    texts = (prompt.rsplit("Question:", 1)[0] for prompt in prompts)
    offered = (re.findall(r"(\w+) is the (?:capital|least)", text) for text in texts)
    return [names[-1] if names else "I do not know" for names in offered]


runs = {
    "overlap": retriever(lambda query, text: sum(word in text for word in query)),
    "tf-idf": retriever(
        lambda query, text: sum(idf[word] for word in query if word in text) / len(text) ** 0.5
    ),
    "short": retriever(lambda query, text: (query[-1] in text) + 1 / len(text)),
}
result = erag_engine.evaluate(
    queries, passages, runs, reader=read, annotators=["erag", "containment"], k=2
)
print(result)
print("\nwritten to", result.report("three_retrievers.html"))
