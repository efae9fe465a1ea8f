"""Evaluations whose reads end early give the labels, scores and statistics of those whose reads do not."""

import json
import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.errors import InputError
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.read import requests_for, specify_jobs
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.labels.annotator import READER, Annotator, Ask
from engine.reading.function import ReaderFunction
from engine.report.summary import summarize
from engine.scoring.own import metric_from_function
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries
from tests.conftest import ScriptedReader, make_run
from tests.tables import inputs, say_last

OWN = metric_from_function(lambda output, references: 1.0, "mine")
ERAG = {"annotators": ("erag", "containment"), "resamples": 100, "actors": 0, "dtype": "float32"}


def assert_same_but_for_outputs(ended, full):
    """Everything but the outputs of reads that ended early, which begin those in full."""
    for name in ("labels", "query_scores", "downstream", "means", "end_to_end", "undefined"):
        assert_frame_equal(getattr(ended, name), getattr(full, name), check_exact=True)
    for name in ("correlations", "comparisons", "systems", "run_pairs"):
        assert_frame_equal(
            getattr(ended.statistics, name), getattr(full.statistics, name), check_exact=True
        )
    for name in ("reads", "traces"):
        cut, whole = getattr(ended, name), getattr(full, name)
        assert_frame_equal(
            cut.drop("output", "output_tokens", "decided", strict=False),
            whole.drop("output", "output_tokens", "decided", strict=False),
        )
        assert not whole["decided"].any()
        for early, before, after in zip(
            cut["decided"], cut["output"], whole["output"], strict=True
        ):
            assert after is None or after.startswith(before) if early else before == after
        if name == "reads":
            assert (cut["output_tokens"] <= whole["output_tokens"]).all()


def both(tmp_path, given, **settings):
    ended = evaluate(given, Settings.of(decide=True, **settings), store=tmp_path / "ended")
    full = evaluate(given, Settings.of(decide=False, **settings), store=tmp_path / "full")
    assert_same_but_for_outputs(ended, full)
    return ended, full


def made(outputs=None, queries=12, passages=30, listed=5):
    """Queries in the words of the tiny T5. Each is answered by an output for one of its passages, or by none.

    Args:
        outputs: by query and passage, of the reader.
    """
    corpus = pl.DataFrame(
        [(f"d{d}", f"w{d % 7}", f"w{d} w{3 * d % 97} w{d % 11}", f"A{d}") for d in range(passages)],
        schema=tables.CORPUS,
        orient="row",
    )
    run = make_run(
        [
            (f"q{q}", f"d{(5 * q + rank * rank) % passages}", rank)
            for q in range(queries)
            for rank in range(1, listed + 1)
        ]
    )
    answers = {f"q{q}": ["w1 w2"] for q in range(queries)}
    for (query_id, _), output in (outputs or {}).items():
        if int(query_id[1:]) % 3:
            answers[query_id] = ["w0", output]
    asked = pl.DataFrame(
        # The last two ask the same, and so share their reads; their answers differ.
        [(q, f"w{min(int(q[1:]), queries - 2)} w50", a, []) for q, a in answers.items()],
        schema=tables.QUERIES,
        orient="row",
    )
    return EvaluationInputs(queries=asked, corpus=corpus, runs=run)


@pytest.mark.parametrize("augmentation", ["fid", "in-prompt"])
@pytest.mark.parametrize("metric", ["em", "accuracy"])
def test_encoder_decoder_readers_give_the_same_labels(tiny_t5, tmp_path, augmentation, metric):
    settings = {
        **ERAG, "reader": str(tiny_t5), "augmentation": augmentation, "metric": metric, "k": 5,
        "measures": "P@5 RR@5",
    }  # fmt: skip
    settings |= {"annotators": ("erag",)}
    first = evaluate(made(), Settings.of(decide=False, **settings), store=tmp_path / "first")
    single = first.reads.filter(pl.col("doc_ids").list.len() == 1, pl.col("output") != "")
    outputs = {(q, docs[0]): o for q, docs, o in single["query_id", "doc_ids", "output"].rows()}
    ended, full = both(tmp_path, made(outputs), **settings)
    assert 0 < ended.labels["label"].mean() < 1
    reads = ended.reads.filter(pl.col("doc_ids").list.len() == 1)
    assert reads["decided"].mean() > 0.2
    assert not reads.filter(pl.col("output").is_in(["w1 w2", *outputs.values()]))["decided"].all()
    lists = ended.reads.filter(pl.col("doc_ids").list.len() > 1)
    assert lists.height == 12
    assert not lists["decided"].any()
    assert reads["output_tokens"].sum() < 0.7 * full.reads["output_tokens"].sum()
    costs = ended.readings["reader"].costs
    assert costs.decided == reads.filter("decided").unique("read_key").height
    assert summarize(ended, {})["reading"]["decided"] == costs.decided


