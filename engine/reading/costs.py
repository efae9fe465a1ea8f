"""What reads cost: counts, tokens, time and memory of a job's reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.machine.watch import PoolTotals


@dataclass(kw_only=True)
class ReadingCosts:
    """What a job's reads cost.

    Attributes:
        wanted: distinct reads that the job asked for.
        reused: those found in the store.
        done: those done now, failed ones included.
        failed: those that could not be done.
        seconds: wall-clock seconds of reading, start of the actors included. Where readers shared the
            actors, the part of it that is the share of these reads in ``reader_seconds``.
        reads_per_second: ``done`` by ``seconds``.
        reader_seconds: time that the actors spent reading, in total.
        prompt_tokens, output_tokens: of the reads done now.
        computed_tokens: prompt tokens that were computed; fewer, since what several prompts begin with
            counts once.
        padded_tokens: the same with padding.
        padding_share: of the padded tokens.
        memory_halvings: batches halved because memory ran out.
        workers: peak memory in bytes of each actor.
        damaged_files: paths of files of the store that the disk damaged, now set aside; reads in them
            that were wanted were done again.
        lost_nodes, joined_nodes: nodes that left the cluster, and that joined it, while it read.
        restarted_actors: actors whose process ended and was started again.
        repeated_units: units of work that were begun more than once.
        waited_seconds: time without any node that an actor fits on.
    """

    wanted: int = 0
    reused: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    reads_per_second: float = 0.0
    reader_seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    padding_share: float = 0.0
    memory_halvings: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    damaged_files: list[str] = field(default_factory=list)
    lost_nodes: int = 0
    joined_nodes: int = 0
    restarted_actors: int = 0
    repeated_units: int = 0
    waited_seconds: float = 0.0


def share_costs(costs: Sequence[ReadingCosts], seconds: float, totals: PoolTotals) -> None:
    """Put into the costs of jobs that shared a pool how long it took, and what happened to it.

    Each has the part of the time that its reads took of the readers'; what happened is told once, with the
    first.
    """
    busy = sum(one.reader_seconds for one in costs)
    for one in costs:
        one.seconds = seconds * (one.reader_seconds / busy if busy else 1 / len(costs))
        if one.done and one.seconds:
            one.reads_per_second = one.done / one.seconds
    for name, value in asdict(totals).items():
        setattr(costs[0], name, value)


def add_counters(costs: ReadingCosts, workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Put into the costs the last counters (``ReaderStats``) of each actor."""
    costs.computed_tokens = sum(stats["prompt_tokens"] for stats in workers.values())
    costs.padded_tokens = sum(stats["padded_tokens"] for stats in workers.values())
    costs.memory_halvings = sum(stats["memory_halvings"] for stats in workers.values())
    costs.workers = {name: stats["peak_memory"] for name, stats in workers.items()}
    if costs.padded_tokens:
        costs.padding_share = 1 - costs.computed_tokens / costs.padded_tokens
