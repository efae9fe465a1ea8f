"""What is known of an evaluation while it reads, from what its process has: outputs, or shards that are scored.

Nothing is read for it, and every output is scored once. Where inputs are held, a metric of the user's is not called for it:
what a call costs is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import polars as pl

from engine.evaluation.context import Known
from engine.evaluation.parts import InFolder, InMemory
from engine.evaluation.passes import Pass
from engine.evaluation.read_jobs import IDENTITY
from engine.evaluation.shard_plans import plan_name
from engine.evaluation.workload import Workload
from engine.labels.annotator import READER
from engine.scoring.metrics import score_outputs
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, LABEL, QUERY_ID, RANK, READ_KEY, RUN, VALUE, N

# Shards whose figures one call takes at most: an evaluation that goes on may find thousands that are scored.
_SHARDS = 20
_SUMS = pl.DataFrame(schema={"lists": pl.Boolean, RUN: pl.String, N: pl.UInt32, VALUE: pl.Float64})


class SoFar:
    """Says what is known now, under the first settings; one thread at a time may ask."""

    def __init__(self, work: Workload, passes: Sequence[Pass]) -> None:
        self._work, self._passes, self._settings = work, passes, work.conditions[0]
        # A single output is not yet the label of every annotator that asks: it may be of one of several references.
        asking = (
            one.name
            for one in self._settings.resolved.listed
            if one.name in self._settings.resolved.asks
            and (one.is_the_readers or not work.prepared)
        )
        self._asking = next(asking, "")
        self._seen: Counter[str] = Counter()
        self._sums, self._queries = _SUMS, 0

    def __call__(self) -> Known:
        new = self._held() if self._work.prepared else self._scored()
        self._sums = pl.concat([self._sums, *new]).group_by("lists", RUN).sum()
        sums = {(lists, run): (total / n, n) for lists, run, n, total in self._sums.iter_rows()}
        failures = [list(one.failures.values()) for one in self._passes]
        return Known(
            runs=self._work.shards.runs,
            scores={run: mean for (lists, run), mean in sums.items() if lists},
            labels={run: mean for (lists, run), mean in sums.items() if not lists},
            metric=self._settings.reader.metric_name,
            annotator=self._asking,
            failed=sum(len(of_shard) for of_job in failures for of_shard in of_job),
            queries=None if self._work.prepared else self._queries,
        )

    def _held(self) -> Iterator[pl.DataFrame]:
        """Sums over the outputs that have come since the last call."""
        work, prepared = self._work, self._work.prepared[0]
        (parts, *_), metric = work.parts, self._settings.reader.metric
        if not isinstance(parts, InMemory) or self._settings.reader.scored_by.own:
            return
        for role, job in work.roles[0].items():
            plan = parts.plan(plan_name(work, job), 0)
            new = parts.outputs.get(job.spec.fingerprint, [])[self._seen[role] :]
            if plan is None or not new:
                continue
            self._seen[role] += len(new)
            found = pl.concat(new).drop(IDENTITY)
            # Lists that are equal, or are of one passage, are planned more than once.
            reads = plan.select(READ_KEY, *IDENTITY).join(found, on=READ_KEY).unique(IDENTITY)
            if role == READER.name and self._settings.reader.end_to_end:
                whole = prepared.lists.join(reads, on=IDENTITY)
                yield _summed(score_outputs(whole, prepared.inputs.queries, metric), lists=True)
            ask = self._settings.resolved.asks.get(self._asking)
            if ask is not None and ask.role.name == role:
                alone = reads.filter(pl.col(DOC_IDS).list.len() == 1)
                label = ask.value(alone, prepared.inputs.queries).alias(VALUE)
                alone = alone.select(QUERY_ID, pl.col(DOC_IDS).list.first().alias(DOC_ID), label)
                yield _summed(prepared.inputs.runs.join(alone, on=[QUERY_ID, DOC_ID]), lists=False)

    def _scored(self) -> Iterator[pl.DataFrame]:
        """Sums over shards that have been scored since the last call."""
        shards, (parts, *_) = self._work.shards, self._work.parts
        assert isinstance(parts, InFolder)
        left = parts.unfinished(shards.shards)
        new = (s for s in shards.shards if s.number not in left and not self._seen[str(s.number)])
        for shard in islice(new, _SHARDS):
            self._seen[str(shard.number)] += 1
            self._queries += shard.queries
            yield _summed(parts.done(shard).scored.downstream, lists=True)
            (labels,) = parts.table("labels", [shard])
            runs = shards.read(shard.number, passages=False).runs
            runs = runs.filter(pl.col(RANK) <= self._settings.ranking.k)
            own = labels.filter(pl.col(ANNOTATOR) == self._asking).rename({LABEL: VALUE})
            yield _summed(runs.join(own, on=[QUERY_ID, DOC_ID]), lists=False)


def _summed(values: pl.DataFrame, *, lists: bool) -> pl.DataFrame:
    """How many values each run has, and their sum."""
    known = values.drop_nulls(VALUE).group_by(RUN).agg(pl.len().alias(N), pl.col(VALUE).sum())
    return known.select(pl.lit(lists).alias("lists"), RUN, N, VALUE)
