"""Which retriever to choose, and how certain that choice is, in a few plain sentences: ``SENTENCES``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import polars as pl

from engine.evaluation.conclude import Evaluation
from engine.messages.wording import agreeing, counted, listed, number, with_interval
from engine.report import layout
from engine.statistics.comparison import clusters_of, numbered
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import mean_interval
from engine.statistics.table import Choice, Lead
from engine.statistics.until import MOST_QUERIES, POWER
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID, RUN, TAU, VALUE, N, high_of, low_of

# Limits of names and leads shown; summary.json and run_pairs.parquet have all.
_SHOWN = 3
# The first sentence, by the case; ``only`` says that labels alone decide.
CASES = {
    "clear": "Choose {best}{only}.",
    "undecided": "The data do not decide between {rivals}{only}.",
    "undecided_some": "The data do not decide between {rivals}; {best} is significantly ahead of {beaten}{only}.",
    "undecided_equal": "The data do not decide: the means are equal, but a difference of up to {most} either way remains possible{only}.",
    "tie": "All runs are tied{only}.",
    "one_query": "One query cannot decide between {rivals}{only}.",
    "no_intervals": "Without resamples the certainty is unknown; {best} is ahead{only}.",
    "no_intervals_tie": "Without resamples the certainty is unknown; {rivals} are tied for the lead{only}.",
    "one_run": "There is no other run to choose from{only}.",
    "own_lists": "With `relevant` list, labels do not compare runs; use `relevant` pool.",
    "no_common_query": "No query has a score in every run, so the runs cannot be compared.",
    "no_score": "No query has a score: failed LLM calls leave all of them out.",
    "no_label": "No query has a score, since no listed passage has a label.",
}
SENTENCES = {
    **CASES,
    "by_end_to_end": "End to end ({metric}, {number}): {figures}.",
    "by_labels": "By {annotator} {measure} ({number}): {figures}.",
    "needed": "{few} too few: plan for {numbers} ({power} power to show the smallest likely difference{as_here}).",
    "as_here": "; {numbers} if the true {differences} as large as here",
    "lost": "Whichever {rivals}you choose, you lose at most {most} ({confidence}).",
    "labels_prefer": "The {annotator} labels {also}prefer {run}{instead} ({measure}: {lead}).",
    "labels_ahead": "By the {annotator} labels, {run} is {also}ahead{unsure} ({measure}: {lead}).",
    "labels_equal": "By the {annotator} labels, {lead} ({measure}).",
    "agreement": "{kendall} of {annotator} {measure} with the end-to-end score is {figure}.",
    "failed_as_zero": "{failed} failed and {count} as 0.",
    "failed_left_out": "{failed} failed; {queries} left out of the figures that need {them}.",
}
_LABELS_ONLY = " (labels only: no list was read end to end)"


def summarize_verdict(evaluation: Evaluation) -> dict[str, Any]:
    """The verdict as ``summary.json`` holds it: its case, its figures, and its sentences.

    ``best`` is None, without figures, if there is nothing to choose or compare.
    """
    case, choice = _decide(evaluation)
    figures = choice or _alone(None, None, 0, {})
    return {
        "case": case,
        **asdict(figures),
        "best": choice.best if choice else None,
        "undecided": list(figures.undecided),
        "sentences": list(_sentences(case, choice, evaluation)),
    }


def sentences_on(choice: Choice, metric: str, bootstrap: Bootstrap) -> list[str]:
    """The verdict on runs of any evaluations, by their end-to-end scores alone."""
    head = _head(_case(choice, bootstrap), choice)
    return [f"{head} {_figures(choice, metric, bootstrap)}", *_undecided(choice, bootstrap)]


def loss(verdict: Mapping[str, Any], confidence: float) -> str:
    """The sentence on the loss of a wrong choice, by a verdict's figures in ``summary.json``; empty without figures."""
    undecided, most = verdict.get("undecided"), verdict.get("most_lost")
    if not undecided or most is None or not math.isfinite(most):
        return ""
    some = len(undecided) < len(verdict["leads"])
    rivals = f"of {_listed([verdict['best'], *undecided])} " * some
    level = f"{confidence * 100:g}%"
    return SENTENCES["lost"].format(rivals=rivals, most=number(most), confidence=level)


def _sentences(case: str, choice: Choice | None, evaluation: Evaluation) -> Iterator[str]:
    if choice is None:
        yield SENTENCES[case]
    else:
        settings = evaluation.settings
        figures = _figures(choice, settings.reader.metric_name, settings.bootstrap, evaluation)
        head = _head(case, choice)
        yield f"{figures} {head}" if case == "one_run" else f"{head} {figures}"
        yield from _undecided(choice, settings.bootstrap) if settings.bootstrap.resamples else ()
        if case == "one_run":
            yield from _agreement(choice, evaluation)
        elif labels := " ".join([*_labels(choice, evaluation)][:_SHOWN]):
            yield labels
    if failed := sum(note.amount for note in evaluation.notes if note.code == "failed_reads"):
        left_out = evaluation.settings.running.skips_failed
        yield SENTENCES["failed_left_out" if left_out else "failed_as_zero"].format(
            failed=counted(failed, "LLM call[|s]"),
            count=agreeing(failed, "[counts|count]"),
            them=agreeing(failed, "[it|them]"),
            queries=agreeing(failed, "[its query is|their queries are]"),
        )


