"""The encoder-decoder reader on tiny random models of the T5 family."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from engine import tables
from engine.machine import batching, model_files
from engine.machine.device import bf16_rows_are_steady
from engine.machine.pool import PoolSettings
from engine.reading.models.decoding import padded_length
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.models.weights import resolve
from engine.reading.plan import REQUESTED, output_columns
from engine.reading.protocol import ReaderSpec
from engine.reading.repetition import draw, repeat_sample
from tests.conftest import needs_steady_bf16
from tests.expected import as_expected, refused
from tests.reading.models import tiny_models

_RANDOM = random.Random(3)
TEXTS = [
    " ".join(f"w{_RANDOM.randrange(97)}" for _ in range(_RANDOM.randrange(1, 75)))
    for _ in range(14)
]
# As eRAG and end-to-end evaluation ask for them, for two queries that share a passage.
READS = [TEXTS[:8], *([text] for text in TEXTS), TEXTS[7:], [TEXTS[9], TEXTS[2]]]


# mt5 differs from flan-t5 in its vocabulary, and from umt5 in having fewer tables of positions.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.slow) if kind == "mt5" else kind
        for kind in tiny_models.KINDS
    ],
)
def any_spec(request, tmp_path_factory):
    return make_spec(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return make_spec("umt5", tmp_path_factory)


def make_spec(kind, tmp_path_factory):
    directory = tmp_path_factory.mktemp(kind)
    tiny_models.save_tokenizer(directory)
    tiny_models.save_model(kind, directory)
    return ReaderSpec(
        weights="w",
        architecture="encoder-decoder",
        dtype="float32",
        max_new_tokens=12,
        stop=(),
        max_input_tokens=0,
        path=str(directory),
        parameters=model_files.parameters(directory),
        name="tiny",
    )


def outputs(spec, reads):
    return [result.output for result in EncoderDecoderReader(spec).read(reads)]


def test_outputs_equal_those_of_generate(any_spec):
    reads = READS[:1] + READS[-6:]
    expected = tiny_models.generate(any_spec.path, reads, 36)  # beyond the cache's first length
    assert len(set(expected)) == len(reads)  # random models, but not constant ones
    assert outputs(replace(any_spec, max_new_tokens=36), reads) == expected


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_steady_bf16)])
def test_outputs_do_not_depend_on_the_batch(any_spec, dtype):
    spec = replace(any_spec, dtype=dtype)
    whole = EncoderDecoderReader(spec)
    together = whole.read(READS)
    assert len({result.output for result in together}) > len(READS) // 2
    assert EncoderDecoderReader(replace(spec, batch_tokens=300)).read(READS) == together
    alone = EncoderDecoderReader(replace(spec, batch_tokens=1))
    assert alone.read(READS[::3]) == together[::3]
    order = random.Random(1).sample(range(len(READS)), len(READS))
    shuffled = whole.read([READS[i] for i in order])
    assert shuffled == [together[i] for i in order]


def test_a_certificate_counts_the_bf16_outputs_that_change_in_a_batch_of_one(spec):
    """None where the processor has bf16 arithmetic. Elsewhere there may be some: with AVX-512 but without
    AVX512-BF16, oneDNN sums a product of up to three rows in another order than one of more.
    """
    spec = replace(spec, dtype="bfloat16", weights=resolve(spec.path).digest)
    reader = EncoderDecoderReader(spec)
    together = reader.read(READS)
    changed = {i for i, read in enumerate(READS) if reader.read([read])[0] != together[i]}
    wanted = pl.DataFrame(
        [(f"k{i}", f"q{i}", [f"d{i}"], texts) for i, texts in enumerate(READS)],
        schema=REQUESTED,
        orient="row",
    )
    columns = [*tables.READS, tables.FAILURE]
    reads = wanted.hstack(output_columns(together)).select(columns)

    def repeated_alone(seed):
        drawn = draw(wanted, reads, 2 * len(READS), seed)["read_key"]
        return {int(key[1:]) for key in drawn[: (len(drawn) + 1) // 2]}

    # Of the two halves, a read that is known to change must come into the one that is read alone.
    seed = next(s for s in range(100) if not changed or changed & repeated_alone(s))
    found = repeat_sample(
        wanted,
        reads,
        spec,
        size=2 * len(READS),
        seed=seed,
        score=lambda outputs: outputs["output"].hash(),
        pool=PoolSettings(actors=0),
    )
    listed = {int(change["query_id"][1:]) for change in found["changes"]}
    assert found["changed_outputs"] == found["changed_labels"] == len(listed)
    assert listed & repeated_alone(seed) == changed & repeated_alone(seed)
    if bf16_rows_are_steady():
        assert not changed
        assert found["changed_outputs"] == 0


def test_fp16_reads_with_the_layers_that_transformers_keeps_in_fp32(spec):
    reader = EncoderDecoderReader(replace(spec, dtype="float16"))
    kinds = {weight.dtype for weight in reader._model._encoder.parameters()}
    assert kinds == {torch.float16, torch.float32}
    together = reader.read(READS)
    # Nothing is claimed of batches in fp16: where a processor multiplies in it, some rows round otherwise.
    alone = [reader.read([read])[0] for read in READS]
    assert sum(one == other for one, other in zip(alone, together, strict=True)) > len(READS) // 2
    assert len({result.output for result in together}) > len(READS) // 2


@needs_steady_bf16
def test_in_bf16_the_probability_of_a_choice_has_the_same_bits_in_any_batch(any_spec, any_mass):
    reader = EncoderDecoderReader(
        replace(any_spec, dtype="bfloat16", choices=("w5", "w17 w4", "w80"))
    )
    together = reader.read(READS)
    assert [reader.read([read])[0] for read in READS] == together
    assert len({result.confidence for result in together}) > len(READS) // 2


@pytest.mark.slow
def test_batches_change_no_bit_with_two_threads_either():
    """Threads add sums in another order than one; test sessions have one (see conftest)."""
    causal = Path(__file__).with_name("test_causal.py")
    options = ["-m", "not slow", "-k", "depend_on_the_batch or bf16 or bfloat16"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__, causal],
        env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_padded_batches_give_the_same(any_spec):
    """The way of a GPU, on the CPU."""
    reader = EncoderDecoderReader(any_spec)
    expected = reader.read(READS)
    reader._model.padded = True
    assert reader.read(READS) == expected
    assert reader.read(READS[::-1]) == expected[::-1]


def test_a_choice_is_made_by_the_probabilities_of_first_tokens(any_spec, any_mass):
    choices = (" w5", "w17 w4", "w80")
    tokenizer = AutoTokenizer.from_pretrained(any_spec.path)
    model = AutoModelForSeq2SeqLM.from_pretrained(any_spec.path).eval()
    got = EncoderDecoderReader(replace(any_spec, choices=choices)).read(READS)
    chosen = set()
    for read, result in zip(READS, got, strict=True):
        with torch.no_grad():
            states = torch.cat(
                [model.encoder(**tokenizer(t, return_tensors="pt"))[0] for t in read], dim=1
            )
            logits = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([[0]])).logits
        chances = logits[0, 0, [3 + 5, 3 + 17, 3 + 80]].softmax(0)
        assert result.output == choices[int(chances.argmax())].strip()
        assert result.confidence == pytest.approx(float(chances[0]), abs=1e-3)
        assert result.output_tokens == 0
        chosen.add(result.output)
    assert len(chosen) > 1
    alone = EncoderDecoderReader(replace(any_spec, choices=choices[:1])).read(READS[-1:])
    share = float(logits[0, 0].softmax(0)[3 + 5])  # of the last read, among all tokens
    assert alone[0].confidence == pytest.approx(share, abs=1e-3)


def test_choices_that_begin_alike_are_refused(spec):
    with refused("model.choices"):
        EncoderDecoderReader(replace(spec, choices=("w5 w6", "w5 w7")))
    with refused("model.choices"):
        EncoderDecoderReader(replace(spec, choices=("w5", "")))


def test_a_stop_string_ends_an_output(spec):
    whole = EncoderDecoderReader(spec).read(READS)
    words = whole[0].output.split()
    first, second = words[3], words[5]
    assert words.index(second) == 5  # neither stands earlier
    assert words.index(first) == 3
    got = EncoderDecoderReader(replace(spec, stop=(second, first))).read(READS)
    assert got[0].output == " ".join(words[:3])
    assert got[0].output_tokens == 4  # not one more than was needed to see the end
    for before, after in zip(whole, got, strict=True):
        assert after.output == before.output.split(first)[0].split(second)[0].strip()


def test_finished_reads_leave_the_batch(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    reader._special = set()  # all tokens count
    rows = []
    step = reader._model.step
    monkeypatch.setattr(
        reader._model,
        "step",
        lambda tokens, *others: rows.append(len(tokens)) or step(tokens, *others),
    )
    got = reader.read(READS)
    lengths = sorted(result.output_tokens for result in got)
    assert lengths[0] < lengths[-1] == spec.max_new_tokens
    # a read of n tokens takes n + 1 steps, the last one for its end token, or as many as it may take
    steps = [min(length + 1, spec.max_new_tokens) for length in lengths]
    assert rows == [sum(most > at for most in steps) for at in range(max(steps))]


def test_long_inputs_keep_their_beginning_and_are_counted(spec):
    reader = EncoderDecoderReader(replace(spec, max_input_tokens=5))
    short, long = "w1 w2 w3", "w1 w2 w3 w4 w5 w6"
    (item,) = reader._tokenize([long])
    assert item.truncated
    assert item.tokens == (4, 5, 6, 7, 1)
    (output,) = reader.read([[short, long]])
    assert output.truncated
    assert output.prompt_tokens == 4 + 5
    assert not reader.read([[short]])[0].truncated


def test_encoder_batches_are_halved_within_one_read(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    expected = reader.read([TEXTS[:6]])
    encode = reader._model.encode

    def tight(texts):
        if len(texts) > 2:
            raise torch.OutOfMemoryError
        return encode(texts)

    monkeypatch.setattr(reader._model, "encode", tight)
    assert reader.read([TEXTS[:6]]) == expected
    assert reader.stats.memory_halvings >= 1

    def never(texts):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(reader._model, "encode", never)
    (failed,) = reader.read([TEXTS[:3]])
    assert batching.OUT_OF_MEMORY in failed.failure


def distinct_tokens(reader, reads):
    return sum(len(item.tokens) for item in reader._tokenize(sorted({t for r in reads for t in r})))


def test_inputs_that_reads_share_are_encoded_once(spec):
    reader = EncoderDecoderReader(spec)
    got = reader.read(READS)
    assert reader.stats.prompt_tokens == distinct_tokens(reader, READS)
    assert reader.stats.padded_tokens == reader.stats.prompt_tokens
    alone = EncoderDecoderReader(spec)
    assert got == [alone.read([one])[0] for one in READS]
    # an input twice in one read counts twice in what the decoder sees
    twice = reader.read([[TEXTS[1], TEXTS[1]]])[0]
    assert twice.prompt_tokens == 2 * reader.read([[TEXTS[1]]])[0].prompt_tokens
    assert [twice.output] == tiny_models.generate(spec.path, [[TEXTS[1]] * 2], spec.max_new_tokens)


@pytest.mark.parametrize("tokens", [1, 200, 10**6])
def test_encodings_are_held_as_far_as_memory_allows(spec, monkeypatch, tokens):
    reader = EncoderDecoderReader(spec)
    expected = reader.read(READS)
    reader._allowance = batching.Allowance(2 * reader._model.kept_per_token * tokens)
    held = []
    make = reader._model.encodings
    monkeypatch.setattr(
        reader._model, "encodings", lambda lengths: held.append(list(lengths)) or make(lengths)
    )
    assert reader.read(READS) == expected
    # one read's inputs must be held together, however many
    inputs = [reader._tokenize(texts) for texts in READS]
    most = max(sum(padded_length(len(item.tokens)) for item in read) for read in inputs)
    assert max(sum(map(padded_length, lengths)) for lengths in held) <= max(tokens, most)
    assert (len(held) == 1) == (tokens == 10**6)


def test_an_input_that_cannot_be_encoded_fails_its_reads_only(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    reads = [TEXTS[:2], [TEXTS[0]], [TEXTS[1]], TEXTS[1:4]]
    expected = reader.read(reads)
    (bad,) = reader._tokenize([TEXTS[0]])
    encode = reader._model.encode

    def without_the_first(texts):
        if bad.tokens in texts:
            raise torch.OutOfMemoryError
        return encode(texts)

    monkeypatch.setattr(reader._model, "encode", without_the_first)
    got = reader.read(reads)
    assert [result.failure is None for result in got] == [False, False, True, True]
    assert batching.OUT_OF_MEMORY in got[0].failure
    assert got[2:] == expected[2:]


def test_an_input_without_tokens_fails_its_reads_only(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    expected = reader.read([[TEXTS[1]]])
    tokenizer = reader._tokenizer
    monkeypatch.setattr(tokenizer._tokenizer, "post_processor", None)  # no end token
    got = reader.read([[""], [TEXTS[1] + " </s>"]])
    as_expected(got[0].failure)
    assert got[1:] == expected


def test_reads_are_halved_where_decoding_or_holding_them_fails(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    reads = READS[:4] + READS[-1:]
    expected = reader.read(reads)
    decoding = reader._model.decoding

    def tight(encodings, reads):
        if len(reads) > 3:
            raise torch.OutOfMemoryError
        return decoding(encodings, reads)

    monkeypatch.setattr(reader._model, "decoding", tight)
    before = reader._allowance.bytes
    assert reader.read(reads) == expected
    assert reader.stats.memory_halvings >= 1
    assert reader._allowance.bytes < before

    encodings = reader._model.encodings

    def small(lengths):
        if len(lengths) > 7:
            raise MemoryError
        return encodings(lengths)

    monkeypatch.setattr(reader._model, "encodings", small)
    got = reader.read(reads)
    assert batching.OUT_OF_MEMORY in got[0].failure  # eight inputs
    assert got[1:] == expected[1:]


def test_a_probe_leaves_outputs_and_counters_alone(spec, monkeypatch):
    reader = EncoderDecoderReader(spec)
    expected = reader.read(READS[:3])
    counted = replace(reader.stats)
    encoded = []
    encode = reader._model.encode
    monkeypatch.setattr(
        reader._model, "encode", lambda texts: encoded.append([*map(len, texts)]) or encode(texts)
    )
    reader._probe(reader._model, 1100)
    assert encoded == [[512, 512, 76]]
    assert reader.stats == counted
    assert reader.read(READS[:3]) == expected
