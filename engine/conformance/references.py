"""Reference implementations of ranking measures: their names, values and declared rules.

All take the same two mappings: scores by query and document (the run) and whole-number labels by
query and document (the qrels). Each is imported only when it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.conformance.comparison import Values
from engine.ranking.measures import Measure

Scores = Mapping[str, Mapping[str, float]]
Judged = Mapping[str, Mapping[str, int]]
# How a reference orders equal scores: as ``sources.runs.checks.by_score``; by score in double precision,
# then by document id ascending; as only its own sort can tell; or, where a list has none, not at all.
Order = Literal["trec_eval's", "ascending", "its own", ""]

# Labels and thresholds are C integers in the references.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Computed:
    """What a reference found.

    Attributes:
        values: by measure and query.
        means: by measure, as the reference computes them.
        order: gives the documents of each query as the reference ranked them; only where its order
            is ``its own``.
    """

    values: Mapping[Measure, Values] = field(default_factory=dict)
    means: Mapping[Measure, float] = field(default_factory=dict)
    order: Callable[[], Mapping[str, Sequence[str]]] = dict


@dataclass(frozen=True)
class RankingReference:
    """A package that computes ranking measures.

    Attributes:
        packages: its distribution, and others that give the same module.
        module: what to import.
        name: its name of a measure, or None where it has none that means the same.
        compute: scores, judgments and measures to values; raises ImportError where the package is
            not installed.
        counts_missing: whether queries of the qrels that the run lists nothing for get a value (0),
            or are left out.
        order: how it orders the lists for a measure.
        negative_is_judged: whether Judged counts labels below 0.
        rules: ties, means, missing queries, labels: a line each.
    """

    packages: tuple[str, ...]
    module: str
    name: Callable[[Measure], str | None]
    compute: Callable[[Scores, Judged, Sequence[Measure]], Computed]
    counts_missing: bool
    order: Callable[[Measure], Order]
    negative_is_judged: bool
    rules: tuple[str, ...]


def level(measure: Measure) -> int:
    """The least whole-number label of a relevant passage."""
    return min(math.ceil(measure.threshold), LARGEST)


def trec_eval_name(measure: Measure) -> str | None:
    """trec_eval's name of a measure (its threshold is an option, not a part of the name)."""
    kind, k = measure.kind, measure.cutoff
    if measure.dcg != "log2" or kind in ("DCG", "Judged"):
        return None
    whole = {"P": "set_P", "R": "set_recall", "F1": "set_F", "AP": "map", "RR": "recip_rank",
             "nDCG": "ndcg", "Rprec": "Rprec"}  # fmt: skip
    cut = {"P": "P", "R": "recall", "AP": "map_cut", "nDCG": "ndcg_cut", "Success": "success"}
    if k is None:
        return whole.get(kind)
    return f"{cut[kind]}_{k}" if kind in cut else None


def _pytrec_eval(scores: Scores, judged: Judged, measures: Sequence[Measure]) -> Computed:
    import pytrec_eval

    values: dict[Measure, Values] = {}
    means: dict[Measure, float] = {}
    for least in sorted({level(m) for m in measures}):
        names = {m: str(trec_eval_name(m)) for m in measures if level(m) == least}
        # A fresh evaluator for every run: pytrec_eval 0.5 loses measures on the second.
        found = pytrec_eval.RelevanceEvaluator(
            judged, set(names.values()), relevance_level=least
        ).evaluate(scores)
        for measure, name in names.items():
            values[measure] = {query: row.get(name, math.nan) for query, row in found.items()}
            means[measure] = pytrec_eval.compute_aggregated_measure(
                name, list(values[measure].values())
            )
    return Computed(values, means)


def _ir_measures_name(measure: Measure) -> str | None:
    # exp-log2 is gdeval's there, a script that prints five decimals and wants numbers as query ids.
    if measure.dcg != "log2" or measure.kind == "DCG":
        return None
    sets = {"P": "SetP", "R": "SetR", "F1": "SetF"}
    kind, k = measure.kind, measure.cutoff
    if (kind == "F1" and k is not None) or (kind == "Success" and k is None):
        return None
    rel = "" if measure.rel is None else f"(rel={level(measure)})"
    return (
        f"{sets[kind] if kind in sets and k is None else kind}{rel}{'' if k is None else f'@{k}'}"
    )


