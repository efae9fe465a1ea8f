"""Which retriever do people prefer: a page that asks them, and what the evaluation makes of the file that it saves.

Run it with ``python docs/examples/asking.py``. The retrievers are stand-ins of a few lines, and so is the person: put your
runs in their place, open ``tasks.html``, and take the file that it saves.
"""

import json
import re
import subprocess
from pathlib import Path

import erag_engine

ARTICLES = {
    "Aruba": "Aruba is an island in the Caribbean Sea. Its capital is Oranjestad.",
    "Peru": "Peru is crossed by the Andes. Its capital is Lima.",
    "Kenya": "Kenya lies on the equator. Its capital is Nairobi.",
    "Japan": "Japan is a chain of islands. Its capital is Tokyo.",
    "Norway": "Norway has many fjords. Its capital is Oslo.",
    "Ghana": "Ghana exports cocoa. Its capital is Accra.",
}
queries = [{"query_id": name, "query": f"what is the capital of {name}"} for name in ARTICLES]
passages = {
    f"{name}-{place}": f"{sentence}."
    for name, text in ARTICLES.items()
    for place, sentence in enumerate(text.rstrip(".").split(". "))
}
Path("queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
rows = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in passages.items()]
Path("passages.jsonl").write_text("\n".join(rows))
# One retriever finds the sentence with the name, the other the one with the capital; for Peru both find the same.
runs = {
    "names": {name: [f"{name}-0"] for name in ARTICLES},
    "capitals": {name: [f"{name}-{int(name != 'Peru')}"] for name in ARTICLES},
}
for name, lists in runs.items():
    Path(f"{name}.json").write_text(json.dumps(lists))

command = "erag ask --queries queries.jsonl --corpus passages.jsonl --run names.json capitals.json --out tasks.html"
subprocess.run(command.split(), check=True)


def person(page):
    """What a person saves who chooses the passage with the capital: the page itself makes these lines."""
    (text,) = re.findall(r'type="application/json"[^>]*>(.*?)</script>', page)
    data = json.loads(text)
    for task in data["tasks"]:
        sides = [side for side in data["sides"] if side["query_id"] == task["query_id"]]
        shown = [side["output"] for side in sides]
        yield {
            "query_id": task["query_id"],
            "shown": shown,
            "best": next(doc_id for doc_id in shown if "capital" in passages[doc_id]),
            "runs": [[side["run"]] for side in sides],
            "drawn": {"probability": task["probability"], "design": data["design"]},
        }


lines = map(json.dumps, person(Path("tasks.html").read_text()))
Path("preferences.jsonl").write_text("\n".join(lines))
result = erag_engine.evaluate(
    "queries.jsonl",
    "passages.jsonl",
    ["names.json", "capitals.json"],
    annotators="preference",
    preferences="preferences.jsonl",
    end_to_end=False,
)
(found,) = result.summary["preferred"]
print(
    f"people prefer {found['run']} to {found['run_b']} by {found['difference']:.2f} "
    f"[{found['low']:.2f}, {found['high']:.2f}] ({found['n']} of {found['of']} queries judged)"
)
