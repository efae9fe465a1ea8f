"""Digest the contents of tables, independent of file format and row order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import polars as pl

from engine import tables
from engine.evaluation.inputs import EvaluationInputs, input_tables
from engine.sources.io.fingerprint import RowHashes
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

# Digests that were made, for as long as their inputs are in use: conditions of a study, certificates
# of several roles and summaries ask for the same ones, and a million rows take seconds.
_MADE: WeakKeyDictionary[EvaluationInputs, dict[str, str]] = WeakKeyDictionary()
# Rows that are hashed at a time: their hashes are all in memory.
_ROWS = 100_000
# One encoder for all rows: json.dumps would make one for each.
_AS_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def inputs_sha256(inputs: EvaluationInputs) -> dict[str, str]:
    """Digests of what an evaluation was given: ``queries``, ``corpus``, ``runs``, and the tables that
    annotators need, by name.

    Of the corpus these are the listed passages, of a run the ranks within the cutoff: the rest was
    not used, and scores only count through the ranks that they give.
    """
    if inputs in _MADE:
        return dict(_MADE[inputs])
    digests = {
        "queries": table_sha256(inputs.queries, list(tables.QUERIES)),
        "corpus": table_sha256(inputs.corpus, list(tables.CORPUS)),
        "runs": table_sha256(inputs.runs, [RUN, QUERY_ID, RANK, DOC_ID]),
    }
    known = input_tables()
    for name, table in inputs.tables.items():
        columns = known[name].columns if name in known else table.columns
        digests[name] = table_sha256(table, columns)
    _MADE[inputs] = digests
    return dict(digests)


def table_sha256(table: pl.DataFrame, columns: Sequence[str]) -> str:
    """A digest of a table's rows in the named columns, as a multiset (``RowHashes``).

    Rows are hashed as JSON, since they may hold lists: neither the order of rows nor further columns
    count, the order within lists does.
    """
    hashes = RowHashes()
    for part in table.select(columns).iter_slices(_ROWS):
        hashes.add(_AS_JSON(row).encode("utf-8", "surrogatepass") for row in part.iter_rows())
    return hashes.hexdigest()
