"""Evaluations paired by their queries, from folders that are made so that the figures are known."""

import polars as pl
import pytest

from engine import compare
from engine.reading.protocol import UNNAMED
from tests.expected import as_expected, refused
from tests.report.made import ANSWERED, values, write_evaluation
from tests.report.page import results


@pytest.fixture
def old(tmp_path):
    return write_evaluation(tmp_path / "old", {"bm25": values(60), "dense": values(70)})


def test_runs_of_one_name_are_paired_query_by_query(tmp_path, old):
    runs = {"bm25": values(80, 10), "dense": values(70), "fused": values(90)}
    found = compare(old, write_evaluation(tmp_path / "new", runs))
    bm25, dense = found.pairs
    assert (bm25["run"], bm25["run_b"]) == ("old:bm25", "new:bm25")
    assert (bm25["mean"], bm25["mean_b"], bm25["difference"]) == (0.3, 0.4, 0.1)
    assert bm25["low"] < 0.1 < bm25["high"]
    assert dense["difference"] == 0
    assert dense["p"] == 1
    as_expected(found.notes)
    # Ten queries are lost at the one end, thirty are won at the other.
    flipped = [(row["query_id"], row["output"], row["output_b"]) for row in found.flipped]
    lost, won = (f"q{i}" for i in (0, 60)), 30
    assert flipped[0] == (next(lost), "right", "wrong")
    assert [row[1] for row in flipped].count("wrong") == won
    assert len(flipped) == 40
    assert found.flipped[0]["query"] == "question 0"
    assert found.flipped[0]["answers"] == ["a"]


@pytest.mark.parametrize(
    ("places", "pairs"),
    [
        (["old:bm25", "new"], [("old:bm25", "new:fused")]),  # alone in their folders
        (["old:bm25", "old:dense"], [("old:bm25", "old:dense")]),
        (["old", "third"], [("old:dense", "third:dense")]),
        (["old:bm25", "new", "third:x:y"], [("old:bm25", "new:fused"), ("old:bm25", "third:x:y")]),
        (["old"], [("old:bm25", "old:dense")]),
        # What is named twice is paired with itself.
        (["old", "old"], [(f"old:{run}", f"old (again):{run}") for run in ("bm25", "dense")]),
        (["old:dense", "old"], [("old:dense", "old (again):dense")]),
        (["old:dense", "old:bm25"], [("old:dense", "old:bm25")]),
        (
            ["new", "new/", "old:bm25"],
            [("new:fused", "new (again):fused"), ("new:fused", "old:bm25")],
        ),
    ],
)
def test_which_runs_are_paired(tmp_path, old, places, pairs):
    write_evaluation(tmp_path / "new", {"fused": values(10)})
    write_evaluation(tmp_path / "third", {"dense": values(10), "x:y": values(5)})
    found = compare(*(f"{tmp_path}/{place}" for place in places))
    assert [(row["run"], row["run_b"]) for row in found.pairs] == pairs


def test_the_interval_of_a_pair_is_that_of_one_evaluation_of_both(tmp_path, old):
    """And it is adjusted for all pairs of runs."""
    from engine.statistics.correlation import Bootstrap
    from engine.statistics.runs import comparer, unit

    new = write_evaluation(tmp_path / "new", {"bm25": values(80, 10)})
    (row,) = compare(f"{old}:bm25", new).pairs
    both = pl.DataFrame(
        [("a", f"q{i}", v) for i, v in enumerate(values(60))]
        + [("b", f"q{i}", v) for i, v in enumerate(values(80, 10))],
        schema=["run", "query_id", "value"],
        orient="row",
    )
    one = comparer(Bootstrap(), unit, None)(both, None, None).difference("b", "a")
    assert (row["difference"], row["low"], row["high"], row["p"]) == one
    wider = compare(old, new).pairs[0]
    assert wider["low"] < row["low"]
    assert wider["p"] == pytest.approx(3 * row["p"])


def test_queries_are_shared_by_id_and_text(tmp_path, old):
    texts = {f"q{i}": f"question {i}" for i in range(5, ANSWERED)}
    texts |= {"q7": "another question", "new": "?"}
    new = write_evaluation(tmp_path / "new", {"bm25": values(60)}, texts=texts, answers=("b",))
    found = compare(f"{old}:bm25", new)
    assert found.scores.values.shape == (2, ANSWERED - 6)
    as_expected(found.notes)
    assert found.verdict == []
    asked = compare(f"{old}:bm25", new, allow=["answers"])
    assert asked.notes == found.notes[:3]
    assert asked.verdict
    with refused("settings.value"):
        compare(f"{old}:bm25", new, allow=["queries"])


