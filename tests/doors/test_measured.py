"""What measures and exports count: all judgments, whoever labels beside, held and in shards, as other tools have it."""

import json
from collections import defaultdict

import ir_measures
import polars as pl
import pytest
import pytrec_eval
from hypothesis import given, settings

from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.python.result import Result
from engine.report import grids, header
from engine.report.page.overview import overview_grids
from engine.report.printed import full_tables
from engine.report.results import write_results
from engine.sources.io.folders import folder_at
from tests.expected import as_expected, refused
from tests.ranking.ragged import SEEDS, Case, random_case, whole
from tests.tables import table_files

K = 10
MEASURES = {
    "nDCG@5": "ndcg_cut_5", "AP@10": "map_cut_10", "R@10": "recall_10", "P@5": "P_5", "RR@10": "recip_rank",
    "Success@5": "success_5", "Rprec": "Rprec",
}  # fmt: skip
# Others beside, before and after.
BESIDE = (("qrels",), ("qrels", "containment"), ("containment", "qrels"))
# Two of four judged passages are listed, one by each run.
SMALL = Case(
    ["q0", "q1"],
    {"s": {"q0": ["d0", "d1"]}, "t": {"q0": ["d2"]}},
    {"q0": {"d0": 1.0, "d2": 1.0, "d8": 2.0, "d9": 1.0}, "q1": {"d1": -1.0}},
)


def written(case, place):
    """The files of a case: every passage of it holds the answer of every third query."""
    place.mkdir()
    lists = [(run, q, docs) for run, own in case.lists.items() for q, docs in own.items()]
    listed = {doc for _, _, docs in lists for doc in docs}
    judged = {doc for labels in case.labels.values() for doc in labels}
    queries = [{"id": q, "input": q, "output": [{"answer": f"w{i % 3}"}]} for i, q in enumerate(case.queries)]  # fmt: skip
    docs = [{"id": doc, "text": f"w{i % 2}"} for i, doc in enumerate(sorted(listed | judged))]
    for name, rows in (("q", queries), ("c", docs)):
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in case.lists:
        lines = (f"{q} Q0 {doc} {n} {-n} {name}" for run, q, own in lists if run == name for n, doc in enumerate(own))  # fmt: skip
        (place / f"{name}.trec").write_text("\n".join(lines))
    lines = (f"{q} 0 {doc} {label}" for q, own in case.labels.items() for doc, label in own.items())
    (place / "qrels.txt").write_text("\n".join(lines))
    return InputFiles(
        queries=place / "q.jsonl",
        corpus=place / "c.jsonl",
        run=tuple(place / f"{name}.trec" for name in case.lists),
        tables=table_files(qrels=place / "qrels.txt"),
    )


def evaluated(door, case, place, **options):
    """A result, and where it was written."""
    files = written(case, place)
    usual = {"k": K, "measures": " ".join(MEASURES), "end_to_end": False, "resamples": 0}
    asked = Settings.of(**usual | options)
    if door == "held":
        result = evaluate(read_inputs(files, k=K), asked, store=place / "store")
    else:
        shards = partition(files, folder_at(place / "inputs"), k=K, pairs_per_shard=40)
        done = evaluate_shards(shards, [asked], Context(store=place / "store"), folder_at(place))
        (result,) = done[0]
    return Result(write_results(result, {}, place / "out"), result), place / "out"


def trec_eval(case, run, judged):
    """pytrec_eval's values by measure and query."""
    kept = {q: own for q, own in judged.items() if max(own.values(), default=-1) >= 0}
    scored = {q: {d: -float(n) for n, d in enumerate(docs)} for q, docs in case.lists[run].items()}
    scored = {q: dict(list(own.items())[:K]) for q, own in scored.items()}
    found = pytrec_eval.RelevanceEvaluator(kept, set(MEASURES.values())).evaluate(scored)
    return {(ours, q): own[theirs] for q, own in found.items() for ours, theirs in MEASURES.items()}


