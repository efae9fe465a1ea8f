"""``erag evaluate``: label passages, score runs, and compare with the end-to-end score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.evaluation import evaluate as evaluating
from engine.evaluation.assess import Evaluation
from engine.evaluation.digest import inputs_sha256
from engine.evaluation.forecast import PlanSettings
from engine.evaluation.inputs import (
    EvaluationInputs,
    InputFiles,
    cut_inputs,
    input_tables,
    read_inputs,
)
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.size import choose
from engine.evaluation.study import Condition, study, vary
from engine.machine.model_files import cache_directory
from engine.masking import masked
from engine.report.audit import Origin, input_files
from engine.report.identity import refuse_another
from engine.sources.io.folders import folder_at, require_folder
from engine.sources.io.locations import Location, locate
from engine.sources.io.outputs import Inputs, refuse_overlap, sole_writer
from jobs._command import command_line, run_command, spoken
from jobs._evaluation_options import (
    DRY_RUN,
    MODEL_FIELDS,
    files_of,
    given_files,
    parameters,
    settings_of,
    sweep_of,
)
from jobs._in_shards import evaluate_in_shards
from jobs._options import with_options, with_signature
from jobs._planning import plan_and_print
from jobs._progress import event, shown_progress
from jobs._results import outputs, print_results, write_results
from jobs._signals import keeps
from jobs._terminal import warn_of_code

_KEPT = "finished reads are kept in {}; run the same command again to go on from there"


def evaluate_command() -> Callable[..., None]:
    """The command, with the options of the annotators that are registered now."""

    def evaluate(**options: Any) -> None:
        """Evaluate one or several runs with the LLM that reads them.

        Labels every listed passage, scores the runs with ranking measures, and correlates these, query
        by query, with the score of the same reader given the whole list. Every read is stored and is
        reused by any later run or measure, and by any metric unless it ended early (--no-decide).
        """
        sweep = sweep_of(options)
        settings = settings_of(options, sweep)
        warn_of_code(settings.reader.trust_remote_code)
        conditions = vary(settings, sweep)
        files = files_of(options, settings)
        out, store = options["out"], options["store"] or cache_directory() / "reads"
        if options[DRY_RUN]:
            plan_and_print(
                files,
                conditions,
                PlanSettings(probe_reads=0),
                store=store,
                known=options.keys(),
            )
            return
        for place in (out, store):
            require_folder(place)
        models = {name: options[name] for name in MODEL_FIELDS}
        refuse_overlap(Inputs(given_files(options), models), outputs(out, settings))
        named, full, overwrite = name_files(files), options["full"], options["overwrite"]
        size = choose(files, conditions.values())
        with sole_writer(out):
            if not overwrite:  # before inputs are read, which may take minutes
                refuse_another(out, conditions)
            if size.pairs:
                keeps(_KEPT.format(folder_at(store).shown()))
                evaluate_in_shards(
                    files, settings, named,
                    out=out, store=store, pairs=size.pairs, full=full, overwrite=overwrite,
                )  # fmt: skip
                return
            if size.reason:
                reason = with_options(size.reason)
                event(f"held as a whole in this process's memory, because of {reason}")
            inputs = read_inputs(files, k=max(condition.k for condition in conditions))
            evaluate_and_report(
                inputs, conditions, named, out=out, store=store, full=full, overwrite=overwrite
            )

    return spoken(with_signature(evaluate, parameters()), as_json=True)


evaluate = evaluate_command()


def evaluate_and_report(
    inputs: EvaluationInputs,
    conditions: Mapping[Condition, Settings],
    files: dict[str, Any],
    *,
    out: Location,
    store: Location,
    full: bool = False,
    overwrite: bool = False,
) -> Evaluation:
    """Evaluate, write every table and ``summary.json`` under ``out``, and print the summary.

    Args:
        conditions: as ``study.vary`` gives them; several make a study.
        files: where the inputs came from, for the summary.
        full: whether to print all tables.
        overwrite: whether to replace another evaluation under ``out``.

    Raises:
        InputError: another evaluation is there; otherwise as ``evaluate``.
    """
    done = None
    if not overwrite:
        of_main = cut_inputs(inputs, next(iter(conditions)).k)
        digests, runs = inputs_sha256(of_main), len(of_main.run_names)
        refuse_another(out, conditions, digests, runs=runs)
    keeps(_KEPT.format(folder_at(store).shown()))
    # Before the work: it may take hours, in which files may change.
    origin = Origin(command_line(), input_files(files))
    with shown_progress() as on_progress:
        if len(conditions) == 1:
            (settings,) = conditions.values()
            result = evaluating.evaluate(
                inputs, settings, store=store, on_progress=on_progress, on_event=event
            )
        else:
            done = study(inputs, conditions, store=store, on_progress=on_progress, on_event=event)
            result = done.evaluations[done.main]
    content = write_results(result, inputs, files, out, done, origin)
    print_results(result, folder_at(out).shown(), content, done, full=full)
    return result


def name_files(files: InputFiles) -> dict[str, Any]:
    """Where inputs come from, as ``summary.json`` has it; None for files that were not given.

    Addresses are without the credentials that they may hold.
    """

    def place(path: Location | None) -> str | None:
        return None if path is None else masked(str(locate(path)))

    return {
        "queries": place(files.queries),
        "corpus": place(files.corpus),
        "runs": [place(path) for path in files.run],
        **{name: place(files.tables.get(name)) for name in input_tables()},
        "edits": place(files.edits),
        "answers": place(files.answers),
    }


if __name__ == "__main__":
    run_command(evaluate)
