"""Runs (ranked lists): read whole in any layout of ``scan_run``, ordered and checked; written as TREC text and Parquet.

Checks beyond single rows, and ordering, work on a single part or on many. Runs may carry the texts of their passages,
so that no corpus is needed. Names of runs over several corpora, as cuts of the same documents, contain the corpus. So
do names of documents whose id has another text in another corpus; equal texts are the same document, and are read once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.io.files import atomic_path, write_parquet
from engine.sources.io.locations import Location, suffix_of
from engine.sources.io.parallel import mapped
from engine.sources.passages.read import read_corpus, with_composed
from engine.sources.runs.forms import GIVEN, LINE, MADE, SCHEMA, Batch, read_records, records_in
from engine.sources.runs.scan import WHAT, runs_within, scan_run
from engine.tables import ARTICLE_ID, DOC_ID, QUERY_ID, RANK, RUN, SCORE, STATED_RANK, TEXT, TITLE

_RANKS = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID).alias(RANK)
# Names held: more than the message for several names shows.
_NAMES = 1000
# Code of the note on scores that rise with ranks.
RISING = "rising_scores"


class RunChecks:
    """Reads a run and refuses one that lists a document or a rank twice, is empty, or holds several systems.

    Names the first row that repeats another, whatever the order of the parts.
    """

    def __init__(self, path: Location) -> None:
        self._path = path
        self._names: list[str] = []
        self._repeats: list[tuple[tuple[int, int, str], InputError]] = []
        self.has_lines = False

    def scan(self, on_batch: Callable[[Batch], None]) -> Iterator[pl.DataFrame]:
        """Yield the rows of the batches of ``scan_run``, each after ``on_batch``.

        If the run ``has_lines``, a line above the fault of an InputError may be the first at fault: check the rows so
        far before.
        """
        for batch in scan_run(self._path):
            self.has_lines = batch.has_lines
            self._names = sorted({*self._names, *batch.names})[:_NAMES]
            on_batch(batch)
            yield batch.rows

    def look(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Check a part that has all rows of its queries; returns it."""
        for place, column in enumerate((DOC_ID, RANK)):
            present = rows.drop_nulls(column) if rows[column].null_count() else rows
            # Hashes first, since hardly any run repeats a row.
            hashes = present[QUERY_ID].hash(1) ^ present[column].hash(2)
            if hashes.n_unique() < present.height:
                self._note(present.sort(LINE, QUERY_ID, maintain_order=True), column, place)
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
        error = InputError(problem, remedy, "runs.duplicate", path=self._path, line=shown)
        self._repeats.append(((line, place, query_id), error))

    def refuse_repeats(self) -> None:
        """Refuse a duplicate document or rank."""
        if self._repeats:
            raise min(self._repeats, key=lambda repeat: repeat[0])[1]

    def name(self) -> str:
        """The name of the run, after checks of all parts."""
        self.refuse_repeats()
        if not self._names:
            raise InputError("the run is empty", f"give {WHAT}", "runs.empty", path=self._path)
        if len(self._names) > 1:
            problem = f"holds several systems ({', '.join(self._names[:3])} …)"
            raise InputError(problem, "write one file per run", "runs.several", path=self._path)
        return self._names[0]


def require_new_name(path: Location, name: str, sources: dict[str, Location]) -> None:
    """Note in ``sources`` which file a run's name comes from, and refuse another file of that name."""
    if name in sources:
        problem = f"the run is called {quoted(name)}, as is {sources[name]}"
        remedy = "give each run a different name (last column of a TREC run)"
        raise InputError(problem, remedy, "runs.name", path=path)
    sources[name] = path


