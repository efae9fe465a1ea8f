"""Train a small Fusion-in-Decoder reader from scratch, on the bundled articles, like ``bundled-fid``.

    python -m benchmarks.bundled_reader.make --out DIR [--size 2m|5m|8m] [--hours 0.12] [--seed 0]

The initial weights can look things up; they are trained in phases, for about as many steps as two cores take in ``--hours``.
The same command resumes after an interruption. The model is then in DIR/model.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.bundled_reader.drills import Drill, Drills
from benchmarks.bundled_reader.initial import HEADS, arrange
from benchmarks.bundled_reader.text import GOLD, Text, asked, in_parts, lists, made_queries, others
from engine.sources.articles.read import read_source
from engine.sources.bundled import fid_reader_directory, wikipedia_dump
from engine.sources.io.files import temporary_directory
from engine.sources.io.folders import Folder, folder_at
from engine.tables import TEXT
from engine.training.checkpoints import MODEL
from engine.training.examples import Readings
from engine.training.settings import Recipe
from engine.training.start import specify_start
from engine.training.train import Plan, fetch_model, train

# Evaluations per phase, and their number of questions.
_EVALUATIONS, _DEVELOPMENT = 6, 300
# Widths by millions of parameters, nearly.
SIZES = {"2m": 128, "5m": 192, "8m": 256}


@dataclass(frozen=True)
class Phase:
    """A part of the training, with its number of steps in an hour.

    Attributes:
        drills: shares by kind; None for made-up questions with lists.
        lengths: lengths of lists, drawn for each question.
    """

    name: str
    steps: int
    recipe: Recipe
    drills: Mapping[Drill, float] | None = None
    lengths: tuple[int, ...] = ()


_USUAL = Recipe(
    k=1,
    epochs=1,
    batch=32,
    learning_rate=5e-4,
    weight_decay=0.01,
    checkpoint_every=100,
    gradient_checkpointing=False,
)
_OF_LISTS = replace(_USUAL, k=10, batch=8, learning_rate=2e-4)
PHASES = (
    Phase("spans", 250, _USUAL, drills={"restore": 0.8, "denoise": 0.1, "copy": 0.1}),
    Phase("short", 600, _USUAL, drills={"short": 0.7, "restore": 0.25, "copy": 0.05}),
    Phase("passages", 1500, _USUAL, drills={"passage": 0.9, "restore": 0.1}),
    Phase("lists", 600, _OF_LISTS, lengths=(1, 1, 2, 4, 6, 10)),
)


def make_start(text: Text, width: int, directory: Path, seed: int) -> None:
    """Write the start of training: ``bundled-fid``'s tokenizer and layers in a width, and weights that can look things up.

    The tokenizer was trained on the same articles (byte pairs of the training part, 8,192).
    """
    from transformers import AutoConfig, AutoTokenizer, T5ForConditionalGeneration

    bundled = fid_reader_directory()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled / name, directory)
    sizes = {"d_model": width, "d_ff": 4 * width, "d_kv": width // HEADS}
    config = AutoConfig.from_pretrained(bundled, trust_remote_code=False, **sizes, dtype="float32")
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    arrange(model, tokenizer, text.corpora["train"][TEXT], torch.Generator().manual_seed(seed))
    model.save_pretrained(directory)


def run_phase(phase: Phase, start: Path, text: Text, folder: Folder, seed: int) -> None:
    """Continue training from a directory; ``fetch_model`` then takes the model from the folder.

    The best model on the questions of the development articles is kept; in a phase
    without questions, the last one.
    """
    recipe = replace(phase.recipe, seed=seed, evaluate_every=-(-phase.steps // _EVALUATIONS))
    size, drills = phase.steps * recipe.batch, phase.drills
    examples = (
        _readings(text, "train", size, phase.lengths, seed)
        if drills is None
        else partial(Drills, list(asked(text.articles["train"])), drills, size, seed)
    )
    asks = drills is None or drills.keys() & {"short", "passage"}
    development = _readings(text, "dev", _DEVELOPMENT, (1,), seed) if asks else None
    at = specify_start(str(start), augmentation="fid")
    train(Plan(at, recipe, examples, development), folder)


def _readings(text: Text, part: Any, count: int, lengths: Sequence[int], seed: int) -> Readings:
    corpus = text.corpora[part]
    queries = made_queries(corpus, count, seed)
    more = others(queries, corpus, max(lengths) - 1) if max(lengths) > 1 else {}
    return Readings(queries.drop(GOLD), lists(queries, more, lengths, seed), corpus)


def deliver(folder: Folder, directory: Path) -> None:
    """Copy the model of a finished phase to a directory, with weights rounded to bfloat16, half as many bytes."""
    fetch_model(folder, directory)
    weights = load_file(directory / "model.safetensors")
    rounded = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(rounded, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_bytes()) | {"dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def make_reader(text: Text, width: int, hours: float, seed: int, out: Path) -> None:
    """Make the start, and train it in phases; existing parts are reused."""
    latest = out / f"start-{width}-{seed}"
    if not latest.exists():
        # Written as a whole or not at all, and never mistaken for a start of another size.
        with temporary_directory(latest) as work:
            make_start(text, width, work, seed)
            os.replace(work, latest)
    for phase in PHASES:
        scaled = replace(phase, steps=max(1, round(phase.steps * hours)))
        run_phase(scaled, latest, text, folder_at(out / phase.name), seed)
        print(f"{phase.name}: {scaled.steps} steps", flush=True)
        latest = out / phase.name / MODEL
    deliver(folder_at(latest.parent), out / MODEL)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="for checkpoints and the model")
    parser.add_argument("--size", choices=SIZES, default="5m", help="millions of parameters")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    text = in_parts(read_source(wikipedia_dump()))
    make_reader(text, SIZES[options.size], options.hours, options.seed, options.out)


if __name__ == "__main__":
    main()