def test_what_differs_is_listed_and_the_rest_is_not(tmp_path):
    made = {"lazy": False, "limit": 0, "lists": None}
    changed = {"lazy": True, "limit": 5, "width": None}  # the last of which the old one lacks
    old = write_evaluation(tmp_path / "old", {"bm25": values(60)}, configuration=made)
    new = write_evaluation(
        tmp_path / "new", {"bm25": values(60)}, reader="0" * 32,
        configuration={"k": 10, "queries": "/elsewhere/q.jsonl", **made, **changed}, versions={"polars": "3"},
    )  # fmt: skip
    rows = {row["setting"]: (row["old"], row["new"]) for row in compare(old, new).differing}
    assert rows == {
        "k": ("5", "10"),
        "lazy": ("False", "True"),
        "limit": ("0", "5"),
        "reader": ("f" * 32, "0" * 32),
        "polars (version)": ("2", "3"),
    }


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"reader": "0" * 32}, "reader"),
        ({"configuration": {"metric": "f1"}}, "metric"),
        ({"audit": {"files": [{"role": "corpus", "sha256": "other"}]}}, "corpus"),
        ({"audit": {"tables_sha256": {"queries": "other"}}}, "queries"),
        ({"audit": {"files": [{"role": "corpus", "sha256": None}]}}, "corpus"),  # not known
        ({"audit": {"files": [], "tables_sha256": {}}}, "queries,corpus"),
    ],
)
def test_a_gate_wants_the_same_data_and_reader_unless_they_may_differ(tmp_path, other, what):
    runs = {"bm25": values(60)}
    old = write_evaluation(tmp_path / "old", runs)
    found = compare(old, write_evaluation(tmp_path / "new", runs, **other))
    with refused("results.differ"):
        found.gate(0.02)
    (one,) = found.gate(0.02, what.split(","))
    assert one.decision == "not worse"


def function(version="1", code=None):
    return {
        "reader": {"fingerprint": "f", "version": version} | ({"code_sha256": code} if code else {})
    }


def metric(code, name="mine"):
    return {"configuration": {"metric": name}, "metric_code_sha256": code}


def setting(**settings):
    return {"configuration": settings}


FIRST = {f"q{i}": f"question {i}" for i in range(ANSWERED - 50)}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (function("1", "a"), function("1", "a"), ""),
        (function("1", "a"), function("1", "b"), "reader"),
        (function("1"), function("1", "b"), ""),  # of an earlier version
        (function(None), function(None), "reader"),
        ({"reader": {"executor": "mine"}}, {"reader": {"executor": "mine"}}, ""),
        ({"reader": {"executor": "mine", "code_sha256": "a"}}, {"reader": {"executor": "mine", "code_sha256": "b"}}, "reader"),
        ({"reader": {"executor": UNNAMED}}, {"reader": {"executor": UNNAMED}}, "reader"),
        (metric("a"), metric("a"), ""),
        (metric("a"), metric("b"), "metric"),
        (metric(None), metric(None), "metric"),
        (setting(metric="mine"), setting(metric="mine"), ""),  # of earlier versions
        (setting(metric="mine"), metric("a"), "metric"),
        (setting(missing="zero"), setting(missing="skip"), "queries"),
        (setting(failed_reads=None), setting(failed_reads="zero"), "queries"),
        (setting(failed_reads=None), setting(failed_reads="error"), ""),
        ({"scores": 184}, {}, "queries"),
        ({}, {"scores": 184}, "queries"),
        ({"scores": 184}, {"scores": 184}, ""),  # both lack the same
        ({}, {"texts": FIRST}, "queries"),
        ({}, {"answers": ("b",)}, "queries"),
        ({"answers": ("a", "b")}, {"answers": ("b", "a", "a")}, ""),
    ],
)  # fmt: skip
def test_a_gate_sees_what_is_lost_and_other_code_and_rules(tmp_path, old, new, what):
    folders = [
        write_evaluation(
            tmp_path / name,
            {"bm25": values(60)[: made.get("scores", ANSWERED)]},
            **{key: value for key, value in made.items() if key != "scores"},
        )
        for name, made in (("old", old), ("new", new))
    ]
    found = compare(*folders)
    if what:
        with refused("results.differ"):
            found.gate(0.05)
        assert found.gate(0.05, [what])
    else:
        assert found.gate(0.05)
    # An evaluation is like itself, whatever is known of it.
    assert compare(folders[0], folders[0]).gate(0.05)[0].decision == "not worse"


