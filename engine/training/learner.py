"""A model that learns: loaded or drawn at random, the gradients of its loss within a budget of memory, saved.

Fusion-in-Decoder's model is a plain T5: each input goes through the encoder on its own, and the decoder
attends to all states of a query, end to end and without the padding between them, as the reader decodes
(``engine.reading.models.t5``). With one input per query it is T5's ordinary training.

The loss is summed over target tokens, and divided by their number in the whole batch by ``trainer``. So it does not
depend on how a batch is cut into micro-batches, up to rounding and to the draws of dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from engine.machine import batching, device
from engine.machine.model_files import load_model, refusals, refuse_missing, tokenizer_and_config
from engine.messages.errors import InputError
from engine.reading.models import t5  # noqa: F401 (makes its model type known)
from engine.reading.models.tokenizing import longest_input
from engine.reading.protocol import ReaderSpec
from engine.sources.io.files import reported_writing
from engine.training.checkpoints import WEIGHTS
from engine.training.examples import Example
from engine.training.settings import Precision, Recipe
from engine.training.start import TRAINED_BYTES, Start, refuse_too_little

# The padding of targets, which no token learns.
_NOTHING = -100
# The most tokens of the encoder that go through the model at once on a CPU. Less padding is left if lengths differ; if
# all are long, the limit costs a little.
CPU_TOKENS = 2048


class Learner:
    """A model in training.

    Attributes:
        model: of transformers, in float32, on its device.
        precision: of the forward pass.
        tokens: of the encoder in a micro-batch, padding included; a query with more goes alone.
        halvings: number of times that memory ran out.
    """

    def __init__(self, model: Any, precision: Precision) -> None:
        self.model = model.train()
        self.precision: Precision = precision
        self.device: torch.device = model.device
        self.tokens = batching.GPU_BATCH_TOKENS if self.device.type == "cuda" else CPU_TOKENS
        self.halvings = 0
        self._start = int(model.generation_config.decoder_start_token_id or 0)
        self._pad = int(model.config.pad_token_id or 0)

    @property
    def at_once(self) -> dict[str, Any]:
        """The size of a micro-batch, and whether activations are recomputed."""
        anew = bool(self.model.is_gradient_checkpointing)
        return {"tokens": self.tokens, "checkpointing": anew, "halvings": self.halvings}

    def fit_into(self, memory: float, query: Example, checkpointing: bool | None) -> None:
        """Decide the size of a micro-batch, by a forward and backward pass on made-up inputs.

        Activations may take ``memory`` bytes. ``query`` is the largest possible one; if it would not fit, activations
        are recomputed, unless ``checkpointing`` decides.
        """
        longest, size = len(query.inputs[0]), sum(map(len, query.inputs))

        def probe(tokens: int) -> None:
            lengths = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
            inputs = tuple((self._start,) * length for length in lengths)
            self._forward_backward([Example(inputs, query.target)])

        for chosen in (False, True) if checkpointing is None else (checkpointing,):
            self._set_checkpointing(chosen)
            cost = device.token_cost(self.device, probe)
            # If the cost hardly shows, or cannot be measured, halving decides when memory runs out.
            per_token = max(1.0, cost[1] if cost else 0.0)
            if per_token * size <= memory:
                break
        self.model.zero_grad()
        fitting = int(min(memory // per_token, self.tokens))
        # A power of 2: measurements vary from run to run, which should not change results.
        self.tokens = 2 ** max(0, fitting.bit_length() - 1)

    def accumulate(self, examples: Sequence[Example], seed: int, *, may_checkpoint: bool) -> float:
        """Add the gradients of the summed loss of examples, and return it; there must be none before. If memory runs
        out, the gradients are dropped and it restarts with half as much at once; with ``may_checkpoint``, activations
        are recomputed if a single query does not fit; else an InputError.
        """
        while True:
            batches = self.cut(examples)
            try:
                torch.manual_seed(seed)
                return sum(self._forward_backward([examples[i] for i in part]) for part in batches)
            except (RuntimeError, MemoryError) as error:
                if not batching.is_out_of_memory(error):
                    raise
            # Outside the except block: the traceback would keep the failed batch's tensors alive.
            batching.free_cached_memory()
            self.model.zero_grad()
            self.halvings += 1
            if max(map(len, batches)) > 1:
                largest = max(_tokens(_shape(examples[i]) for i in part) for part in batches)
                self.tokens = max(1, min(self.tokens, largest) // 2)
            elif may_checkpoint and not self.model.is_gradient_checkpointing:
                self._set_checkpointing(True)
            else:
                problem = "memory ran out with a single query and its passages"
                remedy = "give more `memory`, fewer passages with `k`, or a smaller reader"
                raise InputError(problem, remedy, "training.memory")

    def cut(self, examples: Sequence[Example]) -> list[list[int]]:
        """Group places of examples into micro-batches, the longest examples first."""
        shapes = [_shape(example) for example in examples]
        order = sorted(range(len(examples)), key=lambda i: (-shapes[i][0] * shapes[i][1], i))
        micro: list[list[int]] = []
        for place in order:
            if micro and _tokens(shapes[i] for i in (*micro[-1], place)) <= self.tokens:
                micro[-1].append(place)
            else:
                micro.append([place])
        return micro

    def _forward_backward(self, examples: Sequence[Example]) -> float:
        """Add the gradients of a micro-batch, and return its summed loss."""
        loss = self.loss(examples)
        loss.backward()
        return float(loss.detach())

    def loss(self, examples: Sequence[Example]) -> torch.Tensor:
        """The summed cross entropy of the examples' target tokens."""
        targets = [torch.tensor(example.target) for example in examples]
        labels = pad_sequence(targets, batch_first=True, padding_value=_NOTHING).to(self.device)
        before = labels.roll(1, dims=1)
        before = before.masked_fill(before < 0, self._pad)
        before[:, 0] = self._start
        inputs = [torch.tensor(tokens) for example in examples for tokens in example.inputs]
        ids = pad_sequence(inputs, batch_first=True, padding_value=self._pad).to(self.device)
        mask = self._mask(map(len, inputs))
        counts = [sum(map(len, example.inputs)) for example in examples]
        in_half = self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=in_half):
            states = self.model.encoder(input_ids=ids, attention_mask=mask.long())[0]
            # The states of a query's inputs end to end: (examples, most tokens, width).
            joined = pad_sequence(list(states[mask].split(counts)), batch_first=True)
            encoded = {"encoder_outputs": (joined,), "attention_mask": self._mask(counts).long()}
            logits = self.model(decoder_input_ids=before, use_cache=False, **encoded).logits
        logits, labels = logits.float().flatten(0, 1), labels.flatten()
        return cross_entropy(logits, labels, ignore_index=_NOTHING, reduction="sum")

    def _mask(self, lengths: Iterable[int]) -> torch.Tensor:
        own = torch.tensor(list(lengths), device=self.device)
        return torch.arange(int(own.max()), device=self.device) < own[:, None]

    def _set_checkpointing(self, on: bool) -> None:
        if on:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()


