"""The answer that ends an evaluation: what it says, and that it fits on a screen."""

import random
import re
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from engine.reading.protocol import ReadOutput
from engine.report import printed
from engine.report.summary import summarize
from tests.conftest import ScriptedReader, make_run
from tests.expected import as_expected
from tests.report import test_printed
from tests.report.made import sentences
from tests.report.test_printed import GOOD, POOR, N
from tests.tables import findings_of


def evaluated(tmp_path, runs=GOOD, **options):
    options = {"measures": "P@1 P@2", "resamples": 500} | options
    return test_printed.evaluated(tmp_path, runs, **options)


def shown(result, tmp_path):
    console = Console(width=160)
    with console.capture() as captured:
        for part in printed.answer_parts(findings_of(result), tmp_path):
            console.print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)
    return captured.get().splitlines()


def many_runs(count):
    """Runs that put the better passage first as often as chance has it."""
    chance = random.Random(1)
    runs = []
    for number in range(count):
        orders = ["de" if chance.random() < number / count else "ed" for _ in range(N)]
        rows = [(f"q{i:02}", f"{orders[i][r]}{i}", r + 1) for i in range(N) for r in (0, 1)]
        runs.append(make_run(rows, f"run{number:02}"))
    return pl.concat(runs)


def test_one_run_gets_its_score_and_a_line_for_each_annotator(tmp_path):
    text = shown(evaluated(tmp_path, annotators=("erag", "provenance")), tmp_path)
    as_expected(text[:3])
    head = next(i for i, line in enumerate(text) if line.startswith("Correlation with"))
    erag, provenance = (line.split() for line in text[head + 1 : head + 3])
    assert erag[:3] == ["erag", "P@1", "1.00"]
    assert erag[-1] == "100%"
    assert provenance[0] == "provenance"
    as_expected(text[head + 3])
    assert text[-1].startswith(f"results -> {tmp_path}")


class FailingReader(ScriptedReader):
    """Fails at every single passage, or at everything."""

    def __init__(self, alone):
        super().__init__(str.upper)
        self.alone = alone

    def __call__(self, plan, units, spec):
        for result in super().__call__(plan, units, spec):
            failed = [
                ReadOutput.failed("no")
                if len(doc_ids) == 1 or not self.alone
                else ReadOutput("A", 1, 1, False)
                for doc_ids in plan["doc_ids"].slice(result.unit.offset, result.unit.length)
            ]
            yield replace(result, outputs=failed)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("runs", [GOOD, pl.concat([POOR, GOOD])])
def test_an_answer_without_scores_says_so(tmp_path, runs, alone):
    options = {"end_to_end_k": 2, "failed_reads": "skip", "relevant": "pool"}
    result = evaluated(tmp_path, runs, reader=FailingReader(alone), **options)
    assert result.means.is_empty()
    text = shown(result, tmp_path)
    if alone:
        assert any(line.startswith("Correlation with") for line in text)
        assert any(line.split()[:2] == ["erag", "undefined"] for line in text)
    else:
        as_expected(text[2])
    assert any("failed reads" in line for line in text if line.startswith("further notes"))


def test_several_runs_get_the_verdict_and_a_leaderboard(tmp_path):
    runs = pl.concat([POOR, GOOD])
    result = evaluated(tmp_path, runs, annotators=("erag", "containment"), relevant="pool")
    text = shown(result, tmp_path)
    assert text[2 : 2 + len(sentences(result))] == sentences(result)
    head = next(i for i, line in enumerate(text) if line.startswith("run "))
    as_expected(text[head])
    best, other = (line.split() for line in text[head + 1 : head + 3])
    assert best == ["sys", "0.350", "0.350", "0.350"]
    (lead,) = result.statistics.choice.leads
    assert [*other[:2], *other[5:]] == ["poor", "0.000", "0.000", "0.000"]
    assert " ".join(other[2:5]) == f"-0.350 [{-lead.high:+.3f}, {-lead.low:+.3f}]"
    # Of one run all labels are 0: why its figures are undefined is said once.
    assert sum("undefined" in line for line in text) == 1


def test_all_annotators_are_compared_by_the_measure_that_was_named_first(tmp_path):
    asked = {"annotators": ("erag", "containment"), "relevant": "pool", "measures": "P@2 P@1"}
    result = evaluated(tmp_path, many_runs(2), **asked)
    # P@1 is the end-to-end score itself, P@2 is not: that is seen afterwards
    best = result.statistics.correlations.filter(pl.col("best"), pl.col("run") == "run01")
    assert set(best["measure"]) == {"P@1"}
    assert summarize(result, {})["primary_measures"] == {"erag": "P@2", "containment": "P@2"}
    assert [o.measure for o in result.statistics.choice.opinions] == ["P@2", "P@2"]
    text = "\n".join(shown(result, tmp_path))
    assert "erag P@2   containment P@2" in text
    assert "P@1" not in text
    # in full the best one is marked, as chosen after the fact
    (table, *_) = printed.full_tables(findings_of(result))
    assert "P@1 *" in [str(cell) for cell in table.columns[2].cells]
    as_expected(str(table.caption))