def in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Lists in their order: by rank, or as ``by_score`` if ranks are null, with ranks from 1."""
    scored = rows[RANK].is_null()
    if scored.all():
        return by_score(rows)
    if scored.any():
        rows = pl.concat([rows.filter(~scored), by_score(rows.filter(scored))])
    return by_rank(rows)


def by_score(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows ordered by query, and within by score as in trec_eval, with the resulting ranks.

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
    """Numbers of lists (by rank, with ``STATED_RANK``) that are cut at ``k`` among equal scores, of passages whose score
    differs from the one above, of lists whose scores rise with the ranks and never fall, and of lists whose scores fall.
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
    """Notes on a run if lists are cut among equal scores, or have scores that rise with the ranks."""
    cut, differing, rising, falling = map(sum, zip(*parts, strict=True))
    if cut and differing:
        what = "[list|lists] of {} [is|are] cut at `k` between tied scores: ids, or the order of the file, decide which passages count"
        yield count_note("cut_among_ties", cut, what, about=(run,))
    if rising > falling:
        what = (
            "[list|lists] of {} [has|have] scores that rise with the ranks, as distances do: TREC text was ordered "
            "by score, the highest first, and all else by rank; negate the scores if smaller is better"
        )
        yield count_note(RISING, rising, what, about=(run,))


Taken = TypeVar("Taken")


@dataclass(frozen=True, eq=False)
class TextedRun:
    """A run with the texts that it carries.

    Attributes:
        rows: the run table, sorted by query and rank, with ``STATED_RANK``.
        texts: ``forms.GIVEN``; empty for a layout without texts.
        taken: as in ``forms.Batch``.
    """

    rows: pl.DataFrame
    texts: pl.DataFrame
    taken: Counter[str] = field(default_factory=Counter)


def read_run(path: Location) -> pl.DataFrame:
    """Read one run as the run table, sorted by query and rank.

    >>> _ = Path("run.trec").write_text("q1 Q0 d1 1 0.2 mine\\nq1 Q0 d2 2 0.7 mine\\n")
    >>> read_run("run.trec").select("query_id", "doc_id", "rank", "run").rows()
    [('q1', 'd2', 1, 'mine'), ('q1', 'd1', 2, 'mine')]

    TREC text is ordered as by trec_eval: by score (in single precision), equal scores by document id, both descending;
    its ranks are ignored. So is ``{query: {document: score}}`` in JSON (pytrec_eval, ranx); in ``{query: [document,
    …]}`` (the eRAG package) the best document comes first, and scores count down to 1. In Parquet the rank column
    counts. Records are read by ``forms``; a passage with a text and no id has its text for an id. Ranks become 1, 2, …
    without gaps. A run without a name is named after its file. An InputError says that the file is unreadable or empty,
    that a line does not have six columns, that a score is not a number that single precision holds, that a query lists
    a document or a rank twice, that there are several system names, or that ``read_records`` refuses a record.
    """
    return read_runs([path])


def read_runs(paths: Sequence[Location]) -> pl.DataFrame:
    """Read several runs into one table; an InputError refuses two files with the same system name."""
    runs = [run.rows.drop(STATED_RANK) for run in read_texted_runs(paths)]
    return pl.concat([tables.empty(tables.RUNS), *runs])


def read_texted_runs(paths: Sequence[Location]) -> list[TextedRun]:
    """As ``read_runs``, one by one, with the texts of passages that each run carries."""
    runs: list[TextedRun] = []
    sources: dict[str, Location] = {}
    for path in paths:
        within = runs_within(path)
        own = [] if within else [_read_file(path)]
        for name, lists in within.items():
            own += runs_of_records(path, records_in(lists, path, f"give {WHAT}"), name)
        for run in own:
            require_new_name(path, run.rows[RUN][0], sources)
        runs += own
    return runs


def _read_file(path: Location) -> TextedRun:
    batches: list[Batch] = []
    name, (rows,) = read_in_parts(path, OnePart(), lambda part, rows: rows, batches.append)
    named = rows.select(*list(tables.RUNS)[:-1], pl.lit(name).alias(RUN), STATED_RANK)
    taken = sum((batch.taken for batch in batches), Counter[str]())
    return TextedRun(named, pl.concat(batch.texts for batch in batches), taken)


