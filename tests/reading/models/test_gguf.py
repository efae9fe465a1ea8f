"""GGUF files begin texts as llama.cpp does, and as the tokenizer that they were made from.

What is expected of headers is what llama.cpp itself gave for these files (its server's /tokenize, a build
of October 2026).
"""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE, generate_merges

from engine.reading.models import attention, conversion, weights
from engine.reading.models.causal import CausalReader
from engine.reading.readers import specify
from tests.expected import refused
from tests.reading.models.tiny_gguf import BEGIN, END, pieces, save_gguf

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


def test_texts_are_those_of_the_tokenizer_that_a_file_was_made_from(tmp_path):
    vocabulary = {piece: i for i, piece in enumerate(pieces())}
    merges = generate_merges(vocabulary, {piece: -float(i) for piece, i in vocabulary.items()})
    own = LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)
    own.save_pretrained(tmp_path / "own")
    own = AutoTokenizer.from_pretrained(tmp_path / "own")
    read = AutoTokenizer.from_pretrained(weights.resolve(str(save_gguf(tmp_path / "m.gguf"))).path)
    for text in ("", TEXT, f"{BEGIN}[INST] hello{END} world", "héllo\n  wor"):
        assert read(text)["input_ids"] == own(text)["input_ids"]
        bare = read(text, add_special_tokens=False)["input_ids"]
        assert bare == own(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "header",
    [
        {"bos_token_id": None},
        {"add_eos_token": True, "eos_token_id": None},
        {"add_bos_token": 1},
    ],
)
def test_headers_that_leave_open_what_is_added_are_refused(header, tmp_path):
    with refused("model.unconvertible"):
        weights.resolve(str(save_gguf(tmp_path / "m.gguf", **header)))


def test_a_conversion_of_an_earlier_version_is_not_used(tmp_path, monkeypatch):
    file = save_gguf(tmp_path / "m.gguf")
    with monkeypatch.context() as earlier:
        earlier.setattr(conversion, "GGUF_VERSION", 1)
        earlier.setattr(
            conversion, "_added", lambda _: {"add_bos_token": False, "add_eos_token": False}
        )
        before = weights.resolve(str(file))
    after = weights.resolve(str(file))
    assert before.path != after.path
    assert before.digest != after.digest  # so that its reads are read again
    assert AutoTokenizer.from_pretrained(after.path)("")["input_ids"] == [1]


def test_where_nothing_is_added_files_and_so_the_keys_of_reads_stay_as_they_were(tmp_path):
    file = save_gguf(tmp_path / "m.gguf", add_bos_token=False)
    path = weights.resolve(str(file)).path
    plain = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name, local_files_only=True)
    plain.save_pretrained(tmp_path / "plain")
    for name in ("tokenizer.json", TOKENIZER_CONFIG_FILE, "chat_template.jinja"):
        assert (path / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name


def test_a_file_is_parsed_once_for_its_configuration_weights_and_tokenizer(tmp_path, monkeypatch):
    parsed = []

    class JobSizes(gguf.GGUFReader):
        def __init__(self, path, *arguments):
            parsed.append(path)
            super().__init__(path, *arguments)

    name_map, mapped = gguf.get_tensor_name_map, []
    monkeypatch.setattr(gguf, "GGUFReader", JobSizes)
    monkeypatch.setattr(gguf, "get_tensor_name_map", lambda *a: mapped.append(a) or name_map(*a))
    file = save_gguf(tmp_path / "m.gguf")
    conversion.convert_gguf(file, tmp_path)
    assert parsed == [file]
    assert len(mapped) == 1  # of all modules of the model
    assert gguf.GGUFReader is JobSizes


def rope(**parameters):
    return {"rope_theta": 10000.0, **parameters}


def llama3(original, high=4.0):
    return rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )


YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LONG = [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
SCALING = "llama.rope.scaling"


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({}, rope(rope_type="default")),
        ({f"{SCALING}.type": "none", f"{SCALING}.factor": 1.0}, rope(rope_type="default")),
        ({"llama.rope.freq_base": 500000.0}, {"rope_theta": 500000.0, "rope_type": "default"}),
        ({f"{SCALING}.type": "linear", f"{SCALING}.factor": 4.0}, rope(rope_type="linear", factor=4.0)),
        ({"llama.rope.scale_linear": 4.0}, rope(rope_type="linear", factor=4.0)),
        (
            {
                f"{SCALING}.type": "yarn",
                f"{SCALING}.factor": 4.0,
                f"{SCALING}.original_context_length": 64,
                f"{SCALING}.finetuned": True,
            },
            YARN,
        ),
        (
            {
                f"{SCALING}.type": "yarn",
                f"{SCALING}.factor": 4.0,
                f"{SCALING}.original_context_length": 64,
                f"{SCALING}.yarn_beta_fast": 16.0,
                f"{SCALING}.yarn_attn_factor": 1.5,
            },
            YARN | {"beta_fast": 16.0, "attention_factor": 1.5},
        ),
        # Of Llama 3; of another length; of one with other bounds; and without a frequency in between.
        ("rope_freqs.weight", llama3(64)),
        ("rope_freqs.weight", llama3(100)),
        ("rope_freqs.weight", llama3(96, high=8.0)),
        ("rope_freqs.weight", llama3(62, high=1.5)),
        ("rope_factors", rope(rope_type="longrope", long_factor=LONG, short_factor=[1.0] * 8,
                              original_max_position_embeddings=64, attention_factor=1.25)),
    ],
)  # fmt: skip
def test_positions_are_those_of_the_model_that_a_file_was_made_from(keys, parameters, tmp_path):
    source = AutoConfig.from_pretrained(weights.resolve(str(save_gguf(tmp_path / "p.gguf"))).path)
    source.rope_parameters = parameters
    tensors = {}
    if keys == "rope_freqs.weight":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](source, device="cpu")
        keys, tensors = {}, {keys: (10000.0 ** -(torch.arange(0, 16, 2) / 16) / scaled).numpy()}
    elif keys == "rope_factors":
        keys = {f"{SCALING}.original_context_length": 64, f"{SCALING}.attn_factor": 1.25}
        tensors = {
            f"rope_factors_{name}.weight": np.array(parameters[f"{name}_factor"])
            for name in ("long", "short")
        }
    file = save_gguf(tmp_path / "m.gguf", keys=keys, tensors=tensors)
    read = weights.resolve(str(file)).path
    models = [
        AutoModelForCausalLM.from_pretrained(read, config=config, dtype=torch.float32)
        for config in (source, AutoConfig.from_pretrained(read))
    ]
    ids = torch.arange(200)[None] % 90
    with torch.inference_mode():
        right, own = (model(ids).logits for model in models)
    torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "keys", "setting", "value"),
    [
        ("llama", {"llama.attention.sliding_window": 0, "llama.expert_count": 0}, "hidden_size", 32),
        ("llama", {"general.sampling.top_k": 20, "mradermacher.quantize_version": "2"}, "hidden_size", 32),
        ("phi3", {"phi3.attention.sliding_window": 7}, "sliding_window", 7),
        ("gemma2", {"gemma2.attn_logit_softcapping": 30.0}, "attn_logit_softcapping", 30.0),
        ("gemma2", {"gemma2.final_logit_softcapping": 20.0}, "final_logit_softcapping", 20.0),
        ("qwen3", {"qwen3.attention.scale": 0.25}, "head_dim", 16),
        ("starcoder2", {"starcoder2.rope.freq_base": 5e5}, "rope_parameters", {"rope_theta": 5e5, "rope_type": "default"}),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": [False]}, "layer_types", ["full_attention"]),
    ],
)  # fmt: skip
def test_settings_of_the_header_are_the_models(family, keys, setting, value, tmp_path):
    file = save_gguf(tmp_path / "m.gguf", family=family, keys=keys)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    conversion.settle(gguf.GGUFReader(file), config)
    assert getattr(config, setting) == value


