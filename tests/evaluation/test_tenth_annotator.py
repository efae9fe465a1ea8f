"""A tenth annotator is one file, its options and a line in the registry: this file and ``register``.

It needs a file of its own (clicks), has an option, asks for reads, rests on another annotator, traces
its labels by a column of its own, and leaves a table that is printed and one of figures over all queries,
which may be judged in parts. Nothing else in the engine or the commands is changed for it.
"""

import json
from dataclasses import dataclass, replace

import polars as pl
import pytest
from cyclopts import App

from engine import tables
from engine.evaluation.settings import Settings
from engine.labels import registry
from engine.labels.annotator import (
    Annotator,
    AnnotatorResult,
    Ask,
    Conclusion,
    Display,
    FurtherTable,
    InputTable,
    Role,
    Scale,
)
from engine.messages.errors import InputError
from engine.messages.notes import count_note
from engine.tables import DOC_ID, LABEL, OUTPUT, QUERY_ID
from jobs._command import run_app
from jobs.evaluate import evaluate_command
from tests.expected import as_expected

CLICKS = "clicks"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the annotator ``popular``.

    Attributes:
        least_clicks: Clicks from which on a passage is popular.

    Raises:
        InputError: a number below 1.
    """

    least_clicks: int = 1

    def __post_init__(self):
        if self.least_clicks < 1:
            raise InputError(f"`least_clicks` is {self.least_clicks}", "use 1 or more")


INPUT = InputTable(
    name="click_log",
    read=lambda path: pl.read_ndjson(path).select(QUERY_ID, DOC_ID, CLICKS),
    columns=(QUERY_ID, DOC_ID, CLICKS),
    help="Clicks on passages, in JSONL; for the annotator popular.",
)
ROLE = Role("doubter", "the doubter", "doubter")
TOTALS = FurtherTable(
    name="click_totals",
    schema={QUERY_ID: pl.String(), CLICKS: pl.Int64()},
    in_summary=True,
    display=lambda frame, level: Display(
        "Clicks on listed passages",
        ["query"],
        ["clicks"],
        [([query_id], [str(clicks)]) for query_id, clicks in frame.iter_rows()],
    ),
)

MEAN = FurtherTable(
    name="mean_clicks",
    schema={CLICKS: pl.Float64()},
    in_summary=True,
    conclusion=Conclusion(
        TOTALS.schema, lambda totals, settings, clusters: totals.select(pl.col(CLICKS).mean())
    ),
)


def asks(settings):
    reader = settings.reader
    return Ask(
        role=ROLE,
        model=reader.reader,
        task=reader.task,
        prompt=reader.prompt,
        augmentation=None,
        value=lambda reads, queries: reads[OUTPUT].str.len_chars().cast(pl.Float64),
        description={"least_clicks": settings.options(Options).least_clicks},
    )


def label(material):
    """Half for a popular passage, half for one that its read, and containment, have something in."""
    least = material.settings.options(Options).least_clicks
    clicked = material.pairs.join(
        material.tables[INPUT.name], on=[QUERY_ID, DOC_ID], how="left", maintain_order="left"
    ).with_columns(pl.col(CLICKS).fill_null(0))
    contained = material.rests_on["containment"].labels[LABEL] > 0
    answered = (material.reads[OUTPUT] != "") & contained
    halves = (clicked[CLICKS] >= least).cast(pl.Float64) + answered.cast(pl.Float64)
    labels = clicked.select(
        QUERY_ID, DOC_ID, pl.lit("popular").alias(tables.ANNOTATOR), (halves / 2).alias(LABEL)
    )
    totals = clicked.group_by(QUERY_ID, maintain_order=True).agg(pl.col(CLICKS).sum())
    unseen = count_note(
        "passages_without_clicks",
        int((clicked[CLICKS] == 0).sum()),
        "listed [passage was|passages were] never clicked (`least_clicks` is "
        f"{material.settings.options(Options).least_clicks})",
    )
    traces = labels.with_columns(clicked[CLICKS], material.reads["read_key"])
    return AnnotatorResult(labels, traces, {TOTALS.name: totals, MEAN.name: totals}, (unseen,))


POPULAR = Annotator(
    name="popular",
    label=label,
    options=Options,
    needs_input=INPUT,
    rests_on=lambda settings: ("containment",),
    role=ROLE,
    asks=asks,
    scale=lambda settings: Scale(graded="the halves of popularity"),
    further_tables=(TOTALS, MEAN),
)


@pytest.fixture
def register(monkeypatch):
    """The line in the registry."""
    monkeypatch.setitem(registry.ANNOTATORS, POPULAR.name, POPULAR)


@pytest.fixture
def arguments(tmp_path, tiny_t5):
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "input": "w1 w2", "output": [{"answer": "w7"}]}\n'
        '{"id": "2", "input": "w4", "output": [{"answer": "w5"}]}\n'
    )
    (tmp_path / "c.jsonl").write_text(
        '{"id": "a", "title": "", "text": "w7 w8"}\n{"id": "b", "title": "", "text": "w9 w10"}\n'
    )
    (tmp_path / "r.trec").write_text("1 Q0 a 1 2 mine\n1 Q0 b 2 1 mine\n2 Q0 b 1 1 mine\n")
    (tmp_path / "clicks.jsonl").write_text(
        '{"query_id": "1", "doc_id": "a", "clicks": 3}\n'
        '{"query_id": "2", "doc_id": "b", "clicks": 1}\n'
        '{"query_id": "9", "doc_id": "b", "clicks": 7}\n'
    )
    given = {"queries": "q.jsonl", "corpus": "c.jsonl", "run": "r.trec", "out": "out"}
    options = [part for name, file in given.items() for part in (f"--{name}", tmp_path / file)]
    more = ["--store", tmp_path / "store", "--reader", tiny_t5, "--k", 2, "--actors", 0]
    return [str(part) for part in (*options, *more, "--dtype", "float32", "--resamples", 0)]


def run(arguments):
    """The command with the annotators that are registered now; its exit status."""
    app = App(name="erag")
    app.command(evaluate_command(), name="evaluate")
    try:
        run_app(app, ["evaluate", *arguments])
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_it_runs_from_its_option_to_the_printed_tables(register, arguments, tmp_path, capsys):
    clicks = ["--click-log", str(tmp_path / "clicks.jsonl"), "--least-clicks", "2"]
    assert run([*arguments, "--annotators", "popular,erag", *clicks, "--full"]) == 0
    printed = capsys.readouterr().out
    assert "popular" in printed
    assert "Clicks on listed" in printed
    assert "doubter: 3 distinct" in printed
    # q1's second passage: its first has 3 clicks, and q2's has one
    assert "note: 1 listed passage was never clicked (--least-clicks is 2)" in printed
    out = tmp_path / "out"
    traces = pl.read_parquet(out / "traces.parquet").filter(annotator="popular")
    assert traces[CLICKS].to_list() == [3, 0, 1]
    assert traces["read_key"].null_count() == 0
    # a: popular, and holds w7; b of 1: neither; b of 2: one click is too few, and no w5
    answered = traces["label"].to_list()
    assert answered[0] >= 0.5
    assert answered[1:] == [0, 0]
    assert pl.read_parquet(out / "click_totals.parquet").rows() == [("1", 3), ("2", 1)]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["configuration"]["least_clicks"] == 2
    assert summary["configuration"]["click_log"].endswith("clicks.jsonl")
    assert summary["doubter"]["least_clicks"] == 2
    assert summary["click_totals"] == [
        {"query_id": "1", "clicks": 3}, {"query_id": "2", "clicks": 1},
    ]  # fmt: skip
    assert summary["mean_clicks"] == [{"clicks": 2}]  # (3 + 1) / 2
    assert summary["notes"]["passages_without_clicks"][0]["amount"] == 1
    measures = {row["measure"] for row in summary["means"] if row["annotator"] == "popular"}
    assert measures == {"P@2", "R@2", "nDCG@2", "Success@2"}  # AP and RR need a threshold
    assert "containment" not in {row["annotator"] for row in summary["means"]}
    assert (out / "exported/qrels/popular.tsv").is_file() or (
        out / "exported/qrels/popular.txt"
    ).is_file()
    # a later evaluation without it takes its table away
    assert run([*arguments, "--annotators", "containment", "--no-end-to-end", "--overwrite"]) == 0
    assert not (out / "click_totals.parquet").exists()


def test_its_figures_over_all_queries_are_the_same_in_shards(register, arguments, tmp_path):
    clicks = ["--click-log", str(tmp_path / "clicks.jsonl"), "--annotators", "popular"]
    assert run([*arguments, *clicks, "--shard-pairs", "1"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(list((tmp_path / "out" / "shards").glob(f"*/{MEAN.name}/*"))) == 2
    assert summary["mean_clicks"] == [{"clicks": 2}]
    assert pl.read_parquet(tmp_path / "out" / "mean_clicks.parquet").rows() == [(2,)]


def test_a_conclusion_with_other_columns_is_a_fault():
    wrong = replace(MEAN, conclusion=Conclusion(TOTALS.schema, lambda totals, *others: totals))
    with pytest.raises(ValueError) as caught:
        wrong.concluded(tables.empty(TOTALS.schema), Settings.of(), None)
    as_expected(str(caught.value))


@pytest.mark.parametrize(
    "options",
    [
        ["--annotators", "popular"],
        ["--annotators", "erag", "--least-clicks", "3"],
        ["--annotators", "popular", "--least-clicks", "0"],
        ["--annotators", "popular", "--task", "claims"],
        ["--annotators", "unheard-of"],
    ],
)
def test_it_is_checked_as_every_annotator_is(register, arguments, capsys, options):
    assert run([*arguments, *options]) == 2
    as_expected(capsys.readouterr().err)


def test_without_its_line_it_is_unknown(arguments, capsys):
    assert run([*arguments, "--annotators", "popular"]) == 2
    assert "unknown annotator 'popular'" in capsys.readouterr().err


def test_names_that_clash_are_refused(register, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Clashing:
        """Options named like another's.

        Attributes:
            k: a cutoff.
        """

        k: int = 1

    monkeypatch.setitem(registry.ANNOTATORS, "popular", replace(POPULAR, options=Clashing))
    with pytest.raises(ValueError) as caught:
        Settings.of()
    as_expected(str(caught.value))
