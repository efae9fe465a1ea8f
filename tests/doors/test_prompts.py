"""A server that cuts prompts in silence gives failed reads; none that counts in a way of its own does."""

import itertools
import re

import polars as pl
import pytest

import engine
from benchmarks._reads import get_reads
from engine.machine.pool import PoolSettings
from engine.machine.remote import client, limits
from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import ReadError
from engine.reading.plan import REQUESTED, read_key
from engine.reading.reader_settings import ReaderAsk
from engine.reading.remote.specify import CUT_PROMPT, specify_api
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

SHORT, LONG = 12, 6
PROSE = [
    "the",
    "harbour",
    "of",
    "the",
    "capital",
    "lies",
    "on",
    "a",
    "wide",
    "bay",
    "and",
    "ships",
    "come",
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.003)
    limits.forget()


def specified(url, **settings):
    made = ApiSettings(base_url=url, **settings)
    return specify_api(ReaderAsk(model="openai:m", task="short-answer"), made)[0]


def prose(words, number):
    return " ".join([f"text {number}:", *itertools.islice(itertools.cycle(PROSE), words - 2)])


def texts(long=lambda number: prose(200 + 7 * number, number)):
    return [prose(40 + number, number) for number in range(SHORT)] + list(map(long, range(LONG)))


def words(text):
    return len(re.findall(r"\w+|[^\w\s]", text))


class Cached:
    """Counts tokens behind what an earlier prompt began with, too."""

    def __init__(self):
        self.seen = []

    def __call__(self, text):
        tokens = text.split()
        kept = max((_common(tokens, one) for one in self.seen), default=0)
        self.seen.append(tokens)
        return len(tokens) - kept


def _common(one, other):
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def read(count, tmp_path, given=None, usage=True):
    given = given or texts()
    behaviour = Behaviour(
        lambda body: Said("Lima", prompt_tokens=count(prompt_of(body))), usage=usage
    )
    with serving(behaviour) as url:
        spec = specified(url)
        rows = [
            (read_key(spec.fingerprint, [text]), f"q{n}", [f"d{n}"], [text])
            for n, text in enumerate(given)
        ]
        wanted = pl.DataFrame(rows, schema=REQUESTED, orient="row")
        found, _ = get_reads(wanted, spec, tmp_path, pool=PoolSettings())
        again, costs = get_reads(wanted, spec, tmp_path, pool=PoolSettings())
    assert found["failure"].to_list() == again["failure"].to_list()
    assert costs.reused == found["failure"].null_count()
    return found["failure"].to_list(), len(behaviour.prompts)


def window(most):
    return lambda text: min(most, words(text))


CUTS = {
    "flat": (window(120), None),
    "a twentieth": (window(195), None),
    "all of about one length": (window(120), lambda number: prose(200 + number % 2, number)),
    "one": (window(120), lambda number: prose(260 if number == 3 else 50 + number, number)),
    "with a system prompt": (lambda text: min(500, 400 + words(text)), None),
    "blocks": (lambda text: n if (n := words(text)) <= 120 else 120 - n % 48, None),
}


@pytest.mark.parametrize("kind", CUTS)
def test_a_server_that_cuts_prompts_gives_failed_reads(kind, tmp_path):
    count, long = CUTS[kind]
    given = texts(long) if long else texts()
    failures, _ = read(count, tmp_path, given)
    cut = [
        words(text) > (195 if "twent" in kind else 100 if "system" in kind else 120)
        for text in given
    ]
    assert [failure is not None for failure in failures] == cut
    assert all(failure.startswith(CUT_PROMPT) for failure in failures if failure)


HONEST = {
    "words": (words, None),
    "bytes": (lambda text: len(text.encode()), None),
    "a constant": (lambda text: 10, None),
    "zero": (lambda text: 0, None),
    "without those that were kept": (Cached(), None),
    "with a system prompt": (lambda text: 2000 + words(text), None),
    "characters of Chinese": (
        lambda text: -(-len(text) // 4),
        lambda n: "阿鲁巴的首都是奥拉涅斯塔德" * (20 + n),
    ),
    "runs of blanks": (words, lambda n: "def f():\n" + (" " * 90 + "return x\n") * (20 + n)),
    "repeated signs": (lambda text: -(-len(text) // 64) + 5, lambda n: "=" * (3000 + 100 * n)),
}


@pytest.mark.parametrize("kind", HONEST)
def test_no_other_way_to_count_tokens_is_taken_for_a_cut(kind, tmp_path):
    count, long = HONEST[kind]
    failures, asked = read(count, tmp_path, texts(long) if long else texts())
    assert not any(failures)
    # Four requests more where it is in doubt; English is in none.
    assert asked - SHORT - LONG == (
        0 if kind in ("words", "bytes", "a constant", "zero") else asked % (SHORT + LONG)
    )


def test_without_counts_nothing_is_judged(tmp_path):
    failures, asked = read(words, tmp_path, usage=False)
    assert (any(failures), asked) == (False, SHORT + LONG)


def test_where_all_prompts_are_cut_the_job_says_why(tmp_path):
    failures, _ = read(window(20), tmp_path)
    assert all(failures)


@pytest.mark.parametrize("failed_reads", ["error", "zero"])
def test_cut_prompts_say_nothing_of_passages_together(failed_reads):
    """The answer stands in the passage that comes first, which the server drops of a list."""
    capitals = {"Aruba": "Oranjestad", "Peru": "Lima", "Ecuador": "Quito", "Chile": "Santiago"}
    corpus = [
        {"id": name, "text": f"{prose(60, n)} The capital of {name} is {city}."}
        for n, (name, city) in enumerate(capitals.items())
    ]
    runs = {
        "r": {name: [name, *(other for other in capitals if other != name)] for name in capitals}
    }

    def say(body):
        tokens = prompt_of(body).split()[-150:]
        right = next(
            (
                city
                for name, city in capitals.items()
                if f"{city}." in tokens and f"of {name}?" in prompt_of(body)
            ),
            "?",
        )
        return Said(right, prompt_tokens=len(tokens))

    with serving(Behaviour(say)) as url:
        given = {
            "queries": [{"id": name, "question": f"What is the capital of {name}?", "answers": [city]} for name, city in capitals.items()],
            "passages": corpus, "runs": runs, "reader": "openai:m", "base_url": url, "k": 4, "failed_reads": failed_reads,
            "annotators": ["erag"], "resamples": 0,
        }  # fmt: skip
        if failed_reads == "error":
            with pytest.raises(ReadError, match=CUT_PROMPT):
                engine.evaluate(**given)
            return
        result = engine.evaluate(**given)
    assert not [
        row
        for row in result.summary["unseen"]
        if row["figure"] == "wrong_despite_label" and row["value"]
    ]
