"""Tiny random models of the T5 family, saved as transformers saves them and as Fusion-in-Decoder does."""

import json
import re
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

SIZES = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
# Model, configuration, feed-forward, and whether the head is the embeddings.
KINDS = {
    "t5": (T5ForConditionalGeneration, T5Config, "relu", True),
    "flan-t5": (T5ForConditionalGeneration, T5Config, "gated-gelu", False),
    "mt5": (MT5ForConditionalGeneration, MT5Config, "gated-gelu", False),
    "umt5": (UMT5ForConditionalGeneration, UMT5Config, "gated-gelu", False),
}


def make(kind, directory, tokenizer_from, *, factor=8.0):
    """Save a model as transformers does; an untied head has weights of its own.

    The larger ``factor``, the more the outputs differ from each other.
    """
    model_class, config_class, projection, tied = KINDS[kind]
    torch.manual_seed(1)
    config = config_class(**SIZES, feed_forward_proj=projection, initializer_factor=factor)
    model = model_class(config)
    model.save_pretrained(directory)
    if not tied:
        # transformers 5 builds every T5 tied, and unties those whose files say otherwise.
        state = load_file(directory / "model.safetensors")
        state["lm_head.weight"] = torch.randn(100, 32)
        save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
        rewrite_config(directory, tie_word_embeddings=False, scale_decoder_outputs=None)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_from / name, directory / name)
    return directory


def rewrite_config(directory, **changes):
    """Set values of config.json; None deletes one."""
    config = json.loads((directory / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))


def wrapped_name(name):
    """The name that a weight of T5 has in Fusion-in-Decoder's wrapped encoder."""
    name = re.sub(r"^encoder\.", "encoder.encoder.", name)
    return re.sub(r"^(encoder\.encoder\.block\.\d+)\.", r"\1.module.", name)


def state_of(directory):
    """All weights under all their names, tied ones as one tensor."""
    return AutoModelForSeq2SeqLM.from_pretrained(directory).state_dict()


def make_original(plain, directory, *, state=None, legacy_zip=False):
    """Save what ``plain`` holds as Fusion-in-Decoder's own code does: pickled, wrapped, no tokenizer."""
    directory.mkdir()
    state = state_of(plain) if state is None else state
    torch.save(
        {wrapped_name(name): tensor for name, tensor in state.items()},
        directory / "pytorch_model.bin",
        _use_new_zipfile_serialization=not legacy_zip,
    )
    shutil.copyfile(plain / "config.json", directory / "config.json")
    # Keys that configurations of transformers 3.0.2 have.
    rewrite_config(
        directory,
        architectures=["FiDT5"],
        n_positions=512,
        output_past=True,
        dtype=None,
        transformers_version=None,
        task_specific_params={"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    )
    (directory / "optimizer.pth.tar").write_bytes(b"never read")
    return directory


def add_tokenizer(directory, tokenizer_from):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_from / name, directory / name)
    return directory
