"""Answers that a metric cannot score: refused where all of a query are, counted where some are."""

import json

import polars as pl
import pytest

from engine.evaluation.evaluate import check, evaluate
from engine.evaluation.settings import Settings
from engine.inputs.shards import InMemoryInputs
from engine.scoring.metrics import METRICS
from tests.commands import evaluate as run_command
from tests.conftest import ScriptedReader
from tests.expected import as_expected, refused
from tests.tables import QUERIES, inputs, say_last

LABELS_ALONE = {"annotators": ("containment",), "end_to_end": False}


def answered(*answers):
    """The queries, with other answers."""
    return inputs(queries=QUERIES.with_columns(pl.Series("answers", answers)))


@pytest.mark.parametrize(
    ("metric", "answers"),
    [
        # The third query decides, too: em-char cannot score its answer, though em can score neither.
        ("em", [["The"], ["a", "!"], ["《!》"]]),
        ("match", [["an"], ["Bo"], ["the"]]),
        ("f1", [["."], ["!"], ["Cy"]]),
        ("em-char", [["《!》"], ["!?"], ["서울"]]),
        ("rouge-l", [["…"], ["서울"], ["!"]]),
        ("rouge-l-kilt", [["."], ["Bo"], [".."]]),
    ],
)
def test_all_answers_that_cannot_be_scored_are_named_with_the_metrics_that_can(metric, answers):
    given = InMemoryInputs(answered(*answers))
    for whole_lists in (False, True):  # labels by the reader are scored by it, too
        with refused("metric.answers", text=False) as caught:
            check(given, Settings.of(k=3, metric=metric, end_to_end=whole_lists))
    can = METRICS[metric].can_score
    lost = [f"'q{n}' ({own[0]!r})" for n, own in enumerate(answers, 1) if not any(map(can, own))]
    assert f"{len(lost)} queries: {', '.join(lost[:-1])} and {lost[-1]}" in caught.value.problem
    assert METRICS[metric].needs in caught.value.remedy
    named = caught.value.remedy.rpartition(": ")[2].split(", ")
    for name, other in METRICS.items():
        assert (name in named) == all(any(map(other.can_score, own)) for own in answers)
        if name in named:
            check(given, Settings.of(k=3, metric=name))


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        # Containment looks for the word "the", and nothing is scored by the metric.
        (["The"], LABELS_ALONE),
        (["The", "Bo"], {}),
        (["The", "Bo"], {"metric": "em-char"}),
        (["\u200b"], LABELS_ALONE),
        (["The!"], {**LABELS_ALONE, "annotators": ("containment-substring",)}),
    ],
)
def test_answers_that_are_scored_by_nothing_are_counted(tmp_path, answers, more):
    asked = Settings.of(k=3, resamples=0, measures="P@3", **more)
    given = answered(["Ann"], answers, ["Cy"])
    result = evaluate(given, asked, store=tmp_path, executor=ScriptedReader(say_last))
    as_expected([n.text for n in result.notes if n.is_shown and " has an" in n.text])


def test_the_command_names_file_line_and_option(files, capsys):
    lines = files["queries"].read_text().splitlines()
    broken = json.loads(lines[1]) | {"output": [{"answer": "!"}]}
    files["queries"].write_text(lines[0] + "\n" + json.dumps(broken) + "\n")
    assert run_command(files, "--metric", "rouge-l") != 0
    as_expected(capsys.readouterr().err.splitlines()[-1])
