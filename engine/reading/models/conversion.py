"""Conversion of readers to a directory of safetensors, config and tokenizer.

Two forms are converted, GGUF files and T5 checkpoints that PyTorch pickled. Checkpoints of Fusion-in-Decoder's own code
(github.com/facebookresearch/FiD) have other names of weights, since it wraps the encoder and each block, and no
tokenizer.

transformers ignores keys of a GGUF file's header that it has no name for, including the scaling of rotary positions, and
tensors of other names. Here every key below the architecture's name is put into the configuration, repeats the shapes
of weights, or has a value that changes nothing; any other key is refused by name.

Source: gguf/constants.py, and convert_hf_to_gguf.py in llama.cpp, which writes these keys.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from engine.machine.model_files import plain_tensors, refuse_missing, tensors
from engine.messages.errors import InputError
from engine.reading.prompting.controls import load_tokenizer
from engine.reading.protocol import BIASED
from engine.sources.io.records import parse_json

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from transformers import PreTrainedModel

# Keys that are no hyperparameters: for tokenizers (read by transformers and ``_added``), and about the file.
_BESIDE = ("GGUF.", "general.", "tokenizer.", "quantize.", "imatrix.", "mradermacher.")
_WHOLE = (("split.count", 0), ("split.count", 1), ("split.no", 0))
# A wrong value here gives weights of other shapes or other names, which are refused.
_SHAPES = re.compile(
    r"vocab_size|embedding_length|block_count|expert(_shared)?_count|(expert_|expert_shared_)?feed_forward_length|"
    r"attention\.(value_length(_swa)?|relative_buckets_count)|shortconv\.l_cache|"
    r"ssm\.(conv_kernel|inner_size|state_size|time_step_rank)|tensor_data_layout|leading_dense_block_count|"
    r"rope\.scaling\.finetuned"
)
# Settings that change nothing as 0 or 1.
_IDLE = re.compile(
    r"attention\.(clamp_kqv|head_count|max_alibi_bias|sliding_window|shared_kv_layers)|.*softcapping|.*_scale|"
    r"expert_(group|used).*|expert_gating_func|nextn_predict_layers|ssm\.dt_b_c_rms|"
    r"rope\.scaling\.(attn_factor|factor|yarn_ext_factor)"
)
_DEFAULTS = {
    "attention.causal": True,
    "rope.scaling.type": "none",
    "rope.scaling.yarn_log_multiplier": 0,
}
_EPSILON = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
# Names of settings in configurations, if not the last word of the key; the first that a class has counts.
_NAMES = {
    "context_length": ("max_position_embeddings",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("global_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.layer_norm_rms_epsilon": _EPSILON,
    "attention.layer_norm_epsilon": _EPSILON,
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
}
# Keys of YaRN, and the parameters that they set.
_YARN = {
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def settle(header: GGUFReader, config: Any) -> None:
    """Update a configuration by the header; a ValueError names a key or tensor that cannot be applied or ignored."""
    family = header.fields["general.architecture"].contents()
    values: dict[str, Any] = {}
    for key, field in header.fields.items():
        if key.startswith(f"{family}."):
            values[key.removeprefix(f"{family}.")] = field.contents()
        elif not key.startswith(_BESIDE) and (key, field.contents()) not in _WHOLE:
            raise ValueError(f"{key} of its header is {field.contents()!r}, which is not known")
    tensors = {t.name: t.data for t in header.tensors if t.name in (FACTORS, LONG, SHORT)}
    handled = _set_plain(values, config) | _set_positions(values, config, tensors)
    for suffix, value in values.items():
        idle = (0, 1) if _IDLE.fullmatch(suffix) else (_DEFAULTS.get(suffix, math.nan),)
        if not (suffix in handled or _SHAPES.fullmatch(suffix) or value in idle):
            raise ValueError(f"{suffix} of its header is {value!r}, which the model would not have")


def _set_plain(values: Mapping[str, Any], config: Any) -> set[str]:
    """Set all but rotary positions; returns the handled keys."""
    defaults, handled, kinds = type(config)(), set[str](), getattr(config, "layer_types", None)
    slides = not kinds or "sliding_attention" in kinds
    for suffix, value in values.items():
        names = _NAMES.get(suffix, (suffix.split(".")[-1],))
        name = next((name for name in names if hasattr(defaults, name)), None)
        if suffix == "attention.sliding_window" and value and not slides:
            continue  # no layer would look at it
        if name is not None and not suffix.startswith("rope."):
            # LFM2 has the same number for all layers with attention.
            value = max(value) if isinstance(value, list) and suffix.endswith("_kv") else value
            if not _same(getattr(config, name), value):
                setattr(config, name, value)
            handled.add(suffix)
    width = _width(config)
    if values.get("attention.key_length") == width:
        handled.add("attention.key_length")
    if math.isclose(values.get("attention.scale", 0), width**-0.5, rel_tol=1e-5):
        handled.add("attention.scale")
    # Positions without a table, and key-value heads that are one or all, show in shapes.
    if not hasattr(defaults, "max_position_embeddings"):
        handled.add("context_length")
    if not hasattr(defaults, "num_key_value_heads"):
        handled.add("attention.head_count_kv")
    if config.model_type == "bloom" and values.get("attention.max_alibi_bias") == 8:
        handled.add("attention.max_alibi_bias")
    if config.model_type == "mistral" and "attention.sliding_window" not in values:
        config.sliding_window = None
    # The largest Gemma 2 and 3 have another scale, which no key shows (llama.cpp goes by the number of layers).
    if (config.model_type, config.num_hidden_layers) in (("gemma2", 46), ("gemma3_text", 62)):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if isinstance(pattern := values.get("attention.sliding_window_pattern"), list) and kinds:
        types = ("full_attention", "sliding_attention")
        config.layer_types = [types[bool(is_sliding)] for is_sliding in pattern]
        handled.add("attention.sliding_window_pattern")
    return handled


def _set_positions(
    values: Mapping[str, Any], config: Any, tensors: Mapping[str, np.ndarray]
) -> set[str]:
    """Set rotary positions and their scaling; returns the handled keys."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return set()
    whole = parameters.get("full_attention", parameters)
    handled = {"rope.scaling.original_context_length"}  # for scaling set below, if any
    for suffix, part in (("", whole), ("_swa", parameters.get("sliding_attention"))):
        base, dimensions = values.get(f"rope.freq_base{suffix}"), f"rope.dimension_count{suffix}"
        if base is not None and part is not None:
            handled.add(f"rope.freq_base{suffix}")
            if not _same(part["rope_theta"], base):
                part["rope_theta"] = base
        if dimensions in values and part is not None:
            width = config.head_dim if suffix else _width(config)
            share = values[dimensions] / width
            rotated = share == 1 or part.get("rope_type") == "proportional"
            if not rotated and "partial_rotary_factor" in part:
                part["partial_rotary_factor"], rotated = share, True
                if hasattr(type(config)(), "partial_rotary_factor"):
                    config.partial_rotary_factor = share
            handled |= {dimensions} if rotated else set()
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear"))
    kind = values.get("rope.scaling.type", "linear" if factor not in (None, 0, 1) else "none")
    if LONG in tensors and SHORT in tensors:
        length = config.max_position_embeddings
        original = values.get("rope.scaling.original_context_length", length)
        own = {"rope_type": "longrope", "factor": float(length / original)}
        own["original_max_position_embeddings"] = original
        own["long_factor"], own["short_factor"] = (tensors[name].tolist() for name in (LONG, SHORT))
        if "rope.scaling.attn_factor" in values:
            own["attention_factor"] = values["rope.scaling.attn_factor"]
        handled |= {"rope.scaling.attn_factor", *(["rope.scaling.type"] * (kind == "longrope"))}
    elif FACTORS in tensors and whole.get("rope_type") != "proportional":
        own = _as_llama3(tensors[FACTORS], whole["rope_theta"])
    elif kind == "linear" and factor:
        own = {"rope_type": "linear", "factor": factor}
        handled |= {"rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"}
    elif kind == "yarn" and factor:
        own = {"rope_type": "yarn", "factor": factor}
        own |= {name: values[suffix] for suffix, name in _YARN.items() if suffix in values}
        handled |= {"rope.scaling.type", "rope.scaling.factor", *_YARN}
    else:
        return handled
    unscaled = ("rope_theta", "partial_rotary_factor", "truncate")
    own |= {name: whole[name] for name in unscaled if name in whole}
    whole.clear()
    whole.update(own)
    return handled


