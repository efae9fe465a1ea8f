"""The user's own models in ``benchmarks.efficiency``: their sizes, from the files in their directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.efficiency.grid import SHAPES, Shape
from engine.machine import model_files
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.reading.models.weights import resolve
from engine.reading.readers import specify
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries


def add_models(text: str) -> list[str]:
    """The names of the models that ``--models`` lists, in cells; the user's own are added to ``SHAPES``.

    Raises:
        InputError: a model that is neither in ``SHAPES`` nor a directory, or that the engine cannot read.
    """
    found = []
    known = sorted(name for name, shape in SHAPES.items() if not shape.path)
    for part in (part.strip() for part in text.split(",")):
        if part not in known:
            if not (part and (Path(part).is_dir() or Path(part).suffix == ".gguf")):
                remedy = f"use some of {', '.join(known)}, or a model's directory"
                raise InputError(f"`models` names {quoted(part)}", remedy)
            shape = _shape(part)
            SHAPES[shape.name] = shape
        found.append(shape.name if part not in known else part)
    return found


def _shape(given: str) -> Shape:
    weights = resolve(given)
    _, prompt = specify(weights, augmentation="in-prompt", task="short-answer")
    with model_files.refusals(given):
        tokenizer, config = model_files.tokenizer_and_config(str(weights.path), "")
    text: Any = config.get_text_config()

    def size(*names: str) -> int:
        values = (getattr(text, name, None) for name in names)
        return next((value for value in values if isinstance(value, int)), 0)

    asked = max(read_queries(questions("short-answer"))["query"], key=len)
    one, two = (
        len(tokenizer("".join(prompt.render(asked, [("", "")] * count)))["input_ids"])
        for count in (1, 2)
    )
    causal = weights.architecture == "causal"
    hidden, heads, layers = (
        size("hidden_size"),
        size("num_attention_heads"),
        size("num_hidden_layers"),
    )
    if not (hidden and heads and layers):
        problem = "its configuration names no width, heads or layers"
        raise InputError(problem, "give a T5 or a decoder-only model with attention", path=given)
    width = size("head_dim", "d_kv") or hidden // heads
    return Shape(
        # Other weights at the same path count as another model.
        name=f"{Path(given).resolve().name}@{weights.digest[:6]}",
        architecture=weights.architecture,
        hidden=hidden,
        inner=heads * width,
        key_inner=(size("num_key_value_heads") or heads) * width,
        feed_forward=size("d_ff", "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden,
        gates=2 if getattr(text, "is_gated_act", causal) else 1,
        layers=layers,
        heads=heads,
        vocabulary=size("vocab_size"),
        positions=size("max_position_embeddings") if causal else 0,
        template=2 * one - two,
        passage=two - one,
        reads=True,
        path=weights.source,
        counted=model_files.parameters(weights.path),
    )
