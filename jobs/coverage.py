"""``erag coverage``: find topics of user queries without an evaluation query."""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from engine.machine.remote.limits import limits_of
from engine.messages.checked import Natural, Positive, fitted
from engine.messages.wording import counted
from engine.report import query_coverage
from engine.report.page_files import page_files
from engine.report.summary import SUMMARY, Origin, input_files, place
from engine.retrieval import encode
from engine.retrieval.encoders import QueryEncoderOptions
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.folders import folder_at, require_folder
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap, replaced_together
from engine.sources.queries.read import read_query_set, read_user_queries
from jobs._command import ConfigFile, command_line, run_command, with_verbosity
from jobs._progress import shown_progress
from jobs._terminal import say, say_json, standard_output, warn_of_code

_CLUSTERS, _ASSIGNMENTS = "coverage.parquet", "assignments.parquet"
_NAMES = (_CLUSTERS, _ASSIGNMENTS, SUMMARY)


@partial(with_verbosity, as_json=True)
def coverage(
    *,
    queries: Path,
    user_queries: Path,
    clusters: int | None = None,
    encoder: Annotated[QueryEncoderOptions, Parameter(name="*")] = QueryEncoderOptions(),  # noqa: B008 - it is frozen
    threads: int | None = None,
    seed: int = 0,
    out: str | None = None,
    config: ConfigFile = None,
) -> None:
    """Cluster evaluation and user queries together, and show clusters without evaluation queries.

    Prints the share of user queries whose cluster has no evaluation query, the share that would be
    expected if as many evaluation queries were drawn at random, and examples of missing topics.

    Args:
        queries: Evaluation queries in any layout that erag evaluate reads; answers are not needed.
        user_queries: A sample of user queries: in the same layouts, or a text file (.txt) with one query per line.
        clusters: Number of clusters; by default the square root of the number of distinct user queries.
        threads: CPU threads of the encoder; all by default.
        seed: Seed of the clustering and of the p-value.
        out: Directory for the tables and the summary, or an address like s3://…; by default nothing is written.
    """
    fitted("clusters", clusters, Positive | None)
    fitted("threads", threads, Positive | None)
    fitted("seed", seed, Natural)
    if out is not None:
        require_folder(out)
        inputs = {"queries": queries, "user_queries": user_queries, "config": config}
        written = Outputs([folder_at(out).place(name) for name in _NAMES])
        refuse_overlap(Inputs(inputs, {"encoder": encoder.encoder}), written)
    warn_of_code(encoder.trust_remote_code)
    spec = encode.specify(encoder, threads=threads or 0)
    evaluation = read_query_set(queries, need_answers=False)
    users = read_user_queries(user_queries)
    files = {"queries": place(queries), "user_queries": place(user_queries)}
    origin = Origin(command_line(), input_files(files))

    def vectors(texts: list[str]) -> Any:
        with shown_progress("encoding", "queries") as on_progress:
            return encode.queries(texts, spec, on_progress=on_progress)

    result = query_coverage.measure(
        evaluation.table, users.table, vectors, clusters=clusters, seed=seed
    )
    unanswerable = {"queries": evaluation.unanswerable, "user_queries": users.unanswerable}
    summary = query_coverage.summarize(result, spec.described(), files, unanswerable, origin)
    if out is not None:
        # Earlier versions wrote a page, too.
        earlier = partial(chain, _NAMES, page_files(folder_at(out)))
        with replaced_together(out, earlier, last=SUMMARY) as directory:
            write_parquet(result.clusters, directory / _CLUSTERS)
            write_parquet(result.assignments, directory / _ASSIGNMENTS)
            text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
            write_text(text, directory / SUMMARY)
    say_json(summary)
    shown: list[Table | str] = [*query_coverage.shown_tables(result), *query_coverage.lines(result)]
    if left_out := sum(unanswerable.values()):
        shown.append(f"note: {counted(left_out, 'unanswerable question[|s]')} left out")
    if out is not None:
        shown.append(f"results -> {folder_at(out).shown()}")
    standard_output().print_parts(shown)
    if spec.server:
        say(f"{limits_of(spec.server).used()} used of {spec.server.host}")


if __name__ == "__main__":
    run_command(coverage)
