"""The console script ``erag``: every job under one name. ``erag X`` is ``python -m jobs.X``."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from cyclopts import App

from engine.messages.errors import InputError
from engine.version import __version__
from jobs._command import epilogue, help_of, run_app


def optional_commands(taken: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Name, place and summary of the commands that entry points add; a name of two packages leads to an error."""
    places: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group="erag.commands"):
        places.setdefault(entry.name, {})[entry.value] = entry
    for name in places.keys() - taken:
        (place, entry), *others = places[name].items()
        packages = ", ".join(sorted(places[name]))
        if others:
            yield name, "jobs.cli:refuse", f"Added by several packages: {packages}."
        else:
            yield name, place, summary_of(entry)


def refuse() -> None:
    problem = "several packages add this command (erag --help names them)"
    raise InputError(problem, "remove all but one", "command.twice")


def summary_of(entry: EntryPoint) -> str:
    """The first line of the docstring of a command that an entry point names, read without an import."""
    top, *below = entry.module.split(".")
    with contextlib.suppress(Exception):  # other commands still run beside a broken package
        spec = find_spec(top)
        assert spec is not None
        folder = next(iter(spec.submodule_search_locations or ()), "")
        file = Path(folder, *below).with_suffix(".py") if below else Path(str(spec.origin))
        functions = (n for n in ast.parse(file.read_bytes()).body if isinstance(n, ast.FunctionDef))
        texts = (ast.get_docstring(node) for node in functions if node.name == entry.attr)
        return next(text.splitlines()[0] for text in texts if text)
    return entry.value


app = App(
    name="erag",
    version=__version__,
    help="Measure how useful a retriever is to the LLM that reads its results.",
    help_epilogue="Start with: erag demo. Then: erag evaluate --help.",
)
COMMANDS = (
    ("demo", "jobs.demo:demo", "Run the whole flow on the bundled sample, offline."),
    ("passages", "jobs.passages:passages", "Cut articles into passages."),
    ("index", "jobs.index:app", "Build an index of a corpus."),
    ("retrieve", "jobs.retrieve:retrieve", "Retrieve passages for queries."),
    ("fuse", "jobs.fuse:fuse", "Fuse runs by reciprocal ranks."),
    ("plan", "jobs.plan:plan", "Print what an evaluation will take before it is done."),
    ("evaluate", "jobs.evaluate:evaluate", "Evaluate runs with the LLM that reads them."),
    ("report", "jobs.report:report", "Make the page of an evaluation again."),
    ("repeat", "jobs.repeat:repeat", "Repeat some LLM calls of an evaluation, and count changes."),
    ("compare", "jobs.compare:compare", "Compare the results of several evaluations."),
    ("gate", "jobs.gate:gate", "Fail where a candidate is worse than a baseline, for CI."),
    ("doctor", "jobs.doctor:doctor", "Show what this machine can do, and what is missing."),
)
# Named by import path: a command's module is loaded only when the command runs or shows its help. Optional commands,
# and commands of other packages, are entry points.
for name, path, summary in (*COMMANDS, *sorted(optional_commands([name for name, *_ in COMMANDS]))):
    # An app, such as index, has its own.
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
