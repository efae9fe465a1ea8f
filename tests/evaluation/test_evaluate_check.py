"""What cannot work, answers that cannot be scored included, is refused before anything is read; in shards as in the whole."""

import json
from dataclasses import replace

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
from engine.messages.errors import InputError
from engine.scoring.metrics import METRICS
from tests.commands import evaluate as run_command
from tests.conftest import ScriptedReader
from tests.evaluation.in_shards import (
    Scripted,
    compared,
    in_shards,
    made,
    scripted,
    settings,
    the_whole,
)
from tests.tables import QUERIES, amount, inputs, say_last

__all__ = ["scripted"]  # a fixture


def edited(name, **columns):
    """The files with other columns in one of them."""

    def edit(files):
        path = getattr(files, name, None) or files.tables[name].path
        pl.read_parquet(path).with_columns(**columns).write_parquet(path)
        return files

    return edit


def titles(files):
    """Gold articles that have titles alone, and a corpus that has none."""
    queries = files.queries.with_suffix(".jsonl")
    with queries.open("w") as stream:
        for name, query in pl.read_parquet(files.queries, columns=["query_id", "query"]).rows():
            output = [{"answer": "a1", "provenance": [{"title": f"no {name}"}]}]
            stream.write(json.dumps({"id": name, "input": query, "output": output}) + "\n")
    return replace(edited("corpus", title=pl.lit(""))(files), queries=queries)


NO_PROVENANCE = edited("queries", provenance=pl.lit([], pl.List(pl.String)))
# Answers that no output can match, of two queries in the middle of the file.
UNSCORABLE = pl.when(pl.col("query_id").is_in(["q21", "q13"])).then(pl.lit(["the"]))
# Judgments of two queries: one between whole numbers, the other above 1.
GRADES = pl.when(query_id="q1").then(0.5).when(query_id="q2").then(2.0).otherwise(0.0)
BOTH = {"annotators": ("erag", "qrels")}


@pytest.mark.parametrize(
    ("change", "more", "problem"),
    [
        (NO_PROVENANCE, {"annotators": ("erag", "provenance")}, "no query has provenance"),
        (titles, {"annotators": ("erag", "provenance")}, "'q0' have a title and no id"),
        (
            edited("queries", answers=UNSCORABLE.otherwise("answers")),
            {"metric": "f1"},
            "cannot score the answers of 2 queries: 'q13' ('the')",
        ),
        (lambda files: files, {"missing": "error"}, "'one' lists nothing for"),
        (lambda files: replace(files, tables={}), BOTH, "the annotator qrels without `qrels`"),
        (edited("qrels", label=pl.lit(-1.0)), BOTH, "no query is judged by qrels"),
        (edited("qrels", label=GRADES), BOTH, "P@3 is not defined on the labels of qrels"),
        (
            lambda files: replace(files, run=files.run[:1]),
            {"measures": "Judged@2 P@3"},
            "Judged is 1 by definition",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_reading(tmp_path, change, more, problem):
    files = change(made(tmp_path))
    asked = settings(**{"annotators": ("erag",), "measures": "P@3 nDCG@6", **more})
    with pytest.raises(InputError) as of_the_whole:
        the_whole(tmp_path, asked, files)
    with pytest.raises(InputError) as of_shards:
        in_shards(tmp_path, asked, 40, files)
    assert len(list((tmp_path / "inputs").rglob("shard-*.zip"))) > 2
    assert problem in str(of_shards.value)
    assert str(of_shards.value) == str(of_the_whole.value)
    assert not Scripted.asked


def test_labels_of_a_file_are_looked_at_in_all_shards_together(tmp_path):
    """Between whole numbers in one shard, above 1 in another: no measure without a threshold is left."""
    files = edited("qrels", label=GRADES)(made(tmp_path))
    assert pl.read_parquet(files.tables["qrels"].path)["label"].max() > 1
    asked = settings(annotators=("qrels",), measures="P(rel=1)@3 P@3 nDCG@6", end_to_end=False)
    _, parts = compared(tmp_path, [asked], 1, files)
    assert parts[0][0].undefined.height


def rare(column, *, role=None):
    """An annotator by how rare a passage's text is among all of ``corpus``, or how short it is by itself."""
    word = pl.col("word")
    share = 1 / (pl.len().over("word") if column == "corpus" else word.str.len_chars())

    def label(material):
        words = pl.col("text").str.split(" ").list.last()
        texts = getattr(material, column).select("doc_id", word=words).with_columns(value=share)
        pairs = material.pairs.join(texts, on="doc_id", maintain_order="left")
        labels = labels_of("rare", pairs, pl.col("value"))
        return Labelled(labels, complete(labels))

    asks = (lambda settings: ask_reader(settings.reader)) if role else (lambda settings: None)
    scale = Scale(graded="shares")
    return Annotator(name="rare", label=label, asks=asks, role=role, scale=lambda settings: scale)


@pytest.mark.parametrize("role", [None, READER])
@pytest.mark.parametrize("more", [{}, {"until": "verdict"}], ids=str)
def test_statistics_of_the_corpus_are_those_of_all_queries_or_refused(tmp_path, role, more):
    own = {"measures": "P(rel=0.5)@3", "end_to_end": bool(more)}
    asked = settings(annotators=("containment", rare("corpus", role=role)), **own, **more)
    for how in (in_shards, the_whole):
        if more or how is in_shards:
            with pytest.raises(
                InputError, match=r"^the annotator rare looks at `corpus`, .*; count"
            ):
                how(tmp_path, asked)
            assert not Scripted.asked
        else:
            whole, one = how(tmp_path, asked), in_shards(tmp_path / "one", asked, 10_000)
            assert whole.means.rows() == one.means.rows()


def test_labels_of_single_passages_are_the_same_in_shards(tmp_path):
    own = {"measures": "P(rel=0.5)@3", "end_to_end": False}
    compared(tmp_path, [settings(annotators=("containment", rare("passages")), **own)])


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
