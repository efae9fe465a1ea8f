"""``python -m jobs.bundled_reader``: train the bundled Fusion-in-Decoder reader again (``make reader``)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from cyclopts import App

from engine.messages.errors import InputError
from engine.sources.articles.read import read_source
from engine.sources.bundled import wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.io.folders import folder_at
from engine.sources.io.temporary import temporary_directory
from engine.training.checkpoints import MODEL
from engine.training.settings import Precision
from jobs._command import run_app, with_verbosity
from jobs._progress import shown_training
from jobs._signals import keeps
from jobs._terminal import say
from jobs.bundled_reader.lists import GOLD, made_queries
from jobs.bundled_reader.make import (
    PHASES,
    SIZES,
    ability,
    deliver,
    in_parts,
    make_start,
    run_phase,
)

# Of the reader that is bundled.
SEED = 0
# Questions that the end result is measured with.
QUESTIONS = 1000


@with_verbosity
def make_reader(
    *,
    out: Path,
    size: Literal["2m", "5m", "8m"] = "5m",
    hours: float = 1.0,
    seed: int = SEED,
    pretrained: bool = False,
    precision: Precision | None = None,
    questions: int = QUESTIONS,
) -> None:
    """Train the bundled Fusion-in-Decoder reader from scratch, on the bundled Wikipedia articles.

    Makes a tokenizer and weights that can look things up, and trains in phases; the same command again
    goes on after an interruption. The model is then in OUT/model, its curve in OUT/curve.json, what it can do in
    OUT/ability.json, and the questions on held-out articles in OUT/questions.parquet.

    Parameters
    ----------
    out
        Directory for checkpoints and the model.
    size
        Millions of parameters, nearly.
    hours
        As many steps as two cores take in this time, about, with 5 million parameters.
    seed
        Of weights, questions and their order.
    pretrained
        Tokens begin with what they mean to the bundled encoder, instead of random numbers.
    precision
        Arithmetic of the forward pass; by default bfloat16 where the machine is fast at it. The bundled
        reader was trained in float32: another arithmetic makes another model of the same seed.
    questions
        The most of each part that the end result is measured with; fewer end sooner.
    """
    if hours <= 0:
        raise InputError(f"--hours is {hours:g}", "use more than 0")
    if questions < 1:
        raise InputError(f"--questions is {questions}", "use at least 1")
    keeps(f"checkpoints are kept in {out}; run the same command again to go on from there")
    begun = time.perf_counter()
    text = in_parts(read_source(wikipedia_dump()))
    # Made whole or not at all, and never taken for one of another size.
    latest = out / f"start-{size}-{seed}{'-pretrained' * pretrained}"
    if not latest.exists():
        with temporary_directory(latest) as work:
            make_start(text, SIZES[size], work, seed, pretrained=pretrained)
            os.replace(work, latest)
    curve: list[dict[str, object]] = []
    examples = tokens = 0
    for phase in (one.scaled(hours).with_precision(precision) for one in PHASES):
        folder = folder_at(out / phase.name)
        with shown_training("em", phase.name) as on_progress:
            trained = run_phase(phase, latest, text, folder, seed, on_progress)
        curve += [
            asdict(replace(one, examples=examples + one.examples, tokens=tokens + one.tokens))
            for one in trained.points
        ]
        (out / "curve.json").write_text(json.dumps(curve, indent=2) + "\n", encoding="utf-8")
        examples += trained.examples
        tokens += trained.tokens
        latest = out / phase.name / MODEL
        say(
            f"{phase.name}: {phase.steps} steps in {trained.precision}, {time.perf_counter() - begun:.0f} s so far"
        )
    deliver(folder_at(latest.parent), out / MODEL)
    model = out / MODEL
    found = {part: asdict(ability(model, text, part, questions, seed)) for part in ("dev", "test")}
    asked = made_queries(text.corpora["test"], questions, seed).drop(GOLD)
    write_parquet(asked, out / "questions.parquet")
    (out / "ability.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    say(json.dumps(found, indent=2))
    say(f"the model is in {out / MODEL}; {time.perf_counter() - begun:.0f} s in all")


if __name__ == "__main__":
    # Not one of erag's commands: it makes what is bundled with them.
    app = App(name="python -m jobs.bundled_reader")
    app.default(make_reader)
    run_app(app)
