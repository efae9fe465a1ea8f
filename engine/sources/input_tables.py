"""Declare the files that annotators need beside queries, runs and a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engine.sources.io.locations import Location


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A file that an annotator needs.

    Attributes:
        name: of the input; also of the command line's option.
        read: reads it; a table with a column ``query_id``.
        columns: the columns that records which are given from Python must have.
        help: what the file holds, for the option's help.
        of_records: makes the table of numbered records, which are given from Python; None where frames are tables.
        of_texts: reads it as judgments of texts, those that a corpus has of its documents; None where it cannot.
    """

    name: str
    read: Callable[[Location], pl.DataFrame]
    columns: Sequence[str]
    help: str
    of_records: (
        Callable[[Location, Iterable[tuple[int, Mapping[str, Any]]]], pl.DataFrame] | None
    ) = None
    of_texts: Callable[[Location, Location], pl.DataFrame] | None = None
