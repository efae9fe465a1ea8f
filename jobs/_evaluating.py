"""Evaluate or plan one data set or several for ``erag evaluate`` and ``erag plan``; write and print the results.

Each data set of a study has its own file of options; all data sets share the options of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import App

from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context, digest_of_shards
from engine.evaluation.read import check_readers
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition, Study, study_of, vary
from engine.inputs.files import InputFiles, cut_inputs
from engine.inputs.partition import Partition, partition, shard_pairs
from engine.inputs.shards import InMemoryInputs, InputShards
from engine.labels.registry import ANNOTATORS, needed_by
from engine.machine.model_files import cache_directory
from engine.machine.pool import beside_ray
from engine.messages.errors import InputError
from engine.messages.wording import listed, quoted
from engine.reading.local import USER_ERRORS
from engine.report import across_data_sets as across
from engine.report import results, traces
from engine.report.findings import Findings
from engine.report.heartbeat import Heartbeat
from engine.report.layout import terminal_table
from engine.report.page import remake
from engine.report.page.remake import make_page_of_all
from engine.report.page_files import BESIDE, where_to_look
from engine.report.planning import forecast
from engine.report.planning.forecast import PlanSettings
from engine.report.planning.planner import pace_for, plan_evaluation, take_sample
from engine.report.printed import answer_parts, full_parts
from engine.report.results import outputs, refuse_another
from engine.report.summary import SHARDS, SUMMARY, Origin, input_files, name_files
from engine.sources.io.folders import Folder, folder_at, require_folder
from engine.sources.io.locations import Location, locate
from engine.sources.io.outputs import Inputs, refuse_overlap, sole_writer
from engine.sources.runs.outputs import named_file
from jobs._command import command_line
from jobs._evaluation_options import (
    MODEL_FIELDS,
    files_of,
    given_files,
    parameters,
    settings_of,
    sweep_of,
)
from jobs._options import check_numbers, items_of, options_from, with_options, with_signature
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._terminal import say, say_json, standard_output, step, verbosity, warn_of_code
from jobs._traces import STEPS, TraceFiles, with_traces, written

# Options of the whole study.
_OF_ALL = ("data", "out", "store", "overwrite", "full", "config")


class EvaluationRequest(NamedTuple):
    """An evaluation or a study of a data set: its options, and the files, settings and traces that they stand for."""

    options: Mapping[str, Any]
    files: InputFiles
    conditions: Mapping[Condition, Settings]
    store: Location
    traces: TraceFiles


def data_sets(options: Mapping[str, Any]) -> dict[str, EvaluationRequest]:
    """Options by name of data set; without `data`, the one data set has no name.

    The file of a data set overrides the common options. An annotator requested for all data sets is left out if its
    labels have no meaning for the task.

    Raises:
        InputError: two files with the same name, an option of the whole study in a file, or a file that cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    own_annotators: dict[str, bool] = {}
    for path in options["data"]:
        own = _options_in(path)
        if wrong := [quoted(name) for name in _OF_ALL if name in own]:
            problem = f"has {listed(wrong)}, of the study as a whole"
            raise InputError(problem, "give it on the command line", "settings.study", path=path)
        if path.stem in (*found, BESIDE):
            problem = "names a data set that another file names, or the folder of the page"
            remedy = "give each file a name of its own"
            raise InputError(problem, remedy, "settings.dataset", path=path)
        out = folder_at(options["out"] or "").place(path.stem)
        found[path.stem] = {**options, **own, "data": (), "out": out}
        own_annotators[path.stem] = "annotators" in own
    names = items_of(options["annotators"])
    fit = {name: _fit(names, one["task"]) for name, one in found.items()}
    for name in (name for name in found if not own_annotators[name]):
        # An annotator that fits no data set stays: the evaluation refuses it.
        kept = (n for n in names if n in fit[name] or not any(n in of for of in fit.values()))
        found[name] = {**found[name], "annotators": tuple(kept)}
    asked = {name: _asked(own) for name, own in (found or {"": dict(options)}).items()}
    _refuse_unlike(asked)
    return asked


def _refuse_unlike(asked: Mapping[str, EvaluationRequest]) -> None:
    (first, one), *others = ((name, next(iter(a.conditions.values()))) for name, a in asked.items())
    for name, other in others:
        for what, of, its in (
            ("annotators", *(next(iter(s.labels.names()), "none") for s in (one, other))),
            ("confidence", one.bootstrap.confidence, other.bootstrap.confidence),
            ("resamples", one.bootstrap.resamples, other.bootstrap.resamples),
        ):
            if of != its:
                which = "begin with" if what == "annotators" else "is"
                problem = f"`{what}` {which} {its} for the data set {name}, and {of} for {first}"
                remedy = "give both the same: one table compares them"
                raise InputError(problem, remedy, "settings.datasets")


