"""Retrievers under an agent: their order by labels of its traces, by its answers, and by static lists.

    python -m benchmarks.agents [--questions 100] [--reader bundled-fid] [--out DIR] [--quick] [--json FILE]

The agent follows rules. Its first search is the question. In the passages that it finds, it takes the sentence with
most of the question's words, and searches for that sentence's names and the words that are left; if that finds nothing
new, for the names alone. The reader's answer from all passages, in the order of first sight, is its answer.

BM25, dense vectors of the bundled encoder, and both fused search the bundled articles for two-hop questions: the
demo's 32, and 68 of ``benchmarks/tasks/further-two-hop.jsonl``. ``erag evaluate --traces`` evaluates traces and
answers; beside them, each retriever's list for the question alone is evaluated at as many passages.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from benchmarks._bundled import bundled_corpus
from benchmarks._harness import Line, make_parser, write_report
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.protocol import Augmentation
from engine.retrieval import bm25, dense
from engine.retrieval.encoders import EncoderOptions, specify
from engine.retrieval.fusion import reciprocal_rank
from engine.sources.bundled import questions
from engine.sources.io.files import write_parquet
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.sources.traces.read import read_traces
from engine.statistics.runs import mean_interval
from engine.tables import (
    ARTICLE_ID,
    DIFFERENCE,
    DOC_ID,
    END_TO_END,
    MEASURE,
    OUTPUT,
    PROVENANCE,
    QUERY,
    QUERY_ID,
    RANK,
    RUN,
    RUN_B,
    SEARCH,
    SOFT_ACCURACY,
    STEP,
    TEXT,
    TITLE,
    VALUE,
    difference_of,
    high_of,
    low_of,
    p_of,
)
from jobs._evaluation_options import reader_functions, reader_name

FURTHER = Path(__file__).with_name("tasks") / "further-two-hop.jsonl"
# Passages of a search that the agent looks at; passages of a list that is read whole, which holds two searches.
SEEN, K = 3, 6
MEASURES = (f"Success@{K}", f"nDCG@{K}")
# Passages per list to fuse, as in ``benchmarks.tasks.retrieve``.
_FUSED = 100
_MOST_NAMES = 3
_LISTED = "passages"
_LEVEL = 0.95

Retriever = Callable[[pl.DataFrame], pl.DataFrame]
Records = list[dict[str, Any]]

_NAME = re.compile(r"[A-Z][\w'’-]+(?:(?: (?:of|the|de|von|and))? [A-Z][\w'’-]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"(])")
_WORD = re.compile(r"\w[\w'’-]*")
# Words of questions, and words that begin a sentence without naming anything.
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and after although as at be been being but by did do does during for from had has have he her his how "
        "however in into is are was were it its many most not of on one or she since some than that the their there "
        "these they this those to under until what when where which while who whom whose with",
    )
)


class Passage(NamedTuple):
    """A passage as the agent sees it."""

    doc_id: str
    title: str
    text: str


def next_searches(question: str, passages: Sequence[Passage]) -> tuple[str, str]:
    """The second search, and the third, which is for the case that the second finds nothing new.

    Words of its title count as words of a sentence; a word of the question counts the more, the fewer sentences have
    it. The names in the best sentence that the question lacks are searched for, or its title if it has none.
    """
    sentences = [(one.title, part) for one in passages for part in _SENTENCE.split(one.text)]
    words = dict.fromkeys(_words(question))
    shared = [words.keys() & _words(f"{title} {part}") for title, part in sentences]
    counts = Counter(word for some in shared for word in some)
    weights = [sum(1 / counts[word] for word in sorted(some)) for some in shared]
    if not weights:
        return question, question
    best = weights.index(max(weights))
    title, sentence = sentences[best]
    names = [name for name in _names(sentence) if not words.keys() >= set(_words(name))]
    searched = " ".join(names[:_MOST_NAMES] or [title])
    return " ".join([searched, *(word for word in words if word not in shared[best])]), searched


def _words(text: str) -> list[str]:
    found = (word.removesuffix("'s") for word in _WORD.findall(text.lower()))
    return [word for word in found if word not in COMMON]


def _names(sentence: str) -> list[str]:
    """Capitalised names in their order, each once."""
    names = []
    for name in _NAME.findall(sentence):
        first, _, rest = name.partition(" ")
        names += [bare] if (bare := rest if first.lower() in COMMON else name) else []
    return list(dict.fromkeys(names))


def searches(
    retriever: Retriever, first: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
) -> Records:
    """The agent's searches for all queries, as records of traces, by query and step; ``first``: the lists for these."""
    texts = {row[0]: Passage(*row) for row in corpus.select(DOC_ID, TITLE, TEXT).iter_rows()}
    asked = dict(queries.select(QUERY_ID, QUERY).iter_rows())
    traces: dict[str, Records] = {query_id: [] for query_id in asked}
    due, last, found = dict(asked), dict.fromkeys(asked, ""), _lists(first)
    for step in (1, 2, 3):
        following = {}
        for query_id, search in due.items():
            seen = {doc_id for record in traces[query_id] for doc_id in record[_LISTED]}
            listed = found.get(query_id, [])[:SEEN]
            searched = {RUN: first[RUN][0], QUERY_ID: query_id, STEP: step, SEARCH: search}
            traces[query_id].append(searched | {_LISTED: listed})
            if step == 1:
                passages = [texts[doc_id] for doc_id in listed]
                following[query_id], last[query_id] = next_searches(asked[query_id], passages)
            elif step == 2 and seen >= set(listed):
                following[query_id] = last[query_id]
        if not (due := following):
            break
        found = _lists(retriever(pl.DataFrame({QUERY_ID: [*due], QUERY: [*due.values()]})))
    return [record for records in traces.values() for record in records]


