"""What cannot work, answers that cannot be scored included, is refused before anything is read; in shards as in the whole."""

import json
from dataclasses import replace
from functools import partial

import polars as pl
import pytest

from engine.evaluation.evaluate import check, evaluate, refuse_answers
from engine.evaluation.settings import Settings
from engine.inputs.shards import InMemoryInputs
from engine.labels.annotator import (
    READER,
    Annotator,
    Labelled,
    Scale,
    ask_reader,
    complete,
    labels_of,
)
from engine.scoring.metrics import METRICS
from engine.tables import END_TO_END
from tests.commands import evaluate as run_command
from tests.conftest import ScriptedReader
from tests.evaluation.in_shards import (
    GRADES,
    Scripted,
    edited,
    in_shards,
    made,
    scripted,
    settings,
    the_whole,
)
from tests.expected import as_expected, refused
from tests.tables import QUERIES, inputs, say_last

__all__ = ["scripted"]  # a fixture


NO_PROVENANCE = edited("queries", provenance=pl.lit([], pl.List(pl.String)))
# Answers that no output can match, of two queries in the middle of the file.
UNSCORABLE = pl.when(pl.col("query_id").is_in(["q21", "q13"])).then(pl.lit(["the"]))
UNSCORABLE = edited("queries", answers=UNSCORABLE.otherwise("answers"))
BOTH = {"annotators": ("erag", "qrels")}


@pytest.mark.parametrize(
    ("change", "more", "code"),
    [
        (NO_PROVENANCE, {"annotators": ("erag", "provenance")}, "queries.provenance"),
        (UNSCORABLE, {"metric": "f1"}, "metric.answers"),
        (replace, {"missing": "error"}, "runs.unlisted"),
        (partial(replace, tables={}), BOTH, "settings.table"),
        (edited("qrels", label=pl.lit(-1.0)), BOTH, "qrels.unjudged"),
        (edited("qrels", label=GRADES), BOTH, "measure.threshold"),
        (lambda own: replace(own, run=own.run[:1]), {"measures": "Judged@2"}, "measure.trivial"),
    ],
)
def test_what_cannot_work_is_refused_before_reading(tmp_path, change, more, code):
    files = change(made(tmp_path))
    asked = settings(**{"measures": "P@3 nDCG@6", **more})
    with refused(code) as of_the_whole:
        the_whole(tmp_path, asked, files)
    with refused(code) as of_shards:
        in_shards(tmp_path, asked, 40, files)
    assert len(list((tmp_path / "inputs").rglob("shard-*.zip"))) > 2
    assert str(of_shards.value) == str(of_the_whole.value)
    assert not Scripted.asked


def rare(material):
    """Labels by how many of all passages the corpus has."""
    labels = labels_of("rare", material.pairs, pl.lit(material.corpus.height / 60))
    return Labelled(labels, complete(labels))


@pytest.mark.parametrize("role", [None, READER])
@pytest.mark.parametrize("more", [{}, {"until": "verdict"}], ids=str)
def test_statistics_of_the_corpus_are_those_of_all_queries_or_refused(tmp_path, role, more):
    annotator = Annotator(
        name="rare",
        label=rare,
        asks=lambda settings: ask_reader(settings.reader) if role else None,
        role=role,
        scale=lambda settings: Scale(graded="shares"),
    )
    own = {"measures": "P(rel=0.5)@3", END_TO_END: bool(more)}
    asked = settings(annotators=("containment", annotator), **own, **more)
    for how in (in_shards, the_whole)[: 1 + bool(more)]:
        with refused("annotator.corpus"):
            how(tmp_path, asked)
        assert not Scripted.asked
    if not more:
        whole, one = the_whole(tmp_path, asked), in_shards(tmp_path / "one", asked, 10_000)
        assert whole.means.rows() == one.means.rows()


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


def test_of_many_answers_some_are_shown():
    names = [f"q{n}" for n in range(13)]
    many = pl.DataFrame({"query_id": names, "answers": [["the"]] * 13})
    with refused("metric.answers"):
        refuse_answers(METRICS["em"], many, None)


ALONE = {"end_to_end": False, "annotators": ("containment",)}


@pytest.mark.parametrize(
    ("answers", "more", "is_told"),
    [
        # Containment looks for the word "the", and nothing is scored by the metric.
        (["The"], ALONE, False),
        (["The", "Bo"], {}, True),
        (["The", "Bo"], {"metric": "em-char"}, False),
        (["\u200b"], ALONE, True),
        (["The!"], {**ALONE, "annotators": ("containment-substring",)}, True),
    ],
)
def test_answers_that_are_scored_by_nothing_are_counted(tmp_path, answers, more, is_told):
    asked = Settings.of(k=3, resamples=0, measures="P@3", **more)
    given = answered(["Ann"], answers, ["Cy"])
    result = evaluate(given, asked, store=tmp_path, executor=ScriptedReader(say_last))
    texts = [note.text for note in result.notes if note.is_shown and " has an" in note.text]
    assert len(texts) == is_told
    as_expected(texts)


def test_the_command_names_file_line_and_option(files, capsys):
    lines = files["queries"].read_text().splitlines()
    broken = json.loads(lines[1]) | {"output": [{"answer": "!"}]}
    files["queries"].write_text(lines[0] + "\n" + json.dumps(broken) + "\n")
    assert run_command(files, "--metric", "rouge-l") != 0
    as_expected(capsys.readouterr().err.splitlines()[-1])
