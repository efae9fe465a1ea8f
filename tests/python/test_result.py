import re
import sys

import polars as pl
import pytest

import engine
from engine import Result
from engine.report.page.remake import remake
from tests.expected import as_expected, refused
from tests.python.test_evaluate import OPTIONS, PASSAGES, QUERIES, RUNS, Counting, evaluate


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return evaluate(tmp_path_factory.mktemp("r"), annotators=["erag", "containment"], resamples=200)


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.report.page.remake.make_page", lambda *_, **__: None)  # takes seconds
        result.save(folder)
    return folder


def test_what_is_printed_begins_with_the_verdict_and_has_the_runs(result):
    text = repr(result)
    assert result.verdict.splitlines()[0] == "Choose good."
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("run "))
    rows = [line for line in lines if line.startswith(("good ", "poor "))][:2]
    assert [line.split()[0] for line in rows] == ["good", "poor"]
    assert {len(line) for line in (head, *rows)} == {len(head)}
    as_expected([text.partition("\n\nrun ")[0], lines[-1]])


def test_a_notebook_is_shown_tables_in_which_names_are_texts(tmp_path):
    runs = {"<script>alert(1)</script>": RUNS["good"], "poor": RUNS["poor"]}
    found = engine.evaluate(QUERIES, PASSAGES, runs, reader=Counting(), store=tmp_path, **OPTIONS)
    shown = found._repr_markdown_()
    assert "| &lt;script>alert(1)&lt;/script> |" in shown
    assert "<script" not in shown


def test_the_leaderboard_is_a_table_of_numbers(result):
    board = result.leaderboard()
    assert board.columns == [
        "run", "end_to_end", "end_to_end_low", "end_to_end_high", "erag P@1", "containment P@1",
        "lead", "low", "high", "p", "queries",
    ]  # fmt: skip
    good = board.row(0, named=True)
    assert (good["run"], good["queries"]) == ("good", 12)
    assert good["end_to_end"] == pytest.approx(0.75)
    assert good["end_to_end_low"] < 0.75 < good["end_to_end_high"]
    assert good["erag P@1"] == pytest.approx(0.75)
    # The leads are those of the verdict.
    assert board["run"].to_list() == ["good", "poor"]
    (lead,) = result.summary["verdict"]["leads"]
    assert board.select("lead", "low", "high", "p").rows() == [
        (None,) * 4,
        tuple(lead[key] for key in ("difference", "low", "high", "p")),
    ]
    assert board["lead"][1] == pytest.approx(board["end_to_end"][0] - board["end_to_end"][1])


def test_figures_have_flat_names_that_trackers_allow(result):
    metrics = result.metrics()
    assert all(re.fullmatch(r"[/\w.\- :]+", name) for name in metrics)  # what MLflow allows
    means = {
        (row["run"], row["annotator"], row["measure"]): row["value"]
        for row in result.means.iter_rows(named=True)
    }
    assert metrics["good/erag/P_2"] == means["good", "erag", "P@2"]
    assert metrics["good/end_to_end"] == result.leaderboard()["end_to_end"][0]
    row = result.correlations.filter(run="good", annotator="erag", measure="P@1").row(0, named=True)
    assert metrics["good/erag/P_1/tau"] == row["tau"]
    assert metrics["good/erag/P_1/rho"] == row["rho"]
    assert all(value == value for value in metrics.values())


def test_tables_become_pandas_frames_and_pictures_figures(result, monkeypatch):
    board = result.to_pandas()
    assert list(board.columns) == result.leaderboard().columns
    assert result.to_pandas("labels")["label"].sum() == result.labels["label"].sum()
    assert result.figure("scores").axes
    with refused("result.figure"):
        result.figure("score")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused("package.missing"):
        result.to_pandas()


def test_labels_are_judgments_for_other_tools(result):
    judged = result.qrels()
    assert judged["q0"] == {"d0": 0.0, "e0": 0.0, "d4": 0.0}
    assert judged["q1"] == {"d1": 1.0, "e1": 0.0, "d5": 1.0}
    assert result.qrels("containment") == judged
    with refused("result.annotator"):
        result.qrels("judge")


