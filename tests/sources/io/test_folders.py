"""Folders at a path and at an address do the same."""

import pickle

import pytest

from engine.sources.io.folders import folder_at


@pytest.fixture(params=["path", "file address", "memory address"])
def folder(request, tmp_path):
    if request.param == "path":
        return folder_at(tmp_path / "a" / "b")
    if request.param == "file address":
        return folder_at(f"file://{tmp_path}/a/b")
    return folder_at(f"memory://{tmp_path.name}/a/b/")


def test_what_is_written_is_read_listed_replaced_and_deleted(folder):
    assert folder.names() == []
    folder.write("two", b"2")
    folder.write("one", b"1")
    folder.write(".hidden", b"")
    (folder / "inner").write("three", b"3")
    assert folder.names() == ["one", "two"]
    assert (folder / "inner").names() == ["three"]
    assert (folder.read("one"), (folder / "inner").read("three")) == (b"1", b"3")
    folder.write("one", b"new")
    assert pickle.loads(pickle.dumps(folder)).read("one") == b"new"
    folder.delete(["one", "never there"])
    assert folder.names() == ["two"]
    with pytest.raises(FileNotFoundError):
        folder.read("one")


def test_files_are_copied_into_a_folder_and_out_of_it(folder, tmp_path):
    (tmp_path / "large").write_bytes(b"content")
    folder.put("copy", tmp_path / "large")
    assert folder.read("copy") == b"content"
    folder.download("copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        folder.download("never there", tmp_path / "back")
