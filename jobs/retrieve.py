"""``erag retrieve``: search indexes for every query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from cyclopts import Parameter

from engine.errors import InputError
from engine.retrieval import approximate as approximating
from engine.retrieval import bm25, dense, manifest
from engine.retrieval.fusion import reciprocal_rank
from engine.retrieval.manifest import Manifest
from engine.sources.io.files import require_output
from engine.sources.io.fingerprint import Fingerprint
from engine.sources.passages.read import scan_corpus
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import write_run
from engine.tables import DOC_ID, QUERY_ID, RUN
from engine.wording import counted
from jobs._command import ConfigFile, run_command

# A path with one of these endings is a file; another one is a directory, where several runs go.
_FILES = frozenset({".parquet", ".trec", ".txt", ".run", ".tsv"})
_FUSED = "rrf"
# Queries whose exact lists approximate ones are compared with.
_RECALL_QUERIES = 100


def retrieve(
    *,
    index: Annotated[list[Path], Parameter(consume_multiple=True, negative=())],
    queries: Path,
    out: Path,
    k: int = 10,
    name: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    fuse: Literal["rrf"] | None = None,
    corpus: str | None = None,
    encoder: str | None = None,
    approximate: str | None = None,
    k1: float = 0.9,
    b: float = 0.4,
    threads: int | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
    config: ConfigFile = None,
) -> None:
    """Retrieve passages for queries and write them as runs.

    Parameters
    ----------
    index
        Directory of an index; several may be given.
    queries
        Queries in any layout (docs/formats.md); answers are not needed.
    out
        Of one index, the run: .parquet, else TREC text. Of several, a directory, with a TREC file
        named as its system for each run (Parquet where ids hold white space); or with --fuse a file (.trec, .txt, .run, .tsv, .parquet)
        for the fused run alone.
    k
        Passages per query.
    name
        The system's name in the run, one for each index. By default its kind, bm25 or dense; where
        several are of a kind, the names of their directories.
    fuse
        Also fuse the runs of several indexes: rrf, by reciprocal ranks.
    corpus
        The passages; an index of another corpus is then refused.
    encoder
        Where the encoder of a dense index is now, if it is not where the index was built.
    approximate
        Search the approximate index that --factory made, with FAISS's parameters ("nprobe=16"; ""
        for its own), and print how much of the exact lists it finds.
    k1
        BM25's saturation of term frequency.
    b
        BM25's normalization by length, from 0 to 1.
    threads
        CPU threads; all by default.
    limit
        Only the first so many queries.
    skip_bad
        Bad records of --corpus to tolerate, as when the index was built.
    """
    for option, value in (("--k", k), ("--limit", limit), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(None, None, f"{option} is {value}", "use 1 or more")
    if skip_bad < 0:
        raise InputError(None, None, f"--skip-bad is {skip_bad}", "use 0 or more")
    if k1 < 0 or not 0 <= b <= 1:
        raise InputError(None, None, f"--k1 {k1} --b {b}", "use k1 of 0 or more and b from 0 to 1")
    if fuse and len(index) < 2:
        raise InputError(None, None, "--fuse with one index", "give another --index")
    several = len(index) > 1
    to_directory = several and out.suffix not in _FILES
    if several and not (to_directory or fuse):
        raise InputError(
            out, None, "is a file, for the runs of several indexes", "give a directory, or --fuse"
        )
    require_output(out, directory=to_directory)
    found = [manifest.read(directory) for directory in index]
    names = _names(index, found, name)
    if several and fuse and _FUSED in names:
        raise InputError(None, None, f"a run called {_FUSED!r}", "give it another --name")
    if not any(one.kind == "dense" for one in found):
        for option, given in (("--encoder", encoder), ("--approximate", approximate)):
            if given is not None:
                raise InputError(
                    None, None, f"{option} without a dense index", "leave it out, or give one"
                )
    if corpus is not None:
        _require_corpus(corpus, skip_bad, index, found)
    asked = read_query_set(queries, need_answers=False)
    table = asked.table if limit is None else asked.table.head(limit)
    runs: list[pl.DataFrame] = []
    for directory, one, system in zip(index, found, names, strict=True):
        if one.kind == "bm25":
            run = bm25.search(directory, table, k=k, name=system, k1=k1, b=b, threads=threads)
        else:
            run = _dense(directory, table, k, system, encoder, approximate, threads or 0)
        runs.append(run)
    if asked.unanswerable:
        print(f"{counted(asked.unanswerable, 'unanswerable question[|s]')} left out")
    for system, run in zip(names, runs, strict=True):
        if to_directory or not several:
            _write(run, table, system, _file(out, system, run) if several else out)
    if fuse:
        fused = reciprocal_rank(pl.concat(runs), k=k, name=_FUSED)
        _write(fused, table, _FUSED, _file(out, _FUSED, fused) if to_directory else out)


def _names(index: Sequence[Path], found: Sequence[Manifest], given: list[str] | None) -> list[str]:
    if given is None:
        kinds = Counter(one.kind for one in found)
        given = [
            one.kind if kinds[one.kind] == 1 else path.resolve().name
            for path, one in zip(index, found, strict=True)
        ]
    if len(given) != len(index):
        raise InputError(
            None, None, f"{len(given)} names for {len(index)} indexes", "give one --name for each"
        )
    if len(set(given)) < len(given):
        raise InputError(None, None, "two runs of the same name", "give each a --name of its own")
    if odd := [name for name in given if not name or "/" in name or name.startswith(".")]:
        raise InputError(None, None, f"{odd[0]!r} cannot name a file", "give another --name")
    return list(given)


def _require_corpus(
    corpus: str, skip_bad: int, index: Sequence[Path], found: Sequence[Manifest]
) -> None:
    fingerprint = Fingerprint()
    for batch in scan_corpus(corpus, skip_bad=skip_bad):
        fingerprint.update(batch)
    for directory, one in zip(index, found, strict=True):
        manifest.require_corpus(one, fingerprint.hexdigest(), directory=directory, corpus=corpus)


def _dense(
    directory: Path,
    queries: pl.DataFrame,
    k: int,
    name: str,
    encoder: str | None,
    parameters: str | None,
    threads: int,
) -> pl.DataFrame:
    def search(table: pl.DataFrame, *, exact: bool) -> pl.DataFrame:
        return dense.search(
            directory,
            table,
            k=k,
            name=name,
            encoder=encoder,
            exact=exact,
            parameters=parameters or "",
            threads=threads,
        )

    if parameters is None:
        return search(queries, exact=True)
    run = search(queries, exact=False)
    sample = queries.head(_RECALL_QUERIES)
    recall = approximating.recall(run, search(sample, exact=True))
    print(
        f"{name}: recall@{k} of the exact lists {recall:.4f} (of {counted(sample.height, '[query|queries]')})"
    )
    return run


def _file(directory: Path, system: str, run: pl.DataFrame) -> Path:
    """TREC text, unless it cannot hold the ids."""
    spaced = run[DOC_ID].str.contains(r"\s").any()
    return directory / f"{system}{'.parquet' if spaced else '.trec'}"


def _write(run: pl.DataFrame, queries: pl.DataFrame, name: str, path: Path) -> None:
    write_run(run, path)
    empty = queries.height - run[QUERY_ID].n_unique()
    without = f", {counted(empty, '[query|queries]')} without any hit" if empty else ""
    assert run.is_empty() or run[RUN][0] == name
    found = f"{counted(run.height, 'result[|s]')} for {counted(queries.height, '[query|queries]')}"
    print(f"{name}: {found}{without} -> {path}")


if __name__ == "__main__":
    run_command(retrieve)
