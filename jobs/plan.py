"""``erag plan``: forecast an evaluation's LLM calls, time, memory and cost."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from cyclopts import Group

from engine.report.planning.forecast import PlanSettings
from engine.sources.io.outputs import private_directory
from jobs._command import run_command, with_verbosity
from jobs._evaluation_options import RUNNING, parameters
from jobs._options import option, options_of, take, with_signature

_PLAN = Group("Plan", sort_key=-1)


def plan_parameters() -> list[inspect.Parameter]:
    """The options of ``erag evaluate``, with an optional ``out``, and the options of a plan."""
    out = option(
        "out", str | None, RUNNING, "Where the results would go; nothing is written there.", None
    )
    shared = [out if known.name == "out" else known for known in parameters()]
    return [*options_of(PlanSettings, _PLAN, types={"pace": str | None}), *shared]


@partial(with_verbosity, as_json=True)
@partial(with_signature, parameters=plan_parameters())
def plan(**options: Any) -> None:
    """Forecast an evaluation: LLM calls, tokens, time, memory and cost.

    Takes the options of ``erag evaluate``. LLM calls are counted, not made, except for the trial of a
    server (openai:MODEL); time follows an earlier evaluation (--pace). Nothing is written.
    """
    from jobs._evaluating import plan_and_print  # here, so that help is quick

    with private_directory() as folder:  # of inputs that traces stand for
        plan_and_print({**options, "out": folder}, take(PlanSettings, options))


if __name__ == "__main__":
    run_command(plan)