def test_a_metric_of_other_code_has_another_scale(tmp_path):
    runs = {"bm25": values(60)}
    folders = [write_evaluation(tmp_path / code, runs, **metric(code)) for code in "ab"]
    found = compare(*folders)
    assert found.verdict == []
    as_expected(found.notes)
    shown = {row["setting"]: (row["a"], row["b"]) for row in found.differing}
    assert shown == {"metric": ("mine a", "mine b")}


def test_the_corpus_is_the_same_by_its_listed_passages_too(tmp_path):
    runs = {"bm25": values(60)}
    audit = {"files": [], "tables_sha256": {"queries": "q", "corpus": "c"}}
    folders = [write_evaluation(tmp_path / name, runs, audit=audit) for name in "ab"]
    assert compare(*folders).gate(0.05)[0].decision == "not worse"


def test_a_gate_on_several_runs_is_a_family(tmp_path, old):
    """A loss that is shown for one pair alone is not shown for one of two."""
    worse = values(49, 11)
    new = write_evaluation(tmp_path / "new", {"bm25": worse, "dense": values(70)})
    alone = compare(f"{old}:bm25", f"{new}:bm25").gate(0.021)
    family = compare(old, new).gate(0.021)
    assert [one.decision for one in alone] == ["worse"]
    assert [one.decision for one in family] == ["undecided", "not worse"]
    assert family[0].low == alone[0].low


COPIED = {f"q{i}": f"question {i // 20}" for i in range(ANSWERED)}