def _asked(options: Mapping[str, Any]) -> EvaluationRequest:
    options, files_of_traces = with_traces(options)
    sweep = sweep_of(options)
    settings = settings_of(options, sweep)
    warn_of_code(settings.reader.trust_remote_code)
    store = options["store"] or cache_directory() / "reads"
    return EvaluationRequest(
        options, files_of(options, settings), vary(settings, sweep), store, files_of_traces
    )


def _options_in(path: Path) -> dict[str, Any]:
    """The options of a file, converted as on the command line."""
    # Only `out` has no default, and pydantic, once imported, checks defaults by their types.
    known = [one.replace(default="") if one.default is one.empty else one for one in parameters()]
    app = App(config=[*options_from(path), check_numbers])
    app.default(with_signature(lambda **_: None, known))
    _, bound, _ = app.parse_args([], exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def _fit(names: tuple[str, ...], task: str) -> tuple[str, ...]:
    """Annotators whose labels have a meaning for a task; unknown annotators are kept."""
    needed = {n: needed_by(ANNOTATORS[n], Settings()) for n in names if n in ANNOTATORS}
    return tuple(n for n in names if not any(task in a.unfit_tasks for a in needed.get(n, ())))


def refuse_place(options: Mapping[str, Any]) -> None:
    """Refuse a folder of inputs, or a folder with one evaluation for several data sets, or the reverse."""
    if options["data"]:
        given = {"data": options["data"], "config": options["config"]}
        refuse_overlap(Inputs(given, {}), across.outputs(options["out"]))
    folder = folder_at(options["out"])
    if (SUMMARY if options["data"] else across.CONTENT) in folder.names():
        what = "one evaluation" if options["data"] else "a study of several data sets"
        problem = f"holds {what}"
        raise InputError(problem, "give another folder", "files.occupied", path=folder.shown())


def report(found: Mapping[str, Findings], options: Mapping[str, Any]) -> None:
    """Write the table of several data sets into their common folder, and print it."""
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


_INPUTS = "inputs"
_KEPT = "finished LLM calls are cached in {}; run the same command again to go on from there"


def evaluate_data_sets(options: Mapping[str, Any]) -> None:
    """Evaluate one data set or several in turn, by the options of ``erag evaluate``."""
    refuse_place(options)
    asked = data_sets(options)
    for one in asked.values():  # each before the first is read, which may take hours
        own, out = one.options, one.options["out"]
        for place in (out, one.store):
            require_folder(place)
        models = {name: own[name] for name in MODEL_FIELDS}
        tables = {name: table.path for name, table in one.files.tables.items()}
        recorded = [locate(named_file(path)[1]) for path in one.files.outputs]
        given = given_files({**own, **tables, "run": list(one.files.run), "outputs": recorded})
        refuse_overlap(Inputs(given, models), outputs(out, next(iter(one.conditions.values()))))
        if not own["overwrite"]:  # before inputs are read, which may take minutes
            refuse_another(out, one.conditions)
    found = {}
    for name, one in asked.items():
        with sole_writer(one.options["out"]), written(one.traces, one.options["out"]):
            found[name] = evaluate_and_report(
                one.files,
                one.conditions,
                out=one.options["out"],
                store=one.store,
                full=options["full"],
                overwrite=options["overwrite"],
                printed=not name,
                also=partial(_with_traces, one) if one.traces.tables else None,
            )
    if options["data"]:
        report(found, options)


def evaluate_and_report(
    files: InputFiles,
    conditions: Mapping[Condition, Settings],
    *,
    out: Location,
    store: Location,
    full: bool = False,
    overwrite: bool = False,
    printed: bool = True,
    also: Callable[[Evaluation, Context], Iterator[Evaluation]] | None = None,
) -> Findings:
    """Evaluate, write every table and ``summary.json`` under ``out``, and print the summary if ``printed``.

    Inputs that are too large for memory are cut into shards, in the folder of the results. Several conditions make a study;
    ``also`` adds tables to the first, step by step.

    Raises:
        InputError: the folder has another evaluation; otherwise as ``evaluate``.
    """
    settings = list(conditions.values())
    kept = _KEPT.format(folder_at(store).shown())
    if lost := [own.name for own in settings[0].reader.functions if not own.is_kept]:
        kept = f"outputs of {', '.join(lost)}, without a version, are lost; other {kept}"
    # Before the work: it may take hours, in which files may change.
    origin = Origin(command_line(), input_files(name_files(files)))
    with Heartbeat(out, settings[0].api, event) as heartbeat:
        keeps(kept, heartbeat.interrupt)
        folder = None
        step("reading the inputs")
        if pairs := shard_pairs(files, settings[0].running.shard_pairs, k=settings[0].ranking.k):
            heartbeat.begin()
            folder = folder_at(out) / SHARDS
            shards: InputShards = _cut(files, settings, folder, folder_at(store), pairs)
            digests = {"shards": digest_of_shards(shards)}
        else:
            held = InMemoryInputs.of_files(files, k=max(condition.k for condition in conditions))
            shards, digests = held, cut_inputs(held.inputs, settings[0].ranking.k).sha256
        if not overwrite:
            refuse_another(out, conditions, digests, runs=len(shards.runs))
        step("preparing labels and the reader")
        with shown_progress(then="scoring, and computing statistics") as shown:
            context = Context(
                store=store, on_progress=shown, on_event=event, on_unit=heartbeat.on_unit
            )
            evaluations, readers = evaluate_shards(shards, settings, context, folder)
            study = study_of(conditions, evaluations, readers) if len(conditions) > 1 else None
        result = evaluations[0]
        failed: Exception | None = None
        try:
            for added in also(result, context) if also else ():
                result = added
        except USER_ERRORS as error:
            failed = error  # after the results so far are written
        step("writing tables and the page")
        found = write_results(result, name_files(files), out, study, origin)
    if printed:
        print_results(found, folder_at(out).shown(), full=full)
    if failed:
        raise failed
    return found


def _with_traces(
    one: EvaluationRequest, result: Evaluation, context: Context
) -> Iterator[Evaluation]:
    step("counting the steps of traces")
    steps, notes = one.traces.tables[STEPS], (*result.notes, *one.traces.notes)
    yield (result := traces.with_traces(replace(result, notes=notes), steps))
    if one.options["leave_out"]:
        with shown_progress() as shown:
            again = replace(context, on_progress=shown)
            yield traces.with_credit(result, steps, again)


def _cut(
    files: InputFiles, settings: Sequence[Settings], folder: Folder, store: Folder, pairs: int
) -> Partition:
    with shown_progress("cutting into shards", "rows") as on_rows:

        def on_cut(what: str, done: int) -> None:
            if what == "runs":
                on_rows(done, done)

        k = max(one.ranking.k for one in settings)
        return beside_ray(
            partial(partition, files, folder / _INPUTS, k=k, pairs_per_shard=pairs),
            settings[0].running.pool(),
            on_progress=on_cut,
            check=partial(check_readers, settings, event, (folder, store)),
        )


def print_results(findings: Findings, out: str, *, full: bool = False) -> None:
    """Print the answer, or all tables; or the summary as JSON."""
    if verbosity().as_json:
        say_json(findings.summary)
        return
    parts = (full_parts if full else answer_parts)(findings, out)
    standard_output().print_parts(parts, _worded())


def _worded() -> Callable[[str], str]:
    return partial(with_options, known={known.name for known in parameters()})


def _with_options(content: dict[str, Any]) -> dict[str, Any]:
    worded = _worded()
    for notes in content["notes"].values():
        for note in notes:
            note["text"] = worded(note["text"])
    content["verdict"]["sentences"] = [*map(worded, content["verdict"]["sentences"])]
    return content


def write_results(
    result: Evaluation,
    files: Mapping[str, Any],
    out: Location,
    study: Study | None = None,
    origin: Origin | None = None,
) -> Findings:
    """Write tables and ``summary.json``, then make the page: its failure loses no results."""
    found = results.write_results(result, dict(files), out, study, origin, reworded=_with_options)
    remake.make_page(found, out)
    return found


def plan_and_print(options: Mapping[str, Any], asked: PlanSettings) -> None:
    """Plan the evaluation or study of every data set, and print the plans; data sets in shards are sampled."""
    contents = {}
    for name, one in data_sets(options).items():
        if name:
            say(f"data set {name}:")
        with written(one.traces, one.options["out"]):  # a temporary folder, in which they stay
            settings = list(one.conditions.values())
        pace_for(asked, settings)  # before inputs are read
        k = max(condition.k for condition in one.conditions)
        pairs = shard_pairs(one.files, settings[0].running.shard_pairs, k=settings[0].ranking.k)
        # Runs that carry texts, and several corpora, are not sampled.
        sampled = pairs and one.files.corpus is not None
        sample = take_sample(one.files, k=k, pairs=pairs) if sampled else None
        step("reading the inputs")
        inputs = InMemoryInputs.of_files(one.files, k=k).inputs if sample is None else sample.inputs
        step("preparing the reader")
        more = []
        if one.options["leave_out"]:
            more = [traces.edited(inputs, one.traces.tables[STEPS], settings[0])[:2]]
        made = plan_evaluation(
            inputs, settings, asked, store=one.store, sample=sample, on_event=event, more=more
        )
        contents[name] = forecast.content(made)
        standard_output().print_parts(forecast.shown(made), with_options)
    if verbosity().as_json:
        say_json(contents if options["data"] else contents[""])
