"""Reads of single passages that end when their label is decided, against the same reads in full.

    python -m benchmarks.decided [--reads 120] [--rounds 3] [--dtype float32] [--threads 1] [--fid]
        [--json FILE]

The demo's questions with the passages that BM25 lists for them, each alone, by the bundled reader. With
``--fid`` by a Fusion-in-Decoder model of T5-small's shape with random weights, which never ends an answer
and never gives the right one: each question's answer is what the model writes for its first passage. Such a
model shows how much time the rest of an output takes, not how often it is spared.

Equality first: every read in full must score what the one that ended early scores, and begin with its
output. Then both are timed in turn, in processor time, since other work on the machine changes it less. A
decision is one step of the decoder for one read: the tokens written, and the end token where a read ends by
one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import fid
from benchmarks._harness import Line, in_turn, make_parser, write_report
from benchmarks.throughput import DEPTH, planned_reads
from engine.machine.device import best_dtype
from engine.reading import readers
from engine.reading.protocol import Reader, ReaderSpec, ReadOutput
from engine.reading.readers import specify
from engine.scoring.metrics import exact_match
from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.passages.cut import passages
from engine.sources.queries.read import read_queries

EARLY, FULL = "ended when decided", "in full"
Inputs = list[list[str]]


def in_prompt(reads: int, dtype: Any, threads: int) -> tuple[Reader, ReaderSpec, Inputs, Inputs]:
    """The bundled reader, and inputs and references of the demo's reads."""
    spec, prompt = specify("bundled", augmentation="in-prompt", task="short-answer", dtype=dtype)
    spec = replace(spec, metric="em", threads=threads)
    planned = planned_reads(None, reads, spec, prompt)
    answers = dict(read_queries(questions("short-answer"))["query_id", "answers"].iter_rows())
    references = [answers[query_id] for query_id in planned["query_id"]]
    return readers.load(spec), spec, planned["inputs"].to_list(), references


def fused(
    reads: int, dtype: Any, threads: int, folder: Path
) -> tuple[Reader, ReaderSpec, Inputs, Inputs]:
    """A random Fusion-in-Decoder reader, and inputs and references as above."""
    corpus = passages(read_source(wikipedia_dump()))
    fid.make_model(folder, corpus["text"].to_list(), 8000)
    spec, _ = specify(str(folder), augmentation="fid", task="short-answer", dtype=dtype)
    spec = replace(spec, metric="em", threads=threads)
    reader = readers.load(spec)
    fused = fid.make_inputs(-(-reads // DEPTH), DEPTH, None)
    first = [output.output for output in reader.read([inputs[:1] for inputs in fused])]
    inputs = [[one] for read in fused for one in read][:reads]
    references = [[answer] for answer in first for _ in range(DEPTH)][:reads]
    return reader, spec, inputs, references


def decisions(outputs: Sequence[ReadOutput], spec: ReaderSpec) -> float:
    """Steps of the decoder a read; of outputs that end at a stop string their tokens hold it."""
    ended = sum(
        not output.decided and not spec.stop and output.output_tokens < spec.max_new_tokens
        for output in outputs
    )
    return (sum(output.output_tokens for output in outputs) + ended) / len(outputs)


def refuse_other_labels(
    early: Sequence[ReadOutput], full: Sequence[ReadOutput], references: Inputs
) -> None:
    """End the benchmark where a read that ended early scores anything else than in full."""
    for one, whole, known in zip(early, full, references, strict=True):
        same = exact_match(one.output, known) == exact_match(whole.output, known)
        begins = whole.output.startswith(one.output) if one.decided else one == whole
        if not (same and begins):
            raise SystemExit(f"{one.output!r} and {whole.output!r} are not one read")


def main(options: Sequence[str] | None = None) -> None:
    """Compare, time in turn, print."""
    parser = make_parser(__doc__, rounds=3, quick={"reads": 20, "rounds": 1})
    parser.add_argument("--reads", type=int, default=120)
    parser.add_argument("--dtype", default=None, help="by default the fastest of this machine")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fid", action="store_true", help="a random Fusion-in-Decoder reader")
    arguments = parser.parse_args(options)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, Path(folder))


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """What ``main`` does, with a folder for a model."""
    dtype = arguments.dtype or best_dtype()
    reader, spec, inputs, references = (
        fused(arguments.reads, dtype, arguments.threads, folder)
        if arguments.fid
        else in_prompt(arguments.reads, dtype, arguments.threads)
    )
    sides = {
        FULL: lambda: reader.read(inputs),
        EARLY: lambda: reader.read(inputs, references),
    }
    refuse_other_labels(sides[EARLY](), sides[FULL](), references)
    timings = in_turn(sides, arguments.rounds, clock=time.process_time)
    figures: dict[str, Any] = {}
    for name, timing in timings.items():
        outputs: list[ReadOutput] = timing.result
        figures[name] = {
            "decisions_a_read": decisions(outputs, spec),
            "decided": sum(output.decided for output in outputs),
            "by_the_first_token": sum(o.decided and o.output_tokens == 1 for o in outputs),
            "right": sum(
                exact_match(o.output, known) for o, known in zip(outputs, references, strict=True)
            ),
            "reads_a_second": len(inputs) / timing.best,
            "seconds": timing.seconds,
        }
        print(f"{name}: {json.dumps(figures[name])}")
    ratio = figures[EARLY]["reads_a_second"] / figures[FULL]["reads_a_second"]
    print(
        f"{len(inputs)} reads in {dtype}: {ratio:.2f} times as many reads in the same processor time"
    )
    steps = " to ".join(f"{figures[name]['decisions_a_read']:.2f}" for name in (FULL, EARLY))
    page = [
        Line("decisions a read, in full and ended when decided", steps),
        Line("reads in the same processor time", str(timings[FULL].over(timings[EARLY]))),
    ]
    write_report(arguments, ("torch", "transformers"), {"sides": figures, "ratio": ratio}, page)


if __name__ == "__main__":
    main()