def test_labels_that_do_not_compare_runs_are_no_columns(tmp_path):
    runs = pl.concat([POOR, GOOD])
    text = shown(evaluated(tmp_path, runs, annotators=("erag",), relevant="list"), tmp_path)
    (head,) = (line for line in text if line.startswith("run "))
    assert "erag" not in head


def test_without_the_end_to_end_score_the_labels_are_all_there_is(tmp_path):
    runs = pl.concat([POOR, GOOD])
    options = {"annotators": ("containment", "provenance"), "relevant": "pool"}
    text = shown(evaluated(tmp_path, runs, end_to_end=False, **options), tmp_path)
    (head,) = (line for line in text if line.startswith("run "))
    assert re.findall("[a-z]+ P@1", head) == ["containment P@1", "provenance P@1"]
    assert not any("agreement" in line for line in text)


@pytest.mark.parametrize(
    ("annotators", "whole", "fewest"),
    [
        (("erag",), 1, 8),
        (("erag", "containment", "containment-substring", "provenance"), 1, 5),
        # The costs of two kinds of reads take three lines.
        (("erag", "containment", "containment-substring", "provenance"), 2, 3),
    ],
)
def test_any_number_of_runs_fits_on_a_screen(tmp_path, annotators, whole, fewest):
    result = evaluated(
        tmp_path,
        many_runs(12),
        annotators=annotators,
        relevant="pool",
        resamples=200,
        measures="P@1",
        end_to_end_k=whole,
    )
    text = shown(result, tmp_path)
    assert len(text) <= printed.MOST_LINES
    rows = [line.split()[0] for line in text if line.startswith("run") and line[3].isdigit()]
    ranked = result.end_to_end.sort("value", "run", descending=[True, False])["run"].to_list()
    assert rows == ranked[: len(rows)]
    assert len(rows) >= fewest
    assert f"and {12 - len(rows)} more runs" in " ".join(text)


def test_notes_are_one_line_that_names_what_they_are_about(tmp_path):
    result = evaluated(tmp_path, annotators=("erag", "containment"))
    (line,) = (line for line in shown(result, tmp_path) if line.startswith("further notes"))
    assert "own executor" in line
    assert sum(text.startswith("note: ") for text in printed.full_lines(findings_of(result))) >= 1


def test_lists_that_are_mostly_shorter_than_the_cutoff_are_told_in_a_line(tmp_path):
    # Of 40 lists, 19 are short: less than half. Of poor, 10 have one passage and 11 have none.
    long = GOOD.filter((pl.col("rank") == 1) | (pl.col("query_id") < "q21"))
    short = POOR.filter((pl.col("rank") == 1) | (pl.col("query_id") < "q19"))
    short = short.filter(pl.col("query_id") < "q29")
    result = evaluated(tmp_path, pl.concat([long, short]), annotators=("erag",), relevant="pool")
    (note,) = (note for note in result.notes if note.code == "short_lists")
    assert (note.amount, note.about) == (1, ("poor",))
    as_expected(note.text)
    text = shown(result, tmp_path)
    assert text.count(f"note: {note.text}") == 1
    assert not any("short lists" in line for line in text)
    (of_whole,) = (n for n in evaluated(tmp_path).notes if n.code == "short_lists")
    assert not of_whole.is_shown


def test_why_figures_are_undefined_is_counted_by_reason(tmp_path):
    # Of poor, the score is 0 for every query, and so are some measures but not all.
    runs = pl.concat([POOR, GOOD])
    options = {"annotators": ("erag", "provenance"), "relevant": "pool"}
    result = evaluated(tmp_path, runs, **options)
    notes = result.statistics.correlations.filter(pl.col("tau").is_nan())["note"].to_list()
    most = max(set(notes), key=notes.count)
    assert len(set(notes)) > 1
    (line,) = (line for line in shown(result, tmp_path) if "correlation" in line)
    assert line.startswith(f"{len(notes)} of {result.statistics.correlations.height} correlations ")
    assert f" {notes.count(most)} (" in line
    assert f" {len(notes) - notes.count(most)} for " in line
    commonest = {reason for reason in notes if notes.count(reason) == notes.count(most)}
    assert any(reason.removeprefix("undefined: ") in line for reason in commonest)


def test_figures_over_fewer_queries_say_over_how_many(tmp_path):
    runs = pl.concat([GOOD.filter(pl.col("query_id") >= "q10"), POOR])
    result = evaluated(tmp_path, runs, annotators=("erag",), missing="skip", relevant="pool")
    text = shown(result, tmp_path)
    rows = {line.split()[0]: line.split()[-1] for line in text if line}
    assert (rows["run"], rows["sys"], rows["poor"]) == ("n", "30", "40")
    assert (rows["Correlation"], rows["erag"]) == ("n", "30")
    whole = shown(evaluated(tmp_path / "whole", annotators=("erag",)), tmp_path)
    assert not any(line.split()[-1:] == ["n"] for line in whole)
