"""Random models of the T5 family, small but on the kernels of large ones, as directories."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LlamaConfig,
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

KINDS = {
    "t5": (T5Config, T5ForConditionalGeneration, {}),
    "flan-t5": (
        T5Config,
        T5ForConditionalGeneration,
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": (MT5Config, MT5ForConditionalGeneration, {"feed_forward_proj": "gated-gelu"}),
    "umt5": (UMT5Config, UMT5ForConditionalGeneration, {"feed_forward_proj": "gated-gelu"}),
}


def save_tokenizer(directory: Path) -> None:
    words = ["<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(97))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)


def save_model(kind: str, directory: Path, factor: float = 3.0) -> None:
    """A model with 2 encoder and 3 decoder layers; Flan-T5's with an output layer of its own.

    Weights of the usual size (factor 1) make a random model give one answer to everything. Three
    times as large they give many answers, and let small differences grow.
    """
    config_type, model_type, options = KINDS[kind]
    torch.manual_seed(5)
    config = config_type(
        vocab_size=100,
        d_model=64,
        d_kv=64,
        num_heads=4,
        d_ff=96,
        num_layers=2,
        num_decoder_layers=3,
        decoder_start_token_id=0,
        initializer_factor=factor,
        **options,
    )
    model = model_type(config)
    for module in model.modules():
        if getattr(module, "has_relative_attention_bias", False):
            torch.nn.init.normal_(module.relative_attention_bias.weight, std=1.0)
    if kind == "flan-t5":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(100, 64))
    model.save_pretrained(directory)


def save_llama(directory: Path, tokenizer: str) -> None:
    """A decoder-only model whose four heads, of two groups, two processes can share; with another's tokenizer."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        bos_token_id=2,
        eos_token_id=2,
        pad_token_id=2,
    )
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():  # larger weights: outputs that depend on the prompt
        weight.data *= 3
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)


def generate(directory: Path, reads, max_new_tokens: int) -> list[str]:
    """What transformers' own generation gives from each read's inputs, encoded as one padded batch."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype="float32").eval()
    outputs = []
    for inputs in reads:
        batch = tokenizer(inputs, return_tensors="pt", padding=True)
        with torch.inference_mode():
            states = model.get_encoder()(**batch).last_hidden_state
            tokens = model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states.flatten(0, 1)[None]),
                attention_mask=batch["attention_mask"].flatten()[None],
                max_new_tokens=max_new_tokens,
                do_sample=False,
                num_beams=1,
                use_cache=False,  # its cache has as many layers as the encoder, here too few
            )
        outputs.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return outputs
