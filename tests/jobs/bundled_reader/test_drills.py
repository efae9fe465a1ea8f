"""Drills: what they ask can be answered from the passage, and nothing is drawn twice the same by chance."""

import random

import pytest
from transformers import AutoTokenizer

from benchmarks._single import default_prompt
from engine.scoring.normalize import normalize_answer
from engine.sources.articles.article import Article
from jobs.bundled_reader.drills import Drills, gaps, holds, question
from jobs.bundled_reader.text import asked
from jobs.bundled_reader.tokenizer import train_tokenizer

NAMES = ("Ulm", "Bern", "Princeton", "Zürich", "Prague", "Berlin", "Vienna", "Paris")
TEXT = " ".join(
    f"Albert Einstein lived in {name} for some time until {year}. In {year} he left {name} with {number} boxes."
    for number, (name, year) in enumerate(zip(NAMES, range(1880, 1888), strict=True), 2)
)
ASKED = list(asked([Article("1", "Albert Einstein", TEXT)]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([TEXT], 600, directory)
    return AutoTokenizer.from_pretrained(directory)


def drills(tokenizer, kind, seed=0):
    prompt = default_prompt("short-answer", "encoder-decoder", "fid")
    return Drills(ASKED, {kind: 1.0}, 50, prompt, tokenizer, 250, 16, seed)


def test_any_text_is_made_of_tokens(tokenizer):
    for text in ("Hatch Act of 1887, 8,350", "naïve Ünïcödé 漢字 <x>"):
        assert (
            tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True).strip() == text
        )
    assert tokenizer("Ulm")["input_ids"] == tokenizer(" Ulm")["input_ids"]
    assert tokenizer("Ulm")["input_ids"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("kind", ["copy", "restore", "denoise", "short", "passage"])
def test_a_drill_is_the_same_for_the_same_place_and_another_for_another(tokenizer, kind):
    one = drills(tokenizer, kind)
    assert len(one) == 50
    first = one.draw(0, range(8))
    assert first == drills(tokenizer, kind).draw(0, range(8))
    assert first[3:4] == one.draw(0, [3])
    assert first != one.draw(1, range(8))
    assert first != drills(tokenizer, kind, seed=1).draw(0, range(8))
    assert one.digest != drills(tokenizer, kind, seed=1).digest
    for example in first:
        assert all(0 < len(tokens) <= 250 for tokens in example.inputs)
        assert example.target[-1] == tokenizer.eos_token_id


def test_short_questions_are_prompts_whose_passage_has_the_answer(tokenizer):
    for example in drills(tokenizer, "short").draw(0, range(50)):
        (tokens,) = example.inputs
        text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
        answer = tokenizer.decode(example.target, skip_special_tokens=True).strip()
        assert text.startswith("question: ")
        asks, given = text.removeprefix("question: ").split(" title: ", 1)
        assert holds(given, answer)
        assert not holds(asks, answer)


def test_half_of_the_answers_are_exchanged():
    pool = {
        kind: sorted({one.answer for one in ASKED if one.span.kind == kind})
        for kind in ("name", "year", "number")
    }
    rng = random.Random(0)
    drawn = [question(ASKED, pool, rng, words=None) for _ in range(300)]
    assert all(holds(one.passage, one.answer) for one in drawn)
    passages = {one.passage for one in ASKED}
    changed = sum(one.passage not in passages for one in drawn)
    assert 0.3 < changed / len(drawn) < 0.6


def test_gaps_and_what_is_missing_make_the_text_again():
    sentinels = range(1000, 1016)
    for seed in range(200):
        rng = random.Random(seed)
        tokens = [rng.randrange(500) for _ in range(rng.randint(1, 60))]
        shown, missing = gaps(tokens, sentinels, 0.3, rng)
        pieces: dict[int, list[int]] = {}
        for token in missing:
            if token >= 1000:
                pieces[token] = piece = []
            else:
                piece.append(token)
        whole = [t for token in shown for t in (pieces[token] if token >= 1000 else [token])]
        assert whole == tokens
        assert pieces
        assert list(pieces) == [*sentinels][: len(pieces)]


def test_an_answer_is_compared_as_the_metric_does():
    assert holds("It was the U.S. Congress.", "us congress")
    assert not holds("He came from Ulmus", "Ulm")
    assert normalize_answer("The Ulm") == "ulm"
