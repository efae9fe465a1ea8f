"""Which evaluations are cut into shards: large ones."""

from __future__ import annotations

from engine.evaluation.inputs import InputFiles
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.partition import PAIRS_PER_SHARD
from engine.sources.runs.size import lists_at_least

# Listed passages from which on an evaluation is large: half a gigabyte of prompts, and a minute to make them.
LARGE = 200_000


def shard_pairs(files: InputFiles, settings: Settings) -> int:
    """Listed passages of a shard, for an evaluation that is too large to be held; else 0."""
    wanted = settings.running.shard_pairs
    if wanted is not None:
        return wanted
    return PAIRS_PER_SHARD if lists_at_least(files.run, LARGE, k=settings.ranking.k) else 0
