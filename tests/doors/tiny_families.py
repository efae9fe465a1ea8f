"""Tiny random models of any family that transformers has, whose outputs depend on all of the prompt."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.reading.models.tiny_models import save_tokenizer

# Larger ones are not tiny: families whose parts for pictures or sound do not follow these settings.
MOST = 2e7
_WIDTH = "hidden_size n_embd d_model embed_dim dim n_embed embedding_size word_embed_proj_dim attention_hidden_size lru_width"
_INNER = "intermediate_size ffn_dim n_inner inner_dim decoder_ffn_dim d_inner mamba_d_ssm"
_LAYERS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers num_blocks"
)
_HEADS = "num_attention_heads n_head n_heads num_heads decoder_attention_heads"
_GROUPS = "num_key_value_heads num_kv_heads kv_n_heads"
_EXPERTS = "num_experts num_local_experts n_routed_experts moe_num_experts"
_CHOSEN = "num_experts_per_tok num_experts_per_token moe_k"
_POSITIONS = (
    "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions context_length"
)
_SIXTEEN = "head_dim attention_head_dim mamba_d_head mamba_headdim mamba_head_dim state_size ssm_state_size mamba_d_state linear_key_head_dim linear_value_head_dim chunk_size mamba_chunk_size v_head_dim kv_lora_rank moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size sliding_window attention_window_size q_lora_rank"
_EIGHT = "mamba_n_heads mamba_num_heads qk_rope_head_dim qk_nope_head_dim rotary_dim index_topk index_head_dim"
_TWO = "n_mamba_heads linear_num_key_heads index_n_heads"
_ONE = "n_groups mamba_ngroups mamba_n_groups n_group topk_group num_expert_group first_k_dense_replace num_dense_layers"
_SIZES = {
    **dict.fromkeys(_WIDTH.split(), 64),
    **dict.fromkeys(_INNER.split(), 128),
    **dict.fromkeys((_LAYERS + " " + _HEADS + " " + _EXPERTS).split(), 4),
    **dict.fromkeys((_GROUPS + " " + _CHOSEN).split(), 2),
    **dict.fromkeys(_POSITIONS.split(), 256),
    **dict.fromkeys(_SIXTEEN.split(), 16),
    **dict.fromkeys(_EIGHT.split(), 8),
    **dict.fromkeys(_TWO.split(), 2),
    **dict.fromkeys(_ONE.split(), 1),
    **{"vocab_size": 100, "linear_num_value_heads": 4, "time_step_rank": 4, "mamba_dt_rank": 4},
    **{"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
}
_OWN: dict[str, dict[str, Any]] = {
    "mpt": {"max_seq_len": 1024},
    "roberta": {"is_decoder": True},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "recurrent", "attention"], "num_hidden_layers": 3},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "attention_hidden_size": 128, "attention_head_dim": 32},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}  # fmt: skip


def save_family(kind: str, directory: Path) -> PreTrainedModel:
    """A model of a family as a directory, with a tokenizer of 100 words."""
    family = CONFIG_MAPPING[kind]
    defaults = family().to_dict()
    known = {*defaults, *family.attribute_map}
    sizes = {name: value for name, value in _SIZES.items() if name in known}
    if "kv_lora_rank" in known:  # attention with latent keys has one for each head
        sizes |= {"num_key_value_heads": 4}
    sizes |= _OWN.get(kind, {})
    for name in {"layer_types", "mlp_layer_types"} & known - sizes.keys():
        if defaults[name]:  # one layer of each kind, in turn
            sizes[name] = (list(dict.fromkeys(defaults[name])) * 4)[:4]
    config = family(**sizes)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data = (weight.data * (4 if weight.dim() > 1 else 1)).to(torch.bfloat16).float()
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return model
