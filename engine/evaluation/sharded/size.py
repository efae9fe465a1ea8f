"""Which evaluations are done in shards: large ones, where everything is made query by query."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from engine.errors import InputError
from engine.evaluation.api_readers import asks_servers
from engine.evaluation.inputs import InputFiles
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.partition import PAIRS_PER_SHARD
from engine.labels.registry import ANNOTATORS
from engine.sources.runs.size import lists_at_least

# Listed passages from which on an evaluation is large: half a gigabyte of prompts, and a minute to make them.
LARGE = 200_000


class Choice(NamedTuple):
    """How an evaluation is done.

    Attributes:
        pairs: listed passages of a shard; 0 for an evaluation that one process holds.
        reason: why a large evaluation is not done in shards all the same; empty where it is, or is small.
    """

    pairs: int
    reason: str = ""


def choose(files: InputFiles, conditions: Collection[Settings]) -> Choice:
    """Whether to evaluate in shards, and of which size.

    Raises:
        InputError: shards were asked for, and cannot be.
    """
    first = next(iter(conditions))
    wanted = first.running.shard_pairs
    if wanted == 0:
        return Choice(0)
    if wanted is None and not lists_at_least(files.run, LARGE, k=first.ranking.k):
        return Choice(0)
    reason = _reason(files, conditions)
    if reason and wanted:
        raise InputError(f"`shard_pairs` {wanted} with {reason}", "leave one of them out")
    return Choice(0 if reason else wanted or PAIRS_PER_SHARD, reason)


def _reason(files: InputFiles, conditions: Collection[Settings]) -> str:
    """What of an evaluation cannot be made in shards; empty if all can."""
    if len(conditions) > 1:
        return "several readers, augmentations or cutoffs"
    if files.edits is not None:
        return "`edits`"
    if files.corpus is None:
        return "runs that carry their texts, without `corpus`"
    (settings,) = conditions
    if settings.running.certify:
        return "`certify`"
    if asks_servers(settings):
        return "a reader behind an API"
    if settings.reader.scored_by.own:
        return f"the metric {settings.reader.metric_name}, a function"
    if any(not own.is_kept for own in settings.reader.functions):
        return "a reader that is a function without a version"
    for annotator in settings.annotators_in_use():
        if any(table.of_all_queries for table in annotator.further_tables):
            return f"the annotator {annotator.name}, whose figures are of all queries"
        if annotator.name not in ANNOTATORS:
            return f"the annotator {annotator.name}, a function"
    return ""
