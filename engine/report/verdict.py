"""Which retriever to choose, and how sure that is, in a few plain lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from engine.evaluation.assess import Evaluation
from engine.messages.wording import counted, listed, with_interval
from engine.report import layout
from engine.statistics.choice import Choice, Lead, Opinion
from engine.statistics.power import MOST_QUERIES, POWER
from engine.tables import RUN

# Names and leads shown; summary.json and run_pairs.parquet have all.
_SHOWN = 3
_UNFIT = "Labels where `relevant` is list do not compare runs; `relevant` pool lets them."


def summarize_verdict(evaluation: Evaluation) -> dict[str, Any] | None:
    """The verdict as ``summary.json`` holds it; None where there is nothing to choose from."""
    choice = _fair(evaluation)
    if choice is None:
        return None
    return {
        **asdict(choice),
        "undecided": list(choice.undecided),
        "sentences": sentences(evaluation),
    }


def said(summary: Mapping[str, Any]) -> list[str]:
    """The sentences of an evaluation's verdict, as ``summary.json`` has them; none where there is one run."""
    if summary["verdict"]:
        return list(summary["verdict"]["sentences"])
    # Edited runs are no rivals of their originals.
    runs = {row[RUN] for row in summary["means"]} - {edited[RUN] for edited in summary["edits"]}
    of_lists = summary["configuration"]["relevant"] == "list" and not summary["end_to_end"]
    return [_UNFIT] if of_lists and len(runs) > 1 else []


def sentences(evaluation: Evaluation) -> list[str]:
    """The verdict in at most three lines; none where there is nothing to choose from.

    The first says which run to choose or that the data do not decide; the second how many queries
    would; the third whether the labels of the first annotator agree, and which other annotators
    prefer another run.
    """
    choice = _fair(evaluation)
    if choice is None:
        return []
    sure = evaluation.settings.bootstrap.resamples > 0
    verdict_lines = [_choice(choice, evaluation)]
    if sure and (needed := _needed(choice)):
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
    if not any(math.isnan(lead.low) for lead in choice.leads):
        interval = f"{bootstrap.confidence * 100:g}% interval"
        number += f"; {layout.adjusted(choice.pairs, bootstrap) or interval}"
    score = f"End to end ({evaluation.settings.reader.metric_name}, {number})"
    only = ""
    if choice.annotator is not None:
        score = f"By {choice.annotator} {choice.measure} ({number})"
        only = " (labels only: no list was read end to end)"
    leads = _listed([_lead(lead) for lead in choice.leads], "; ")
    return f"{_head(choice, resampled=bootstrap.resamples > 0)}{only}. {score}: {leads}."


def _head(choice: Choice, *, resampled: bool) -> str:
    if not resampled:
        first = [choice.best, *(lead.over for lead in choice.leads if lead.difference == 0)]
        verb = "is ahead" if len(first) == 1 else "are equally far ahead"
        return f"{_listed(first)} {verb}; without resamples, the certainty is unknown"
    if not choice.undecided:
        return f"Choose {choice.best}"
    beaten = [lead.over for lead in choice.leads if lead.significant]
    less = f", only against {_listed(beaten)}" if beaten else ""
    return f"The data do not decide between {_listed([choice.best, *choice.undecided])}{less}"


def _needed(choice: Choice) -> str:
    """How many queries would separate the best run from those that the data do not separate from it."""
    numbers = [
        f"{_number(lead.queries_needed, choice.n)} to separate {choice.best} from {lead.over}"
        for lead in choice.leads
        if not lead.significant and lead.queries_needed is not None
    ]
    if not numbers:
        return ""
    few = f"{counted(choice.n, '[query is|queries are]')} too few"
    as_here = "difference is" if len(numbers) == 1 else "differences are"
    return f"{few}: plan for {_listed(numbers)} ({POWER:.0%} power, if the true {as_here} as large as here)."


def _number(needed: int, n: int) -> str:
    """A number of queries above the n that there are, in two digits: more would say more than is known."""
    if needed >= MOST_QUERIES:
        return f"at least {MOST_QUERIES:,}"
    needed = max(needed, n + 1)
    rounded = round(needed, 2 - len(str(needed)))
    return f"about {rounded if rounded > n else needed:,}"


def _opposed(opinion: Opinion, choice: Choice) -> bool:
    return opinion.best != choice.best and opinion.lead.significant


def _opinion(opinion: Opinion, choice: Choice, *, sure: bool) -> str:
    name = f"{opinion.annotator} {opinion.measure}"
    lead = opinion.lead
    if lead.difference == 0:
        return f"{name} finds no difference between {lead.run} and {lead.over}"
    also = instead = ""
    # On a tie no run leads that a measure could also prefer.
    if opinion.best == choice.best and all(other.difference for other in choice.leads):
        also = "also "
    elif any(other.over == opinion.best and other.significant for other in choice.leads):
        instead = " instead"
    if lead.significant:
        side = f"{also}prefers {opinion.best}{instead}"
    else:
        tested = sure and not math.isnan(lead.low)
        side = f"{also}has {opinion.best} ahead{', but not significantly' if tested else ''}"
    return f"{name} {side}: {_lead(lead)}"


def _lead(lead: Lead) -> str:
    if lead.difference == 0:
        return f"{lead.run} and {lead.over} are equal"
    by = f"{lead.run} leads {lead.over} by {with_interval(lead.difference, lead.low, lead.high)}"
    return by if math.isnan(lead.low) else f"{by}, p {layout.p_value(lead.p)}"


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    if len(names) > _SHOWN:
        names = [*names[:_SHOWN], f"{len(names) - _SHOWN} more"]
    if separator != ", ":
        return separator.join(names)
    return listed(names)
