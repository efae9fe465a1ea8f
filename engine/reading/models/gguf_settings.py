"""What a GGUF file's header says of its model, put into the configuration that transformers makes of it.

transformers passes over the keys that it has no name for, with the scaling of rotary positions among them, and over
tensors of other names. Here every key below the architecture's name is a setting, says what the shapes of weights
say too, or has a value that changes nothing; else it is refused by name.

Source: gguf/constants.py, and convert_hf_to_gguf.py in llama.cpp, which writes these keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFReader

# Keys that are no hyperparameters: of tokenizers (transformers and ``conversion`` read them), and about the file.
_BESIDE = ("GGUF.", "general.", "tokenizer.", "quantize.", "imatrix.", "mradermacher.")
_WHOLE = (("split.count", 0), ("split.count", 1), ("split.no", 0))
# A wrong one of these gives weights of other shapes or other names, which are refused.
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
# What configurations call a setting, where it is not the last word of its key; the first that a class has is meant.
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
# Keys of YaRN, and the parameters that they are.
_YARN = {
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"


def settle(header: GGUFReader, config: Any) -> None:
    """Put what the header says into a configuration, wherever that says otherwise.

    Raises:
        ValueError: a key or tensor that can neither be put there nor passed over, by its name.
    """
    family = header.fields["general.architecture"].contents()
    said: dict[str, Any] = {}
    for key, field in header.fields.items():
        if key.startswith(f"{family}."):
            said[key.removeprefix(f"{family}.")] = field.contents()
        elif not key.startswith(_BESIDE) and (key, field.contents()) not in _WHOLE:
            raise ValueError(f"{key} of its header is {field.contents()!r}, which is not known")
    tensors = {t.name: t.data for t in header.tensors if t.name in (FACTORS, LONG, SHORT)}
    done = _set_plain(said, config) | _set_positions(said, config, tensors)
    for suffix, value in said.items():
        idle = (0, 1) if _IDLE.fullmatch(suffix) else (_DEFAULTS.get(suffix, math.nan),)
        if not (suffix in done or _SHAPES.fullmatch(suffix) or value in idle):
            raise ValueError(f"{suffix} of its header is {value!r}, which the model would not have")


def _set_plain(said: Mapping[str, Any], config: Any) -> set[str]:
    """Set all but rotary positions; the keys that are done with."""
    defaults, done, kinds = type(config)(), set[str](), getattr(config, "layer_types", None)
    slides = not kinds or "sliding_attention" in kinds
    for suffix, value in said.items():
        names = _NAMES.get(suffix, (suffix.split(".")[-1],))
        name = next((name for name in names if hasattr(defaults, name)), None)
        if suffix == "attention.sliding_window" and value and not slides:
            continue  # no layer would look at it
        if name is not None and not suffix.startswith("rope."):
            # LFM2 has one number for all of its layers with attention.
            value = max(value) if isinstance(value, list) and suffix.endswith("_kv") else value
            if not _same(getattr(config, name), value):
                setattr(config, name, value)
            done.add(suffix)
    width = _width(config)
    if said.get("attention.key_length") == width:
        done.add("attention.key_length")
    if math.isclose(said.get("attention.scale", 0), width**-0.5, rel_tol=1e-5):
        done.add("attention.scale")
    # Positions without a table, and key-value heads that are one or all, show in shapes.
    done |= {"context_length"} if not hasattr(defaults, "max_position_embeddings") else set()
    done |= {"attention.head_count_kv"} if not hasattr(defaults, "num_key_value_heads") else set()
    if config.model_type == "bloom" and said.get("attention.max_alibi_bias") == 8:
        done.add("attention.max_alibi_bias")
    if config.model_type == "mistral" and "attention.sliding_window" not in said:
        config.sliding_window = None
    # Of the largest Gemma 2 and 3 alone the scale is another one, and no key says so (llama.cpp goes by the layers).
    if (config.model_type, config.num_hidden_layers) in (("gemma2", 46), ("gemma3_text", 62)):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if isinstance(pattern := said.get("attention.sliding_window_pattern"), list) and kinds:
        config.layer_types = ["sliding_attention" if one else "full_attention" for one in pattern]
        done.add("attention.sliding_window_pattern")
    return done


def _set_positions(
    said: Mapping[str, Any], config: Any, tensors: Mapping[str, np.ndarray]
) -> set[str]:
    """Set rotary positions and their scaling; the keys that are done with."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return set()
    whole = parameters.get("full_attention", parameters)
    done = {"rope.scaling.original_context_length"}  # of scaling that is set below, if any
    for suffix, part in (("", whole), ("_swa", parameters.get("sliding_attention"))):
        base, dimensions = said.get(f"rope.freq_base{suffix}"), f"rope.dimension_count{suffix}"
        if base is not None and part is not None:
            done.add(f"rope.freq_base{suffix}")
            if not _same(part["rope_theta"], base):
                part["rope_theta"] = base
        if dimensions in said and part is not None:
            width = config.head_dim if suffix else _width(config)
            share = said[dimensions] / width
            rotated = share == 1 or part.get("rope_type") == "proportional"
            if not rotated and "partial_rotary_factor" in part:
                part["partial_rotary_factor"], rotated = share, True
                if hasattr(type(config)(), "partial_rotary_factor"):
                    config.partial_rotary_factor = share
            done |= {dimensions} if rotated else set()
    factor = said.get("rope.scaling.factor", said.get("rope.scale_linear"))
    kind = said.get("rope.scaling.type", "linear" if factor not in (None, 0, 1) else "none")
    if LONG in tensors and SHORT in tensors:
        length = config.max_position_embeddings
        original = said.get("rope.scaling.original_context_length", length)
        own = {"rope_type": "longrope", "factor": float(length / original)}
        own["original_max_position_embeddings"] = original
        own["long_factor"], own["short_factor"] = (tensors[name].tolist() for name in (LONG, SHORT))
        if "rope.scaling.attn_factor" in said:
            own["attention_factor"] = said["rope.scaling.attn_factor"]
        done |= {"rope.scaling.attn_factor", *(["rope.scaling.type"] * (kind == "longrope"))}
    elif FACTORS in tensors and whole.get("rope_type") != "proportional":
        own = _as_llama3(tensors[FACTORS], whole["rope_theta"])
    elif kind == "linear" and factor:
        own = {"rope_type": "linear", "factor": factor}
        done |= {"rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"}
    elif kind == "yarn" and factor:
        own = {"rope_type": "yarn", "factor": factor}
        own |= {name: said[suffix] for suffix, name in _YARN.items() if suffix in said}
        done |= {"rope.scaling.type", "rope.scaling.factor", *_YARN}
    else:
        return done
    kept = ("rope_theta", "partial_rotary_factor", "truncate")
    own |= {name: whole[name] for name in kept if name in whole}
    whole.clear()
    whole.update(own)
    return done


def _as_llama3(factors: np.ndarray, base: float) -> dict[str, Any]:
    """The parameters of Llama 3's scaling by which frequencies are divided by these factors; a ValueError where there are none.

    It depends on the quotients of the original length by two others alone: those of Llama 3 are tried, then solved for.
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


def refuse_unused(names: Iterable[str], used: Iterable[str]) -> None:
    """Refuse, by a ValueError, tensors that no weight of the model was made from."""
    known = {name.removesuffix(".weight") for name in (*used, FACTORS, LONG, SHORT)}
    unused = sorted(name for name in names if name.removesuffix(".weight") not in known)
    if unused:
        raise ValueError(f"{len(unused)} of its tensors would not be used, {unused[0]} first")


def _width(config: Any) -> int:
    """Numbers of a head of the layers that see all tokens."""
    names = ("global_head_dim", "head_dim", "d_kv")
    known = next(filter(None, (getattr(config, name, None) for name in names)), None)
    return int(known or config.hidden_size // getattr(config, "num_attention_heads", 1))


def _same(one: Any, other: Any) -> bool:
    """Whether values are the same in the precision of a header."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return bool(np.float32(one) == np.float32(other)) if numbers else bool(one == other)
