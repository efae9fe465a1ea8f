"""Conversion of readers to what is loaded here: a directory of safetensors, config and tokenizer.

Two forms are converted, GGUF files and T5 checkpoints that PyTorch pickled. The latter include those
of Fusion-in-Decoder's own code (github.com/facebookresearch/FiD), which wraps the encoder and each of
its blocks, so that their weights carry other names, and which saves no tokenizer.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from engine.machine.model_files import refuse_missing, tensors
from engine.messages.errors import InputError
from engine.reading.models import gguf_settings
from engine.reading.prompting.controls import load_tokenizer
from engine.reading.protocol import BIASED
from engine.sources.io.records import parse_json

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from transformers import PreTrainedModel

# Parts of a converted model's address: to be raised with any change of what is written.
CHECKPOINT_VERSION = 1
GGUF_VERSION = 3
CROSS_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

# The pre-tokenizers of byte-pair encodings for which llama.cpp adds a begin token by default.
_BEGUN = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
    | {"jina-v5-nano", "tekken", "chameleon"}
)
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_TOKENIZER = (
    "tokenizer.json",
    "spiece.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# EncoderWrapper(encoder) around the stack and CheckpointWrapper(module) around each block.
_WRAPPED = "encoder.encoder."
_WRAPPED_BLOCK = re.compile(r"^encoder\.block\.(\d+)\.module\.")


def convert_gguf(source: Path, target: Path) -> None:
    """Write a GGUF file's model, de-quantized to bf16, and its tokenizer into the directory ``target``.

    It takes 6 s for 135M parameters, loading the result under 2 s. The tokenizer adds the
    begin and end tokens that llama.cpp adds (``_added``): transformers does not read these flags.

    Raises:
        InputError: transformers cannot read it, or its model would not be the file's (``gguf_settings``).
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )
    from transformers.utils import logging
    from transformers.utils.quantization_config import GgufConfig

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    file = {"gguf_file": source.name, "local_files_only": True}
    logging.set_verbosity_error()
    try:
        with _parsed_once(source) as header:
            config = AutoConfig.from_pretrained(source.parent, trust_remote_code=False, **file)
            gguf_settings.settle(header, config)
            # The loader's progress bar cannot be turned off.
            with contextlib.redirect_stderr(io.StringIO()):
                model, loading = AutoModelForCausalLM.from_pretrained(
                    source.parent,
                    config=config,
                    output_loading_info=True,
                    dtype=torch.bfloat16,
                    quantization_config=GgufConfig(dequantize=True),
                    trust_remote_code=False,
                    **file,
                )
            # Zeros are what a bias or a norm of Gemma's is without a tensor; all else would be random.
            weights = model.state_dict()
            loading["missing_keys"] = [
                name for name in loading["missing_keys"] if weights[name].count_nonzero()
            ]
            refuse_missing(loading, str(source))
            family = header.fields["general.architecture"].contents()
            processor = TENSOR_PROCESSORS.get(family, TensorProcessor)
            used = get_gguf_hf_weights_map(model, processor(config=config.to_dict()))
            gguf_settings.refuse_unused((tensor.name for tensor in header.tensors), used)
            added = _added(header)
            # The tokenizer's file says whether it was told so: part of the digest that names stored reads.
            tokenizer = AutoTokenizer.from_pretrained(
                source.parent, trust_remote_code=False, **file, **added
            )
        if lost := [flag for flag, adds in added.items() if getattr(tokenizer, flag) != adds]:
            raise ValueError(f"{lost[0]} holds, but the header names no such token")
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes the libraries raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"cannot be converted ({reason})", "use a model that transformers reads", path=source
        ) from None
    finally:
        logging.set_verbosity(verbosity)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextlib.contextmanager
