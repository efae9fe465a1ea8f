"""The ranking measures by name, as ir_measures writes them.

``nDCG@10``, ``AP(rel=0.5)@50``, ``RR``, ``nDCG(dcg='exp-log2')@5``; and at a budget of tokens, ``nDCG@300tok``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from engine.messages.errors import InputError
from engine.messages.extras import provided
from engine.messages.wording import quoted
from engine.ranking.kinds.base import DEFAULT_REL, Measure
from engine.ranking.kinds.gains import DCG, NDCG, UDCG
from engine.ranking.kinds.judged import BinaryPreference, Judged
from engine.ranking.kinds.ranks import AveragePrecision, ReciprocalRank, RPrecision
from engine.ranking.kinds.shares import F1, Precision, Recall, Success
from engine.ranking.kinds.users import ExpectedReciprocalRank, RankBiasedPrecision

_NAME = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9_-]*?)(?:\((?P<options>[^()]*)\))?(?:[@_](?P<cutoff>\d{1,18})(?P<unit>tok)?)?"
)
UTILITY_KIND = UDCG.kind
# The classes by kind, in the order in which messages name them.
KINDS: dict[str, type[Measure]] = {}
# By every name in lower case, as trec_eval (recip_rank, map_cut_10), ranx (hit_rate), BEIR (NDCG@10) and papers
# (MRR@10) write them: the kind, and the options that the name implies.
SYNONYMS: dict[str, tuple[str, str]] = {}


def register(measure: type[Measure]) -> None:
    """Register a measure's names; a ValueError if one of them is another measure's."""
    names = [measure.kind.lower(), *measure.synonyms.split()]
    new = dict.fromkeys(names, (measure.kind, ""))
    new |= {name: (measure.kind, options) for name, options in measure.variants}
    if taken := new.keys() & SYNONYMS:
        raise ValueError(f"{measure.kind}: the name {min(taken)!r} is another measure's")
    KINDS[measure.kind] = measure
    SYNONYMS.update(new)


for _measure in (
    *(Precision, Recall, F1, AveragePrecision, ReciprocalRank, DCG, NDCG, Success, RPrecision),
    *(RankBiasedPrecision, ExpectedReciprocalRank, BinaryPreference, Judged, UDCG),
):
    register(_measure)


def parse_measure(text: str) -> Measure:
    """Parse one measure name: as ir_measures writes it, or an exact synonym (``SYNONYMS``).

    An InputError for an unknown measure, a cutoff below 1, an unknown option, or a value that it cannot have.

    >>> measure = parse_measure("AP(rel=2)@10")
    >>> measure.kind, measure.cutoff, measure.rel
    ('AP', 10, 2.0)
    >>> [str(parse_measure(name)) for name in ("ndcg_cut_10", "MRR", "Recall(rel=2)@5")]
    ['nDCG@10', 'RR', 'R(rel=2)@5']
    """
    match = _NAME.fullmatch(text.strip())
    kind, implied = ("", "") if match is None else _kind_of(match["kind"])
    if match is None or not kind or (implied and match["options"]):
        remedy = f"{_meant(text)}use {', '.join(KINDS)}, with a cutoff (nDCG@10) or a threshold (AP(rel=0.5)@10)"
        raise InputError(f"unknown measure {quoted(text)}", remedy, "measure.unknown")
    measure, place = KINDS[kind], f"in {quoted(text)}"
    cutoff = int(match["cutoff"]) if match["cutoff"] else None
    if match["unit"] and not measure.has_budget:
        remedy = f"use {', '.join(name for name, known in KINDS.items() if known.has_budget)}"
        raise InputError(f"{kind} has no cutoff in tokens ({place})", remedy, "measure.tokens")
    if cutoff == 0:
        raise InputError(f"cutoff 0 {place}", "use 1 or more", "measure.cutoff")
    if cutoff is not None and not measure.has_cutoff:
        raise InputError(f"{kind} has no cutoff ({place})", "leave it out", "measure.uncuttable")
    parameters: dict[str, Any] = {"tokens" if match["unit"] else "cutoff": cutoff}
    for option in filter(None, map(str.strip, (match["options"] or implied).split(","))):
        name, _, value = (part.strip() for part in option.partition("="))
        parameters[name] = _option(measure, name, value, place)
    return measure(**parameters)


def _kind_of(name: str) -> tuple[str, str]:
    """The kind and the options that a name stands for, also of a package's measure; empty for neither."""
    if name.lower() not in SYNONYMS and (measure := provided("measures", name)) is not None:
        if getattr(measure, "kind", None) != name:
            problem = f"{name!r} of erag.measures is no class of a measure whose `kind` is {name}"
            raise InputError(problem, "correct the package, or remove it", "measure.unusable")
        register(measure)
    return SYNONYMS.get(name.lower(), ("", ""))


