"""Fusion-in-Decoder on a tiny random T5."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from engine.reading.encoder_decoder import EncoderDecoderReader
from engine.reading.protocol import ReaderSpec

TEXTS = [" ".join(f"w{(7 * i + j * j) % 97}" for j in range(3 + 9 * i)) for i in range(5)]


@pytest.fixture(scope="module")
def spec(tiny_t5):
    return ReaderSpec("w", "encoder-decoder", "float32", 6, (), 0, str(tiny_t5), "tiny")


def test_one_passage_is_plain_generation(spec, tiny_t5):
    tokenizer = AutoTokenizer.from_pretrained(tiny_t5)
    model = T5ForConditionalGeneration.from_pretrained(tiny_t5).eval()
    expected = []
    for text in TEXTS:
        out = model.generate(
            **tokenizer(text, return_tensors="pt"), max_new_tokens=6, do_sample=False
        )
        expected.append(tokenizer.decode(out[0], skip_special_tokens=True))
    got = EncoderDecoderReader(spec).read([[text] for text in TEXTS])
    assert [r.output for r in got] == expected
    assert len(set(expected)) > 1  # a random model, but not a constant one


def test_fusion_is_the_decoder_over_all_encodings(spec, tiny_t5):
    """Against states concatenated by hand, greedy steps by hand."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_t5)
    model = T5ForConditionalGeneration.from_pretrained(tiny_t5).eval()
    with torch.no_grad():
        states = torch.cat(
            [
                model.encoder(**tokenizer(t, return_tensors="pt")).last_hidden_state
                for t in TEXTS[:3]
            ],
            dim=1,
        )
        ids = torch.tensor([[0]])
        for _ in range(6):
            step = model(encoder_outputs=(states,), decoder_input_ids=ids).logits[:, -1].argmax(-1)
            ids = torch.cat([ids, step[:, None]], dim=1)
            if step.item() == 1:
                break
    expected = tokenizer.decode(ids[0], skip_special_tokens=True)
    assert EncoderDecoderReader(spec).read([TEXTS[:3]])[0].output == expected


def test_padding_and_micro_batches_change_nothing(spec):
    reads = [TEXTS[:1], TEXTS[:4], TEXTS[3:], [TEXTS[4]], TEXTS]
    whole = EncoderDecoderReader(spec)
    together = whole.read(reads)
    alone = [whole.read([one])[0] for one in reads]
    assert together == alone
    small = EncoderDecoderReader(replace(spec, memory=1))  # one input an encoder batch
    assert small.read(reads) == together
    states = whole.encode([whole._tokenize([t])[0] for t in TEXTS])
    apart = [whole.encode(whole._tokenize([t]))[0] for t in TEXTS]
    for one, other in zip(states, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_batches_hold_no_more_tokens_than_the_specification_says(spec, monkeypatch):
    reads = [TEXTS[:1], TEXTS[:4], [TEXTS[4]]]
    expected = EncoderDecoderReader(spec).read(reads)
    reader = EncoderDecoderReader(replace(spec, batch_tokens=1))
    rows = []
    for name in ("_encode_batch", "_generate"):
        inner = getattr(reader, name)
        monkeypatch.setattr(
            reader, name, lambda batch, inner=inner: rows.append(len(batch)) or inner(batch)
        )
    assert reader.read(reads) == expected
    assert rows == [1] * (5 + 3)  # distinct inputs, then reads
    assert replace(spec, batch_tokens=1).fingerprint == spec.fingerprint


def test_long_inputs_keep_their_beginning_and_are_counted(spec):
    reader = EncoderDecoderReader(replace(spec, max_input_tokens=5))
    (item,) = reader._tokenize([TEXTS[2]])
    assert item.truncated
    whole = reader._tokenizer(TEXTS[2])["input_ids"]
    assert item.tokens == [*whole[:4], 1]
    (output,) = reader.read([[TEXTS[0], TEXTS[2]]])
    assert output.truncated
    assert output.prompt_tokens == 4 + 5


def test_encoder_batches_are_halved_within_one_read(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    expected = reader.read([TEXTS])
    inner = reader._encode_batch

    def tight(items):
        if len(items) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(items)

    monkeypatch.setattr(reader, "_encode_batch", tight)
    assert reader.read([TEXTS]) == expected
    assert reader.stats.memory_halvings >= 1

    def never(items):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(reader, "_encode_batch", never)
    (failed,) = reader.read([TEXTS])
    assert "out of memory" in failed.failure


def distinct_tokens(reader, reads):
    return sum(len(reader._tokenize([t])[0].tokens) for t in {t for texts in reads for t in texts})


def test_inputs_that_reads_share_are_encoded_once(spec):
    # each passage alone and all together, as eRAG and end-to-end evaluation ask for them
    reads = [TEXTS, *([text] for text in TEXTS)]
    reader = EncoderDecoderReader(spec)
    got = reader.read(reads)
    assert reader.stats.prompt_tokens == distinct_tokens(reader, reads)
    assert got == [EncoderDecoderReader(spec).read([one])[0] for one in reads]
    # an input twice in one read counts twice in what the decoder sees
    twice = reader.read([[TEXTS[1], TEXTS[1]]])[0]
    assert twice.prompt_tokens == 2 * reader.read([[TEXTS[1]]])[0].prompt_tokens


@pytest.mark.parametrize("tokens", [1, 60, 10**6])
def test_encodings_are_held_as_far_as_memory_allows(spec, monkeypatch, tokens):
    reads = [TEXTS[:3], [TEXTS[0]], [TEXTS[1]], TEXTS[2:], [TEXTS[4]], [TEXTS[0]]]
    reader = EncoderDecoderReader(spec)
    expected = reader.read(reads)
    reader._memory = 4 * reader._state_bytes * tokens
    held = []
    inner = reader.encode

    def watch(items):
        held.append(sum(len(item.tokens) for item in items))
        return inner(items)

    monkeypatch.setattr(reader, "encode", watch)
    assert reader.read(reads) == expected
    # one read's inputs must be held together, however many
    most = max(distinct_tokens(reader, [texts]) for texts in reads)
    assert max(held) <= max(tokens, most)
    assert (len(held) == 1) == (tokens == 10**6)


def test_an_input_that_cannot_be_encoded_fails_its_reads_only(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    reads = [TEXTS[:2], [TEXTS[0]], [TEXTS[1]], TEXTS[1:4]]
    expected = reader.read(reads)
    longest = len(reader._tokenize([TEXTS[0]])[0].tokens)
    inner = reader._encode_batch

    def without_the_first(items):
        if any(len(item.tokens) == longest for item in items):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(items)

    monkeypatch.setattr(reader, "_encode_batch", without_the_first)
    got = reader.read(reads)
    assert [result.failure is None for result in got] == [False, False, True, True]
    assert "out of memory" in got[0].failure
    assert got[2:] == expected[2:]
