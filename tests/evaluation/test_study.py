"""A study against evaluations done one by one, with scripted readers."""

import json

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition, Sweep, study, vary
from engine.inputs.files import cut_inputs
from engine.reading.costs import UnitResult
from engine.reading.protocol import ReadOutput
from engine.report import study_report
from engine.report.printed import answer_parts, full_lines
from engine.report.summary import summarize
from engine.statistics.bounded import holm
from jobs._evaluating import write_results
from tests.conftest import STATS, ScriptedReader
from tests.expected import as_expected, refused
from tests.tables import findings_of, inputs, say_last

SETTINGS = Settings.of(
    k=3, resamples=100, annotators=("erag", "containment"), measures="P@3 RR Success@1"
)


def run_study(tmp_path, settings=SETTINGS, **varied):
    reader = ScriptedReader(say_last)
    conditions = vary(settings, Sweep(**varied))
    done = study(inputs(), conditions, store=tmp_path / "store", executor=reader)
    return done, reader


def found(done):
    return findings_of(done.evaluations[done.main], done)


def test_each_cutoff_is_an_evaluation_at_that_cutoff(tmp_path):
    done, _ = run_study(tmp_path, k_sweep=(1, 2, 3))
    assert list(done.evaluations) == [Condition("bundled", "in-prompt", k) for k in (3, 1, 2)]
    for condition, evaluation in done.evaluations.items():
        settings = evaluation.settings
        assert settings.ranking.measures == f"P@{condition.k} RR Success@1"
        cut, reader = cut_inputs(inputs(), condition.k), ScriptedReader(say_last)
        alone = evaluate(cut, settings, store=tmp_path / f"alone-{condition.k}", executor=reader)
        for name in ("labels", "query_scores", "downstream", "traces"):
            assert getattr(evaluation, name).equals(getattr(alone, name)), name
        assert evaluation.statistics.correlations.equals(alone.statistics.correlations)
        assert evaluation.downstream["k"].unique().to_list() == [condition.k]


def test_no_read_is_done_twice(tmp_path):
    done, reader = run_study(tmp_path, k_sweep=(1, 2, 3))
    (costs,) = done.costs.values()
    assert len(reader.asked) == len({tuple(inputs) for inputs in reader.asked}) == costs.done
    assert all(e.readings["reader"].costs.done == 0 for e in done.evaluations.values())


def test_a_single_k_of_a_sweep_is_the_evaluation_asked_for(tmp_path):
    done, _ = run_study(tmp_path, k_sweep=(3,))
    assert list(done.evaluations) == [Condition("bundled", "in-prompt", 3)]
    assert done.readers.is_empty()


@pytest.fixture
def two_readers(tmp_path, tiny_t5):
    return study_of_two(tmp_path, tiny_t5, inputs())


def study_of_two(tmp_path, tiny_t5, asked):
    settings = Settings.of(k=3, resamples=100, measures="Success@1 RR@3 P@1")

    def answer(plan, units, spec):
        poor = spec.name != "bundled"
        yield from ScriptedReader(lambda text: "Bo" if poor else say_last(text))(plan, units, spec)

    conditions = vary(settings, Sweep(readers=("bundled", str(tiny_t5))))
    return study(asked, conditions, store=tmp_path / "store", executor=answer), str(tiny_t5)


def notes(done):
    lines = study_report.study_lines(found(done))
    return [line for line in lines if line.startswith("note: ")]


def test_labels_of_each_reader_meet_the_score_of_each(two_readers):
    done, poor = two_readers
    assert done.readers.schema == tables.READERS
    pairs = set(done.readers.select("reader", "labels_by").iter_rows())
    assert pairs == {(a, b) for a in ("bundled", poor) for b in ("bundled", poor)}
    own = done.readers.filter(pl.col("reader") == pl.col("labels_by")).drop("labels_by")
    same = done.conditions.filter(pl.col("annotator") == "erag").drop("annotator")
    assert own.sort("reader", "measure").equals(same.sort("reader", "measure"))
    names = (tables.READER, tables.LABELS_BY, tables.LABELS_BY_B)
    # compared with the reader's own labels, each other reader's
    compared = done.reader_comparisons.select(*names).unique().rows()
    assert sorted(compared) == sorted([("bundled", "bundled", poor), (poor, poor, "bundled")])


