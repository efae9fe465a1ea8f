"""Checkpoints of Fusion-in-Decoder's own code, which learned a position bias in cross-attention."""

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import WEIGHTS_NAME

from engine.reading import readers
from engine.reading.models import weights
from engine.reading.models.conversion import CROSS_BIAS
from tests.reading.models import t5_family

NEW_TOKENS = 16
TEXTS = [" ".join(f"w{(5 * i + 3 * j * j) % 97}" for j in range(18 + 7 * i)) for i in range(4)]
# The last one begins with an input that is shorter than the output.
READS = [TEXTS[:1], TEXTS, TEXTS[2:], TEXTS[::-1], TEXTS[1:2], ["w3 w4 w5", TEXTS[0]], ["w8 w9"]]


@pytest.fixture(scope="module")
def plain(tiny_t5, tmp_path_factory):
    # with larger weights the scores leave a bias nothing to say
    return t5_family.make("t5", tmp_path_factory.mktemp("t5"), tiny_t5, factor=2.0)


@pytest.fixture(scope="module")
def bias():
    """One value of each of 32 distances and 4 heads."""
    return 50 * torch.randn((32, 4), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def original(plain, tiny_t5, bias, tmp_path_factory):
    state = t5_family.state_of(plain) | {CROSS_BIAS: bias}
    directory = tmp_path_factory.mktemp("original") / "fid"
    t5_family.make_original(plain, directory, state=state)
    return t5_family.add_tokenizer(directory, tiny_t5)


def expected_outputs(plain, bias, texts):
    """Greedy steps without a cache; the bias by hand, given as a mask that is added to the scores.

    For the query at position q and the key at position k it is that of the distance q - k, and of
    distance 0 for keys at or behind the query. Distances up to 16 have a value each.
    """
    tokenizer = AutoTokenizer.from_pretrained(plain)
    model = T5ForConditionalGeneration.from_pretrained(plain, attn_implementation="eager").eval()
    with torch.inference_mode():
        states = torch.cat(
            [
                model.encoder(
                    **tokenizer(text, return_tensors="pt", add_special_tokens=False)
                ).last_hidden_state
                for text in texts
            ],
            dim=1,
        )
        ids = torch.tensor([[0]])
        for _ in range(NEW_TOKENS):
            q, k = torch.arange(ids.shape[1])[:, None], torch.arange(states.shape[1])[None]
            added = bias[(q - k).clamp(min=0)].permute(2, 0, 1)[None]
            logits = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=added,
                decoder_input_ids=ids,
                use_cache=False,
            ).logits
            ids = torch.cat([ids, logits[:, -1].argmax(-1)[:, None]], dim=1)
            if ids[0, -1] == 1:
                break
    return tokenizer.decode(ids[0], skip_special_tokens=True)


def test_outputs_are_those_of_the_biased_attention(original, plain, bias):
    spec, _ = readers.specify(
        str(original), augmentation="fid", task="short-answer", dtype="float32"
    )
    assert spec.max_new_tokens == NEW_TOKENS
    reader = readers.load(spec)
    together = [output.output for output in reader.read(READS)]
    assert together == [expected_outputs(plain, bias, texts) for texts in READS]
    assert [reader.read([texts])[0].output for texts in READS] == together
    reader._model.padded = True  # the way of a GPU, on the CPU
    assert [output.output for output in reader.read(READS)] == together
    assert len(set(together)) >= 4
    without = [expected_outputs(plain, torch.zeros_like(bias), texts) for texts in READS]
    assert sum(one != other for one, other in zip(together, without, strict=True)) >= 3


def test_inputs_get_no_end_token(original, plain):
    text = "w1 w2"
    own = AutoTokenizer.from_pretrained(weights.resolve(str(original)).path)
    ids = AutoTokenizer.from_pretrained(plain)(text)["input_ids"]
    assert ids[-1] == own.eos_token_id == 1
    assert own(text)["input_ids"] == ids[:-1]
    assert own.decode([*ids, 0, 0], skip_special_tokens=True) == text


def test_a_t5_that_was_not_wrapped_is_read_without_the_bias(plain, tiny_t5, bias, tmp_path):
    # as the T5 of the Hugging Face hub have it, whose fine-tuning since knows no such bias
    torch.save(t5_family.state_of(plain) | {CROSS_BIAS: bias}, tmp_path / WEIGHTS_NAME)
    (tmp_path / "config.json").write_text((plain / "config.json").read_text())
    t5_family.add_tokenizer(tmp_path, tiny_t5)
    outputs = []
    for directory in (tmp_path, plain):
        spec, _ = readers.specify(
            str(directory), augmentation="fid", task="short-answer", dtype="float32"
        )
        outputs.append(readers.load(spec).read(READS))
    assert outputs[0] == outputs[1]
