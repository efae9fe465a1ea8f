"""GGUF files begin texts as llama.cpp does, and as the tokenizer that they were made from.

What is expected of headers is what llama.cpp itself gave for these files (its server's /tokenize, a build
of October 2026).
"""

import pytest
import transformers
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer

from engine.errors import InputError
from engine.reading.models import conversion, weights
from engine.reading.models.causal import CausalReader
from engine.reading.prompting.template import read_template
from engine.reading.readers import specify
from tests.reading.models import tiny_gguf
from tests.reading.models.tiny_gguf import BEGIN, END, save_gguf

TEXT = "hello world"
BARE = {"llama": [358, 353, 360, 334, 326], "gpt2": [262, 223, 264, 84, 78, 70]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("header", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_eos_token": True}, [1], [2]),
        ({"family": "qwen2", "model": "gpt2", "pre": "qwen2"}, [], []),
        ({"family": "qwen2", "model": "gpt2", "pre": "qwen2", "add_bos_token": True}, [1], []),
        ({"model": "gpt2", "pre": "llama-bpe"}, [1], []),
        ({"model": "gpt2", "pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"model": "gpt2", "pre": "tekken"}, [1], []),
        ({"model": "gpt2", "pre": "smollm"}, [], []),
        ({"model": "gpt2"}, [], []),
    ],
)
def test_texts_begin_and_end_as_in_llama_cpp(header, before, after, tmp_path):
    path = weights.resolve(str(save_gguf(tmp_path / "m.gguf", **header))).path
    tokens = AutoTokenizer.from_pretrained(path)([TEXT, ""])["input_ids"]
    bare = BARE[header.get("model", "llama")]
    assert tokens == [[*before, *bare, *after], [*before, *after]]


@pytest.mark.parametrize("adds", [True, False])
def test_gemmas_own_tokenizer_begins_texts_as_the_header_says(adds, tmp_path):
    file = save_gguf(tmp_path / "m.gguf", family="gemma2", add_bos_token=adds)
    tokenizer = AutoTokenizer.from_pretrained(weights.resolve(str(file)).path)
    assert type(tokenizer).__name__ == "GemmaTokenizer"
    assert tokenizer(TEXT)["input_ids"][:1] == ([1] if adds else [357])


def test_gemma_4_begins_texts_whatever_the_header_says(tmp_path):
    file = save_gguf(tmp_path / "m.gguf", model="gpt2", pre="gemma4", add_bos_token=False)
    assert AutoTokenizer.from_pretrained(weights.resolve(str(file)).path)("")["input_ids"] == [1]
