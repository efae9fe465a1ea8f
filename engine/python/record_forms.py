"""Tables in whatever form a Python user has them, as records: one dictionary for each row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted

Record = dict[str, Any]
# Rows of pandas that are objects of Python at a time.
_AT_ONCE = 10_000
_FORMS = "a path, a Polars or pandas frame, a dictionary, a list of dictionaries, or a Hugging Face dataset"


def is_path(given: object) -> bool:
    """Whether something is a file, a folder or an address, and not a table in memory."""
    return isinstance(given, str | Path)


def is_table(given: object) -> bool:
    """Whether something is a frame: of Polars, pandas or Arrow."""
    return isinstance(given, pl.DataFrame | pl.LazyFrame) or _module(given) in ("pandas", "pyarrow")


def records(given: Any, name: str) -> Iterator[Record]:
    """The rows of a frame, a data set or a list of dictionaries; an InputError refuses any other argument by its name."""
    for number, row in enumerate(_rows(given, name), 1):
        if not isinstance(row, Mapping):
            problem = f"is a row of the type {type(row).__name__}"
            raise InputError(problem, f"give {_FORMS}", path=name, line=number)
        yield {key: plain(value) for key, value in by_text(row, name).items()}


def by_text(given: Mapping[Any, Any], name: str | None = None) -> dict[str, Any]:
    """A dictionary with its keys as texts, as a JSON object has them; an InputError refuses two that become one."""
    # Pandas groups by a list of one column under tuples of one value.
    keys = [key[0] if isinstance(key, tuple) and len(key) == 1 else key for key in given]
    found = dict(zip(map(str, keys), given.values(), strict=True))
    if len(found) < len(keys):
        twice = next(key for key, times in Counter(map(str, keys)).items() if times > 1)
        both = " and ".join(quoted(key) for key in keys if str(key) == twice)
        raise InputError(f"the keys {both} are the same id", "keep one of them", path=name)
    return found


def plain(value: Any, name: str | None = None) -> Any:
    """A value as JSON would hold it: arrays are lists, and numbers that are missing are None."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: plain(item, name) for key, item in by_text(value, name).items()}
    if isinstance(value, list | tuple | set | frozenset | pl.Series):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's
        return plain(value.tolist())
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _rows(given: Any, name: str) -> Iterable[Any]:
    if isinstance(given, pl.LazyFrame):
        given = given.collect()
    if isinstance(given, pl.DataFrame):
        return given.iter_rows(named=True)
    if _module(given) == "pandas":
        named = [level for level in given.index.names if level is not None]
        frame = given.reset_index() if named else given
        if twice := next(iter(frame.columns[frame.columns.duplicated()]), None):
            raise InputError(f"the column {quoted(twice)} is given twice", "keep one", path=name)
        slices = (frame.iloc[at : at + _AT_ONCE] for at in range(0, len(frame), _AT_ONCE))
        return (row for some in slices for row in some.to_dict("records"))
    if _module(given) == "pyarrow":
        return _rows(pl.DataFrame(given), name)
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InputError(f"is of the type {type(given).__name__}", f"give {_FORMS}", path=name)
    return given


def _module(given: object) -> str:
    """The library of something that may be a frame; empty where it is none."""
    library = type(given).__module__.split(".")[0]
    return library if type(given).__name__ in ("DataFrame", "Table") else ""
