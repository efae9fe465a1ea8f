import polars as pl
import pytest

from engine.errors import WriteError
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
    with (
        Scatter(tmp_path / "missing") as scatter,
        pytest.raises(WriteError, match="missing"),
    ):
        scatter.append(arrange(rows, pl.Series([0]), SCHEMA))
