"""What all outputs together say of a reader and a metric."""

from types import SimpleNamespace

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.reading.outputs import count_outputs, merge_outputs
from engine.report.summary import summarize
from engine.scoring.metrics import get_metric
from tests.conftest import ScriptedReader
from tests.tables import inputs, make_run

NONE = {"empty_outputs": 0, "alike_outputs": 0, "replaced_characters": 0, "wordy_outputs": 0, "marked_outputs": 0}  # fmt: skip
# Where the number of the query stands in its prompt.
BEFORE = -len("\nAnswer:") - 1
ANSWER = "the “Lima–Quito” road"


def evaluated(say, place, **options):
    """Of four queries with one passage each, every read once alone, which is the list too."""
    ids = [f"{i}" for i in range(4)]
    rows = [(i, f"query {i}", [ANSWER], []) for i in ids]
    given = inputs(
        queries=pl.DataFrame(rows, schema=tables.QUERIES, orient="row"),
        runs=make_run([(i, "d1", 1) for i in ids]),
    )
    settings = Settings.of(k=1, annotators=("erag",), resamples=0, measures="P@1", **options)
    return evaluate(given, settings, store=place, executor=ScriptedReader(say))


@pytest.mark.parametrize(
    ("say", "noted"),
    [
        (lambda text: text[-len("\nAnswer:") - 1], {}),
        (lambda text: "", {"empty_outputs": 4, "alike_outputs": 4}),
        (lambda text: "no", {"alike_outputs": 4}),
        (lambda text: f"{text[BEFORE]}\ud83d", {"replaced_characters": 4}),
        (lambda text: f"{text[BEFORE]}: {ANSWER}.", {"wordy_outputs": 4}),
        (lambda text: 'THE "Lima-Quito" road', {"alike_outputs": 4, "marked_outputs": 4}),
    ],
)
def test_outputs_are_counted_and_noted(say, noted, tmp_path):
    result = evaluated(say, tmp_path)
    found = {note.code: note.amount for note in result.notes if note.code in NONE}
    assert found == NONE | noted
    first = summarize(result, {})["outputs"][0]
    assert first["reads"] == max(result.outputs.commonest.values())


def test_parts_make_the_whole(tmp_path):
    result = evaluated(lambda text: "no", tmp_path)
    whole = merge_outputs([result.outputs, result.outputs])
    assert (whole.reads, whole.commonest) == (8, {"no": 8})
    assert merge_outputs([result.outputs]) == result.outputs


@pytest.mark.parametrize(
    ("downstream", "scored"), [(None, 1), (tables.empty(tables.DOWNSTREAM), 0)]
)
def test_passages_are_counted_where_no_lists_are_read_and_not_where_none_was_drawn(
    downstream, scored
):
    reads = tables.empty({**tables.READS, "failure": pl.String()})
    row = {"read_key": "k", "query_id": "q", "doc_ids": ["d"], "output": "Lima", "output_tokens": 1}
    reads = pl.concat([reads, pl.DataFrame([row])], how="diagonal_relaxed")
    spec = SimpleNamespace(choices=(), scores="", most_new_tokens=8)
    queries = pl.DataFrame({"query_id": ["q"], "answers": [["Lima"]]})
    counts = count_outputs({"reader": (spec, reads)}, downstream, queries, get_metric("em"))
    assert (counts.reads, counts.scored) == (1, scored)
