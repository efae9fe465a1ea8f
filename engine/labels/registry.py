"""The engine's annotators, in the order in which help and messages name them."""

from __future__ import annotations

from engine.labels import (
    containment,
    dual,
    erag,
    gain,
    judge,
    preference,
    provenance,
    qrels,
    scored,
    utility,
)
from engine.labels.annotator import Annotator
from engine.sources.input_tables import InputTable

ANNOTATORS: dict[str, Annotator] = {
    annotator.name: annotator
    for annotator in (
        erag.ANNOTATOR,
        containment.ANNOTATOR,
        containment.BY_SUBSTRING,
        provenance.ANNOTATOR,
        dual.ANNOTATOR,
        judge.ANNOTATOR,
        qrels.ANNOTATOR,
        preference.ANNOTATOR,
        utility.ANNOTATOR,
        gain.ANNOTATOR,
        scored.LIKELIHOOD,
        scored.DIG,
        scored.PMI,
        scored.PERPLEXITY,
    )
}


def input_tables() -> dict[str, InputTable]:
    """The files that the engine's annotators need, by the name of the input."""
    needed = (annotator.needs_input for annotator in ANNOTATORS.values())
    return {table.name: table for table in needed if table is not None}
