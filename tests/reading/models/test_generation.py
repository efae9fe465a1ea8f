"""Settings of generation_config.json: what is written equals transformers' own generate, whichever loop writes."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import GENERATION_CONFIG_NAME

from engine.reading.models import attention
from engine.reading.models.causal import CausalReader
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.models.vllm_support import sampling
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import _NOT_APPLIED, _PROCESSED, greedy_settings
from tests.reading.models.tiny_models import save_model, save_tokenizer

MOST = 14
ENDS = [1, 14, 57, 79]
# Each changes what some of the models below write.
SETTINGS = {
    "repetition_penalty": 1.6,
    "no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 3.0,
    "encoder_no_repeat_ngram_size": 1,
    "bad_words_ids": [*([token] for token in range(3, 40)), [70, 79]],
    "suppress_tokens": list(range(3, 60)),
    "begin_suppress_tokens": list(range(3, 98)),
    "sequence_bias": [[[9], 60.0], [[9, 10], 90.0]],
    "min_new_tokens": 12,
    "min_length": 13,
    "forced_bos_token_id": 33,
    "forced_eos_token_id": 1,
    "exponential_decay_length_penalty": [2, 9.0],
}
WORDS = [" ".join(f"w{(i * j * 7) % 97}" for i in range(3, 3 + 5 * j)) for j in (1, 2, 4)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The directories of a decoder-only model and of a T5."""
    found = {}
    for kind in ("causal", "encoder-decoder"):
        path = found[kind] = tmp_path_factory.mktemp(kind)
        if kind == "causal":
            torch.manual_seed(4)
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, bos_token_id=None, eos_token_id=1,
                )
            )  # fmt: skip
            for weight in model.parameters():
                weight.data *= 6 if weight.dim() > 1 else 1
            model.save_pretrained(path)
        else:
            save_model("t5", path)
        save_tokenizer(path)
        rewrite(path, eos_token_id=ENDS)  # that some answers end early
    return found


@pytest.fixture(scope="module")
def plain(models):
    """What they write without any setting."""
    reads = [[text] for text in WORDS]
    return {kind: written_by_generate(path, reads, kind) for kind, path in models.items()}


def rewrite(path, **settings):
    file = path / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def with_settings(path, to, **settings):
    """A copy of a model with these settings, and its specification."""
    shutil.copytree(path, to)
    rewrite(to, **settings)
    return spec_of(to)


def spec_of(path, engine="transformers", **fields):
    generation, not_applied = greedy_settings(path, engine)
    base = {
        "weights": str(path), "architecture": "causal", "dtype": "float32", "max_new_tokens": MOST, "stop": (),
        "max_input_tokens": 0, "path": str(path), "parameters": 1, "name": "tiny", "engine": engine,
        "generation": generation, "not_applied": not_applied,
    }  # fmt: skip
    return ReaderSpec(**(base | fields))


