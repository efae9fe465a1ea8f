"""``erag demo``: the whole flow on the bundled sample, offline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings, Sweep
from engine.evaluation.study import vary
from engine.inputs.files import InputFiles
from engine.inputs.shards import InMemoryInputs
from engine.labels.annotator import READER
from engine.machine.device import best_dtype
from engine.messages.errors import InputError
from engine.reading.costs import ReadingCosts
from engine.reading.local import Executor
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.protocol import Augmentation
from engine.report.results import outputs, refuse_another
from engine.retrieval.bm25 import build_index, search
from engine.sources.articles.read import read_source
from engine.sources.bundled import QuestionSet, questions, require_for_demo, wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.io.folders import require_output
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap, sole_writer
from engine.sources.io.parquet import read_parquet
from engine.sources.passages.cut import passages
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.tables import ARTICLE_ID, QUERY_ID
from jobs._command import ConfigFile, run_command, with_verbosity
from jobs._evaluating import CACHED, EvaluationRequest, evaluate_and_report
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._terminal import say, step

K = 10
# Ten passages drown a model of this size; of 2 to 5 passages, 3 give its score the most variance.
END_TO_END_K = 3
# As many of the short-answer questions as two cores with bf16 arithmetic read within the time of a demo;
# and smaller numbers for slow machines. With fewer, no figure would be significant.
SHORT_ANSWERS = 64
FEWER = (48, 32, 24, 16)
# Limit of the demo, and its share for the steps after the reads, in seconds.
MOST_SECONDS = 240
SECONDS_AFTER = 25
# Questions whose reads are timed to choose. Fewer are read in smaller batches than the job's, which are
# slower: by a quarter with 6, by a tenth with 12 (SmolLM2 in fp32, processor time).
TIMED = 12

_ANNOTATORS = ("erag", "containment", "provenance")
_USUAL = Settings.of(k=K, end_to_end_k=END_TO_END_K, annotators=_ANNOTATORS)
_WITHOUT_ANSWERS = _USUAL.but(annotators=("erag", "provenance"))
SETTINGS: dict[QuestionSet, Settings] = {
    "short-answer": _USUAL,
    "two-hop": _USUAL,
    "claims": _WITHOUT_ANSWERS.but(task="claims", metric="accuracy"),
    "dialogue": _WITHOUT_ANSWERS.but(
        task="dialogue",
        metric="f1",
        measures="nDCG@10 P@10 Success@10 AP(rel=0.2)@10 RR(rel=0.2)@10 R(rel=0.2)@10",
    ),
}
# The bundled Fusion-in-Decoder reader answers short questions, and loses little among ten passages.
FID = SETTINGS["short-answer"].but(reader=BUNDLED_FID, augmentation="fid", end_to_end_k=None)


@partial(with_verbosity, as_json=True)
def demo(
    *,
    task: QuestionSet = "short-answer",
    augmentation: Augmentation = "in-prompt",
    all: bool = False,
    out: Path = Path("demo-out"),
    actors: int | None = None,
    full: bool = False,
    overwrite: bool = False,
    config: ConfigFile = None,
) -> None:
    """Evaluate BM25 on 106 Wikipedia articles with a small language model; nothing is downloaded.

    Cuts the articles into passages, indexes them, retrieves passages for the questions, reads each
    passage alone and the best ones together with SmolLM2-135M, and shows how well the labels of
    eRAG, of answer containment and of provenance agree with the end-to-end score. A second run finds
    all LLM calls cached. With `--augmentation fid`, a T5 of 5 million parameters reads all ten
    passages with Fusion-in-Decoder instead.

    Args:
        task: Which set of questions.
        augmentation: How the reader gets its passages: in-prompt, by SmolLM2-135M, or fid, by the bundled
            Fusion-in-Decoder reader, which answers short questions only.
        all: Every short-answer question. By default the first 64, or fewer where LLM calls are slow.
        out: Directory for the corpus, the index, the run, the cached LLM calls and the results.
        actors: Processes that host the reader; 0 runs it in this one.
        full: Print all tables and notes.
        overwrite: Replace another evaluation in `out`.
    """
    start = time.perf_counter()
    require_for_demo()
    settings = settings_for(task, augmentation).but(actors=actors)
    require_output(out, directory=True)
    if config is not None:
        refuse_overlap(Inputs({"config": config}, {}), _outputs(out, settings))
    keeps(CACHED.format(out / "store"))
    some = task == "short-answer" and not all
    with sole_writer(out):
        if not overwrite:
            refuse_another(out, vary(settings, Sweep()))
        options = {"out": out, "full": full, "overwrite": overwrite}
        _retrieve_and_evaluate(questions(task), settings, options, start=start, some=some)
    say(f"{time.perf_counter() - start:.0f} s in all")


def settings_for(task: QuestionSet, augmentation: Augmentation) -> Settings:
    if augmentation == "in-prompt":
        return SETTINGS[task]
    if task != "short-answer":
        problem = f"--augmentation fid with --task {task}: the bundled reader answers short questions only"
        raise InputError(problem, "leave one of them out", "settings.fid")
    return FID


def _retrieve_and_evaluate(
    queries_path: Path, settings: Settings, options: Mapping[str, Any], *, start: float, some: bool
) -> None:
    """The demo's own work, which began at ``start``; limited to ``some`` of its questions."""
    out, store = options["out"], options["out"] / "store"
    step("cutting articles into passages")
    corpus = passages(read_source(wikipedia_dump()))
    corpus_path = out / "corpus.parquet"
    write_parquet(corpus, corpus_path)
    say(f"passages: {corpus.height} of 100 words, from {corpus[ARTICLE_ID].n_unique()} articles")

    queries = read_queries(queries_path)
    chosen_path = out / "queries.parquet"
    # A later run continues with the questions of the first, whose reads are in the store.
    chosen = read_parquet(chosen_path).height if some and chosen_path.exists() else None
    if some:
        queries = queries.head(chosen or SHORT_ANSWERS)
    step("indexing and retrieving")
    build_index(corpus, out / "index")
    run = search(out / "index", queries, k=K)
    run_path = out / "run.parquet"
    write_run(run, run_path)
    say(f"retrieved: {K} passages for each of {queries.height} questions with BM25")

    files = InputFiles(queries=queries_path, corpus=corpus_path, run=(run_path,))
    if some:
        # fp32 is the default on machines without a faster type: their speed of reads is measured.
        if chosen is None and best_dtype() == "float32":
            costs = time_reads(files, settings, store=store)
            share = share_within(costs, elapsed=time.perf_counter() - start)
            if share.questions < SHORT_ANSWERS:
                queries = queries.head(share.questions)
                say(_why_fewer(costs, share))
                write_run(run.filter(pl.col(QUERY_ID).is_in(queries[QUERY_ID].to_list())), run_path)
        write_parquet(queries, chosen_path)
        files = replace(files, queries=chosen_path)
    evaluate_and_report(EvaluationRequest(options, files, vary(settings, Sweep()), store))


