"""Folders at a path and at an address do the same."""

import pickle

import pytest

from engine.messages.errors import WriteError
from engine.sources.io.folders import folder_at
from tests.expected import as_expected, refused


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


def test_folders_inside_are_listed_and_a_file_is_set_aside(folder):
    assert folder.folders() == []
    (folder / "inner").write("three", b"3")
    (folder / "other").write("four", b"4")
    folder.write("one", b"1")
    assert folder.folders() == ["inner", "other"]
    assert folder.sizes() == {"one": 1}
    assert folder.set_aside("one", ".damaged") == folder.shown("one.damaged")
    assert folder.sizes() == {"one.damaged": 1}
    # Another process was first.
    assert folder.set_aside("one", ".damaged") == folder.shown("one.damaged")
    assert dict(folder.read_each(["one", "one.damaged"])) == {"one": None, "one.damaged": b"1"}


def test_what_cannot_be_read_or_written_is_one_line_that_names_it(tmp_path):
    (tmp_path / "file").write_text("x")
    below = folder_at(tmp_path / "file")
    assert below.names() == []
    with pytest.raises(NotADirectoryError):
        below.read("one")
    with pytest.raises(WriteError) as caught:
        below.write("one", b"1")
    as_expected(str(caught.value))
    (tmp_path / "folder" / "one").mkdir(parents=True)
    with pytest.raises(WriteError) as caught:
        folder_at(tmp_path / "folder").delete(["one"])
    as_expected(str(caught.value))
    with refused("files.missing"):
        folder_at(f"{tmp_path}/\0").names()
