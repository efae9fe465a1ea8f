"""Labels, from what is given and from what was read, and where every label comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.read import Reading, Role, queries_left_out
from engine.evaluation.settings import ANNOTATORS, Settings
from engine.labels import (
    containment,
    dual,
    erag,
    judge,
    preference,
    provenance,
    qrels,
    traces,
    utility,
)
from engine.labels.function import Annotator
from engine.scoring.metrics import score_outputs
from engine.tables import PROVENANCE


@dataclass(frozen=True)
class Labelled:
    """Labels and their traces, by annotator.

    Attributes:
        dual_labels: both labels of every passage; empty without the annotator ``dual``.
        preference_labels: with the judgments behind each; empty without ``preference``.
    """

    labels: dict[str, pl.DataFrame]
    traces: dict[str, pl.DataFrame]
    dual_labels: pl.DataFrame
    preference_labels: pl.DataFrame


def refuse_without_inputs(
    inputs: EvaluationInputs, settings: Settings, own: Sequence[Annotator]
) -> None:
    """Refuse annotators that lack what they label by, and names that stand for two.

    Raises:
        InputError: no provenance, no judgments, no preferences; or a name of ``own`` is taken.
    """
    wanted = {*settings.annotators}
    if utility.NAME in settings.annotators:
        wanted.add(settings.helpful)
    for name in (provenance.NAME, dual.NAME):
        if name in wanted and inputs.queries[PROVENANCE].list.len().sum() == 0:
            option = "--annotators" if name in settings.annotators else "--helpful"
            raise InputError(None, None, "no query has provenance", f"leave {name} out of {option}")
    for name, given, option in (
        (qrels.NAME, inputs.qrels, "--qrels"),
        (preference.NAME, inputs.preferences, "--preferences"),
    ):
        if name in settings.annotators and given is None:
            raise InputError(
                None, None, f"no judgments for the annotator {name}", f"give {option} FILE"
            )
    taken = set(ANNOTATORS)
    for annotator in own:
        if annotator.name in taken:
            raise InputError(
                None, None, f"two annotators are called {annotator.name!r}", "rename yours"
            )
        taken.add(annotator.name)


def label_without_reading(
    inputs: EvaluationInputs,
    pairs: pl.DataFrame,
    settings: Settings,
    own: Sequence[Annotator] = (),
) -> Labelled:
    """The labels of every annotator that asks no reader.

    Args:
        inputs: as ``refuse_without_inputs`` let them pass.
        pairs: ``query_id`` and ``doc_id`` of what is to be labelled.
        own: annotators beside those of the settings.
    """
    queries, corpus = inputs.queries, inputs.corpus
    labels: dict[str, pl.DataFrame] = {}
    behind: dict[str, pl.DataFrame] = {}
    dual_labels = tables.empty(tables.DUAL_LABELS)
    preference_labels = tables.empty(tables.PREFERENCE_LABELS)
    for name in settings.annotators:
        if name in (*containment.NAMES, provenance.NAME):
            labels[name], behind[name] = _search(name, pairs, queries, corpus)
        elif name == dual.NAME:
            dual_labels = dual.label_both(pairs, queries, corpus, settings.dual_words)
            labels[name] = dual.label(dual_labels)
            behind[name] = traces.trace_dual(labels[name], queries, corpus, settings.dual_words)
        elif name == preference.NAME and inputs.preferences is not None:
            preference_labels = preference.label_preferences(
                inputs.preferences, settings.preference_labels
            )
            labels[name] = preference.label(preference_labels)
            behind[name] = traces.trace_given(labels[name])
        elif name == qrels.NAME and inputs.qrels is not None:
            labels[name] = qrels.label(inputs.qrels)
            behind[name] = traces.trace_given(labels[name])
    for annotator in own:
        labels[annotator.name] = annotator.label(pairs, queries, corpus)
        behind[annotator.name] = traces.trace_given(labels[annotator.name])
    return Labelled(labels, behind, dual_labels, preference_labels)


def label_by_reading(
    readings: Mapping[Role, Reading],
    inputs: EvaluationInputs,
    pairs: pl.DataFrame,
    settings: Settings,
) -> tuple[dict[str, pl.DataFrame], dict[str, pl.DataFrame], dict[str, list[str]]]:
    """The labels of every annotator that asks a reader, by annotator.

    Args:
        readings: what ``readings.ask`` asked for, read; single passages first, in the order of
            ``pairs``.

    Returns:
        labels; their traces; and the queries that ``failed_reads`` leaves out, as a read failed.
    """
    queries, corpus = inputs.queries, inputs.corpus
    labels: dict[str, pl.DataFrame] = {}
    behind: dict[str, pl.DataFrame] = {}
    left_out: dict[str, list[str]] = {}
    alone = readings.get("erag") or readings.get("reader")
    if alone and settings.reads_alone():
        reads = alone.reads.head(pairs.height)
        # The output of a failed read is empty, which scores 0.
        labels[erag.NAME] = erag.label(score_outputs(reads, queries, settings.metric))
        behind[erag.NAME] = traces.trace_erag(labels[erag.NAME], reads, queries, settings.metric)
        left_out[erag.NAME] = queries_left_out(reads, settings)
    if judging := readings.get("judge"):
        labels[judge.NAME] = judge.label(judging.reads, settings.judge_labels)
        behind[judge.NAME] = traces.trace_judge(labels[judge.NAME], judging.reads)
        left_out[judge.NAME] = queries_left_out(judging.reads, settings)
    if declining := readings.get("abstain"):
        if settings.helpful == erag.NAME:
            helpful, why = labels[erag.NAME], behind[erag.NAME]
        else:
            helpful, why = _search(settings.helpful, pairs, queries, corpus)
        labels[utility.NAME] = utility.label(declining.reads, helpful)
        behind[utility.NAME] = traces.trace_utility(labels[utility.NAME], declining.reads, why)
        failed = queries_left_out(declining.reads, settings)
        of_labels = left_out.get(erag.NAME, []) if settings.helpful == erag.NAME else []
        left_out[utility.NAME] = list(dict.fromkeys([*of_labels, *failed]))
    return labels, behind, left_out


def _search(
    name: str, pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labels by containment or provenance, and their traces."""
    if name == provenance.NAME:
        found = provenance.label(pairs, queries, corpus)
        return found, traces.trace_provenance(found, queries, corpus)
    found = containment.label(pairs, queries, corpus, name=name)
    return found, traces.trace_containment(found, queries, corpus, name)
