"""Recorded outputs of runs, checked against queries and lists."""

from __future__ import annotations

import polars as pl

from engine.inputs.lists import Lists
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.queries.read import QuerySet
from engine.sources.runs.read import ID, with_ids
from engine.sources.strangers import count_strangers
from engine.tables import OUTPUT, QUERY, QUERY_ID, RUN

# The name of the table among an evaluation's ``tables``.
OUTPUTS = "outputs"
_UNANSWERED = "list[|s] of {} [has|have] no recorded output, and [is|are] left out end to end"
_UNLISTED = "recorded output[|s] of {} [is|are] of a query without a list"


def check_outputs(
    outputs: pl.DataFrame, query_set: QuerySet, queries: pl.DataFrame, lists: Lists, path: Location
) -> tuple[pl.DataFrame, list[Note]]:
    """The recorded outputs of the ``queries`` evaluated, by id, and notes on lists and outputs that lack each other.

    Raises:
        InputError: outputs of an unknown run, a run without any, or outputs of none of the queries.
    """
    known, names = query_set.table, lists.names
    if len(names) == 1:
        outputs = outputs.with_columns(pl.col(RUN).replace("", names[0]))
    answered = outputs[RUN].unique(maintain_order=True).to_list()
    if strange := [name for name in answered if name not in names]:
        problem = f"has outputs of the run {quoted(strange[0])}" if strange[0] else "names no run"
        remedy = f"name one of {', '.join(names)}, as in RUN=FILE"
        raise InputError(problem, remedy, "outputs.run", path=path)
    # A score by the reader here would not compare with a recorded one.
    if lacking := [name for name in names if name not in answered]:
        problem = f"has no output of the run {quoted(lacking[0])}"
        raise InputError(problem, "give those, or leave the run out", "outputs.lacking", path=path)
    if outputs[QUERY_ID].is_in(known[QUERY_ID].implode()).any():
        query_set.numbering.see(outputs[QUERY_ID], path)
    else:
        texts = known.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
        outputs = with_ids(outputs, texts, QUERY_ID).unique(maintain_order=True)
    if (twice := outputs.filter(outputs.select(RUN, QUERY_ID).is_duplicated())).height:
        problem = f"query {quoted(twice[QUERY_ID][0])} has two outputs of one run"
        raise InputError(problem, "keep one", "outputs.twice", path=path)
    what = f"answers none of the {{}} [query|queries] of {query_set.numbering.path}"
    remedy = "name their ids or texts"
    others = count_strangers(outputs[QUERY_ID], known[QUERY_ID], what, remedy=remedy, path=path)
    kept = outputs.join(queries, on=QUERY_ID, how="semi", maintain_order="left")
    listed = pl.concat([rows.select(RUN, QUERY_ID).unique() for rows in lists])
    listed = listed.join(queries, on=QUERY_ID, how="semi")
    what = "[query|queries] of recorded outputs [is|are] not in the queries file"
    notes = [count_note("outputs_of_others", others, what)]
    for part, other, code, what in (
        (listed, kept, "unanswered_lists", _UNANSWERED),
        (kept, listed, "unlisted_outputs", _UNLISTED),
    ):
        alone = part.join(other, on=[RUN, QUERY_ID], how="anti")[RUN].value_counts().sort(RUN)
        notes += [count_note(code, amount, what, about=(run,)) for run, amount in alone.rows()]
    return kept.select(RUN, QUERY_ID, OUTPUT), notes
