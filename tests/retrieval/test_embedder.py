"""Vectors from a server on this machine that fails as servers do: each text is asked for once, and none is taken wrong."""

import contextlib
import re
import sqlite3

import numpy as np
import openai
import pytest

from engine.machine.remote import limits
from engine.machine.remote.api_settings import ServerSettings
from engine.messages.errors import EncodeError, InputError
from engine.retrieval import dense
from engine.retrieval.embedder import Embedder
from engine.retrieval.encode import specify
from engine.retrieval.encoders import (
    EncoderOptions,
    EncoderSpec,
    PassageEncoderOptions,
    Preset,
    split_name,
)
from tests.expected import as_expected, refused
from tests.reading.remote.conftest import _alone  # noqa: F401 (a fixture)
from tests.reading.remote.server import Behaviour, Said, serving, vector_of

# As many as three requests have, and one of them twice.
TEXTS = [*(f"passage {i} of w{i % 7}" for i in range(299)), "passage 0 of w0"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


@pytest.fixture
def behaviour():
    return Behaviour(lambda body: Said("no chat"))


def embedder(url, name="openai:m", *, prefix="", **settings):
    limits.forget()
    kept = split_name(name)[1]
    text = Preset("mean", normalize=False, query_prefix=prefix, dimensions=kept)
    server = ServerSettings(base_url=url, request_timeout=20, **settings).server()
    return Embedder(EncoderSpec(name, name, "", "", text, "float32", kept or 0, server=server))


def vectors(url, texts=TEXTS, **settings):
    return embedder(url, **settings).encode(texts)


def test_vectors_are_those_of_the_openai_client_in_the_order_of_the_texts(behaviour):
    with serving(behaviour) as url:
        found = vectors(url, name="openai:m@5")
        theirs = openai.OpenAI(api_key="k", base_url=url).embeddings
        given = theirs.create(model="m", input=TEXTS, dimensions=5).data
    expected = [one.embedding for one in sorted(given, key=lambda one: one.index)]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    np.testing.assert_array_equal(found[0], found[-1])


@pytest.mark.parametrize("fault", ["429", "500", "cut", "json"])
def test_what_fails_for_a_while_is_asked_again(behaviour, fault):
    with serving(behaviour) as url:
        expected = vectors(url)
    behaviour.fault = lambda number: fault if number % 2 == 0 else None
    with serving(behaviour) as url:  # another server: nothing is known of its vectors
        np.testing.assert_array_equal(vectors(url), expected)
    assert fault in behaviour.faults
    assert sorted(behaviour.texts) == sorted([*TEXTS[:-1], *TEXTS[:-1]])


def test_a_text_is_asked_for_once_whichever_index_or_search_needs_it(behaviour):
    with serving(behaviour) as url:
        first = vectors(url, TEXTS[:150])
        both = vectors(url, TEXTS)
        queries = embedder(url, prefix="q: ").queries(["one", "two", "one"])
        again = embedder(url).encode(["q: one"])
    np.testing.assert_array_equal(both[:150], first)
    np.testing.assert_array_equal(queries[[0, 2]], np.repeat(again, 2, axis=0))
    assert sorted(behaviour.texts) == sorted([*TEXTS[:-1], "q: one", "q: two"])
    assert max(len(body["input"]) for body in behaviour.answered) == 128


def replaced(place, change):
    return lambda records: [change(r) if r["index"] == place else r for r in records]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda records: records[1:], "127 vectors for 128 texts"),
        (lambda records: [*records, records[0] | {"index": 128}], "(ValueError: too many"),
        (replaced(3, lambda r: r | {"index": 4}), "(KeyError: 3"),
        (replaced(3, lambda r: r | {"embedding": [float("nan")] * 8}), "not finite"),
        (replaced(3, lambda r: r | {"embedding": [None] * 8}), "not finite"),
        (replaced(3, lambda r: r | {"embedding": [0.5] * 9}), "same shape"),
        (lambda records: [r | {"embedding": [0.5] * 9} for r in records], "(9,) instead of 8"),
        (replaced(3, lambda r: r | {"embedding": "?!"}), "(Error: "),
        (lambda records: ["no record"] * 128, "(TypeError: "),
        (lambda records: None, "with JSON"),
    ],
)  # fmt: skip
def test_what_is_no_vector_of_each_text_is_refused_and_nothing_of_it_kept(behaviour, given, said):
    first = len(TEXTS[:128])
    with serving(behaviour) as url:
        expected = vectors(url, TEXTS[:first])
        behaviour.given = lambda records: given(records) if len(records) == 128 else records
        with pytest.raises(EncodeError) as caught:
            vectors(url, [*TEXTS[:first], *(f"more {i}" for i in range(128))])
        assert said in str(caught.value)
        as_expected(str(caught.value).rpartition("; ")[2])
        behaviour.given = lambda records: records
        before = len(behaviour.texts)
        found = vectors(url, [*TEXTS[:first], *(f"more {i}" for i in range(128))])
    assert behaviour.texts[before:] == [f"more {i}" for i in range(128)]
    np.testing.assert_array_equal(found[:first], expected)
    np.testing.assert_allclose(found[-1], vector_of("more 127"), rtol=1e-6)


