import bz2
import functools
import gzip
import hashlib
import json
import pickle
import random
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.inputs import lists
from engine.inputs import partition as module
from engine.inputs.files import InputFiles
from engine.inputs.partition import Partition, partition
from engine.inputs.read import read_inputs
from engine.messages.errors import InputError
from engine.sources.io import files as writing
from engine.sources.io.folders import folder_at
from engine.sources.passages.index import index_corpus
from engine.sources.queries.buckets import buckets_of
from tests.tables import table_files

PASSAGES = [f"d{i}" for i in range(12)]
WORDS = ["who", "what is it", "who is it", "where", "why so", "漢字", "is it Ann"]


class Made:
    """The files of an evaluation, drawn at random, in any layout and with faults now and then."""

    def __init__(self, folder, seed):
        self.random = random.Random(seed)
        self.folder = folder
        folder.mkdir()
        # Most evaluations have no fault: else few would get as far as the later checks.
        self.faulty = self.random.random() < 0.35
        self.corpus = [
            {"id": d, "text": self.random.choice(["", " ", f"It is {d}.", "the same text"])}
            | self.random.choice([{}, {"title": f"T{i % 3} "}, {"article_id": f"T{i % 4}"}])
            for i, d in enumerate(PASSAGES)
        ]
        self.ids = [f"q{i}" for i in range(self.random.randint(1, 7))]

    def sometimes(self, probability):
        return self.random.random() < probability

    def fault(self, probability=0.1):
        return self.faulty and self.sometimes(probability)

    def files(self):
        draw = self.random
        queries = self._queries()
        runs = [self._run(number) for number in range(draw.randint(1, 3))]
        skip = draw.choice([0, 0, 2])
        limit = draw.choice([None, None, 1, 2, 4, 99])
        tables = {}
        if self.sometimes(0.4):
            tables["qrels"] = self._judgments()
        if self.sometimes(0.3):
            tables["preferences"] = self._preferences()
        cluster = draw.choice([None, None, "article"])
        return InputFiles(
            queries=queries, corpus=self._corpus(skip), run=tuple(runs),
            limit=limit, skip_bad=skip, tables=table_files(**tables), cluster=cluster,
        )  # fmt: skip

    def write(self, name, lines):
        data = "".join(f"{line}\n" for line in lines).encode()
        path = self.folder / name
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(data))
        return path

    def _queries(self):
        rows = []
        for query_id in self.ids:
            gold = self.random.choices(["T0", "T1", "9", "none", "d3"], k=self.random.randint(0, 2))
            shown = [{"title": t} if self.sometimes(0.7) else {"wikipedia_id": t} for t in gold]
            outputs = [{"answer": "Ann", "provenance": shown}]
            rows.append({"id": query_id, "input": self.random.choice(WORDS), "output": outputs})
        self.texts = [row["input"] for row in rows]
        if self.fault():
            rows.append(self.random.choice([rows[0], {"id": "x", "input": " "}]))
        if self.fault(0.02):
            return self.folder / "missing.jsonl"
        return self.write(self.random.choice(["q.jsonl", "q.jsonl.gz"]), map(json.dumps, rows))

    def _corpus(self, skip):
        rows = list(map(json.dumps, self.corpus))
        if self.fault() or (skip and self.sometimes(0.5)):
            rows.insert(self.random.randrange(13), '{"id": "bad"}')
        if self.fault():
            rows.append(rows[0])
        if self.fault(0.02):
            return self.folder / "missing.jsonl"
        return self.write(self.random.choice(["c.jsonl", "c.jsonl.bz2"]), rows)

    def _run(self, number):
        draw = self.random
        layout = draw.choice(["trec", "trec", "trec.gz", "json", "list", "parquet", "records"])
        keys = ["who", "where", "漢字"] if "trec" in layout else WORDS
        by_text = self.sometimes(0.2) and bool(set(keys) & set(self.texts))
        foreign = [] if by_text else draw.choices(["q90", "q91"], k=draw.randint(0, 1))
        queries = keys if by_text else [*self.ids, *foreign]
        texts = [row["text"] for row in self.corpus if row["text"].strip()]
        rows = []
        for query in draw.sample(queries, draw.randint(1, len(queries))):
            documents = draw.sample(PASSAGES, draw.randint(1, 8))
            if layout in ("json", "list", "records") and texts and self.sometimes(0.3):
                documents.insert(0, draw.choice(texts))
            if self.fault():
                documents.append(draw.choice(["lost", documents[0]]))
            for document in dict.fromkeys(documents) if "json" in layout else documents:
                rows.append([query, document, draw.choice([0.5, 1, 1.00000001, -3e-5, 7])])
        draw.shuffle(rows)
        name = f"s{number - (number > 0 and self.fault())}"
        if layout == "parquet":
            return self._parquet(number, name, rows)
        if layout == "records":
            return self._records(name, rows)
        if layout in ("json", "list"):
            ranking = {}
            for query, document, score in rows:
                ranking.setdefault(query, {})[document] = score
            if layout == "list":
                ranking = {query: list(documents) for query, documents in ranking.items()}
            return self.write(f"{name}.json", [json.dumps(ranking)])
        lines = [f"{query} Q0 {document} 0 {score} {name}" for query, document, score in rows]
        if self.fault():
            lines.insert(
                draw.randint(0, len(lines)), draw.choice(["q Q0 d", "q Q0 d 0 x s", "q Q0 d 0 1 z"])
            )
        if self.sometimes(0.2):
            lines.insert(draw.randint(0, len(lines)), " \t")
        return self.write(f"r{number}.{layout}", [] if self.fault(0.03) else lines)

    def _records(self, name, rows):
        """As lists of queries or as rows, in lines, an array or Parquet; texts beside ids do not count."""
        if self.sometimes(0.5):
            records = [
                {"query": q, "doc_id": d, "score": float(s), "text": "other"} for q, d, s in rows
            ]
        else:
            lists = {}
            for query, document, _ in rows:
                item = {"id": document} if document in (*PASSAGES, "lost") else {"text": document}
                lists.setdefault(query, []).append(item)
            records = [{"query_id": query, "results": items} for query, items in lists.items()]
        if self.fault():
            records.append({"results": ["d1"]})
        form = self.random.choice(["jsonl", "json", "parquet"])
        if form == "parquet":
            path = self.folder / f"{name}.parquet"
            pl.DataFrame(records, infer_schema_length=None).write_parquet(path)
            return path
        texts = [json.dumps(record) for record in records]
        return self.write(f"{name}.{form}", texts if form == "jsonl" else [f"[{', '.join(texts)}]"])

    def _parquet(self, number, name, rows):
        columns = {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "rank": self.random.sample(range(100), len(rows)),
            "score": [float(row[2]) for row in rows],
            "run": [name] * len(rows),
        }
        if self.fault():
            columns["rank"][-1] = columns["rank"][0]
        if self.fault():
            columns["score"][-1] = self.random.choice([None, float("nan")])
        path = self.folder / f"r{number}.parquet"
        pl.DataFrame(columns).write_parquet(path)
        return path

    def _judgments(self):
        pairs = {(q, d): 1 for q in [*self.ids, "q90"] for d in self.random.sample(PASSAGES, 2)}
        if self.fault():
            pairs = {("q90", "d1"): 1}
        return self.write("qrels.txt", [f"{q} 0 {d} {n}" for (q, d), n in pairs.items()])

    def _preferences(self):
        rows = [{"query_id": q, "shown": ["d1", "d2"], "best": None} for q in [*self.ids, "q90"]]
        return self.write("p.jsonl", map(json.dumps, rows))


