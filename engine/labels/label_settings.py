"""Who labels, and each annotator's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from engine.labels import registry
from engine.labels.annotator import Annotator
from engine.messages.checked import Checked
from engine.messages.errors import InputError
from engine.messages.gone import replacement
from engine.messages.wording import meant

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Checked):
    """Who labels passages.

    Attributes:
        annotators: Who labels: names of the registry, or annotators of a user's.
        options: Options of annotators, one object of a class each; those that are left out have their
            defaults.

    Raises:
        InputError: an unknown annotator, none at all, or one name twice.
    """

    annotators: tuple[str | Annotator, ...] = ("erag",)
    options: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(registry.ANNOTATORS)
        if not self.annotators:
            raise InputError("no annotators", f"use some of {known}")
        taken: dict[str, str | Annotator] = {}
        for annotator in self.annotators:
            name = annotator if isinstance(annotator, str) else annotator.name
            if isinstance(annotator, str) and name not in registry.ANNOTATORS:
                if instead := replacement("annotator", name):
                    raise InputError(f"the annotator {name} is gone", instead)
                raise InputError(
                    f"unknown annotator {name!r}", f"{meant(name, registry.ANNOTATORS)}use {known}"
                )
            # Twice the same would count every label and every query twice.
            if name in taken and taken[name] == annotator:
                raise InputError(f"`annotators` has {name!r} twice", "give each annotator once")
            if name in taken or (isinstance(annotator, Annotator) and name in registry.ANNOTATORS):
                raise InputError(f"two annotators are called {name!r}", "rename yours")
            taken[name] = annotator

    def listed(self) -> tuple[Annotator, ...]:
        """The annotators that are asked for, in their order."""
        return tuple(
            registry.ANNOTATORS[annotator] if isinstance(annotator, str) else annotator
            for annotator in self.annotators
        )

    def names(self) -> tuple[str, ...]:
        return tuple(annotator.name for annotator in self.listed())

    def of(self, kind: type[Options]) -> Options:
        """The options of a class; its defaults where none were given."""
        return next((known for known in self.options if isinstance(known, kind)), kind())


def option_classes(annotators: Sequence[Annotator] = ()) -> list[Any]:
    """The classes of all annotators' options: the engine's, then those of ``annotators``."""
    classes = (annotator.options for annotator in (*registry.ANNOTATORS.values(), *annotators))
    return list(dict.fromkeys(kind for kind in classes if kind is not None))


def changed_options(options: object) -> dict[str, Any]:
    """The options that differ from their defaults, by field."""
    defaults = type(options)()
    return {
        field.name: value
        for field in fields(options)  # type: ignore[arg-type]
        if (value := getattr(options, field.name)) != getattr(defaults, field.name)
    }
