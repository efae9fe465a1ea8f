import hashlib
import json
import pickle
import random
from dataclasses import replace
from functools import partial

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tables
from engine.inputs import lists
from engine.inputs import partition as module
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.sources.io import files as writing
from engine.sources.io.folders import folder_at
from engine.sources.passages.index import index_corpus
from engine.sources.queries.buckets import buckets_of
from tests.evaluation.in_shards import edit, edited, made
from tests.expected import outcome, refused

WORDS = ["who", "why", "where", "when", "how", "漢字", "Ann"]


class Drawn(random.Random):
    """The files of ``made``, of twelve passages, edited at random, with faults now and then."""

    def sometimes(self, probability):
        return self.random() < probability

    def fault(self, probability=0.1):
        return self.faulty and self.sometimes(probability)

    def write(self, path, lines):
        path.unlink(missing_ok=True)
        if not self.fault(0.02):
            path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def files(self, folder):
        # Most evaluations have no fault: else few would get as far as the later checks.
        self.faulty = self.sometimes(0.35)
        names = ("one", "two", "three")[: self.randint(1, 3)]
        files, queries = made(folder, 7, names, passages=12, chance=self), []
        # Those that are left out are foreign to runs and judgments.
        for number in self.sample(range(7), self.choice([1, 3, 5, 7, 7])):
            gold = self.choices(["T0", "T1", "A1", "none"], k=self.randint(0, 2))
            named = [{self.choice(["title", "title", "wikipedia_id"]): one} for one in gold]
            output = [{"answer": "Ann", "provenance": named}]
            queries.append({"id": f"q{number}", "input": self.choice(WORDS), "output": output})
        corpus, skip = pl.read_parquet(files.corpus).to_dicts(), self.choice([0, 0, 2])
        for row in corpus:
            row["text"] = self.choice(["", " ", row["text"], "the same text"])
            for name in self.sample(["title", "article_id"], self.randint(1, 2)):
                del row[name]
        runs = tuple(self.run(path, queries, corpus) for path in files.run)
        if self.fault():
            queries.append(self.choice([queries[0], {"id": "x", "input": " "}]))
        if self.fault() or (skip and self.sometimes(0.5)):
            corpus.insert(self.randrange(13), {"doc_id": "bad"})
        corpus += corpus[:1] * self.fault()
        return replace(
            files,
            queries=self.write(folder / "q.jsonl", map(json.dumps, queries)),
            corpus=self.write(folder / "c.jsonl", map(json.dumps, corpus)),
            run=runs,
            limit=self.choice([None, None, 1, 2, 4, 99]),
            skip_bad=skip,
            tables={name: table for name, table in files.tables.items() if self.sometimes(0.4)},
            cluster=self.choice([None, None, "article"]),
        )

    def run(self, path, queries, corpus):
        """A run that names queries by their ids or texts, and passages too, where its layout can."""
        rows, layout = pl.read_parquet(path).to_dicts(), self.choice([".trec", ".json", ".parquet"])
        ids = {row["input"]: row["id"] for row in queries} if self.sometimes(0.2) else {}
        texts = {query_id: text for text, query_id in ids.items()}
        for row in rows:
            row["query_id"] = texts.get(row["query_id"], row["query_id"])
        more = self.choices(["lost", "gone", "away", "d0"], k=4) if self.fault(0.3) else []
        if layout == ".json" and self.sometimes(0.3):
            more += [row["text"] for row in self.choices(corpus) if row["text"].strip()]
        rows += [self.choice(rows) | {"doc_id": document} for document in more]
        self.shuffle(rows)
        name = "one" if self.fault() else path.stem
        for row, rank in zip(rows, ranks := self.sample(range(100), len(rows)), strict=True):
            row |= {"rank": rank, "score": self.choice([0.5, 1.0, 1.00000001, -3e-5]), "run": name}
        path = path.with_suffix(layout)
        if layout == ".json":
            lists = {}
            for row in rows:
                lists.setdefault(row["query_id"], {})[row["doc_id"]] = row["score"]
            return self.write(path, [json.dumps(lists)])
        if layout == ".trec":
            lines = ["{query_id} Q0 {doc_id} 0 {score} {run}".format(**row) for row in rows]
            bad = self.choice(["q Q0 d", "q Q0 d 0 x s", "q Q0 d 0 1 z"])
            for line in [bad] * self.fault() + [" \t"] * self.sometimes(0.2):
                lines.insert(self.randint(0, len(lines)), line)
            return self.write(path, lines[: 0 if self.fault(0.03) else None])
        if self.fault(0.4):
            rows[-1] |= self.choice([{"rank": ranks[0]}, {"score": None}, {"score": float("nan")}])
        pl.DataFrame(rows, tables.RUNS).write_parquet(path)
        return path