def assert_same_content(made, whole, files):
    shards = [made.read(shard.number) for shard in made.shards]
    for shard, inputs in zip(made.shards, shards, strict=True):
        buckets = buckets_of(inputs.queries["query"])
        assert ((buckets >= shard.span[0]) & (buckets < shard.span[1])).all()
        assert (shard.queries, inputs.k) == (inputs.queries.height, whole.k)
        assert shard.pairs == inputs.runs.select("query_id", "doc_id").n_unique()
        ids = inputs.queries["query_id"].to_list()
        assert [q for q in whole.queries["query_id"] if q in ids] == ids
        assert set(inputs.runs["query_id"]) <= set(ids)
        assert sorted(set(inputs.runs["doc_id"])) == sorted(inputs.corpus["doc_id"])
        of_run = {name: n for n, name in enumerate(made.runs)}
        places = [
            (of_run[r], q, n) for r, q, n in inputs.runs.select("run", "query_id", "rank").rows()
        ]
        assert places == sorted(places)
        assert (inputs.notes, inputs.queries_file) == ((), files.queries)

    def every(name):
        return pl.concat(getattr(shard, name) for shard in shards)

    of_all = {
        "queries": (every("queries"), whole.queries.drop("cluster", strict=False), ["query_id"]),
        "runs": (every("runs"), whole.runs, ["run", "query_id", "rank"]),
        "corpus": (every("corpus").unique(), whole.corpus, ["doc_id"]),
    }
    for name, table in whole.tables.items():
        of_all[name] = pl.concat(s.tables[name] for s in shards), table, list(table.columns[:1])
    for name, (found, expected, by) in of_all.items():
        found = found.select(expected.columns).sort(by, maintain_order=True)
        assert found.equals(expected.sort(by, maintain_order=True)), name
    assert list(made.runs) == whole.runs["run"].unique(maintain_order=True).to_list()
    assert made.notes == whole.notes
    assert made.cut_runs == whole.cut_runs
    assert {name for s in shards for name in s.cut_runs} == set(whole.cut_runs)
    assert (made.unmatchable, made.tables) == (whole.unmatchable[:1], tuple(whole.tables))
    assert made.queries().equals(whole.queries)


