"""Plan reads: which are wanted, which are missing, and in which units they are done.

Pure functions of tables, without Ray, torch or files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.reading.prompting.prompts import Prompt
from engine.tables import DOC_ID, DOC_IDS, QUERY, QUERY_ID, READ_KEY, TEXT, TITLE

INPUTS = "inputs"
SIZE = "size"  # about how many tokens a read costs
GROUP = "group"  # reads that share a part of their inputs have the same
# Prompts that agree on this many characters are taken to begin with the same passage.
_ALIKE = 160
# At most this many of them form a group, so that units of work stay small.
_TOGETHER = 16
# Where several actors share the units: a unit is at most this part of what each of them has left, and
# the smallest at least this part of the largest, since every unit costs some milliseconds.
_SHARE, _SMALLEST = 4, 8
# Tokens that no unit is made smaller than: answers of a unit are written together, and a step takes as long
# for one read as for several.
_LEAST = 1024

WANTED: tables.Schema = {
    READ_KEY: pl.String(),
    QUERY_ID: pl.String(),
    DOC_IDS: pl.List(pl.String()),
    INPUTS: pl.List(pl.String()),
}


@dataclass(frozen=True)
class Unit:
    """A piece of work: the rows ``offset`` to ``offset + length`` of the plan.

    A unit is one task, one commit to the store, and the most that a crash can lose per actor. ``reader``
    says which of the readers does it that share an actor, by its place.
    """

    number: int
    offset: int
    length: int
    reader: int = 0


def read_key(fingerprint: str, inputs: Sequence[str]) -> str:
    """The identity of a read: a hash of the reader's fingerprint and the exact text that it is given."""
    content = json.dumps([fingerprint, list(inputs)], ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def wanted_reads(
    lists: pl.DataFrame,
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    *,
    prompt: Prompt,
    fingerprint: str,
    targets: Mapping[str, Sequence[str]] | None = None,
) -> pl.DataFrame:
    """The reads of ``lists``, one row each (``WANTED``); or one for each target of the query, where these are scored.

    Args:
        lists: ``query_id`` and ``doc_ids`` in rank order, best first; an empty list is a read
            without passages.
        targets: by query id, the texts that are scored; None where the reader writes or chooses.
    """
    texts = dict(queries.select(QUERY_ID, QUERY).iter_rows())
    passages = {row[0]: row[1:] for row in corpus.select(DOC_ID, TITLE, TEXT).iter_rows()}

    def rows() -> Iterator[tuple[str, str, list[str], list[str]]]:
        for query_id, doc_ids in lists.select(QUERY_ID, DOC_IDS).iter_rows():
            rendered = prompt.render(texts[query_id], [passages[doc_id] for doc_id in doc_ids])
            own = [()] if targets is None else [(text,) for text in targets[query_id]]
            for target in own:
                inputs = [*rendered, *target]
                yield read_key(fingerprint, inputs), query_id, doc_ids, inputs

    return pl.DataFrame(list(rows()), schema=WANTED, orient="row")


def missing_reads(wanted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """The distinct wanted reads that are not stored, in their order."""
    found = pl.col(READ_KEY).is_in(stored[READ_KEY].implode())
    return wanted.unique(READ_KEY, keep="first", maintain_order=True).filter(~found)


def answered(wanted: pl.DataFrame, outputs: pl.DataFrame) -> pl.DataFrame:
    """Each wanted read with its output, in their order: the columns of ``outputs``.

    Null, but for what identifies the read, where there is none.

    Args:
        outputs: reads by ``read_key``, each once or several times: the first counts.
    """
    known = outputs.drop(QUERY_ID, DOC_IDS, strict=False).unique(READ_KEY, keep="first")
    return wanted.select(READ_KEY, QUERY_ID, DOC_IDS).join(
        known, on=READ_KEY, how="left", maintain_order="left"
    )


def longest_first(missing: pl.DataFrame, sizes: Sequence[int], *, lead: int = 0) -> pl.DataFrame:
    """The plan: the missing reads with columns ``size`` and ``group``, the longest first.

    Reads of which a reader computes a part once for all stand together as a group: where reads have
    several inputs, those of a query, which share inputs (Fusion-in-Decoder) or the query before the
    passages; else those that begin with the same passage, some at a time. The largest group comes
    first, so that no actor waits for a long one at the end. The order depends on the reads alone.

    Args:
        lead: the number of characters that all inputs begin with, which do not distinguish groups.
    """
    shared = bool((missing[INPUTS].list.len() > 1).any())
    begins = pl.col(INPUTS).list.first().str.slice(lead, _ALIKE)
    group = pl.col(QUERY_ID)
    if not shared:
        many = pl.int_range(pl.len()).over(begins, order_by=READ_KEY) // _TOGETHER
        group = pl.struct(begins.alias("begins"), many.alias("part")).hash().cast(pl.String)
    return (
        missing.with_columns(pl.Series(SIZE, sizes, dtype=pl.Int64), group.alias(GROUP))
        .with_columns(
            pl.col(SIZE).sum().over(GROUP).alias("_of_group"),
            pl.col(READ_KEY).min().over(GROUP).alias("_first"),
        )
        .sort("_of_group", "_first", SIZE, READ_KEY, descending=[True, False, True, False])
        .drop("_of_group", "_first")
    )


def cut_units(
    plan: pl.DataFrame, size: Callable[[int], int], *, actors: int = 1, behind: int = 0
) -> Iterator[Unit]:
    """Cut a plan into units of at most a ``size`` in total (and at least one group of reads), when they are asked for.

    Where several actors share them, units become smaller towards the end, each at most a part of what is
    left (guided self-scheduling: Polychronopoulos & Kuck 1987), so that actors of different speed end
    together: what a slow one still holds when the others have nothing left to do is little.

    Args:
        size: of a unit, by its number.
        actors: among which units are divided as they become free.
        behind: what they have to read when the plan is done.
    """
    groups = plan.group_by(GROUP, maintain_order=True).agg(
        pl.len().alias("reads"), pl.col(SIZE).sum()
    )
    left = behind + int(groups[SIZE].sum())
    number, offset, filled, length, most = 0, 0, 0, 0, 0
    for reads, tokens in groups.select("reads", SIZE).iter_rows():
        share = max(_LEAST, most // _SMALLEST, left // (_SHARE * actors))
        if length and filled + tokens > (most if actors == 1 else min(most, share)):
            yield Unit(number, offset, length)
            left -= filled
            number, offset, filled, length = number + 1, offset + length, 0, 0
        if not length:
            most = size(number)
        filled, length = filled + tokens, length + reads
    if length:
        yield Unit(number, offset, length)