def _shape(example: Example) -> tuple[int, int, int]:
    """A query's number of inputs, tokens of the longest, and tokens of all."""
    lengths = [len(tokens) for tokens in example.inputs]
    return len(lengths), max(lengths), sum(lengths)


def _tokens(shapes: Iterable[tuple[int, int, int]]) -> int:
    """Tokens in a micro-batch, the larger of: inputs padded to the longest, states padded to the query with most."""
    inputs, longest, tokens = zip(*shapes, strict=True)
    return max(sum(inputs) * max(longest), len(tokens) * max(tokens))


def diverged(what: str) -> InputError:
    """The error for a training that diverged."""
    problem = f"training diverged: {what} is not a finite number"
    remedy = "use a lower `learning_rate` or a smaller `clip`"
    return InputError(problem, remedy, "training.diverged")


def save(model: Any, start: Path, directory: Path) -> None:
    """Save a model as a plain Hugging Face directory, with the tokenizer's files of the start."""
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    model.config.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    # Not by save_pretrained: of several workers it has only the first one write.
    weights = {name: own.detach().cpu().contiguous() for name, own in model.named_parameters()}
    with reported_writing(directory / WEIGHTS):
        save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    for file in sorted(start.iterdir()):
        taken = file.suffix in {".json", ".model", ".txt", ".jinja"}
        if taken and not (directory / file.name).exists() and "index" not in file.name:
            (directory / file.name).write_bytes(file.read_bytes())


