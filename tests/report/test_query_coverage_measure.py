"""Coverage of what users ask, on planted topics."""

import numpy as np
import polars as pl
import pytest

from engine import tables
from engine.report.query_coverage import measure
from tests.expected import refused
from tests.report.query_coverage_topics import EVALUATION, asked, encode, queries


def test_a_topic_without_evaluation_queries_is_found_and_the_others_are_covered():
    users = queries(*asked(), *asked(10, ["songs"]), prefix="u")
    found = measure(EVALUATION, users, encode, clusters=5)
    assert dict(found.clusters.schema) == tables.COVERAGE
    assert dict(found.assignments.schema) == tables.ASSIGNMENTS
    first, *others = found.clusters.iter_rows(named=True)
    # the largest: 40 songs and 10 of them once more
    assert (first["cluster"], first["user_queries"], first["evaluation_queries"]) == (1, 50, 0)
    assert all(text.startswith("songs") for text in first["examples"])
    assert len(set(first["examples"])) == 5
    assert first["p_holm"] < 0.001
    assert [(row["user_queries"], row["evaluation_queries"]) for row in others] == [(40, 15)] * 4
    assert all(row["p_holm"] == 1 for row in others)
    figures = found.figures
    assert (figures.uncovered_clusters, figures.uncovered_queries) == (1, 50)
    assert figures.share == pytest.approx(50 / 210)
    assert figures.p == 1 / 5_000  # no sample of 4,999 left out as much
    assert figures.shares == (figures.share,) * 10
    assert first["uncovered"] == 1
    assert (found.texts, found.user_texts) == (260, 200)


def test_each_query_has_its_cluster_in_the_order_of_the_files():
    users = queries(*asked(), prefix="u")
    found = measure(EVALUATION, users, encode, clusters=5)
    rows = found.assignments
    assert rows["query_id"].to_list() == [*EVALUATION["query_id"], *users["query_id"]]
    assert rows["source"].to_list() == ["evaluation"] * 60 + ["user"] * 200
    topic = rows.with_columns(pl.col("query").str.split(" ").list.first())
    assert topic.group_by("cluster").agg(pl.col("query").n_unique())["query"].to_list() == [1] * 5
    assert rows["similarity"].is_between(0.5, 1).all()
    # the nearest evaluation query of a covered cluster is one of its own, and near
    table = found.clusters.filter(pl.col("evaluation_queries") > 0)
    nearest = table.join(rows, left_on="nearest_query_id", right_on="query_id")
    assert (nearest["cluster"] == nearest["cluster_right"]).all()
    assert nearest["nearest_similarity"].to_list() == pytest.approx(nearest["similarity_right"])


def test_a_random_half_leaves_out_no_more_than_chance_predicts():
    texts = np.random.default_rng(1).permutation(asked())
    found = measure(queries(*texts[:100]), queries(*texts[100:]), encode, clusters=5)
    assert found.figures.uncovered_clusters == 0
    found = measure(queries(*texts[:20]), queries(*texts[20:]), encode, clusters=60)
    assert found.figures.uncovered_clusters > 10
    assert found.figures.p > 0.01
    assert found.figures.expected_share == pytest.approx(found.figures.share, abs=0.15)


def test_figures_do_not_depend_on_the_order_of_rows():
    users = queries(*asked(8), *asked(3), prefix="u")
    one = measure(EVALUATION, users, encode, clusters=9, seed=4)
    other = measure(EVALUATION[::-1], users.sample(fraction=1, shuffle=True, seed=2), encode, clusters=9, seed=4)  # fmt: skip
    assert other.clusters.equals(one.clusters)
    assert other.figures == one.figures
    assert other.assignments.sort("query_id").equals(one.assignments.sort("query_id"))


def test_equal_texts_are_embedded_once_and_counted_each_time():
    given = []

    def noted(texts):
        given.extend(texts)
        return encode(texts)

    users = queries("films 1", "films 1", " films 1\t", "songs 2")
    found = measure(queries("films 1", "law 3"), users, noted, clusters=3)
    assert given == ["films 1", "law 3", "songs 2"]
    rows = found.clusters.select("user_queries", "evaluation_queries").rows()
    assert rows == [(3, 1), (1, 0), (0, 1)]
    assert found.figures.unasked_queries == 1
    assert np.isnan(found.clusters["similarity"][2])
    assert found.clusters["examples"].to_list() == [["films 1"], ["songs 2"], []]


def test_the_same_file_for_both_is_covered():
    both = queries(*asked(6))
    for clusters in (1, 7, 30):
        figures = measure(both, both, encode, clusters=clusters).figures
        assert (figures.share, figures.low, figures.uncovered_clusters) == (0, 0, 0)
        assert figures.p == 1


def test_one_query_each_and_texts_with_the_same_vector():
    alone = measure(queries("films 1"), queries("films 1"), encode)
    assert (alone.clusters_requested, alone.figures.clusters, alone.figures.share) == (1, 1, 0)
    two = measure(queries("films 1"), queries("law 1"), encode)
    assert (two.figures.clusters, two.figures.share, two.figures.p) == (2, 1, 1)
    same = measure(queries("films 1"), queries("films 01", "films 001"), encode)
    assert (same.clusters_requested, same.figures.clusters, same.texts) == (2, 1, 3)


def test_more_clusters_than_texts_are_refused_before_anything_is_encoded():
    def never(texts):
        raise AssertionError

    with refused("settings.clusters"):
        measure(queries("films 1", "films 1"), queries("law 1"), never, clusters=3)