def _decide(evaluation: Evaluation) -> tuple[str, Choice | None]:
    choice = evaluation.statistics.choice
    if choice is None:
        return _without_choice(evaluation)
    if evaluation.relevant == "list":
        # Labels by list excuse documents that a run did not find.
        if choice.annotator:
            return "own_lists", None
        choice = replace(choice, opinions=())
    return _case(choice, evaluation.settings.bootstrap), choice


def _case(choice: Choice, bootstrap: Bootstrap) -> str:
    if not bootstrap.resamples:
        is_tie = any(lead.difference == 0 for lead in choice.leads)
        return "no_intervals_tie" if is_tie else "no_intervals"
    if choice.n == 1:
        return "one_query"
    if all(lead.alike for lead in choice.leads):
        return "tie"
    if not any(lead.difference for lead in choice.leads) and math.isfinite(choice.most_lost):
        return "undecided_equal"
    if not choice.undecided:
        return "clear"
    return "undecided" if len(choice.undecided) == len(choice.leads) else "undecided_some"


def _without_choice(evaluation: Evaluation) -> tuple[str, Choice | None]:
    scores, annotator, measure = evaluation.downstream, None, None
    if scores.is_empty():
        if evaluation.means.is_empty():
            failed = any(note.amount for note in evaluation.notes if note.code == "failed_reads")
            return "no_score" if failed else "no_label", None
        annotator, measure = evaluation.means.select(ANNOTATOR, MEASURE).row(0)
        scores = evaluation.query_scores.filter(annotator=annotator, measure=measure)
    runs = scores[RUN].unique()
    if len(runs) != 1:
        return "no_common_query", None
    means = {runs[0]: float(scores[VALUE].mean())}  # type: ignore[arg-type]
    return "one_run", _alone(annotator, measure, scores.height, means)


def _alone(annotator: str | None, measure: str | None, n: int, means: dict[str, float]) -> Choice:
    return Choice(
        annotator=annotator, measure=measure, n=n, pairs=0, means=means,
        best=next(iter(means), ""), leads=(), opinions=(),
    )  # fmt: skip


def _head(case: str, choice: Choice) -> str:
    rivals = [choice.best, *choice.undecided]
    if case.startswith("no_intervals"):
        rivals = [choice.best, *(lead.over for lead in choice.leads if lead.difference == 0)]
    return SENTENCES[case].format(
        best=choice.best,
        rivals=_listed(rivals),
        beaten=_listed([lead.over for lead in choice.leads if lead.significant]),
        only=_LABELS_ONLY if choice.annotator is not None else "",
        most=number(choice.most_lost),
    )


def _figures(
    choice: Choice, metric: str, bootstrap: Bootstrap, evaluation: Evaluation | None = None
) -> str:
    over = counted(choice.n, "[query|queries]")
    recorded = evaluation and evaluation.settings.reader.end_to_end == "recorded"
    if evaluation and choice.n < evaluation.queries:
        those = "those with a score" + " in every run" * bool(choice.leads)
        if "rho" in evaluation.end_to_end.columns and choice.annotator is None:
            those = "those read end to end, with the labels of all"
        over = f"{choice.n} of {evaluation.queries} queries, {those}"
    mean = "" if bootstrap.until else f", {number(choice.means[choice.best])}"
    fewer = [f", on {lead.n} queries" * (lead.n < choice.n) for lead in choice.leads]
    leads = [_lead(lead, mean) + n for lead, n in zip(choice.leads, fewer, strict=True)]
    figures = "; ".join(_some(leads))
    tested = not any(math.isnan(lead.low) for lead in choice.leads)
    if evaluation and not choice.leads:
        figures, tested = _own_score(choice, evaluation)
    if tested:
        interval = f"{bootstrap.confidence * 100:g}% interval"
        over += f"; {layout.adjusted(choice.pairs, bootstrap) or interval}"
    if recorded and choice.annotator is None:
        over = f"recorded answers, {over}"
    score = {"annotator": choice.annotator, "measure": choice.measure, "metric": metric}
    case = "by_labels" if choice.annotator else "by_end_to_end"
    return SENTENCES[case].format(number=over, figures=figures, **score)