@pytest.mark.parametrize(
    ("keys", "tensor"),
    [
        ({"llama.attention.sliding_window": 16}, None),
        ({"llama.attention.scale": 0.5}, None),
        ({"llama.rope.dimension_count_swa": 8}, None),
        ({"llama.attention.clamp_kqv": 8.0}, None),
        ({"llama.attention.max_alibi_bias": 8.0}, None),
        ({"llama.attention.causal": False}, None),
        ({"llama.logit_scale": 0.5}, None),
        ({"llama.final_logit_softcapping": 30.0}, None),
        ({"llama.expert_weights_scale": 2.5}, None),
        ({"llama.expert_used_count": 2}, None),
        ({"llama.rope.scaling.type": "longrope"}, None),
        ({"llama.rope.scaling.alpha": 1000.0}, None),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, None),
        ({"llama.a_setting_of_tomorrow": 1}, None),
        ({"split.count": 3}, None),
        ({"adapter.type": "lora"}, None),
        ({}, ("rope_freqs.weight", [1.0, 3.0, 1.0, 2.0, 8.0, 8.0, 8.0, 8.0])),
        ({}, ("blk.0.attn_q.bias", [1.0] * 32)),
        ({}, ("blk.0.attn_q_norm.weight", [1.0] * 16)),
        ({}, ("blk.1.attn_norm.weight", [1.0] * 32)),
    ],
)  # fmt: skip
def test_what_the_model_would_not_have_is_refused_by_name(keys, tensor, tmp_path):
    tensors = {tensor[0]: np.array(tensor[1])} if tensor else {}
    file = save_gguf(tmp_path / "m.gguf", keys=keys, tensors=tensors)
    with refused("model.unconvertible"):
        weights.resolve(str(file))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A converted file whose texts begin with a token."""
    directory = tmp_path_factory.mktemp("llama")
    conversion.convert_gguf(save_gguf(directory / "m.gguf"), directory)
    return weights.resolve(str(directory))


FRONT = '---\npassage: "{text}\\n"\nmax_new_tokens: 3\n'
PASSAGES = [("", "wor <s> hello"), ("", "wo ll he hello </s>")]


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(
    ("front", "body", "begun"),
    [
        ("", "Read.\n{passages}Q: {query}\nA:", False),
        ("", "{passages}Q: {query}\nA:", True),
        ("", "{query}\n{passages}A:", False),
        ("chat: true\n", "{passages}Q: {query}\n", False),
    ],
)
def test_prompts_have_one_begin_token_whole_or_cut(
    front, body, begun, packs, llama, tmp_path, monkeypatch
):
    if not packs:
        monkeypatch.setattr(attention, "FAMILIES", frozenset())
    (tmp_path / "prompt.txt").write_text(f"{FRONT}{front}---\n{body}")
    spec, prompt = specify(
        llama,
        augmentation="in-prompt",
        task="short-answer",
        prompt=str(tmp_path / "prompt.txt"),
        dtype="float32",
    )
    assert spec.begun == begun
    inputs = [prompt.render(query, PASSAGES) for query in ("hello?", "world?")]
    whole = read_and_check(spec, inputs)
    assert not any(output.truncated for output in whole)
    limit = min(output.prompt_tokens for output in whole) - 9
    assert all(o.truncated for o in read_and_check(replace(spec, max_input_tokens=limit), inputs))


def read_and_check(spec, inputs):
    """Reads, after checks that the model was given one begin token each time, and answered as it does alone."""
    reader = CausalReader(spec)
    given, passes = [], reader._model.passes
    reader._model.passes = lambda asked: given.extend(a.tokens for a in asked) or passes(asked)
    outputs = reader.read(inputs)
    assert [(tokens[0], tokens.count(1)) for tokens in given] == [(1, 1)] * len(inputs)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32)
    written = []
    for tokens in given:
        out = model.generate(
            torch.tensor([tokens]),
            max_new_tokens=spec.max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        text = reader._tokenizer.decode(out[0, len(tokens) :], skip_special_tokens=True)
        written.append(text.strip())
    assert sorted(output.output for output in outputs) == sorted(written)
    return outputs
