"""Evaluate or plan one data set or several for ``erag evaluate`` and ``erag plan``; write and print the results.

Each data set of a study has its own file of options; all data sets share the options of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
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
from engine.report import across_data_sets as across
from engine.report import results, traces
from engine.report.findings import Findings
from engine.report.heartbeat import Heartbeat
from engine.report.layout import terminal_table
from engine.report.page import remake
from engine.report.page_files import BESIDE, where_to_look
from engine.report.planning import forecast
from engine.report.planning.planner import pace_for, plan_evaluation, take_sample
from engine.report.printed import answer_parts, full_parts
from engine.report.summary import SHARDS, SUMMARY, Origin, input_files, name_files
from engine.sources.io.folders import Folder, folder_at, require_folder
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, refuse_overlap, sole_writer
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
from jobs._terminal import say, say_json, standard_output, step, warn_of_code
from jobs._traces import TraceFiles, with_traces, written

# Options of the whole study.
_OF_ALL = ("data", "out", "store", "overwrite", "full", "config")


class EvaluationRequest(NamedTuple):
    """An evaluation or a study of a data set: its options, and the files, settings and traces that they stand for."""

    options: Mapping[str, Any]
    files: InputFiles
    conditions: Mapping[Condition, Settings]
    store: Location
    traces: TraceFiles = TraceFiles()


def data_sets(options: Mapping[str, Any]) -> dict[str, EvaluationRequest]:
    """Requests by name of data set; without `data`, the one data set has no name.

    The file of a data set overrides the common options; an InputError refuses two of one name, and options of the whole
    study. An annotator requested for all data sets is left out if its labels have no meaning for the task.
    """
    by_name: dict[str, dict[str, Any]] = {}
    shared = []  # data sets without annotators of their own
    for path in options["data"]:
        own = _options_in(path)
        if wrong := [quoted(name) for name in _OF_ALL if name in own]:
            problem = f"has {listed(wrong)}, of the study as a whole"
            raise InputError(problem, "give it on the command line", "settings.study", path=path)
        if path.stem in (*by_name, BESIDE):
            problem = "names a data set that another file names, or the folder of the page"
            remedy = "give each file a name of its own"
            raise InputError(problem, remedy, "settings.dataset", path=path)
        out = folder_at(options["out"] or "").place(path.stem)
        by_name[path.stem] = {**options, **own, "data": (), "out": out}
        shared += [] if "annotators" in own else [path.stem]
    names = items_of(options["annotators"])
    fit = {name: _fit(names, own["task"]) for name, own in by_name.items()}
    unfit = set(names).difference(*fit.values())  # of all data sets: the evaluation refuses them
    for name in shared:
        by_name[name]["annotators"] = tuple(n for n in names if n in fit[name] or n in unfit)
    requests = {name: _request_of(own) for name, own in (by_name or {"": dict(options)}).items()}
    _refuse_unlike(requests)
    return requests


def _refuse_unlike(requests: Mapping[str, EvaluationRequest]) -> None:
    (first, own), *others = ((n, next(iter(r.conditions.values()))) for n, r in requests.items())
    for name, other in others:
        for what, value, its in (
            ("annotators", *(next(iter(s.labels.names()), "none") for s in (own, other))),
            ("confidence", own.bootstrap.confidence, other.bootstrap.confidence),
            ("resamples", own.bootstrap.resamples, other.bootstrap.resamples),
        ):
            if value != its:
                which = "begin with" if what == "annotators" else "is"
                problem = f"`{what}` {which} {its} for the data set {name}, and {value} for {first}"
                remedy = "give both the same: one table compares them"
                raise InputError(problem, remedy, "settings.datasets")


def _request_of(options: Mapping[str, Any]) -> EvaluationRequest:
    options, trace_files = with_traces(options)
    sweep = sweep_of(options)
    settings = settings_of(options, sweep)
    warn_of_code(settings.reader.trust_remote_code)
    store = options["store"] or cache_directory() / "reads"
    files = files_of(options, settings)
    return EvaluationRequest(options, files, vary(settings, sweep), store, trace_files)


def _options_in(path: Path) -> dict[str, Any]:
    """The options of a file, converted as on the command line."""
    # Only `out` has no default, and pydantic, once imported, checks defaults by their types.
    known = [p.replace(default="") if p.default is p.empty else p for p in parameters()]
    app = App(config=[*options_from(path), check_numbers])
    app.default(with_signature(lambda **_: None, known))
    _, bound, _ = app.parse_args([], exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def _fit(names: tuple[str, ...], task: str) -> tuple[str, ...]:
    """Annotators whose labels have a meaning for a task; unknown annotators are kept."""
    needed = {n: needed_by(ANNOTATORS[n], Settings()) for n in names if n in ANNOTATORS}
    return tuple(n for n in names if not any(task in a.unfit_tasks for a in needed.get(n, ())))


def report(findings: Mapping[str, Findings], options: Mapping[str, Any]) -> None:
    """Write the table of several data sets into their common folder, and print it."""
    out = options["out"]
    cells = [cell for name, own in findings.items() for cell in across.cells_of(name, own)]
    both = across.together(cells, next(iter(findings.values())).bootstrap)
    across.write_together(both, out)
    remake.make_page_of_all(both, out, {"data": ", ".join(map(str, options["data"]))})
    say_json(both.content())
    full, where = options["full"], folder_at(out).shown()
    grids = across.all_grids(both) if full else [across.grid(both, primary=True)]
    missing = across.missing_cells(both if full else both.primary_only())
    notes = (f"note: {note}" for note in (*missing, *map(with_options, across.notes(both))))
    end = f"results -> {where}, of each data set in {where}/NAME; {where_to_look(where)}"
    headline, shown = across.answer(both).headline, map(terminal_table, grids)
    standard_output().print_parts([headline, *shown, *notes, end])


CACHED = "finished LLM calls are cached in {}; run the same command again to go on from there"


def evaluate_data_sets(options: Mapping[str, Any]) -> None:
    """Evaluate one data set or several in turn, by the options of ``erag evaluate``."""
    if options["data"]:
        data = {"data": options["data"], "config": options["config"]}
        refuse_overlap(Inputs(data, {}), across.outputs(options["out"]))
    folder = folder_at(options["out"])
    if (SUMMARY if options["data"] else across.CONTENT) in folder.names():
        problem = f"holds {'one evaluation' if options['data'] else 'a study of several data sets'}"
        raise InputError(problem, "give another folder", "files.occupied", path=folder.shown())
    requests = data_sets(options)
    for request in requests.values():  # each before the first is read, which may take hours
        own, out, files = request.options, request.options["out"], request.files
        for place in (out, request.store):
            require_folder(place)
        models = {name: own[name] for name in MODEL_FIELDS}
        tables = {name: table.path for name, table in files.tables.items()}
        inputs = given_files({**own, **tables, "run": list(files.run)})
        settings = next(iter(request.conditions.values()))
        refuse_overlap(Inputs(inputs, models), results.outputs(out, settings))
        if not own["overwrite"]:  # before inputs are read, which may take minutes
            results.refuse_another(out, request.conditions)
    findings = {}
    for name, request in requests.items():
        with sole_writer(out := request.options["out"]), written(request.traces, out):
            findings[name] = evaluate_and_report(request, printed=not name)
    if options["data"]:
        report(findings, options)


def evaluate_and_report(request: EvaluationRequest, *, printed: bool = True) -> Findings:
    """Evaluate, write every table and ``summary.json`` under ``out``, and print the summary if ``printed``.

    Inputs that are too large for memory are cut into shards, in the folder of the results, which must have no other
    evaluation. Several conditions make a study; traces add tables to the first.
    """
    options, files, conditions, store, _ = request
    out, settings = options["out"], list(conditions.values())
    cached = CACHED.format(folder_at(store).shown())
    if lost := [own.name for own in settings[0].reader.functions if not own.is_kept]:
        cached = f"outputs of {', '.join(lost)}, without a version, are lost; other {cached}"
    # Before the work: it may take hours, in which files may change.
    origin = Origin(command_line(), input_files(name_files(files)))
    with Heartbeat(out, settings[0].api, event) as beat:
        keeps(cached, beat.interrupt)
        folder = None
        step("reading the inputs")
        if pairs := shard_pairs(files, settings[0].running.shard_pairs, k=settings[0].ranking.k):
            beat.begin()
            folder = folder_at(out) / SHARDS
            shards: InputShards = _cut(files, settings, folder, folder_at(store), pairs)
            digests = {"shards": digest_of_shards(shards)}
        else:
            shards = InMemoryInputs.of_files(files, k=max(condition.k for condition in conditions))
            digests = cut_inputs(shards.inputs, settings[0].ranking.k).sha256
        if not options["overwrite"]:
            results.refuse_another(out, conditions, digests, runs=len(shards.runs))
        step("preparing labels and the reader")
        with shown_progress(then="scoring, and computing statistics") as shown:
            context = Context(store=store, on_progress=shown, on_event=event, on_unit=beat.on_unit)
            evaluations, readers = evaluate_shards(shards, settings, context, folder)
            study = study_of(conditions, evaluations, readers) if len(conditions) > 1 else None
            result, traced = evaluations[0], request.traces
            if traced.contents:
                again = context if options["leave_out"] else None
                result = traces.with_traces(result, traced.steps, traced.notes, again)
        step("writing tables and the page")
        findings = write_results(result, name_files(files), out, study, origin)
    if printed:
        say_json(findings.summary)
        parts = (full_parts if options["full"] else answer_parts)(findings, folder_at(out).shown())
        standard_output().print_parts(parts, _worded())
    return findings


def _cut(
    files: InputFiles, settings: Sequence[Settings], folder: Folder, store: Folder, pairs: int
) -> Partition:
    with shown_progress("cutting into shards", "rows") as on_rows:

        def on_cut(what: str, count: int) -> None:
            if what == "runs":
                on_rows(count, count)

        k = max(condition.ranking.k for condition in settings)
        cut = partial(partition, files, folder / "inputs", k=k, pairs_per_shard=pairs)
        check = partial(check_readers, settings, event, (folder, store))
        return beside_ray(cut, settings[0].running.pool(), on_progress=on_cut, check=check)


def _worded() -> Callable[[str], str]:
    return partial(with_options, known={known.name for known in parameters()})


def _with_options(content: dict[str, Any]) -> dict[str, Any]:
    worded = _worded()
    for note in chain.from_iterable(content["notes"].values()):
        note["text"] = worded(note["text"])
    content["verdict"]["sentences"] = [*map(worded, content["verdict"]["sentences"])]
    return content


def write_results(
    result: Evaluation,
    files: dict[str, Any],
    out: Location,
    study: Study | None = None,
    origin: Origin | None = None,
) -> Findings:
    """Write tables and ``summary.json``, then make the page: its failure loses no results."""
    findings = results.write_results(result, files, out, study, origin, reworded=_with_options)
    remake.make_page(findings, out)
    return findings


def plan_and_print(options: Mapping[str, Any], plan: forecast.PlanSettings) -> None:
    """Plan the evaluation or study of every data set, and print the plans; data sets in shards are sampled."""
    contents = {}
    for name, request in data_sets(options).items():
        if name:
            say(f"data set {name}:")
        settings, files = list(request.conditions.values()), request.files
        pace_for(plan, settings)  # before inputs are read
        with written(request.traces, request.options["out"]):  # a temporary folder
            k = max(condition.k for condition in request.conditions)
            pairs = shard_pairs(files, settings[0].running.shard_pairs, k=settings[0].ranking.k)
            # Runs that carry texts, and several corpora, are not sampled.
            sampled = pairs and files.corpus is not None
            sample = take_sample(files, k=k, pairs=pairs) if sampled else None
            step("reading the inputs")
            inputs = sample.inputs if sample else InMemoryInputs.of_files(files, k=k).inputs
            step("preparing the reader")
            more = []
            if request.options["leave_out"]:
                more = [traces.without_steps(inputs, request.traces.steps, settings[0])[:2]]
            store = request.store
            costs = plan_evaluation(
                inputs, settings, plan, store=store, sample=sample, on_event=event, more=more
            )
        contents[name] = forecast.content(costs)
        standard_output().print_parts(forecast.shown(costs), with_options)
    say_json(contents if options["data"] else contents[""])
