"""``erag demo``: the whole flow on the bundled sample, offline."""

from __future__ import annotations

import time
from pathlib import Path

from engine.evaluation.inputs import InputFiles, read_inputs
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, vary
from engine.retrieval.bm25 import build_index, search
from engine.sources.articles.read import read_source
from engine.sources.bundled import QuestionSet, questions, wikipedia_dump
from engine.sources.io.files import require_output, write_parquet
from engine.sources.passages.cut import passages
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.tables import ARTICLE_ID
from jobs._command import ConfigFile, run_command
from jobs.evaluate import evaluate_and_report, name_files

K = 10
# Ten passages drown a model of this size; of 2 to 5 passages, 3 give its score the most variance.
END_TO_END_K = 3
# As many of the short-answer questions as two cores read in the time that one waits for a demo.
SHORT_ANSWERS = 64

SETTINGS: dict[QuestionSet, Settings] = {
    "short-answer": Settings.of(
        k=K, end_to_end_k=END_TO_END_K, annotators=("erag", "containment", "provenance")
    ),
    "two-hop": Settings.of(
        k=K, end_to_end_k=END_TO_END_K, annotators=("erag", "containment", "provenance")
    ),
    "claims": Settings.of(
        k=K,
        end_to_end_k=END_TO_END_K,
        task="claims",
        metric="accuracy",
        annotators=("erag", "provenance"),
    ),
    "dialogue": Settings.of(
        k=K,
        end_to_end_k=END_TO_END_K,
        task="dialogue",
        metric="f1",
        measures="P@10 nDCG@10 Success@10 AP(rel=0.2)@10 RR(rel=0.2)@10 R(rel=0.2)@10",
        annotators=("erag", "provenance"),
    ),
}


def demo(
    *,
    task: QuestionSet = "short-answer",
    all: bool = False,
    out: Path = Path("demo-out"),
    actors: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Evaluate BM25 on 106 Wikipedia articles with a small language model; nothing is downloaded.

    Cuts the articles into passages, indexes them, retrieves passages for the questions, reads each
    passage alone and the best ones together with SmolLM2-135M, and shows how well the labels of
    eRAG, of answer containment and of provenance agree with the end-to-end score. A second run takes
    all reads from the store.

    Parameters
    ----------
    task
        Which set of questions.
    all
        Every short-answer question, not only the first 64.
    out
        Directory for the corpus, the index, the run, the read store and the results.
    actors
        Processes that host the reader; 0 reads in this one.
    """
    start = time.perf_counter()
    settings = SETTINGS[task].but(actors=actors)
    require_output(out, directory=True)

    source = wikipedia_dump()
    corpus = passages(read_source(source))
    corpus_path = out / "corpus.parquet"
    write_parquet(corpus, corpus_path)
    print(f"passages: {corpus.height} of 100 words, from {corpus[ARTICLE_ID].n_unique()} articles")

    queries_path = questions(task)
    queries = read_queries(queries_path)
    if task == "short-answer" and not all:
        queries = queries.head(SHORT_ANSWERS)
        queries_path = out / "queries.parquet"
        write_parquet(queries, queries_path)
    build_index(corpus, out / "index")
    run = search(out / "index", queries, k=K)
    run_path = out / "run.parquet"
    write_run(run, run_path)
    print(f"retrieved: {K} passages for each of {queries.height} questions with BM25", flush=True)

    files = InputFiles(queries=queries_path, corpus=corpus_path, run=(run_path,))
    inputs = read_inputs(files, k=K)
    conditions = vary(settings, Sweep())
    evaluate_and_report(inputs, conditions, name_files(files), out=out, store=out / "store")
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    run_command(demo)