@pytest.mark.slow
def test_the_bundled_reader_gives_the_same_labels(bundled_corpus, bundled_spec, tmp_path):
    given = demo(bundled_corpus, queries=10)
    ended, full = both(tmp_path, given, **ERAG, k=4, end_to_end_k=2, measures="P@4 nDCG@4")
    assert 0 < ended.labels.filter(pl.col("annotator") == "erag")["label"].mean() < 1
    assert ended.readings["reader"].costs.decided > 10
    assert (
        ended.readings["reader"].costs.output_tokens
        < 0.7 * full.readings["reader"].costs.output_tokens
    )


def demo(corpus, queries, listed=4):
    """Questions of the demo with passages of the articles that answer them."""
    asked = read_queries(questions("short-answer")).head(queries)
    rows = []
    for query_id, answers, gold in asked["query_id", "answers", "provenance"].rows():
        of_gold = corpus.filter(pl.col("article_id").is_in(gold))
        held = of_gold.filter(pl.col("text").str.contains(answers[0], literal=True))
        listing = pl.concat([held.head(1), of_gold]).unique("doc_id", maintain_order=True)
        rows += [(query_id, d, r) for r, d in enumerate(listing["doc_id"].head(listed), start=1)]
    run = make_run(rows)
    return EvaluationInputs(
        queries=asked, corpus=corpus.filter(pl.col("doc_id").is_in(run["doc_id"])), runs=run
    )


def tiny(tiny_t5, tmp_path, **settings):
    values = {
        **ERAG, "reader": str(tiny_t5), "k": 5, "annotators": ("erag",), "measures": "P@1",
        "resamples": 0,
    }  # fmt: skip
    return evaluate(made(), Settings.of(**(values | settings)), store=tmp_path / "store")


def test_a_read_that_is_also_a_whole_list_is_read_in_full(tiny_t5, tmp_path):
    found = tiny(tiny_t5, tmp_path, end_to_end_k=1)
    first = made().runs.filter(pl.col("rank") == 1).select("query_id", pl.concat_list("doc_id"))
    whole = found.reads.join(
        first.rename({"doc_id": "doc_ids"}), on=["query_id", "doc_ids"], how="semi"
    )
    assert whole.height == 2 * 12  # as a single passage, and as a list
    assert not whole["decided"].any()
    assert found.reads["decided"].any()


def test_another_metric_reads_again_what_ended_early_and_nothing_else(tiny_t5, tmp_path):
    first = tiny(tiny_t5, tmp_path)
    costs = first.readings["reader"].costs
    assert costs.decided > 0
    again = tiny(tiny_t5, tmp_path).readings["reader"].costs
    assert (again.done, again.decided) == (0, 0)
    other = tiny(tiny_t5, tmp_path, metric="f1")
    assert other.readings["reader"].costs.done == costs.decided
    assert not other.reads["decided"].any()
    # and what is there in full now serves the first metric, too
    third = tiny(tiny_t5, tmp_path)
    assert third.readings["reader"].costs.done == 0
    assert not third.reads["decided"].any()
    assert_frame_equal(third.labels, first.labels)


def test_conditions_of_a_study_share_reads_that_ended_early(tiny_t5, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_t5, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"note": "another digest"}))
    sweep = Sweep(readers=(str(tiny_t5), str(other)), k_sweep=(1, 5))

    def done(decide):
        settings = Settings.of(**(ERAG | {
            "reader": str(tiny_t5), "k": 5, "annotators": ("erag",), "measures": "P@1",
            "resamples": 0, "decide": decide,
        }))  # fmt: skip
        return study(made(), vary(settings, sweep), store=tmp_path / f"s{decide}")

    ended, full = done(None), done(False)
    for condition, evaluation in ended.evaluations.items():
        assert_same_but_for_outputs(evaluation, full.evaluations[condition])
        # Lists of k = 1 are read whole, and so are the passages that they are of.
        assert evaluation.reads["decided"].any() == (condition.k == 5)


def own(**ask):
    """An annotator of a user's that asks the reader, as eRAG does."""
    settings = Settings.of()
    asked = {
        "role": READER, "model": settings.reader.reader, "task": settings.reader.task,
        "prompt": None, "augmentation": settings.reader.augmentation,
        "value": lambda reads, queries: reads["output"].str.len_chars(),
    }  # fmt: skip
    return Annotator(name="own", label=lambda material: None, asks=lambda _: Ask(**asked, **ask))


def resting_on_erag():
    return Annotator(name="resting", label=lambda material: None, rests_on=lambda _: ("erag",))


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({}, "em"),
        ({"metric": "em-char"}, "em-char"),
        ({"metric": "accuracy"}, "accuracy"),
        ({"decide": True}, "em"),
        ({"annotators": ("erag", "judge", "utility", "dual")}, "em"),
        ({"annotators": ("utility",)}, "em"),
        ({"annotators": ("erag", own(metric="em"))}, "em"),
        ({"decide": False}, ""),
        ({"metric": "match"}, ""),
        ({"metric": "f1"}, ""),
        ({"metric": "rouge-l"}, ""),
        ({"certify": 3}, ""),
        ({"engine": "vllm"}, ""),
        ({"annotators": ("containment", "judge")}, ""),
        ({"annotators": ("erag", own())}, ""),
        ({"annotators": ("erag", own(metric="accuracy"))}, ""),
        ({"annotators": ("erag", resting_on_erag())}, ""),
    ],
)
def test_where_reads_end_early(settings, metric):
    made = Settings.of(**settings)
    assert made.decides(READER) == metric
    pairs = pl.DataFrame({"query_id": ["q"], "doc_id": ["d"]})
    lists = pl.DataFrame({"query_id": ["q"], "doc_ids": [["d", "e"]]})
    for request in requests_for(pairs, lists, made):
        assert request.metric == (metric if request.ask.role == READER else "")
        expected = [False, True] if request.lists.height == 2 else request.lists["whole"].to_list()
        assert request.lists["whole"].to_list() == expected


