"""Which retriever to choose, and how sure that is, in a few plain lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from engine.evaluation.assess import Evaluation
from engine.report import layout
from engine.statistics.choice import Choice, Lead, Opinion
from engine.statistics.power import POWER, QueriesNeeded
from engine.wording import counted, listed

# Names and leads shown; summary.json and run_pairs.parquet have all.
_SHOWN = 3


def content(evaluation: Evaluation) -> dict[str, Any] | None:
    """The verdict as ``summary.json`` holds it; None where there is nothing to choose from."""
    choice = _fair(evaluation)
    if choice is None:
        return None
    return {
        **asdict(choice),
        "undecided": list(choice.undecided),
        "sentences": sentences(evaluation),
    }


def sentences(evaluation: Evaluation) -> list[str]:
    """The verdict in at most three lines; none where there is one run.

    The first says which run to choose or that the data do not decide; the second how many queries
    would; the third whether the labels of the first annotator say the same, and which other annotators
    say otherwise.
    """
    choice = _fair(evaluation)
    if choice is None:
        return (
            ["labels where `relevant` is list do not compare runs; `relevant` pool lets them"]
            if evaluation.statistics.choice
            else []
        )
    sure = evaluation.settings.bootstrap.resamples > 0
    verdict_lines = [_choice(choice, evaluation)]
    if sure and (needed := _needed(choice, evaluation.settings.bootstrap.confidence)):
        verdict_lines.append(needed)
    opinions = [
        _opinion(opinion, choice, sure=sure)
        for place, opinion in enumerate(choice.opinions)
        # The first annotator is heard in any case, unless its measure is what decides.
        if (place == 0 and choice.annotator is None) or _opposed(opinion, choice)
    ]
    if opinions:
        verdict_lines.append("; ".join(opinions[:_SHOWN]))
    return verdict_lines


def _fair(evaluation: Evaluation) -> Choice | None:
    """The choice, less what labels under ``relevant`` list say: they excuse what a run did not find."""
    choice = evaluation.statistics.choice
    if choice is None or evaluation.relevant != "list":
        return choice
    return None if choice.annotator else replace(choice, opinions=())


def _choice(choice: Choice, evaluation: Evaluation) -> str:
    bootstrap = evaluation.settings.bootstrap
    number = counted(choice.n, "[query|queries]")
    if choice.n < evaluation.queries:
        number = f"{choice.n} of {evaluation.queries} queries, those that all runs have"
    if bootstrap.resamples:
        number += f"; simultaneous {bootstrap.confidence * 100:g}% intervals"
    score = f"End to end ({evaluation.settings.reader.metric_name}, {number})"
    only = ""
    if choice.annotator is not None:
        score = f"By {choice.annotator} {choice.measure} ({number})"
        only = " (labels only: nothing was read end to end)"
    leads = _listed([_lead(lead) for lead in choice.leads], "; ")
    return f"{_head(choice, resampled=bootstrap.resamples > 0)}{only}. {score}: {leads}"


def _head(choice: Choice, *, resampled: bool) -> str:
    if not resampled:
        first = [choice.best, *(lead.over for lead in choice.leads if lead.difference == 0)]
        verb = "is ahead" if len(first) == 1 else "are equally far ahead"
        return f"{_listed(first)} {verb}; without resamples, the certainty is unknown"
    if not choice.undecided:
        return f"choose {choice.best}"
    beaten = [lead.over for lead in choice.leads if lead.significant]
    less = f", only against {_listed(beaten)}" if beaten else ""
    return f"the data do not decide between {_listed([choice.best, *choice.undecided])}{less}"


def _needed(choice: Choice, confidence: float) -> str:
    """How many queries would tell the best run from those that the data do not tell from it."""
    open_leads = [lead for lead in choice.leads if not lead.significant and lead.difference]
    numbers = [
        f"from {lead.over} {amount} queries"
        for lead in open_leads
        if (amount := _range(lead.queries_needed, choice.n))
    ]
    if numbers:
        return (
            f"to tell {choice.best} {_listed(numbers)} would be needed ({POWER:.0%} power; by the "
            f"{confidence * 100:g}% interval of {'this difference' if len(numbers) == 1 else 'each difference'} by itself)"
        )
    return f"{counted(choice.n, '[query is|queries are]')} too few to tell" if open_leads else ""


def _range(needed: QueriesNeeded | None, n: int) -> str:
    """A range of numbers of queries, in one digit; none where it ends below the n that there are."""
    if needed is None:
        return ""
    low, high = _rounded(needed.low), None if needed.high is None else _rounded(needed.high)
    if high is not None and high <= n:
        return ""
    if low <= n:
        return f"more than the {n:,}" if high is None else f"up to {high:,}"
    if high is None:
        return f"at least {low:,}"
    return f"about {low:,}" if low == high else f"between {low:,} and {high:,}"


def _opposed(opinion: Opinion, choice: Choice) -> bool:
    return opinion.best != choice.best and opinion.lead.significant


def _opinion(opinion: Opinion, choice: Choice, *, sure: bool) -> str:
    name = f"{opinion.annotator} {opinion.measure}"
    lead = opinion.lead
    if lead.difference == 0:
        return f"{name} finds {lead.run} and {lead.over} equal"
    if opinion.best == choice.best:
        side = f"is for {choice.best} too"
    elif any(other.over == opinion.best and other.significant for other in choice.leads):
        side = "contradicts this" if lead.significant else f"leans to {opinion.best}"
    else:
        side = f"is for {opinion.best}" if lead.significant else f"leans to {opinion.best}"
    chance = "" if lead.significant or not sure else ", within chance"
    return f"{name} {side}{chance}: {_lead(lead)}"


def _lead(lead: Lead) -> str:
    if lead.difference == 0:
        return f"{lead.run} and {lead.over} are equal"
    by = f"{lead.run} leads {lead.over} by {lead.difference:.3f}"
    if math.isnan(lead.low):
        return by
    return f"{by} [{lead.low:.3f}, {lead.high:.3f}], p {layout.p_value(lead.p_holm)}"


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    if len(names) > _SHOWN:
        names = [*names[:_SHOWN], f"{len(names) - _SHOWN} more"]
    if separator != ", ":
        return separator.join(names)
    return listed(names)


def _rounded(amount: int) -> int:
    """One digit: more would say more than one knows."""
    return round(amount, 1 - len(str(amount)))
