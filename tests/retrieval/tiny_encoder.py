"""Randomly initialised encoders of two layers with word-level tokenizers, saved as sentence-transformers does."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

WORDS = 200
# As the files of sentence-transformers name them.
POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
POOLINGS += ("weightedmean_tokens", "lasttoken")
PICKLE = "pytorch_model.bin"


def write_json(folder, name, **content):
    (folder / f"{name}.json").write_text(json.dumps(content))


def configure(folder, **content):
    """What sentence-transformers keeps of a model beside its modules."""
    write_json(folder, "config_sentence_transformers", **content)


def save_tiny_encoder(directory, *, seed=7, pooling="mean", normalize=True):
    """The directory, made: 32 dimensions, words w0 … w199, texts of 64 tokens at most."""
    directory = Path(directory)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(WORDS))]
    fast = _tokenizer(
        words, "[CLS] $A [SEP]", pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", model_max_length=64,
    )  # fmt: skip
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(directory)
    fast.save_pretrained(directory)
    _save_modules(directory, pooling=pooling, normalize=normalize)
    return directory


def save_tiny_bge_m3(directory, words, *, seed=7, pooling="cls"):
    """The files of BAAI/bge-m3 with made weights: XLM-R in ``pytorch_model.bin``, CLS pooling, normalised, no prompts.

    Args:
        words: the vocabulary; texts are split at white space.
    """
    directory = Path(directory)
    directory.mkdir(parents=True)
    listed = ["<s>", "<pad>", "</s>", "<unk>", *words]
    fast = _tokenizer(
        listed, "<s> $A </s>", bos_token="<s>", pad_token="<pad>", eos_token="</s>",
        unk_token="<unk>", cls_token="<s>", sep_token="</s>", model_max_length=8192,
    )  # fmt: skip
    torch.manual_seed(seed)
    # Positions start after the padding token's id: 8194 of them are 8192 tokens.
    config = XLMRobertaConfig(
        vocab_size=len(listed), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=8194, initializer_range=0.5,
        type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    model = XLMRobertaModel(config)
    config.architectures = ["XLMRobertaModel"]
    config.save_pretrained(directory)
    torch.save(model.state_dict(), directory / PICKLE)
    torch.save({"weight": torch.zeros(1, 32)}, directory / "sparse_linear.pt")
    fast.save_pretrained(directory)
    _save_modules(directory, pooling=pooling, normalize=True)
    write_json(directory, "sentence_bert_config", max_seq_length=8192, do_lower_case=False)
    versions = {"sentence_transformers": "2.2.2", "transformers": "4.33.0", "pytorch": "2.1.2"}
    configure(directory, __version__=versions)
    return directory


def save_tiny_qwen3(directory, *, padding_side="left", size=32, seed=7):
    """As Qwen3-Embedding is published: decoder-only, the last token's vector, a text to end each text, prompts."""
    directory = Path(directory)
    words = ["<|endoftext|>", "[UNK]", *(f"w{i}" for i in range(WORDS))]
    fast = _tokenizer(
        words, "$A <|endoftext|>", pad_token="<|endoftext|>", eos_token="<|endoftext|>",
        unk_token="[UNK]", model_max_length=64, padding_side=padding_side,
    )  # fmt: skip
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=size, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=64,
        initializer_range=0.5,
    )  # fmt: skip
    Qwen3Model(config).save_pretrained(directory)
    fast.save_pretrained(directory)
    _save_modules(directory, pooling="lasttoken", normalize=True)
    prompts = {"query": "w1 w2 Query: ", "document": ""}
    configure(directory, prompts=prompts)
    return directory


def _tokenizer(words, template, **settings):
    """Of words, which are numbered in their order; around each text stands what the template says."""
    unknown = settings["unk_token"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(token, words.index(token)) for token in template.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)


def add_dense(directory, width, *, activation, bias, pickled=False, seed=7):
    """Another ``Dense`` module after those that a model has; a normalization stays the last."""
    torch.manual_seed(seed)
    modules = json.loads((directory / "modules.json").read_text())
    (last,) = [m for m in modules if m["type"].endswith("Normalize")] or [None]
    modules = [m for m in modules if m is not last]
    folder = directory / (name := f"{len(modules)}_Dense")
    folder.mkdir()
    given = 32
    for module in modules[2:]:
        given = json.loads((directory / module["path"] / "config.json").read_text())["out_features"]
    config = {
        "in_features": given, "out_features": width, "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weights = torch.nn.Linear(given, width, bias=bias).state_dict()
    weights = {f"linear.{key}": tensor for key, tensor in weights.items()}
    if pickled:
        torch.save(weights, folder / PICKLE)
    else:
        save_file(weights, folder / "model.safetensors")
    modules.append({"path": name, "type": "sentence_transformers.models.Dense"})
    modules = [*modules, *([last] if last else [])]
    listed = [module | {"idx": i, "name": str(i)} for i, module in enumerate(modules)]
    (directory / "modules.json").write_text(json.dumps(listed))


def _save_modules(directory, *, pooling, normalize):
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules += [("2_Normalize", "Normalize")] * normalize
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    chosen = (pooling, f"{pooling}_token", f"{pooling}_tokens")
    flags = {f"pooling_mode_{mode}": mode in chosen for mode in POOLINGS}
    write_json(directory, "1_Pooling/config", word_embedding_dimension=32, **flags)
    write_json(directory, "sentence_bert_config", max_seq_length=64)
