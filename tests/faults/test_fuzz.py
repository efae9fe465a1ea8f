"""Every parser ends in acceptance or an InputError, whatever it is given: bytes, and structures."""

import json
import string
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.machine.model_files import read_config, tensors
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.reading.prompting.prompts import read_template
from engine.retrieval import manifest
from engine.sources.articles.read import read_source
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_query_set, read_user_queries
from engine.sources.runs.export import write_exports
from engine.sources.runs.qrels import read_preferences, read_qrels
from engine.sources.runs.read import read_run, write_run
from engine.tables import LABELS
from jobs._options import options_from
from tests.faults.test_bad_inputs import parquet, run

KILT = '{"id": "1", "input": "x", "output": [{"answer": "a"}, {"provenance": [{"wikipedia_id": 5}]}]}\n'
SQUAD = {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [
    {"id": "1", "question": "q", "answers": [{"text": "a"}], "is_impossible": False}]}]}]}  # fmt: skip
MANIFEST = {"kind": "bm25", "passages": 1, "corpus": "c", "versions": {}, "format": 2}
MANIFEST["settings"] = dict.fromkeys(("language", "tokenizer"))


# Each parser, the name of its file, and contents that it accepts.
PARSERS = {
    "TREC runs": (read_run, "r.trec", b"1 Q0 a 1 2.5 x\n1 Q0 b 2 1 x\n"),
    "JSON runs": (read_run, "r.json", b'{"1": {"a": 1, "b": 0.5}, "2": ["c", "d"]}'),
    "Parquet runs": (read_run, "r.parquet", run()),
    "TREC qrels": (read_qrels, "q.txt", b"1 0 a 1\n1 0 b 0\n"),
    "BEIR qrels": (read_qrels, "q.tsv", b"query-id\tcorpus-id\tscore\n1\ta b\t0.5\n"),
    "KILT queries": (read_query_set, "q.jsonl", KILT.encode()),
    "plain queries": (read_query_set, "q.jsonl", b'{"id": 1, "query": "x", "answers": ["a"]}\n'),
    "CSV queries": (read_query_set, "q.csv", b'query,answers\n"x, y","[""a""]"\nz,b|c\n'),
    "SQuAD queries": (read_query_set, "q.json", json.dumps(SQUAD).encode()),
    "Parquet queries": (
        read_query_set,
        "q.parquet",
        parquet(query_id=["1"], query=["x"], answers=[["a"]], provenance=[["b"]]),
    ),
    "user queries": (read_user_queries, "u.txt", b"who is it\nwhat is it\n"),
    "JSONL corpora": (read_corpus, "c.jsonl", b'{"id": "a", "title": "t", "text": "x"}\n'),
    "DPR corpora": (read_corpus, "c.tsv", b'id\ttext\ttitle\n1\t"x ""y"" z"\tt\n'),
    "Parquet corpora": (
        read_corpus,
        "c.parquet",
        parquet(doc_id=["a"], title=["t"], text=["x"], article_id=["t"]),
    ),
    "preferences": (
        read_preferences,
        "p.jsonl",
        b'{"query_id": "1", "shown": ["a", "b"], "best": "a"}\n',
    ),
    "JSONL articles": (
        lambda path: list(read_source(path)),
        "a.jsonl",
        b'{"id": "1", "title": "t", "text": ["a", "Section::::b", "BULLET::::- c"]}\n',
    ),
    "dumps": (
        lambda path: list(read_source(path)),
        "a.xml",
        b"<mediawiki><page><title>t</title><ns>0</ns><id>1</id><revision><text>'''x''' [[y]] {{z}}"
        b"</text></revision></page></mediawiki>",
    ),
    "prompts": (
        lambda path: read_template(str(path), "short-answer"),
        "p.txt",
        b"---\nstop: ['a']\nmax_new_tokens: 5\n---\n{passages}Q: {query}",
    ),
    "options": (options_from, "o.yaml", b"k: 5\nrun: [a, b]\nname: 'x'\n"),
    "manifests": (
        lambda path: manifest.read(path.parent),
        manifest.FILE,
        json.dumps(MANIFEST).encode(),
    ),
    "configurations": (
        lambda path: read_config(path.parent, "m"),
        "config.json",
        b'{"model_type": "t5", "architectures": ["T5"]}',
    ),
    "safetensors": (
        tensors,
        "m.safetensors",
        b"\x24\0\0\0\0\0\0\0" + b'{"a": {"shape": [2, 3], "dtype": 1}}',
    ),
}
# What tears formats apart: quotes, brackets, separators, ends of lines, numbers, broken text.
TOKENS = [
    b"", b"\0", b"\n", b"\r", b"\t", b" ", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"|", b"---\n",
    b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"null", b"true", b"NaN", b"-1e999", b"1e300",
    b"9" * 400, b"0x_", b"&a", b"*a", b"!!binary", b"<page>", b"</page>", b"{{" * 50, b"[" * 3000,
]  # fmt: skip
KEYS = ["id", "_id", "doc_id", "query_id", "input", "query", "question", "text", "title", "contents",
        "answers", "answer", "output", "provenance", "wikipedia_id", "data", "paragraphs", "context",
        "qas", "shown", "best", "swap", "insert", "delete", "rank", "run", "labels", "shape", "kind",
        "passages", "settings", "model_type", "architectures", "article_id", "is_impossible", "1"]  # fmt: skip

