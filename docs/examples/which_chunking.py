"""Which chunking is best: one text cut to short and to long passages, compared at equal tokens of the prompt.

Run it with ``python docs/examples/which_chunking.py``. The text, the retriever and the LLM are stand-ins of a few lines:
put your own cuts and runs in their place, and name an LLM.
"""

import json
import re
from pathlib import Path

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
    ]
)
# The sentence with the capital does not name the country, and some paragraphs mention another capital.
article = " ".join(
    f"{name} lies by the sea. Its capital is {capital}. "
    f"In old days it was {'Oldtown' if place % 2 else 'the same'}. Coffee comes from {name}."
    for place, (name, capital) in enumerate(CAPITALS.items())
)
sentences = re.findall(r"[^.]+\.", article)
queries = [
    {"query_id": name, "query": f"what is the capital of {name}", "answers": [capital]}
    for name, capital in CAPITALS.items()
]
Path("queries.jsonl").write_text("\n".join(map(json.dumps, queries)))

runs = []
for cut, size in {"one": 1, "two": 2, "four": 4}.items():
    passages = {
        str(place): "".join(sentences[place : place + size]).strip()
        for place in range(0, len(sentences), size)
    }
    rows = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in passages.items()]
    Path(f"{cut}.jsonl").write_text("\n".join(rows))
    lists = {}
    for query in queries:
        asked = query["query"].lower().split()
        words = {doc_id: text.lower().split() for doc_id, text in passages.items()}
        scores = {doc_id: sum(word in asked for word in words[doc_id]) for doc_id in passages}
        lists[query["query_id"]] = dict(sorted(scores.items(), key=lambda item: -item[1])[:8])
    Path(f"{cut}.json").write_text(json.dumps(lists))
    runs.append(f"{cut}.json@{cut}")


def read(prompts):
    """The LLM: it believes the last city of the last passage that names the country."""
    answers = []
    for prompt in prompts:
        passages, question = prompt.rsplit("Question:", 1)
        country = question.split("capital of ")[1].split()[0]
        named = [line for line in passages.splitlines() if country in line]
        cities = re.findall(r"(?:is|was) ([A-Z]\w+)", named[-1]) if named else []
        answers.append(cities[-1] if cities else "I do not know")
    return answers


result = erag_engine.evaluate(
    "queries.jsonl",
    ["one.jsonl", "two.jsonl", "four.jsonl"],
    runs,
    reader=read,
    measures="Success@40tok P@40tok",
    end_to_end_k="40tok",
    k=8,
)
print(result)
print("\nwritten to", result.report("which_chunking.html"))
