"""The engine's annotators, in the order of help and messages; their choice, and the resolution of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from engine.labels import dual, erag, preference, qrels
from engine.labels.annotator import Annotator, Ask, EvaluationSettings, Scale, ask_reader
from engine.messages.checked import CheckedSettings
from engine.messages.errors import InputError
from engine.messages.gone import GONE
from engine.messages.wording import meant
from engine.ranking.kinds.base import Measure
from engine.ranking.measures import UTILITY_KIND, parse_measures, why_undefined
from engine.sources.input_tables import InputTable

ANNOTATORS: dict[str, Annotator] = {
    annotator.name: annotator
    for annotator in (
        erag.ANNOTATOR,
        dual.CONTAINMENT_ANNOTATOR,
        dual.BY_SUBSTRING,
        dual.PROVENANCE_ANNOTATOR,
        dual.ANNOTATOR,
        erag.JUDGE_ANNOTATOR,
        qrels.ANNOTATOR,
        preference.ANNOTATOR,
        erag.UTILITY_ANNOTATOR,
        erag.GAIN_ANNOTATOR,
        erag.LIKELIHOOD,
        erag.DIG,
        erag.PMI,
        erag.PERPLEXITY,
    )
}


def input_tables() -> dict[str, InputTable]:
    """The files that the engine's annotators need, by the name of the input."""
    inputs = (annotator.needs_input for annotator in ANNOTATORS.values())
    return {table.name: table for table in inputs if table is not None}


Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class LabelSettings(CheckedSettings):
    """Who labels passages; an InputError for an unknown annotator, for none, and for one name twice.

    Attributes:
        annotators: Who labels: names of the registry, or user-defined annotators.
        options: Options of annotators, one object per class; omitted classes have their defaults.
    """

    annotators: tuple[str | Annotator, ...] = ("erag",)
    options: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(ANNOTATORS)
        if not self.annotators:
            raise InputError("no annotators", f"use some of {known}", "settings.annotators")
        taken: dict[str, str | Annotator] = {}
        for annotator in self.annotators:
            name = annotator if isinstance(annotator, str) else annotator.name
            if isinstance(annotator, str) and name not in ANNOTATORS:
                if instead := GONE.get(("annotator", name)):
                    raise InputError(f"the annotator {name} is gone", instead, "annotator.gone")
                remedy = f"{meant(name, ANNOTATORS)}use {known}"
                raise InputError(f"unknown annotator {name!r}", remedy, "annotator.unknown")
            # Duplicates would count every label and every query twice.
            if name in taken and taken[name] == annotator:
                problem = f"`annotators` has {name!r} twice"
                raise InputError(problem, "give each annotator once", "annotator.twice")
            if name in taken or (isinstance(annotator, Annotator) and name in ANNOTATORS):
                problem = f"two annotators are called {name!r}"
                raise InputError(problem, "rename yours", "annotator.ambiguous")
            taken[name] = annotator

    def listed(self) -> tuple[Annotator, ...]:
        """The requested annotators, in their order."""
        return tuple(ANNOTATORS[a] if isinstance(a, str) else a for a in self.annotators)

    def names(self) -> tuple[str, ...]:
        return tuple(annotator.name for annotator in self.listed())

    def of(self, kind: type[Options]) -> Options:
        """The options of a class; its defaults if not set."""
        return next((known for known in self.options if isinstance(known, kind)), kind())


def option_classes(annotators: Sequence[Annotator] = ()) -> list[Any]:
    """The classes of all annotators' options: the engine's first, then the ones in ``annotators``."""
    classes = (annotator.options for annotator in (*ANNOTATORS.values(), *annotators))
    return list(dict.fromkeys(kind for kind in classes if kind is not None))


def changed_options(options: object) -> dict[str, Any]:
    """The options that differ from their defaults, by field."""
    defaults = type(options)()
    return {
        field.name: value
        for field in fields(options)  # type: ignore[arg-type]
        if (value := getattr(options, field.name)) != getattr(defaults, field.name)
    }


# Default measures, the primary one first: for whole labels, for graded ones.
_USUAL = ("nDCG", "P", "AP", "RR", "R", "Success")
_USUAL_GRADED = ("nDCG", "P", "Success")


