"""The console script ``erag``: every job under one name. ``erag X`` is ``python -m jobs.X``."""

from __future__ import annotations

from cyclopts import App

from engine.version import __version__
from jobs._command import epilogue, help_of, run_app

app = App(
    name="erag",
    version=__version__,
    help="Measure how useful a retriever is to the LLM that reads its results.",
    help_epilogue="Start with: erag demo. Then: erag evaluate --help.",
)
# Named by import path: a command's module is loaded only when the command runs or shows its help.
for name, path, summary in (
    ("demo", "jobs.demo:demo", "Run the whole flow on the bundled sample, offline."),
    ("passages", "jobs.passages:passages", "Cut articles into passages."),
    ("index", "jobs.index:app", "Build an index of a corpus."),
    ("retrieve", "jobs.retrieve:retrieve", "Retrieve passages for queries."),
    ("fuse", "jobs.fuse:fuse", "Fuse runs by reciprocal ranks."),
    ("plan", "jobs.plan:plan", "Print what an evaluation will take before it is done."),
    ("evaluate", "jobs.evaluate:evaluate", "Evaluate runs with the LLM that reads them."),
    (
        "train",
        "jobs.train:train",
        "Train a reader of the T5 family; the defaults are the recipe of eRAG's study.",
    ),
    ("report", "jobs.report:report", "Make the page of an evaluation again."),
    ("repeat", "jobs.repeat:repeat", "Repeat some LLM calls of an evaluation, and count changes."),
    ("compare", "jobs.compare:compare", "Compare the results of several evaluations."),
    ("ask", "jobs.ask:ask", "Make a page on which people say which run is better."),
    ("gate", "jobs.gate:gate", "Fail where a candidate is worse than a baseline, for CI."),
    (
        "coverage",
        "jobs.coverage:coverage",
        "Find what users ask that the evaluation queries do not cover.",
    ),
    ("doctor", "jobs.doctor:doctor", "Show what this machine can do, and what is missing."),
):
    # An app, like that of index, has its own.
    if path.endswith(":app"):
        app.command(path, name=name, help=summary)
        continue
    ending, shown = epilogue(name), help_of(name)
    app.command(path, name=name, help=summary, help_epilogue=ending, help_formatter=shown)
app.register_install_completion_command(help="Let the shell complete commands and options.")


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
