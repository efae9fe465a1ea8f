"""Log-probabilities of given texts, and of what a reader writes, against the forward pass of transformers."""

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from engine.reading.models.causal import CausalReader
from engine.reading.models.decoding import padded_length
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.models.tokenizing import PromptRead, target_tokens
from engine.reading.readers import specify
from tests.expected import as_expected
from tests.reading.models import tiny_models
from tests.reading.models.test_causal import PASSAGES, QUESTIONS, save_random_model
from tests.reading.models.test_encoder_decoder import TEXTS, make_spec

EXACT = 1e-5
ANSWERS = [" Oranjestad", " the city of Oranjestad in Aruba", " 1968"]
TARGETS = ["w3", "w9 w41 w7 w3", "w88 w0"]
# As likelihood asks: each text behind each prompt; alone, several in a list, and none.
FUSED = [[*TEXTS[:3], TARGETS[1]]]
READS = [*([text, target] for text in TEXTS[:4] for target in TARGETS), *FUSED]


def total(output):
    """The sum of the log-probabilities, as the store has it."""
    return output.output_tokens * math.log(output.confidence)


@lru_cache(maxsize=1)
def loaded(kind, path):
    """The tokenizer and the model of a directory, by transformers, in fp32."""
    model = kind.from_pretrained(path, dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(path), model


def of_causal(path, read):
    """The sum of log-probabilities of a target's tokens, from one forward pass, and their number."""
    tokenizer, model = loaded(AutoModelForCausalLM, path)
    prompt = tokenizer("".join(read[:-1]))["input_ids"]
    target = tokenizer(read[-1], add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logs = model(torch.tensor([prompt + target])).logits[0].log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(target) - 1)
    return sum(logs[at, token].item() for at, token in zip(places, target, strict=True)), len(
        target
    )


def of_t5(path, read):
    """The same of an encoder-decoder model, the end token included: Fusion-in-Decoder's states end to end."""
    tokenizer, model = loaded(AutoModelForSeq2SeqLM, path)
    labels = torch.tensor([tokenizer(read[-1])["input_ids"]])
    with torch.inference_mode():
        states = [
            model.encoder(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state
            for text in read[:-1]
        ]
        encoded = BaseModelOutput(last_hidden_state=torch.cat(states, 1))
        logs = model(encoder_outputs=encoded, labels=labels).logits[0].log_softmax(-1)
    return logs.gather(-1, labels[0][:, None]).sum().item(), labels.shape[1]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])  # packed, padded, packed
def test_of_decoder_only_models_they_equal_one_forward_pass(family, bundled_spec, tmp_path):
    from benchmarks._single import default_prompt

    save_random_model(family, bundled_spec, tmp_path)
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    reads = [
        [*prompt.render(QUESTIONS[0], list(passages)), answer]
        for passages in (PASSAGES[:1], PASSAGES[1:2], PASSAGES, [])
        for answer in ANSWERS
    ]
    spec = replace(bundled_spec, path=str(tmp_path), scores="target")
    reader = CausalReader(spec)
    outputs = reader.read(reads)
    for read, output in zip(reads, outputs, strict=True):
        log, tokens = of_causal(tmp_path, read)
        assert (output.output, output.output_tokens) == (read[-1].strip(), tokens)
        assert total(output) == pytest.approx(log, abs=EXACT * tokens)
    assert len({round(total(output), 3) for output in outputs}) > 8
    # each alone, and in batches of one in chunks of 64 tokens
    alone = [reader.read([read])[0] for read in reads[::5]]
    small = CausalReader(replace(spec, memory=1)).read(reads)
    pairs = zip([*alone, *small], [*outputs[::5], *outputs], strict=True)
    both = [(a.confidence, b.confidence) for a, b in pairs]
    assert all(math.log(a) == pytest.approx(math.log(b), abs=EXACT) for a, b in both)


def test_targets_of_one_prompt_share_its_computation(bundled_spec, tmp_path):
    save_random_model("llama", bundled_spec, tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), scores="target")
    text = "Passage: " + "the aardvark digs for ants " * 20
    computed = []
    for answers in (ANSWERS[:1], ANSWERS):
        reader = CausalReader(spec)
        passes = []
        reader._model._model.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        reader.read([[text, answer] for answer in answers])
        computed.append((reader.stats.prompt_tokens, len(passes)))
    assert computed[0][0] == computed[1][0]
    assert computed[1][1] <= 3  # what prompts begin with, the prompt, and all targets


@pytest.mark.parametrize("memory", [0, 1])  # one batch; chunks of 64 tokens
def test_targets_of_any_length_stand_behind_one_prompt(memory, bundled_spec, tmp_path):
    save_random_model("llama", bundled_spec, tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), scores="target", memory=memory)
    reads = [["Who digs? Answer:", " ants" * n] for n in (1, 2, 33, 70, 150)]
    # Behind so many tokens prompts go through another kernel.
    reads += [["Passage: " + "the aardvark digs " * 180 + "Answer:", " ants" * n] for n in (1, 9)]
    outputs = CausalReader(spec).read(reads)
    for read, output in zip(reads, outputs, strict=True):
        log, tokens = of_causal(tmp_path, read)
        assert output.output_tokens == tokens
        assert total(output) == pytest.approx(log, abs=EXACT * tokens)


