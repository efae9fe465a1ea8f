"""Which reads may end as soon as they are decided, and how these are told from reads in full.

A read that was ended early answers only for the metric and the references that decided it. So it is kept
under a key of its own, made of these and of the key that it has in full. A read in full answers for both.
Pure functions of tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import polars as pl

from engine.errors import ReadError
from engine.reading.plan import DECIDED_KEY, REFERENCES
from engine.tables import ANSWERS, DECIDED, DOC_IDS, QUERY_ID, READ_KEY

_WHOLE = "whole"
_FOUND_AS = "found_as"


def decided_key(key: str, metric: str, references: Sequence[str]) -> str:
    """The identity of a read that these references may end early, from its key in full."""
    content = json.dumps([key, metric, sorted(set(references))], ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def with_references(
    wanted: pl.DataFrame, whole: pl.Series, queries: pl.DataFrame, metric: str
) -> pl.DataFrame:
    """Wanted reads with the columns ``references`` and ``decided_key`` where they may end early.

    Queries that ask for the same read share it: it ends when none of their references can be met. A read
    that anybody wants in full is read in full.

    Args:
        wanted: as ``plan.wanted_reads`` gives them.
        whole: of each row, whether it is wanted in full.
        queries: ``query_id`` and ``answers``.
        metric: decides; none does if it is empty.
    """
    if not metric:
        return wanted
    early = (
        wanted.select(READ_KEY, QUERY_ID)
        .with_columns(whole.alias(_WHOLE))
        .unique(maintain_order=True)
        .join(queries.select(QUERY_ID, ANSWERS), on=QUERY_ID, how="left", maintain_order="left")
        .group_by(READ_KEY, maintain_order=True)
        .agg(pl.col(_WHOLE).any(), pl.col(ANSWERS).list.explode().drop_nulls().unique().sort())
        .filter(~pl.col(_WHOLE))
    )
    keys = [
        decided_key(*row) for row in early.select(READ_KEY, pl.lit(metric), ANSWERS).iter_rows()
    ]
    known = early.select(
        READ_KEY,
        pl.col(ANSWERS).alias(REFERENCES),
        pl.Series(DECIDED_KEY, keys, dtype=pl.String),
    )
    return (
        wanted.drop(REFERENCES, DECIDED_KEY)
        .join(known, on=READ_KEY, how="left", maintain_order="left")
        .select(wanted.columns)
    )


def kept_keys(wanted: pl.DataFrame) -> pl.Series:
    """The keys under which a store may have wanted reads: in full, and ended early."""
    return pl.concat([wanted[READ_KEY], wanted[DECIDED_KEY].drop_nulls()]).unique()


def as_asked(plan: pl.DataFrame) -> pl.DataFrame:
    """``read_key`` by which planned reads answer for others: of one that may end early, it is not known yet
    whether it will.
    """
    return plan.select(pl.coalesce(DECIDED_KEY, READ_KEY).alias(READ_KEY))


def as_kept(reads: pl.DataFrame, planned: pl.DataFrame) -> pl.DataFrame:
    """Reads that were done, row by row as planned, under the keys that they are kept by.

    Raises:
        ReadError: one ended early that had to be read in full.
    """
    if not reads[DECIDED].any():
        return reads
    if (reads[DECIDED] & planned[DECIDED_KEY].is_null()).any():
        raise ReadError("a reader ended reads early that it had to read in full")
    key = pl.when(DECIDED).then(planned[DECIDED_KEY]).otherwise(READ_KEY)
    return reads.with_columns(key.alias(READ_KEY))


def answered(wanted: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """For each wanted read, in their order, the one that answers it, under its key in full.

    The columns are those of ``kept``; null, but for what identifies the read, where nothing answers. A read in full is
    taken before one that ended early.

    Args:
        kept: reads as ``as_kept`` gives them, each once or several times.
    """
    outputs = kept.drop(QUERY_ID, DOC_IDS, strict=False).unique(READ_KEY, keep="first")
    full = pl.col(READ_KEY).is_in(outputs[READ_KEY].implode())
    return (
        wanted.select(READ_KEY, QUERY_ID, DOC_IDS, DECIDED_KEY)
        .with_columns(pl.when(full).then(READ_KEY).otherwise(DECIDED_KEY).alias(_FOUND_AS))
        .join(
            outputs.rename({READ_KEY: _FOUND_AS}), on=_FOUND_AS, how="left", maintain_order="left"
        )
        # Whatever a store's file says: earlier versions merge files without this column.
        .with_columns(pl.col(_FOUND_AS).eq(pl.col(DECIDED_KEY)).fill_null(False).alias(DECIDED))
        .select(
            READ_KEY,
            QUERY_ID,
            DOC_IDS,
            pl.exclude(READ_KEY, QUERY_ID, DOC_IDS, DECIDED_KEY, _FOUND_AS),
        )
    )
