"""Answers that the downstream metric cannot score: refused where a query has no other, else counted."""

import json

import polars as pl
import pytest

from engine.evaluation.evaluate import check, evaluate, refuse_answers
from engine.evaluation.settings import Settings
from engine.inputs.shards import InMemoryInputs
from engine.messages.errors import InputError
from engine.scoring.metrics import METRICS
from tests.commands import evaluate as run_command
from tests.conftest import ScriptedReader
from tests.tables import QUERIES, amount, inputs, say_last


def answered(*answers):
    """The queries, with other answers for the second."""
    lists = [["Ann"], list(answers), ["Cy"]]
    return inputs(queries=QUERIES.with_columns(pl.Series("answers", lists)))


def evaluated(tmp_path, given, **settings):
    settings = Settings.of(k=3, resamples=0, measures="P@3", **settings)
    return evaluate(given, settings, store=tmp_path, executor=ScriptedReader(say_last))


@pytest.mark.parametrize(
    ("answer", "refusing"),
    [
        ("The", {"em", "match", "f1"}),
        ("《!》", {"em-char", "f1-char", "rouge-l"}),
        ("!?", {"em", "match", "f1", "em-char", "f1-char", "rouge-l"}),
        ("…", {"rouge-l"}),
        (".", {"em", "match", "f1", "em-char", "f1-char", "rouge-l", "rouge-l-kilt"}),
        ("서울", set()),
    ],
)
def test_each_metric_refuses_what_it_cannot_score(answer, refusing):
    given = answered(answer)
    for name, metric in METRICS.items():
        settings = Settings.of(k=3, metric=name)
        if name not in refusing:
            check(InMemoryInputs(given), settings)
            continue
        with pytest.raises(InputError) as caught:
            check(InMemoryInputs(given), settings)
        said = f"the metric {name} cannot score the answers of query 'q2'"
        assert str(caught.value).startswith(said)
        assert metric.needs in caught.value.remedy


@pytest.mark.parametrize(
    ("metric", "answers", "able"),
    [
        # The third query decides, too: em-char cannot score its answer, though em can score neither.
        ("em", [["The"], ["a", "!"], ["《!》"]], "accuracy, rouge-l-kilt"),
        ("match", [["an"], ["Bo"], ["the"]], "accuracy, em-char, f1-char, rouge-l, rouge-l-kilt"),
        ("f1", [["."], ["!"], ["Cy"]], "accuracy"),
    ],
)
def test_all_answers_that_cannot_be_scored_are_named_with_the_metrics_that_can(
    metric, answers, able
):
    given = inputs(queries=QUERIES.with_columns(pl.Series("answers", answers)))
    with pytest.raises(InputError) as caught:
        check(InMemoryInputs(given), Settings.of(k=3, metric=metric))
    can = METRICS[metric].can_score
    lost = [f"'q{n}' ({own[0]!r})" for n, own in enumerate(answers, 1) if not any(map(can, own))]
    said = f"{len(lost)} queries: {', '.join(lost[:-1])} and {lost[-1]}"
    assert caught.value.problem == f"the metric {metric} cannot score the answers of {said}"
    assert caught.value.remedy.endswith(f"or use a `metric` that can: {able}")
    for name in able.split(", "):
        check(InMemoryInputs(given), Settings.of(k=3, metric=name))


def test_of_many_answers_some_are_shown():
    names = [f"q{n}" for n in range(13)]
    many = pl.DataFrame({"query_id": names, "answers": [["the"]] * 13})
    with pytest.raises(InputError, match=r"of 13 queries: 'q0' .*'q9' \('the'\) and 3 more; "):
        refuse_answers(METRICS["em"], many, None)


def test_labels_by_the_reader_need_answers_that_the_metric_can_score(tmp_path):
    with pytest.raises(InputError, match="the metric em cannot score"):
        check(InMemoryInputs(answered("The")), Settings.of(k=3, end_to_end=False))
    # Containment looks for the word "the", and nothing is scored by the metric.
    labels_only = {"annotators": ("containment",), "end_to_end": False}
    result = evaluated(tmp_path, answered("The"), **labels_only)
    assert amount(result, "unscorable_answers") == 0


def test_an_answer_beside_others_is_counted(tmp_path):
    result = evaluated(tmp_path, answered("The", "Bo"))
    (note,) = [note for note in result.notes if note.code == "unscorable_answers"]
    assert note.is_shown
    assert note.text == "1 query has an answer that em cannot score, and that no output matches"
    assert amount(evaluated(tmp_path, answered("The", "Bo"), metric="em-char"), note.code) == 0


def test_answers_that_leave_nothing_to_find_are_counted(tmp_path):
    for name, answer in (("containment", "\u200b"), ("containment-substring", "The!")):
        result = evaluated(tmp_path, answered(answer), annotators=(name,), end_to_end=False)
        (text,) = [note.text for note in result.notes if note.about == (name,) and note.is_shown]
        assert text == f"1 query has answers of which {name} has nothing to look for"


def test_the_command_names_file_line_and_option(files, capsys):
    lines = files["queries"].read_text().splitlines()
    broken = json.loads(lines[1]) | {"output": [{"answer": "!"}]}
    files["queries"].write_text(lines[0] + "\n" + json.dumps(broken) + "\n")
    assert run_command(files, "--metric", "rouge-l") != 0
    assert (
        f"{files['queries']}:2: the metric rouge-l cannot score the answers of query '2' ('!'); "
        "write answers with a letter or a digit, or use a --metric that can: accuracy, rouge-l-kilt"
        in capsys.readouterr().err
    )