def _ir_measures(scores: Scores, judged: Judged, measures: Sequence[Measure]) -> Computed:
    import ir_measures
    import pytrec_eval  # noqa: F401  without it ir_measures silently takes ranx, with its tie rule

    theirs = {m: ir_measures.parse_measure(str(_ir_measures_name(m))) for m in measures}
    found = ir_measures.evaluator(list(theirs.values()), judged).calc(scores)
    means: Any = found.aggregated
    by_name: dict[str, dict[str, float]] = {str(t): {} for t in theirs.values()}
    for metric in found.per_query:
        by_name[str(metric.measure)][metric.query_id] = metric.value
    return Computed(
        {m: by_name[str(t)] for m, t in theirs.items()},
        {m: means[t] for m, t in theirs.items()},
    )


def _ranx_name(measure: Measure) -> str | None:
    names = {"P": "precision", "R": "recall", "F1": "f1", "AP": "map", "RR": "mrr", "DCG": "dcg",
             "nDCG": "ndcg", "Success": "hit_rate", "Rprec": "r-precision"}  # fmt: skip
    if measure.kind not in names:
        return None
    name = names[measure.kind] + ("_burges" if measure.dcg == "exp-log2" else "")
    cutoff = "" if measure.cutoff is None else f"@{measure.cutoff}"
    return f"{name}{cutoff}" + (f"-l{level(measure)}" if level(measure) > 1 else "")


def _ranx(scores: Scores, judged: Judged, measures: Sequence[Measure]) -> Computed:
    import ranx

    # ranx is compiled anew, for half a minute, for every new longest document id. It compares ids
    # for equality only, so documents are handed over under numbers of one length.
    numbers: dict[str, str] = {}
    for documents in (*judged.values(), *scores.values()):
        for document in documents:
            numbers.setdefault(document, f"{len(numbers):08d}")
    names = list(numbers)
    qrels = ranx.Qrels(
        {q: {numbers[d]: v for d, v in labels.items()} for q, labels in judged.items()}
    )
    run = ranx.Run({q: {numbers[d]: v for d, v in listed.items()} for q, listed in scores.items()})
    if judged.keys() != scores.keys():
        run = run.make_comparable(qrels)
    wanted = {m: str(_ranx_name(m)) for m in measures}
    ranx.evaluate(qrels, run, list(wanted.values()))
    return Computed(
        {m: {q: float(v) for q, v in run.scores[n].items()} for m, n in wanted.items()},
        {m: float(run.mean_scores[n]) for m, n in wanted.items()},
        lambda: {
            query: [names[int(number)] for number in listed]
            for query, listed in zip(run.get_query_ids(), run.get_doc_ids_and_scores(), strict=True)
        },
    )


RANKING_REFERENCES = (
    RankingReference(
        packages=("pytrec-eval-terrier", "pytrec-eval"),
        module="pytrec_eval",
        name=trec_eval_name,
        compute=_pytrec_eval,
        counts_missing=False,
        order=lambda measure: "trec_eval's",
        negative_is_judged=False,
        rules=(
            "is trec_eval's C code",
            "ties: score in single precision, then document id, both descending, as here in runs that "
            "are ordered by score",
            "means and missing queries: pytrec_eval has no mean of its own; this is over the queries that "
            "it returns, those with results, as trec_eval's default; here queries without results "
            "count 0, as with its option -c",
            "labels: whole numbers; below 0 is not judged, as here; a query with no others counts 0, and "
            "here it does not count",
        ),
    ),
    RankingReference(
        packages=("ir-measures",),
        module="ir_measures",
        name=_ir_measures_name,
        compute=_ir_measures,
        counts_missing=True,
        order=lambda measure: (
            "ascending"
            if measure.kind == "Judged" or (measure.kind == "RR" and measure.cutoff is not None)
            else "trec_eval's"
        ),
        negative_is_judged=True,
        rules=(
            "ties: RR@k and Judged by score in double precision, then document id ascending; the "
            "rest is pytrec_eval's; here the order is the same for all measures",
            "means and missing queries: all queries of the qrels, those without results count 0, as here",
            "labels: whole numbers; Judged counts those below 0, here they are not judged; a query with no "
            "others counts 0 for the other measures, and here it does not count",
            "nDCG(dcg='exp-log2') is gdeval's, to five decimals: not compared",
        ),
    ),
    RankingReference(
        packages=("ranx",),
        module="ranx",
        name=_ranx_name,
        compute=_ranx,
        counts_missing=True,
        order=lambda measure: "its own",
        negative_is_judged=False,
        rules=(
            "ties: as its sort leaves them (score in double precision, then no rule)",
            "means and missing queries: run and qrels must hold the same queries; with "
            "make_comparable those without results count 0, as here",
            "labels: whole numbers (others are cut), below 0 is not relevant, as here; a query with no "
            "others counts 0, and here it does not count",
        ),
    ),
)