def test_what_is_printed_and_written(tmp_path, two_readers):
    done, poor = two_readers
    shown = study_report.study_grids(found(done))
    as_expected([table.title for table in shown])
    differences = done.reader_comparisons["tau_difference"].drop_nans().round(2).to_list()
    assert [float(row[3].split()[0]) for row in shown[-1].rows] == differences
    parts = answer_parts(found(done), tmp_path)
    as_expected([part for part in parts if str(part).startswith("study")])
    (reads,) = (part for part in parts if str(part).startswith("LLM calls: "))
    wanted = sum(cost.wanted for cost in done.costs.values())
    assert reads.startswith(f"LLM calls: {wanted} distinct, ")
    out = tmp_path / "out"
    write_results(next(iter(done.evaluations.values())), {}, out, done)
    written = json.loads((out / "summary.json").read_text())
    main, other = written["study"]["conditions"]
    assert main == {"reader": "bundled", "augmentation": "in-prompt", "k": 3, "directory": "."}
    beside = json.loads((out / other["directory"] / "summary.json").read_text())
    assert beside["configuration"]["reader"] == poor
    for name in ("conditions", "readers", "reader_comparisons"):
        assert (out / f"{name}.parquet").is_file()
    # an evaluation of one condition at the same place takes the study's files away, and no others
    keep = out / "conditions" / "mine"
    keep.mkdir()
    write_results(next(iter(done.evaluations.values())), {}, out)
    assert [path.name for path in (out / "conditions").iterdir()] == ["mine"]
    assert not (out / "readers.parquet").exists()


def test_measures_follow_k_in_the_table(tmp_path):
    done, _ = run_study(tmp_path, k_sweep=(2, 3))
    (table,) = study_report.study_grids(found(done))
    assert table.head == ["annotator", "measure", "k = 2", "k = 3"]
    rows = [row[1] for row in table.rows]
    assert rows == ["em", "P@k", "RR", "Success@1", "P@k", "RR", "Success@1"]
    assert "study, reader bundled (in-prompt): " in study_report.study_lines(found(done))[0]


def test_a_k_that_no_list_reaches_is_said(tmp_path):
    done, _ = run_study(tmp_path / "a", SETTINGS.but(k=9, measures="P@9"), k_sweep=(2, 9))
    as_expected(notes(done))
    done, _ = run_study(tmp_path / "b", k_sweep=(2, 3))
    as_expected(notes(done))


def test_lists_that_are_cut_for_the_reader_are_not_called_short(tmp_path, tiny_t5):
    settings = SETTINGS.but(end_to_end_k=1, resamples=0)
    conditions = vary(settings, Sweep(readers=("bundled", str(tiny_t5))))
    done = study(inputs(), conditions, store=tmp_path, executor=ScriptedReader(lambda text: "Bo"))
    as_expected(notes(done))


def test_directories_are_named_by_what_differs():
    every = [Condition("/a/m", "fid", 5), Condition("/b/m", "fid", 5), Condition("/b/m", "fid", 10)]
    assert list(study_report.directory_names(every).values()) == ["m-1-k5", "m-2-k5", "m-2-k10"]
    every = [Condition("a b", "fid", 5), Condition("a:b", "fid", 5)]
    assert list(study_report.directory_names(every).values()) == ["1-a_b", "2-a_b"]
    # no way out of the folder, nothing hidden, nothing that a file system refuses
    every = [Condition(name, "fid", 5) for name in ("..", ".", "/x/" + "y" * 300, "모델")]
    names = list(study_report.directory_names(every).values())
    assert len(set(names)) == 4
    assert all(name.strip("._") and len(name) < 100 and "/" not in name for name in names)


def test_failed_reads_are_tried_once(tmp_path):
    tried = []

    def answer(plan, units, spec):
        for unit in units:
            rows = plan["inputs"].slice(unit.offset, unit.length).to_list()
            tried.extend("".join(pieces) for pieces in rows)
            outputs = [
                ReadOutput("", 0, 0, False, "boom")
                if text.count("Passage: ") == 3 and "says Ann" in text
                else ReadOutput(say_last(text), 1, 1, False)
                for text in map("".join, rows)
            ]
            yield UnitResult(unit, outputs, "w", 0.0, STATS)

    settings = SETTINGS.but(failed_reads="skip", resamples=0)
    conditions = vary(settings, Sweep(k_sweep=(1, 3)))
    done = study(inputs(), conditions, store=tmp_path, executor=answer)
    assert len(tried) == len(set(tried))
    (costs,) = done.costs.values()
    first = done.evaluations[Condition("bundled", "in-prompt", 3)]
    assert costs.failed == first.readings["reader"].costs.failed > 0
    (table, *_) = study_report.study_grids(found(done))
    assert any("(n = " in cell for row in table.rows for cell in row[2:])
    as_expected(notes(done))


