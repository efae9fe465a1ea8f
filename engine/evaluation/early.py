"""Check an evaluation in shards before anything is read, as ``prepare`` checks a whole one.

It finds what the queries file, the runs and given labels show, without the texts of passages. What labels by
reading show is known when a shard is scored.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation.inputs import NO_INPUTS, EvaluationInputs, cut_inputs
from engine.evaluation.prepare import (
    label,
    pairs_to_label,
    refuse_lacking_tables,
    refuse_meaningless,
    refuse_queries,
    refuse_unjudged,
    refuse_without_threshold,
    split_measures,
)
from engine.evaluation.settings import Settings
from engine.evaluation.shards import InputShards
from engine.labels.annotator import Annotator, Labelled, PartialCorpusError
from engine.ranking.kernel import is_real_valued
from engine.ranking.scores import largest_label, lists_nothing, without_results
from engine.sources.io.ahead import mapped
from engine.tables import LABEL, QUERY_ID


def refuse_early(shards: InputShards, settings: Settings) -> None:
    """Refuse what cannot work, with the errors of ``prepare``; a label that is an example may be another one."""
    queries = shards.queries()
    refuse_lacking_tables(settings, shards.tables)
    whole = replace(
        NO_INPUTS, queries=queries, queries_file=shards.queries_file, unmatchable=shards.unmatchable
    )
    refuse_queries(whole, settings)
    asking = settings.resolved.asks
    from_files = [
        _FileLabels(annotator)
        for annotator in settings.resolved.listed
        if annotator.needs_input is not None
        and annotator.name not in asking
        and not annotator.rests_on(settings)
    ]
    counts_missing = settings.ranking.missing == "error"
    lacking: dict[str, list[str]] = {run: [] for run in shards.runs}

    def read(number: int) -> EvaluationInputs:
        return cut_inputs(shards.read(number, passages=False), settings.ranking.k)

    looked_at = range(len(shards.shards)) if from_files or counts_missing else ()
    for inputs in mapped(read, looked_at):
        if counts_missing:
            query_ids = inputs.queries[QUERY_ID].to_list()
            for run, missing in without_results(inputs.runs, query_ids, names=shards.runs):
                lacking[run] += missing
        for labels in from_files:
            labels.look_at(inputs, settings)
    for run, missing in lacking.items():
        if missing:
            in_order = queries[QUERY_ID].filter(queries[QUERY_ID].is_in(missing))
            raise lists_nothing(run, len(missing), in_order[0])
    for labels in from_files:
        name, exceeding = labels.annotator.name, labels.exceeding
        if labels.real_valued and exceeding:
            refuse_without_threshold(name, labels.example, settings.resolved.measures)
        split_measures(name, settings, real_valued=labels.real_valued, exceeding=exceeding)
    refuse_unjudged({labels.annotator.name: labels.labelled_queries for labels in from_files})
    refuse_meaningless(settings, len(shards.runs))


def refuse_partial_corpus(runs: tuple[str, ...], settings: Settings) -> None:
    """Refuse an annotator that looks at the corpus, where queries are labelled in parts: it is shown an empty part."""
    part = replace(NO_INPUTS, names=runs, is_whole=False)
    nothing = Labelled(tables.empty(tables.LABELS), tables.empty(tables.TRACES))
    rests_on = {annotator.name: nothing for annotator in settings.resolved.annotators}
    for annotator in settings.resolved.annotators:
        try:
            label(annotator, part, settings, pairs_to_label(part), rests_on)
        except PartialCorpusError:
            raise
        except Exception:
            continue  # it needs queries: what it looks at is known once they are labelled


class _FileLabels:
    """What labels show that are made of a file alone."""

    def __init__(self, annotator: Annotator) -> None:
        self.annotator = annotator
        self.labelled_queries = 0
        self.real_valued = self.exceeding = False
        self.example = tables.empty(tables.LABELS)

    def look_at(self, inputs: EvaluationInputs, settings: Settings) -> None:
        """Take note of a shard; such labels need no passages."""
        labelled = label(self.annotator, inputs, settings, pairs_to_label(inputs), {})
        self.labelled_queries += inputs.queries.height - len(labelled.unjudged)
        self.labelled_queries += sum(of.height for of in labelled.tables.values())
        counted = labelled.labels.filter(pl.col(LABEL) >= 0)
        self.exceeding |= largest_label(counted[LABEL]) > 1
        if not self.real_valued and is_real_valued(counted[LABEL].to_numpy()):
            self.real_valued = True
            self.example = counted.filter(pl.col(LABEL) != pl.col(LABEL).round()).head(1)