def _parsed_once(source: Path) -> Iterator[GGUFReader]:
    """Have transformers parse a header once and not thrice, 2 s each, and map the tensors' names once and not by module."""
    import gguf

    parse = gguf.GGUFReader
    header = parse(source)

    def shared(path: Any, *arguments: Any, **options: Any) -> GGUFReader:
        return header if Path(path) == source else parse(path, *arguments, **options)

    # transformers takes both from the package at each call.
    names = functools.cache(gguf.get_tensor_name_map)
    with (
        patch.object(gguf, "GGUFReader", shared),
        patch.object(gguf, "get_tensor_name_map", names),
    ):
        yield header


def _added(header: GGUFReader) -> dict[str, bool]:
    """Which tokens a GGUF file's tokenizer adds to a text: ``add_bos_token``, ``add_eos_token``.

    The header's flags decide; where one is absent, llama.cpp's default for the kind of tokenizer.

    Source: ``llama_vocab::impl::load`` in llama.cpp's src/llama-vocab.cpp (commit 00ad355), for the kinds of
    tokenizer that transformers reads from GGUF files.
    """
    keys = ("model", "pre", "add_bos_token", "add_eos_token")
    fields = ((key, header.get_field(f"tokenizer.ggml.{key}")) for key in keys)
    said = {key: field.contents() for key, field in fields if field is not None}
    kind, pre = said.get("model"), said.get("pre")
    added = {
        "add_bos_token": kind == "llama" or (kind == "gpt2" and pre in _BEGUN),
        "add_eos_token": kind == "t5",
    }
    for flag in added:
        if (value := said.get(flag)) is not None:
            if not isinstance(value, bool):
                raise TypeError(f"{flag} is {value!r}")
            added[flag] = value
    # Gemma 4's files were published with a flag that is wrong.
    added["add_bos_token"] |= kind == "gemma4" or (kind == "gpt2" and pre == "gemma4")
    return added


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that a T5 checkpoint's conversion depends on; none where it needs no conversion.

    Converted are pickled weights without safetensors beside them, and safetensors in which the
    encoder is wrapped. Other files (``optimizer.pth.tar``) are not looked at.
    """
    stored = sorted(directory.glob("*.safetensors"))
    if stored:
        weights = stored if any(map(_is_wrapped, stored)) else []
    else:
        names = (_PICKLE, _PICKLE_INDEX, "pytorch_model-*.bin")
        weights = sorted(path for name in names for path in directory.glob(name))
    if not weights:
        return []
    others = ("config.json", "generation_config.json", *_TOKENIZER)
    return [*weights, *(path for name in others if (path := directory / name).is_file())]


def _is_wrapped(file: Path) -> bool:
    """Whether a safetensors file's header names wrapped weights; a damaged file is for the loader."""
    try:
        return any(name.startswith(_WRAPPED) for name in tensors(file))
    except InputError:
        return False


def convert_checkpoint(source: Path, target: Path) -> None:
    """Write a T5 checkpoint into the directory ``target`` as transformers loads it.

    Pickles are read with ``weights_only``: tensors and nothing else, no code is run. Weights keep
    their precision; embeddings that T5 ties are written once.

    Fusion-in-Decoder's own code needs transformers 3.0.2, where T5 differed in two ways that its
    checkpoints were trained with: a relative position bias in the decoder's cross-attention, and
    inputs without an end token. Where a checkpoint of wrapped weights has that bias, both are kept:
    the model becomes ``engine.reading.models.fid_t5`` and the tokenizer adds no token. A T5 that was not
    wrapped is read as transformers reads it, without the bias.

    Raises:
        InputError: the files hold more than tensors, or not the weights that config.json asks for,
            or there is no tokenizer beside them.
    """
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if not any((source / name).is_file() for name in ("tokenizer.json", "spiece.model")):
        raise InputError(
            "holds no tokenizer (Fusion-in-Decoder's own code saves none)",
            "put the files of t5-base's tokenizer, tokenizer.json or spiece.model, in the directory",
            path=source,
        )
    state, wrapped = _unwrapped(_load(source))
    biased = wrapped and CROSS_BIAS in state and config["model_type"] == "t5"
    if not biased:
        state.pop(CROSS_BIAS, None)
    config["model_type"] = BIASED if biased else config["model_type"]
    model, tokenizer = _empty_model(source, config), load_tokenizer(source)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if config.get("tie_word_embeddings", config["model_type"] != "mt5"):
        tied.append("lm_head.weight")
    _refuse_other_weights(source, state, expected, tied)
    shared = state["shared.weight"]
    for name in tied:
        copy = state.pop(name, shared)
        if copy.data_ptr() != shared.data_ptr() and not torch.equal(copy, shared):
            raise InputError(
                f"{name} is not the shared embeddings, which its config.json ties it to",
                "give the checkpoint that its config.json belongs to",
                path=source,
            )
    if len(tokenizer) > (rows := len(shared)):
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens and the model {rows}",
            "put the tokenizer that the model was trained with in the directory",
            path=source,
        )
    with torch.inference_mode():
        contiguous = {name: state[name].contiguous() for name in sorted(state)}
    save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    config["architectures"] = [type(model).__name__]
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("generation_config.json", *_TOKENIZER):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if biased:
        for name in _TOKENIZER:
            (target / name).unlink(missing_ok=True)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content["post_processor"] = None
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(content)),
            eos_token=tokenizer.eos_token,
            pad_token=tokenizer.pad_token,
            unk_token=tokenizer.unk_token,
        ).save_pretrained(target)


