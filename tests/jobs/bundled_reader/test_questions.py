"""Questions made of sentences."""

import random

from jobs.bundled_reader.questions import ask
from jobs.bundled_reader.spans import spans

SENTENCE = "Albert Einstein was born in Ulm in 1879, and he left Germany with 2 suitcases."


def all_ways(sentence: str, answer: str, title: str = "Someone") -> set[str]:
    (span,) = [span for span in spans(sentence) if span.of(sentence) == answer]
    return {ask(sentence, span, title, random.Random(seed)) for seed in range(300)}


def test_the_answer_is_not_in_the_question() -> None:
    for answer in ("Albert Einstein", "Ulm", "1879", "Germany", "2"):
        for question in all_ways(SENTENCE, answer):
            assert answer.lower() not in question.lower().split(), question


def test_questions_are_asked_in_several_ways() -> None:
    years = all_ways(SENTENCE, "1879")
    assert "When was Albert Einstein born in Ulm?" in years
    assert "albert einstein was born in ulm in what year" in years
    people = all_ways(SENTENCE, "Albert Einstein")
    assert "Who was born in Ulm in 1879?" in people
    rivers = all_ways("There are 8,350 rivers in Azerbaijan.", "8,350")
    assert "how many rivers there are in azerbaijan" in rivers


def test_a_pronoun_is_replaced_by_what_the_article_is_about() -> None:
    questions = all_ways("He moved to Paris in the same year.", "Paris", title="Frédéric Chopin")
    assert any("Frédéric Chopin moved to" in question for question in questions)
    assert any(question.lower().startswith("he moved") for question in questions)


def test_the_same_seed_gives_the_same_question() -> None:
    (span,) = [span for span in spans(SENTENCE) if span.kind == "year"]
    one, two = (ask(SENTENCE, span, "", random.Random(5)) for _ in range(2))
    assert one == two
