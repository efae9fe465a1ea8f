"""A model that learns: losses, gradients and steps, within a budget of memory.

Fusion-in-Decoder's model is a plain T5: each input goes through the encoder on its own, and the decoder
attends to all states of a query, end to end and without the padding between them, as the reader decodes
(``engine.reading.models.t5``). With one input per query it is T5's ordinary training.

The loss of a step is the sum over all target tokens of the cross entropy, divided by the number of these
tokens in the whole batch, over all workers. So it depends neither on how a batch is cut into micro-batches
nor on the number of workers, up to rounding and to the draws of dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from engine.machine import batching, device
from engine.messages.errors import InputError
from engine.sources.io.files import reported_writing
from engine.training.examples import Example
from engine.training.group import Group
from engine.training.settings import Precision

# Learned by no token: what pads targets.
_NOTHING = -100
# The most tokens of the encoder that go through the model at once on a CPU. Where lengths differ, fewer have
# less padding among them; where they are all long, this costs a little.
CPU_TOKENS = 2048


@dataclass
class Capacity:
    """How much goes through the model at once; part of a checkpoint, so that training goes on as it was.

    Attributes:
        tokens: of the encoder in a micro-batch, padding included; a query that has more goes alone.
        checkpointing: whether activations are computed anew for the backward pass.
        halvings: how often memory ran out.
        asked: the budget of memory, and whether to compute activations anew, that this was decided for.
    """

    tokens: int
    checkpointing: bool
    halvings: int = 0
    asked: str = ""


@dataclass(frozen=True)
class Loss:
    """The summed cross entropy of target tokens, their number, and that of the encoder's tokens without padding."""

    total: float
    tokens: int
    read: int


class Learned(NamedTuple):
    """Of a step of all workers: the loss per target token, and the encoder's tokens without padding."""

    loss: float
    read: int