def test_another_reader_of_single_passages_ends_early_and_whole_lists_do_not():
    made = Settings.of(erag_reader="other")
    pairs = pl.DataFrame({"query_id": ["q"], "doc_id": ["d"]})
    lists = pl.DataFrame({"query_id": ["q"], "doc_ids": [["d", "e"]]})
    single, whole = requests_for(pairs, lists, made)
    assert (single.ask.role.name, single.metric, whole.ask.role, whole.metric) == (
        "erag", "em", READER, "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "f1"}, "`decide` with the `metric` f1, which values parts of an output; use em, acc"),
        ({"metric": OWN}, "`decide` with the `metric` mine, which may value parts of an output; use em, acc"),
        ({"certify": 3}, "`decide` beside `certify`, which repeats reads in full; leave one"),
        ({"engine": "vllm"}, "`decide` with the `engine` vllm, which ends reads by itself; leave"),
        ({"annotators": ("containment",)}, "scored; use the annotator erag, or leave `decide` out"),
        ({"annotators": ("erag", own())}, "`decide` with annotators that ask the same reader for out"),
        ({"annotators": ("erag", resting_on_erag())}, "with resting, which may take outputs from er"),
    ],
)  # fmt: skip
def test_where_no_read_may_end_early_it_is_refused(settings, words):
    with pytest.raises(InputError, match=words.replace("(", "\\(")):
        Settings.of(decide=True, **settings)


def test_where_only_others_could_end_reads_early_it_is_refused(tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text('---\nchoices: [" yes", " no"]\n---\n{passages}Question: {query}\nAnswer:')
    own = ReaderFunction(lambda prompts: prompts, name="mine", version="1")
    for given, said in (
        ({"reader": "mine", "functions": (own,)}, "with single passages read by mine, a function"),
        ({"prompt": str(prompt)}, f"with the `prompt` {prompt}, by which the reader chooses its answer"),
        ({"k": 1}, "with `k` 1, where every passage is read as a whole list, too; use a larger `k`"),
    ):  # fmt: skip
        conditions = vary(Settings.of(**given), Sweep())
        asked = {name: one.but(decide=True) for name, one in conditions.items()}
        with pytest.raises(InputError) as refused:
            study(inputs(), asked, store=tmp_path)
        assert str(refused.value).startswith(f"`decide` {said}")
    assert vary(Settings.of(decide=True, k=1, end_to_end=False), Sweep())
    # One condition under which reads end early is enough.
    assert vary(Settings.of(decide=True, k=5, measures="P@1"), Sweep(k_sweep=(1, 5)))


def test_an_executor_reads_in_full(tmp_path):
    reader = ScriptedReader(say_last)
    settings = Settings.of(k=3, resamples=0, measures="P@3")
    found = evaluate(inputs(), settings, store=tmp_path, executor=reader)
    assert not found.reads["decided"].any()
    assert found.readings["reader"].spec.metric == ""
    with pytest.raises(InputError, match="`decide` with an executor of your own"):
        evaluate(inputs(), settings.but(decide=True), store=tmp_path, executor=reader)
    jobs = specify_jobs((), settings, reader)
    assert jobs == []


def test_a_tokenizer_whose_text_may_change_is_refused_where_early_ends_are_asked_for(
    tiny_t5, tmp_path
):
    """And else read in full: that costs time, and no label."""
    other = tmp_path / "model"
    shutil.copytree(tiny_t5, other)
    content = json.loads((other / "tokenizer.json").read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (other / "tokenizer.json").write_text(json.dumps(content))
    asked = Settings.of(**{**ERAG, "annotators": ("erag",), "reader": str(other), "k": 5})
    pairs = pl.DataFrame({"query_id": ["q"], "doc_id": ["d"]})
    requests = requests_for(
        pairs, pl.DataFrame({"query_id": ["q"], "doc_ids": [["d", "e"]]}), asked
    )
    assert specify_jobs(requests, asked)
    with pytest.raises(InputError, match="`decide` with a tokenizer whose text may change"):
        specify_jobs(requests, asked.but(decide=True))
    known = asked.but(reader=str(tiny_t5), decide=True)
    assert specify_jobs(
        requests_for(
            pairs, pairs.select("query_id", pl.concat_list("doc_id").alias("doc_ids")), known
        ),
        known,
    )