def outcome(function, *given, **named):
    """What a function gives, or the error that it raises."""
    try:
        return function(*given, **named)
    except InputError as error:
        return str(error.path), error.line, error.problem, error.remedy


def compare_with_reading_whole(tmp_path_factory, seed, most, k):
    folder = tmp_path_factory.mktemp("partition")
    files = Made(folder / "files", seed).files()
    whole = outcome(read_inputs, files, k=k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "_PART_BYTES", 100)
        made = outcome(partition, files, folder_at(folder / "w"), k=k, pairs_per_shard=most)
    if isinstance(whole, tuple):
        assert made == whole
        assert not list((folder / "w").glob("*/manifest.json"))
    else:
        assert not isinstance(made, tuple), made
        assert_same_content(pickle.loads(pickle.dumps(made)), whole, files)


DRAWN = given(seed=st.integers(0, 2**32), most=st.sampled_from([1, 3, 8, 100]), k=st.integers(1, 5))


@settings(max_examples=40, deadline=None)
@DRAWN
def test_shards_are_what_is_read_whole_and_errors_are_the_same(tmp_path_factory, **drawn):
    compare_with_reading_whole(tmp_path_factory, **drawn)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@DRAWN
def test_shards_and_errors_are_the_same_for_many_more_evaluations(tmp_path_factory, **drawn):
    compare_with_reading_whole(tmp_path_factory, **drawn)


def write_small(folder, queries=40, listed=6):
    """An ordinary evaluation: one run of some queries; its files and what is read of them."""
    folder.mkdir()
    rows = [{"id": f"q{i}", "query": f"what is {i}", "answers": ["Ann"]} for i in range(queries)]
    (folder / "q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    passages = [{"id": f"d{i}", "text": f"It is {i}."} for i in range(50)]
    (folder / "c.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in passages))
    lines = [
        f"q{i} Q0 d{(7 * i + j * j) % 50} 0 {-j} s\n" for i in range(queries) for j in range(listed)
    ]
    (folder / "r.trec").write_text("".join(lines))
    files = InputFiles(
        queries=folder / "q.jsonl", corpus=folder / "c.jsonl", run=(folder / "r.trec",)
    )
    return files, read_inputs(files, k=4)


@pytest.fixture
def small(tmp_path):
    """The files, what is read of them, the folder of shards, and the shards."""
    files, whole = write_small(tmp_path / "files")
    folder = folder_at(tmp_path / "w")
    return files, whole, folder, partition(files, folder, k=4, pairs_per_shard=30)


def test_a_finished_partition_is_taken_up_without_reading_its_files(small, monkeypatch):
    files, _, folder, first = small
    assert len(first.shards) > 4
    for name in ("check_inputs", "index_corpus"):
        monkeypatch.setattr(module, name, lambda *a, **b: pytest.fail("read again"))
    assert partition(files, folder, k=4, pairs_per_shard=30) == first


@pytest.mark.parametrize(
    "what", ["k", "pairs_per_shard", "limit", "cluster", "queries", "run", "corpus"]
)
def test_other_files_or_settings_make_another_partition_beside_it(small, what):
    files, _, folder, first = small
    more = {"k": 4, "pairs_per_shard": 30}
    if what in more:
        more[what] -= 1
    elif what in ("limit", "cluster"):
        files = replace(files, **{what: {"limit": 3, "cluster": "article"}[what]})
    else:
        path = {"queries": files.queries, "corpus": files.corpus, "run": files.run[0]}[what]
        path.write_text(path.read_text() + "\n")
    second = partition(files, folder, **more)
    assert second.folder != first.folder
    assert (second.passages.name == first.passages.name) == (what != "corpus")
    assert first.read(0).queries.height == first.shards[0].queries


class Killed(BaseException):
    """The process ends here, as far as the code can tell."""


@pytest.mark.parametrize("moment", ["runs", "passages", "shards"])
def test_a_partition_that_was_killed_leaves_nothing_to_trip_over(tmp_path, moment):
    files, whole = write_small(tmp_path / "files")
    folder = folder_at(tmp_path / "w")

    def kill(what, done):
        if what == moment and (what != "shards" or done == 3):
            raise Killed

    with pytest.raises(Killed):
        partition(files, folder, k=4, pairs_per_shard=30, on_progress=kill)
    # A process that was killed outright leaves its temporary folder, too.
    (tmp_path / "w" / f".partition.{writing._machine()}{'0' * 20}.erag" / "raw").mkdir(parents=True)
    made = partition(files, folder, k=4, pairs_per_shard=30)
    assert_same_content(made, whole, files)
    fresh = partition(files, folder_at(tmp_path / "fresh"), k=4, pairs_per_shard=30)
    assert made.shards == fresh.shards
    assert made.folder.names() == fresh.folder.names()


@pytest.mark.parametrize(
    "lost", ["shard-000002.zip", "queries.parquet", "passages", "manifest.json"]
)
def test_a_partition_of_which_a_file_is_gone_is_made_anew(small, lost):
    files, whole, folder, first = small
    if lost == "passages":
        (folder / "passages").delete([first.passages.name])
    else:
        first.folder.delete([lost])
    second = partition(files, folder, k=4, pairs_per_shard=30)
    assert second == first
    assert_same_content(second, whole, files)


def test_a_damaged_shard_is_one_line_and_not_other_data(small):
    files, _, _, made = small
    path = made.folder.at / "shard-000001.zip"
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"shard-000001\.zip: a damaged shard"):
            made.read(1)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        made.read(1)


def test_an_index_of_another_corpus_is_refused(small, tmp_path):
    files, _, _, made = small
    files.corpus.write_text('{"id": "d1", "text": "alone"}\n')
    other = index_corpus(files.corpus, folder_at(tmp_path / "other"), "k")
    with pytest.raises(InputError, match=r"shard-000000\.zip: a damaged shard"):
        replace(made, passages=other).read(0)
    posing = replace(other, fingerprint=made.passages.fingerprint)
    with pytest.raises(InputError, match=r"shard-000000\.zip: document .* not in the corpus"):
        replace(made, passages=posing).read(0)


def test_a_partition_at_an_address_is_read_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files, whole = write_small(tmp_path / "files")
    folder = folder_at(f"memory://{tmp_path.name}/w")
    made = partition(files, folder, k=4, pairs_per_shard=30)
    assert_same_content(pickle.loads(pickle.dumps(made)), whole, files)
    assert partition(files, folder, k=4, pairs_per_shard=30) == made
    # The index is kept for this machine's workers; nothing temporary.
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"files", "erag"}


