"""Making a small reader: the smallest whole training, from made-up questions to a model that reads."""

import json

import pytest

from benchmarks.bundled_reader.make import PHASES, make_reader
from benchmarks.bundled_reader.text import GOLD, asked, holds, in_parts, made_queries
from engine.reading.readers import load
from engine.sources.articles.read import Article
from engine.tables import ANSWERS, DOC_ID, TEXT, TITLE
from engine.training.start import specify_start

PLACES = ("Ulm", "Bern", "Prague", "Berlin", "Princeton", "Vienna", "Paris", "Oslo", "Rome")
ARTICLES = [
    Article(
        str(number),
        f"Physicist {number}",
        " ".join(
            f"The physicist moved to {place} in the year {1800 + 10 * number + turn}. "
            f"After that the physicist left {place} with {turn + 2} old boxes of books."
            for turn, place in enumerate(PLACES)
        ),
    )
    for number in range(20)
]


@pytest.mark.usefixtures("without_java")
def test_a_reader_is_made_and_reads(tmp_path, capsys):
    text = in_parts(ARTICLES)
    queries = made_queries(text.corpora["train"], 40, seed=1)
    texts = dict(text.corpora["train"].select(DOC_ID, TEXT).rows())
    assert all(holds(texts[gold], answers[0]) for gold, answers in queries[GOLD, ANSWERS].rows())
    learned = {part: set(corpus[TITLE]) for part, corpus in text.corpora.items()}
    assert not learned["train"] & (learned["dev"] | learned["test"])
    assert {one.span.kind for one in asked(text.articles["train"])} == {"name", "year", "number"}

    make_reader(text, 128, 0.0001, 0, tmp_path)
    assert capsys.readouterr().out.count("1 steps") == len(PHASES)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["d_model"], config["dtype"]) == (128, "bfloat16")
    start = specify_start(str(tmp_path / "model"), augmentation="fid")
    (output,) = load(start.spec).read([start.prompt.render("Who moved?", [("A", "Ann moved.")])])
    assert not output.truncated
