"""Types of the arrays that statistics take and give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Signs = npt.NDArray[np.int8]
# Of a measure and of the outcome, for the same queries.
Scores = tuple[Floats, Floats]
