"""A store whose files the disk damaged: nothing of them is used, and nothing else is lost."""

import polars as pl
import pytest

from engine.reading import store
from engine.reading.store import table_of
from engine.sources.io import folders
from engine.sources.io.folders import folder_at
from tests.conftest import ScriptedReader
from tests.reading.stored import load
from tests.reading.test_backends import SPEC, ask


def stored_file(directory):
    (file,) = (directory / SPEC.fingerprint).glob("*.parquet")
    return file


def test_every_flipped_bit_of_a_store_file_is_noticed(tmp_path):
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    file = stored_file(tmp_path)
    whole = file.read_bytes()
    folder = folder_at(file.parent)
    undetected = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        if table_of(folder, file.name, bytes(flipped)) is not None:
            undetected.append(place)
    assert undetected == []
    assert len(whole) > 1000
    assert load(folder_at(tmp_path), SPEC.fingerprint).reads.height == 1


@pytest.mark.parametrize("damage", ["cut", "emptied", "zeroed", "lengthened"])
def test_a_damaged_file_is_set_aside_and_its_reads_are_done_again(tmp_path, damage):
    reader = ScriptedReader(str.upper)
    ask(["a"], tmp_path, reader)
    file = stored_file(tmp_path)
    ask(["b"], tmp_path, reader)  # a file of its own
    whole = file.read_bytes()
    damaged = {
        "cut": whole[:-1],
        "emptied": b"",
        "zeroed": bytes(len(whole)),
        "lengthened": whole + b"\0",
    }[damage]
    file.write_bytes(damaged)
    found, costs = ask(["a", "b"], tmp_path, reader)
    assert found["output"].to_list() == ["A", "B"]
    assert reader.asked == ["a", "b", "a"]
    aside = file.with_name(file.name + ".damaged")
    assert costs.damaged_files == [str(aside)]
    assert aside.read_bytes() == damaged
    _, again = ask(["a", "b"], tmp_path, reader)
    assert (again.reused, again.done, again.damaged_files) == (2, 0, [])


def test_a_damaged_file_that_cannot_be_moved_is_not_used_either(tmp_path, monkeypatch):
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    file = stored_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(folders.os, "replace", refuse)
    stored = load(folder_at(tmp_path), SPEC.fingerprint)
    assert (stored.reads.height, stored.damaged) == (0, [str(file)])


def test_the_same_reads_with_other_outputs_are_files_of_their_own(tmp_path):
    # As where two jobs do a read at once, in a precision in which outputs depend on the batch.
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    first = load(folder_at(tmp_path), SPEC.fingerprint).reads
    store.add(folder_at(tmp_path), SPEC.fingerprint, first)
    store.add(folder_at(tmp_path), SPEC.fingerprint, first.with_columns(output=pl.lit("other")))
    assert len(list((tmp_path / SPEC.fingerprint).iterdir())) == 2
    assert load(folder_at(tmp_path), SPEC.fingerprint).reads.height == 1