@dataclass(frozen=True)
class Resolution:
    """Settings, resolved once (``Settings.resolved``); ``needed`` are pairs of a listed annotator and one that its labels
    rest on, in order, itself last.
    """

    listed: tuple[Annotator, ...]  # the requested ones, in their order
    needed: tuple[tuple[Annotator, Annotator], ...]
    annotators: tuple[Annotator, ...]  # in use: those that labels rest on, then the requested ones
    asks: Mapping[str, Ask]  # reads that annotators need, by the annotator's name
    roles: tuple[Ask, ...]  # by role, with the reader of whole lists, in the order of reading
    scales: Mapping[str, Scale]  # of every listed annotator's labels, by name
    measures: tuple[Measure, ...]  # of the settings, or the usual ones of the labels; primary first

    def reasons(
        self, annotator: str, *, real_valued: bool = False, above_one: bool = False
    ) -> list[str]:
        """The reason why each measure has no meaning on an annotator's labels; empty if it has one.

        Args:
            real_valued: whether some label lies between whole numbers, if computed.
            above_one: whether some label exceeds 1 besides.
        """
        scale, above = self.scales[annotator], real_valued and above_one
        graded = scale.graded or ("real-valued labels" if real_valued else "")
        return [
            why_undefined(measure, utilities=scale.utilities, graded=graded, above_one=above)
            for measure in self.measures
        ]


def resolve(settings: EvaluationSettings, listed: tuple[Annotator, ...]) -> Resolution:
    """Resolve the settings of an evaluation by the annotators ``listed``.

    A ValueError if an annotator rests on one that the engine lacks, or on itself, or if two ask different things in one
    role.
    """
    needed = tuple((first, other) for first in listed for other in needed_by(first, settings))
    annotators = tuple({other.name: other for _, other in needed}.values())
    answers = {annotator.name: annotator.asks(settings) for annotator in annotators}
    asks = {name: ask for name, ask in answers.items() if ask is not None}
    roles = _roles(settings, {a.name for a in annotators if a.is_the_readers}, asks)
    scales = {annotator.name: annotator.scale(settings) for annotator in listed}
    measures = parse_measures(settings.ranking.measures or _usual(scales, settings.ranking.k))
    return Resolution(listed, needed, annotators, asks, roles, scales, measures)


def _roles(settings: EvaluationSettings, own: set[str], asks: Mapping[str, Ask]) -> tuple[Ask, ...]:
    """The reads in each role: first for the reader's own labels, then whole lists, then for other labels."""
    # In the order of the registry, not of ``annotators``: it fixes the order of tables of reads.
    places = {name: place for place, name in enumerate(ANNOTATORS)}
    in_order = sorted(asks, key=lambda name: places.get(name, len(places)))
    entries = [asks[name] for name in asks if name in own]
    if settings.reader.end_to_end is True:
        entries.append(replace(ask_reader(settings.reader), singles=False, lists=True))
    entries += [asks[name] for name in in_order if name not in own]
    roles: dict[str, Ask] = {}
    for new in entries:
        known = roles.setdefault(new.role.name, new)
        if known.terms != new.terms:
            raise ValueError(f"two annotators ask different things in the role {new.role.name!r}")
        singles, lists = known.singles or new.singles, known.lists or new.lists
        closed = known.closed or new.closed
        roles[new.role.name] = replace(known, singles=singles, lists=lists, closed=closed)
    return tuple(roles.values())


def needed_by(annotator: Annotator, settings: EvaluationSettings) -> tuple[Annotator, ...]:
    """An annotator after all annotators that its labels rest on, dependencies first."""
    ordered: dict[str, Annotator] = {}

    def add(needed: Annotator, above: tuple[str, ...]) -> None:
        if needed.name in above:
            raise ValueError(f"the annotator {needed.name} rests on itself")
        for name in needed.rests_on(settings):
            if name not in ANNOTATORS:
                raise ValueError(f"{needed.name} rests on the unknown annotator {name!r}")
            add(ANNOTATORS[name], (*above, needed.name))
        ordered.setdefault(needed.name, needed)

    add(annotator, ())
    return tuple(ordered.values())


def _usual(scales: Mapping[str, Scale], k: int) -> str:
    plain = [scale for scale in scales.values() if not scale.utilities]
    kinds: tuple[str, ...] = (
        (_USUAL_GRADED if all(scale.graded for scale in plain) else _USUAL) if plain else ()
    )
    if len(plain) < len(scales):
        kinds = *kinds, UTILITY_KIND
    return " ".join(f"{kind}@{k}" for kind in kinds)
