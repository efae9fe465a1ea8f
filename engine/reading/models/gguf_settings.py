"""What a GGUF file's header says of its model, put into the configuration that transformers makes of it.

transformers passes over the keys that it has no name for, with the scaling of rotary positions among them, and over
tensors of other names. Here every key below the architecture's name is a setting, says what the shapes of weights
say too, or has a value that changes nothing; else it is refused by name.

Source: gguf/constants.py, and convert_hf_to_gguf.py in llama.cpp, which writes these keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGUFReader

# Keys that are no hyperparameters: of tokenizers (transformers and ``conversion`` read them), and about the file.
_BESIDE = ("GGUF.", "general.", "tokenizer.", "quantize.", "imatrix.", "mradermacher.")
# A wrong one of these gives weights of other shapes or other names, which are refused.
_SHAPES = frozenset(
    "vocab_size embedding_length block_count feed_forward_length expert_count expert_shared_count "
    "expert_feed_forward_length expert_shared_feed_forward_length leading_dense_block_count tensor_data_layout "
    "attention.value_length attention.value_length_swa attention.relative_buckets_count ssm.conv_kernel "
    "ssm.inner_size ssm.state_size ssm.time_step_rank shortconv.l_cache rope.scaling.finetuned".split()
)
_EPSILON = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
# What configurations call a setting; the first name that the model's class has is meant.
_NAMES = {
    "context_length": ("max_position_embeddings",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("global_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.layer_norm_rms_epsilon": _EPSILON,
    "attention.layer_norm_epsilon": _EPSILON,
    "attention.sliding_window": ("sliding_window",),
    "attention.clamp_kqv": ("clip_qkv",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "residual_scale": ("residual_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "use_parallel_residual": ("use_parallel_residual",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
}
# Values that change nothing where the class of the model has no such setting.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.head_count": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.sliding_window": (0,),
    "attention.shared_kv_layers": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_used_count": (0,),
    "expert_gating_func": (0, 1),
    "nextn_predict_layers": (0,),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.factor": (0, 1),
    "rope.scaling.type": ("none",),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "ssm.dt_b_c_rms": (False,),
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
    family = header.get_field("general.architecture").contents()
    said: dict[str, Any] = {}
    for key, field in header.fields.items():
        if key.startswith(f"{family}."):
            said[key.removeprefix(f"{family}.")] = field.contents()
        elif not (key.startswith(_BESIDE) or (key.startswith("split.") and field.contents() <= 1)):
            if key != "split.tensors.count":
                raise ValueError(f"{key} of its header is not known")
    tensors = {t.name: t.data for t in header.tensors if t.name in (FACTORS, LONG, SHORT)}
    done = _set_plain(said, config) | _set_positions(said, config, tensors)
    for suffix, value in said.items():
        same = any(_same(value, neutral) for neutral in _NEUTRAL.get(suffix, ()))
        if suffix not in done | _SHAPES and not same:
            raise ValueError(f"{suffix} of its header is {value!r}, which the model would not have")


def _set_plain(said: Mapping[str, Any], config: Any) -> set[str]:
    """Set all but rotary positions; the keys that are done with."""
    defaults, done = type(config)(), set[str]()
    for suffix, names in _NAMES.items():
        name = next((name for name in names if hasattr(defaults, name)), None)
        if suffix in said and name is not None:
            value = said[suffix]
            # LFM2 has one number for all of its layers with attention.
            _set(config, name, max(value) if isinstance(value, list) and "kv" in name else value)
            done.add(suffix)
    kinds = getattr(config, "layer_types", None)
    if said.get("attention.sliding_window") and kinds and "sliding_attention" not in kinds:
        done.discard("attention.sliding_window")  # no layer would look at it
    width = _width(config)
    if "attention.key_length" in said and said["attention.key_length"] == width:
        done.add("attention.key_length")
    if "attention.scale" in said and math.isclose(said["attention.scale"], width**-0.5, rel_tol=1e-5):
        done.add("attention.scale")
    if not hasattr(defaults, "max_position_embeddings"):
        done.add("context_length")
    if not hasattr(defaults, "num_key_value_heads"):  # one for all, or one for each: shapes tell
        done.add("attention.head_count_kv")
    if config.model_type == "bloom" and said.get("attention.max_alibi_bias") == 8:
        done.add("attention.max_alibi_bias")
    if config.model_type == "mistral" and "attention.sliding_window" not in said:
        config.sliding_window = None
    # Of the largest Gemma 2 and 3 alone the scale is another one, and no key says so (llama.cpp goes by the layers).
    if (config.model_type, config.num_hidden_layers) in (("gemma2", 46), ("gemma3_text", 62)):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    pattern = said.get("attention.sliding_window_pattern")
    if pattern is not None and hasattr(defaults, "layer_types"):
        if not isinstance(pattern, list):
            pattern = [(layer + 1) % pattern != 0 for layer in range(config.num_hidden_layers)]
        kinds = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
        _set(config, "layer_types", kinds)
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
    if LONG in tensors or SHORT in tensors:
        own = {"rope_type": "longrope", "factor": _stretch(said, config)}
        for name, tensor in (("long_factor", LONG), ("short_factor", SHORT)):
            own[name] = [float(value) for value in tensors[tensor]]
        for suffix, name in (
            ("rope.scaling.attn_factor", "attention_factor"),
            ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ):
            if suffix in said:
                own[name] = said[suffix]
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
    """The parameters of Llama 3's scaling by which frequencies are divided by these factors.

    The scaling depends on the quotients of the original length by two others alone. It is looked for with those of
    Llama 3, then solved for.

    Raises:
        ValueError: it does not give these factors.
    """
    factors = np.asarray(factors, dtype=np.float64)
    lengths = 2 * math.pi * base ** (np.arange(len(factors)) / len(factors))
    most = float(factors.max())
    if most == 1:
        return {"rope_type": "default"}
    share = (1 / factors - 1 / most) / (1 - 1 / most)
    inner = (share > 1e-6) & (share < 1 - 1e-6)
    tried = [(2.0**power, 1.0, 4.0) for power in range(4, 22)]
    tried += [(length * (1 + 3 * part), 1.0, 4.0) for length, part in zip(lengths[inner], share[inner], strict=True)]
    if inner.sum() > 1:  # the share is linear in the inverse of a wavelength
        slope, start = np.polyfit(1 / lengths[inner], share[inner], 1)
        tried.append((float(-slope / start), 1.0, float(1 - 1 / start)))
    if not inner.any():
        first = lengths[factors == most][0]
        tried.append((first, 1.0, first / max(lengths[factors == 1], default=first / 4)))
    for original, low, high in tried:
        smooth = np.clip((original / lengths - low) / (high - low), 0, 1)
        if np.allclose(1 / ((1 - smooth) / most + smooth), factors, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": most,
                "low_freq_factor": low,
                "high_freq_factor": float(high),
                "original_max_position_embeddings": float(original) if original % 1 else int(original),
            }
    raise ValueError(f"{FACTORS} holds a scaling of positions that is not Llama 3's")


def _stretch(said: Mapping[str, Any], config: Any) -> float:
    """By how much a context is longer than the one that the model was made with."""
    whole = config.max_position_embeddings
    return float(whole / said.get("rope.scaling.original_context_length", whole))


def refuse_unused(names: Iterable[str], used: Iterable[str]) -> None:
    """Refuse tensors that no weight of the model was made from.

    Raises:
        ValueError: there are some.
    """
    known = {name.removesuffix(".weight") for name in (*used, FACTORS, LONG, SHORT)}
    unused = sorted(name for name in names if name.removesuffix(".weight") not in known)
    if unused:
        raise ValueError(f"{len(unused)} of its tensors would not be used, {unused[0]} first")


def _width(config: Any) -> int:
    """Numbers of a head of the layers that see all tokens."""
    names = ("global_head_dim", "head_dim", "d_kv")
    known = [value for name in names if (value := getattr(config, name, None))]
    return int(known[0] if known else config.hidden_size // getattr(config, "num_attention_heads", 1))


def _set(config: Any, name: str, value: Any) -> None:
    if not _same(getattr(config, name), value):
        setattr(config, name, value)


def _same(one: Any, other: Any) -> bool:
    """Whether values are the same in the precision of a header."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return bool(np.float32(one) == np.float32(other)) if numbers else bool(one == other)
