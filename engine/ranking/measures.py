"""Names of ranking measures, as ir_measures writes them: ``nDCG@10``, ``AP(rel=0.5)@50``, ``RR``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InputError

_NAME = re.compile(r"(?P<kind>[A-Za-z0-9]+)(?:\((?P<options>[^()]*)\))?(?:@(?P<cutoff>\d+))?")
KINDS = ("P", "R", "F1", "AP", "RR", "DCG", "nDCG", "Success")
# Measures that take labels as they are; the others count passages as relevant or not.
GRADED_KINDS = frozenset({"P", "Success", "DCG", "nDCG"})
_GAINS = frozenset({"DCG", "nDCG"})


@dataclass(frozen=True)
class Measure:
    """A ranking measure.

    Attributes:
        kind: one of ``KINDS``.
        cutoff: only the first so many passages count; None means the whole list.
        rel: passages with a label of at least this are relevant; None means binary labels, or for
            the kinds in ``GRADED_KINDS`` the labels as they are.
    """

    kind: str
    cutoff: int | None = None
    rel: float | None = None

    def __str__(self) -> str:
        options = "" if self.rel is None else f"(rel={_number(self.rel)})"
        return f"{self.kind}{options}{'' if self.cutoff is None else f'@{self.cutoff}'}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def parse_measure(text: str) -> Measure:
    """Parse one measure name.

    Raises:
        InputError: an unknown measure, a cutoff below 1, an unknown option, or a threshold that is
            no number above 0.
    """
    found = _NAME.fullmatch(text.strip())
    if found is None or found["kind"] not in KINDS:
        raise InputError(
            None,
            None,
            f"unknown measure {text!r}",
            f"use {', '.join(KINDS)}, with a cutoff (nDCG@10) or a threshold (AP(rel=0.5)@10)",
        )
    kind = found["kind"]
    cutoff = int(found["cutoff"]) if found["cutoff"] else None
    if cutoff == 0:
        raise InputError(None, None, f"cutoff 0 in {text!r}", "use a cutoff of 1 or more")
    rel: float | None = None
    for option in filter(None, (part.strip() for part in (found["options"] or "").split(","))):
        name, _, value = (part.strip() for part in option.partition("="))
        if name != "rel" or kind in _GAINS:
            raise InputError(
                None,
                None,
                f"{kind} has no option {name!r} (in {text!r})",
                "DCG and nDCG take labels as gains" if kind in _GAINS else "the option is rel=…",
            )
        try:
            rel = float(value)
        except ValueError:
            rel = -1.0
        if not 0 < rel < float("inf"):
            raise InputError(
                None,
                None,
                f"threshold {value!r} in {text!r}",
                "use a number above 0, as in rel=0.5",
            )
    return Measure(kind, cutoff, rel)


def parse_measures(text: str) -> tuple[Measure, ...]:
    """Parse measure names separated by white space; the same measure twice counts once.

    Raises:
        InputError: as ``parse_measure``, or no name at all.
    """
    # Spaces inside parentheses do not separate.
    names = re.findall(r"[^\s(]*\([^)]*\)\S*|\S+", text)
    if not names:
        raise InputError(None, None, "no measures", 'name some, as in --measures "P@10 nDCG@10"')
    return tuple(dict.fromkeys(parse_measure(name) for name in names))


def undefined_on_graded(measures: Sequence[Measure]) -> list[Measure]:
    """The measures that count relevant passages and have no threshold to tell which they are."""
    return [m for m in measures if m.rel is None and m.kind not in GRADED_KINDS]
