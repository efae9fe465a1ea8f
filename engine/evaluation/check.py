"""Check the inputs and settings of an evaluation before anything is read, which may take hours.

The queries, the runs and given labels are checked, shard by shard, without the texts of passages. Labels made from
texts or by reading are checked when a shard is scored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation.inputs import NO_INPUTS, EvaluationInputs, cut_inputs
from engine.evaluation.prepare import (
    label,
    pairs_to_label,
    refuse_unjudged,
    refuse_without_threshold,
    split_measures,
)
from engine.evaluation.reference_answers import query_place, refuse_unscorable
from engine.evaluation.settings import Settings, leave_out
from engine.evaluation.shards import InputShards
from engine.labels.annotator import Labelled, PartialCorpusError
from engine.messages.errors import InputError
from engine.ranking.measures import UTILITY_KIND
from engine.ranking.scores import largest_label, lists_nothing, score_runs, without_results
from engine.sources.io.ahead import mapped
from engine.tables import LABEL, QUERY_ID


def check(shards: InputShards, settings: Settings) -> None:
    """Refuse inputs and settings that cannot be evaluated.

    Raises:
        InputError: an annotator lacks what it needs, the metric cannot score a query's answers, no query is judged,
            a measure has no meaning on given labels (the label that is named is an example), or a run lists nothing
            for a query where ``missing`` is ``error``.
    """
    queries = shards.queries()
    refuse_lacking_tables(settings, shards.tables)
    whole = replace(
        NO_INPUTS, queries=queries, queries_file=shards.queries_file, unmatchable=shards.unmatchable
    )
    _refuse_queries(whole, settings)
    asking = settings.resolved.asks
    from_files = [
        annotator
        for annotator in settings.resolved.listed
        if annotator.needs_input is not None
        and annotator.name not in asking
        and not annotator.rests_on(settings)
    ]
    # What labels show that are made of a file alone, by annotator; an example lies between whole numbers.
    judged = {annotator.name: 0 for annotator in from_files}
    exceeding, examples = set[str](), dict[str, pl.DataFrame]()
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
        for annotator in from_files:
            labelled = label(annotator, inputs, settings, pairs_to_label(inputs), {})
            judged[name := annotator.name] += inputs.queries.height - len(labelled.unjudged)
            judged[name] += sum(of.height for of in labelled.tables.values())
            counted = labelled.labels.filter(pl.col(LABEL) >= 0)
            if largest_label(counted[LABEL]) > 1:
                exceeding.add(name)
            example = counted.filter(pl.col(LABEL) != pl.col(LABEL).round()).head(1)
            if example.height:
                examples.setdefault(name, example)
    for run, missing in lacking.items():
        if missing:
            in_order = queries[QUERY_ID].filter(queries[QUERY_ID].is_in(missing))
            raise lists_nothing(run, len(missing), in_order[0])
    for name in judged:
        if name in examples and name in exceeding:
            refuse_without_threshold(name, examples[name], settings.resolved.measures)
        split_measures(name, settings, real_valued=name in examples, exceeding=name in exceeding)
    refuse_unjudged(judged)
    _refuse_meaningless(settings, len(shards.runs))


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


def refuse_lacking_tables(settings: Settings, given: Collection[str]) -> None:
    """Refuse annotators whose file is not among the names of those given."""
    for annotator, needed in settings.resolved.needed:
        table = needed.needs_input
        if table is not None and table.name not in given:
            raise InputError(
                f"the annotator {needed.name} without `{table.name}`",
                f"give `{table.name}` FILE, or {leave_out(annotator, needed.name)}",
            )


def _refuse_queries(inputs: EvaluationInputs, settings: Settings) -> None:
    """Refuse all queries without clusters or gold articles that are needed, or with answers that cannot be scored."""
    if settings.bootstrap.cluster and tables.CLUSTER not in inputs.queries.columns:
        raise InputError(
            "`cluster`, but the inputs were read without", "give it to `read_inputs` too"
        )
    lacking = not int(inputs.queries[tables.PROVENANCE].list.len().sum())
    for annotator, needed in settings.resolved.needed:
        if not needed.needs_provenance or not (lacking or inputs.unmatchable):
            continue
        remedy = leave_out(annotator, needed.name)
        if lacking:
            raise InputError("no query has provenance", remedy)
        path, line = query_place(inputs, query_id := inputs.unmatchable[0])
        raise InputError(
            f"the gold articles of query {query_id!r} have a title and no id, and no listed "
            "passage has a title",
            f'add "wikipedia_id" to them, or titles to the corpus, or {remedy}',
            path=path,
            line=line,
        )
    refuse_unscorable(inputs, settings)


def _refuse_meaningless(settings: Settings, runs: int) -> None:
    """Refuse what the ranking measures refuse whatever the labels are."""
    score_runs(
        tables.empty({**tables.RUNS, tables.TOKENS: pl.Int64()}),
        tables.empty(tables.LABELS),
        [],
        [measure for measure in settings.resolved.measures if measure.kind != UTILITY_KIND],
        relevant=settings.relevant(runs),
    )
