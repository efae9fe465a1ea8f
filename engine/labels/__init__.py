"""Who labels passages: the engine's annotators, and functions of one's own."""

from engine.labels.function import Annotator, from_function

__all__ = ["Annotator", "from_function"]