PLACES = st.integers(0, 400)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["1", "a", "b", "\ud800", "x y", "", 10**30, [["a"]]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
RECORDS = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5) | VALUES, max_size=3)
CHANGES = st.lists(
    st.tuples(PLACES, PLACES, st.sampled_from(TOKENS) | st.binary(max_size=4)), max_size=4
)
QUICK = settings(
    max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def changed(content, changes):
    """Content with pieces (from, length) replaced."""
    for start, length, piece in changes:
        start %= len(content) + 1
        content = content[:start] + piece + content[start + length % 8 :]
    return content


def is_refused_or_read(parse, path, content):
    Path(path).write_bytes(content)
    try:
        result = parse(path)
        if isinstance(result, pl.DataFrame):
            result.rows()
    except InputError as error:
        return "\n" not in str(error) and len(str(error)) < 4000
    return True


def is_harmless(name, path, changes, records):
    parse, file, content = PARSERS[name]
    path = path / file
    written = "\n".join(map(json.dumps, records))
    if file.endswith(".parquet"):  # JSON says nothing there
        written = ""
    pieces = [changed(content, changes), written.encode(), changed(written.encode(), changes[:1])]
    return all(is_refused_or_read(parse, path, piece) for piece in pieces)


@pytest.mark.parametrize("name", PARSERS)
@QUICK
@given(changes=CHANGES, records=RECORDS)
def test_a_parser_accepts_or_refuses_whatever_it_is_given(tmp_path_factory, name, changes, records):
    assert is_harmless(name, _folder(tmp_path_factory, name), changes, records)


_FOLDERS = {}


def _folder(factory, name):
    if name not in _FOLDERS:
        _FOLDERS[name] = factory.mktemp("fuzz")
    return _FOLDERS[name]


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_changed_was_accepted_before(tmp_path, name):
    parse, file, content = PARSERS[name]
    (tmp_path / file).write_bytes(content)
    parse(tmp_path / file)


SCORES = st.floats(width=64) | st.sampled_from([3.4028234663852886e38, -3.4028234663852886e38])


@QUICK
@given(scores=st.lists(SCORES, min_size=1, max_size=6))
def test_a_run_that_is_accepted_can_be_exported_and_read_back_in_its_order(
    tmp_path_factory, scores
):
    folder = _folder(tmp_path_factory, "export")
    rows = [("1", f"d{i}", i + 1, s, "m") for i, s in enumerate(scores)]
    frame = pl.DataFrame(rows, schema=["query_id", "doc_id", "rank", "score", "run"], orient="row")
    frame.write_parquet(folder / "r.parquet")
    text = "".join(f"1 Q0 d{i} 1 {s!r} m\n" for i, s in enumerate(scores))
    (folder / "r.trec").write_text(text)
    (folder / "r.json").write_text(json.dumps({"1": {f"d{i}": s for i, s in enumerate(scores)}}))
    read = 0
    for name in ("r.parquet", "r.trec", "r.json"):
        try:
            found = read_run(folder / name)
        except InputError:
            continue
        read += 1
        (written,) = write_exports([pl.DataFrame(schema=LABELS)], [found], folder / "out")
        again = read_run(written)
        assert again["doc_id"].to_list() == found["doc_id"].to_list()
        if written.suffix == ".parquet":
            with pytest.raises(InputError):
                write_run(found, folder / "x.trec")
    assert read in (0, 3)  # one rule for all


@QUICK
@given(value=st.text(alphabet=string.printable + "\ud800e\u0301é한", max_size=200) | VALUES)
def test_a_value_is_shown_on_one_short_line(value):
    shown = quoted(value)
    assert "\n" not in shown
    assert len(shown) < 900
