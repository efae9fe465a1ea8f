"""Several data sets in one study: each has a file of options of its own, and all share those of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import App

from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition, vary
from engine.inputs.files import InputFiles
from engine.labels.registry import ANNOTATORS
from engine.labels.resolved import needed_by
from engine.machine.model_files import cache_directory
from engine.messages.errors import InputError
from engine.messages.wording import listed, quoted
from engine.report import across_data_sets as across
from engine.report.findings import Findings
from engine.report.layout import terminal_table
from engine.report.page.remake import make_page_of_all
from engine.report.page_files import BESIDE, where_to_look
from engine.report.summary import SUMMARY
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, refuse_overlap
from jobs._config import check_numbers, options_from
from jobs._evaluation_options import files_of, parameters, settings_of, sweep_of
from jobs._options import items_of, with_options, with_signature
from jobs._terminal import say_json, standard_output, verbosity, warn_of_code

# Of the study as a whole.
_OF_ALL = ("data", "out", "store", "overwrite", "full", "config")


class Asked(NamedTuple):
    """An evaluation, or a study, of one data set: its options, and what they come to."""

    options: Mapping[str, Any]
    files: InputFiles
    conditions: Mapping[Condition, Settings]
    store: Location


def data_sets(options: Mapping[str, Any]) -> dict[str, Asked]:
    """What is asked of each data set, by its name; without `data`, of the one that has no name.

    What a file says holds for its data set, whatever is said for all. An annotator that is asked for all data sets
    is left out where its labels have no meaning for the task.

    Raises:
        InputError: two files of one name, an option of the whole study in one, or a file that cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    own_annotators: dict[str, bool] = {}
    for path in options["data"]:
        own = _options_in(path)
        if wrong := [quoted(name) for name in _OF_ALL if name in own]:
            problem = f"has {listed(wrong)}, of the study as a whole"
            raise InputError(problem, "give it on the command line", path=path)
        if path.stem in (*found, BESIDE):
            problem = "names a data set that another file names, or the folder of the page"
            raise InputError(problem, "give each file a name of its own", path=path)
        out = folder_at(options["out"] or "").place(path.stem)
        found[path.stem] = {**options, **own, "data": (), "out": out}
        own_annotators[path.stem] = "annotators" in own
    names = items_of(options["annotators"])
    fit = {name: _fit(names, one["task"]) for name, one in found.items()}
    for name in (name for name in found if not own_annotators[name]):
        # What no data set has a use for is left to the evaluation, which refuses it.
        kept = (n for n in names if n in fit[name] or not any(n in of for of in fit.values()))
        found[name] = {**found[name], "annotators": tuple(kept)}
    asked = {name: _asked(own) for name, own in (found or {"": dict(options)}).items()}
    _refuse_unlike(asked)
    return asked


def _refuse_unlike(asked: Mapping[str, Asked]) -> None:
    (first, one), *others = ((name, next(iter(a.conditions.values()))) for name, a in asked.items())
    for name, other in others:
        for what, of, its in (
            ("annotators", *(next(iter(s.labels.names()), "none") for s in (one, other))),
            ("confidence", one.bootstrap.confidence, other.bootstrap.confidence),
            ("resamples", one.bootstrap.resamples, other.bootstrap.resamples),
        ):
            if of != its:
                which = "begin with" if what == "annotators" else "is"
                raise InputError(
                    f"`{what}` {which} {its} for the data set {name}, and {of} for {first}",
                    "give both the same: one table compares them",
                )


def _asked(options: Mapping[str, Any]) -> Asked:
    sweep = sweep_of(options)
    settings = settings_of(options, sweep)
    warn_of_code(settings.reader.trust_remote_code)
    store = options["store"] or cache_directory() / "reads"
    return Asked(options, files_of(options, settings), vary(settings, sweep), store)


def _options_in(path: Path) -> dict[str, Any]:
    """The options that a file gives, as the command line would convert them."""
    # `out` alone has no default, and pydantic, once imported, checks defaults by their types.
    known = [one.replace(default="") if one.default is one.empty else one for one in parameters()]
    app = App(config=[*options_from(path), check_numbers])
    app.default(with_signature(lambda **_: None, known))
    _, bound, _ = app.parse_args([], exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def _fit(names: tuple[str, ...], task: str) -> tuple[str, ...]:
    """Annotators whose labels have a meaning for a task, as far as the engine knows them."""
    needed = {n: needed_by(ANNOTATORS[n], Settings()) for n in names if n in ANNOTATORS}
    return tuple(n for n in names if not any(task in a.unfit_tasks for a in needed.get(n, ())))


def refuse_place(options: Mapping[str, Any]) -> None:
    """Refuse a folder that is read, or that has one evaluation for several data sets, or the reverse."""
    if options["data"]:
        given = {"data": options["data"], "config": options["config"]}
        refuse_overlap(Inputs(given, {}), across.outputs(options["out"]))
    folder = folder_at(options["out"])
    if (SUMMARY if options["data"] else across.CONTENT) in folder.names():
        what = "one evaluation" if options["data"] else "a study of several data sets"
        raise InputError(f"holds {what}", "give another folder", path=folder.shown())


def report(found: Mapping[str, Findings], options: Mapping[str, Any]) -> None:
    """Write the table of several data sets into the folder of all, and print it."""
    out = options["out"]
    cells = [cell for name, one in found.items() for cell in across.cells_of(name, one)]
    both = across.together(cells, next(iter(found.values())).bootstrap)
    across.write_together(both, out)
    make_page_of_all(both, out, {"data": ", ".join(map(str, options["data"]))})
    if verbosity().as_json:
        say_json(both.content())
        return
    full, where = options["full"], folder_at(out).shown()
    grids = across.all_grids(both) if full else [across.grid(both, primary=True)]
    missing = across.missing_cells(both if full else both.primary_only())
    notes = (f"note: {note}" for note in (*missing, *map(with_options, across.notes(both))))
    end = f"results -> {where}, of each data set in {where}/NAME; {where_to_look(where)}"
    headline, shown = across.answer(both).headline, map(terminal_table, grids)
    standard_output().print_parts([headline, *shown, *notes, end])
