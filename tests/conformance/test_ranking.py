import os
import random
import subprocess
import sys

import polars as pl
import pytest

from engine.conformance import ranking, references
from engine.conformance.ranking import DEFAULT_MEASURES, compare_ranking
from engine.conformance.references import Computed, RankingReference
from engine.messages.errors import InputError
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs


@pytest.fixture
def check(tmp_path):
    """Compare (query, document, score) and (query, document, label): rows by package and our name."""

    def compare(run, qrels, measures):
        (tmp_path / "run").write_text("".join(f"{q} Q0 {d} 0 {s!r} s\n" for q, d, s in run))
        (tmp_path / "qrels").write_text("".join(f"{q} 0 {d} {v}\n" for q, d, v in qrels))
        found = compare_ranking(tmp_path / "run", tmp_path / "qrels", parse_measures(measures))
        return found, {(r.package, row.measure): row for r in found.references for row in r.rows}

    return compare


@pytest.fixture
def no_ranx(monkeypatch):
    """Without the seconds that ranx takes to load."""
    monkeypatch.setitem(sys.modules, "ranx", None)


def ragged(seed, scores, labels):
    """28 judged queries, of which q3 and q4 have no results, 2 others in the run, lists of 1 to 40."""
    rng = random.Random(seed)
    run, qrels = [], []
    for query in range(30):
        if query not in (3, 4):
            listed = rng.sample(range(60), rng.randint(1, 40))
            run += [(f"q{query}", f"d{d}", rng.choice(scores)) for d in listed]
        if query < 28:
            judged = rng.sample(range(60), rng.randint(1, 20))
            qrels += [(f"q{query}", f"d{d}", rng.choice(labels)) for d in judged]
    return run, qrels


THRESHOLDS = "AP(rel=2)@10 P(rel=3)@5 RR(rel=2) RR(rel=1.5)@5 Rprec(rel=2) F1(rel=2) R(rel=2)@9"
WHOLE = "P R F1 Success DCG DCG(dcg='exp-log2')@5 nDCG(dcg='exp-log2') Judged"


def test_all_references_agree_on_ragged_lists(check):
    scores = [i / 7 for i in range(10**6)]
    run, qrels = ragged(1, scores, [0, 0, 1, 2, 3])
    found, rows = check(run, qrels, f"{DEFAULT_MEASURES} {THRESHOLDS} {WHOLE}")
    assert [r.version is None for r in found.references] == [False] * 3
    assert [key for key, row in rows.items() if not row.agrees(1e-12)] == []
    assert {(package, row.n) for (package, _), row in rows.items()} == {
        ("pytrec-eval-terrier", 26),
        ("ir-measures", 28),
        ("ranx", 28),
    }
    assert "2 of them have no results in the run; 2 others in the run are ignored" in found.notes[0]
    # Every measure of the default list has a reference, and none is dropped without a word.
    for reference in found.references:
        names = {row.measure for row in reference.rows}
        assert names | set(reference.lacks) == {measure for _, measure in rows}
        assert names.isdisjoint(reference.lacks)


def test_tied_scores_differ_only_by_the_references_own_rules(check):
    run, qrels = ragged(2, [i / 7 for i in range(5)], [-1, 0, 1, 2, 3])
    found, rows = check(run, qrels, f"{DEFAULT_MEASURES} {THRESHOLDS} {WHOLE}")
    assert [key for key, row in rows.items() if not row.conforms(1e-12)] == []
    differing = {key: row.rule for key, row in rows.items() if not row.agrees(1e-12)}
    assert "pytrec-eval-terrier" not in {package for package, _ in differing}
    assert {m for p, m in differing if p == "ir-measures"} <= {
        "RR@10", "RR(rel=1.5)@5", "Judged@10", "Judged",
    }  # fmt: skip
    assert differing["ir-measures", "RR@10"] == "ties"
    assert differing["ir-measures", "Judged@10"] == "ties and labels below 0"
    assert any("queries list equal scores" in note for note in found.notes)


