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
        columns: columns that records from Python must have.
        help: the file's content, for the option's help.
        from_records: makes the table of numbered records from Python; None if frames are tables.
        from_texts: reads it as judgments of texts, the corpus' texts of its documents; None if it cannot.
    """

    name: str
    read: Callable[[Location], pl.DataFrame]
    columns: Sequence[str]
    help: str
    from_records: (
        Callable[[Location, Iterable[tuple[int, Mapping[str, Any]]]], pl.DataFrame] | None
    ) = None
    from_texts: Callable[[Location, Location], pl.DataFrame] | None = None