def runs_of_records(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    name: str,
    *,
    texts: bool = False,
) -> Iterator[TextedRun]:
    """The runs of records, as ``read_records`` takes them: a single run ``name``; if empty, all that records name.

    An InputError as of ``read_records``, or as of ``RunChecks``.
    """
    batch = read_records(path, records, name or "run", texts=texts)
    if batch.rows.is_empty():
        raise InputError("the run is empty", f"give {WHAT}", "runs.empty", path=name or "run")
    named = batch.rows.with_columns(pl.lit(name).alias(RUN)) if name else batch.rows
    for number, system in enumerate(named.partition_by(RUN, maintain_order=True)):
        checks = RunChecks(path)
        checks.has_lines = batch.has_lines
        ordered = in_order(checks.look(system))
        checks.refuse_repeats()
        taken = Counter[str]() if number else batch.taken
        yield TextedRun(ordered.select(*tables.RUNS, STATED_RANK), batch.texts, taken)


class RunParts(Protocol):
    """The rows of a run at a time, in ``count`` parts that have all rows of a query."""

    count: int

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        """Take the rows of a run, in place of the run before; an error of the iterator leaves the rows before it."""

    def rows(self, part: int) -> pl.DataFrame:
        """The rows of a part, in the order in which they came."""


class OnePart:
    """All rows of a run in memory, as one part."""

    count = 1

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        self._batches: list[pl.DataFrame] = []
        self._batches.extend(batches)  # those before an error stay

    def rows(self, part: int) -> pl.DataFrame:
        return pl.concat(self._batches or [tables.empty(SCHEMA)])


