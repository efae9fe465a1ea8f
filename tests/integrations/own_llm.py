"""What every script here evaluates: three questions, passages that answer them, and an LLM that reads them."""

import re
from pathlib import Path

QUESTIONS = {"q1": "capital of Aruba", "q2": "author of Animal Farm", "q3": "discoverer of radium"}
ANSWERS = {"q1": ["Oranjestad"], "q2": ["George Orwell"], "q3": ["Marie Curie"]}
TEXTS = [
    "The capital of Aruba is Oranjestad.",
    "George Orwell is the author of Animal Farm.",
    "Marie Curie is the discoverer of radium.",
    "An abacus is a tool.",
]


def ask(prompts):
    names = ("Oranjestad", "George Orwell", "Marie Curie")
    return [next((name for name in names if name in prompt), "unknown") for prompt in prompts]


def recipe(guide, heading):
    """The code that the guide shows under a heading."""
    return re.search(
        rf"^## {heading}\n.*?```python\n(.*?)```", Path(guide).read_text(), re.S | re.M
    )[1]


def evaluate(run, **options):
    """The result of a run that carries its texts."""
    import erag_engine

    queries = {key: {"query": text, "answers": ANSWERS[key]} for key, text in QUESTIONS.items()}
    return erag_engine.evaluate(
        queries, None, run, reader=ask, k=2, measures="P@1 nDCG@2", progress=False, **options
    )


def check(run):
    """Evaluate a run of one of the frameworks, whose retriever finds the passage with the answer first."""
    result = evaluate(run)
    scores = result.means.filter(measure="P@1")["value"].to_list()
    assert scores == [1.0], result
    assert result.labels["label"].sum() == 3
