"""The order of reading: clusters by the seed, those that were read before first, for each text of its own."""

import polars as pl

from engine.adaptive.order import keep_order, reading_order
from engine.sources.io.folders import folder_at
from engine.statistics.runs import place_of


def asked(ids, text="what is {}"):
    rows = [(one, text.format(one)) for one in ids]
    return pl.DataFrame(rows, ["query_id", "query"], orient="row")


def in_order(order):
    return order.sort("cluster", "query_id")["query_id"].to_list()


def test_what_was_read_comes_first_in_the_order_in_which_it_was_read(tmp_path):
    store, order = folder_at(tmp_path), []
    for end in (5, 9, 14):
        queries = asked(f"q{n}" for n in range(end))
        found = reading_order(queries, 0, store=store)
        assert in_order(found)[: len(order)] == order
        keep_order(queries, found, end - 3, store, 0)
        order = in_order(found)[: end - 2]
    by_seed = reading_order(queries, 0)
    assert in_order(by_seed) == queries.sort(place_of(queries["query_id"], 0))["query_id"].to_list()
    # Other texts, and another seed, are another order.
    others = asked(queries["query_id"], "who is {}")
    assert reading_order(others, 0, store=store).equals(by_seed)
    assert reading_order(queries, 1, store=store).equals(reading_order(queries, 1))


def test_a_cluster_has_the_place_of_its_first_query_whatever_its_size():
    queries = asked("abcdef").with_columns(cluster=pl.Series([0, 1, 0, 2, 2, 2]))
    numbers = reading_order(queries, 0, by_cluster=True)["cluster"].to_list()
    first = reading_order(asked("abd"), 0)["cluster"].to_list()
    assert numbers == [first[code] for code in (0, 1, 0, 2, 2, 2)]
