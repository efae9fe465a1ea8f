import hashlib
import json
import os

import fsspec
import polars as pl
import pytest

from engine import tables
from engine.sources.io import digests as module
from engine.sources.io.digests import (
    Fingerprint,
    digest_at,
    identity,
    require_whole,
    sealed,
    sealed_json,
    unsealed,
    unsealed_json,
)
from tests.expected import refused

ROWS = [("1", "T", "a", "A"), ("2", "", "bé", "B"), ("3", "T", "", "A")]


def digest(*batches):
    found = Fingerprint()
    for rows in batches:
        found.update(pl.DataFrame(rows, schema=tables.CORPUS, orient="row"))
    return found.hexdigest()


def test_the_fingerprint_is_the_sum_of_the_rows_hashes():
    written = [b"1,1,1,1:1:T:a:A", "1,0,3,1:2::bé:B".encode(), b"1,1,0,1:3:T::A"]
    total = sum(int.from_bytes(hashlib.sha256(row).digest(), "little") for row in written)
    assert digest(ROWS) == f"{total % 2**256:064x}"


def test_the_fingerprint_does_not_depend_on_order_or_batches():
    assert digest(ROWS) == digest(ROWS[::-1]) == digest(ROWS[2:], [], ROWS[:1], ROWS[1:2])
    found = Fingerprint()
    found.update(pl.DataFrame(ROWS, schema=tables.CORPUS, orient="row"))
    assert found.rows == 3


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:2],
        ROWS + ROWS[:1],
        [("1", "T", "a", "A"), ("2", "", "bé", "B"), ("3", "T", "", "B")],
        [("1", "Ta", "", "A"), *ROWS[1:]],
        [("1:T", "", "a", "A"), *ROWS[1:]],
        [],
    ],
)
def test_every_difference_changes_the_fingerprint(rows):
    assert digest(rows) != digest(ROWS)


def test_a_small_file_is_known_by_its_content_whenever_it_was_written(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    first = identity(path)
    os.utime(path, (1, 1))
    assert identity(path) == identity(str(path)) == identity(f"file://{path}") == first
    path.write_bytes(b"Content")
    assert identity(path) != first


@pytest.mark.parametrize("change", ["beginning", "size", "time", "name"])
def test_a_large_file_is_known_by_beginning_size_and_time(tmp_path, monkeypatch, change):
    monkeypatch.setattr(module, "READ", 4)
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(1000, 1000))
    first = identity(path)
    assert identity(path) == first
    if change == "name":
        path = path.rename(tmp_path / "b")
    path.write_bytes(
        {"beginning": b"x123456789", "size": b"01234567890"}.get(change, b"0123456789")
    )
    os.utime(path, ns=(1000, 2000 if change == "time" else 1000))
    assert identity(path) != first


def test_a_directory_is_known_by_all_its_files(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    first = identity(tmp_path)
    (tmp_path / "b").write_bytes(b"2")
    second = identity(tmp_path)
    (tmp_path / "b").rename(tmp_path / "c")
    assert len({first, second, identity(tmp_path)}) == 3


def test_of_many_files_no_more_is_read_than_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ", 4)
    for name in "abc":
        (tmp_path / name).write_bytes(b"123")
        os.utime(tmp_path / name, ns=(1000, 1000))
    first = identity(tmp_path)
    os.utime(tmp_path / "a", ns=(1000, 2000))
    assert identity(tmp_path) == first  # read whole, so its time says nothing more
    changed = []
    for name in "bc":
        os.utime(tmp_path / name, ns=(1000, 2000))
        changed.append(identity(tmp_path))
    assert len({first, *changed}) == 3


def test_files_at_addresses_are_known_too_and_credentials_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ", 4)
    address = f"memory://{tmp_path.name}/a"
    fsspec.filesystem("memory").pipe_file(f"{tmp_path.name}/a", b"0123456789")
    first = identity(address)
    assert identity(address) == first
    fsspec.filesystem("memory").pipe_file(f"{tmp_path.name}/a", b"01234567890")
    assert identity(address) != first


def test_a_pipe_is_known_by_all_that_comes_out_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ", 4)
    found = []
    for content in (b"0123456789", b"0123456780", b"0123456789"):
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        found.append(module._marks_and_bytes(module.Path(f"/dev/fd/{read}"), 4)[0])
        os.close(read)
    assert found[0] == found[2] != found[1]


MANIFEST = {"a": (1, [0.1, None]), "é": {"3": "x"}, "n": 12345}


def test_a_manifest_is_what_was_written_or_refused():
    content = sealed_json(MANIFEST)
    expected = json.loads(json.dumps(MANIFEST))
    assert unsealed_json(content) == expected
    assert unsealed_json(json.dumps(json.loads(content)).encode()) == expected  # laid out anew
    assert unsealed_json(json.dumps(MANIFEST).encode()) == expected  # an earlier version's
    for at in range(len(content)):
        for bit in range(8):
            flipped = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
            try:
                found = unsealed_json(flipped)
            except ValueError:
                continue
            # The name of the digest may be another: what it is of is as it was.
            assert expected.items() <= found.items()
    for broken in (b"", b"[]", content[:-9]):
        with pytest.raises(ValueError, match="."):
            unsealed_json(broken)


def test_bytes_are_theirs_or_none():
    whole = sealed(b"vector")
    assert unsealed(whole) == b"vector"
    assert unsealed(sealed(b"")) == b""
    others = [whole[:-1], whole + b"0", b"", b"vector", b"Vector" + whole[6:]]
    assert [unsealed(one) for one in others] == [None] * 5


def test_a_file_or_folder_that_is_gone_or_another_is_refused_by_name(tmp_path):
    (tmp_path / "t").mkdir()
    for name in ("a", "b"):
        (tmp_path / "t" / name).write_text(name)
    for place in (tmp_path / "t", tmp_path / "t" / "a"):
        require_whole(place, digest_at(place), "again")
        require_whole(place, None, "again")
    written = digest_at(tmp_path / "t")
    (tmp_path / "t" / "b").write_text("c")
    with refused("files.unreadable"):
        require_whole(tmp_path / "t", written, "again")
    with refused("files.unreadable"):
        require_whole(tmp_path / "u", written, "again")
