"""Every read of an evaluation, by the engine as an evaluation reads and by vLLM: reads a second.

    python -m benchmarks.whole_evaluation [--data DIR] [--queries 454] [--k 10] [--vllm PYTHON]
        [--ray-llm PYTHON] [--without-own] [--unit 4096] [--rounds 1] [--dtype float32] [--json FILE]

Unlike in ``benchmarks.peers``, several queries list the same passage, and whole lists are read beside
single passages. BM25 lists ``k`` passages for each of the first queries; the bundled reader reads each alone and
each list at once. The sides:

- the engine as ``erag evaluate`` runs it: a pool on Ray, units of reads that begin alike;
- the engine with ``--engine vllm``, if vLLM is installed beside it: the same units, on one actor;
- vLLM, if ``--vllm`` names an interpreter that has it: all prompts in one call, in the order of the engine's
  plan, with prefix caching; not compiled, as the engine runs it on a CPU;
- ``ray.data.llm``, if ``--ray-llm`` names an interpreter that has ``ray[llm]``: the same prompts in batches of as many
  rows as a unit of the engine has. Its handling of a failing row, a killed actor and a restarted job:
  ``python -m benchmarks._ray_llm_peer``.

Units are as in an evaluation in memory; ``--unit`` sets another size, in tokens: an evaluation in shards has
units of at least 4,096 on CPUs.

Starting and loading are not part of the time, nor of the CPU time, which covers the processes that read. The sides
read in turn, for the given rounds, each time in new processes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from transformers.utils import logging

from benchmarks._bundled import read_data
from benchmarks._harness import Line, Timing, make_parser, write_report
from benchmarks.peers import vllm
from engine import tables
from engine.machine import cluster
from engine.machine.pool import PoolSettings
from engine.messages.extras import is_installed
from engine.reading.backends import backend_for
from engine.reading.costs import UnitResult
from engine.reading.local import Local
from engine.reading.plan import (
    INPUTS,
    PlansInMemory,
    ReadPlan,
    longest_first,
    missing_reads,
    requested_reads,
)
from engine.reading.protocol import Reader, ReaderSpec
from engine.reading.readers import specify
from engine.retrieval.bm25 import build_index, search
from engine.tables import DOC_ID, DOC_IDS, OUTPUT, QUERY_ID, READ_KEY

PROCESSOR = "processor_milliseconds"
ENGINE, ON_VLLM, VLLM, RAY_LLM = "engine", "engine on vLLM, one actor", "vLLM", "ray.data.llm"


class Evaluation(NamedTuple):
    """The reads: queries, their passages, and the lists, single passages first for every query."""

    queries: pl.DataFrame
    corpus: pl.DataFrame
    lists: pl.DataFrame


def evaluation(data: Path | None, count: int, k: int) -> Evaluation:
    """The first queries with single passages and whole lists, as BM25 finds them."""
    corpus, queries = read_data(data)
    queries = queries.head(count)
    with tempfile.TemporaryDirectory() as folder:
        build_index(corpus, folder)
        run = search(folder, queries, k=k)
    single = run.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))
    whole = run.group_by(QUERY_ID, maintain_order=True).agg(pl.col(DOC_ID).alias(DOC_IDS))
    return Evaluation(queries, corpus, pl.concat([single, whole]))


def planned(what: Evaluation, spec: ReaderSpec, prompt: Any) -> pl.DataFrame:
    """The plan of the reads."""
    wanted = requested_reads(
        what.lists, what.queries, what.corpus, prompt=prompt, fingerprint=spec.fingerprint
    )
    return longest_first(missing_reads(wanted, tables.empty(tables.READS)), spec)


class Metered(Local):
    """Reports the CPU time of its process since its reader was loaded, in the statistics of every unit."""

    def load(self, spec: ReaderSpec) -> Reader:
        reader = super().load(spec)
        self._loaded = time.process_time()
        return reader

    def commit(self, result: UnitResult) -> UnitResult:
        done = super().commit(result)
        used = time.process_time() - self._loaded if self.readers else 0.0
        return replace(done, stats={**done.stats, PROCESSOR: round(1000 * used)})


class Reading(NamedTuple):
    """Seconds and CPU seconds of reading, outputs in the order of the plan, and tokens of prompts, in all and
    computed.
    """

    seconds: float
    processor: float
    outputs: list[str]
    prompt_tokens: int
    computed_tokens: int


def read(
    plan: pl.DataFrame, spec: ReaderSpec, actors: int | None = None, *, unit: int = 0
) -> Reading:
    """Read a plan as an evaluation does: on the default pool or ``actors``, in its own units or units of size ``unit``."""
    local = Metered([spec], [None])
    backend = backend_for(PoolSettings(actors=actors), local, size=int(plan.estimated_size()))
    made = PlansInMemory([ReadPlan(reads=plan, wanted=plan.height)])
    made = made.sized(min(backend.actors, plan.height), backend.gpu, False)
    if unit:
        made = PlansInMemory([replace(made.by_role[0], least=unit, first=unit, most=unit)])
    results = []

    def kept() -> Any:
        for result in backend.read(made):
            results.append(result)
            yield result

    _, seconds, done = timed(kept())
    if done != plan.height:
        raise SystemExit(f"{plan.height - done} reads were lost")
    # The next side needs the memory and the processors.
    cluster.stop_ray()
    outputs = {
        key: output
        for result in results
        if result.reads is not None
        for key, output in result.reads.select(READ_KEY, OUTPUT).iter_rows()
    }
    used = {result.worker: result.stats.get(PROCESSOR, 0) for result in results}
    print(f"{len(results)} units of {plan.height / len(results):.0f} reads, {len(used)} actors")
    return Reading(
        seconds,
        sum(used.values()) / 1000,
        [outputs.get(key, "") for key in plan[READ_KEY]],
        sum(result.prompt_tokens for result in results),
        sum(kind.computed_tokens for result in results for kind in result.kinds.values()),
    )


def read_on_vllm(python: str, prompts: list[str], spec: ReaderSpec) -> Reading:
    """Read all prompts in one call, by an interpreter that has vLLM."""
    spec = replace(spec, threads=spec.threads or len(os.sched_getaffinity(0)))
    peer = vllm(python, spec, prompts, 1, compile=False)
    computed = peer["prompt_tokens"] - peer["cached_tokens"]
    processor = peer["processor_seconds"][0]
    return Reading(peer["seconds"][0], processor, peer["outputs"], peer["prompt_tokens"], computed)


def read_by_ray(python: str, prompts: list[str], spec: ReaderSpec) -> Reading:
    """Read all prompts by ``ray.data.llm``, in an interpreter that has it."""
    spec = replace(spec, threads=spec.threads or len(os.sched_getaffinity(0)))
    peer = vllm(python, spec, prompts, 1, peer="_ray_llm_peer")
    processor = peer["processor_seconds"]
    return Reading(peer["seconds"], processor, peer["outputs"], peer["prompt_tokens"], 0)


def timed(results: Iterator[UnitResult]) -> tuple[float, float, int]:
    """Seconds until reading began, seconds of reading, and reads: of units as they end."""
    start = time.perf_counter()
    began, reads = start, 0
    for result in results:
        if not reads:
            began = time.perf_counter() - result.seconds
        reads += result.done
    return began - start, time.perf_counter() - began, reads


def apart(one: list[str], other: list[str]) -> float:
    return sum(a != b for a, b in zip(one, other, strict=True)) / len(one)


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=1, quick={"queries": 2, "k": 2})
    parser.add_argument("--data", type=Path, help="with queries.jsonl and corpus.jsonl")
    parser.add_argument("--queries", type=int, default=454)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--unit", type=int, default=0, help="tokens of a unit")
    parser.add_argument("--without-own", action="store_true", help="leave our own loops out")
    parser.add_argument("--vllm", help="an interpreter that has vLLM")
    parser.add_argument("--ray-llm", help="an interpreter that has ray[llm]")
    arguments = parser.parse_args(options)
    logging.disable_progress_bar()
    spec, prompt = specify(
        "bundled", augmentation="in-prompt", task="short-answer", dtype=arguments.dtype
    )
    what = evaluation(arguments.data, arguments.queries, arguments.k)
    plan = planned(what, spec, prompt)
    timings, readings = time_sides(plan, spec, arguments)
    show(plan, timings, readings, spec, arguments)


def time_sides(
    plan: pl.DataFrame, spec: ReaderSpec, arguments: argparse.Namespace
) -> tuple[dict[str, Timing], dict[str, Reading]]:
    """Seconds by side, and its reads in the last round."""
    sides: dict[str, Callable[[], Reading]] = {}
    if not arguments.without_own:
        sides[ENGINE] = partial(read, plan, spec, unit=arguments.unit)
    prompts = ["".join(pieces) for pieces in plan[INPUTS].to_list()]
    if is_installed("vllm"):
        sides[ON_VLLM] = partial(read, plan, replace(spec, engine="vllm"), 1, unit=arguments.unit)
    if arguments.vllm:
        sides[VLLM] = partial(read_on_vllm, arguments.vllm, prompts, spec)
    if arguments.ray_llm:
        sides[RAY_LLM] = partial(read_by_ray, arguments.ray_llm, prompts, spec)
    # Each round returns its CPU time.
    timings = {name: Timing([], []) for name in sides}
    readings: dict[str, Reading] = {}
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            readings[name] = side()
            timings[name].seconds.append(readings[name].seconds)
            timings[name].result.append(readings[name].processor)
            took = f"{readings[name].seconds:.1f} s, {readings[name].processor:.1f} s of processors"
            print(f"{name}: {took}", flush=True)
    return timings, readings


def show(
    plan: pl.DataFrame,
    timings: dict[str, Timing],
    readings: dict[str, Reading],
    spec: ReaderSpec,
    arguments: argparse.Namespace,
) -> None:
    """Print reads a second, tokens and outputs that differ; write the report."""
    reads = plan.height
    single = int((plan[DOC_IDS].list.len() == 1).sum())
    print(f"{single} reads of single passages and {reads - single} of whole lists, in {spec.dtype}")
    print(f"{'':28}{'reads/s':>8}{'tokens of prompts':>19}{'computed':>12}")
    for name, reading in readings.items():
        print(
            f"{name:28}{reads / timings[name].best:8.2f}{reading.prompt_tokens:19,}"
            f"{reading.computed_tokens:12,}"
        )
    page = []
    for side, other, goal in (
        (ENGINE, VLLM, "1.2"),
        (ON_VLLM, VLLM, "0.95"),
        (ON_VLLM, RAY_LLM, "1"),
    ):
        if side in readings and other in readings:
            ratio = timings[other].over(timings[side])
            page.append(Line(f"reads/s: {side} to {other}", str(ratio), goal))
            differ = apart(readings[side].outputs, readings[other].outputs)
            used = [Timing(timings[name].result, None) for name in (other, side)]
            ratios = f"{page[-1].figure}, of processor time {used[0].over(used[1])}"
            print(f"{page[-1].what}: {ratios}; outputs that differ: {differ:.1%}")
    if ENGINE in timings:
        page.append(Line(f"reads/s: {ENGINE}", f"{reads / timings[ENGINE].best:.2f}"))
    figures = {
        "dtype": spec.dtype,
        "single": single,
        "lists": reads - single,
        "sides": {
            name: reading._replace(outputs=[])._asdict()
            | {"seconds": timings[name].seconds, "processor": timings[name].result}
            for name, reading in readings.items()
        },
    }
    write_report(arguments, ("torch", "transformers", "ray"), figures, page)


if __name__ == "__main__":
    main()
