"""Tiny random models of every kind: vectors against the sentence-transformers that a package index has now."""

import sys
import tempfile
from pathlib import Path

import sentence_transformers

import engine

ROOT = Path(__file__).parents[2]
assert ROOT not in Path(engine.__file__).parents  # the installed one
sys.path.append(str(ROOT))

from tests.retrieval import test_encoder as cases  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    for place, kind in enumerate(cases.MODELS):
        cases.test_vectors_are_those_of_sentence_transformers(kind, Path(folder) / str(place))
print(f"{len(cases.MODELS)} kinds as sentence-transformers {sentence_transformers.__version__}")