def written_by_generate(path, reads, kind):
    """What transformers' own generate gives, one read at a time; an encoder has several inputs one by one."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    auto = AutoModelForCausalLM if kind == "causal" else AutoModelForSeq2SeqLM
    model = auto.from_pretrained(path, dtype=torch.float32).eval()
    texts = []
    for inputs in reads:
        ids = [tokenizer(text, return_tensors="pt").input_ids for text in inputs]
        more = {}
        with torch.inference_mode():
            if kind != "causal":
                states = [model.get_encoder()(one).last_hidden_state for one in ids]
                more = {
                    "encoder_outputs": BaseModelOutput(torch.cat(states, 1)),
                    "use_cache": False,
                }
            given = torch.cat(ids, 1)
            out = model.generate(
                given, max_new_tokens=MOST, do_sample=False, pad_token_id=0, **more
            )
        tokens = out[0, given.shape[1] if kind == "causal" else 1 :].tolist()
        tokens = tokens[:-1] if tokens[-1] in ENDS else tokens  # no part of an answer
        texts.append(tokenizer.decode(tokens, skip_special_tokens=True))
    return texts


def outputs(reader, reads):
    return [one.output for one in reader.read(reads)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("door", ["packed", "padded", "t5", "fid"])
def test_what_is_written_equals_generate(setting, door, models, plain, tmp_path, monkeypatch):
    kind = "causal" if door in ("packed", "padded") else "encoder-decoder"
    spec = with_settings(models[kind], tmp_path / "m", **{setting: SETTINGS[setting]})
    spec = replace(spec, architecture=kind)
    reads = [WORDS, WORDS[:2]] if door == "fid" else [[text] for text in WORDS]
    if door == "padded":
        monkeypatch.setattr(attention, "FAMILIES", {})
    reader = (CausalReader if kind == "causal" else EncoderDecoderReader)(spec)
    expected = written_by_generate(tmp_path / "m", reads, kind)
    assert outputs(reader, reads) == expected
    # The first token of a longer prompt is no answer's, and T5 repeats nothing of these inputs.
    unused = {("forced_bos_token_id", "causal"), ("encoder_no_repeat_ngram_size", kind)}
    assert expected != plain[kind] or (setting, kind) in unused
    assert outputs(reader, reads[1:2]) == expected[1:2]  # whatever else is in the batch


@pytest.mark.parametrize(
    ("given", "engine", "applied", "not_applied"),
    [
        ({}, "transformers", "", ()),
        # What samples, or changes nothing, is no setting of greedy decoding.
        (
            {
                "do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.0, "min_length": 0,
                "num_beams": 1, "suppress_tokens": None, "max_length": 20, "length_penalty": 2.0,
            },
            "transformers", "", (),
        ),
        ({"repetition_penalty": 1.05}, "transformers", '{"repetition_penalty": 1.05}', ()),
        ({"forced_bos_token_id": 0}, "transformers", '{"forced_bos_token_id": 0}', ()),
        ({"num_beams": 4, "guidance_scale": 1.5}, "transformers", "", ("num_beams", "guidance_scale")),
        ({"min_new_tokens": 3, "bad_words_ids": [[5]]}, "vllm", '{"min_new_tokens": 3}', ("bad_words_ids",)),
    ],
)  # fmt: skip
def test_settings_are_applied_or_named(given, engine, applied, not_applied, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert greedy_settings(tmp_path, engine) == (applied, not_applied)


def test_without_a_file_they_are_in_the_configuration(models, tmp_path):
    shutil.copytree(models["causal"], tmp_path / "m")
    (tmp_path / "m" / GENERATION_CONFIG_NAME).unlink()
    config = json.loads((tmp_path / "m" / "config.json").read_text()) | {"repetition_penalty": 1.6}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    spec, reads = spec_of(tmp_path / "m"), [[text] for text in WORDS]
    assert outputs(CausalReader(spec), reads) == written_by_generate(
        tmp_path / "m", reads, "causal"
    )
    assert spec.generation


def test_only_what_is_written_with_settings_has_another_key(models):
    spec = spec_of(models["causal"])
    penalty = replace(spec, generation='{"repetition_penalty": 1.6}', not_applied=("num_beams",))
    assert penalty.fingerprint != spec.fingerprint
    for alike in ({"choices": ("a", "b")}, {"scores": "target"}, {"executor": "mine"}):
        assert replace(penalty, **alike).fingerprint == replace(spec, **alike).fingerprint
    assert replace(spec, not_applied=("num_beams",)).fingerprint == spec.fingerprint


def test_vllm_is_given_what_it_can_do(models):
    settings = '{"repetition_penalty": 1.1, "min_new_tokens": 99}'
    spec = spec_of(models["causal"], "vllm", generation=settings)
    assert sampling(spec) == {"repetition_penalty": 1.1, "min_tokens": MOST}
    assert sampling(replace(spec, choices=("a", "b"))) == {}


def test_every_setting_of_transformers_is_known():
    """A later version's settings are sorted by hand: applied, named, or of no weight for greedy decoding."""
    harmless = {
        "max_length", "max_new_tokens", "max_time", "early_stopping", "do_sample", "use_mtp", "use_cache",
        "cache_implementation", "cache_config", "max_cache_len", "temperature", "top_k", "top_p", "min_p", "top_h",
        "typical_p", "epsilon_cutoff", "eta_cutoff", "length_penalty", "renormalize_logits", "num_return_sequences",
        "remove_invalid_values", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
        "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
        "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
        "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile",
        "continuous_batching_config", "low_memory", "diversity_penalty", "prefill_chunk_size",
    }  # fmt: skip
    names = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert names - harmless - {"transformers_version"} == {*_PROCESSED, *_NOT_APPLIED}
