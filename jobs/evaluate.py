"""``erag evaluate``: label passages, score runs, and compare with the end-to-end score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs._command import run_command, with_verbosity
from jobs._evaluation_options import parameters
from jobs._options import with_signature


def evaluate_command() -> Callable[..., None]:
    """The command, with the options of the annotators that are registered now."""

    def evaluate(**options: Any) -> None:
        """Evaluate one or several runs with the LLM that reads them.

        Labels every listed passage, scores the runs with ranking measures, and correlates these scores, query
        by query, with the score of the same reader given the whole list. Every LLM call is cached, so later
        runs, measures and metrics reuse it.
        """
        from jobs._evaluating import evaluate_data_sets  # here, so that help is quick

        evaluate_data_sets(options)

    return with_verbosity(with_signature(evaluate, parameters()), as_json=True)


evaluate = evaluate_command()


if __name__ == "__main__":
    run_command(evaluate)
