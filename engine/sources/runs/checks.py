"""What must hold of a run beyond one row, and its order, in one part or in many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.runs.forms import WHAT
from engine.sources.runs.records import LINE, Batch
from engine.sources.runs.scan import scan_run
from engine.tables import DOC_ID, QUERY_ID, RANK, SCORE, STATED_RANK

_RANKS = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID).alias(RANK)
# Names of which one is kept beside the smallest: more than the message for several names shows.
_NAMES = 1000
# Code of the note on scores that rise with ranks.
RISING = "rising_scores"


class RunChecks:
    """Reads a run and refuses one that lists a document or a rank twice, is empty, or holds several systems.

    Of what is listed twice, the first row that repeats another one is named, whatever parts were looked through.
    """

    def __init__(self, path: Location) -> None:
        self._path = path
        self._names: set[str] = set()
        self._repeats: list[tuple[tuple[int, int, str], InputError]] = []
        self.has_lines = False

    def scan(self) -> Iterator[Batch]:
        """Yield the batches of ``scan_run``.

        Raises:
            InputError: as ``scan_run``. Where the run ``has_lines``, a line above may be the first at fault: the
                rows that were given by then are to be looked through before.
        """
        for batch in scan_run(self._path):
            self.has_lines = batch.has_lines
            self._names.update(batch.names)
            if len(self._names) > _NAMES:
                self._names = set(sorted(self._names)[:_NAMES])
            yield batch

    def look(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Look through a part that has all rows of its queries; gives it back."""
        for place, column in enumerate((DOC_ID, RANK)):
            nulls = rows[column].null_count()
            if nulls == rows.height:
                continue
            given = rows.drop_nulls(column) if nulls else rows
            # Hashes first, since hardly any run repeats anything.
            hashes = given[QUERY_ID].hash(1) ^ given[column].hash(2)
            if hashes.n_unique() < given.height:
                self._note(given.sort(LINE, QUERY_ID, maintain_order=True), column, place)
        return rows

    def _note(self, rows: pl.DataFrame, column: str, place: int) -> None:
        again = rows.filter(~pl.struct(QUERY_ID, column).is_first_distinct())
        if again.is_empty():
            return
        query_id, value, line = again.select(QUERY_ID, column, LINE).row(0)
        first = rows.filter((pl.col(QUERY_ID) == query_id) & (pl.col(column) == value))[LINE][0]
        what = "rank" if column == RANK else "document"
        see = f" (see line {first})" if self.has_lines else ""
        problem = f"query {quoted(query_id)} lists {what} {quoted(value)} twice{see}"
        remedy, shown = f"list every {what} once per query", line if self.has_lines else None
        error = InputError(problem, remedy, path=self._path, line=shown)
        self._repeats.append(((line, place, query_id), error))

    def refuse_repeats(self) -> None:
        """Refuse a document or a rank that was found twice."""
        if self._repeats:
            raise min(self._repeats, key=lambda found: found[0])[1]

    def name(self) -> str:
        """The name of the run, of which all parts were looked through.

        Raises:
            InputError: the run lists a document or a rank twice, is empty, or holds several systems.
        """
        self.refuse_repeats()
        names = sorted(self._names)
        if not names:
            raise InputError("the run is empty", f"give {WHAT}", path=self._path)
        if len(names) > 1:
            problem = f"holds several systems ({', '.join(names[:3])} …)"
            raise InputError(problem, "write one file per run", path=self._path)
        return names[0]


def require_new_name(path: Location, name: str, sources: dict[str, Location]) -> None:
    """Note in ``sources`` which file a run's name comes from, and refuse another file of that name."""
    if name in sources:
        problem = f"the run is called {quoted(name)}, as is {sources[name]}"
        remedy = "give each run a different name (last column of a TREC run)"
        raise InputError(problem, remedy, path=path)
    sources[name] = path


def in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Lists in their order: by rank, or as ``by_score`` where ranks are null, with ranks from 1."""
    scored = rows[RANK].is_null()
    if scored.all():
        return by_score(rows)
    if scored.any():
        rows = pl.concat([rows.filter(~scored), by_score(rows.filter(scored))])
    return by_rank(rows)


def by_score(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows ordered by query, and within by score as trec_eval does, with the ranks that this gives.

    Needs ``query_id`` (of any type), ``doc_id`` and ``score``; gives ``rank``, from 1.
    """
    keys = (QUERY_ID, pl.col(SCORE).cast(pl.Float32), DOC_ID)
    return frame.sort(*keys, descending=[False, True, True]).with_columns(_RANKS)


def without_identical(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of lists without documents that have the id of their query, as BEIR's ``ignore_identical_ids``."""
    return by_rank(frame.filter(pl.col(DOC_ID) != pl.col(QUERY_ID)))


def by_rank(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows ordered by query and rank, with the ranks closed up: 1, 2, … without gaps."""
    return frame.sort(QUERY_ID, RANK).with_columns(_RANKS)


def order_of(rows: pl.DataFrame, k: int) -> tuple[int, int, int, int]:
    """What scores say of the order of lists, which go beyond the cutoff ``k`` where they are longer.

    Needs lists by rank, with ``STATED_RANK``.

    Returns:
        how many lists are cut at ``k`` among equal scores, how many passages have another score than the one above,
        and how many lists have scores that rise with the ranks and never fall, and scores that fall somewhere.
    """
    step = (pl.col(SCORE).diff() * pl.coalesce(STATED_RANK, RANK).diff()).sign()
    equal = pl.col(SCORE).cast(pl.Float32).diff() == 0
    follows = pl.col(QUERY_ID) == pl.col(QUERY_ID).shift()
    pairs = rows.select(QUERY_ID, RANK, step=step, equal=equal, follows=follows).filter("follows")
    steps = pairs.group_by(QUERY_ID).agg(least=pl.min("step"), most=pl.max("step"))
    rising = steps.filter(pl.col("least") >= 0, pl.col("most") > 0).height
    cut = pairs.filter("equal", pl.col(RANK) == k + 1).height
    return cut, int((~pairs["equal"]).sum()), rising, int((steps["least"] < 0).sum())


def order_notes(run: str, parts: Iterable[tuple[int, int, int, int]]) -> Iterator[Note]:
    """Notes on a run of which lists are cut among equal scores, or have scores that rise with the ranks."""
    cut, differing, rising, falling = map(sum, zip(*parts, strict=True))
    if cut and differing:
        what = "[list|lists] of {} [is|are] cut at `k` among equal scores: ids, or the file's order, decide what counts"
        yield count_note("cut_among_ties", cut, what, about=(run,))
    if rising > falling:
        what = (
            "[list|lists] of {} [has|have] scores that rise with the ranks, as distances do: TREC text was ordered "
            "by score, the highest first, and all else by rank; negate the scores if smaller is better"
        )
        yield count_note(RISING, rising, what, about=(run,))