def tables_of(inputs):
    named = {"queries": inputs.queries, "runs": inputs.runs, "corpus": inputs.corpus}
    return named | inputs.tables


def assert_same_content(made, whole, files):
    shards = [made.read(shard.number) for shard in made.shards]
    for shard, inputs in zip(made.shards, shards, strict=True):
        (low, high), ids = shard.span, inputs.queries["query_id"].to_list()
        assert low % (high - low) == 0  # so that ranges of other evaluations fit
        assert all(low <= bucket < high for bucket in buckets_of(inputs.queries["query"]))
        pairs = inputs.runs.select("query_id", "doc_id").n_unique()
        assert (shard.queries, shard.pairs) == (len(ids), pairs)
        assert (inputs.k, inputs.notes, inputs.queries_file) == (whole.k, (), files.queries)
        assert inputs.cut_runs == whole.cut_runs
        assert [q for q in whole.queries["query_id"] if q in ids] == ids
        assert set(inputs.runs["query_id"]) <= set(ids)
        assert sorted(set(inputs.runs["doc_id"])) == sorted(inputs.corpus["doc_id"])
        places = inputs.runs.select(pl.col("run").cast(pl.Enum(made.runs)), "query_id", "rank")
        assert places.equals(places.sort(places.columns))
    # Clusters are of all queries together, and in no shard.
    without = replace(whole, queries=whole.queries.drop("cluster", strict=False))
    for name, table in tables_of(without).items():
        found = pl.concat(tables_of(shard)[name] for shard in shards)
        found = found.unique() if name == "corpus" else found
        found, table = (one.sort(table.columns[0], maintain_order=True) for one in (found, table))
        assert found.equals(table), name
    assert list(made.runs) == whole.runs["run"].unique(maintain_order=True).to_list()
    assert (made.notes, made.cut_runs) == (whole.notes, whole.cut_runs)
    assert (made.unmatchable, made.tables) == (whole.unmatchable[:1], tuple(whole.tables))
    assert made.queries().equals(whole.queries)


@pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_shards_are_what_is_read_whole_and_errors_are_the_same(tmp_path_factory, examples):
    @settings(max_examples=examples, deadline=None)
    @given(seed=st.integers(0, 2**32), most=st.sampled_from([1, 3, 8, 100]), k=st.integers(1, 5))
    def compare(seed, most, k):
        folder = tmp_path_factory.mktemp("partition")
        files = Drawn(seed).files(folder)
        whole = outcome(read_inputs, files, k=k)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lists, "_PART_BYTES", 100)
            cut = outcome(partition, files, folder_at(folder / "w"), k=k, pairs_per_shard=most)
        if isinstance(whole, tuple):
            assert cut == whole
            assert not list((folder / "w").glob("*/manifest.json"))
        else:
            assert not isinstance(cut, tuple), cut
            assert_same_content(pickle.loads(pickle.dumps(cut)), whole, files)

    compare()


CUT = {"k": 4, "pairs_per_shard": 20}


@pytest.fixture
def small(tmp_path):
    """The files of an ordinary evaluation of one run, the folder of its shards, and the shards."""
    files, folder = made(tmp_path, runs=("one",)), folder_at(tmp_path / "w")
    return files, folder, partition(files, folder, **CUT)


OTHER = pl.when(query_id="q0", rank=1).then(pl.lit("d59")).otherwise("doc_id")


