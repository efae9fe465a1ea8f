"""Train the readers of Table 1: for each task, the bundled reader with Fusion-in-Decoder and with all passages in one prompt.

    python -m benchmarks.tasks.train [--data DIR] [--tasks claims,nq,dialogue,two-hop,trivia]
        [--ways fid,in-prompt] [--work DIR] [--cells DIR]

Both ways have the same start, ``bundled-fid``, the same questions with the same lists of five passages, by BM25 and the
dense retriever in turn, and the same recipe (``erag train``). No evaluated question is trained on; nor, in the
made tasks, is a source sentence of an evaluated question. The development questions are apart from both. Sentences
that depend on others are used, too, so that there is enough to learn from.

The trained models are in ``--work`` (``build/table-one/training``), a folder each, and an interrupted training resumes;
its record is kept in the folder ``training`` of ``--cells``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.table_one import CELLS, DEPTH, IN_PROMPT, MOST, SEED, TASKS, inputs_of, model_of
from benchmarks.tasks.make import MAKERS
from benchmarks.tasks.retrieve import retrieve
from benchmarks.tasks.sentences import Fact, facts
from engine.messages.errors import InputError
from engine.sources.articles.read import Article, read_source
from engine.sources.bundled import wikipedia_dump
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.tables import QUERY_ID, RUN

_COUNTS = ("queries", "dev_queries", "steps", "cut_inputs", "inputs", "cut_targets")
_SETTINGS = ("metric", "k", "epochs", "batch", "learning_rate", "seed", "precision")
_BATCH, _RATE, _DEVELOPMENT = 8, 5e-4, 100


@dataclass(frozen=True)
class Size:
    """Size of a task's training: questions to make per round, epochs, rounds, and the most questions to train on."""

    questions: int
    epochs: int
    rounds: int = 1
    most: int = 800