@pytest.mark.parametrize("relevant", [None, "pool"])
@pytest.mark.parametrize("annotators", BESIDE, ids=",".join)
@pytest.mark.parametrize("door", ["held", "shards"])
@settings(max_examples=2)
@given(SEEDS)
def test_measures_of_qrels_equal_trec_eval(tmp_path_factory, door, annotators, relevant, seed):
    case = random_case(seed, whole(-1, 0, 1, 2, 3), runs=("s", "t"))
    place = tmp_path_factory.mktemp("measured") / "case"
    result, out = evaluated(door, case, place, annotators=annotators, relevant=relevant)
    pool = defaultdict(set)
    for own in case.lists.values():
        for query, docs in own.items():
            pool[query] |= set(docs[:K])
    judged = {
        q: {d: label for d, label in own.items() if relevant is None or d in pool[q]}
        for q, own in case.qrels().items()
    }
    for run in case.lists:
        rows = result.scores.filter(annotator="qrels", run=run)
        ours = {(m, q): value for m, q, value in rows.select("measure", "query_id", "value").rows()}
        theirs = trec_eval(case, run, judged)
        assert {key: theirs.get(key, 0.0) for key in ours} == pytest.approx(ours, abs=1e-9)
        assert theirs.keys() <= ours.keys() or relevant
    if relevant is None:
        assert_exports_have_the_means(result, out, annotators)


def assert_exports_have_the_means(result, out, annotators):
    """As ir_measures computes them from the files alone: over the same queries, those without results among them."""
    named = {name: ir_measures.parse_measure(name) for name in MEASURES if name != "RR@10"}
    for annotator in annotators:
        qrels = list(ir_measures.read_trec_qrels(str(out / f"exported/qrels/{annotator}.txt")))
        scored = result.scores.filter(annotator=annotator)
        assert {one.query_id for one in qrels} == set(scored["query_id"])
        assert result.qrels(annotator).keys() == set(scored["query_id"])
        for run in scored["run"].unique():
            listed = ir_measures.read_trec_run(str(out / f"exported/runs/{run}.trec"))
            theirs = ir_measures.calc_aggregate(named.values(), qrels, list(listed))
            means = dict(result.means.filter(annotator=annotator, run=run).select("measure", "value").rows())  # fmt: skip
            assert {n: theirs[m] for n, m in named.items()} == pytest.approx({n: means[n] for n in named}, abs=1e-9)  # fmt: skip


@pytest.mark.parametrize(
    ("relevant", "runs", "base", "of_tokens"),
    [(None, "st", "", " (pool)"), (None, "s", "", " (list)"), ("pool", "st", *[" (pool)"] * 2), ("list", "s", *[" (list)"] * 2)],
)  # fmt: skip
def test_names_of_measures_say_over_what_they_are(tmp_path, relevant, runs, base, of_tokens):
    case = Case(SMALL.queries, {run: SMALL.lists[run] for run in runs}, SMALL.labels)
    measures = "R@2 R@40tok nDCG@2 P@2 nDCG@40tok"
    options = {"annotators": ("containment", "qrels"), "measures": measures, "relevant": relevant}
    result, out = evaluated("held", case, tmp_path / "case", **options)
    names = {m: m + (of_tokens if "tok" in m else base) * (m[0] != "P") for m in measures.split()}
    for found in (result.findings, Result.load(out).findings):
        columns = (column for table in full_tables(found) for column in table.columns)
        assert {*names.values()} <= {str(cell) for column in columns for cell in column.cells}
        assert f"qrels {names['R@2']}" in grids.leaderboard(found).head
        (every,) = (grid for grid in overview_grids(found) if grid.name == "measures")
        assert every.head[2:] == list(names.values())
        as_expected(header.lines(found.summary)[-1])
    # In their order: the first is primary.
    assert list(result.means.filter(annotator="qrels", run="s")["measure"]) == measures.split()
    values = dict(result.means.filter(annotator="qrels", run="s").select("measure", "value").rows())
    # Of four judged passages two are in the pool, and one in the list.
    counted = {"": 4, " (pool)": 2, " (list)": 1}
    assert (values["R@2"], values["R@40tok"]) == (1 / counted[base], 1 / counted[of_tokens])