@pytest.mark.parametrize(
    ("more", "change", "moved"),
    [
        ({"k": 3}, replace, "all"),
        ({"pairs_per_shard": 10}, replace, "some"),
        ({}, partial(replace, limit=3), "all"),
        ({}, partial(replace, cluster="article"), "none"),
        ({}, edited("queries", more=1), "none"),
        ({}, edited("run", pl.all().reverse()), "none"),
        ({}, edited("run", doc_id=OTHER), "one"),
        ({}, edited("corpus", text=pl.concat_str("text", pl.lit("!"))), "corpus"),
    ],
)
def test_other_files_or_settings_make_another_partition_beside_it(small, more, change, moved):
    """In which shards of equal content, of its lists and the whole corpus, have equal digests."""
    files, folder, first = small
    second = partition(change(files), folder, **(CUT | more))
    assert second.folder != first.folder
    assert (second.passages.name == first.passages.name) == (moved != "corpus")
    assert first.read(0).queries.height == first.shards[0].queries
    own, others = ({shard.digest for shard in made.shards} for made in (first, second))
    expected = {"none": [0], "one": [1], "some": range(1, len(own))}
    assert len(own - others) in expected.get(moved, [len(own)])


@pytest.mark.parametrize("moment", ["runs", "passages", "shards"])
def test_a_partition_that_was_killed_leaves_nothing_to_trip_over(small, tmp_path, moment):
    files, _, fresh = small
    folder = folder_at(tmp_path / "killed")

    def kill(doing, done):
        if doing == moment and (doing != "shards" or done == 3):
            raise SystemExit

    with pytest.raises(SystemExit):
        partition(files, folder, **CUT, on_progress=kill)
    # A process that was killed outright leaves its temporary folder, too.
    left = f".partition.{writing._machine()}{'0' * 20}.erag"
    (tmp_path / "killed" / left / "raw").mkdir(parents=True)
    cut = partition(files, folder, **CUT)
    assert_same_content(cut, read_inputs(files, k=4), files)
    assert (cut.shards, cut.folder.names()) == (fresh.shards, fresh.folder.names())


def test_what_is_not_the_shard_that_was_cut_is_one_line_and_not_other_data(small, tmp_path):
    files, _, cut = small
    path = cut.folder.at / "shard-000001.zip"
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with refused("inputs.shard"):
            cut.read(1)
    path.unlink()
    with refused("files.missing"):
        cut.read(1)
    edit(files.corpus, lambda passages: passages.head(1))
    other = index_corpus(files.corpus, folder_at(tmp_path / "other"), "k")
    posing = replace(other, fingerprint=cut.passages.fingerprint)
    for passages, code in ((other, "inputs.shard"), (posing, "inputs.passage")):
        with refused(code):
            replace(cut, passages=passages).read(0)


@pytest.mark.parametrize("root", ["", "memory://"])
def test_a_finished_partition_is_taken_up_without_reading_its_files(tmp_path, monkeypatch, root):
    """Also at an address."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files, folder = made(tmp_path), folder_at(f"{root}{tmp_path}/w")
    cut = partition(files, folder, **CUT)
    assert len(cut.shards) > 4
    assert_same_content(pickle.loads(pickle.dumps(cut)), read_inputs(files, k=4), files)
    # The index at an address is kept for this machine's workers; nothing temporary.
    left = "erag" if root else "w"
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"files", left}
    for name in ("check_inputs", "index_corpus"):
        monkeypatch.setattr(module, name, lambda *a, **b: pytest.fail("read again"))
    assert partition(files, folder, **CUT) == cut


def test_digests_of_shards_are_those_of_earlier_versions():
    """Written down as cf151f0 made them, of an evaluation without edits."""
    expected = hashlib.sha256(b"('f', 3, (), ('a',))x").hexdigest()
    assert module._digest(b"x", "f", 3, ("a",)) == expected


def test_settings_out_of_range_are_refused(tmp_path):
    with refused("settings.value"):
        partition(made(tmp_path), folder_at(tmp_path / "w"), k=4, pairs_per_shard=0)
