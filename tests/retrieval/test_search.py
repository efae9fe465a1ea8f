"""Options of searching an index of either kind."""

from types import SimpleNamespace

import polars as pl
import pytest

from engine.retrieval import dense
from engine.retrieval.dense import SearchOptions
from tests.expected import refused


@pytest.mark.parametrize("options", [{"k": 0}, {"threads": 0}, {"k1": -0.1}, {"b": 1.1}], ids=str)
def test_options_out_of_range_are_refused_by_their_field(options):
    with refused("settings.value"):
        SearchOptions(**options)


def test_a_passage_with_the_id_of_its_query_is_left_out_before_the_cut(monkeypatch, tmp_path):
    rows = [("a", d, rank) for rank, d in enumerate(["x", "a", "y", "z"], 1)]
    rows += [("b", d, rank) for rank, d in enumerate(["x", "y", "z", "w"], 1)]
    found = pl.DataFrame(rows, schema=["query_id", "doc_id", "rank"], orient="row")

    def bm25(directory, queries, *, k, **_):
        return found.filter(pl.col("rank") <= k)

    monkeypatch.setattr(dense.bm25, "search", bm25)
    monkeypatch.setattr(dense.manifest, "read", lambda _: SimpleNamespace(kind="bm25"))
    options = SearchOptions(k=3, ignore_identical_ids=True)
    run = dense.search_index(tmp_path, found, name="r", options=options)
    assert run["doc_id"].to_list() == ["x", "y", "z", "x", "y", "z"]
    assert run["rank"].to_list() == [1, 2, 3, 1, 2, 3]
