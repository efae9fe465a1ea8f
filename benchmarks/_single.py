"""A single correlation, and the default prompt, without an evaluation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.reading.prompting.prompts import (
    DEFAULT_STYLE,
    Prompt,
    Task,
    make_prompt,
    read_template,
)
from engine.reading.protocol import Architecture, Augmentation
from engine.statistics.correlation import Bootstrap, Correlation, describe, method_of, undefined
from engine.statistics.methods import side
from engine.statistics.resampling import Draws, replicate

Floats = npt.NDArray[np.float64]


def correlate(
    x: Floats, y: Floats, bootstrap: Bootstrap, clusters: npt.NDArray[np.intp] | None = None
) -> Correlation:
    """Correlate two scores of the same n queries: a measure (x) and the end-to-end score (y).

    tau-b (Kendall 1945) and rho equal SciPy's ``kendalltau`` and ``spearmanr``.

    Args:
        x, y: shape (n,), finite.
        clusters: shape (n,), the clusters of the queries, from 0 without gaps; None for independent queries.
    """
    defined = not undefined(x, y)
    method = method_of(side(x), side(y), clusters)[0] if defined else None
    result = replicate(
        np.stack([x, y]),
        [(0, 1)],
        Draws(
            bootstrap.resamples if method == "percentile" else 0, bootstrap.seed, bootstrap.threads
        ),
        leave_out=defined and bootstrap.resamples > 0,
        clusters=clusters,
    )
    return describe(x, y, result, 0, bootstrap, clusters)


def default_prompt(task: Task, architecture: Architecture, augmentation: Augmentation) -> Prompt:
    """The prompt for a task, by the kind of model that reads it."""
    template = read_template(DEFAULT_STYLE[architecture], task)
    return make_prompt(template, task, architecture, augmentation)
