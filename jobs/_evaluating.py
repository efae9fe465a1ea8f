"""What ``erag evaluate`` does: inputs read or cut, evaluated, written and printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context, digest_of_shards
from engine.evaluation.read import check_readers
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition, Study, study_of
from engine.inputs.files import InputFiles, cut_inputs, inputs_sha256
from engine.inputs.partition import Partition, partition, shard_pairs
from engine.inputs.shards import InMemoryInputs, InputShards
from engine.machine.pool import beside_ray
from engine.report import results
from engine.report.findings import Findings
from engine.report.heartbeat import Heartbeat
from engine.report.page import remake
from engine.report.printed import answer_parts, full_parts
from engine.report.results import outputs, refuse_another
from engine.report.summary import SHARDS, Origin, input_files, name_files
from engine.sources.io.folders import Folder, folder_at, require_folder
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, refuse_overlap, sole_writer
from jobs._command import command_line
from jobs._data_sets import data_sets, refuse_place, report
from jobs._evaluation_options import MODEL_FIELDS, given_files, parameters
from jobs._options import with_options
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._steps import step
from jobs._terminal import say_json, standard_output, verbosity

_INPUTS = "inputs"
_KEPT = "finished LLM calls are cached in {}; run the same command again to go on from there"


def evaluate_data_sets(options: Mapping[str, Any]) -> None:
    """Evaluate what the options of ``erag evaluate`` ask for: one data set, or several in turn."""
    refuse_place(options)
    asked = data_sets(options)
    for one in asked.values():  # each before the first is read, which may take hours
        own, out = one.options, one.options["out"]
        for place in (out, one.store):
            require_folder(place)
        models = {name: own[name] for name in MODEL_FIELDS}
        tables = {name: table.path for name, table in one.files.tables.items()}
        given = given_files({**own, **tables, "run": list(one.files.run)})
        refuse_overlap(Inputs(given, models), outputs(out, next(iter(one.conditions.values()))))
        if not own["overwrite"]:  # before inputs are read, which may take minutes
            refuse_another(out, one.conditions)
    found = {}
    for name, one in asked.items():
        with sole_writer(one.options["out"]):
            found[name] = evaluate_and_report(
                one.files,
                one.conditions,
                out=one.options["out"],
                store=one.store,
                full=options["full"],
                overwrite=options["overwrite"],
                printed=not name,
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
) -> Findings:
    """Evaluate, write every table and ``summary.json`` under ``out``, and print the summary where it is to be ``printed``.

    Inputs that are too large to be held are cut into shards, in the folder of the results. Several conditions make a study.

    Raises:
        InputError: another evaluation is there; otherwise as ``evaluate``.
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
            inputs, shards = held.inputs, held
            digests = inputs_sha256(cut_inputs(inputs, settings[0].ranking.k))
        if not overwrite:
            refuse_another(out, conditions, digests, runs=len(shards.runs))
        step("preparing labels and the reader, which may be a model to convert or to load")
        with shown_progress(then="scoring, and computing statistics") as shown:
            context = Context(
                store=store, on_progress=shown, on_event=event, on_unit=heartbeat.on_unit
            )
            results, readers = evaluate_shards(shards, settings, context, folder)
            study = study_of(conditions, results, readers) if len(conditions) > 1 else None
        result = results[0]
        step("writing tables and the page")
        found = write_results(result, name_files(files), out, study, origin)
    if printed:
        print_results(found, folder_at(out).shown(), full=full)
    return found


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
    """What writes a sentence with options instead of fields."""
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
    """Write tables and ``summary.json``, then make the page: what it fails by costs nothing of these."""
    found = results.write_results(result, dict(files), out, study, origin, reworded=_with_options)
    remake.make_page(found, out)
    return found
