"""How an evaluation in shards grows: with its reads, with its actors, and on resuming.

    python -m benchmarks.scaling --reads 100000 1000000 10000000
    python -m benchmarks.scaling --actors 1 4 16 64
    python -m benchmarks.scaling --actors 1000

The readers read nothing: one costs nothing, so that all measured time is the engine's, and one sleeps
as long as a reader of 7,000 tokens a second takes. Prompts, keys, commits, labels, scores, statistics and
(of the former) the folder of results are real. Each row is measured in a process of its own; memory is the
driver's peak resident size. More than 128 actors are simulated, for half an hour of reading or more: their units are
the engine's, the driver's cost of a unit is a number.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._harness import Line, in_fresh_process, make_parser, write_report

K = 100
# Passages of the whole list that is read last.
_WHOLE = 10
# Passages per list in comparisons of actors.
_K_OF_ACTORS = 20
# Approximate tokens of a query's reads in that case: of its single passages, and of the whole list.
_TOKENS_OF_QUERY = _K_OF_ACTORS * 281 + 2574
_NODES = 8
# Most actors as real processes; more are simulated, which takes seconds for any time of reading.
_MOST_PROCESSES, _SIMULATED_SECONDS = 128, 1800.0


def main(options: Sequence[str] | None = None) -> None:
    arguments = _arguments(options)
    figures: dict[str, list[dict[str, Any]]] = {"reads": [], "actors": []}
    folder = Path(tempfile.mkdtemp(prefix="erag-scaling-", dir=arguments.folder))
    try:
        for reads in arguments.reads:
            row = _by_reads(folder / str(reads), reads, arguments.passages, arguments.resamples)
            figures["reads"].append(row)
            print(json.dumps(row), flush=True)
            shutil.rmtree(folder / str(reads), ignore_errors=True)
        for actors in arguments.actors:
            place = str(folder / f"actors-{actors}")
            # In another process, so that its memory does not count as the driver's.
            if actors > _MOST_PROCESSES:
                row = in_fresh_process(
                    _simulate, actors, max(arguments.seconds, _SIMULATED_SECONDS)
                )
            else:
                in_fresh_process(_make_for_actors, place, actors, arguments.seconds)
                row = in_fresh_process(_by_actors, place, actors)
            figures["actors"].append(row)
            print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    page = [
        Line(
            f"{row['reads']:,} reads: peak memory of the driver",
            f"{row['driver_peak_mib']} MiB",
            "1 GB",
        )
        for row in figures["reads"]
    ]
    page += [
        Line(
            f"{row['actors']} pretended GPUs: share of the time that they read",
            f"{row['efficiency']:.1%}",
        )
        for row in figures["actors"]
    ]
    write_report(arguments, ["ray", "polars", "pyarrow"], figures, page)


def _arguments(options: Sequence[str] | None) -> argparse.Namespace:
    quick = {"reads": [10_000], "passages": 20_000, "actors": [2], "seconds": 10}
    parser = make_parser(__doc__, quick=quick)
    parser.add_argument("--reads", type=int, nargs="*", help="reads of single passages")
    parser.add_argument("--passages", type=int, default=200_000, help="of the corpus")
    parser.add_argument("--actors", type=int, nargs="*", help="pretended GPUs")
    parser.add_argument(
        "--seconds", type=float, default=60, help="of reading, for each number of actors"
    )
    parser.add_argument("--resamples", type=int, default=0, help="of the statistics at the end")
    parser.add_argument("--folder", type=Path, help="where files are made; by default temporary")
    arguments: argparse.Namespace = parser.parse_args(options)
    if arguments.reads is None and arguments.actors is None:
        arguments.reads, arguments.actors = [100_000, 1_000_000], [1, 8, 16]
    arguments.reads, arguments.actors = arguments.reads or [], arguments.actors or []
    return arguments


def _by_reads(folder: Path, reads: int, passages: int, resamples: int) -> dict[str, Any]:
    """A number of reads: done, resumed by manifests, and resumed by keys."""

    def evaluated(what: str) -> dict[str, Any]:
        figures = in_fresh_process(_evaluate, str(folder), reads // K, resamples)
        # At once, since the largest take hours.
        print(json.dumps({"reads": reads, "evaluation": what, **figures}), flush=True)
        return dict(figures)

    made = in_fresh_process(_make, str(folder), reads // K, passages)
    done = evaluated("first")
    manifests = evaluated("resumed by manifests")
    for found in (folder / "out").iterdir():
        if found.name != "inputs":
            shutil.rmtree(found)
    keys = evaluated("resumed without manifests")
    size = sum(file.stat().st_size for file in (folder / "store").rglob("*") if file.is_file())
    return {
        "reads": reads,
        "lists": reads // K,
        **made,
        **done,
        "store_bytes_a_read": round(size / (reads + reads // K), 1),
        "resumed_seconds": manifests["seconds"],
        "resumed_peak_mib": manifests["driver_peak_mib"],
        "without_manifests_seconds": keys["seconds"],
        "without_manifests_peak_mib": keys["driver_peak_mib"],
        "reads_done_again": manifests["done"] + keys["done"],
    }


def _make(place: str, queries: int, passages: int) -> dict[str, Any]:
    from benchmarks._pretended import make_inputs

    make_inputs(Path(place, "files"), queries=queries, k=K, passages=passages)
    return {}


def _evaluate(place: str, queries: int, resamples: int) -> dict[str, Any]:
    """Partition, evaluate with a reader that costs nothing, on this machine's CPUs, and write the results."""
    from benchmarks._pretended import FreeHost
    from engine.machine import cluster
    from engine.report.results import write_results

    start, clock = time.perf_counter(), time.process_time()
    told: list[tuple[float, float]] = []
    result, partitioned = _run(Path(place), FreeHost, actors=None, resamples=resamples, told=told)
    write_results(result, {}, Path(place, "results"))
    seconds, cpu = time.perf_counter() - start, time.process_time() - clock
    cluster.stop_ray()
    costs = result.readings["reader"].costs
    return {
        "seconds": round(seconds, 1),
        "partition_seconds": round(partitioned, 1),
        "first_read_seconds": round(told[0][0] - start, 1) if told else None,
        "driver_microseconds_a_read": round(1e6 * cpu / costs.wanted, 1),
        "driver_peak_mib": _peak_mib(),
        "done": costs.done,
    }


