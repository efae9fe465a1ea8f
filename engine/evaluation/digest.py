"""Digests of tables' contents, the same whatever file they came from and in whatever order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.inputs import EvaluationInputs, input_tables
from engine.sources.io.fingerprint import RowHashes
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN


def inputs_sha256(inputs: EvaluationInputs) -> dict[str, str]:
    """Digests of what an evaluation was given: ``queries``, ``corpus``, ``runs``, and the tables that
    annotators need, by name.

    Of the corpus these are the listed passages, of a run the ranks within the cutoff: the rest was
    not used, and scores only count through the ranks that they give.
    """
    digests = {
        "queries": table_sha256(inputs.queries, list(tables.QUERIES)),
        "corpus": table_sha256(inputs.corpus, list(tables.CORPUS)),
        "runs": table_sha256(inputs.runs, [RUN, QUERY_ID, RANK, DOC_ID]),
    }
    known = input_tables()
    for name, table in inputs.tables.items():
        columns = known[name].columns if name in known else table.columns
        digests[name] = table_sha256(table, columns)
    return digests


def table_sha256(table: pl.DataFrame, columns: Sequence[str]) -> str:
    """A digest of a table's rows in the named columns, as a multiset (``RowHashes``).

    Rows are hashed as JSON, since they may hold lists: neither the order of rows nor further columns
    count, the order within lists does.
    """
    hashes = RowHashes()
    hashes.add(_json(row) for row in table.select(columns).iter_rows())
    return hashes.hexdigest()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str).encode(
        "utf-8", "surrogatepass"
    )