def _as_llama3(factors: np.ndarray, base: float) -> dict[str, Any]:
    """Parameters of Llama 3's scaling that divide frequencies by these factors; a ValueError if none fit.

    Only the quotients of the original length by two others matter: Llama 3's are tried, then solved for.
    """
    factors = np.asarray(factors, dtype=np.float64)
    lengths = 2 * math.pi * base ** (np.arange(len(factors)) / len(factors))
    most = float(factors.max())
    if most == 1:
        return {"rope_type": "default"}
    share = (1 / factors - 1 / most) / (1 - 1 / most)
    inner = (share > 1e-6) & (share < 1 - 1e-6)
    likely = [*(2.0 ** np.arange(4, 22)), *(lengths * (1 + 3 * share))[inner]]
    tried = [(length, 1.0, 4.0) for length in likely]
    if inner.sum() > 1:  # the share is linear in the inverse of a wavelength
        slope, start = np.polyfit(1 / lengths[inner], share[inner], 1)
        tried.append((float(-slope / start), 1.0, float(1 - 1 / start)))
    if not inner.any():
        first = lengths[factors == most][0]
        tried.append((first, 1.0, first / max(lengths[factors == 1], default=first / 4)))
    for original, low, high in tried:
        smooth = np.clip((original / lengths - low) / (high - low), 0, 1)
        if np.allclose(1 / ((1 - smooth) / most + smooth), factors, rtol=1e-4):
            length = float(original) if original % 1 else int(original)
            return {
                "rope_type": "llama3",
                "factor": most,
                "low_freq_factor": low,
                "high_freq_factor": float(high),
                "original_max_position_embeddings": length,
            }
    raise ValueError(f"{FACTORS} holds a scaling of positions that is not Llama 3's")


