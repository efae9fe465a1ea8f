"""``erag plan``: what an evaluation will take, in LLM calls, time, memory and money, before it is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cyclopts import Group

from engine.evaluation.study import vary
from engine.machine.model_files import cache_directory
from engine.planning.forecast import PlanSettings
from jobs._command import run_command, with_verbosity
from jobs._evaluation_options import DRY_RUN, RUNNING, files_of, parameters, settings_of, sweep_of
from jobs._options import option, options_of, take, with_signature
from jobs._planning import plan_and_print
from jobs._terminal import warn_of_code

_PLAN = Group("Plan", sort_key=-1)


def plan_parameters() -> list[inspect.Parameter]:
    """The options of ``erag evaluate``, of which ``out`` may be left out, and those of a plan."""
    out = option(
        "out", str | None, RUNNING, "Where the results would go; nothing is written there.", None
    )
    of_evaluate = [
        out if known.name == "out" else known for known in parameters() if known.name != DRY_RUN
    ]
    return [*options_of(PlanSettings, _PLAN), *of_evaluate]


def plan_command() -> Callable[..., None]:
    """The command, with the options of the annotators that are registered now."""

    def plan(**options: Any) -> None:
        """Print what an evaluation will take: LLM calls, tokens, time, memory and cost.

        Takes the options of ``erag evaluate``. LLM calls that are equal or cached are counted; some of the
        others are made, as a probe, to predict the rest, and are cached for the evaluation. Nothing else is
        written.
        """
        asked = take(PlanSettings, options)
        sweep = sweep_of(options)
        settings = settings_of(options, sweep)
        warn_of_code(settings.reader.trust_remote_code)
        plan_and_print(
            files_of(options, settings),
            vary(settings, sweep),
            asked,
            store=options["store"] or cache_directory() / "reads",
            known=options.keys(),
        )

    return with_verbosity(with_signature(plan, plan_parameters()), as_json=True)


plan = plan_command()


if __name__ == "__main__":
    run_command(plan)
