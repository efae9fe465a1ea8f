"""A study against evaluations done one by one, with scripted readers."""

import json

import polars as pl
import pytest

from engine import tables
from engine.errors import InputError
from engine.evaluation import evaluate
from engine.report import study as report
from engine.report.printed import lines
from engine.report.summary import summarize
from engine.settings import Settings
from engine.sources.inputs import cut_inputs
from engine.study import Condition, conditions, study
from jobs._results import write_results
from tests.conftest import ScriptedReader
from tests.test_evaluation import inputs, say_last

SETTINGS = Settings(
    k=3, resamples=100, annotators=("erag", "containment"), measures="P@3 RR Success@1"
)


def run_study(tmp_path, settings=SETTINGS, **varied):
    reader = ScriptedReader(say_last)
    every = conditions(settings, **varied)
    done = study(inputs(), every, store=tmp_path / "store", executor=reader)
    return done, reader


def test_each_cutoff_is_an_evaluation_at_that_cutoff(tmp_path):
    done, reader = run_study(tmp_path, cutoffs=(1, 2, 3))
    assert list(done.settings) == [Condition("bundled", "in-prompt", k) for k in (3, 1, 2)]
    for condition, settings in done.settings.items():
        assert settings.measures == f"P@{condition.k} RR Success@1"
        alone = evaluate(
            cut_inputs(inputs(), condition.k),
            settings,
            store=tmp_path / f"alone-{condition.k}",
            executor=ScriptedReader(say_last),
        )
        found = done.evaluations[condition]
        for name in ("labels", "query_scores", "downstream", "traces"):
            assert getattr(found, name).equals(getattr(alone, name)), name
        assert found.statistics.correlations.equals(alone.statistics.correlations)
        assert found.downstream["k"].unique().to_list() == [condition.k]


def test_no_read_is_done_twice(tmp_path):
    done, reader = run_study(tmp_path, cutoffs=(1, 2, 3))
    (costs,) = done.costs.values()
    assert len(reader.asked) == len({tuple(inputs) for inputs in reader.asked}) == costs.done
    assert all(e.readings["reader"].costs.done == 0 for e in done.evaluations.values())


def test_a_single_k_of_a_sweep_is_the_evaluation_asked_for(tmp_path):
    done, _ = run_study(tmp_path, cutoffs=(3,))
    assert list(done.settings) == [Condition("bundled", "in-prompt", 3)]
    assert done.readers.is_empty()


@pytest.fixture
def two_readers(tmp_path, tiny_t5):
    settings = Settings(k=3, resamples=100, measures="P@3 Success@3")

    def answer(plan, units, spec):
        poor = spec.name != "bundled"
        yield from ScriptedReader(lambda text: "Bo" if poor else say_last(text))(plan, units, spec)

    every = conditions(settings, readers=("bundled", str(tiny_t5)))
    return study(inputs(), every, store=tmp_path / "store", executor=answer), settings, str(tiny_t5)


def test_labels_of_each_reader_meet_the_score_of_each(two_readers):
    done, settings, poor = two_readers
    assert done.readers.schema == tables.READERS
    pairs = set(done.readers.select("reader", "labels_by").iter_rows())
    assert pairs == {(a, b) for a in ("bundled", poor) for b in ("bundled", poor)}
    own = done.readers.filter(pl.col("reader") == pl.col("labels_by")).drop("labels_by")
    same = done.conditions.filter(pl.col("annotator") == "erag").drop("annotator")
    assert own.sort("reader", "measure").equals(same.sort("reader", "measure"))
    # compared with the reader's own labels, each other reader's
    compared = done.reader_comparisons.select("reader", "labels_by", "labels_by_b").unique().rows()
    assert sorted(compared) == sorted([("bundled", "bundled", poor), (poor, poor, "bundled")])


def test_what_is_printed_and_written(tmp_path, two_readers):
    done, settings, poor = two_readers
    titles = [str(table.title) for table in report.shown(done, settings)]
    assert titles[0].startswith("Kendall's tau with the end-to-end score, by reader")
    assert titles[1].startswith("eRAG's labels by one reader")
    out = tmp_path / "out"
    write_results(next(iter(done.evaluations.values())), inputs(), settings, {}, out, done)
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
    write_results(next(iter(done.evaluations.values())), inputs(), settings, {}, out)
    assert [path.name for path in (out / "conditions").iterdir()] == ["mine"]
    assert not (out / "readers.parquet").exists()


def test_measures_follow_k_in_the_table(tmp_path):
    done, _ = run_study(tmp_path, cutoffs=(2, 3))
    (table,) = report.shown(done, SETTINGS)
    assert [str(column.header) for column in table.columns] == [
        "annotator", "measure", "k = 2", "k = 3"
    ]  # fmt: skip
    rows = [str(cell) for cell in table.columns[1].cells]
    assert rows == ["em", "P@k", "RR", "Success@1", "P@k", "RR", "Success@1"]
    assert "study, reader bundled (in-prompt): " in report.lines(done, SETTINGS)[0]


def test_directories_are_named_by_what_differs():
    every = [Condition("/a/m", "fid", 5), Condition("/b/m", "fid", 5), Condition("/b/m", "fid", 10)]
    assert list(report.directory_names(every).values()) == ["_a_m-k5", "_b_m-k5", "_b_m-k10"]
    every = [Condition("a b", "fid", 5), Condition("a:b", "fid", 5)]
    assert list(report.directory_names(every).values()) == ["1-a_b", "2-a_b"]


@pytest.mark.parametrize(
    ("settings", "varied", "words"),
    [
        (Settings(k=7), {"cutoffs": (5, 10)}, "--k 7 is not in --k-sweep 5,10"),
        (Settings(k=10), {"cutoffs": (5, 10, 5)}, "--k-sweep has a value twice"),
        (Settings(k=10, end_to_end_k=3), {"cutoffs": (5, 10)}, "--end-to-end-k beside --k-sweep"),
        (
            Settings(k=10, measures="P@7"),
            {"cutoffs": (5, 10)},
            "P@7 looks further than the smallest",
        ),
        (Settings(), {"readers": ("bundled", "bundled")}, "--reader has a value twice"),
    ],
)
def test_conditions_that_cannot_work_are_refused(settings, varied, words):
    with pytest.raises(InputError, match=words):
        conditions(settings, **varied)


def test_a_reader_of_single_passages_can_stand_in(tmp_path, tiny_t5):
    asked = []

    def answer(plan, units, spec):
        asked.extend((spec.name, len(ids)) for ids in plan["doc_ids"])
        words = say_last if spec.name == "bundled" else (lambda text: "Bo")
        yield from ScriptedReader(words)(plan, units, spec)

    settings = Settings(
        k=3, resamples=0, measures="P@3", annotators=("erag",), erag_reader=str(tiny_t5)
    )
    result = evaluate(inputs(), settings, store=tmp_path, executor=answer)
    # the reader of whole lists reads nothing alone, and the other nothing but that
    assert {size for name, size in asked if name == "bundled"} == {2, 3}
    assert {size for name, size in asked if name != "bundled"} == {1}
    useful = result.labels.filter(pl.col("label") > 0).select("query_id").unique()
    assert useful["query_id"].to_list() == ["q2"]  # which Bo answers
    assert result.downstream["output"].to_list() == ["nothing", "Bo", "Bo"]
    assert f"single passages are read by {tiny_t5}, whole lists by bundled" in lines(
        result, settings
    )
    written = summarize(result, settings, {})
    assert written["erag_reader"]["name"] == str(tiny_t5)
    assert written["erag_reader"]["parameters"] > 0
    assert written["reader"]["name"] == "bundled"
