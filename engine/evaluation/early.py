"""What is refused of an evaluation in shards before anything is read, as ``prepare`` does of a whole one.

That which a queries file, runs and given labels show is found out here, shard after shard, without the
texts of passages. What labels by reading show is known when the shard is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation.inputs import NO_INPUTS, EvaluationInputs, cut_inputs
from engine.evaluation.prepare import (
    pairs_to_label,
    refuse_lacking_provenance,
    refuse_lacking_tables,
    refuse_meaningless,
    refuse_unjudged,
    refuse_unmatchable,
    refuse_without_threshold,
    split_measures,
)
from engine.evaluation.references import first_unscorable, unscorable
from engine.evaluation.settings import Settings
from engine.evaluation.shards import InputShards
from engine.labels.annotator import Annotator, Material
from engine.ranking.kernel import is_real_valued
from engine.ranking.scores import largest_label, lists_nothing, without_results
from engine.sources.io.ahead import mapped
from engine.tables import LABEL, PROVENANCE, QUERY_ID


def refuse_early(shards: InputShards, settings: Settings) -> None:
    """Refuse what cannot work, as far as it can be known without reading.

    A file of every shard is looked at, in memory that does not grow with them. Errors are those of
    ``prepare``; a label that is an example of what cannot be may be another one.

    Raises:
        InputError: as ``prepare``, but for labels that are made from the texts of passages.
    """
    found = _Found(shards, settings)

    def read(number: int) -> EvaluationInputs:
        inputs = shards.read(number, passages=False)
        return cut_inputs(inputs, settings.ranking.k)

    for number, inputs in enumerate(mapped(read, range(len(shards.shards)))):
        if number == 0:
            refuse_lacking_tables(settings, inputs.tables.keys())
        found.look_at(inputs)
    found.refuse()


class _Found:
    """What was found in the shards so far."""

    def __init__(self, shards: InputShards, settings: Settings) -> None:
        self._shards, self._settings = shards, settings
        self._provenance = 0
        self._unmatchable: list[str] = []
        self._unscorable: dict[str, str] = {}
        self._lacking: Counter[str] = Counter()
        self._first_lacking: dict[str, list[str]] = {run: [] for run in shards.runs}
        asking = settings.asks()
        self._given = [
            _Given(annotator)
            for annotator in settings.labels.listed()
            if annotator.needs_input is not None
            and annotator.name not in asking
            and not annotator.rests_on(settings)
        ]

    def look_at(self, inputs: EvaluationInputs) -> None:
        """Take note of a shard, whose corpus is empty."""
        settings = self._settings
        self._provenance += int(inputs.queries[PROVENANCE].list.len().sum())
        self._unmatchable += inputs.unmatchable[:1]
        if (first := first_unscorable(inputs, settings)) is not None:
            query_id, answer = first
            self._unscorable[query_id] = answer
        if settings.ranking.missing == "error":
            query_ids = inputs.queries[QUERY_ID].to_list()
            for run, lacking in without_results(inputs.runs, query_ids, names=inputs.run_names):
                self._lacking[run] += len(lacking)
                self._first_lacking[run] += lacking[:1]
        for given in self._given:
            given.look_at(inputs, settings)

    def refuse(self) -> None:
        """Raise the first error that ``prepare`` would."""
        shards, settings = self._shards, self._settings
        place = replace(NO_INPUTS, queries_file=shards.queries_file)
        refuse_lacking_provenance(settings, self._provenance)
        refuse_unmatchable(replace(place, unmatchable=self._in_order(self._unmatchable)), settings)
        for query_id in self._in_order(self._unscorable):
            raise unscorable(place, settings, query_id, self._unscorable[query_id])
        for run in shards.runs:
            for query_id in self._in_order(self._first_lacking[run]):
                raise lists_nothing(run, self._lacking[run], query_id)
        for given in self._given:
            given.refuse(settings)
        refuse_unjudged({given.annotator.name: given.judged for given in self._given})
        refuse_meaningless(settings, settings.judged(len(shards.runs)))

    def _in_order(self, query_ids: Iterable[str]) -> tuple[str, ...]:
        """These queries in the order of their file."""
        sought = list(query_ids)
        if not sought:
            return ()
        known = self._shards.query_ids()
        return tuple(known.filter(known.is_in(sought)))


class _Given:
    """What labels show that are made of a file alone."""

    def __init__(self, annotator: Annotator) -> None:
        self.annotator = annotator
        self.judged = 0
        self._real_valued = self._exceeding = False
        self._example = tables.empty(tables.LABELS)

    def look_at(self, inputs: EvaluationInputs, settings: Settings) -> None:
        """Take note of a shard; such labels need no passages."""
        made = self.annotator.label(
            Material(
                queries=inputs.queries,
                corpus=inputs.corpus,
                runs=inputs.runs,
                run_names=inputs.run_names,
                pairs=pairs_to_label(inputs),
                settings=settings,
                tables=inputs.tables,
                relevant=settings.judged(len(inputs.run_names)),
            )
        )
        self.judged += inputs.queries.height - len(made.unjudged)
        counted = made.labels.filter(pl.col(LABEL) >= 0)
        self._exceeding |= largest_label(counted[LABEL]) > 1
        if not self._real_valued and is_real_valued(counted[LABEL].to_numpy()):
            self._real_valued = True
            self._example = counted.filter(pl.col(LABEL) != pl.col(LABEL).round()).head(1)

    def refuse(self, settings: Settings) -> None:
        """Refuse measures that these labels do not have."""
        if self._real_valued and self._exceeding:
            refuse_without_threshold(self.annotator.name, self._example, settings.measures())
        split_measures(
            self.annotator, settings, real_valued=self._real_valued, exceeding=self._exceeding
        )
