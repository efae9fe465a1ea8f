"""Names of ranking measures, as ir_measures writes them.

``nDCG@10``, ``AP(rel=0.5)@50``, ``RR``, ``nDCG(dcg='exp-log2')@5``; and at a budget of tokens, ``nDCG@300tok``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from engine.messages.errors import InputError
from engine.messages.wording import quoted

_PARTS = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9_-]*?)(?:\((?P<options>[^()]*)\))?(?:[@_](?P<cutoff>\d+(?:tok)?))?"
)
# As trec_eval (recip_rank, map_cut_10, ndcg_cut_10, P_10, recall_10, success_10), ranx (hit_rate, r-precision,
# ndcg_burges), BEIR (NDCG@10, Recall@10) and papers (MRR@10, Precision@10) write them.
_NAMES = {
    "P": "p prec precision",
    "R": "r recall",
    "F1": "f1",
    "AP": "ap map map_cut",
    "RR": "rr mrr recip_rank reciprocal_rank",
    "DCG": "dcg",
    "nDCG": "ndcg ndcg_cut",
    "nDCG(dcg='exp-log2')": "ndcg_burges",
    "Success": "success hit hit_rate hitrate",
    "Rprec": "rprec r-precision r_precision",
    "Judged": "judged",
    "UDCG": "udcg",
}
# The kinds by all their names, in lower case.
SYNONYMS = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def usual_name(text: str) -> str:
    """A measure's name as ir_measures writes it, from another tool's; the text itself where none is known.

    ``ndcg_cut_10`` is ``nDCG@10``, ``MRR`` is ``RR``, ``Recall(rel=2)@5`` is ``R(rel=2)@5``.
    """
    match = _PARTS.fullmatch(text.strip())
    kind = None if match is None else SYNONYMS.get(match["kind"].lower())
    if match is None or kind is None or ("(" in kind and match["options"]):
        return text
    options = f"({match['options']})" if match["options"] else ""
    return f"{kind}{options}" + (f"@{match['cutoff']}" if match["cutoff"] else "")


_NAME = re.compile(
    r"(?P<kind>[A-Za-z0-9]+)(?:\((?P<options>[^()]*)\))?(?:@(?P<cutoff>\d{1,18})(?P<unit>tok)?)?"
)
UTILITY_KIND = "UDCG"
KINDS = ("P", "R", "F1", "AP", "RR", "DCG", "nDCG", "Success", "Rprec", "Judged", UTILITY_KIND)
Discounted = Literal["log2", "exp-log2"]
_GAINS = frozenset({"DCG", "nDCG"})
# Of these, the ones that count relevant passages where all labels are whole numbers.
_COUNTS = frozenset({"P", "R", "F1", "Success"})
# Measures that take real-valued labels as they are where no threshold is given.
GRADED_KINDS = frozenset({"P", "R", "F1", "Success", "DCG", "nDCG", "Judged"})
# Measures that have no cutoff in tokens.
_IN_PASSAGES = frozenset({"F1", "Rprec", UTILITY_KIND})
# Measures of a list to which labels of no other passages matter.
OF_ONE_LIST = frozenset({"P", "RR", "DCG", "Success", "Judged"})
# What a relevant passage is where none says otherwise (trec_eval's relevance_level).
DEFAULT_REL = 1.0


@dataclass(frozen=True)
class Measure:
    """A ranking measure.

    Attributes:
        kind: one of ``KINDS``.
        cutoff: only this many passages count, from the first; None means the whole list.
        rel: passages with a label of at least this are relevant; None means 1, or for the kinds in
            ``GRADED_KINDS`` real-valued labels as they are.
        dcg: gain and discount of DCG and nDCG: the label (``log2``, Järvelin & Kekäläinen 2002) or
            2 ** label - 1 (``exp-log2``, Burges et al. 2005), over log2(rank + 1).
        tokens: the cutoff in tokens (``engine.ranking.kernel``); None where it is in passages.
    """

    kind: str
    cutoff: int | None = None
    rel: float | None = None
    dcg: Discounted = "log2"
    tokens: int | None = None

    def __str__(self) -> str:
        options = "" if self.rel is None else f"(rel={_number(self.rel)})"
        if self.dcg != "log2":
            options = f"(dcg='{self.dcg}')"
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        return f"{self.kind}{options}{cutoff if self.tokens is None else f'@{self.tokens}tok'}"

    @property
    def threshold(self) -> float:
        """The least label of a relevant passage."""
        return DEFAULT_REL if self.rel is None else self.rel

    def takes_labels(self, real_valued: bool) -> bool:
        """Whether labels count as they are, rather than as relevant or not."""
        return self.kind in _GAINS or (real_valued and self.rel is None and self.kind in _COUNTS)

    def with_threshold(self, rel: float = DEFAULT_REL) -> Measure:
        """The measure with a threshold; itself if it has one, or cannot have one."""
        countable = self.rel is None and self.kind not in _GAINS | {"Judged", UTILITY_KIND}
        return replace(self, rel=rel) if countable else self


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def parse_measure(text: str) -> Measure:
    """Parse one measure name: as ir_measures writes it, or an exact synonym (``usual_name``).

    >>> measure = parse_measure("AP(rel=2)@10")
    >>> measure.kind, measure.cutoff, measure.rel
    ('AP', 10, 2.0)

    Raises:
        InputError: an unknown measure, a cutoff below 1, an unknown option, or a threshold that is
            not a number above 0.
    """
    match = _NAME.fullmatch(usual_name(text.strip()))
    if match is None or match["kind"] not in KINDS:
        raise InputError(
            f"unknown measure {quoted(text)}",
            f"{_meant(text)}use {', '.join(KINDS)}, with a cutoff (nDCG@10) or a threshold "
            "(AP(rel=0.5)@10)",
        )
    kind = match["kind"]
    cutoff = int(match["cutoff"]) if match["cutoff"] else None
    if match["unit"] and kind in _IN_PASSAGES:
        raise InputError(
            f"{kind} has no cutoff in tokens (in {quoted(text)})",
            f"use {', '.join(known for known in KINDS if known not in _IN_PASSAGES)}",
        )
    if cutoff == 0:
        raise InputError(f"cutoff 0 in {quoted(text)}", "use a cutoff of 1 or more")
    if kind == "Rprec" and cutoff is not None:
        raise InputError(
            f"Rprec has no cutoff (in {quoted(text)})", "its cutoff is the number of relevant"
        )
    rel: float | None = None
    dcg: Discounted = "log2"
    for option in filter(None, (part.strip() for part in (match["options"] or "").split(","))):
        name, _, value = (part.strip() for part in option.partition("="))
        if kind in _GAINS and name == "dcg":
            if (value := value.strip("'\"")) not in get_args(Discounted):
                remedy = "use log2 or exp-log2"
                raise InputError(f"unknown dcg {quoted(value)} in {quoted(text)}", remedy)
            dcg = cast(Discounted, value)
        elif name != "rel" or kind in _GAINS or kind in ("Judged", UTILITY_KIND):
            raise InputError(
                f"{kind} has no option {quoted(name)} (in {quoted(text)})", _options(kind)
            )
        else:
            rel = _threshold(value, text)
    if match["unit"]:
        return Measure(kind, None, rel, dcg, cutoff)
    return Measure(kind, cutoff, rel, dcg)


def _meant(text: str) -> str:
    """Which measure a name is nearly, with the cutoff that follows it."""
    kind, mark, rest = re.match(r"([^@(]*)(@?)(.*)", text.strip(), re.S).groups()  # type: ignore[union-attr]
    near = difflib.get_close_matches(kind.lower(), SYNONYMS, n=1, cutoff=0.6)
    if not near:
        return ""
    name = usual_name(near[0] + (f"@{rest}" if mark and rest.isdigit() else ""))
    return f"did you mean {name}? "


def _options(kind: str) -> str:
    if kind in _GAINS:
        return f"{kind} takes labels as gains; its option is dcg='exp-log2'"
    return f"{kind} has none" if kind in ("Judged", UTILITY_KIND) else "the option is rel=…"


def _threshold(value: str, text: str) -> float:
    try:
        rel = float(value)
    except ValueError:
        rel = -1.0
    if not 0 < rel < float("inf"):
        raise InputError(
            f"threshold {quoted(value)} in {quoted(text)}", "use a number above 0, as in rel=0.5"
        )
    return rel


def parse_measures(text: str) -> tuple[Measure, ...]:
    """Parse measure names separated by white space.

    >>> [str(measure) for measure in parse_measures("P@10 ndcg_cut_10")]
    ['P@10', 'nDCG@10']

    Raises:
        InputError: as ``parse_measure``, no name at all, or the same measure twice, however it is
            written.
    """
    # Spaces inside parentheses do not separate.
    names = re.findall(r"[^\s(]*\([^)]*\)\S*|\S+", text)
    if not names:
        raise InputError("no measures", 'name some, as in `measures` "P@10 nDCG@10"')
    measures = tuple(parse_measure(name) for name in names)
    for place, measure in enumerate(measures):
        if measure in measures[:place]:
            raise InputError(f"`measures` has {measure} twice", "give each measure once")
    return measures


def largest_value(measure: Measure, k: int, largest_label: float) -> float:
    """The largest score that a list can have; the least is 0.

    1 but for DCG, whose k passages may all have the largest gain.

    Args:
        k: passages of a list, where the measure has no cutoff.
        largest_label: that the annotator can give, be it given or not; labels lie between 0 and 1 at least.
    """
    if measure.kind != "DCG":
        return 1.0
    label = max(1.0, largest_label)
    gain = 2**label - 1 if measure.dcg == "exp-log2" else label
    return gain * sum(1 / math.log2(rank + 1) for rank in range(1, (measure.cutoff or k) + 1))


def comparable(one: str, other: str) -> bool:
    """Whether the scores of two measures, by name, may be compared as if of one.

    They are the same measure; or one is that of utilities, which have no other, and its cutoff is
    the other's.
    """
    if one == other:
        return True
    first, second = parse_measure(one), parse_measure(other)
    utilities = (first.kind == UTILITY_KIND) != (second.kind == UTILITY_KIND)
    return utilities and (first.cutoff, first.tokens) == (second.cutoff, second.tokens)


def undefined_on_graded(measures: Sequence[Measure], *, above_one: bool = False) -> list[Measure]:
    """The measures that have no meaning on real-valued labels for want of a threshold.

    Those that rank what is relevant (AP, RR, Rprec) never have one. P, R, F1 and Success take shares as
    they are, and have none on grades: a mean of grades is no precision, and a single grade of 0.5 would
    make one of every count.

    Args:
        above_one: whether some label exceeds 1.
    """
    defined = GRADED_KINDS | {UTILITY_KIND}
    if above_one:
        defined -= _COUNTS
    return [m for m in measures if m.rel is None and m.kind not in defined]


def why_undefined(
    measure: Measure, *, utilities: bool, graded: str, above_one: bool = False
) -> str:
    """Why a measure has no meaning on some labels, as "not defined on …"; empty where it has one.

    Args:
        utilities: whether the labels are utilities, which may be negative.
        graded: what labels these are, where they can lie between whole numbers; else empty.
        above_one: whether some of these exceed 1.
    """
    if utilities and measure.kind != UTILITY_KIND:
        return f"not defined on utilities, which may be negative: {UTILITY_KIND} sums them up"
    if not utilities and measure.kind == UTILITY_KIND:
        return "not defined on labels that are not utilities"
    if not utilities and graded and undefined_on_graded([measure], above_one=above_one):
        advice = measure.with_threshold(DEFAULT_REL if above_one else 0.5)
        labels = f"{graded} above 1" if above_one else graded
        return f"not defined on {labels}, which need a threshold to tell what is relevant, as in {advice}"
    return ""
