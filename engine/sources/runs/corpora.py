"""Read runs over several corpora, as cuts of the same documents, as if they carried their passages.

Runs are called by their corpus, too. So are documents whose id stands for another text in another corpus; where texts
are equal, a document is the same one, and is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.passages.read import read_corpus
from engine.sources.runs.checks import require_new_name
from engine.sources.runs.read import read_texted_runs
from engine.sources.runs.texts import Together
from engine.tables import DOC_ID, QUERY_ID, RUN, TEXT, TITLE

AT = "@"  # between a run and its corpus
_CORPUS = "_corpus"


def split_runs(
    runs: Sequence[Location], corpora: Sequence[Location]
) -> tuple[tuple[Location, ...], tuple[Location, ...]]:
    """The files of runs, and the corpus of each, whose file or name stands behind them: ``mine.trec@words-100``.

    Raises:
        InputError: a run names none of the corpora, or a name that two have.
    """
    pairs: list[tuple[Location, Location]] = []
    for run in runs:
        file, _, name = str(run).rpartition(AT)
        named = [one for one in corpora if name in (str(one), PurePath(one).stem)]
        if len(named) != 1:
            raise InputError(
                f"names {'two' if named else 'none'} of the corpora",
                f"write behind it which one it is over, as in {file or run}{AT}{PurePath(corpora[0]).stem}",
                path=run,
            )
        pairs.append((type(run)(file), named[0]))
    return tuple(file for file, _ in pairs), tuple(corpus for _, corpus in pairs)


def read_runs_over(paths: Sequence[Location], corpora: Sequence[Location]) -> Together:
    """The runs with the passages that they list, as ``texts.read_runs_with_texts`` gives them.

    Raises:
        InputError: as ``read_run`` and ``read_corpus``; a corpus lacks a document of a run over it.
    """
    files: dict[str, Location] = {}
    frames: list[pl.DataFrame] = []
    for path, corpus in zip(paths, corpora, strict=True):
        called = PurePath(corpus).stem
        for texted in read_texted_runs([path]):
            run = texted.rows
            name = f"{run[RUN][0]}{AT}{called}"
            require_new_name(path, name, files)
            frames.append(run.with_columns(pl.lit(name).alias(RUN), pl.lit(called).alias(_CORPUS)))
    rows, found = pl.concat(frames), []
    for corpus in dict.fromkeys(corpora):
        over = pl.lit(PurePath(corpus).stem).alias(_CORPUS)
        ids = rows.filter(pl.col(_CORPUS) == over)[DOC_ID].unique()
        found.append(read_corpus(corpus, wanted=ids).with_columns(over))
    passages = pl.concat(found)
    lost = rows.join(passages, on=[DOC_ID, _CORPUS], how="anti", maintain_order="left")
    for query_id, doc_id, name, called in lost.select(QUERY_ID, DOC_ID, RUN, _CORPUS).iter_rows():
        raise InputError(
            f"document {quoted(doc_id)} of query {quoted(query_id)} not in the corpus {called}",
            "name the corpus that the run was made from",
            path=files[name],
        )
    texts = passages.select(DOC_ID, TITLE, TEXT).unique()
    several = pl.col(DOC_ID).is_in(texts.filter(pl.col(DOC_ID).is_duplicated())[DOC_ID].implode())
    own = pl.when(several).then(pl.concat_str(_CORPUS, DOC_ID, separator=":"))
    named = own.otherwise(pl.col(DOC_ID)).alias(DOC_ID)
    every = passages.with_columns(named).unique(DOC_ID, keep="first", maintain_order=True)
    return rows.with_columns(named).drop(_CORPUS), every.drop(_CORPUS), Counter()
