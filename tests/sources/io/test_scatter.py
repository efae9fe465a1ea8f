import polars as pl
import pyarrow as pa
import pytest

from engine.messages.errors import WriteError
from engine.sources.io import scatter as scatter_module
from engine.sources.io.scatter import Scatter, arrange, read_part

SCHEMA = {"name": pl.String(), "number": pl.Int64()}


def test_rows_are_found_in_their_parts_in_the_order_in_which_they_were_added(tmp_path):
    with Scatter(tmp_path) as scatter:
        for start in (0, 10):
            rows = pl.DataFrame({"name": [f"n{i}" for i in range(start, start + 10)]})
            rows = rows.with_columns(number=pl.int_range(start, start + 10))
            scatter.append(arrange(rows, rows["number"] % 3, SCHEMA))
    assert read_part(tmp_path, 2, SCHEMA).rows() == [(f"n{i}", i) for i in range(2, 20, 3)]
    assert sum(read_part(tmp_path, part, SCHEMA).height for part in range(3)) == 20
    nothing = read_part(tmp_path, 3, SCHEMA)
    assert (nothing.height, dict(nothing.schema)) == (0, SCHEMA)


def test_a_batch_without_rows_leaves_no_file(tmp_path):
    with Scatter(tmp_path) as scatter:
        scatter.append(arrange(pl.DataFrame(schema=SCHEMA), pl.Series([], dtype=pl.Int64), SCHEMA))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    rows = pl.DataFrame({"name": ["a"], "number": [1]})
    with pytest.raises(WriteError, match="missing"), Scatter(tmp_path / "missing") as scatter:
        scatter.append(arrange(rows, pl.Series([0]), SCHEMA))


def test_rows_that_wait_are_written_when_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(scatter_module, "_WAITING", 200)
    with Scatter(tmp_path) as scatter:
        for number in range(30):
            rows = pl.DataFrame({"name": ["a", "b"], "number": [number, number + 1]})
            scatter.append(arrange(rows, pl.Series([number % 2, 5]), SCHEMA))
            assert scatter._bytes <= 200
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "00000.arrow",
            "00001.arrow",
            "00005.arrow",
        ]
    assert read_part(tmp_path, 5, SCHEMA)["number"].to_list() == list(range(1, 31))
    with pa.ipc.open_file(tmp_path / "00005.arrow") as file:
        assert 1 < file.num_record_batches < 30


def test_rows_are_in_their_files_when_an_error_ends_the_adding(tmp_path):
    """What is wrong with a run may stand in a line above that of the error."""
    rows = pl.DataFrame({"name": ["a"], "number": [1]})
    with pytest.raises(ValueError, match="broken"), Scatter(tmp_path) as scatter:
        scatter.append(arrange(rows, pl.Series([0]), SCHEMA))
        raise ValueError("broken")
    assert read_part(tmp_path, 0, SCHEMA).rows() == [("a", 1)]