# Tests elsewhere interpret ranx (see conftest), whose sort then leaves ties as they are.
COMPILED = """
import sys
from engine.conformance.ranking import DEFAULT_MEASURES, compare_ranking
from engine.ranking.measures import parse_measures
measures = parse_measures(f"{DEFAULT_MEASURES} {sys.argv[1]}")
found = compare_ranking(*sys.argv[2:], measures)
(ranx,) = [r for r in found.references if r.package == "ranx"]
assert all(row.conforms(1e-12) for row in ranx.rows)
print(*(row.rule for row in ranx.rows if row.measure == "AP"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rule"), [(10**6, ""), (5, "ties")])
def test_ranx_conforms_as_it_is_compiled(tmp_path, number, rule):
    run, qrels = ragged(2, [i / 7 for i in range(number)], [-1, 0, 1, 2, 3])
    (tmp_path / "run").write_text("".join(f"{q} Q0 {d} 0 {s!r} s\n" for q, d, s in run))
    (tmp_path / "qrels").write_text("".join(f"{q} 0 {d} {v}\n" for q, d, v in qrels))
    options = [f"{THRESHOLDS} {WHOLE}", tmp_path / "run", tmp_path / "qrels"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED, *options],
        env=os.environ | {"NUMBA_DISABLE_JIT": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == rule


def test_a_tie_by_hand(check, no_ranx):
    # trec_eval and we put b first (1/2); ir_measures' RR@k puts a first (1/1).
    _, rows = check([("q", "a", 1.0), ("q", "b", 1.0)], [("q", "a", 1)], "RR RR@5")
    assert rows["pytrec-eval-terrier", "RR"].agrees(0)
    assert rows["pytrec-eval-terrier", "RR"].their_mean == 0.5
    assert rows["ir-measures", "RR"].their_mean == 0.5
    row = rows["ir-measures", "RR@5"]
    assert (row.difference, row.at, row.rule, row.remaining) == (0.5, "q", "ties", 0)


def test_scores_that_tie_in_single_precision_only(check, no_ranx):
    # trec_eval sees equal scores, and b first; ir_measures' RR@k sees a first, by its score.
    run = [("q", "a", 1.00000001), ("q", "b", 1.0)]
    found, rows = check(run, [("q", "a", 1)], "RR RR@5")
    assert rows["pytrec-eval-terrier", "RR"].their_mean == 0.5
    assert rows["pytrec-eval-terrier", "RR"].agrees(0)
    assert (rows["ir-measures", "RR@5"].rule, rows["ir-measures", "RR@5"].remaining) == ("ties", 0)
    assert "1 query lists equal scores (in single precision)" in found.notes


def test_labels_below_0(check, no_ranx):
    # a: pooled, not judged (below 0); b: judged. We: 1 of 2 judged; ir_measures: 2 of 2.
    run = [("q", "a", 2.0), ("q", "b", 1.0)]
    _, rows = check(run, [("q", "a", -1), ("q", "b", 1)], "Judged@2 AP nDCG")
    row = rows["ir-measures", "Judged@2"]
    assert (row.our_mean, row.their_mean, row.rule) == (0.5, 1, "labels below 0")
    assert row.conforms(0)
    assert rows["pytrec-eval-terrier", "AP"].agrees(0)
    assert rows["pytrec-eval-terrier", "nDCG"].agrees(1e-12)


def test_both_means_where_queries_have_no_results(check, no_ranx):
    qrels = [("q1", "a", 1), ("q2", "a", 1)]
    _, rows = check([("q1", "a", 1.0), ("x", "a", 1.0)], qrels, "P@1")
    trec, ir = rows["pytrec-eval-terrier", "P@1"], rows["ir-measures", "P@1"]
    # trec_eval's default mean is over q1 alone; ours, and its -c, over q1 and q2.
    assert (trec.n, trec.their_mean, trec.our_mean) == (1, 1, 0.5)
    assert (ir.n, ir.their_mean, ir.our_mean) == (2, 0.5, 0.5)
    assert trec.agrees(0)
    assert ir.agrees(0)


def test_parquet_runs_are_handed_over_by_rank(tmp_path, no_ranx):
    # The scores rise with the ranks: who reads them would put b first.
    frame = pl.DataFrame(
        {"query_id": ["q", "q"], "doc_id": ["a", "b"], "rank": [1, 2], "score": [1.0, 2.0]}
    )
    frame.with_columns(run=pl.lit("s")).write_parquet(tmp_path / "run.parquet")
    (tmp_path / "qrels").write_text("q 0 a 1\n")
    found = compare_ranking(tmp_path / "run.parquet", tmp_path / "qrels", parse_measures("RR"))
    assert [row.their_mean for r in found.references for row in r.rows] == [1, 1]
    assert "contradict its scores" in found.notes[1]
    # Scores that stay with the ranks are handed over: trec_eval puts b first, and a note says so.
    frame.with_columns(run=pl.lit("s"), score=1.0).write_parquet(tmp_path / "run.parquet")
    found = compare_ranking(tmp_path / "run.parquet", tmp_path / "qrels", parse_measures("RR"))
    for row in (row for r in found.references for row in r.rows):
        assert (row.their_mean, row.our_mean, row.rule, row.remaining) == (0.5, 1, "ties", 0)
    assert (
        "RR 1.0000; in trec_eval's order (by document id, descending) RR 0.5000" in found.notes[-1]
    )


def test_a_wrong_value_of_the_engine_is_found(check, no_ranx, monkeypatch):
    def wrong(*args, **kwargs):
        scores = score_runs(*args, **kwargs)
        hit = (pl.col("measure") == "P@2") & (pl.col("query_id") == "q2")
        return scores.with_columns(pl.when(hit).then(0.25).otherwise("value").alias("value"))

    monkeypatch.setattr(ranking, "score_runs", wrong)
    run = [(f"q{i}", d, s) for i in range(4) for d, s in (("a", 2.0), ("b", 2.0))]
    _, rows = check(run, [(f"q{i}", "a", 1) for i in range(4)], "P@1 P@2")
    for package in ("pytrec-eval-terrier", "ir-measures"):
        row = rows[package, "P@2"]
        assert (row.difference, row.at, row.rule) == (0.25, "q2", "")  # theirs is 1/2
        assert not row.conforms(1e-12)
        assert rows[package, "P@1"].agrees(0)


def test_an_order_against_the_scores_is_not_accepted_as_a_tie_rule(check, monkeypatch):
    liar = RankingReference(
        packages=("liar",),
        module="json",
        name=str,
        compute=lambda scores, judged, measures: Computed(
            {m: {"q": 1.0} for m in measures}, dict.fromkeys(measures, 1.0), lambda: {"q": ["c", "b", "a"]}
        ),
        counts_missing=True,
        order=lambda measure: "its own",
        negative_is_judged=False,
        rules=(),
    )  # fmt: skip
    monkeypatch.setattr(ranking, "RANKING_REFERENCES", (liar,))
    run = [("q", "a", 2.0), ("q", "b", 2.0), ("q", "c", 1.0)]
    found, rows = check(run, [("q", "c", 1)], "RR")
    assert found.references[0].version == "of unknown version"
    assert (rows["liar", "RR"].difference, rows["liar", "RR"].rule) == (pytest.approx(2 / 3), "")


def test_a_reference_that_is_not_installed_is_listed(check, no_ranx, monkeypatch):
    run, qrels = [("q", "a", 1.0)], [("q", "a", 1)]
    found, _ = check(run, qrels, "P@1")
    last = found.references[-1]
    assert (last.package, last.version, last.install) == ("ranx", None, "pip install ranx")
    # ir_measures falls back on ranx without pytrec_eval: then it is no reference of its own.
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    with pytest.raises(InputError, match="no reference implementation of ranking measures") as none:
        check(run, qrels, "P@1")
    assert "pip install pytrec-eval-terrier or pip install ir-measures (" in none.value.remedy


@pytest.mark.parametrize(
    ("run", "qrels", "measures", "words"),
    [
        ([("q", "a", 1.0)], [("q", "a", 0.5)], "P@1", "qrels: labels that are not whole numbers"),
        ([("q", "a", 1.0)], [("q", "a", 1e30)], "P@1", "qrels: a label beyond 2147483647"),
        ([("q", "a", 1.0)], [("q", "a", 1)], "P@9999999999", "cutoff of P@9999999999"),
        ([("q", "a", 1.0)], [("q", "a", -1)], "P@1", "qrels: all labels are below 0"),
        ([("p", "a", 1.0)], [("q", "a", 1)], "P@1", "run: no query of the run is in"),
        ([("q", "a", "x")], [("q", "a", 1)], "P@1", "run:1: score \"'x'\" is not a number"),
        ([("q", "a", 1.0)], [("q", "a", "x")], "P@1", "qrels:1: label 'x' is not a finite number"),
        ([("q", "a", 1.0)], [("q", "a", 1)], "F1@5", "no installed reference computes F1@5"),
    ],
)
def test_bad_input_is_named(check, no_ranx, run, qrels, measures, words):
    with pytest.raises(InputError) as error:
        check(run, qrels, measures)
    assert words in str(error.value)


def test_names_mean_the_same_measure():
    names = {
        "P@5": ("P_5", "P@5", "precision@5"),
        "P": ("set_P", "SetP", "precision"),
        "R(rel=2)@5": ("recall_5", "R(rel=2)@5", "recall@5-l2"),
        "F1": ("set_F", "SetF", "f1"),
        "F1@5": (None, None, "f1@5"),
        "AP(rel=0.5)@5": ("map_cut_5", "AP(rel=1)@5", "map@5"),
        "RR": ("recip_rank", "RR", "mrr"),
        "RR@5": (None, "RR@5", "mrr@5"),
        "nDCG@5": ("ndcg_cut_5", "nDCG@5", "ndcg@5"),
        "nDCG(dcg='exp-log2')@5": (None, None, "ndcg_burges@5"),
        "DCG@5": (None, None, "dcg@5"),
        "Success@5": ("success_5", "Success@5", "hit_rate@5"),
        "Success": (None, None, "hit_rate"),
        "Rprec": ("Rprec", "Rprec", "r-precision"),
        "Judged@5": (None, "Judged@5", None),
    }
    for ours, theirs in names.items():
        (measure,) = parse_measures(ours)
        found = tuple(r.name(measure) for r in references.RANKING_REFERENCES)
        assert found == theirs


def test_a_mean_of_ir_measures_is_what_it_gives_for_the_files(check, no_ranx, tmp_path):
    # q1 has a tie, q2 labels below 0 only, q4 no results, x no labels.
    run = [("q1", "a", 2.0), ("q1", "b", 2.0), ("q2", "a", 1.0), ("q3", "a", 3.0), ("x", "a", 1.0)]
    qrels = [("q1", "a", 1), ("q2", "a", -1), ("q3", "a", 1), ("q4", "a", 1)]
    names = ["P@1", "AP", "nDCG@5", "RR@5", "Judged@2"]
    found, rows = check(run, qrels, " ".join(names))
    # In a process of its own: trec_eval's code may crash on q2.
    paths = [tmp_path / "qrels", tmp_path / "run"]
    asked = [sys.executable, "-m", "ir_measures", "--places", "12", *paths, *names]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    theirs = dict(line.split("\t") for line in printed.splitlines())
    assert {n: f"{rows['ir-measures', n].their_mean:.12f}" for n in names} == theirs
    # P@1 is 0, -, 1, 0: over the judged here, over all four there, over those with results in pytrec_eval.
    row = rows["ir-measures", "P@1"]
    assert (row.n, row.their_mean, row.our_mean) == (4, 1 / 4, 1 / 3)
    row = rows["pytrec-eval-terrier", "P@1"]
    assert (row.n, row.their_mean, row.our_mean) == (3, 1 / 3, 1 / 3)
    assert all(row.conforms(1e-12) for row in rows.values())
    (note,) = [note for note in found.notes if "below 0 only" in note]
    assert "1 query has" in note
    assert "means here are over the other 3" in note


def test_labels_below_0_only_neither_crash_trec_eval_nor_move_it(check, no_ranx):
    # Handed over as they are, these crash it or make it hang.
    rng = random.Random(1)
    run = [(f"q{q}", f"d{d}", rng.random()) for q in range(200) for d in range(rng.randint(1, 30))]
    qrels = [(f"q{q}", f"d{d}", rng.choice([-1, -2, -1000])) for q in range(199) for d in range(9)]
    _, rows = check(run, [*qrels, ("q199", "d0", 1)], "AP P@5 nDCG nDCG@5 Rprec RR P(rel=2)@5")
    for (package, name), row in rows.items():
        assert (row.n, row.conforms(0)) == (200, True), (package, name)
        assert row.their_mean == pytest.approx(row.our_mean / 200, abs=1e-12)
