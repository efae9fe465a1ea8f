"""Weights that can copy before they are trained."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from engine.training.bundled.initial import arrange


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=500,
        d_model=256,
        d_kv=64,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    return T5ForConditionalGeneration(config).eval()


def follows(model, tokens):
    """The share of tokens from which the decoder's first head looks at what stands behind them in the encoder."""
    with torch.no_grad():
        weights = model(
            input_ids=tokens, decoder_input_ids=tokens, output_attentions=True
        ).cross_attentions[0][:, 0]
    looked_at = weights[:, :-1].argmax(-1)
    return float((looked_at == torch.arange(1, tokens.shape[1])).float().mean())


def test_the_decoder_looks_behind_what_it_wrote(model):
    tokens = torch.stack([torch.randperm(498)[:30] + 2 for _ in range(8)])
    before = follows(model, tokens)
    arrange(model, torch.Generator().manual_seed(0))
    assert before < 0.2
    assert follows(model, tokens) > 0.8


def test_one_seed_gives_the_same_weights(model):
    arrange(model, torch.Generator().manual_seed(1))
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    arrange(model, torch.Generator().manual_seed(1))
    assert all(torch.equal(weight, first[name]) for name, weight in model.state_dict().items())
