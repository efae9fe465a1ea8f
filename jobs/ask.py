"""``erag ask``: a page on which people choose the better run; it saves a file for ``--preferences``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.messages.checked import Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.ranking.scores import RankingSettings
from engine.report.findings import read_findings
from engine.report.page.asking import write_ask_page
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from jobs._command import run_command, with_verbosity
from jobs._options import Paths
from jobs._terminal import say


@with_verbosity
def ask(
    *,
    run: Paths,
    queries: Path,
    corpus: Path,
    out: Path,
    results: Path | None = None,
    tasks: Annotated[int, Parameter(name=["--tasks", "-n"])] = 50,
    k: int | None = None,
    seed: int = 0,
) -> None:
    """Make a page on which a person says, query by query, which of two or three runs is better.

    The page is one file and needs no server. It saves the file that --preferences of erag evaluate reads.

    Args:
        run: Two or three runs.
        queries: Questions in any layout that erag evaluate reads; answers are not needed.
        corpus: The passages that the runs list.
        out: Page to write, such as tasks.html.
        results: Folder that erag evaluate wrote for these runs (its --out): its labels decide the queries, and
            answers from whole lists are compared, if it has any; else passages are.
        tasks: Queries to ask at most.
        k: Passages of a list that count; by default as in the results, else 10.
        seed: Seed of the sample of queries, and of the order on the page.
    """
    fitted("tasks", tasks, Positive)
    fitted("seed", seed, Natural)
    read = {"run": run, "queries": [queries], "corpus": [corpus]}
    refuse_overlap(Inputs(read, {"results": results}), Outputs([out]))
    findings = None if results is None else read_findings(results, None)
    known = RankingSettings.k if findings is None else int(findings.configuration["k"])
    lists = [] if findings is None else [int(row["k"]) for row in findings.wholes.values()]
    files = InputFiles(queries=queries, corpus=corpus, run=tuple(run), need_answers=False)
    depth = max(lists, default=known) if k is None else fitted("k", k, Positive)
    inputs = read_inputs(files, k=depth)
    if not 2 <= len(inputs.run_names) <= 3:
        problem = f"`run` names {len(inputs.run_names)}"
        raise InputError(problem, "give two or three runs", "settings.run")
    contents = write_ask_page(inputs, findings, out, tasks=tasks, seed=seed)
    say(f"{contents} -> {out}")


if __name__ == "__main__":
    run_command(ask)
