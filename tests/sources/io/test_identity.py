import os

import fsspec
import pytest

from engine.sources.io import identity as module
from engine.sources.io.identity import identity


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
        found.append(module._of_file(module.Path(f"/dev/fd/{read}"), 4)[0])
        os.close(read)
    assert found[0] == found[2] != found[1]
