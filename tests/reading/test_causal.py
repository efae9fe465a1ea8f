"""The decoder-only reader against transformers' own generate, with the bundled model in fp32."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.reading.causal import CausalReader, _cut_at_stop, grouped_attention
from engine.reading.prompts import default_prompt

PASSAGES = [
    ("Aruba", "Aruba lies in the southern Caribbean Sea. Its capital is Oranjestad."),
    ("Apollo 8", "Apollo 8 was launched on December 21, 1968, with Borman, Lovell and Anders."),
    ("Aardvark", "The aardvark " + "digs for ants and termites at night " * 12),
]
QUESTIONS = ["what is the capital of aruba", "when was apollo 8 launched", "who eats ants"]


@pytest.fixture(scope="module")
def prompts():
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    texts = [prompt.render(q, [p]) for q, p in zip(QUESTIONS, PASSAGES, strict=True)]
    texts.append(prompt.render(QUESTIONS[0], PASSAGES))  # an end-to-end read of three passages
    texts.append(prompt.render(QUESTIONS[1], []))
    return texts


@pytest.fixture(scope="module")
def generated(bundled_spec, prompts):
    """What transformers' generate gives, one prompt at a time, cut at the line's end."""
    tokenizer = AutoTokenizer.from_pretrained(bundled_spec.path)
    model = AutoModelForCausalLM.from_pretrained(bundled_spec.path, dtype=torch.float32).eval()
    texts = []
    for (prompt,) in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(
            **ids, max_new_tokens=bundled_spec.max_new_tokens, do_sample=False, pad_token_id=0
        )
        text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        texts.append(text.split("\n")[0].strip())
    return texts


def test_outputs_equal_generate_in_one_batch_and_alone(bundled_spec, prompts, generated):
    reader = CausalReader(bundled_spec)
    batched = reader.read(prompts)
    assert [r.output for r in batched] == generated
    assert [reader.read([p])[0].output for p in prompts] == generated
    assert not any(r.truncated or r.failure for r in batched)
    assert any("Oranjestad" in text for text in generated)  # the model does answer


def test_outputs_do_not_depend_on_the_shared_prefix_or_the_budget(bundled_spec, prompts, generated):
    for spec in (
        replace(bundled_spec, shared_prefix=""),
        replace(bundled_spec, shared_prefix="Something else."),
        replace(bundled_spec, memory=1),  # one read a batch
    ):
        assert [r.output for r in CausalReader(spec).read(prompts)] == generated


def test_batches_hold_no_more_tokens_than_the_specification_says(
    bundled_spec, prompts, generated, monkeypatch
):
    reader = CausalReader(replace(bundled_spec, batch_tokens=1))
    rows = []
    inner = reader._generate
    monkeypatch.setattr(
        reader, "_generate", lambda batch, prefix: rows.append(len(batch)) or inner(batch, prefix)
    )
    assert [r.output for r in reader.read(prompts)] == generated
    assert rows == [1] * len(prompts)


def test_the_shared_prefix_is_computed_once(bundled_spec, prompts):
    with_prefix, without = (
        CausalReader(bundled_spec),
        CausalReader(replace(bundled_spec, shared_prefix="")),
    )
    with_prefix.read(prompts)
    without.read(prompts)
    prefix = len(with_prefix._prefix)
    saved = without.stats.prompt_tokens - with_prefix.stats.prompt_tokens
    assert saved == len(prompts) * len(with_prefix._cached_prefix)
    assert len(with_prefix._cached_prefix) >= prefix - 1 > 80


def test_long_prompts_lose_passages_and_never_the_question(bundled_spec, prompts):
    limit = 150
    reader = CausalReader(replace(bundled_spec, max_input_tokens=limit))
    fits, cut = reader.read([prompts[0], prompts[2]])
    assert not fits.truncated
    assert cut.truncated
    assert cut.prompt_tokens == limit
    assert cut.failure is None
    (text,) = prompts[2]
    whole = reader._encode([text])[0]
    shared = len(reader._prefix) - 1
    kept = reader._fit(whole, shared, text).suffix
    assert len(kept) == limit - shared
    assert reader._tokenizer.decode(kept).endswith("\nQuestion: who eats ants\nAnswer:")


def test_a_prompt_whose_question_does_not_fit_fails(bundled_spec, prompts):
    prefix = len(CausalReader(bundled_spec)._prefix)
    limited = CausalReader(replace(bundled_spec, max_input_tokens=prefix + 3))
    outputs = limited.read(prompts)
    assert all("even without passages" in o.failure for o in outputs)
    assert all(o.output == "" for o in outputs)


def test_out_of_memory_ends_in_the_same_outputs(bundled_spec, prompts, generated, monkeypatch):
    reader = CausalReader(bundled_spec)
    inner = reader._generate

    def tight(batch, prefix):
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(batch, prefix)

    monkeypatch.setattr(reader, "_generate", tight)
    assert [r.output for r in reader.read(prompts)] == generated
    assert reader.stats.memory_halvings >= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris\nQuestion", (" Paris", True)),
        ("\nParis\n", ("", True)),  # a line that ends at once is an empty answer
        ("Paris", ("Paris", False)),
        ("", ("", False)),
    ],
)
def test_stop_strings_end_the_output(text, expected):
    assert _cut_at_stop(text, ["\n"]) == expected


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_attention_is_attention(length, masked):
    torch.manual_seed(0)
    query = torch.randn(2, 6, length, 8)
    key, value = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    out, _ = grouped_attention(torch.nn.Module(), query, key, value, mask if masked else None)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), is_causal=length > 1
    )
    torch.testing.assert_close(out, expected.transpose(1, 2))


def tiny_models():
    """Small random models of several families: grouped or not, other position codes, soft caps."""
    from transformers import Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

    shape = {
        "vocab_size": 49152,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    }
    return {
        "llama": LlamaConfig(**shape),
        "qwen2": Qwen2Config(**shape),
        "gpt2": GPT2Config(vocab_size=49152, n_embd=32, n_layer=2, n_head=4, n_positions=2048),
        # soft caps and windows that matter at this length
        "gemma2": Gemma2Config(**shape, head_dim=8, sliding_window=64, attn_logit_softcapping=1.0),
        "mistral": MistralConfig(**shape, sliding_window=40),
    }


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2", "mistral"])
def test_other_families_equal_generate(family, bundled_spec, prompts, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bundled_spec.path)
    config = tiny_models()[family]
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 2
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():  # larger weights: outputs that depend on the prompt
        weight.data *= 3
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # of the class that the family chooses
    expected = []
    for (prompt,) in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        expected.append(text.strip())
    spec = replace(bundled_spec, path=str(tmp_path), max_new_tokens=6, stop=())
    assert [r.output for r in CausalReader(spec).read(prompts)] == expected
    assert len(set(expected)) > 1


def test_attention_that_is_not_plain_is_refused():
    tensor = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(torch.nn.Module(), tensor, tensor, tensor, None, softcap=50.0)