SIZES: Mapping[str, Size] = {
    "claims": Size(1200, 1, rounds=3, most=1600),
    "nq": Size(MOST * 4, 2),
    "dialogue": Size(1200, 1),
    "two-hop": Size(2400, 1),
    "trivia": Size(400, 2),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of nq: queries.jsonl and corpus.jsonl")
    parser.add_argument("--tasks", default=",".join(SIZES))
    parser.add_argument("--ways", default="fid,in-prompt")
    parser.add_argument("--work", type=Path, default=Path("build/table-one"))
    parser.add_argument("--cells", type=Path, default=CELLS, help="folder of the cells")
    options = parser.parse_args(arguments)
    for task in options.tasks.split(","):
        for way in options.ways.split(","):
            train(task, way, options)


def train(task: str, way: str, options: argparse.Namespace) -> None:
    """Train a reader of a task in a way, unless it exists."""
    model = model_of(task, way, options.work)
    if not model.exists():
        files = lists_of(task, options.work, options.data)
        settings, size = TASKS[task].reader, SIZES[task]
        queries = sum(1 for _ in files["queries"].open(encoding="utf-8"))
        given: dict[str, Any] = {
            **files,
            "reader": "bundled-fid",
            "augmentation": way,
            "task": settings.task,
            "metric": settings.metric_name,
            "k": DEPTH,
            "epochs": size.epochs,
            "batch": _BATCH,
            "learning-rate": _RATE,
            "limit": size.most,
            "evaluate-every": -(-min(queries, size.most) * size.epochs // _BATCH // 2),
            "checkpoint-every": 50,
            "workers": 0,
            "out": model.parent,
        }
        if way == "in-prompt":
            given["prompt"] = IN_PROMPT
        named = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        subprocess.run([sys.executable, "-m", "jobs.train", *named], check=True)
    keep(f"{task}-{way}", model.parent / "training.json", options.cells / "training")


def lists_of(task: str, work: Path, data: Path | None) -> dict[str, Path]:
    """Training files of a task, by the names of ``erag train``, made if missing."""
    evaluated = inputs_of(task, work, data)
    folder = work / "training"
    files = {
        "queries": folder / f"{task}.jsonl",
        "run": folder / f"{task}.parquet",
        "dev-queries": folder / f"{task}-dev.jsonl",
        "dev-run": folder / f"{task}-dev.parquet",
    }
    if not all(path.exists() for path in files.values()):
        folder.mkdir(parents=True, exist_ok=True)
        if task == "nq" and data is None:
            raise InputError(
                "the task nq without --data", "name the folder of its two files", "settings.data"
            )
        lines = made(task) if data is None or task != "nq" else asked(data)
        corpus = read_corpus(evaluated["corpus"])
        for part, found in zip(("", "dev-"), lines, strict=True):
            queries = files[f"{part}queries"]
            queries.write_text("\n".join([*found, ""]), encoding="utf-8")
            listed = retrieve(
                corpus, read_queries(queries), k=DEPTH, indexes=evaluated["corpus"].parent
            )
            write_run(by_turns(listed, read_queries(queries)[QUERY_ID]), files[f"{part}run"])
    return {**files, "corpus": evaluated["corpus"]}


def by_turns(listed: pl.DataFrame, query_ids: pl.Series) -> pl.DataFrame:
    """A run with BM25's list of every other query, and the dense retriever's of the rest."""
    turns = pl.DataFrame({QUERY_ID: query_ids}).with_columns(
        pl.Series(RUN, [("bm25", "dense")[i % 2] for i in range(len(query_ids))])
    )
    kept = listed.join(turns, on=[QUERY_ID, RUN], how="semi", maintain_order="left")
    return kept.with_columns(pl.lit("by turns").alias(RUN))


def asked(data: Path) -> list[list[str]]:
    """Questions of people, neither evaluated nor about articles of evaluated questions: for training, and development."""
    lines = (data / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    known = {one for line in lines[:MOST] for one in _articles(line)}
    rest = [line for line in lines[MOST:] if not known & _articles(line)]
    return [rest[_DEVELOPMENT:], rest[:_DEVELOPMENT]]


def _articles(line: str) -> set[str]:
    output = json.loads(line)["output"]
    return {one["title"] for part in output for one in part.get("provenance", ())}


def made(task: str) -> list[list[str]]:
    """Questions from sentences of no evaluated question: for training, and, from other sentences, for development."""
    articles, maker = list(read_source(wikipedia_dump())), MAKERS[task]
    taken = {one for question in maker(articles, MOST, SEED) for one in question.sentences}
    rest = [fact for fact in facts(articles, alone=False) if fact.text not in taken]
    random.Random(f"training {task}").shuffle(rest)
    apart = len(rest) // 6
    parts = ((rest[apart:], SIZES[task].questions), (rest[:apart], _DEVELOPMENT))
    return [_drawn(task, articles, *part) for part in parts]


def _drawn(task: str, articles: list[Article], rest: list[Fact], count: int) -> list[str]:
    """Questions from some sentences; claims several times as many, since another value makes another claim."""
    rounds = [
        MAKERS[task](articles, count, seed, rest) for seed in range(1, 1 + SIZES[task].rounds)
    ]
    every = {one.text: one for made in rounds for one in made}
    lines = [json.dumps(one.record(f"{task}-{i:04}")) for i, one in enumerate(every.values(), 1)]
    return lines if count > _DEVELOPMENT else lines[:count]


def keep(name: str, written: Path, folder: Path) -> None:
    """Write the record of a training: its recipe, the loss by step, and the metric on development questions."""
    content = json.loads(written.read_text())
    kept = {
        **{name: content["counts"].get(name, 0) for name in _COUNTS},
        **{name: content["configuration"][name] for name in _SETTINGS},
        "best": content["best"],
        "evaluations": content["evaluations"],
        "seconds": round(content["seconds"]),
        "losses": [round(loss, 4) for loss in content["losses"]],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
