"""Find the documents that runs list in the corpus, by id or by text (as in the eRAG package)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl

from engine.evaluation.lists import Lists
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location
from engine.sources.passages.listed import Listed
from engine.sources.runs.forms import is_trec
from engine.sources.runs.texts import ID
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, TEXT

_GIVE_TEXTS = "give `corpus`, or write the texts of passages into the run"


def named_by_id(lists: Lists, passages: Listed, corpus: Location | None) -> Lists:
    """The lists with ids of documents, whose passages are looked up, in place of texts of passages.

    Raises:
        InputError: the corpus cannot be used, lacks a document, or a run lists a document by its id and by
            its text.
    """
    texts = [pl.Series([], dtype=pl.String)]
    lacks_some = False
    for ids in lists.map(lambda rows: rows[DOC_ID].unique()):
        unknown = passages.look_up(ids)
        # Texts hold white space and ids of TREC runs cannot, so the corpus is looked through only for texts; those
        # that runs carry have ids by now.
        is_text = unknown.str.contains(r"\s") & (corpus is not None)
        texts.append(unknown.filter(is_text))
        lacks_some = lacks_some or not is_text.all()
    wanted = pl.concat(texts).str.normalize("NFC").unique()  # as the corpus is read
    if not wanted.is_empty():
        named = passages.look_up_texts(wanted)
        lacks_some = lacks_some or named.height < len(wanted)
        lists = replace(
            lists, texts=named.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias(ID))
        )
        _refuse_twice(lists)
    if lacks_some:
        _refuse_lost(lists, passages, corpus)
    return lists


_Row = tuple[str, str, int, str]


def _first(lists: Lists, fault: Callable[[pl.DataFrame], pl.DataFrame]) -> _Row | None:
    """Run, query id, rank and document id of the first row that has a fault, in this order."""
    found: list[_Row] = []
    for rows in lists:
        faulty = fault(rows).select(RUN, QUERY_ID, RANK, DOC_ID)
        found += faulty.sort(RUN, QUERY_ID, RANK).head(1).rows()
    return min(found, default=None)


def _refuse_twice(lists: Lists) -> None:
    twice = pl.struct(RUN, QUERY_ID, DOC_ID).is_duplicated()
    first = _first(lists, lambda rows: rows.filter(twice))
    if first is not None:
        name, query_id, _, doc_id = first
        raise InputError(
            f"document {quoted(doc_id)} comes into the list of query {quoted(query_id)} twice, "
            "by its id and by its text",
            "name it once",
            path=lists.path_of(name),
        )


def _refuse_lost(lists: Lists, passages: Listed, corpus: Location | None) -> None:
    hashes = np.array([], dtype=np.uint64)

    def lost(rows: pl.DataFrame) -> pl.DataFrame:
        nonlocal hashes
        unknown = passages.unknown(rows[DOC_ID].unique())
        # 8 bytes a document that is lost, of which there may be as many as rows.
        hashes = np.union1d(hashes, unknown.hash().to_numpy())
        return rows.filter(pl.col(DOC_ID).is_in(unknown.implode()))

    first = _first(lists, lost)
    if first is None:
        return
    name, query_id, _, doc_id = first
    path = lists.path_of(name)
    line = _line_of(path, query_id, doc_id) if lists.are_files else None
    texts = _GIVE_TEXTS if lists.are_files else "give `passages`, or runs with texts"
    remedy = texts if corpus is None else "give the corpus that the run was made from"
    more = f" and {len(hashes) - 1} more" if len(hashes) > 1 else ""
    where = "without a text in any run" if corpus is None else f"not in the corpus {corpus}"
    raise InputError(
        f"document {quoted(doc_id)} of query {quoted(query_id)}{more} {where}",
        remedy,
        path=path,
        line=line,
    )


def _line_of(path: Location, query_id: str, doc_id: str) -> int | None:
    """Where a TREC file lists a document; only looked up to word an error."""
    lines = read_lines(path, "a run") if is_trec(path) else ()
    sought = [query_id, doc_id]
    return next((number for number, line in lines if line.split()[0:3:2] == sought), None)