def _lists(run: pl.DataFrame) -> dict[str, list[str]]:
    lists = run.sort(QUERY_ID, RANK).group_by(QUERY_ID, maintain_order=True).agg(DOC_ID)
    return dict(lists.iter_rows())


def answers(
    records: Records,
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    reader: str,
    *,
    store: Path,
    augmentation: Augmentation,
) -> Records:
    """The agent's answers as records of traces: the reader gets the passages of all searches."""
    runs = read_traces("traces", records=enumerate(records, 1), carried=False).runs
    listed = corpus.join(runs, DOC_ID, "semi", maintain_order="left")
    settings = Settings.of(
        reader=reader_name(reader),
        functions=reader_functions([reader]),
        augmentation=augmentation,
        annotators=("erag",),
        k=K,
        measures=MEASURES[0],
        actors=0,
    )
    inputs = EvaluationInputs(queries=queries, corpus=listed, runs=runs, k=K)
    read = evaluate(inputs, settings, store=store).downstream
    return read.select(RUN, QUERY_ID, OUTPUT).to_dicts()


def retrievers(corpus: pl.DataFrame, folder: Path) -> dict[str, Retriever]:
    """BM25, dense retrieval and their fusion; indexes that a folder lacks are built."""
    if not (folder / "bm25").exists():
        bm25.build_index(corpus, folder / "bm25")
    if not (folder / "dense").exists():
        dense.build_index(lambda: iter([corpus]), folder / "dense", specify(EncoderOptions()))
    lexical = partial(bm25.search, folder / "bm25", k=_FUSED)
    by_vectors = partial(dense.search, folder / "dense", options=dense.SearchOptions(k=_FUSED))

    def fused(queries: pl.DataFrame) -> pl.DataFrame:
        runs = pl.concat([lexical(queries), by_vectors(queries)])
        return reciprocal_rank(runs, k=_FUSED, one_corpus=True)

    return {"bm25": lexical, "dense": by_vectors, "rrf": fused}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"questions": 6, "gold_only": True})
    parser.add_argument("--questions", type=int, default=100, help="how many, of 100")
    parser.add_argument("--gold-only", action="store_true", help="search only the gold articles")
    parser.add_argument("--reader", default=BUNDLED_FID, help="a name, or FILE.py:function")
    parser.add_argument("--out", type=Path, help="folder to keep the results and their pages in")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="erag-agents-") as folder:
        folders = measure(options.out or Path(folder), options)
        found = {name: figures(one) for name, one in folders.items()}
    for line in table(found):
        print(line)
    seconds = round(time.perf_counter() - start)
    agreement = found["agent"]["agreement"][MEASURES[0]]
    told = Line("order of 3 retrievers, labels of traces against answers: SPA", f"{agreement:.2f}")
    write_report(options, ("polars", "torch"), {"seconds": seconds, **found}, [told])


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Evaluate the agent's traces and the retrievers' static lists; return the folders of results."""
    folder.mkdir(parents=True, exist_ok=True)
    most, reader = options.questions, options.reader
    sets = [read_queries(questions("two-hop")), read_queries(FURTHER)]
    # The smallest case has questions of both sets.
    queries = pl.concat(one.head(-(-most * one.height // 100)) for one in sets).head(most)
    gold = queries.select(pl.col(PROVENANCE).explode().unique().alias(ARTICLE_ID))
    corpus = bundled_corpus()
    if options.gold_only:
        corpus = corpus.join(gold, ARTICLE_ID, "semi", maintain_order="left")
    write_parquet(queries, folder / "queries.parquet")
    write_parquet(corpus, folder / "corpus.parquet")
    records: Records = []
    runs = []
    for name, retriever in retrievers(corpus, folder / "indexes").items():
        first = retriever(queries)
        runs.append(folder / f"{name}.parquet")
        write_run(first.filter(pl.col(RANK) <= K), runs[-1])
        records += searches(retriever, first, queries, corpus)
    augmentation: Augmentation = "fid" if reader == BUNDLED_FID else "in-prompt"
    store = folder / "store"
    records += answers(records, queries, corpus, reader, store=store, augmentation=augmentation)
    traces = folder / "traces.jsonl"
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    traces.write_text("\n".join([*lines, ""]), encoding="utf-8")
    inputs: dict[str, list[object]] = {
        "agent": ["--traces", traces],
        "static": ["--run", ",".join(map(str, runs))],
    }
    for name, given in inputs.items():
        command: list[object] = [sys.executable, "-m", "jobs.evaluate", *given]
        command += ["--queries", folder / "queries.parquet", "--corpus", folder / "corpus.parquet"]
        command += ["--reader", reader, "--augmentation", augmentation, "--k", K]
        command += ["--measures", ",".join(MEASURES), "--annotators", "erag", "--store", store]
        command += ["--actors", 0, "--out", folder / name, "--overwrite"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"erag evaluate of {name}: {done.stderr[-2000:]}")
    return {name: folder / name for name in inputs}


def figures(folder: Path) -> dict[str, Any]:
    """Means of labels' measures and of the end-to-end score by run, leads between runs, and agreement on their order."""
    scores = pl.read_parquet(folder / "query_scores.parquet")
    whole = pl.read_parquet(folder / "downstream.parquet")
    pairs = pl.read_parquet(folder / "run_pairs.parquet")
    systems = pl.read_parquet(folder / "systems.parquet")
    by_column = {name: scores.filter(pl.col(MEASURE) == name) for name in MEASURES}
    by_column[END_TO_END] = whole
    leads = []
    for row in pairs.filter(pl.col(MEASURE).is_in(MEASURES)).iter_rows(named=True):
        every: list[tuple[str, ...]] = [
            (row[MEASURE], DIFFERENCE, low_of(DIFFERENCE), high_of(DIFFERENCE), p_of(DIFFERENCE))
        ]
        of_whole = (column(END_TO_END) for column in (difference_of, low_of, high_of, p_of))
        every += [(END_TO_END, *of_whole)] if row[MEASURE] == MEASURES[0] else []
        for column, *names in every:
            values = dict(zip(("difference", "low", "high", "p"), map(row.get, names), strict=True))
            leads.append({"column": column, RUN: row[RUN], RUN_B: row[RUN_B], **values})
    return {
        "means": {
            column: {
                run[RUN][0]: asdict(mean_interval(run[VALUE], _LEVEL))
                for run in rows.partition_by(RUN, maintain_order=True)
            }
            for column, rows in by_column.items()
        },
        "leads": leads,
        "agreement": dict(systems.select(MEASURE, SOFT_ACCURACY).iter_rows()),
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Means by retriever, then leads, as Markdown; a column for each measure under the agent and of static lists."""
    columns = [(kind, column) for kind, one in found.items() for column in one["means"]]
    yield f"| retriever | {' | '.join(f'{kind}: {column}' for kind, column in columns)} |"
    yield f"|{' --- |' * (len(columns) + 1)}"
    for run in found["agent"]["means"][END_TO_END]:
        means = [found[kind]["means"][column][run] for kind, column in columns]
        told = [f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]" for one in means]
        yield f"| {run} | {' | '.join(told)} |"
    leads = {
        (kind, lead["column"], lead[RUN], lead[RUN_B]): lead
        for kind, one in found.items()
        for lead in one["leads"]
    }
    for run, other in dict.fromkeys(key[2:] for key in leads):
        told = []
        for kind, column in columns:
            lead = leads[kind, column, run, other]
            bounds = f"[{lead['low']:+.2f}, {lead['high']:+.2f}]"
            told.append(f"{lead['difference']:+.2f} {bounds} p {lead['p']:.3f}")
        yield f"| {run} less {other} | {' | '.join(told)} |"


if __name__ == "__main__":
    main()
