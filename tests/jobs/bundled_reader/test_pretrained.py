"""What tokens mean to the bundled encoder, in fewer dimensions."""

import pytest
import torch
from transformers import AutoTokenizer

from engine.sources.bundled import encoder_directory
from jobs.bundled_reader.pretrained import meanings
from jobs.bundled_reader.tokenizer import train_tokenizer

WORDS = "river lake king queen seven eight the of Paris London paris music song ocean prince nine"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    encoder_directory()
    directory = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([WORDS] * 5, 600, directory)
    return AutoTokenizer.from_pretrained(directory)


def test_words_that_mean_alike_are_near(tokenizer):
    found = meanings(tokenizer, 32)
    assert found.shape == (len(tokenizer), 32)
    known = found.abs().sum(1) > 0
    assert not known[tokenizer.pad_token_id]
    assert torch.allclose(found[known].mean(0), torch.zeros(32), atol=1e-4)
    assert torch.allclose(found[known].square().mean(0), torch.ones(32), atol=1e-3)

    def of(word):
        (token,) = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return found[token]

    def near(first, second):
        return float(torch.cosine_similarity(of(first), of(second), dim=0))

    # Equal but for rounding: how a library multiplies rows differs from processor to processor.
    torch.testing.assert_close(of("Paris"), of("paris"), rtol=1e-4, atol=1e-4)
    assert near("seven", "eight") > near("seven", "king")
    assert near("king", "queen") > near("king", "lake")