def _load(source: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, mapped from its files where their format allows."""
    import torch
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    for file in _weight_files(source):
        try:
            if file.suffix == ".safetensors":
                part = load_file(file)
            else:
                # Before PyTorch 1.6 a checkpoint was no zip file, and cannot be mapped.
                mapped = zipfile.is_zipfile(file)
                part = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # whatever a damaged or hostile file makes the libraries raise
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            raise InputError(
                f"holds no plain tensors ({reason})", "fetch the checkpoint again", path=file
            ) from None
        is_table = isinstance(part, dict)
        if not is_table or not all(isinstance(t, torch.Tensor) for t in part.values()):
            raise InputError(
                "is not a table of weights", "give what save_pretrained wrote", path=file
            )
        state |= part
    return state


def _weight_files(source: Path) -> list[Path]:
    if stored := sorted(source.glob("*.safetensors")):
        return stored
    if not (index := source / _PICKLE_INDEX).is_file():
        return [source / _PICKLE]
    try:
        names = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"is not an index of weights ({error})", "fetch it again", path=index
        ) from None
    for name in names:
        if Path(name).name != name or not (source / name).is_file():
            raise InputError(f"names {name!r}, which is not there", "fetch it again", path=index)
    return [source / name for name in names]


def _unwrapped(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], bool]:
    """Weights under the names that T5 has for them, and whether some had others."""
    renamed = {
        _WRAPPED_BLOCK.sub(
            r"encoder.block.\1.", re.sub(r"^encoder\.encoder\.", "encoder.", name)
        ): t
        for name, t in state.items()
    }
    return renamed, set(renamed) != set(state)


def _empty_model(source: Path, config: dict[str, Any]) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from engine.reading.models import fid_t5  # noqa: F401 (makes its model type known)

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(
                AutoConfig.for_model(**config), trust_remote_code=False
            )
            return model
    except Exception as error:  # a value that the configuration or a layer refuses
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"describes no model ({reason})", "fetch it again", path=source / "config.json"
        ) from None


def _refuse_other_weights(
    source: Path,
    state: Mapping[str, torch.Tensor],
    expected: Mapping[str, tuple[int, ...]],
    tied: Sequence[str],
) -> None:
    """Refuse weights that lack, exceed or do not fit those of the model; tied ones may be left out."""
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for names, what in (
        (expected.keys() - found.keys() - set(tied), "lacks"),
        (found.keys() - expected.keys(), "has, and its config.json does not describe,"),
        (
            {name for name in found.keys() & expected.keys() if found[name] != expected[name]},
            "has in other shapes than its config.json describes",
        ),
    ):
        if names:
            first = min(names)
            raise InputError(
                f"{what} {len(names)} weights, {first} first",
                "give a complete checkpoint with its own config.json",
                path=source,
            )