def _option(measure: type[Measure], name: str, value: str, place: str) -> Any:
    options = measure.options()
    if name not in options:
        known = [f"{option.example} ({option.help})" for option in options.values()]
        remedy = f"the option{'s are' if known[1:] else ' is'} {', '.join(known)}"
        problem = f"{measure.kind} has no option {quoted(name)} ({place})"
        raise InputError(
            problem, remedy if known else f"{measure.kind} has none", "measure.optionless"
        )
    option = options[name]
    if option.example.endswith("'"):
        value = value.strip("'\"")
    try:
        return option.read(value)
    except ValueError:
        problem = f"{option.problem} {quoted(value)} {place}"
        raise InputError(problem, option.remedy, "measure.option") from None


def _meant(text: str) -> str:
    """The most similar measure name, with the given cutoff."""
    kind, mark, rest = re.match(r"([^@(]*)(@?)(.*)", text.strip(), re.S).groups()  # type: ignore[union-attr]
    if not (near := difflib.get_close_matches(kind.lower(), SYNONYMS, n=1, cutoff=0.6)):
        return ""
    named, options = SYNONYMS[near[0]]
    cutoff = f"@{rest}" if mark and rest.isdigit() else ""
    return f"did you mean {named}{f'({options})' if options else ''}{cutoff}? "


def parse_measures(text: str) -> tuple[Measure, ...]:
    """Parse measure names separated by white space; an InputError for none, and for one twice, however it is written.

    >>> [str(measure) for measure in parse_measures("P@10 ndcg_cut_10")]
    ['P@10', 'nDCG@10']
    """
    # Spaces inside parentheses do not separate.
    names = re.findall(r"[^\s(]*\([^)]*\)\S*|\S+", text)
    if not names:
        remedy = 'name some, as in `measures` "P@10 nDCG@10"'
        raise InputError("no measures", remedy, "measure.none")
    measures = tuple(parse_measure(name) for name in names)
    for place, measure in enumerate(measures):
        if measure in measures[:place]:
            problem = f"`measures` has {measure} twice"
            raise InputError(problem, "give each measure once", "measure.twice")
    return measures


def comparable(name: str, other: str) -> bool:
    """Whether the scores of two measures, by name, are comparable.

    They are the same measure; or one is for utilities, which have no other, with the other's cutoff.
    """
    if name == other:
        return True
    first, second = parse_measure(name), parse_measure(other)
    utilities = (first.labels == "utilities") != (second.labels == "utilities")
    return utilities and (first.cutoff, first.tokens) == (second.cutoff, second.tokens)


def undefined_on_graded(measures: Sequence[Measure], *, above_one: bool = False) -> list[Measure]:
    """The measures that have no meaning on real-valued labels for want of a threshold.

    Measures that rank relevant passages (AP, RR, Rprec, Bpref) always need one. P, R, F1, Success and RBP use shares
    unchanged, and need one on grades (``above_one``): a mean of grades is no precision, and a single grade of 0.5 would
    turn every count into a mean.
    """
    return [m for m in measures if m.rel is None and not defined_on_graded(m, above_one)]


def defined_on_graded(measure: Measure | type[Measure], above_one: bool) -> bool:
    """Whether a measure without a threshold has a meaning on real-valued labels."""
    return measure.labels != "relevance" and not (above_one and measure.labels == "shares")


def why_undefined(
    measure: Measure, *, utilities: bool, graded: str, above_one: bool = False
) -> str:
    """Why a measure has no meaning on some labels, as "not defined on …"; empty if it has one.

    Args:
        utilities: whether the labels are utilities, which may be negative.
        graded: the labels' name, if they can lie between whole numbers; else empty.
        above_one: whether some labels exceed 1.
    """
    takes = measure.labels == "utilities"
    if utilities and not takes:
        return f"not defined on utilities, which may be negative: {UTILITY_KIND} sums them up"
    if not utilities and takes:
        return "not defined on labels that are not utilities"
    if not utilities and graded and undefined_on_graded([measure], above_one=above_one):
        advice = measure.with_threshold(DEFAULT_REL if above_one else 0.5)
        labels = f"{graded} above 1" if above_one else graded
        return f"not defined on {labels}, which need a threshold to tell what is relevant, as in {advice}"
    return ""
