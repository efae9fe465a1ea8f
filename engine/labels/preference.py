"""Labels, and preferred runs, from human judgments of passages or answers side by side."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import scipy as sp

from engine import tables
from engine.labels import annotator
from engine.labels.annotator import AnnotatorResult, FurtherTable, Scale, complete, labels_of
from engine.messages.checked import CheckedSettings
from engine.messages.notes import count_note
from engine.messages.wording import with_interval
from engine.sources.input_tables import InputTable
from engine.sources.runs.qrels import preferences_of, read_preferences
from engine.statistics.arrays import Floats
from engine.statistics.bounded import lower_bound, weighed
from engine.statistics.comparison import Clusters
from engine.tables import BEST, DOC_ID, LABEL, QUERY_ID, SHOWN, TIMES_CHOSEN, TIMES_SHOWN, VALUE

NAME = "preference"

PreferenceLabels = Literal["share", "bradley-terry"]

INPUT = InputTable(
    name="preferences",
    read=read_preferences,
    columns=tuple(tables.PREFERENCES),
    help="Which of two or three passages or answers people found best, in JSONL; for the annotator preference.",
    from_records=preferences_of,
)


@dataclass(frozen=True, kw_only=True)
class Options(CheckedSettings):
    """Options of the annotator ``preference``.

    Attributes:
        preference_labels: Times chosen over times shown (share), or Bradley-Terry, for few judgments.
    """

    preference_labels: PreferenceLabels = "share"


# Strength of the prior (L2 on log strengths). It keeps strengths finite for passages that were always chosen, as most
# are that few people saw.
PRIOR = 0.1
# Least number of judgments that differ from most. For 20 to 100 judgments, if people differ on 1% to 10% of queries, t
# intervals cover 53% at least; with a minimum of 5, 93%, with 6, 96%. A larger one would widen sound intervals.
FEW = 6


def label_preferences(judgments: pl.DataFrame, method: PreferenceLabels) -> pl.DataFrame:
    """Preference labels table: a label in [0, 1] and the judgments behind it, for each passage shown.

    ``share``: times chosen, alone or as equally good, over times shown. ``bradley-terry``: the strengths of Bradley &
    Terry (1952), for choices among several as Luce (1959) extends them, within each query, with "none" as one more
    choice on every screen. The label is the probability of choosing the passage if it stands alone, strength /
    (strength + strength of "none"). Beating strong passages counts more, which matters if each passage was judged a few
    times. Equally good ones are each chosen over the others. Fitted by ``choix.opt_top1`` with a prior of ``PRIOR``, so
    that few judgments give labels off 0 and 1.
    """
    judgments = judgments.filter(pl.col(SHOWN).list.len() > 0)
    passage = pl.col(SHOWN).alias(DOC_ID)
    chosen = pl.col(BEST).list.contains(pl.col(SHOWN)).sum().cast(pl.Int64).alias(TIMES_CHOSEN)
    shown = judgments.explode(SHOWN).group_by(QUERY_ID, passage, maintain_order=True)
    counts = shown.agg(pl.len().cast(pl.Int64).alias(TIMES_SHOWN), chosen)
    if method == "share":
        labels = pl.col(TIMES_CHOSEN) / pl.col(TIMES_SHOWN)
        return counts.with_columns(labels.alias(LABEL)).select(list(tables.PREFERENCE_LABELS))
    fitted = [
        (query_id, doc_id, label)
        for (query_id,), own in judgments.group_by([QUERY_ID], maintain_order=True)
        for doc_id, label in _fit(own).items()
    ]
    schema = {name: tables.PREFERENCE_LABELS[name] for name in (QUERY_ID, DOC_ID, LABEL)}
    strengths = pl.DataFrame(fitted, schema=schema, orient="row")
    labelled = counts.join(strengths, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left")
    return labelled.select(list(tables.PREFERENCE_LABELS))


def _fit(judgments: pl.DataFrame) -> dict[str, float]:
    import choix  # takes a while, and few ask for it

    passages = judgments[SHOWN].explode().unique(maintain_order=True).to_list()
    places = {doc_id: place for place, doc_id in enumerate(passages)}
    nobody = len(passages)
    choices = []
    for shown, best in judgments.select(SHOWN, BEST).iter_rows():
        winners = [places[doc_id] for doc_id in best] or [nobody]
        others = {*(places[doc_id] for doc_id in shown), nobody}.difference(winners)
        choices += [(winner, tuple(sorted(others))) for winner in winners]
    strengths = np.asarray(choix.opt_top1(nobody + 1, choices, alpha=PRIOR, tol=1e-9))
    labels = sp.special.expit(strengths[:nobody] - strengths[nobody])
    return dict(zip(passages, labels.tolist(), strict=True))


def _label(material: annotator.Material) -> AnnotatorResult:
    options, judgments = material.settings.options(Options), material.tables[INPUT.name]
    counted_labels = label_preferences(judgments, options.preference_labels)
    labels = labels_of(NAME, counted_labels, pl.col(LABEL))  # sparse, like qrels
    beyond = labels.join(material.runs, on=[QUERY_ID, DOC_ID], how="anti")
    unjudged = material.lacking(labels)
    compared = judgments.filter(pl.col(tables.RUN) != "")
    is_known = pl.all_horizontal(pl.col(tables.RUN, tables.RUN_B).is_in(material.run_names))
    known = compared.filter(is_known)
    return AnnotatorResult(
        labels,
        complete(labels),
        {_COUNTED.name: counted_labels, _PREFERRED.name: known},
        (
            count_note(
                "queries_without_preferences",
                len(unjudged),
                "[query has|queries have] no preferences and [is|are] left out of their scores",
            ),
            count_note(
                "preferences_beyond_lists",
                beyond.height,
                "[passage|passages] of the preferences [is|are] in no list",
            ),
            count_note(
                "preferences_for_other_runs",
                compared.height - known.height,
                "[comparison|comparisons] of runs in the preferences [is|are] of runs that are not evaluated here",
            ),
        ),
        unjudged,
    )


def preferred(
    judged: pl.DataFrame, *, differing: int, queries: int, level: float
) -> tuple[float, float, float]:
    """The mean outcome over all queries, from judgments of some, with its interval.

    Each judgment counts by the inverse of its probability (Hájek 1971), and a regression on the labels of unjudged
    queries corrects the mean (Cassel, Särndal & Wretman 1976; Angelopoulos et al. 2023). The interval is for other
    queries like these: a t interval with Satterthwaite's degrees of freedom (1946), with one more judgment, of no
    preference though a label prefers a run, and with a squared residual of 1/2. If fewer than ``FEW`` differ from most,
    a t interval misses rare ones: each side then reaches ``_hidden`` at least.

    Args:
        judged: by judged query, the ``value`` in [-1, 1]; the labels' preference for the first run, less its average
            over the differing queries (``label``); and the ``probability`` of being drawn.
        differing: number of queries from which the sample was drawn; other queries have the outcome 0.
        queries: number of all queries.
        level: 1 less the confidence.
    """
    values, labels, probabilities = judged.select(VALUE, LABEL, tables.PROBABILITY).to_numpy().T
    weights = 1 / probabilities / (1 / probabilities).sum()
    n, share = judged.height, differing / queries
    about, along = values - weights @ values, labels - weights @ labels
    spread = weights @ along**2
    slope = weights @ (about * along) / (spread + 1 / n)
    rest = weights * (about - slope * along)
    value = share * float(np.clip(weights @ (values - slope * labels), -1, 1))
    within = share**2 * float(rest @ rest + 0.5 / n**2) * n / max(1, n - 1)
    between = float(share * slope**2 * spread + value**2 * (1 / share - 1)) / queries
    variance = within + between
    freedom = variance**2 / (within**2 / max(1, n - 1) + between**2 / queries)
    t = -float(sp.special.stdtrit(freedom, level / 2))
    reaches = [t * math.sqrt(variance)] * 2
    if np.count_nonzero(values != np.median(values)) < FEW:
        for side, rests in enumerate((values - slope * labels, slope * labels - values)):
            hidden = math.hypot(share * _hidden(rests, weights, level / 2), t * math.sqrt(between))
            reaches[side] = max(reaches[side], hidden)
    return value, max(-1.0, value - reaches[0]), min(1.0, value + reaches[1])


def _hidden(rests: Floats, weights: Floats, tail: float) -> float:
    """Bound on how far the mean over all queries may lie below the weighted one, if rare -1 judgments were not sampled.

    Gaffke's bound (2005; ``bounded``): judgments less the labels' predictions, and one more of -1 at the average
    prediction, with the largest weight. It is 2 (1 - tail^(1/n)), the rule of three, if all n judgments are 1.
    """
    sizes = np.append(weights, weights.max()) * len(weights)
    rows = weighed(np.append(rests, -1.0) * sizes, sizes)
    return float(weights @ rests) - lower_bound(rows, tail)


def _conclude(
    outcomes: pl.DataFrame, settings: annotator.EvaluationSettings, clusters: Clusters
) -> pl.DataFrame:
    # Several judgments of a query are one opinion: their mean.
    keys = [tables.CRITERION, tables.RUN, tables.RUN_B, tables.DRAWN]
    means = outcomes.group_by(*keys, QUERY_ID).agg(pl.col(VALUE, LABEL, tables.PROBABILITY).mean())
    pairs = max(1, means.select(keys[1:3]).n_unique())
    rows, level = [], (1 - settings.bootstrap.confidence) / pairs
    for (*names, drawn), judged in means.sort(pl.all()).group_by(keys, maintain_order=True):
        design = json.loads(str(drawn))
        differing, queries = sum(design["strata"].values()), design["queries"]
        mean, *bounds = preferred(judged, differing=differing, queries=queries, level=level)
        if clusters is not None:  # ignored by the probabilities
            bounds = [math.nan, math.nan]
        rows.append((*names, judged.height, queries, mean, *bounds, pairs))
    return pl.DataFrame(rows, schema=tables.PREFERRED, orient="row")


def _display(table: pl.DataFrame, level: str) -> annotator.Display:
    rows = [
        (row[:3], [f"{row[3]} of {row[4]}", with_interval(*row[5:8], plus="+")])
        for row in table.iter_rows()
    ]
    title = "What people prefer: the share of queries for run, less that for run_b"
    return annotator.Display(title, table.columns[:3], ["judged", f"difference{level}"], rows)


_PREFERRED = FurtherTable(
    name="preferred",
    schema=tables.PREFERRED,
    in_summary=True,
    conclusion=annotator.Conclusion(tables.PREFERENCES, _conclude),
    display=_display,
)
_COUNTED = FurtherTable(name="preference_labels", schema=tables.PREFERENCE_LABELS)

ANNOTATOR = annotator.Annotator(
    name=NAME,
    meaning="how often people preferred the passage",
    label=_label,
    options=Options,
    needs_input=INPUT,
    scale=lambda settings: Scale(graded="the shares and probabilities that preferences give"),
    further_tables=(_PREFERRED, _COUNTED),
)
