import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from engine.reading.models.t5 import T5, _bounded
from engine.reading.models.t5_attention import Part
from tests.reading.models import tiny_models

TEXTS = [[5, 17, 80, 33, 1], [9] * 70 + [1], [44, 1], list(range(3, 60))]


@pytest.fixture(scope="module", params=list(tiny_models.KINDS))
def loaded(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    tiny_models.save_model(request.param, directory, factor=1.0)
    return AutoModelForSeq2SeqLM.from_pretrained(directory).eval()


def parts(slots, read):
    """A read's inputs, the later ones first: the order of sums is free."""
    lengths = [len(TEXTS[i]) for i in read]
    return [Part(slots[i], sum(lengths[:at])) for at, i in enumerate(read)][::-1]


@pytest.mark.parametrize("padded", [False, True])
def test_logits_are_those_of_transformers(loaded, padded):
    model = T5(loaded, padded=padded, max_new_tokens=40)
    encodings = model.encodings([len(text) for text in TEXTS])
    for slot, states in zip(encodings.slots, model.encode(TEXTS), strict=True):
        encodings.put(slot, states)
    reads = [[0], [1, 2], [3, 0, 1]]
    decoding = model.decoding(encodings, [parts(encodings.slots, read) for read in reads])
    tokens = torch.randint(3, 100, (3, 36), generator=torch.Generator().manual_seed(2))
    got = [decoding.step(tokens[:, at].tolist()) for at in range(34)]
    decoding.keep([2, 0])
    got += [decoding.step(tokens[[2, 0], at].tolist()) for at in (34, 35)]
    for row, read in enumerate(reads):
        with torch.no_grad():
            states = torch.cat([loaded.encoder(torch.tensor([TEXTS[i]]))[0] for i in read], dim=1)
            expected = loaded(
                encoder_outputs=(states,), decoder_input_ids=tokens[row : row + 1]
            ).logits[0]
        for at, logits in enumerate(got):
            left = [0, 1, 2] if at < 34 else [2, 0]
            if row in left:
                torch.testing.assert_close(
                    logits[left.index(row)], expected[at], atol=1e-4, rtol=1e-4
                )


def test_reads_that_have_ended_stay_a_while_where_to_leave_costs_a_copy(loaded):
    steps = []
    for padded in (False, True):
        model = T5(loaded, padded=padded, max_new_tokens=8)
        encodings = model.encodings([len(text) for text in TEXTS])
        for slot, states in zip(encodings.slots, model.encode(TEXTS), strict=True):
            encodings.put(slot, states)
        reads = [[i % 4, (i + 1) % 4][: 1 + i % 2] for i in range(8)]
        decoding = model.decoding(encodings, [parts(encodings.slots, read) for read in reads])
        logits = [decoding.step(range(3, 11))]
        rows = []
        # Of eight, seven go on, then the first six and the last of these, then all but three of them.
        for stay in ([0, 1, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 6], [1, 3, 5]):
            decoding.keep(stay)
            logits += [decoding.step(range(20, 20 + len(stay)))]
            rows.append(decoding._caches.shape[2])
        steps.append(logits)
        assert rows == ([8, 6, 3] if padded else [7, 6, 3])
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_costs_follow_the_shape(loaded):
    few = T5(loaded, padded=False, max_new_tokens=16)
    many = T5(loaded, padded=False, max_new_tokens=64)
    assert few.kept_per_token == 3 * 2 * 4 * 64 * 4  # layers, keys and values, heads, width, bytes
    assert many.decode_cost.per_row > few.decode_cost.per_row
    copied = T5(loaded, padded=True, max_new_tokens=16).decode_cost.per_token
    assert copied >= few.decode_cost.per_token + few.kept_per_token


def test_infinities_of_fp16_are_bounded_value_by_value():
    beyond = torch.tensor([[float("inf"), -float("inf"), 3.0]], dtype=torch.float16)
    assert _bounded(beyond).tolist() == [[64512.0, -64512.0, 3.0]]  # 65504 - 1000, rounded
    wide = beyond.float()
    assert _bounded(wide) is wide