def test_p_values_across_readers_are_corrected_among_what_is_shown(tmp_path, tiny_t5):
    # Each query four times: of three queries no outcome is frequent enough to be tested.
    numbers = pl.DataFrame({"number": ["1", "2", "3", "4"]})
    queries, runs = (
        table.join(numbers, how="cross")
        .with_columns(pl.concat_str("query_id", pl.lit("-"), "number").alias("query_id"))
        .drop("number")
        for table in (inputs().queries, inputs().runs)
    )
    done, _ = study_of_two(tmp_path, tiny_t5, inputs(runs, queries))
    # of three measures, of one run
    for _, own in done.reader_comparisons.group_by(["reader", "augmentation", "k"]):
        assert own.height == 3
        for name in ("tau", "rho"):
            assert own[f"{name}_p"].is_not_nan().all()
            assert own[f"{name}_p_holm"].to_list() == holm(own[f"{name}_p"].to_list())


def test_a_cutoff_that_is_a_swept_k_keeps_its_row(tmp_path):
    settings = SETTINGS.but(measures="P@1 P@3", annotators=("erag",))
    done, _ = run_study(tmp_path, settings, k_sweep=(1, 3))
    (table,) = study_report.study_grids(found(done))
    assert [row[1] for row in table.rows] == ["em", "P@1", "P@k"]
    assert table.rows[1][2] == table.rows[2][2] != ""  # at k = 1 they are the same


def test_without_end_to_end_scores_means_stand_side_by_side(tmp_path):
    settings = SETTINGS.but(end_to_end=False)
    done, _ = run_study(tmp_path, settings, k_sweep=(1, 3))
    (table,) = study_report.study_grids(found(done))
    as_expected(table.title)
    assert table.rows[0][3] != ""


@pytest.mark.parametrize(
    ("options", "varied", "words"),
    [
        ({"k": 7}, {"k_sweep": (5, 10)}, "settings.sweep"),
        ({}, {"k_sweep": (5, 10, 5)}, "settings.repeated"),
        ({"end_to_end_k": 3}, {"k_sweep": (5, 10)}, "settings.conflict"),
        ({"measures": "P@7"}, {"k_sweep": (5, 10)}, "measure.deep"),
        ({}, {"readers": ("bundled", "bundled")}, "settings.repeated"),
        ({}, {"readers": ("m/x", "./m//x/")}, "settings.repeated"),
        ({}, {"augmentations": ("fid", "fid")}, "settings.repeated"),
    ],
)
def test_conditions_that_cannot_work_are_refused(options, varied, words):
    with refused(words):
        vary(Settings.of(**{"k": 10, **options}), Sweep(**varied))


def test_a_reader_of_single_passages_can_stand_in(tmp_path, tiny_t5):
    asked = []

    def answer(plan, units, spec):
        asked.extend((spec.name, len(ids)) for ids in plan["doc_ids"])
        words = say_last if spec.name == "bundled" else (lambda text: "Bo")
        yield from ScriptedReader(words)(plan, units, spec)

    settings = Settings.of(
        k=3, resamples=0, measures="P@3", annotators=("erag",), erag_reader=str(tiny_t5)
    )
    result = evaluate(inputs(), settings, store=tmp_path, executor=answer)
    # the reader of whole lists reads nothing alone, and the other nothing but that
    assert {size for name, size in asked if name == "bundled"} == {2, 3}
    assert {size for name, size in asked if name != "bundled"} == {1}
    useful = result.labels.filter(pl.col("label") > 0).select("query_id").unique()
    assert useful["query_id"].to_list() == ["q2"]  # which Bo answers
    assert result.downstream["output"].to_list() == ["nothing", "Bo", "Bo"]
    as_expected([line for line in full_lines(findings_of(result)) if line.startswith(str(tiny_t5))])
    written = summarize(result, {})
    assert written["erag_reader"]["name"] == str(tiny_t5)
    assert written["erag_reader"]["parameters"] > 0
    assert written["reader"]["name"] == "bundled"
