"""How large runs are, told without reading more of them than it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from engine.messages.errors import InputError
from engine.sources.io.locations import PACKED, Location, file_system, locate, reported, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.runs.dictionaries import is_dictionary
from engine.sources.runs.forms import WHAT, is_table, records_of
from engine.sources.runs.scan import scan_run
from engine.tables import QUERY_ID

# Bytes of the shortest line of a TREC run that is not blank ("q Q0 d 1 1 s"), of a usual one, and of an
# entry of a JSON dictionary.
_LEAST, _USUAL, _ENTRY = 12, 45, 20
# How far text shrinks when it is packed, at the most and usually.
_PACKED_AT_MOST, _PACKED = 1000, 5


def bytes_of(path: Location) -> int:
    """About how many bytes a run has, or would have as TREC text; 0 where nobody knows."""
    if suffix_of(path) == ".parquet":
        return _rows_of(path) * _USUAL
    return _stored(path) * (_PACKED if suffix_of(path) in PACKED else 1)


def lists_at_least(paths: Sequence[Location], passages: int, *, k: int) -> bool:
    """Whether runs list this many passages within the cutoff, counted once for each run.

    Small files are told by their sizes alone. Others are counted until the number is reached, at more
    than half a million rows a second; JSON dictionaries of scores are taken to list one passage in 20
    bytes.

    Those that cannot be read, or have a fault, count as far as they can: to refuse them is for whoever reads them.
    """
    if sum(_most_rows(path) for path in paths) < passages:
        return False
    listed = 0
    for path in paths:
        counts: dict[str, int] = {}
        try:
            if is_dictionary(path, WHAT) and records_of(path) is None:
                listed += bytes_of(path) // _ENTRY
            else:
                for batch in scan_run(path):
                    found = batch.rows.group_by(QUERY_ID).agg(pl.len().alias("rows"))
                    for query_id, rows in found.select(QUERY_ID, "rows").iter_rows():
                        before = counts.get(query_id, 0)
                        counts[query_id] = before + rows
                        listed += min(k, before + rows) - min(k, before)
                    if listed >= passages:
                        return True
        except InputError:
            continue
    return listed >= passages


def _most_rows(path: Location) -> int:
    try:
        if suffix_of(path) == ".parquet":
            # A row may hold a list.
            return _rows_of(path) if is_table(path) else sys.maxsize
        return _stored(path) * (_PACKED_AT_MOST if suffix_of(path) in PACKED else 1) // _LEAST + 1
    except InputError:
        return 0


def _rows_of(path: Location) -> int:
    with open_parquet(path) as table:
        return table.rows


def _stored(path: Location) -> int:
    path = locate(path)
    if isinstance(path, Path):
        try:
            return path.stat().st_size
        except (OSError, ValueError):
            raise InputError("no such file", "give a run", path=path) from None
    system, inside = file_system(path)
    with reported(path):
        return int(system.info(inside).get("size") or 0)