def test_the_digest_of_a_shard_follows_its_content_alone(tmp_path):
    files, _ = write_small(tmp_path / "files")
    cut = functools.partial(partition, files, folder_at(tmp_path / "a"), k=4, pairs_per_shard=30)
    first = cut()
    path = files.run[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    same = cut()
    assert same.folder != first.folder
    assert same.shards == first.shards
    # One list changes: that shard alone has another digest.
    changed = [line.replace("q0 Q0 d0 0 0 s", "q0 Q0 d49 0 0 s") for line in lines]
    assert changed != lines
    path.write_text("".join(changed))
    other = cut()
    moved = [a.number for a, b in zip(first.shards, other.shards, strict=True) if a != b]
    (home,) = (n for n in range(len(first.shards)) if "q0" in first.read(n).queries["query_id"])
    assert moved == [home]
    files.corpus.write_text(files.corpus.read_text().replace("It is 49.", "It was 49."))
    corpus = cut()
    assert not {s.digest for s in corpus.shards} & {s.digest for s in other.shards}


def test_digests_of_shards_are_those_of_earlier_versions():
    """Written down as cf151f0 made them, of an evaluation without edits."""
    cut = Partition(
        None, (), ("a",), 3, (), ("a",), (), (), SimpleNamespace(fingerprint="f"), 0, None
    )  # fmt: skip
    assert cut.digest(b"x") == hashlib.sha256(b"('f', 3, (), ('a',))x").hexdigest()


def test_shards_of_another_run_have_ranges_that_fit(tmp_path):
    files, _ = write_small(tmp_path / "files", queries=300)
    folder = folder_at(tmp_path / "w")
    first = partition(files, folder, k=4, pairs_per_shard=50)
    (tmp_path / "other.trec").write_text("".join(f"q{i} Q0 d{i % 9} 0 1 t\n" for i in range(300)))
    other = InputFiles(queries=files.queries, corpus=files.corpus, run=(tmp_path / "other.trec",))
    second = partition(other, folder, k=4, pairs_per_shard=50)
    assert len(second.shards) < len(first.shards)
    for shard in first.shards:
        low, high = shard.span
        assert sum(s.span[0] <= low and high <= s.span[1] for s in second.shards) == 1


def test_settings_out_of_range_are_refused(tmp_path):
    files, _ = write_small(tmp_path / "files")
    with pytest.raises(InputError, match="`pairs_per_shard` is 0; use 1 or more"):
        partition(files, folder_at(tmp_path / "w"), k=4, pairs_per_shard=0)