def load_learner(
    start: Start, recipe: Recipe, where: torch.device, precision: Precision
) -> tuple[Learner, Any]:
    """The model to train on a device, and its tokenizer; an InputError if it cannot be loaded, or fit into memory."""
    spec = start.spec
    with refusals(spec.name):
        tokenizer, _ = tokenizer_and_config(spec.path, "")
        model = initial_model(start, recipe.seed)
    _refuse_unfit(model, tokenizer, spec)
    parameters = sum(weight.numel() for weight in model.parameters())
    refuse_too_little(spec.memory, parameters)  # unknown before for a start from scratch
    try:
        learner = Learner(model.to(where), precision)
        inputs = recipe.k if start.prompt.fused else 1
        tokens = (end_token(model),) * longest_input(spec, model.config)
        query = Example((tokens,) * inputs, tokens[:1] * (spec.max_new_tokens + 1))
        memory = device.batch_memory(spec, where, TRAINED_BYTES * parameters)
        if torch.distributed.is_initialized():
            memory -= 4 * parameters  # DistributedDataParallel's buckets
        learner.fit_into(memory, query, recipe.gradient_checkpointing)
    except (RuntimeError, MemoryError) as error:
        if not batching.is_out_of_memory(error):
            raise
        problem = (
            "is too large to train in memory: the model, its gradients and the optimizer take "
            f"{TRAINED_BYTES * parameters / 2**30:.1f} GiB, beside the activations"
        )
        remedy = "use a smaller reader, or a machine with more memory"
        raise InputError(problem, remedy, "training.size", path=spec.name) from None
    return learner, tokenizer


def best_precision() -> Precision:
    """bfloat16 if this machine has its arithmetic; else float32, even if float16 would be faster."""
    return "bfloat16" if device.best_dtype() == "bfloat16" else "float32"


def initial_model(start: Start, seed: int) -> Any:
    """The model that training starts from, on the CPU."""
    path = Path(start.spec.path)
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if start.from_scratch:
        torch.manual_seed(seed)
        return AutoModelForSeq2SeqLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    loaded_as: dict[str, Any] = {"dtype": "float32", "code": "", "device": torch.device("cpu")}
    model, loading = load_model("encoder-decoder", path, config=config, **loaded_as)
    refuse_missing(loading, start.spec.name)
    return model


def _refuse_unfit(model: Any, tokenizer: Any, spec: ReaderSpec) -> None:
    """Refuse a model with fewer tokens than its tokenizer, or another end token, or none."""
    fault = partial(InputError, path=spec.name)
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        problem = f"its tokenizer has {len(tokenizer)} tokens, and vocab_size is {known}"
        raise fault(problem, "set vocab_size in config.json to as many or more", "model.vocabulary")
    if model.generation_config.eos_token_id is None:
        problem = "has no eos_token_id"
        raise fault(problem, "name the token that ends answers in config.json", "model.endless")
    # T5's configuration defaults to 1: any word, in another's tokenizer.
    if tokenizer.eos_token_id not in (None, end := end_token(model)):
        problem = f"its tokenizer ends texts with token {tokenizer.eos_token_id}, and eos_token_id is {end}"
        raise fault(problem, "set eos_token_id in config.json to the tokenizer's", "model.ends")


def end_token(model: Any) -> int:
    """The model's end token."""
    ends = model.generation_config.eos_token_id
    return int(ends[0] if isinstance(ends, list) else ends)
