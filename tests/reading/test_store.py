"""The read store, at a path and at an address: what is added is found, whatever is merged meanwhile."""

import hashlib
import pickle
from pathlib import Path
from unittest import mock

import fsspec
import polars as pl
import pytest

from engine import tables
from engine.messages.errors import WriteError
from engine.reading import store
from engine.reading.store import keys_of, span_of
from engine.sources.io.folders import Folder, folder_at
from tests.expected import as_expected, refused
from tests.reading.stored import load

READER = "reader"
EARLIER = Path(__file__).parent / "earlier_store"


@pytest.fixture(params=["path", "address"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_MEMORY", store.KeyMemory(store._REMEMBERED))
    store._changes.cache_clear()
    if request.param == "path":
        return folder_at(tmp_path / "store")
    return folder_at(f"memory://{tmp_path.name}/store")


def key(text):
    return hashlib.sha256(text.encode()).hexdigest()


def keys(*texts):
    return pl.Series([key(text) for text in texts], dtype=pl.String)


def reads(*texts):
    columns = (
        "read_key",
        "query_id",
        "doc_ids",
        "output",
        "prompt_tokens",
        "output_tokens",
        "truncated",
        "seconds",
    )
    rows = [(key(t), f"q-{t}", ["d"], t.upper(), 1, 1, False, 0.5) for t in texts]
    schema = {name: tables.READS[name] for name in columns}
    return tables.conform(
        pl.DataFrame(rows, schema=schema, orient="row").with_columns(confidence=None),
        tables.READS,
        "",
    )


def add_each(place, texts, span=None):
    """Add reads, each in a file of its own."""
    for text in texts:
        store.add(place, READER, reads(text), span=span)


def names(place):
    return store.listing(place, READER).names


def merge(place, some=None, span=None):
    """Merge some files, or all there are."""
    return store.compact(place, READER, names(place) if some is None else some, span)


def outputs(stored):
    return sorted(stored.reads["output"])


def found(place, *texts, span=None):
    return outputs(store.find(store.listing(place, READER), keys(*texts), span))


@pytest.fixture
def opened(monkeypatch):
    """Names of the files whose bytes are read, in order."""
    seen = []
    read = Folder.read

    def noted(self, name):
        seen.append(name)
        return read(self, name)

    monkeypatch.setattr(Folder, "read", noted)
    return seen


def test_what_is_added_is_found_by_any_process(place):
    assert outputs(load(place, READER)) == []
    store.add(place, READER, reads("a", "b"))
    store.add(place, READER, reads("c"), span=(0x0A00, 0x0A40))
    store.add(place, READER, reads("d"), span=(0, 0x10000))
    store.add(place, READER, reads(), span=(0, 1))
    spanned = [name for name in names(place) if span_of(name)]
    assert [*map(span_of, spanned)] == [(0, 65536), (0x0A00, 0x0A40)]
    assert [name[:10] for name in spanned] == ["0000-10000", "0a00-0a40-"]
    listed = pickle.loads(pickle.dumps(store.listing(place, READER)))
    assert outputs(store.find(listed, keys("a", "c", "d", "never"))) == ["A", "C", "D"]
    assert outputs(store.find(listed, keys("a", "a"))) == ["A"]
    assert outputs(load(place, READER)) == ["A", "B", "C", "D"]
    assert outputs(load(place, "another reader")) == []
    with pytest.raises(ValueError, match="no span"):
        store.add(place, READER, reads("e"), span=(5, 5))


def test_only_files_whose_span_overlaps_and_that_have_a_key_are_read(place, opened):
    store.add(place, READER, reads("a"), span=(0, 100))
    add_each(place, "bc", (100, 200))
    listed = store.listing(place, READER)
    assert [span_of(name) for name in listed.within((100, 101)).names] == [(100, 200)] * 2
    assert outputs(store.find(listed, keys("b", "x"), (100, 200))) == ["B"]
    (one,) = opened
    assert keys_of(listed.folder, one).to_list() == [key("b")]
    opened.clear()
    # Whoever says that queries are in other buckets than they are is believed.
    assert outputs(store.find(listed, keys("a"), (100, 200))) == []
    assert opened == []


def test_keys_of_files_that_are_asked_for_again_are_read_once(place, opened, monkeypatch):
    asked = []

    def noted(folder, name):
        asked.append(name)
        return keys_of(folder, name)

    monkeypatch.setattr(store, "keys_of", noted)
    store.add(place, READER, reads("a", "b"))
    store.add(place, READER, reads("c"), span=(0, 100))
    listed = store.listing(place, READER)
    for text in "abx" * 5:
        found = store.find(listed, keys(text), (0, 100))
        assert outputs(found) == [text.upper()] * (text != "x")
    assert [span_of(name) for name in asked].count(None) == 1
    # The file that belongs to the span alone was looked at each time, but never read.
    assert {span_of(name) for name in opened} == {None}
    assert len(opened) == 10


def test_a_file_found_gone_leads_to_its_heir(place):
    add_each(place, "abc", (0, 100))
    store.add(place, READER, reads("d"), span=(200, 300))
    listed = store.listing(place, READER)
    store.compact(place, READER, listed.within((0, 100)).names, (0, 100))
    assert len(names(place)) == 2
    for _ in range(2):  # the second call knows where to look
        assert outputs(store.find(listed, keys(*"abcd"))) == ["A", "B", "C", "D"]
        assert outputs(store.find(listed, keys(*"abcd"), (0, 100))) == ["A", "B", "C"]


def test_the_folder_is_listed_again_once_for_a_listing_that_is_old(place, monkeypatch):
    add_each(place, "ab")
    listed = store.listing(place, READER)
    merge(place, listed.names)
    asked = []
    listing = Folder.names
    monkeypatch.setattr(Folder, "names", lambda self: asked.append(1) or listing(self))
    for _ in range(5):
        assert outputs(store.find(listed, keys("a", "b", "x"))) == ["A", "B"]
    assert len(asked) == 1


def test_load_follows_files_that_are_merged_while_it_reads(place, monkeypatch):
    add_each(place, "abc")
    listed = names(place)
    read_each = Folder.read_each

    def merging_first(self, names):
        monkeypatch.setattr(Folder, "read_each", read_each)
        store.compact(place, READER, listed[:2], None)
        return read_each(self, names)

    monkeypatch.setattr(Folder, "read_each", merging_first)
    assert outputs(load(place, READER)) == ["A", "B", "C"]
    assert len(names(place)) == 2


def test_merged_files_have_every_read_once_and_stay_in_their_span(place):
    store.add(place, READER, reads("a", "b"), span=(0, 50))
    store.add(place, READER, reads("b", "c"), span=(50, 100))
    with pytest.raises(ValueError) as caught:
        merge(place, span=(0, 99))
    as_expected(str(caught.value))
    merge(place, span=(0, 100))
    (merged,) = names(place)
    assert span_of(merged) == (0, 100)
    assert outputs(load(place, READER)) == ["A", "B", "C"]
    merge(place, [merged], (0, 100))
    assert names(place) == (merged,)


STEPS = ("before reading", "before writing", "before deleting", "half deleted")


class Killed(BaseException):
    """Stands for a process that ends where it is raised."""


def at(monkeypatch, step, act):
    """Have ``act`` happen once, at a step of the next call of ``compact``."""
    methods = {name: getattr(Folder, name) for name in ("read_each", "write", "delete")}

    def then(method, before):
        def run(self, names, *more):
            for name, original in methods.items():
                monkeypatch.setattr(Folder, name, original)
            if step == "half deleted":
                some = sorted(names)
                methods[method](self, some[: len(some) // 2])
            act()
            return methods[method](self, names, *more)

        monkeypatch.setattr(Folder, method, run)

    method = {"before reading": "read_each", "before writing": "write"}.get(step, "delete")
    then(method, act)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", ["the same files", "all there are", "twice", "and adds again"])
def test_two_jobs_that_merge_at_once_lose_nothing(place, monkeypatch, step, other):
    add_each(place, "abcd")
    there = names(place)

    def another_job():
        merge(place, there if other == "the same files" else None)
        if other == "twice":
            add_each(place, "e")
            merge(place)
        if other == "and adds again":
            add_each(place, "abcd")

    at(monkeypatch, step, another_job)
    merge(place, there)
    assert found(place, *"abcd") == ["A", "B", "C", "D"]
    assert outputs(load(place, READER))[:4] == ["A", "B", "C", "D"]


@pytest.mark.parametrize("step", STEPS)
def test_a_job_killed_while_it_merges_loses_nothing(place, monkeypatch, step):
    add_each(place, "abcd")

    at(monkeypatch, step, mock.Mock(side_effect=Killed))
    with pytest.raises(Killed):
        merge(place)
    assert outputs(load(place, READER)) == ["A", "B", "C", "D"]
    merge(place)
    assert len(names(place)) == 1
    assert found(place, *"abcd") == ["A", "B", "C", "D"]


def test_files_are_deleted_only_after_the_name_of_their_heir_is_on_the_disk(monkeypatch, tmp_path):
    place = folder_at(tmp_path)
    add_each(place, "ab")
    done = []
    settle, delete = Folder.settle, Folder.delete
    monkeypatch.setattr(Folder, "settle", lambda self: (done.append("settled"), settle(self)))
    monkeypatch.setattr(
        Folder, "delete", lambda self, names: (done.append("deleted"), delete(self, names))
    )
    merge(place)
    assert done == ["settled", "deleted"]


def test_two_merges_of_the_same_reads_never_share_a_name(place):
    # With equal names, each of two jobs could take the other's file for one that it may delete.
    add_each(place, "ab")
    files = {name: (place / READER).read(name) for name in names(place)}
    merged = set()
    for _ in range(2):
        for name, content in files.items():
            (place / READER).write(name, content)
        merge(place, list(files))
        merged |= set(names(place))
    assert len(merged) == 2


def test_many_small_files_are_few_when_a_job_begins(place, monkeypatch):
    monkeypatch.setattr(store, "FEW", 5)
    texts = [f"text {number}" for number in range(12)]
    add_each(place, texts[:5])
    store.add(place, READER, reads("other"), span=(0, 100))
    store.tidy(place, READER)
    assert len(names(place)) == 6  # few: left as they are
    add_each(place, texts[5:])
    damaged = (place / READER).names()[-1]
    (place / READER).write(damaged, b"")
    assert store.tidy(place, READER) == [f"{place / READER}/{damaged}.damaged"]
    assert sorted(map(str, map(span_of, names(place)))) == ["(0, 100)", "None"]
    assert len(load(place, READER).reads) == 12  # of 13, without the damaged one


def test_merged_files_are_cut_at_a_size_and_large_ones_stay(place, monkeypatch):
    monkeypatch.setattr(store, "FEW", 2)
    add_each(place, "abcdef")
    sizes = (place / READER).sizes()
    monkeypatch.setattr(store, "TOGETHER", sum(sorted(sizes.values())[:2]))
    monkeypatch.setattr(store, "LARGE", max(sizes.values()) + 1)
    store.tidy(place, READER)
    after = names(place)
    assert len(after) == 3
    monkeypatch.setattr(store, "LARGE", 1)
    store.tidy(place, READER)
    assert names(place) == after
    assert outputs(load(place, READER)) == list("ABCDEF")


def refuse(monkeypatch, kind, method, error):
    """Have a method of a class raise an error."""
    monkeypatch.setattr(kind, method, mock.Mock(side_effect=error))


@pytest.mark.parametrize("method", ["write", "delete"])
def test_a_store_that_cannot_be_changed_is_read_as_it_is(place, monkeypatch, method):
    monkeypatch.setattr(store, "FEW", 2)
    add_each(place, "abc")
    before = names(place)
    refuse(monkeypatch, Folder, method, WriteError("refused"))
    store.tidy(place, READER)
    assert names(place) == before
    assert outputs(load(place, READER)) == ["A", "B", "C"]


@pytest.mark.parametrize("way", ["find", "load", "compact"])
def test_a_damaged_file_is_set_aside_at_an_address_too(place, way):
    add_each(place, "ab")
    folder = place / READER
    (name,) = [n for n in folder.names() if keys_of(folder, n).to_list() == [key("a")]]
    folder.write(name, folder.read(name)[:-1])
    merged = merge(place, folder.names()) if way == "compact" else []
    listed = store.listing(place, READER)
    stored = load(place, READER) if way == "load" else store.find(listed, keys("a", "b"))
    assert outputs(stored) == ["B"]
    assert [*merged, *stored.damaged] == [f"{folder}/{name}.damaged"]
    assert f"{name}.damaged" in folder.names()
    assert outputs(load(place, READER)) == ["B"]


def test_a_damaged_file_that_cannot_be_moved_from_an_address_is_not_used(monkeypatch, tmp_path):
    place = folder_at(f"memory://{tmp_path.name}/store")
    store.add(place, READER, reads("a"))
    folder = place / READER
    (name,) = folder.names()
    folder.write(name, b"damaged")
    refuse(monkeypatch, type(fsspec.filesystem("memory")), "cp_file", PermissionError("no"))
    stored = load(place, READER)
    assert (stored.reads.height, stored.damaged) == (0, [f"{folder}/{name}"])


def test_bytes_damaged_on_their_way_are_fetched_again(monkeypatch, tmp_path):
    place = folder_at(f"memory://{tmp_path.name}/store")
    store.add(place, READER, reads("a"))
    read = Folder.read

    def damaged_once(self, name):
        monkeypatch.setattr(Folder, "read", read)
        return read(self, name)[:-1]

    monkeypatch.setattr(Folder, "read", damaged_once)
    stored = load(place, READER)
    assert (outputs(stored), stored.damaged) == (["A"], [])


def test_damaged_keys_are_noticed_by_their_digest(place):
    store.add(place, READER, reads("a"))
    folder = place / READER
    (name,) = folder.names()
    whole = folder.read(name)
    # Another file's bytes, valid Parquet with other keys, under this name.
    store.add(place, READER, reads("b"))
    (other,) = set(folder.names()) - {name}
    folder.write(name, folder.read(other))
    folder.delete([other])
    assert keys_of(folder, name) is None
    stored = store.find(store.listing(place, READER), keys("a"))
    assert (stored.reads.height, len(stored.damaged)) == (0, 1)
    folder.write(name, whole)
    assert found(place, "a") == ["A"]


def test_stores_of_earlier_versions_are_found_loaded_and_merged(place):
    # Written by 518b42a (three files), by the commit before d2a9c1f (one, without a digest of its bytes),
    # and by 9163f7b (two), for the reads that tests.reading.test_backends.py asks for: a to e, and f, which
    # ended early.
    for path in sorted(EARLIER.iterdir()):
        (place / READER).write(path.name, path.read_bytes())
    stored = load(place, READER)
    assert outputs(stored) == ["A", "B", "C", "D", "E"]
    assert stored.reads["seconds"].null_count() == 5
    store.add(place, READER, reads("new"))
    written = pl.concat(pl.read_parquet(path, columns=["read_key"]) for path in EARLIER.iterdir())
    wanted = written[tables.READ_KEY]
    assert len(wanted) == 6
    listed = store.listing(place, READER)
    assert outputs(store.find(listed, wanted)) == ["A", "B", "C", "D", "E"]
    assert outputs(store.find(listed, wanted, (0, 1))) == ["A", "B", "C", "D", "E"]
    merge(place, listed.names)
    assert len(names(place)) == 1
    merged = load(place, READER).reads.sort("output")
    assert merged.filter(pl.col("output") != "NEW").equals(stored.reads.sort("output"))
    assert merged.filter(output="NEW")["seconds"].to_list() == [0.5]


@pytest.mark.parametrize("merges", [False, True])
def test_reads_of_a_later_version_with_another_column_are_found(place, monkeypatch, merges):
    # As versions before the column seconds see files that have it.
    written = [reads(text).with_columns(later=1.5) for text in "ab"]
    with monkeypatch.context() as later:
        later.setitem(tables.READS, "later", pl.Float64())
        for rows in written:
            store.add(place, READER, rows)
    store.add(place, READER, reads("c"))
    if merges:
        merge(place)
    assert found(place, *"abc") == ["A", "B", "C"]
    assert load(place, READER).reads.columns == list(tables.READS)


def test_a_file_that_a_user_put_there_under_another_name_is_read(place):
    store.add(place, READER, reads("a"))
    folder = place / READER
    (name,) = folder.names()
    folder.write("mine.parquet", folder.read(name))
    folder.delete([name])
    assert found(place, "a", "b") == ["A"]
    folder.write("mine.parquet", b"no Parquet")
    with refused("store.damaged", path=folder.place("mine.parquet"), text=False):
        found(place, "a")


def test_remembered_keys_are_bounded():
    memory = store.KeyMemory(3)
    folder = folder_at("memory://bounded")
    memory.remember(folder, "one", keys("a", "b"))
    memory.remember(folder, "two", keys("c"))
    assert memory.may_have(folder, "one", keys("b")) is True
    assert memory.may_have(folder, "two", keys("b", "x")) is False
    memory.remember(folder, "three", keys("d"))  # the one asked for the longest ago goes
    assert memory.may_have(folder, "one", keys("b")) is None
    assert memory.may_have(folder, "two", keys("c")) is True
    memory.remember(folder, "large", keys("a", "b", "c", "d"))
    assert memory.may_have(folder, "large", keys("a")) is None
    memory.remember(folder, "empty", keys())
    assert memory.may_have(folder, "empty", keys("a")) is False


def test_credentials_of_an_address_are_not_shown(monkeypatch):
    folder = Folder("memory://key:secret@bucket/store/reader")
    folder.write("a.parquet", b"")
    assert "secret" not in folder.set_aside("a.parquet", ".damaged")
    said = PermissionError("not with secret of memory://key:secret@bucket")
    refuse(monkeypatch, type(fsspec.filesystem("memory")), "pipe_file", said)
    with pytest.raises(WriteError) as refused:
        folder.write("a.parquet", b"")
    assert "key:secret" not in str(refused.value)
