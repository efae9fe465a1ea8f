"""``erag retrieve``: search indexes for every query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import polars as pl
from cyclopts import Parameter

from engine.machine.remote.api_settings import is_api
from engine.machine.remote.limits import limits_of
from engine.messages.checked import Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted, quoted
from engine.retrieval import manifest
from engine.retrieval.dense import SearchOptions, approximate_recall, search_index
from engine.retrieval.fusion import reciprocal_rank
from engine.retrieval.manifest import Kind, Manifest
from engine.sources.io.digests import Fingerprint
from engine.sources.io.files import is_text
from engine.sources.io.folders import folder_at, require_file_output, require_output
from engine.sources.io.outputs import Inputs, Outputs, delivered, refuse_overlap, replaced_together
from engine.sources.passages.read import scan_corpus
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import write_run
from engine.tables import DOC_ID, QUERY_ID
from jobs._command import ConfigFile, run_command, with_verbosity
from jobs._options import SEVERAL_TEXTS, Paths
from jobs._progress import event
from jobs._terminal import say, warn_of_code

# A path with one of these suffixes is a file; any other is a directory, for several runs.
_FILES = frozenset({".parquet", ".trec", ".txt", ".run", ".tsv"})
_FUSED = "rrf"


@dataclass(frozen=True, kw_only=True)
class Output:
    """The runs to write: their places and names.

    Attributes:
        out: For one index, the run: .parquet, else TREC text. For several, a directory that gets
            one TREC file per run, named after its system (Parquet if ids contain white space); or,
            with --fuse, a file (.trec, .txt, .run, .tsv, .parquet) for the fused run only.
        name: Names of the systems in the runs, one per index. By default the kind of index, bm25 or
            dense; if several have the same kind, the names of their directories.
        fuse: Also fuse the runs of several indexes: rrf, by reciprocal ranks.
    """

    out: Path
    name: Annotated[list[str] | None, SEVERAL_TEXTS, Parameter(show_default=False)] = None
    fuse: Literal["rrf"] | None = None

    def check(self, indexes: int) -> None:
        """Refuse an output unsuited to the number of indexes, before searching."""
        if self.fuse and indexes < 2:
            raise InputError("--fuse with one index", "give another --index", "settings.index")
        if indexes > 1 and not (self.fuse or self.is_directory(indexes)):
            problem = "is a file, but there are runs of several indexes"
            raise InputError(problem, "give a directory, or --fuse", "files.file", path=self.out)
        if self.is_directory(indexes):
            require_output(self.out, directory=True)
        else:
            require_file_output(self.out)

    def files(self, index: Sequence[Path]) -> list[Path]:
        """Every file that may be written; the indexes and their ids decide which."""
        if not self.is_directory(len(index)):
            return [self.out]
        names = self.name or [*get_args(Kind), *(path.resolve().name for path in index)]
        return [
            self.out / f"{name}{suffix}"
            for name in (*names, *([_FUSED] if self.fuse else []))
            for suffix in (".trec", ".parquet")
        ]

    def is_directory(self, indexes: int) -> bool:
        return indexes > 1 and self.out.suffix not in _FILES


@with_verbosity
def retrieve(
    *,
    index: Paths,
    queries: Path,
    output: Annotated[Output, Parameter(name="*")],
    options: Annotated[SearchOptions, Parameter(name="*")] = SearchOptions(),  # noqa: B008 - it is frozen
    corpus: str | None = None,
    limit: int | None = None,
    skip_bad: int = 0,
    config: ConfigFile = None,
) -> None:
    """Retrieve passages for queries and write them as runs.

    Args:
        index: Directory of an index; repeat it for several.
        queries: Queries in any layout that erag evaluate reads; answers are not needed.
        corpus: The passages; an index of another corpus is then refused.
        limit: Maximum number of queries; the first ones are used.
        skip_bad: Bad records of --corpus to tolerate; as many as when the index was built.
    """
    fitted("limit", limit, Positive | None)
    fitted("skip_bad", skip_bad, Natural)
    output.check(len(index))
    models = {"index": index, "encoder": options.encoder}
    inputs = {"queries": queries, "corpus": corpus, "config": config}
    refuse_overlap(Inputs(inputs, models), Outputs(output.files(index)))
    warn_of_code(options.trust_remote_code)
    again = [path for n, path in enumerate(index) if path.resolve() in map(Path.resolve, index[:n])]
    if output.fuse and again:  # its run would count double
        problem = f"`index` has {again[0]} twice"
        raise InputError(problem, "fuse each index once", "settings.repeated")
    manifests = [manifest.read(directory) for directory in index]
    names = _names(index, manifests, output)
    has_dense = any(own.kind == "dense" for own in manifests)
    for option, value in (("--encoder", options.encoder), ("--approximate", options.approximate)):
        if value is not None and not has_dense:
            problem = f"{option} without a dense index"
            raise InputError(problem, "leave it out, or add a dense one", "settings.dense")
    has_server = any(is_api(own.settings.get("encoder", {}).get("name", "")) for own in manifests)
    for setting in () if has_server else options.server().changed():
        problem = f"`{setting}` without vectors of a server"
        raise InputError(problem, "leave it out", "settings.local")
    if corpus is not None:
        fingerprint = Fingerprint()
        for batch in scan_corpus(corpus, skip_bad=skip_bad):
            fingerprint.update(batch)
        digest = fingerprint.hexdigest()
        for directory, own in zip(index, manifests, strict=True):
            manifest.require_corpus(own, digest, directory=directory, corpus=corpus)
    query_set = read_query_set(queries, need_answers=False)
    table = query_set.table if limit is None else query_set.table.head(limit)
    runs = {
        name: search_index(directory, table, name=name, options=options, on_event=event)
        for name, directory in zip(names, index, strict=True)
    }
    for directory, (name, run), own in zip(index, runs.items(), manifests, strict=True):
        if options.approximate is not None and own.kind == "dense":
            recall, sampled = approximate_recall(run, directory, table, options)
            queries_of = counted(sampled, "[query|queries]")
            say(f"{name}: recall@{options.k} of the exact lists {recall:.4f} (of {queries_of})")
    if has_server:
        say(f"{limits_of(server := options.server()).used()} used of {server.host}")
    if query_set.unanswerable:
        say(f"{counted(query_set.unanswerable, 'unanswerable question[|s]')} left out")
    one_corpus = len({own.corpus for own in manifests}) == 1
    fuse = partial(reciprocal_rank, k=options.k, name=_FUSED, one_corpus=one_corpus)
    _write_all(runs, table, output, fuse)


def _names(index: Sequence[Path], manifests: Sequence[Manifest], output: Output) -> list[str]:
    names = output.name
    if names is None:
        kinds = [own.kind for own in manifests]
        known = zip(kinds, index, strict=True)
        names = [kind if kinds.count(kind) == 1 else path.resolve().name for kind, path in known]
    if len(names) != len(index):
        problem = f"{counted(len(names), 'name[|s]')} for {counted(len(index), 'index[|es]')}"
        raise InputError(problem, "give one --name for each index", "settings.names")
    if len(set(names)) < len(names):
        problem = "two runs of the same name"
        raise InputError(problem, "give each a different --name", "settings.names")
    if unusable := [name for name in names if not _names_a_file(name)]:
        problem = f"{quoted(unusable[0])} cannot name a file"
        raise InputError(problem, "give another --name", "settings.names")
    if output.fuse and _FUSED in names:
        raise InputError(f"a run called {_FUSED!r}", "give it another --name", "settings.names")
    return list(names)


def _names_a_file(name: str) -> bool:
    forbidden = not name or name.startswith(".") or {"/", "\0"} & set(name)
    # File systems take 255 bytes; names of temporary files are longer.
    return not forbidden and is_text(name) and len(name.encode()) <= 200


def _write_all(
    runs: dict[str, pl.DataFrame],
    queries: pl.DataFrame,
    output: Output,
    fuse: Callable[[pl.DataFrame], pl.DataFrame],
) -> None:
    to_directory = output.is_directory(len(runs))
    written = dict(runs) if to_directory or len(runs) == 1 else {}
    if output.fuse:
        written[_FUSED] = fuse(pl.concat(runs.values()))
    with (replaced_together if to_directory else delivered)(output.out) as place:
        for name, run in written.items():
            write_run(run, _file(place, name, run) if to_directory else place)
    for name, run in written.items():
        path = _file(output.out, name, run) if to_directory else output.out
        results = counted(run.height, "result[|s]")
        searched = counted(queries.height, "[query|queries]")
        empty = queries.height - run[QUERY_ID].n_unique()
        without = f", {counted(empty, '[query|queries]')} without any hit" if empty else ""
        say(f"{name}: {results} for {searched}{without} -> {folder_at(path).shown()}")


def _file(directory: Path, system: str, run: pl.DataFrame) -> Path:
    """TREC text, unless it cannot hold the ids."""
    has_spaces = run[DOC_ID].str.contains(r"\s").any()
    return directory / f"{system}{'.parquet' if has_spaces else '.trec'}"


if __name__ == "__main__":
    run_command(retrieve)
