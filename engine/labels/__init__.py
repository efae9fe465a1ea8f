"""Annotators: the engine's, behind one interface, and annotators that users make."""

from engine.labels.annotator import Annotator
from engine.labels.user_function import from_function

__all__ = ["Annotator", "from_function"]