def test_the_number_of_listed_passages_stands_beside_that_of_the_corpus(tmp_path):
    told = {}
    for door in ("held", "shards"):
        result, _ = evaluated(door, SMALL, tmp_path / door, annotators=("containment",))
        assert result.summary["counts"]["corpus_passages"] == 5
        told[door] = header.lines(result.summary)[-1]
    as_expected(told["held"])
    assert told["held"] == told["shards"]


@pytest.mark.parametrize("labels", [(0.0, 0.29, 0.5, 1.0), (0.25, 0.499, 0.5, 2.5)])
@settings(max_examples=4)
@given(SEEDS)
def test_scaled_labels_have_the_values_at_their_thresholds(tmp_path_factory, labels, seed):
    """0.29 times 100 is below 29 in binary, and 0.499 must not become 50."""
    case = random_case(seed, lambda rng: float(rng.choice(labels)), queries=12)
    place = tmp_path_factory.mktemp("scaled") / "case"
    options = {"annotators": ("qrels",), "measures": "AP(rel=0.5)@10 R(rel=0.29)@10"}
    result, out = evaluated("held", case, place, **options)
    judged = Result.load(out).qrels("qrels", scale=100, path=place / "scaled.txt")
    lines = [line.split() for line in (place / "scaled.txt").read_text().splitlines()]
    assert {line[1] for line in lines} == {"scale=100,rel=0.29:29,rel=0.5:50"}
    assert {(q, d): int(label) for q, _, d, label in lines} == {
        (q, d): label for q, own in judged.items() for d, label in own.items()
    }
    with (place / "scaled.txt").open() as stream:
        parsed = pytrec_eval.parse_qrel(stream)
    scored = {
        q: {d: -float(n) for n, d in enumerate(own[:K])} for q, own in case.lists["s"].items()
    }
    for measure, theirs, level in (("AP(rel=0.5)@10", "map_cut_10", 50), ("R(rel=0.29)@10", "recall_10", 29)):  # fmt: skip
        found = pytrec_eval.RelevanceEvaluator(parsed, {theirs}, level).evaluate(scored)
        ours = result.scores.filter(measure=measure).select("query_id", "value").rows()
        assert dict(ours) == pytest.approx({q: found.get(q, {theirs: 0})[theirs] for q, _ in ours})


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"scale": 10}, "result.scale"),
        ({"scale": 100, "path": "l.tsv"}, "result.scaleless"),
        ({"scale": -1}, "settings.value"),
        ({"path": "l.txt"}, "qrels.unfit"),
    ],
)
def test_labels_that_a_file_cannot_state_are_refused(tmp_path, monkeypatch, options, code):
    monkeypatch.chdir(tmp_path)
    case = Case(["q0"], {"s": {"q0": ["d1"]}}, {"q0": {"d1": 0.5}})
    asked = {"annotators": ("qrels",), "measures": "AP(rel=0.25)@10"}
    result, _ = evaluated("held", case, tmp_path / "case", **asked)
    with refused(code):
        result.qrels(**options)
    assert not list(tmp_path.glob("l.*"))


def test_a_query_without_results_stays_in_the_export(tmp_path):
    case = Case(["q0", "q1"], {"s": {"q0": ["d1"]}}, {"q0": {"d1": 1.0}, "q1": {"d1": 1.0}})
    result, out = evaluated("held", case, tmp_path / "case", annotators=("containment", "qrels"))
    assert pl.read_parquet(out / "labels.parquet").filter(annotator="containment").height == 1
    assert result.qrels("containment") == {"q0": {"d1": 1}, "q1": {"no-passage": 0}}
    skipped, _ = evaluated(
        "held", case, tmp_path / "skip", annotators=("containment", "qrels"), missing="skip"
    )
    for annotator in ("containment", "qrels"):
        assert skipped.qrels(annotator).keys() == {"q0"}
