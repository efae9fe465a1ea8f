import pytest

from engine.sources.files import atomic_path, write_text


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
