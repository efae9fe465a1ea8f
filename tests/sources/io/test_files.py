import pytest

from engine.messages.errors import InputError
from engine.sources.io.files import atomic_path, no_room, write_text
from engine.sources.io.folders import require_output


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "f.txt"
    write_text("old", path)
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]
    write_text("new", path)
    assert path.read_text() == "new"


def test_outputs_are_checked_in_advance(tmp_path):
    (tmp_path / "file").write_text("x")
    require_output(tmp_path / "new" / "deep", directory=True)
    require_output(tmp_path / "file", directory=False)
    require_output(tmp_path, directory=True)
    for path, directory in (
        (tmp_path / "file", True),
        (tmp_path / "file" / "below", True),
        (tmp_path, False),
        (tmp_path / "file" / "out.parquet", False),
    ):
        with pytest.raises(InputError):
            require_output(path, directory=directory)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_found_among_causes_that_go_in_a_circle():
    outer, inner = RuntimeError("outer"), RuntimeError("inner")
    outer.__cause__, inner.__cause__ = inner, outer
    assert not no_room(outer)
    inner.args = ("No space left on device",)
    assert no_room(outer)