def read_in_parts(
    path: Location,
    parts: RunParts,
    take: Callable[[int, pl.DataFrame], Taken],
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> tuple[str, list[Taken]]:
    """Read a run part after part; check and order every part, as ``read_run`` does.

    ``on_batch`` is called with every batch after it was read; then ``take``, in threads, with the number and the rows
    (``forms.SCHEMA``) of every part. Returned are the name of the run, and the results of ``take`` by part.
    """
    checks = RunChecks(path)

    def checked(part: int) -> pl.DataFrame:
        return checks.look(parts.rows(part))

    try:
        parts.gather(checks.scan(on_batch))
    except InputError:
        if checks.has_lines:
            for part in range(parts.count):
                checked(part)
            checks.refuse_repeats()
        raise
    taken = list(mapped(lambda part: take(part, in_order(checked(part))), range(parts.count)))
    return checks.name(), taken


def write_run(frame: pl.DataFrame | Iterable[pl.DataFrame], path: Location) -> None:
    """Write a run: Parquet for a name in ``.parquet``, else TREC text.

    >>> row = {"query_id": "q1", "doc_id": "d1", "rank": 1, "score": 0.5, "run": "mine"}
    >>> write_run(pl.DataFrame([row]), "run.trec")
    >>> Path("run.trec").read_text()
    'q1 Q0 d1 1 0.5 mine\\n'

    Programs that read TREC text order by score in single precision, and equal scores by document id. To preserve the
    order of the ranks, a score that is not below the previous one is written as the next smaller number. A run may come
    in parts, of whole queries each: text is written part after part. An InputError says that TREC text cannot represent
    an id with white space, or equal scores without a smaller number.
    """
    path = Path(path)
    parts = [frame] if isinstance(frame, pl.DataFrame) else frame
    if suffix_of(path) == ".parquet":
        write_parquet(pl.concat(parts).select(list(tables.RUNS)), path)
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for part in parts:
            stream.writelines(_lines(part, path))


def _lines(frame: pl.DataFrame, path: Path) -> Iterator[str]:
    remedy = "write the run as .parquet instead"
    previous: tuple[str, np.float32] | None = None
    ordered = frame.select(list(tables.RUNS)).sort(RUN, QUERY_ID, RANK)
    for query_id, doc_id, rank, score, run in ordered.iter_rows():
        if any(part.split() != [part] for part in (query_id, doc_id, run)):
            ids = ", ".join(map(quoted, (query_id, doc_id, run)))
            raise InputError(f"an id with white space ({ids})", remedy, "runs.id", path=path)
        single = np.float32(score)
        if previous is not None and previous[0] == query_id and not single < previous[1]:
            with np.errstate(over="ignore"):
                single = np.nextafter(previous[1], np.float32("-inf"))
            score = float(single)
            if not np.isfinite(single):
                where = "at the end of single precision"
                problem = f"query {quoted(query_id)} has equal scores {where}"
                raise InputError(problem, remedy, "runs.ties", path=path)
        previous = (query_id, single)
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {run}\n"


_FILE, _KEY = "file", "_key"
RunsAndCorpus = tuple[pl.DataFrame, pl.DataFrame | None, Counter[str]]
"""The run table of all runs, the corpus table of the texts that they carry where that is wanted, and ``forms.Batch.taken`` of all."""

ID = "_id"


def id_of(text: str) -> str:
    """The id of a passage that came without one: 16 hexadecimal digits, of the SHA-256 of its UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_runs_with_texts(
    paths: Sequence[Location], *, carried: bool = True, corpora: Sequence[Location] = ()
) -> RunsAndCorpus:
    """The runs, as ``read_runs`` gives them, with their own texts if ``carried``, else with the corpora's.

    ``corpora`` has every run's corpus, or none: names of runs then contain it, and so do ids of passages with another
    text in another corpus.

    A passage without an id gets ``id_of`` its text, in the runs too. A run may lack texts that another has. The first
    title of a passage counts, and its first article; without an article, the title names it, else the id. An InputError
    as of ``read_runs``, ``with_corpus`` or ``read_corpus``, or if a corpus lacks a document of a run over it.
    """
    if corpora:
        return _over(paths, corpora)
    return with_corpus(read_texted_runs(paths), paths, carried=carried)


def with_corpus(
    runs: Iterable[TextedRun], paths: Sequence[Location], *, carried: bool = True
) -> RunsAndCorpus:
    """As ``read_runs_with_texts``, for runs in memory, read from ``paths``.

    An InputError with both places says that a passage has two texts or two titles.
    """
    frames: list[pl.DataFrame] = []
    parts = [tables.empty({**GIVEN, _FILE: pl.UInt32()})]
    taken: Counter[str] = Counter()
    for number, run in enumerate(runs):
        taken += run.taken
        own = run.texts if carried else run.texts.clear()
        nameless = own.filter(MADE).select(DOC_ID).unique()
        frames.append(with_ids(run.rows, nameless.with_columns(_made_ids(nameless)), DOC_ID))
        parts.append(own.with_columns(pl.lit(number, pl.UInt32).alias(_FILE)))
    texts = pl.concat(parts)
    nameless = texts.filter(MADE)
    named_here = nameless.with_columns(_made_ids(nameless).alias(DOC_ID))
    texts = pl.concat([texts.filter(~pl.col(MADE)), named_here])
    texts = texts.sort(_FILE, LINE, nulls_last=True, maintain_order=True)
    for column in (TEXT, TITLE):
        _refuse_conflict(texts, column, paths)
    first = pl.col(TITLE, ARTICLE_ID).filter(pl.col(TITLE, ARTICLE_ID) != "").first().fill_null("")
    corpus = texts.group_by(DOC_ID, maintain_order=True).agg(first, pl.col(TEXT).first())
    named = pl.coalesce(pl.when(pl.col(c) != "").then(c) for c in (ARTICLE_ID, TITLE, DOC_ID))
    corpus = corpus.with_columns(named.alias(ARTICLE_ID)).select(list(tables.CORPUS))
    return pl.concat(frames), corpus if carried else None, taken


def _made_ids(texts: pl.DataFrame) -> pl.Series:
    return pl.Series(ID, map(id_of, texts[DOC_ID]), dtype=pl.String)


def with_ids(rows: pl.DataFrame, ids: pl.DataFrame, column: str) -> pl.DataFrame:
    """Rows with ids (``ID`` of ``ids``, whose texts are composed) instead of the texts in a column that have some."""
    keyed = rows.hstack(with_composed(rows.select(pl.col(column).alias(_KEY)), [_KEY]))
    ids = ids.rename({column: _KEY})
    renamed = keyed.join(ids, on=_KEY, how="left", maintain_order="left")
    return renamed.with_columns(pl.coalesce(ID, column).alias(column)).drop(ID, _KEY)


def with_query_ids(rows: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """Rows with ids of queries instead of their texts; an id that is also another's text stays."""
    texts = queries.filter(~pl.col(tables.QUERY).is_in(queries[QUERY_ID].implode()))
    texts = texts.select(pl.col(tables.QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
    return with_ids(rows, texts, QUERY_ID)


def _refuse_conflict(texts: pl.DataFrame, column: str, paths: Sequence[Location]) -> None:
    """Refuse a passage with two texts, or with two titles (none is not another)."""
    stated = texts.filter(pl.col(column) != "") if column == TITLE else texts
    other = stated.filter(pl.col(column) != pl.col(column).first().over(DOC_ID))
    for second in other.head(1).iter_rows(named=True):
        first = stated.filter(pl.col(DOC_ID) == second[DOC_ID]).row(0, named=True)
        at = "" if first[LINE] is None else f":{first[LINE]}"
        which = f"passage {quoted(second[DOC_ID])} of query {quoted(second[QUERY_ID])}"
        where = f"{paths[first[_FILE]]}{at} (query {quoted(first[QUERY_ID])})"
        problem = f"{which} has another {column} than in {where}"
        remedy = "give each passage an id of its own, or the passages as `corpus`"
        path, line = paths[second[_FILE]], second[LINE]
        raise InputError(problem, remedy, "runs.conflict", path=path, line=line)


AT = "@"  # between a run and its corpus
_CORPUS = "_corpus"


def split_runs(
    runs: Sequence[Location], corpora: Sequence[Location]
) -> tuple[tuple[Location, ...], tuple[Location, ...]]:
    """The files of runs, and their corpora, whose file or name stands behind them: ``mine.trec@words-100``.

    Runs stay unchanged if there are no corpora. An InputError refuses a run that names none of them, or two.
    """
    if not corpora:
        return tuple(runs), ()
    files: list[Location] = []
    behind: list[Location] = []
    for run in runs:
        file, _, name = str(run).rpartition(AT)
        named = [own for own in corpora if name in (str(own), PurePath(own).stem)]
        if len(named) != 1:
            problem = f"names {'two' if named else 'none'} of the corpora"
            example = f"{file or run}{AT}{PurePath(corpora[0]).stem}"
            remedy = f"write behind it which one it is over, as in {example}"
            raise InputError(problem, remedy, "runs.corpus", path=run)
        files.append(type(run)(file))
        behind += named
    return tuple(files), tuple(behind)


def _over(paths: Sequence[Location], corpora: Sequence[Location]) -> RunsAndCorpus:
    files: dict[str, Location] = {}
    frames: list[pl.DataFrame] = []
    for path, corpus in zip(paths, corpora, strict=True):
        called = PurePath(corpus).stem
        for texted in read_texted_runs([path]):
            run = texted.rows
            name = f"{run[RUN][0]}{AT}{called}"
            require_new_name(path, name, files)
            frames.append(run.with_columns(pl.lit(name).alias(RUN), pl.lit(called).alias(_CORPUS)))
    rows, parts = pl.concat(frames), []
    for corpus in dict.fromkeys(corpora):
        over = pl.lit(PurePath(corpus).stem).alias(_CORPUS)
        ids = rows.filter(pl.col(_CORPUS) == over)[DOC_ID].unique()
        parts.append(read_corpus(corpus, ids=ids).with_columns(over))
    passages = pl.concat(parts)
    lost = rows.join(passages, on=[DOC_ID, _CORPUS], how="anti", maintain_order="left")
    for query_id, doc_id, name, called in lost.select(QUERY_ID, DOC_ID, RUN, _CORPUS).iter_rows():
        which = f"document {quoted(doc_id)} of query {quoted(query_id)}"
        problem = f"{which} not in the corpus {called}"
        remedy = "name the corpus that the run was made from"
        raise InputError(problem, remedy, "runs.unknown", path=files[name])
    texts = passages.select(DOC_ID, TITLE, TEXT).unique()
    several = pl.col(DOC_ID).is_in(texts.filter(pl.col(DOC_ID).is_duplicated())[DOC_ID].implode())
    own = pl.when(several).then(pl.concat_str(_CORPUS, DOC_ID, separator=":"))
    named = own.otherwise(pl.col(DOC_ID)).alias(DOC_ID)
    every = passages.with_columns(named).unique(DOC_ID, keep="first", maintain_order=True)
    return rows.with_columns(named).drop(_CORPUS), every.drop(_CORPUS), Counter()