class Learner:
    """A model in training, on this worker's device.

    Attributes:
        model: of transformers, in float32.
        device: where it is.
        precision: of the forward pass.
        capacity: set by ``measure``, or by a checkpoint.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: torch.device,
        precision: Precision,
        weight_decay: float,
        longest_input: int,
        longest_target: int,
    ) -> None:
        self.model = model.to(device).train()
        self.device = device
        self.precision: Precision = precision
        self._longest = longest_input, longest_target
        settings = model.generation_config
        self._start = int(settings.decoder_start_token_id or 0)
        self._pad = int(model.config.pad_token_id or 0)
        self.parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=0.0, weight_decay=weight_decay
        )
        # There from the start: their memory is not to be found during a step, and sums need all of them.
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)
            self.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.capacity = Capacity(device_tokens(device), checkpointing=False)

    def measure(self, memory: float, inputs: int, checkpointing: bool | None) -> None:
        """Decide how much goes through the model at once, by a forward and backward pass on made-up inputs.

        Args:
            memory: bytes for activations.
            inputs: the most of a query.
            checkpointing: whether to compute activations anew; None for where one query would not fit.
        """
        query = inputs * self._longest[0]
        per_token = 0.0
        for chosen in (False, True) if checkpointing is None else (checkpointing,):
            self._set_checkpointing(chosen)
            cost = device.token_cost(self.device, self._probe)
            per_token = max(self._least_cost(chosen), cost[1] if cost else 0.0)
            if per_token * query <= memory:
                break
        self.clear()
        fitting = int(min(memory // per_token, device_tokens(self.device)))
        # A power of 2: what is measured varies from run to run, which should not change what is computed.
        self.capacity = Capacity(
            2 ** max(0, fitting.bit_length() - 1),
            checkpointing=bool(self.model.is_gradient_checkpointing),
        )

    def restore(self, capacity: Capacity) -> None:
        """Go on with the capacity of a checkpoint."""
        self.capacity = capacity
        self._set_checkpointing(capacity.checkpointing)

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            assert parameter.grad is not None
            parameter.grad.zero_()

    def accumulate(self, examples: Sequence[Example], seed: int, *, may_checkpoint: bool) -> Loss:
        """Add the gradients of the summed loss of examples to those that are there, which must be none.

        Where memory runs out, the gradients are forgotten and it begins anew, with half as much at once.

        Args:
            seed: of dropout.
            may_checkpoint: whether activations may be computed anew where a single query does not fit.

        Raises:
            InputError: memory ran out with a single query.
        """
        while True:
            batches = self._cut(examples)
            try:
                torch.manual_seed(seed)
                totals = [self._forward_backward([examples[i] for i in batch]) for batch in batches]
                return Loss(
                    sum(totals),
                    sum(len(example.target) for example in examples),
                    sum(map(len, (tokens for example in examples for tokens in example.inputs))),
                )
            except (RuntimeError, MemoryError) as error:
                if not batching.is_out_of_memory(error):
                    raise
            # Outside the except block: the traceback would keep the failed batch's tensors alive.
            batching.free_cached_memory()
            self.clear()
            self._halve(examples, batches, may_checkpoint=may_checkpoint)

    def update(self, own: Loss, group: Group, *, rate: float, clip: float) -> Learned:
        """Take a step with the gradients of all workers.

        Args:
            own: of this worker's examples, whose gradients were accumulated.
            rate: the learning rate.
            clip: the longest gradient; 0 for any.

        Raises:
            InputError: the loss is not a number, in all workers alike; no step was taken.
        """
        gradients = [parameter.grad for parameter in self.parameters.values()]
        counts = [own.total, own.tokens, own.read]
        sums = torch.tensor(counts, dtype=torch.float32, device=self.device)
        group.sum([*gradients, sums])
        total, tokens, read = sums.tolist()
        if not math.isfinite(total):
            raise diverged("the loss")
        for gradient in gradients:
            gradient.div_(tokens)
        if clip:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), clip)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.clear()
        return Learned(total / tokens, int(read))

    def _cut(self, examples: Sequence[Example]) -> list[list[int]]:
        """Group places of examples into micro-batches, those with the most tokens first."""
        shapes = [_shape(example) for example in examples]
        order = sorted(range(len(examples)), key=lambda i: (-examples[i].padded_tokens, i))
        micro: list[list[int]] = []
        for place in order:
            if micro and _tokens(shapes[i] for i in (*micro[-1], place)) <= self.capacity.tokens:
                micro[-1].append(place)
            else:
                micro.append([place])
        return micro

    def _halve(
        self,
        examples: Sequence[Example],
        batches: Sequence[Sequence[int]],
        *,
        may_checkpoint: bool,
    ) -> None:
        most = max(map(len, batches))
        self.capacity.halvings += 1
        if most > 1:
            largest = max(_tokens(_shape(examples[i]) for i in batch) for batch in batches)
            self.capacity.tokens = max(1, min(self.capacity.tokens, largest) // 2)
        elif may_checkpoint and not self.capacity.checkpointing:
            self.capacity.checkpointing = True
            self._set_checkpointing(True)
        else:
            raise InputError(
                "memory ran out with a single query and its passages",
                "give more `memory`, fewer passages with `k`, or a smaller reader",
            )

    def _forward_backward(self, examples: Sequence[Example]) -> float:
        """Add the gradients of examples that go through the model at once; their summed loss."""
        loss = self.loss(examples)
        loss.backward()
        return float(loss.detach())

    def loss(self, examples: Sequence[Example]) -> torch.Tensor:
        """The summed cross entropy of the examples' target tokens."""
        targets = [torch.tensor(example.target) for example in examples]
        labels = pad_sequence(targets, batch_first=True, padding_value=_NOTHING).to(self.device)
        logits = self.logits(examples, labels)
        return cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=_NOTHING, reduction="sum"
        )

    def logits(self, examples: Sequence[Example], labels: torch.Tensor) -> torch.Tensor:
        """What the decoder says of each target token: (examples, longest target, vocabulary).

        Args:
            labels: (examples, longest target), negative behind the targets.
        """
        inputs = [torch.tensor(tokens) for example in examples for tokens in example.inputs]
        ids = pad_sequence(inputs, batch_first=True, padding_value=self._pad).to(self.device)
        lengths = torch.tensor([len(tokens) for tokens in inputs], device=self.device)
        mask = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
        before = labels.roll(1, dims=1).masked_fill(labels.roll(1, dims=1) < 0, self._pad)
        before[:, 0] = self._start
        half = torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"
        )
        with half:
            states = self.model.encoder(input_ids=ids, attention_mask=mask.long())[0]
            of_queries, all_own = self._joined(states, mask, examples)
            return self.model(
                encoder_outputs=(of_queries,),
                attention_mask=all_own,
                decoder_input_ids=before,
                use_cache=False,
            ).logits

    @staticmethod
    def _joined(
        states: torch.Tensor, mask: torch.Tensor, examples: Sequence[Example]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of each query's inputs end to end, (examples, most tokens, width), and their mask."""
        tokens = [sum(map(len, example.inputs)) for example in examples]
        joined = pad_sequence(list(states[mask].split(tokens)), batch_first=True)
        counts = torch.tensor(tokens, device=states.device)
        own = torch.arange(joined.shape[1], device=states.device) < counts[:, None]
        return joined, own.long()

    def _probe(self, tokens: int) -> None:
        """Learn a made-up query of so many tokens."""
        longest, written = self._longest
        whole, rest = divmod(tokens, longest)
        lengths = [longest] * whole + [rest] * (rest > 0)
        inputs = tuple((self._start,) * length for length in lengths)
        self._forward_backward([Example(inputs, (self._start,) * written)])

    def _least_cost(self, checkpointing: bool) -> float:
        """Bytes that a token of the encoder takes at least, whatever was measured."""
        config = self.model.config
        item = 2 if self.precision == "bfloat16" else 4
        inner = config.num_heads * config.d_kv
        layers = config.num_layers
        decoder = getattr(config, "num_decoder_layers", None) or layers
        # What goes from layer to layer; and, unless it is computed anew, what is multiplied in them.
        kept = 4 * config.d_model * layers
        if not checkpointing:
            kept += item * layers * (4 * inner + 2 * config.d_ff + 2 * config.d_model)
        return float(kept + 2 * item * inner * decoder)

    def _set_checkpointing(self, on: bool) -> None:
        if on:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()


class _Shape(NamedTuple):
    """Of a query: its inputs, the tokens of the longest, and of all."""

    inputs: int
    longest: int
    tokens: int


def _shape(example: Example) -> _Shape:
    lengths = [len(tokens) for tokens in example.inputs]
    return _Shape(len(lengths), max(lengths), sum(lengths))


def _tokens(shapes: Iterable[_Shape]) -> int:
    """Tokens that queries take in a micro-batch, with padding.

    Of the encoder's inputs, all as long as the longest; or of the states that the decoder attends to, as many for
    each query as for the one with the most.
    """
    inputs, longest, tokens = zip(*shapes, strict=True)
    return max(sum(inputs) * max(longest), len(tokens) * max(tokens))


def diverged(what: str) -> InputError:
    """The error for a training whose numbers have grown out of all bounds."""
    return InputError(
        f"{what} of the model in training is not a number any more",
        "train with a lower `learning_rate`, or shorter gradients with `clip`",
    )


def device_tokens(where: torch.device) -> int:
    """The most tokens of the encoder in a micro-batch: more are no faster."""
    return batching.GPU_BATCH_TOKENS if where.type == "cuda" else CPU_TOKENS


def shares(batch: Sequence[int], group: Group) -> Sequence[int]:
    """The part of a batch that a worker learns from."""
    return batch[group.rank :: group.size]


def batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """An epoch's batches; the last one may be smaller."""
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def save(learner: Learner, start: Path, directory: Path) -> None:
    """Save the model as a plain Hugging Face directory, with the tokenizer's files as training began with them.

    Args:
        start: the directory that training started from.
        directory: an empty one.
    """
    model = learner.model
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    model.config.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    # Not by save_pretrained: of several workers it has only the first one write.
    weights = {name: one.detach().cpu().contiguous() for name, one in learner.parameters.items()}
    with reported_writing(directory / "model.safetensors"):
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for file in sorted(start.iterdir()):
        taken = file.suffix in {".json", ".model", ".txt", ".jinja"}
        if taken and not (directory / file.name).exists() and "index" not in file.name:
            (directory / file.name).write_bytes(file.read_bytes())
