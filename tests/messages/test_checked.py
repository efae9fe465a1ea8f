"""Every field of every part of the settings is checked against its annotation, wherever a part is made."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin

import numpy as np
import pandas as pd
import pytest

import engine
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep
from engine.inputs.files import InputFiles
from engine.labels.registry import option_classes
from engine.messages.checked import SEVERAL, CheckedSettings, hints_of
from engine.messages.errors import InputError
from engine.report.planning.forecast import PlanSettings
from engine.training.inputs import TrainingFiles
from engine.training.settings import Recipe, Workers
from jobs.cli import app
from tests.expected import refused


def _of_commands(command):
    """The dataclasses that commands flatten."""
    if command.default_command:
        yield from (a.hint for a in command.assemble_argument_collection() if a.name == "*")
    for name in command:
        if not name.startswith("-"):
            yield from _of_commands(command[name])


PARTS = {
    *(type(getattr(Settings(), field.name)) for field in dataclasses.fields(Settings)),
    *option_classes(),
    *(Settings, Sweep, InputFiles, PlanSettings, TrainingFiles, Recipe, Workers),
}
NEEDED = {InputFiles: {"queries": "q", "run": ("r",)}, TrainingFiles: {"queries": "q", "run": "r"}}


# A value, and the kinds of annotation that allow it.
VALUES = [
    (math.nan, ()), (-math.inf, ()), ([math.nan], ()), ("no", (str, Path)), (Path("x"), (str, Path)),
    (True, (bool,)), (np.bool_(True), (bool,)), (1.5, (float,)), (np.float32(1.5), (float,)),
    (3, (int, float)), (np.int64(3), (int, float)), (None, (NoneType,)), (-3, ()), (10**30, (float,)),
    (object(), ()), ({}, (Mapping,)), ((), (tuple,)),
]  # fmt: skip


def allowed(hint):
    """The plain kinds that an annotation allows."""
    if get_origin(hint) in (Union, UnionType):
        return {kind for part in get_args(hint) for kind in allowed(part)}
    if get_origin(hint) is Annotated:
        return allowed(get_args(hint)[0]) | ({tuple} if SEVERAL in get_args(hint) else set())
    return {get_origin(hint) or hint}


def test_no_part_of_the_settings_takes_a_value_that_a_fields_annotation_does_not_allow():
    flattened = {kind for kind in _of_commands(app) if kind.__module__.startswith("engine.")}
    assert len(flattened) >= 5
    count = 0
    for part in PARTS | flattened:
        assert issubclass(part, CheckedSettings), part
        made = part(**NEEDED.get(part, {}))
        for name, hint in hints_of(part).items():
            for value, kinds in VALUES:
                if hint != tuple[object, ...] and not allowed(hint) & set(kinds):
                    with pytest.raises(InputError, match=f"^`{name}` is "):
                        dataclasses.replace(made, **{name: value})
                    count += 1
    assert count > 900


@pytest.mark.parametrize(
    "values",
    [
        {"end_to_end": "no"},
        {"missing": "skpi"},
        {"seed": True},
        {"end_to_end_k": 1.5},
        {"seed": None},
        {"threads": 0},
        {"k": "3"},
        {"k": pd.NA},
        {"memory": "1GiB"},
        {"measures": ["P@2", 5]},
        {"reader": ["a", "b"]},
        {"confidence": 95},
        {"confidence": np.float64(1)},
        {"actors": 2.0},
        {"annotators": "erag"},
        {"dual_words": "token"},
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_line_that_says_what_to_use(values):
    with refused("settings.value"):
        Settings.of(**values)


@pytest.mark.parametrize(
    "values", [{"k": 10**20}, {"max_cost": 10**400, "price_in": 1, "price_out": 1}]
)
def test_a_number_beyond_those_of_tables_is_refused(values):
    with refused("settings.large"):
        Settings.of(**values)


def test_a_value_that_stands_for_another_becomes_it():
    settings = Settings.of(
        k=np.int64(3), seed=np.uint8(7), confidence=np.float32(0.5), end_to_end=np.bool_(False),
        measures=["P@2", "RR@2"], annotators=["qrels"], reader=Path("a/b"), actors=np.int32(2),
        batch_in="a/b",
    )  # fmt: skip
    found = settings.flat()
    assert [found[name] for name in ("k", "seed", "confidence", "end_to_end", "reader", "actors")] == [
        3, 7, 0.5, False, "a/b", 2,
    ]  # fmt: skip
    assert (type(found["k"]), type(found["end_to_end"])) == (int, bool)
    assert found["batch_in"] == Path("a/b")
    assert (found["measures"], found["annotators"]) == ("P@2 RR@2", ("qrels",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 0), ("limit", True), ("limit", "2"), ("store", 5), ("progress", "no"), ("k", 1.5),
        ("reader", 5), ("reader", None), ("metric", 5), ("annotators", 5), ("annotators", [5]),
        ("end_to_end", "no"), ("missing", "skpi"),
    ],
)  # fmt: skip
def test_the_python_face_refuses_what_no_setting_can_be(name, value):
    with refused("settings.value"):
        engine.evaluate({"q": ["a"]}, {"d": "a"}, {"q": ["d"]}, **{"progress": False, name: value})