def not_found(handler):
    handler._send(404, {"error": {"message": "The model `m` does not exist"}})


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"key": "another"}, "openai:m"),
        ({"fault": lambda n: not_found}, "openai:m"),
        ({"refuse": lambda body: "no dimensions"}, "openai:m@5"),
        ({"embed": lambda text: [0.5] * 3}, "openai:m@5"),
        ({"fault": lambda n: "500"}, "openai:m"),
    ],
)
def test_what_a_first_request_shows_is_one_line_before_anything_is_paid(behaviour, changed, name):
    for field, value in changed.items():
        setattr(behaviour, field, value)
    with serving(behaviour) as url, pytest.raises((InputError, EncodeError)) as caught:
        vectors(url, name=name)
    as_expected(str(caught.value))
    assert behaviour.texts == []


def test_another_model_of_the_same_name_is_refused(behaviour, cache):
    with serving(behaviour) as url:
        spec = embedder(url).spec
        rounded = behaviour.embed
        behaviour.embed = lambda text: [number + 0.003 for number in rounded(text)]
        vectors(url, ["as rounding has it"])
        behaviour.embed = lambda text: vector_of(f"another {text}")
        with refused("server.model", text=False) as caught:
            Embedder(spec)
    (file,) = cache.iterdir()
    as_expected(str(caught.value).replace(file.name, "FILE"))
    with serving(behaviour) as url, refused("server.model"):
        elsewhere = EncoderOptions("openai:m", base_url=url).server()
        Embedder(type(spec)(**{**vars(spec), "server": elsewhere}))


def test_what_a_server_does_not_take_together_is_asked_for_in_halves(behaviour):
    behaviour.most_texts = 40
    with serving(behaviour) as url:
        found = vectors(url)
        assert sorted(behaviour.texts) == sorted(TEXTS[:-1])
        np.testing.assert_allclose(found[200], vector_of(TEXTS[200]), rtol=1e-6)
        before = len(behaviour.texts)
        with refused("server.text"):
            vectors(url, ["new", "", "newer"])
        vectors(url, ["new"])
    assert behaviour.texts[before:].count("new") == 1


def test_bounds_hold_before_and_while_texts_are_asked_for(behaviour):
    # The server counts words: 3 of the trial and 4 of each text, whose 18 bytes are 2 tokens at the least.
    with serving(behaviour) as url:
        with pytest.raises(EncodeError) as before:
            vectors(url, max_tokens=500)
        assert behaviour.texts == []
        with pytest.raises(EncodeError, match=r"0\.0009") as while_asked:
            vectors(url, max_cost=0.0009, price_in=1, concurrency=1)
        as_expected([re.sub(r"\d[\d.,]*", "N", str(e.value)) for e in (before, while_asked)])
        done = len(behaviour.texts)
        assert done in (128, 171)  # the last request is the smallest, and may be under way already
        asked = embedder(url)
        asked.encode(TEXTS)
    assert sorted(behaviour.texts) == sorted(TEXTS[:-1])
    assert limits.limits_of(asked.spec.server).spent.prompt == 3 + 4 * (299 - done)