def _outputs(out: Path, settings: Settings) -> Outputs:
    results = outputs(out, settings)
    inputs = [out / f"{name}.parquet" for name in ("corpus", "queries", "run")]
    return Outputs([*results.files, *inputs], [*results.folders, out / "index"])


def time_reads(
    files: InputFiles, settings: Settings, *, store: Path, executor: Executor | None = None
) -> ReadingCosts:
    """Time the first questions' reads, done by the reader as all other reads are.

    They enter the store, so they are not done again. If all are stored already, as after an
    interrupted run, further questions are read; with no read left to do, ``done`` of the costs is 0.
    """
    limit, settings = TIMED, settings.but(resamples=0)
    while True:
        inputs = InMemoryInputs.of_files(replace(files, limit=limit), k=K).inputs
        with shown_progress() as shown:
            evaluation = evaluate(
                inputs, settings, store=store, on_progress=shown, on_event=event, executor=executor
            )
        costs = evaluation.readings[READER.name].costs
        if costs.done or limit >= SHORT_ANSWERS:
            return costs
        limit = min(2 * limit, SHORT_ANSWERS)


class Share(NamedTuple):
    """The number of questions in the demo, and its expected end in seconds."""

    questions: int
    seconds: float


def share_within(costs: ReadingCosts, *, elapsed: float) -> Share:
    """The most short-answer questions with which the demo should end within ``MOST_SECONDS``.

    One of a few fixed numbers, so that a machine always gets the same number; the smallest number
    if none fits, and all if no read was left to time. ``elapsed``: seconds so far.
    """
    if not costs.done:
        return Share(SHORT_ANSWERS, elapsed + SECONDS_AFTER)
    start = max(0.0, costs.seconds - costs.reader_seconds / len(costs.workers))

    def share(count: int) -> Share:
        to_read = max(0, count * (K + 1) - costs.wanted)  # each passage alone, and the list
        return Share(count, elapsed + start + to_read / _rate(costs) + SECONDS_AFTER)

    shares = [share(count) for count in (SHORT_ANSWERS, *FEWER)]
    return next((share for share in shares if share.seconds <= MOST_SECONDS), shares[-1])


def _rate(costs: ReadingCosts) -> float:
    """Reads per second of all actors, since their start."""
    return costs.done * len(costs.workers) / max(costs.reader_seconds, 1e-9)


def _why_fewer(costs: ReadingCosts, share: Share) -> str:
    fits = share.seconds <= MOST_SECONDS
    end = f"within {MOST_SECONDS // 60}" if fits else f"after about {share.seconds / 60:.0f}"
    return (
        f"LLM calls are slow here ({_rate(costs):.1f} per second in fp32): the first {share.questions} of "
        f"{SHORT_ANSWERS} questions are evaluated, to end {end} minutes"
    )


if __name__ == "__main__":
    run_command(demo)
