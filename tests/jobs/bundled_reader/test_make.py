"""The bundled reader is made: lists around made-up questions, phases of training, what it can do."""

import random
from dataclasses import replace
from typing import get_args

import pytest
from safetensors.torch import load_file

from engine.reading.protocol import ReadOutput
from engine.scoring.normalize import normalize_answer
from engine.sources.articles.article import Article
from engine.sources.bundled import QuestionSet, fid_reader_directory, questions
from engine.sources.io.folders import folder_at
from engine.sources.queries.read import read_queries
from engine.tables import ANSWERS, DOC_ID, QUERY, QUERY_ID, TEXT, TITLE
from jobs.bundled_reader import lists as made
from jobs.bundled_reader import make
from jobs.bundled_reader.drills import holds, question
from jobs.bundled_reader.make import (
    PHASES,
    Size,
    ability,
    deliver,
    in_parts,
    make_start,
    run_phase,
)
from jobs.bundled_reader.text import asked

PLACES = (
    "Ulm",
    "Bern",
    "Prague",
    "Zürich",
    "Berlin",
    "Princeton",
    "Vienna",
    "Paris",
    "Oslo",
    "Rome",
)
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


@pytest.fixture(scope="module")
def text():
    return in_parts(ARTICLES)


@pytest.mark.usefixtures("without_java")
def test_each_question_has_its_passage_among_others_that_lack_the_answer(text):
    corpus = text.corpora["train"]
    queries = made.made_queries(corpus, 60, seed=1)
    assert queries.equals(made.made_queries(corpus, 60, seed=1))
    assert queries.height == queries[QUERY_ID].n_unique() == 60
    texts = dict(corpus.select(DOC_ID, TEXT).rows())
    answers = {query_id: found[0] for query_id, found in queries.select(QUERY_ID, ANSWERS).rows()}
    gold = dict(queries.select(QUERY_ID, made.GOLD).rows())
    assert all(holds(texts[gold[query_id]], answer) for query_id, answer in answers.items())

    others = made.others(queries, corpus, 5)
    assert any(len(found) == 5 for found in others.values())
    assert not any(
        holds(texts[doc_id], answers[query_id])
        for query_id, found in others.items()
        for doc_id in found
    )
    listed = dict(made.lists(queries, others, (4,), seed=1).rows())
    places = set()
    for query_id, doc_ids in listed.items():
        assert len(doc_ids) == len(set(doc_ids)) == 1 + min(3, len(others[query_id]))
        places.add(doc_ids.index(gold[query_id]))
    assert len(places) > 1


@pytest.mark.slow
def test_the_phases_follow_each_other_and_say_what_the_reader_can_do(text, tmp_path):
    size = Size(width=128, encoder=3, decoder=1)
    latest = tmp_path / "start"
    latest.mkdir()
    make_start(text, size, latest, seed=0)
    for phase in PHASES:
        folder = folder_at(tmp_path / phase.name)
        short = replace(phase, steps=2, recipe=replace(phase.recipe, batch=2))
        trained = run_phase(short, latest, text, folder, 0, lambda progress, steps: None)
        points = trained.points
        assert trained.examples == 4
        assert all(point.tokens <= trained.tokens for point in points)
        assert trained.tokens > 0
        # Spans ask nothing that could be evaluated.
        assert [point.step for point in points] == ([] if phase.name == "spans" else [0, 1, 2])
        latest = tmp_path / phase.name / "model"
    deliver(folder_at(latest.parent), tmp_path / "delivered")
    whole, rounded = (
        load_file(directory / "model.safetensors") for directory in (latest, tmp_path / "delivered")
    )
    assert {str(weight.dtype) for weight in rounded.values()} == {"torch.bfloat16"}
    assert all(weight.bfloat16().equal(rounded[name]) for name, weight in whole.items())
    found = ability(tmp_path / "delivered", text, "test", 8, seed=0)
    assert found.questions == 8
    assert all(0 <= value <= 1 for value in (found.gold, found.listed, found.wrong, found.nothing))


@pytest.mark.usefixtures("without_java")
def test_ability_is_asked_with_the_passage_with_ten_with_ten_others_and_with_none(
    text, tmp_path, monkeypatch
):
    make_start(text, Size(width=128), tmp_path, seed=0)
    queries = made.made_queries(text.corpora["test"], 8, seed=0)
    answers = [found[0] for found in queries[ANSWERS]]
    read = []

    class Knowing:
        """Answers where a passage has the answer."""

        def read(self, inputs):
            read.append(inputs)
            return [
                ReadOutput(answer if holds(" ".join(texts), answer) else "", 1, 1, False)
                for texts, answer in zip(inputs, answers, strict=True)
            ]

    monkeypatch.setattr(make, "load", lambda spec: Knowing())
    found = ability(tmp_path, text, "test", 8, seed=0)
    assert (found.gold, found.listed, found.wrong, found.nothing) == (1.0, 1.0, 0.0, 0.0)
    assert [max(map(len, inputs)) for inputs in read] == [1, 10, 10, 1]
    assert not any("context:" in texts[0] for texts in read[3])


@pytest.fixture(scope="module")
def wikipedia(bundled_articles):
    return in_parts(bundled_articles)


def test_no_question_of_the_demo_is_learned_and_no_held_out_article(wikipedia):
    """What is learned are questions made of the training articles; lists have 4,800 of them."""
    learned = {part: set(corpus[TITLE]) for part, corpus in wikipedia.corpora.items()}
    assert not learned["train"] & (learned["dev"] | learned["test"])
    asked_of_lists = made.made_queries(wikipedia.corpora["train"], 4800, seed=0)[QUERY].to_list()
    found = list(asked(wikipedia.articles["train"][:10]))
    pool = {one.span.kind: ["Ulm"] for one in found}
    rng = random.Random(0)
    asked_of_drills = [question(found, pool, rng, words=None).question for _ in range(5000)]
    known = {normalize_answer(text) for text in (*asked_of_lists, *asked_of_drills)}
    assert len(known) > 8000
    of_demo = [
        text for task in get_args(QuestionSet) for text in read_queries(questions(task))[QUERY]
    ]
    assert len(of_demo) > 200
    assert not [text for text in of_demo if normalize_answer(text) in known]


@pytest.mark.slow
def test_the_bundled_reader_reads(wikipedia):
    found = ability(fid_reader_directory(), wikipedia, "test", 200, seed=0)
    assert found.questions == 200
    assert found.gold >= 0.5
    assert found.listed >= 0.35
    assert found.wrong <= 0.05
    assert found.nothing <= 0.05
