"""What ``erag plan`` and ``erag evaluate --dry-run`` do: plan an evaluation, and print the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.evaluation.inputs import InputFiles
from engine.evaluation.settings import Settings
from engine.evaluation.shards import Held
from engine.evaluation.startup import shard_pairs
from engine.evaluation.study import Condition
from engine.planning import report
from engine.planning.forecast import Forecast, PlanSettings
from engine.planning.planner import plan_evaluation, refuse_both
from engine.planning.sample import take_sample
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from jobs._options import with_options
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._steps import step
from jobs._terminal import say_json, standard_output, verbosity


def plan_and_print(
    files: InputFiles,
    conditions: Mapping[Condition, Settings],
    asked: PlanSettings,
    *,
    store: Location,
    known: Collection[str],
) -> Forecast:
    """Plan an evaluation, or a study, and print what it will take.

    Of one that is done in shards, a sample of its queries is looked at, no more than half a shard.

    Args:
        files, conditions: of the evaluation.
        asked: what the plan is asked.
        store: the read store, which keeps the reads of the probe.
        known: the fields that are options, for the lines that name some.
    """
    settings = list(conditions.values())
    refuse_both(asked, settings[0].running.pool())
    keeps(
        f"LLM calls of the probe are kept in {folder_at(store).shown()}, and nothing else was written"
    )
    k = max(condition.k for condition in conditions)
    pairs = shard_pairs(files, settings[0])
    # A sample is taken of plain runs alone.
    plain = files.edits is None and files.corpus is not None
    sample = take_sample(files, k=k, pairs=pairs) if pairs and plain else None
    step("reading the inputs")
    inputs = Held.of_files(files, k=k).inputs if sample is None else sample.inputs
    step("preparing the reader")
    with shown_progress("probing") as on_progress:
        made = plan_evaluation(
            inputs,
            settings,
            asked,
            store=store,
            sample=sample,
            on_progress=on_progress,
            on_event=event,
        )
    if verbosity().as_json:
        say_json(report.content(made))
    console = standard_output()
    for part in report.shown(made):
        if isinstance(part, str):
            console.print_line(with_options(part, known))
        else:
            console.print(part)
    return made
