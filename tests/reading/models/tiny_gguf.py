"""GGUF files of a few kilobytes: a random model behind a header that says what a test wants it to say."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
# As Llama 2's and Mistral's, with the begin token in the text.
CHAT = "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]"
# Best first: a piece's score says how early its parts are merged.
_PIECES = ["he", "ll", "hell", "hello", "▁hello", "wo", "wor"]


def pieces() -> list[str]:
    """A SentencePiece vocabulary: control tokens, bytes, characters, and a few longer pieces."""
    characters = [*map(chr, range(33, 127)), "▁"]
    return [UNKNOWN, BEGIN, END, *(f"<0x{byte:02X}>" for byte in range(256)), *characters, *_PIECES]


def byte_pairs() -> tuple[list[str], list[str]]:
    """A byte-level vocabulary and its merges."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "w o"]
    alphabet = sorted(ByteLevel.alphabet())
    return [UNKNOWN, BEGIN, END, *alphabet, *(m.replace(" ", "") for m in merges)], merges


def save_gguf(
    path: Path,
    *,
    model: str = "llama",
    pre: str = "",
    family: str = "llama",
    keys: Mapping[str, object] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    **said: object,
) -> Path:
    """Write a file of one layer.

    Args:
        model, pre: ``tokenizer.ggml.model`` and ``tokenizer.ggml.pre``; no ``pre`` where it is empty.
        family: the kind of model.
        keys, tensors: further ones, by their whole names.
        said: further keys of the header below ``tokenizer.ggml``; those that are None are left out.
    """
    writer = gguf.GGUFWriter(path, family)
    tokens = pieces() if model == "llama" else byte_pairs()[0]
    kinds: list[gguf.TokenType] = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
    if model == "llama":
        kinds += [gguf.TokenType.BYTE] * 256
        writer.add_token_scores([float(-i) for i in range(len(tokens))])
    else:
        writer.add_token_merges(byte_pairs()[1])
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if pre:
        writer.add_tokenizer_pre(pre)
    header = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | said
    further = {f"tokenizer.ggml.{key}": value for key, value in header.items()} | dict(keys or {})
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in further.items():
        if value is not None:
            add.get(
                type(value), writer.add_array if isinstance(value, list) else writer.add_string
            )(key, value)
    writer.add_chat_template(CHAT)
    _add_model(writer, len(tokens), tied=family.startswith("gemma"))
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_model(
    writer: gguf.GGUFWriter, vocabulary: int, width: int = 32, heads: int = 2, *, tied: bool
) -> None:
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_key_length(width // heads)
    writer.add_value_length(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocabulary)
    random = np.random.default_rng(4)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    norms = ("attn_norm", "ffn_norm")
    shapes = {
        "token_embd": (vocabulary, width),
        **({} if tied else {"output": (vocabulary, width)}),
        "output_norm": (width,),
        **{f"blk.0.{name}": (width, width) for name in square},
        **{f"blk.0.{name}": (width,) for name in norms},
    }
    for name, shape in shapes.items():
        weights = random.normal(size=shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))