def test_a_saved_result_is_loaded_as_it_was(result, saved):
    loaded = Result.load(saved)
    assert repr(loaded) == repr(result)
    assert loaded._repr_markdown_() == result._repr_markdown_()
    assert loaded.leaderboard().equals(result.leaderboard())
    assert loaded.qrels() == result.qrels()
    tables = "labels correlations query_scores traces downstream reads run_pairs"
    for name in tables.split():
        assert loaded.table(name).equals(result.table(name)), name
    assert loaded.means.equals(result.means)
    with refused("result.place"):
        loaded.save(saved)


def test_a_folder_of_the_command_is_loaded(tmp_path, files):
    from tests.commands import CONTAINMENT, erag

    given = [part for name in ("queries", "corpus", "run") for part in (f"--{name}", files[name])]
    quiet = [*CONTAINMENT, "--k", 2, "--resamples", 0]
    for more in ([], ["--shard-pairs", 2, "--actors", 0]):
        out = tmp_path / f"out{len(more)}"
        assert erag("evaluate", *given, *quiet, *more, "--measures", "P@2", "--out", out) == 0
        loaded = Result.load(out)
        assert loaded.labels.sort("query_id", "doc_id")["label"].to_list() == [1, 0, 1, 0]
        assert loaded.leaderboard().rows() == [("mine", 0.5, 2)]
        assert "mine scores" in loaded.verdict


def test_another_result_is_not_replaced_unless_that_is_wanted(result, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.report.page.remake.make_page", lambda *_, **__: None)
    out = tmp_path / "out"
    result.save(out)
    result.save(out)
    fewer = {q: of for q, of in QUERIES.items() if q != "q0"}
    other = engine.evaluate(
        fewer, PASSAGES, RUNS, annotators="containment", end_to_end=False, store=tmp_path, **OPTIONS
    )
    with refused("results.occupied"):
        other.save(out)
    assert Result.load(out).summary["counts"]["queries"] == 12
    other.save(out, overwrite=True)
    assert Result.load(out).summary["counts"]["queries"] == 11


def test_what_is_no_result_is_refused(tmp_path, result):
    with refused("results.unreadable"):
        Result.load(tmp_path)
    with refused("result.table"):
        result.table("pairs")


def test_a_report_in_markdown_has_the_verdict_and_the_tables(result, tmp_path):
    path = result.report(tmp_path / "report.md")
    text = path.read_text()
    as_expected([text.partition("\n\n|")[0], text.splitlines()[-1]])
    assert re.search(r"^\| erag \| P@[12] \|", text, re.M)


def test_a_report_is_the_page_with_its_passages(result, tmp_path):
    alone = result.report(str(tmp_path / "one.html"))
    assert alone == tmp_path / "one.html"
    assert "says Ann" in alone.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["one.html"]
    assert "Reader: Python function Counting() (answers not cached) · prompt " in alone.read_text()
    page = result.report(tmp_path / "folder")
    assert page == tmp_path / "folder" / "report.html"
    assert (tmp_path / "folder" / "report" / "tables" / "runs.md").exists()


def test_a_loaded_result_has_a_page_without_passages(saved, tmp_path):
    page = Result.load(saved).report(tmp_path / "one.html").read_text()
    assert "Choose good." in page
    assert "says Ann" not in page


def test_the_page_of_tables_cannot_be_made_again_with_passages(saved):
    remake(saved, single_file=True, passages=False)
    with refused("results.files"):
        remake(saved, single_file=True, passages=True)


def test_tables_of_annotators_are_there_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A file of that name in the working directory is another's.
    pl.DataFrame({"run": ["other"]}).write_parquet("dual.parquet")
    queries = {q: {**of, "provenance": ["D0"]} for q, of in QUERIES.items()}
    found = engine.evaluate(
        queries, PASSAGES, RUNS, annotators="dual", end_to_end=False, store=tmp_path, **OPTIONS
    )
    assert set(found.table("dual")["run"]) == {"good", "poor"}
    with refused("result.table"):
        found.table("corpus")
    found.save(tmp_path / "out")
    loaded = Result.load(tmp_path / "out")
    assert loaded.table("dual").equals(found.table("dual"))
    assert loaded.table("dual_labels").equals(found.table("dual_labels"))