def test_an_interruption_loses_nothing_that_came(behaviour, monkeypatch):
    keep, kept = Embedder._keep, []

    def interrupted(self, texts, found):
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(texts)
        return keep(self, texts, found)

    with serving(behaviour) as url:
        monkeypatch.setattr(Embedder, "_keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            vectors(url, concurrency=1)  # the trial, and the first request
        monkeypatch.setattr(Embedder, "_keep", keep)
        before = len(behaviour.texts)
        vectors(url)
    # Requests that are under way at once arrive in any order.
    assert sorted(behaviour.texts[before:]) == sorted(TEXTS[128:-1])


def test_a_file_of_vectors_that_cannot_be_used_is_named(behaviour, cache):
    with serving(behaviour) as url:
        vectors(url, ["a"])
        (file,) = cache.iterdir()
        with sqlite3.connect(file) as database:
            assert database.execute("SELECT count(*) FROM vectors").fetchone() == (2,)
        file.write_bytes(b"no database, but long enough to look like one" * 9)
        with refused("index.cache", path=file, text=False) as caught:
            vectors(url, ["a"])
    as_expected(caught.value.problem)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept[:-1],
        lambda kept: kept[: len(kept) // 2],
        lambda kept: kept + b"\0\0\0\0",
        lambda kept: b"",
        lambda kept: "text",
        lambda kept: 5,
        lambda kept: bytes([kept[0] ^ 1]) + kept[1:],
        lambda kept: kept[:-1] + bytes([kept[-1] ^ 1]),
        lambda kept: np.full(8, np.nan, np.float32).tobytes(),  # as earlier versions kept them
        lambda kept: np.full(8, np.inf, np.float32).tobytes(),
    ],
)
def test_a_kept_vector_that_is_damaged_is_never_used(behaviour, cache, damage):
    with serving(behaviour) as url:
        expected, asked = vectors(url, ["a", "b"]), len(behaviour.texts)
        (file,) = cache.iterdir()
        with sqlite3.connect(file) as database:
            rows = database.execute("SELECT * FROM vectors").fetchall()
            changed = [(damage(kept), key) for key, kept in rows]
            database.executemany("UPDATE vectors SET vector = ? WHERE key = ?", changed)
        with refused("index.vectors", path=file, text=False) as first:
            embedder(url)  # the trial
        with refused("index.vectors", path=file, text=False) as both:
            vectors(url, ["a", "b"])
        as_expected([first.value.problem, both.value.problem])
        np.testing.assert_array_equal(vectors(url, ["a", "b"]), expected)
    assert behaviour.texts[asked:].count("a") == 1


def test_vectors_that_an_earlier_version_kept_are_used(behaviour, cache):
    with serving(behaviour) as url:
        expected, asked = vectors(url, ["a"]), len(behaviour.texts)
        with sqlite3.connect(*cache.iterdir()) as database:
            database.execute("UPDATE vectors SET vector = substr(vector, 1, 32)")
        np.testing.assert_array_equal(vectors(url, ["a"]), expected)
    assert "a" not in behaviour.texts[asked:]


def test_a_file_of_vectors_that_another_process_holds_is_named_after_a_while(
    behaviour, cache, monkeypatch
):
    monkeypatch.setattr("engine.retrieval.embedder._PATIENCE", 0.2)
    with serving(behaviour) as url:
        vectors(url, ["a"])
        (file,) = cache.iterdir()
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with refused("index.cache", path=file, text=False) as caught:
                vectors(url, ["b"])
    as_expected(caught.value.remedy)


def test_settings_that_do_not_fit_an_encoder_of_a_server_are_refused():
    for given, code in (
        ({"pooling": "cls"}, "encoder.server"),
        ({"trust_remote_code": True}, "encoder.server"),
        ({"encoder": "bundled"}, "encoder.local"),
        ({"dtype": "bfloat16"}, "encoder.server"),
        ({"encoder": "openai:@5"}, "server.modelless"),
        ({"max_cost": 1}, "server.prices"),
        ({"base_url": None}, "server.keyless"),
    ):
        with refused(code):
            options = {"encoder": "openai:m", "base_url": "http://127.0.0.1:9/v1"} | given
            specify(PassageEncoderOptions(**options))
    settings = dense.IndexOptions(actors=2).pool()
    spec = specify(EncoderOptions(), threads=1)
    remote = type(spec)(**{**vars(spec), "server": ServerSettings().server()})
    with refused("encoder.server"):
        dense.executor_for(settings, 9, remote)