@pytest.mark.parametrize(
    ("old", "new", "cluster", "count", "notes"),
    [
        ({}, {}, None, None, 0),
        ({"cluster": lambda i: i // 20}, {}, None, 10, 1),
        ({"cluster": None}, {"cluster": lambda i: i // 20}, None, 10, 1),
        ({"cluster": lambda i: i // 20}, {}, "none", None, 1),
        ({}, {}, "none", None, 0),
        # So few share one that it is used only where that is asked for.
        ({"cluster": lambda i: max(i, 20)}, {}, None, None, 0),
        ({"cluster": lambda i: max(i, 20)}, {}, "article", 180, None),
        ({"cluster": lambda i: max(i, 20), "configuration": {"cluster": "article"}}, {}, None, 180, None),
        # By a column, in the evaluation that was told so.
        ({}, {"cluster": lambda i: i // 20, "configuration": {"cluster": "topic"}}, None, 10, 1),
        ({}, {"cluster": lambda i: i // 20, "configuration": {"cluster": "topic"}}, "article", 200, None),
        ({}, {"cluster": lambda i: i // 20, "configuration": {"cluster": "topic"}}, "none", None, None),
        # Of earlier versions.
        ({"cluster": None}, {"cluster": None}, None, None, 1),
        ({"cluster": None, "texts": COPIED}, {"cluster": None, "texts": COPIED}, None, 10, 2),
    ],
)  # fmt: skip
def test_clusters_of_queries_are_used_where_many_share_one(
    tmp_path, old, new, cluster, count, notes
):
    runs = {"bm25": values(60)}
    folders = [write_evaluation(tmp_path / n, runs, **o) for n, o in (("old", old), ("new", new))]
    found = compare(*folders, cluster=cluster)
    used = found.scores.clusters
    assert count == (None if used is None else len(set(used.tolist())))
    assert notes is None or len(found.notes) == notes
    as_expected(found.notes)
    (decided,) = found.gate(0.02)
    assert decided.decision == ("undecided" if count in (10, 180) else "not worse")


def test_clusters_that_no_evaluation_has_are_refused(tmp_path, old):
    with refused("results.cluster"):
        compare(old, cluster="topic")
    runs = {"bm25": values(60), "dense": values(60)}
    earlier = write_evaluation(tmp_path / "new", runs, cluster=None)
    with refused("results.cluster"):
        compare(earlier, cluster="article")


def test_a_folder_of_results_stands_for_all_of_them(tmp_path):
    for name in ("tuesday", "monday", "a:b"):
        write_evaluation(tmp_path / "results" / name, {"bm25": values(60)})
    (tmp_path / "results" / "notes").mkdir()
    found = compare(tmp_path / "results")
    assert [row["run_b"] for row in found.pairs] == ["monday:bm25", "tuesday:bm25"]
    assert {row["run"] for row in found.pairs} == {"a:b:bm25"}


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (["old:bm25"], "results.folders"),
        (["old", "nowhere"], "results.unreadable"),
        (["old:rrf", "new"], "results.scoreless"),
        (["old", "labels"], "results.scoreless"),
        (["old", "earlier"], "results.version"),
        (["old", "stopped"], "results.stopped"),
        (["old", "others"], "results.scores"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, old, places, message):
    write_evaluation(tmp_path / "new", {"bm25": values(1)})
    write_evaluation(tmp_path / "labels", {})
    write_evaluation(tmp_path / "stopped", {"bm25": values(1)}, configuration={"until": "verdict"})
    earlier = write_evaluation(tmp_path / "earlier", {"bm25": values(1)})
    (earlier / "evaluated_queries.parquet").unlink()
    write_evaluation(tmp_path / "others", {"bm25": values(1)}, texts={"z": "?"})
    with refused(message):
        compare(*(f"{tmp_path}/{place}" for place in places))


@pytest.mark.parametrize(
    ("right", "first", "metric", "is_given"),
    [
        (80, 10, "em", True),
        (62, 0, "em", True),
        (60, 0, "em", True),
        (80, 10, "f1", False),  # no common scale
    ],
)  # fmt: skip
def test_the_verdict_is_that_of_an_evaluation(tmp_path, old, right, first, metric, is_given):
    new = write_evaluation(
        tmp_path / "new", {"bm25": values(right, first)}, configuration={"metric": metric}
    )
    verdict = compare(f"{old}:bm25", new).verdict
    assert bool(verdict) == is_given
    as_expected(verdict)


def test_a_gate_refuses_what_it_does_not_know(tmp_path, old):
    found = compare(old, write_evaluation(tmp_path / "new", {"bm25": values(60), "x": values(1)}))
    unknown, range_ = "settings.value", "settings.margin"
    for margin, allow, message in (
        (0.02, ["reader", "prompt"], unknown),
        (0.02, "reader", unknown),
        *((margin, (), range_) for margin in (0, 1, -0.1, float("nan"))),
        (0.02, (), "results.partner"),
    ):
        with refused(message):
            found.gate(margin, allow)


def damaged(folder, change):
    path = folder / "downstream.parquet"
    if change is None:
        path.unlink()
    elif isinstance(change, bytes):
        path.write_bytes(change)
    else:
        change(pl.read_parquet(path)).write_parquet(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (lambda frame, one=one: frame.with_columns(value=pl.when(pl.col("query_id") == "q7")
              .then(one).otherwise("value")), "results.infinite")
            for one in (None, float("nan"), float("inf"))
        ),
        (lambda frame: frame.drop("value"), "results.version"),
        (lambda frame: frame.head(0), "results.incomplete"),
        (None, "results.incomplete"),
        (b"", "files.parquet"),
        (b"PAR1" * 9, "files.parquet"),
    ],
)  # fmt: skip
def test_scores_that_are_none_are_refused_by_name(tmp_path, old, change, message):
    """Of results of earlier versions, whose tables have no digests."""
    new = write_evaluation(tmp_path / "new", {"bm25": values(60)})
    damaged(new, change)
    # The library's words depend on its version.
    with refused(message, text=message != "files.parquet"):
        compare(old, new)


def test_two_evaluations_of_the_same_files_differ_in_what_was_changed(folder, tmp_path):
    other = results.write_results(tmp_path, end_to_end_k=2)
    found = compare(folder, other)
    differing = {row["setting"] for row in found.differing} - {"date"}  # to the second
    assert differing == {"end_to_end_k", "runs"}  # which lie elsewhere
    assert len(found.pairs) == 2
    # Nothing says that an unnamed program reads the same again.
    with refused("results.differ"):
        found.gate(0.9)
    assert all(one.n == results.N for one in found.gate(0.9, ["reader"]))
    assert {one.decision for one in compare(folder, folder).gate(0.9)} == {"not worse"}