def _run(
    place: Path,
    host: Any,
    *,
    actors: int | None,
    resamples: int,
    told: list[tuple[float, float]],
    k: int = K,
) -> tuple[Any, float]:
    from engine.evaluation.evaluate import evaluate_shards
    from engine.evaluation.jobs import Context
    from engine.evaluation.read import check_readers
    from engine.evaluation.settings import Settings
    from engine.inputs.files import InputFiles
    from engine.inputs.partition import partition
    from engine.machine.pool import beside_ray
    from engine.sources.io.folders import folder_at

    files = InputFiles(
        queries=place / "files" / "queries.jsonl",
        corpus=place / "files" / "corpus.parquet",
        run=(place / "files" / "run.parquet",),
    )
    settings = Settings.of(
        k=k,
        end_to_end_k=min(k, _WHOLE),
        annotators=("erag",),
        measures=f"nDCG@{min(k, 10)} P@{min(k, 10)}",
        resamples=resamples,
        dtype="float32",
        actors=actors,
    )

    def on_progress(done: int, total: int) -> None:
        if done:  # the first call precedes all reads
            told.append((time.perf_counter(), time.process_time()))

    start = time.perf_counter()
    made = beside_ray(
        partial(partition, files, folder_at(place / "out" / "inputs"), k=k),
        settings.running.pool(),
        check=partial(check_readers, [settings]),
    )
    partitioned = time.perf_counter() - start
    (result,) = evaluate_shards(
        made,
        [settings],
        Context(store=place / "store", on_progress=on_progress, host=host),
        folder_at(place / "out"),
    )[0]
    return result, partitioned


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@contextlib.contextmanager
def _fake_gpus(actors: int) -> Iterator[None]:
    """A cluster of this machine's processes that claims a GPU for each actor."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = min(_NODES, actors)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False},
    )
    for number in range(nodes):
        share = actors // nodes + (number < actors % nodes)
        # The main memory that these nodes claim is declared for each actor, and no actor needs it.
        cluster.add_node(num_cpus=2, num_gpus=share, object_store_memory=100 * 2**20, memory=2**40)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        os.environ.pop("RAY_ADDRESS")
        ray.shutdown()
        cluster.shutdown()


def _make_for_actors(place: str, actors: int, seconds: float) -> None:
    """Make inputs with as many reads as the actors do in this time."""
    from benchmarks._pretended import SlowHost, make_inputs

    queries = max(10, round(actors * SlowHost.TOKENS_PER_SECOND * seconds / _TOKENS_OF_QUERY))
    make_inputs(Path(place, "files"), queries=queries, k=_K_OF_ACTORS, passages=20_000)


def _simulate(actors: int, seconds: float) -> dict[str, Any]:
    from benchmarks._driver import simulate
    from benchmarks._pretended import SlowHost

    return simulate(
        actors,
        seconds,
        tokens_per_second=SlowHost.TOKENS_PER_SECOND,
        tokens_per_pair=_TOKENS_OF_QUERY / _K_OF_ACTORS,
    )


def _by_actors(place: str, actors: int) -> dict[str, Any]:
    """The share of the time in which the actors read, from the start of the last actor to the end of the last."""
    from benchmarks._pretended import SlowHost
    from engine.machine import cluster

    with _fake_gpus(actors):
        start, started = time.perf_counter(), time.time()
        told: list[tuple[float, float]] = []
        result, _ = _run(
            Path(place), SlowHost, actors=actors, resamples=0, told=told, k=_K_OF_ACTORS
        )
        total = time.perf_counter() - start
        cluster.stop_ray()
    costs = result.readings["reader"].costs
    lines = [log.read_text().splitlines() for log in sorted(Path(place, "log").iterdir())]
    logs = [[tuple(map(float, line.split())) for line in of_one] for of_one in lines if of_one]
    spans = [[(first, last) for first, last, _ in of_one] for of_one in logs]
    begun = max(of_one[0][0] for of_one in spans)
    ended = max(last for of_one in spans for _, last in of_one)
    busy = sum(max(0.0, last - max(first, begun)) for of_one in spans for first, last in of_one)
    units = sum(map(len, spans))
    return {
        "actors": actors,
        "actors_that_read": len(spans),
        "reads": costs.done,
        "units": units,
        "unit_seconds": round(costs.reader_seconds / units, 2),
        "longest_unit_seconds": round(max(last - first for one in spans for first, last in one), 2),
        "actors_with_torch": sum(any(torch for *_, torch in of_one) for of_one in logs),
        # Time until the last actor reads, since the start of the job.
        "start_seconds": round(begun - started, 1),
        "reading_seconds": round(ended - begun, 1),
        "efficiency": round(busy / actors / (ended - begun), 3),
        "units_a_second": round(units / (ended - min(of_one[0][0] for of_one in spans)), 2),
        # Between the end of the first unit and the last.
        "driver_milliseconds_a_unit": round(1e3 * (told[-1][1] - told[0][1]) / units, 1),
        "total_seconds": round(total, 1),
        "driver_peak_mib": _peak_mib(),
    }


if __name__ == "__main__":
    main()
