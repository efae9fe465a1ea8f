"""What is exported, read back by other tools."""

import json
import sys

import polars as pl
import pytest
import pytrec_eval
from ir_measures.__main__ import main_cli

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.sources.runs.export import grade, write_exports
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run
from tests.commands import evaluate as evaluate_files
from tests.conftest import make_labels, make_run
from tests.expected import refused

# Six queries over twelve passages; "a" lists all in one order, "b" some in another, with a tie.
N = 6
QUERIES = pl.DataFrame(
    [(f"q{i}", f"question {i}", [f"word{i}"], [f"A{i}", f"A{i + 1}"]) for i in range(N)],
    schema=tables.QUERIES,
    orient="row",
)
CORPUS = pl.DataFrame(
    [(f"d{j}", "", f"word{j % 4} word{j % 5}", f"A{j // 2}") for j in range(12)],
    schema=tables.CORPUS,
    orient="row",
)
A = make_run(
    [(f"q{i}", f"d{(i * 5 + r * 7) % 12}", r + 1) for i in range(N) for r in range(8)], "a"
)
B = make_run(
    [(f"q{i}", f"d{(i * 3 + r) % 12}", r + 1) for i in range(N - 1) for r in range(5)], "b"
).with_columns(score=pl.lit(1.0))
MEASURES = {
    "P@5": "P_5",
    "nDCG@5": "ndcg_cut_5",
    "AP@5": "map_cut_5",
    "R@5": "recall_5",
    "Success@5": "success_5",
    "RR@8": "recip_rank",
}


@pytest.mark.parametrize(("runs", "relevant"), [([A], "list"), ([A], "pool"), ([A, B], "pool")])
def test_pytrec_eval_gets_the_same_values_from_the_exported_files(tmp_path, runs, relevant):
    table = pl.concat(runs)
    settings = Settings.of(
        k=8,
        measures=" ".join(MEASURES),
        annotators=("containment", "provenance"),
        end_to_end=False,
        relevant=relevant,
        resamples=0,
    )
    result = evaluate(
        EvaluationInputs(queries=QUERIES, corpus=CORPUS, runs=table), settings, store=tmp_path
    )
    written = write_exports([result.labels], [table], tmp_path)
    assert len(written) == 2 + len(runs)
    compared = 0
    for annotator in settings.labels.names():
        with (tmp_path / "qrels" / f"{annotator}.txt").open() as file:
            evaluator = pytrec_eval.RelevanceEvaluator(
                pytrec_eval.parse_qrel(file), set(MEASURES.values())
            )
        for run in table["run"].unique():
            with (tmp_path / "runs" / f"{run}.trec").open() as file:
                theirs = evaluator.evaluate(pytrec_eval.parse_run(file))
            ours = result.query_scores.filter(run=run, annotator=annotator)
            for measure, query_id, value in ours.select("measure", "query_id", "value").iter_rows():
                # pytrec_eval leaves a query out that the run lists nothing for
                other = theirs.get(query_id, {}).get(MEASURES[measure], 0.0)
                assert value == pytest.approx(other, abs=1e-9), (annotator, run, measure, query_id)
                compared += other > 0
    assert compared > 40


def test_the_command_of_ir_measures_prints_the_means_of_an_evaluation(
    files, tmp_path, capsys, monkeypatch
):
    other, measures = tmp_path / "other.trec", ["P@1", "nDCG@2", "AP", "RR@2", "Judged@2"]
    other.write_text("1 Q0 c 1 3 other\n1 Q0 a 2 2 other\n1 Q0 b 3 1 other\n")
    options = ["--run", other, "--k", 2, "--annotators", "containment", "--no-end-to-end"]
    options += ["--store", tmp_path / "store", "--measures", " ".join(measures)]
    assert evaluate_files(files, *options) == 0
    scores = pl.read_parquet(files["out"] / "query_scores.parquet")
    exported = files["out"] / "exported"
    for run in ("mine", "other"):
        judged, listed = exported / "qrels/containment.txt", exported / f"runs/{run}.trec"
        words = ["ir_measures", judged, listed, *measures, "--output_format", "jsonl"]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        capsys.readouterr()
        main_cli()
        printed = map(json.loads, capsys.readouterr().out.splitlines())
        theirs = {row["measure"]: row["value"] for row in printed}
        means = scores.filter(run=run).group_by("measure").agg(pl.col("value").mean())
        assert theirs == pytest.approx(dict(means.iter_rows()), abs=1e-12)
        assert 0 < theirs["nDCG@2"] < 1


def test_real_valued_labels_round_trip_exactly_and_are_never_written_as_trec(tmp_path):
    labels = make_labels([("1", "x", 2 / 3), ("1", "y", 0.0), ("2", "x y", 1e-9)], "e")
    written = write_exports([labels], [make_run([("1", "x", 1)])], tmp_path)
    assert {path.name for path in written} == {"e.parquet", "e.tsv", "sys.trec"}
    for name in ("e.parquet", "e.tsv"):
        assert read_qrels(tmp_path / "qrels" / name).rows() == [
            ("1", "x", 2 / 3),
            ("1", "y", 0.0),
            ("2", "x y", 1e-9),
        ]


@pytest.mark.parametrize(("doc_id", "label"), [("a passage", 1.0), ("a\tb", 0.5)])
def test_ids_with_white_space_are_written_as_parquet(tmp_path, doc_id, label):
    run = make_run([("1", doc_id, 1)])
    written = write_exports([make_labels([("1", doc_id, label)], "e")], [run], tmp_path)
    assert [path.name for path in written] == ["e.parquet", "sys.parquet"]
    assert read_run(tmp_path / "runs" / "sys.parquet").equals(run)
    assert read_qrels(tmp_path / "qrels" / "e.parquet")["doc_id"].to_list() == [doc_id]


def test_names_of_runs_cannot_lead_to_other_directories(tmp_path):
    runs = pl.concat([make_run([("1", "x", 1)], name) for name in ("../up", "a/b", "a_b", "A_B")])
    written = write_exports([tables.empty(tables.LABELS)], [runs], tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in written] == [
        "runs/_up.trec",
        "runs/a_b.trec",
        "runs/a_b-2.trec",
        "runs/A_B-3.trec",
    ]


def test_names_of_many_bytes_are_cut_to_what_file_systems_take(tmp_path):
    names = ["검" * 100, "검" * 100 + "색", "x" * 150, "é" * 150]
    runs = pl.concat(make_run([("q1", "a", 1)], name) for name in names)
    written = write_exports([pl.DataFrame(schema=tables.LABELS)], [runs], tmp_path)
    assert [read_run(path)["run"][0] for path in written] == names
    stems = [path.stem for path in written]
    assert stems == ["검" * 68, "검" * 68 + "-2", "x" * 100, "é" * 100]
    assert max(len(stem.encode()) for stem in stems) <= 209


def test_a_grade_is_a_whole_number_by_a_scale_or_none():
    # 0.29 times 100 is 28.999999999999996.
    assert [grade(*given) for given in ((1.0, 0), (0.678, 100), (0.29, 100), (-0.1, 10))] == [
        1,
        67,
        29,
        -1,
    ]
    with refused("qrels.fraction"):
        grade(0.5, 0)
