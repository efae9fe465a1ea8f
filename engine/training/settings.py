"""The recipe for training a reader, and figures that follow from it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from engine.messages.checked import Amount, CheckedSettings, Natural, Positive, Range, Share
from engine.messages.errors import InputError

Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class Recipe(CheckedSettings):
    """How a reader is trained. The defaults are the recipe of eRAG's study.

    Source: Salemi & Zamani (SIGIR 2024), section 3.1; open details follow the code of Fusion-in-Decoder (Izacard &
    Grave, EACL 2021): gradients are clipped, and all weights decay.

    Attributes:
        k: Passages per query that the reader is trained with.
        epochs: Passes over the training queries.
        batch: Queries per optimizer step, however many of them fit into memory at once.
        learning_rate: Peak learning rate; it rises linearly from 0 over the first steps and falls linearly to 0.
        warmup: Share of the steps in which the learning rate rises, from 0 to 1.
        weight_decay: AdamW's weight decay.
        clip: Clip gradients to this norm over all weights; 0 for no clipping.
        target: Reference answer to learn for each query: the first, or any, drawn at random each epoch.
        precision: Arithmetic of the forward pass; weights, gradients and the optimizer are in float32. By default
            bfloat16 where the machine is fast at it.
        gradient_checkpointing: Recompute activations in the backward pass instead of keeping them. By default only
            if a query of the greatest length would not fit into memory otherwise.
        evaluate_every: Steps from one evaluation on the development queries to the next; by default an epoch.
        patience: Evaluations without improvement after which training ends; by default it never ends early. The
            model of the best evaluation is kept; of equally good ones, the latest.
        checkpoint_every: Steps from one checkpoint to the next; there is one after each evaluation, too.
        seed: Seed of the order of queries, the answers drawn, dropout, and random initial weights.

    Raises:
        InputError: a value out of range.
    """

    k: Positive = 50
    epochs: Positive = 10
    batch: Positive = 64
    learning_rate: Amount = 5e-5
    warmup: Share = 0.05
    weight_decay: Amount = 1e-2
    clip: Amount = 1.0
    target: Literal["first", "any"] = "first"
    precision: Precision | None = None
    gradient_checkpointing: bool | None = None
    evaluate_every: Positive | None = None
    patience: Positive | None = None
    checkpoint_every: Positive = 500
    seed: Natural = 0

    def steps_per_epoch(self, examples: int) -> int:
        """Steps of an epoch; the last one may have fewer examples."""
        return -(-examples // self.batch)

    def steps(self, examples: int) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch(examples)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 1 on: it rises to ``learning_rate``, and falls to 0 behind the last step."""
        rising = max(1, math.ceil(self.warmup * steps))
        if step <= rising:
            return self.learning_rate * step / rising
        return self.learning_rate * (steps - step + 1) / (steps - rising + 1)


@dataclass(frozen=True, kw_only=True)
class Workers(CheckedSettings):
    """The processes that train.

    Attributes:
        workers: Worker processes that share each batch; 0 trains in this process, without Ray.
        gpus_per_worker: 1, or 0 to use CPUs only. By default 1 where the cluster has GPUs.

    Raises:
        InputError: a number out of range.
    """

    workers: Natural = 1
    gpus_per_worker: Annotated[int, Range(0, 1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.workers and self.gpus_per_worker is not None:
            problem = "`gpus_per_worker` without workers (`workers` 0)"
            remedy = "leave it out, or set `workers` to 1 or more"
            raise InputError(problem, remedy, "training.workers")
