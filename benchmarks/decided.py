"""Reads of single passages that end when their label is decided, against the same reads in full.

    python -m benchmarks.decided [--fid] [--reads 120] [--rounds 3] [--dtype float32] [--threads 1]
        [--json FILE]

The demo's questions with the passages that BM25 lists for them, each alone: in one prompt by the bundled
decoder-only reader, and by the bundled Fusion-in-Decoder reader; with ``--fid`` by the latter alone.

Equality first: every read in full must score what the one that ended early scores, and begin with its
output. Then both are timed in turn, in processor time, since other work on the machine changes it less. A
decision is one step of the decoder for one read: the tokens written, and the end token where a read ends by
one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from benchmarks._harness import Line, in_turn, make_parser, write_report
from benchmarks.throughput import planned_reads
from engine.machine.device import best_dtype
from engine.reading import readers
from engine.reading.models.weights import BUNDLED, BUNDLED_FID
from engine.reading.protocol import Augmentation, Reader, ReaderSpec, ReadOutput
from engine.reading.readers import specify
from engine.scoring.metrics import exact_match
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries

EARLY, FULL = "ended when decided", "in full"
READERS: dict[Augmentation, str] = {"in-prompt": BUNDLED, "fid": BUNDLED_FID}
Inputs = list[list[str]]


class Reads(NamedTuple):
    """A reader, and the inputs and references of reads."""

    reader: Reader
    spec: ReaderSpec
    inputs: Inputs
    references: Inputs


def make_reads(augmentation: Augmentation, reads: int, dtype: Any, threads: int) -> Reads:
    """Of the demo's questions, by the bundled reader of this augmentation."""
    spec, prompt = specify(
        READERS[augmentation], augmentation=augmentation, task="short-answer", dtype=dtype
    )
    spec = replace(spec, metric="em", threads=threads)
    planned = planned_reads(None, reads, spec, prompt)
    answers = dict(read_queries(questions("short-answer"))["query_id", "answers"].iter_rows())
    references = [answers[query_id] for query_id in planned["query_id"]]
    return Reads(readers.load(spec), spec, planned["inputs"].to_list(), references)


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
    parser = make_parser(__doc__, rounds=3, quick={"reads": 4, "rounds": 1})
    parser.add_argument("--reads", type=int, default=120)
    parser.add_argument("--dtype", default=None, help="by default the fastest of this machine")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fid", action="store_true", help="Fusion-in-Decoder alone")
    arguments = parser.parse_args(options)
    torch.set_num_threads(arguments.threads)
    dtype = arguments.dtype or best_dtype()
    figures: dict[str, Any] = {"dtype": dtype}
    page: list[Line] = []
    for augmentation in READERS:
        if augmentation == "fid" or not arguments.fid:
            made = make_reads(augmentation, arguments.reads, dtype, arguments.threads)
            print(f"{augmentation}, {made.spec.name}: {len(made.inputs)} reads in {dtype}")
            figures[augmentation], lines = measure(made, arguments.rounds)
            page += [Line(f"{augmentation}: {line.what}", line.figure) for line in lines]
    write_report(arguments, ("torch", "transformers"), figures, page)


def counts(outputs: Sequence[ReadOutput], spec: ReaderSpec, references: Inputs) -> dict[str, Any]:
    """What a side's outputs show: how many decisions they took, and how many were decided and right."""
    return {
        "decisions_a_read": decisions(outputs, spec),
        "decided": sum(output.decided for output in outputs),
        "by_the_first_token": sum(one.decided and one.output_tokens == 1 for one in outputs),
        "right": sum(
            exact_match(output.output, known) == 1
            for output, known in zip(outputs, references, strict=True)
        ),
    }


def measure(made: Reads, rounds: int) -> tuple[dict[str, Any], list[Line]]:
    """Compare, time in turn, print; the figures, and lines for the page of all benchmarks."""
    reader, spec, inputs, references = made
    sides = {
        FULL: lambda: reader.read(inputs),
        EARLY: lambda: reader.read(inputs, references),
    }
    outputs = {name: side() for name, side in sides.items()}
    refuse_other_labels(outputs[EARLY], outputs[FULL], references)
    figures = {name: counts(of_side, spec, references) for name, of_side in outputs.items()}
    for name, counted in figures.items():
        print(f"  {name}: {', '.join(f'{key} {value:g}' for key, value in counted.items())}")
    timings = in_turn(sides, rounds, clock=time.process_time)
    for name, timing in timings.items():
        figures[name] |= {
            "reads_a_second": len(inputs) / timing.median,
            "seconds": timing.seconds,
        }
        print(f"  {name}: {len(inputs) / timing.median:.2f} reads a second of processor time")
    ratio = timings[FULL].over(timings[EARLY])
    print(f"  reads in the same processor time: {ratio} times as many")
    steps = " to ".join(f"{figures[name]['decisions_a_read']:.2f}" for name in (FULL, EARLY))
    page = [
        Line("decisions a read, in full and ended when decided", steps),
        Line("reads in the same processor time", str(ratio)),
    ]
    return {"sides": figures, "ratio": ratio}, page


if __name__ == "__main__":
    main()