def _own_score(choice: Choice, evaluation: Evaluation) -> tuple[str, bool]:
    if "rho" in evaluation.end_to_end.columns and not choice.annotator:
        row = evaluation.end_to_end.row(by_predicate=pl.col(RUN) == choice.best, named=True)
        value, low, high = (row[name] for name in (VALUE, low_of(VALUE), high_of(VALUE)))
    else:
        scores = evaluation.downstream.filter(run=choice.best)
        if choice.annotator:
            named = {RUN: choice.best, ANNOTATOR: choice.annotator, MEASURE: choice.measure}
            scores = evaluation.query_scores.filter(**named)
        bootstrap = evaluation.settings.bootstrap
        codes = numbered(scores[QUERY_ID], clusters_of(evaluation.clusters, bootstrap.cluster))
        mean = mean_interval(scores[VALUE], bootstrap.confidence, codes)
        value, low, high = mean.value, mean.low, mean.high
    return f"{choice.best} scores {with_interval(value, low, high)}", not math.isnan(low)


def _undecided(choice: Choice, bootstrap: Bootstrap) -> list[str]:
    """The queries that would separate the best run from undecided ones, and the loss of a wrong choice."""
    needed = ""
    # Of equal means nothing says which difference to plan for.
    planned = [lead for lead in choice.leads if lead.difference and lead.queries_needed is not None]
    if planned:
        numbers = [
            f"{_number(lead.queries_needed, lead, choice.n)} to separate {choice.best} from {lead.over}"
            for lead in planned
        ]
        # An observed lead nearer to 0 than a likely true lead is no basis for a plan.
        both = [(lead.queries_as_here or math.inf, lead.queries_needed or 0) for lead in planned]
        as_here = SENTENCES["as_here"].format(
            numbers=_listed([_number(lead.queries_as_here, lead, choice.n) for lead in planned]),
            differences=agreeing(len(numbers), "[difference is|differences are]"),
        )
        needed = SENTENCES["needed"].format(
            few=counted(choice.n, "[query is|queries are]"),
            numbers=_listed(numbers),
            power=f"{POWER:.0%}",
            as_here=as_here * all(here < likely for here, likely in both),
        )
    figures = asdict(choice) | {"undecided": choice.undecided}
    sentences = filter(None, [needed, loss(figures, bootstrap.confidence)])
    return [*filter(None, [" ".join(sentences)])]


def _number(needed: int | None, lead: Lead, n: int) -> str:
    """A number of queries above the present n, rounded to two digits: further digits would be spurious."""
    if needed is None:
        return "no number"
    needed = needed * n // lead.n
    if needed >= MOST_QUERIES:
        return f"at least {MOST_QUERIES:,}"
    needed = max(needed, n + 1)
    rounded = round(needed, 2 - len(str(needed)))
    return f"about {rounded if rounded > n else needed:,}"


def _agreement(choice: Choice, evaluation: Evaluation) -> Iterator[str]:
    is_defined = (pl.col(N) > 0) & pl.col(TAU).is_not_nan()
    for annotator, measure in list(evaluation.primary_measures.items())[:1]:
        named = {RUN: choice.best, ANNOTATOR: annotator, MEASURE: measure}
        cells = evaluation.statistics.correlations.filter(is_defined, **named)
        for cell in cells.iter_rows(named=True):
            figure = with_interval(cell[TAU], cell[low_of(TAU)], cell[high_of(TAU)], 2)
            yield SENTENCES["agreement"].format(**named, figure=figure, kendall=layout.KENDALL)


def _labels(choice: Choice, evaluation: Evaluation) -> Iterator[str]:
    sure = evaluation.settings.bootstrap.resamples > 0
    for place, opinion in enumerate(choice.opinions):
        lead, prefers = opinion.lead, opinion.lead.significant
        # The first annotator always counts, unless its own measure decides.
        opposed = any(own.over == opinion.best and own.significant for own in choice.leads)
        is_other = opinion.best != choice.best and (prefers or opposed)
        if (place == 0 and choice.annotator is None) or is_other:
            # On a tie no run leads that a measure could also prefer, and undecided scores prefer none.
            agrees = opinion.best == choice.best and all(own.difference for own in choice.leads)
            agrees = agrees and not (prefers and choice.undecided)
            case = "prefer" if prefers else "ahead" if lead.difference else "equal"
            yield SENTENCES[f"labels_{case}"].format(
                annotator=opinion.annotator,
                measure=opinion.measure,
                run=opinion.best if lead.difference else lead.run,
                over=lead.over,
                also="also " * agrees,
                instead=" instead" * opposed,
                unsure=", but not significantly" * (sure and not math.isnan(lead.low)),
                lead=_lead(lead),
            )


def _lead(lead: Lead, mean: str = "") -> str:
    sure, interval = not math.isnan(lead.low), (lead.difference, lead.low, lead.high)
    if lead.difference:
        by = f"{lead.run} leads {lead.over} by {with_interval(*interval)}"
        return f"{by}{f', {layout.p_text(lead.p)}' * sure}"
    same = f"{lead.run} and {lead.over} have the same mean"
    difference = f", difference {with_interval(*interval, plus='+')}" * sure
    return same if lead.alike else f"{same}{mean}{difference}"


def _listed(names: Sequence[str]) -> str:
    return listed(_some(names))


def _some(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= _SHOWN else [*names[:_SHOWN], f"{len(names) - _SHOWN} more"]
