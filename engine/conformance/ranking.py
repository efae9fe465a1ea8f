"""A run and its qrels, scored by the engine and by trec_eval, ir_measures and ranx."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from engine import tables
from engine.conformance.comparison import (
    TOLERANCE,
    Comparison,
    Reference,
    Row,
    Values,
    by_query,
    compare,
    mean_of,
    not_installed,
    require_installed,
    version_of,
)
from engine.conformance.references import (
    LARGEST,
    RANKING_REFERENCES,
    Computed,
    Order,
    RankingReference,
)
from engine.messages.errors import InputError, masked
from engine.messages.extras import require_import
from engine.messages.wording import counted
from engine.ranking.kernel import is_real_valued
from engine.ranking.measures import Measure
from engine.ranking.ranking_settings import ALL_JUDGMENTS
from engine.ranking.scores import score_runs
from engine.ranking.ties import score_reordered, tie_notes
from engine.sources.runs.checks import by_score
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, SCORE

DEFAULT_MEASURES = (
    "P@1 P@5 P@10 R@5 R@10 R@100 F1@10 AP AP@10 RR RR@10 Success@1 Success@5 Success@10 Rprec "
    "nDCG nDCG@5 nDCG@10 nDCG(dcg='exp-log2')@10 Judged@10"
)
# The annotator under whose name the labels of the qrels are scored.
_JUDGMENTS = "judgments"


@dataclass(frozen=True)
class _Files:
    """What is scored.

    Attributes:
        run, labels: the tables; scores in the run fall or stay with the ranks.
        query_ids: the queries of the qrels.
        listed: those of them that the run has results for.
        unjudged: those of them whose labels are all below 0.
        tied: how many of ``listed`` list equal scores, in single precision.
        negative: whether some label is below 0.
    """

    run: pl.DataFrame
    labels: pl.DataFrame
    query_ids: tuple[str, ...]
    listed: frozenset[str]
    unjudged: frozenset[str]
    tied: int
    negative: bool


def compare_ranking(run: str | Path, qrels: str | Path, measures: Sequence[Measure]) -> Comparison:
    """Score a run against qrels by the engine and by every reference, query by query.

    References are given all queries of both files, and scores, not ranks, so that their tie rules are
    compared too. The engine's values are those of ``score_runs(relevant="qrels")``; its means leave out
    queries with labels below 0 only, as an evaluation does. Where a rule that a reference declares makes
    a value differ, the engine computes it again by that rule: a difference that remains has no excuse.

    Raises:
        InputError: a file that cannot be read; run and qrels without a common query; real-valued
            labels, which no reference takes; no label from 0; no reference installed, or none with
            these measures.
    """
    for measure in measures:
        if measure.cutoff is not None and measure.cutoff > LARGEST:
            raise InputError(
                f"cutoff of {measure}, which no reference takes", f"use up to {LARGEST}"
            )
    files, notes = _read(run, qrels)
    scores = _nested(files.run, SCORE)
    scored = _scored(files, files.run, files.query_ids, measures)
    reordered = score_reordered(
        files.run, files.query_ids, lambda lists, ids: _scored(files, lists, ids, measures)
    )
    evaluated = ~pl.col(QUERY_ID).is_in(files.unjudged)
    ties = tie_notes(scored.filter(evaluated), reordered, digits=4)
    judged, ours = _judged(files), by_query(scored, measures)
    references = []
    for reference in RANKING_REFERENCES:
        known = [m for m in measures if reference.name(m) is not None]
        package = reference.packages[0]
        install = f"pip install {package}"
        try:
            require_import(reference.module)
            computed = reference.compute(scores, judged, known) if known else Computed()
        except ImportError as error:
            references.append(not_installed(package, reference.module, install, error))
            continue
        references.append(
            Reference(
                package,
                version_of(*reference.packages),
                install,
                _rows(reference, computed, files, ours),
                reference.rules,
                tuple(str(m) for m in measures if m not in known),
            )
        )
    require_installed(references, "ranking measures")
    if not any(reference.rows for reference in references):
        raise InputError(
            f"no installed reference computes {' '.join(map(str, measures))}",
            "compare other measures",
        )
    notes = (*notes, *(note.text for note in ties))
    return Comparison(masked(f"{run} by {qrels}"), "query", notes, tuple(references))


def _read(run: str | Path, qrels: str | Path) -> tuple[_Files, tuple[str, ...]]:
    fault = partial(InputError, path=qrels)
    listed, judged = read_run(run), read_qrels(qrels)
    if is_real_valued(judged[LABEL].to_numpy()):
        raise fault(
            "labels that are not whole numbers, which no reference takes",
            "give whole numbers, or the labels of each list with `erag`",
        )
    if (judged[LABEL].abs() >= LARGEST).any():
        raise fault(f"a label beyond {LARGEST}, which no reference takes", "use smaller labels")
    unjudged = frozenset(judged.filter((pl.col(LABEL).max() < 0).over(QUERY_ID))[QUERY_ID])
    query_ids = tuple(judged[QUERY_ID].unique(maintain_order=True))
    in_run = set(listed[QUERY_ID].unique())
    common = [query for query in query_ids if query in in_run]
    if not common:
        raise InputError(
            f"no query of the run is in {qrels}", "give the qrels of this run's queries", path=run
        )
    if len(unjudged) == len(query_ids):
        raise fault("all labels are below 0: nothing was judged", "give labels from 0")
    lacking, others = len(query_ids) - len(common), len(in_run) - len(common)
    notes = [
        f"{counted(len(query_ids), '[query|queries]')} in the qrels; "
        f"{counted(lacking, 'of them [has|have] no results in the run')}; "
        f"{counted(others, '[other|others] in the run [is|are] ignored')}"
    ]
    if not _falls(listed):
        listed = listed.with_columns(-pl.col(RANK).cast(pl.Float64).alias(SCORE))
        notes.append(
            "the ranks of the run, which count here, contradict its scores: references get scores that "
            "fall with the ranks"
        )
    tied = listed.filter(
        pl.struct(QUERY_ID, pl.col(SCORE).cast(pl.Float32)).is_duplicated()
        & pl.col(QUERY_ID).is_in(common)
    )[QUERY_ID].n_unique()
    if tied:
        notes.append(
            f"{counted(tied, '[query lists|queries list]')} equal scores (in single precision)"
        )
    if unjudged:
        notes.append(
            counted(
                len(unjudged),
                "[query has|queries have] labels below 0 only: references count [it|them], as 0 except in "
                "ir_measures' Judged (pytrec_eval where the run has results); "
                f"means here are over the other {len(query_ids) - len(unjudged)}, "
                "since nothing was judged",
            )
        )
    labels = judged.with_columns(pl.lit(_JUDGMENTS).alias(ANNOTATOR)).select(list(tables.LABELS))
    negative = bool((judged[LABEL] < 0).any())
    return (
        _Files(listed, labels, query_ids, frozenset(common), unjudged, tied, negative),
        tuple(notes),
    )


def _falls(run: pl.DataFrame) -> bool:
    """Whether scores, in single precision, fall or stay with the ranks in every list."""
    score = pl.col(SCORE).cast(pl.Float32)
    falls = (score <= score.shift(1).over(QUERY_ID)).fill_null(True).all()
    return bool(run.select(falls).item())


def _judged(files: _Files) -> dict[str, dict[str, int]]:
    """The labels as references take them.

    trec_eval's code crashes or hangs on some queries with labels below 0 only. They get a label of 0 for a
    document that nobody lists, which moves no value.
    """
    judged = {
        query: {document: int(label) for document, label in row.items()}
        for query, row in _nested(files.labels, LABEL).items()
    }
    unlisted = max((*files.run[DOC_ID], *files.labels[DOC_ID]), key=len) + "0"
    for query in files.unjudged:
        judged[query][unlisted] = 0
    return judged


def _nested(frame: pl.DataFrame, value: str) -> dict[str, dict[str, float]]:
    """``value`` by query and document, in the order of the rows."""
    result: dict[str, dict[str, float]] = {}
    for query, document, number in frame.select(QUERY_ID, DOC_ID, value).iter_rows():
        result.setdefault(query, {})[document] = number
    return result


def _scored(
    files: _Files, run: pl.DataFrame, query_ids: Sequence[str], measures: Sequence[Measure]
) -> pl.DataFrame:
    return score_runs(run, files.labels, query_ids, measures, relevant=ALL_JUDGMENTS)


def _rows(
    reference: RankingReference, computed: Computed, files: _Files, ours: Mapping[Measure, Values]
) -> tuple[Row, ...]:
    ids = [q for q in files.query_ids if reference.counts_missing or q in files.listed]
    evaluated = [query for query in files.query_ids if query not in files.unjudged]

    def row(measure: Measure, by_rule: Values | None = None, rule: str = "") -> Row:
        found = compare(
            str(measure),
            str(reference.name(measure)),
            ours[measure],
            computed.values[measure],
            ids,
            their_mean=computed.means[measure],
            by_rule=by_rule,
            rule=rule,
        )
        return replace(found, our_mean=mean_of([ours[measure][query] for query in evaluated]))

    rows = {measure: row(measure) for measure in ours if measure in computed.values}
    differing: dict[tuple[Order, bool], list[Measure]] = {}
    for measure, found in rows.items():
        if found.difference > TOLERANCE:
            order = reference.order(measure) if files.tied else ""
            below = reference.negative_is_judged and measure.kind == "Judged" and files.negative
            differing.setdefault((order, below), []).append(measure)
    for (order, below), measures in differing.items():
        rule = " and ".join(
            name for name, bears in (("ties", bool(order)), ("labels below 0", below)) if bears
        )
        if rule:
            seen = _seen_by(files, order, computed.order, negative_is_judged=below)
            scored = _scored(seen, seen.run, seen.query_ids, measures)
            for measure, by_rule in by_query(scored, measures).items():
                rows[measure] = row(measure, by_rule, rule)
    return tuple(rows.values())


def _seen_by(
    files: _Files,
    order: Order,
    listed_there: Callable[[], Mapping[str, Sequence[str]]],
    *,
    negative_is_judged: bool,
) -> _Files:
    """The files as a reference's rules about ties and negative labels see them."""
    run, labels = files.run, files.labels
    if order == "trec_eval's":
        run = by_score(run)
    elif order == "ascending":
        run = run.sort(QUERY_ID, SCORE, DOC_ID, descending=[False, True, False])
    elif order == "its own":
        places = pl.DataFrame(
            [
                (q, d, place)
                for q, listed in listed_there().items()
                for place, d in enumerate(listed)
            ],
            schema={QUERY_ID: pl.String, DOC_ID: pl.String, "place": pl.Int64},
            orient="row",
        )
        reordered = run.join(places, on=[QUERY_ID, DOC_ID]).sort(QUERY_ID, "place")
        above = pl.col(SCORE).shift(1).over(QUERY_ID)
        # An order against the scores is not a tie rule, and excuses nothing.
        if reordered.select((pl.col(SCORE) <= above).fill_null(True).all()).item():
            run = reordered
    if negative_is_judged:
        labels = labels.with_columns(pl.col(LABEL).clip(lower_bound=0))
    place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID)
    return replace(files, run=run.with_columns(place.alias(RANK)), labels=labels)
