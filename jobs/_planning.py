"""Plan an evaluation, and print the plan: the work of ``erag plan``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.inputs.partition import shard_pairs
from engine.inputs.shards import InMemoryInputs
from engine.planning import report
from engine.planning.forecast import PlanSettings
from engine.planning.planner import pace_for, plan_evaluation
from engine.planning.sample import take_sample
from jobs._data_sets import data_sets
from jobs._options import with_options
from jobs._progress import event
from jobs._steps import step
from jobs._terminal import say, say_json, standard_output, verbosity


def plan_and_print(options: Mapping[str, Any], asked: PlanSettings) -> None:
    """Plan the evaluation, or the study, of each data set, from a sample of one in shards, and print the plan."""
    contents = {}
    for name, one in data_sets(options).items():
        if name:
            say(f"data set {name}:")
        settings = list(one.conditions.values())
        pace_for(asked, settings)  # before inputs are read
        k = max(condition.k for condition in one.conditions)
        pairs = shard_pairs(one.files, settings[0].running.shard_pairs, k=settings[0].ranking.k)
        # Of runs that carry texts, and of several corpora, no sample is taken.
        sampled = pairs and one.files.corpus is not None
        sample = take_sample(one.files, k=k, pairs=pairs) if sampled else None
        step("reading the inputs")
        inputs = InMemoryInputs.of_files(one.files, k=k).inputs if sample is None else sample.inputs
        step("preparing the reader")
        made = plan_evaluation(
            inputs, settings, asked, store=one.store, sample=sample, on_event=event
        )
        contents[name] = report.content(made)
        standard_output().print_parts(report.shown(made), with_options)
    if verbosity().as_json:
        say_json(contents if options["data"] else contents[""])
