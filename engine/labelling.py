"""Labels that need no reading, and where every label comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.labels import containment, dual, preference, provenance, qrels, traces
from engine.labels.function import Annotator
from engine.settings import ANNOTATORS, Settings
from engine.sources.inputs import EvaluationInputs
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
    for name in (provenance.NAME, dual.NAME):
        if name in settings.annotators and inputs.queries[PROVENANCE].list.len().sum() == 0:
            raise InputError(
                None, None, "no query has provenance", f"leave {name} out of --annotators"
            )
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
        if name in containment.NAMES:
            labels[name] = containment.label(pairs, queries, corpus, name=name)
            behind[name] = traces.trace_containment(labels[name], queries, corpus, name)
        elif name == provenance.NAME:
            labels[name] = provenance.label(pairs, queries, corpus)
            behind[name] = traces.trace_provenance(labels[name], queries, corpus)
        elif name == dual.NAME:
            dual_labels = dual.label_both(pairs, queries, corpus)
            labels[name] = dual.label(dual_labels)
            behind[name] = traces.trace_dual(labels[name], queries, corpus)
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