def test_a_batch_has_room_for_the_prompt_of_its_targets(bundled_spec, tmp_path):
    save_random_model("llama", bundled_spec, tmp_path)
    model = CausalReader(replace(bundled_spec, path=str(tmp_path), scores="target"))._model
    asked = [PromptRead([5] * 450, target=[7] * (1 + n % 5)) for n in range(60)]
    groups = list(model.batches(asked, memory=10**12, max_tokens=640))
    assert sorted(place for group in groups for place in group) == list(range(60))
    for group in groups:
        assert (
            padded_length(450) + sum(padded_length(len(asked[place].target)) for place in group)
            <= 640
        )


@pytest.mark.parametrize("kind", ["t5", "flan-t5", "umt5"])
def test_of_encoder_decoder_models_they_equal_one_forward_pass(kind, tmp_path_factory):
    spec = replace(make_spec(kind, tmp_path_factory), scores="target")
    # Weights of the usual size: others give logits so large that their last bits exceed the bound.
    tiny_models.save_model(kind, Path(spec.path), factor=1.0)
    reader = EncoderDecoderReader(spec)
    outputs = reader.read(READS)
    for read, output in zip(READS, outputs, strict=True):
        log, tokens = of_t5(spec.path, read)
        assert (output.output, output.output_tokens) == (read[-1], tokens)
        assert total(output) == pytest.approx(log, abs=EXACT * tokens)
    alone = [reader.read([read])[0] for read in READS[::4]]
    both = [(a.confidence, b.confidence) for a, b in zip(alone, outputs[::4], strict=True)]
    assert all(math.log(a) == pytest.approx(math.log(b), abs=EXACT) for a, b in both)


def test_what_a_reader_writes_is_as_likely_as_the_same_text_given(bundled_spec, tmp_path):
    save_random_model("llama", bundled_spec, tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), max_new_tokens=5, stop=())
    prompts = [["Question: who eats ants\nAnswer:"], ["Passage: Aruba.\nAnswer:"]]
    plain, own = (CausalReader(replace(spec, scores=s)).read(prompts) for s in ("", "own"))
    tokenizer, model = loaded(AutoModelForCausalLM, tmp_path)
    for (prompt,), written, weighed in zip(prompts, plain, own, strict=True):
        assert replace(weighed, confidence=None) == written
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=5, do_sample=False)
            logs = model(out).logits[0].log_softmax(-1)
        places = range(ids.shape[1], out.shape[1])
        mean = sum(logs[at - 1, out[0, at]].item() for at in places) / len(places)
        assert math.log(weighed.confidence) == pytest.approx(mean, abs=EXACT)


@pytest.mark.parametrize("scores", ["target", "own"])
def test_of_the_bundled_fusion_in_decoder_reader_too(scores):
    """Its answers end with the end token, which counts whether they are given or written."""
    spec, prompt = specify("bundled-fid", augmentation="fid", task="short-answer", dtype="float32")
    reads = [prompt.render(q, some) for q in QUESTIONS[:2] for some in (PASSAGES[:1], PASSAGES[:2])]
    written = EncoderDecoderReader(spec).read(reads)
    targets = [[*read, output.output] for read, output in zip(reads, written, strict=True)]
    given = targets if scores == "target" else reads
    outputs = EncoderDecoderReader(replace(spec, scores=scores)).read(given)
    for target, plain, output in zip(targets, written, outputs, strict=True):
        log, tokens = of_t5(spec.path, target)
        assert output.output == plain.output
        assert math.log(output.confidence) == pytest.approx(log / tokens, abs=EXACT)
        assert output.output_tokens == (tokens if scores == "target" else plain.output_tokens)


class Words:
    """A tokenizer of words with the blank before them, which joins a colon to the word behind it."""

    def encode(self, text, *, add_special_tokens):
        joined = text.replace(":x", "J")
        return [part for part in joined.replace(" ", "\0 ").split("\0") if part]

    def decode(self, tokens, *, skip_special_tokens):
        return "".join(tokens)


def test_a_target_is_what_follows_the_prompt_in_the_encoding_of_both():
    assert target_tokens(Words(), "Some Answer:", " Ann Bo") == [" Ann", " Bo"]
    # no token reaches from the prompt into the target
    assert target_tokens(Words(), "Some Answer:", "x Bo") == ["x", " Bo"]
    assert target_tokens(Words(), "", "Ann") == ["Ann"]


def test_what_does_not_fit_behind_the_prompt_fails_alone(bundled_spec, tmp_path):
    save_random_model("llama", bundled_spec, tmp_path)
    reader = CausalReader(replace(bundled_spec, path=str(tmp_path), scores="target"))
    reads = [["Answer:", " Ann"], ["Answer:", " Ann" * 2050], ["Answer:", ""]]
    good, long, empty = reader.read(reads)
    assert good.failure is None
    assert long.failure == empty.failure
    as_expected(long.failure)
