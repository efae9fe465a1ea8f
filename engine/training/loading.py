"""The model that a worker trains: loaded, or drawn at random, and put into its budget of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from engine.machine import device
from engine.machine.batching import is_out_of_memory
from engine.machine.model_files import refuse_missing
from engine.machine.model_loading import load_model
from engine.messages.errors import InputError
from engine.reading.models import fid_t5  # noqa: F401 (makes its model type known)
from engine.reading.models.tokenizing import longest_input
from engine.reading.protocol import ReaderSpec
from engine.training.group import Group
from engine.training.learner import Learner
from engine.training.settings import Precision, Recipe
from engine.training.start import TRAINED_BYTES, Start, refuse_too_little


def load_learner(start: Start, recipe: Recipe, group: Group) -> tuple[Learner, Any]:
    """The model to be trained, the same in all workers, and its tokenizer.

    Raises:
        InputError: it cannot be loaded.
    """
    spec = start.spec
    where = device.prepare(spec)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=False
        )
        model = _model(start, recipe.seed)
    except InputError:
        raise
    except Exception as error:  # whatever damaged files make the libraries raise
        reason = f"{type(error).__name__}: {error}"[:300]
        raise InputError(
            f"cannot be loaded ({reason})", "check or fetch the model again", path=spec.name
        ) from error
    _refuse_unfit(model, tokenizer, spec)
    parameters = sum(one.numel() for one in model.parameters())
    refuse_too_little(spec.memory, parameters)  # of a start from scratch, nobody knew before
    try:
        learner = Learner(
            model,
            device=where,
            # Of the first worker's machine: a curve has one arithmetic.
            precision=group.gather(recipe.precision or best_precision())[0],
            weight_decay=recipe.weight_decay,
            longest_input=longest_input(spec, model.config),
            longest_target=spec.max_new_tokens + 1,
        )
        # Drawn by another kind of processor, weights may be others.
        _same(learner, group)
        memory = device.batch_memory(spec, where, TRAINED_BYTES * parameters)
        inputs = recipe.k if start.prompt.fused else 1
        learner.measure(memory, inputs, recipe.gradient_checkpointing)
        learner.capacity.asked = f"{spec.memory} {recipe.gradient_checkpointing}"
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "memory cannot hold it with its gradients and the optimizer, which take "
            f"{TRAINED_BYTES * parameters / 2**30:.1f} GiB, and learn from 512 tokens",
            "use a smaller reader, or a machine with more memory",
            path=spec.name,
        ) from None
    return learner, tokenizer


def best_precision() -> Precision:
    """bfloat16 where this machine has its arithmetic; else float32, also where float16 would be faster."""
    return "bfloat16" if device.best_dtype() == "bfloat16" else "float32"


def _model(start: Start, seed: int) -> Any:
    path = Path(start.spec.path)
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if start.from_scratch:
        torch.manual_seed(seed)
        return AutoModelForSeq2SeqLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    model, loading = load_model(
        "encoder-decoder",
        path,
        config=config,
        dtype="float32",
        code="",
        device=torch.device("cpu"),
    )
    refuse_missing(loading, start.spec.name)
    return model


def _refuse_unfit(model: Any, tokenizer: Any, spec: ReaderSpec) -> None:
    """Refuse a model that knows fewer tokens than its tokenizer, or another end of an answer, or none."""
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise InputError(
            f"its tokenizer has {len(tokenizer)} tokens, and vocab_size is {known}",
            "set vocab_size in config.json to as many or more",
            path=spec.name,
        )
    if model.generation_config.eos_token_id is None:
        raise InputError(
            "has no eos_token_id", "name the token that ends answers in config.json", path=spec.name
        )
    # T5's configuration has 1 where config.json says nothing: any word, in another's tokenizer.
    if tokenizer.eos_token_id not in (None, end := end_token(model)):
        raise InputError(
            f"its tokenizer ends texts with token {tokenizer.eos_token_id}, and eos_token_id is {end}",
            "set eos_token_id in config.json to the tokenizer's",
            path=spec.name,
        )


def end_token(model: Any) -> int:
    """The token that ends what the model writes."""
    ends = model.generation_config.eos_token_id
    return int(ends[0] if isinstance(ends, list) else ends)


def _same(learner: Learner, group: Group) -> None:
    """Give all workers the weights of the first."""
    if group.size > 1:
        for parameter in learner.parameters.values():
            if group.rank:
                parameter.data.zero_()
        group.sum([parameter.data for parameter in learner.parameters.values()])