def _width(config: Any) -> int:
    """The width of a head in layers that see all tokens."""
    names = ("global_head_dim", "head_dim", "d_kv")
    known = next(filter(None, (getattr(config, name, None) for name in names)), None)
    return int(known or config.hidden_size // getattr(config, "num_attention_heads", 1))


def _same(own: Any, other: Any) -> bool:
    numbers = isinstance(own, int | float) and isinstance(other, int | float)
    return bool(np.float32(own) == np.float32(other)) if numbers else bool(own == other)


# Parts of a converted model's address: to be raised with any change of the written files.
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
_WRAPPERS = re.compile(r"^encoder\.(?:encoder\.)?(?:(block\.\d+\.)module\.)?")


def convert_gguf(source: Path, target: Path) -> None:
    """Write a GGUF file's model, de-quantized to bf16, and its tokenizer into the directory ``target``.

    The tokenizer adds the begin and end tokens that llama.cpp adds (``_added``): transformers does not read these flags.

    Raises:
        InputError: transformers cannot read the file, or would build another model (``settle``).
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
            settle(header, config)
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
            # A missing bias, or norm of Gemma's, means zeros; any other missing weight would be random.
            weights = model.state_dict()
            loading["missing_keys"] = [
                name for name in loading["missing_keys"] if weights[name].count_nonzero()
            ]
            refuse_missing(loading, str(source))
            family = header.fields["general.architecture"].contents()
            processor = TENSOR_PROCESSORS.get(family, TensorProcessor)
            used = get_gguf_hf_weights_map(model, processor(config=config.to_dict()))
            known = {name.removesuffix(".weight") for name in (*used, FACTORS, LONG, SHORT)}
            names = [tensor.name for tensor in header.tensors]
            unused = [name for name in names if name.removesuffix(".weight") not in known]
            if unused:
                reason = f"{len(unused)} of its tensors would not be used, {min(unused)} first"
                raise ValueError(reason)
            added = _added(header)
            # The tokenizer's file records these flags, and is part of the digest that names stored reads.
            tokenizer = AutoTokenizer.from_pretrained(
                source.parent, trust_remote_code=False, **file, **added
            )
        if lost := [flag for flag, adds in added.items() if getattr(tokenizer, flag) != adds]:
            raise ValueError(f"{lost[0]} holds, but the header names no such token")
    except InputError:
        raise
    except Exception as error:  # on a damaged file the libraries may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        problem = f"cannot be converted ({reason})"
        remedy = "use a model that transformers reads"
        raise InputError(problem, remedy, "model.unconvertible", path=source) from None
    finally:
        logging.set_verbosity(verbosity)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


@contextlib.contextmanager
def _parsed_once(source: Path) -> Iterator[GGUFReader]:
    """Make transformers parse a header once, not thrice, 2 s each, and map tensor names once, not by module."""
    import gguf

    parse = gguf.GGUFReader
    header = parse(source)

    def shared(path: Any, *arguments: Any, **options: Any) -> GGUFReader:
        return header if Path(path) == source else parse(path, *arguments, **options)

    # transformers takes both from the package at each call.
    names = functools.cache(gguf.get_tensor_name_map)
    with patch.object(gguf, "GGUFReader", shared), patch.object(gguf, "get_tensor_name_map", names):
        yield header


def _added(header: GGUFReader) -> dict[str, bool]:
    """Whether a GGUF file's tokenizer adds tokens to a text: by the header's flags, else by llama.cpp's default.

    Source: ``llama_vocab::impl::load`` in llama.cpp's src/llama-vocab.cpp (commit 00ad355), for the kinds of
    tokenizer that transformers reads from GGUF files.
    """
    keys = ("model", "pre", "add_bos_token", "add_eos_token")
    fields = ((key, header.get_field(f"tokenizer.ggml.{key}")) for key in keys)
    values = {key: field.contents() for key, field in fields if field is not None}
    kind, pre = values.get("model"), values.get("pre")
    added = {
        "add_bos_token": kind == "llama" or (kind == "gpt2" and pre in _BEGUN),
        "add_eos_token": kind == "t5",
    }
    for flag in added:
        if (value := values.get(flag)) is not None:
            if not isinstance(value, bool):
                raise TypeError(f"{flag} is {value!r}")
            added[flag] = value
    # Gemma 4's files were published with a flag that is wrong.
    added["add_bos_token"] |= kind == "gemma4" or (kind == "gpt2" and pre == "gemma4")
    return added


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that a T5 checkpoint's conversion depends on; empty if no conversion is needed.

    Pickled weights without safetensors, and safetensors with a wrapped encoder, are converted.
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

    Pickles are read with ``weights_only``: tensors and nothing else, no code is run. Weights keep their precision;
    embeddings that T5 ties are written once.

    A checkpoint of wrapped weights with a position bias in the decoder's cross-attention keeps it, as it keeps inputs
    without an end token: the model becomes ``engine.reading.models.t5.FidT5``. Others are read as by transformers.

    Raises:
        InputError: the files hold more than tensors, the weights do not fit config.json, or there is no tokenizer.
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
            "model.tokenizer",
            path=source,
        )
    stored: dict[str, torch.Tensor] = {}
    for file in _weight_files(source):
        stored |= plain_tensors(file, "cpu")  # memory-mapped if the format allows
    state = {_WRAPPERS.sub(r"encoder.\1", name): tensor for name, tensor in stored.items()}
    wrapped = state.keys() != stored.keys()
    biased = wrapped and CROSS_BIAS in state and config["model_type"] == "t5"
    if not biased:
        state.pop(CROSS_BIAS, None)
    config["model_type"] = BIASED if biased else config["model_type"]
    model, tokenizer = _empty_model(source, config), load_tokenizer(source)
    tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if config.get("tie_word_embeddings", config["model_type"] != "mt5"):
        tied.append("lm_head.weight")
    _refuse_other_weights(source, state, model.state_dict(), tied)
    shared = state["shared.weight"]
    for name in tied:
        copy = state.pop(name, shared)
        if copy.data_ptr() != shared.data_ptr() and not torch.equal(copy, shared):
            problem = f"{name} is not the shared embeddings, which its config.json ties it to"
            remedy = "give the checkpoint that its config.json belongs to"
            raise InputError(problem, remedy, "model.untied", path=source)
    if len(tokenizer) > (rows := len(shared)):
        problem = f"the tokenizer has {len(tokenizer)} tokens and the model {rows}"
        remedy = "put the tokenizer that the model was trained with in the directory"
        raise InputError(problem, remedy, "model.vocabulary", path=source)
    with torch.inference_mode():
        contiguous = {name: state[name].contiguous() for name in sorted(state)}
    save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    config["architectures"] = [type(model).__name__]
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("generation_config.json", *(() if biased else _TOKENIZER)):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if biased:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content["post_processor"] = None
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(content)),
            eos_token=tokenizer.eos_token,
            pad_token=tokenizer.pad_token,
            unk_token=tokenizer.unk_token,
        ).save_pretrained(target)


def _weight_files(source: Path) -> list[Path]:
    if stored := sorted(source.glob("*.safetensors")):
        return stored
    if not (index := source / _PICKLE_INDEX).is_file():
        return [source / _PICKLE]
    try:
        names = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"is not an index of weights ({error})", "fetch it again", "model.index", path=index
        ) from None
    for name in names:
        if Path(name).name != name or not (source / name).is_file():
            raise InputError(
                f"names {name!r}, which is not there", "fetch it again", "model.file", path=index
            )
    return [source / name for name in names]


def _empty_model(source: Path, config: dict[str, Any]) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from engine.reading.models import t5  # noqa: F401 (makes its model type known)

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(
                AutoConfig.for_model(**config), trust_remote_code=False
            )
            return model
    except Exception as error:  # the configuration or a layer refuses a value
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        problem = f"describes no model ({reason})"
        remedy = "fetch it again"
        raise InputError(problem, remedy, "model.empty", path=source / "config.json") from None


def _refuse_other_weights(
    source: Path,
    state: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    tied: Sequence[str],
) -> None:
    common = state.keys() & expected.keys()
    for names, verb in (
        (expected.keys() - state.keys() - set(tied), "lacks"),
        (state.keys() - expected.keys(), "has, and its config.json does not describe,"),
        (
            {name for name in common if state[name].shape != expected[name].shape},
            "has in other shapes than its config.json describes",
        ),
    ):
        if names:
            problem = f"{verb} {len(names)} weights, {min(names)} first"
            remedy = "give a complete checkpoint with its own config.json"
            raise InputError(problem, remedy, "model.weights", path=source)
