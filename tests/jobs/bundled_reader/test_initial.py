"""Weights that look things up before they are trained."""

import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from benchmarks._single import default_prompt
from jobs.bundled_reader.initial import HEADS, PASSAGE, QUESTION, arrange, describe
from jobs.bundled_reader.tokenizer import train_tokenizer

TEXT = (
    "The old observatory above Geneva was finished by Maria Keller in 1847 and burnt down in 1902. "
    "Her brother Anton painted ships, bridges and 12 portraits of the mayor before he left for Oslo."
)
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    prompt = ": ".join((QUESTION, *PASSAGE)) * 5
    train_tokenizer([TEXT, TEXT.lower(), prompt, TEXT], 600, directory)
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    passages = [" ".join(WORDS[start : start + 8]) for start in range(0, len(WORDS), 4)]
    return describe(tokenizer, passages)


def arranged(tokenizer, tokens, seed):
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=256,
        d_kv=256 // HEADS,
        d_ff=256,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=HEADS,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = T5ForConditionalGeneration(config).eval()
    arrange(model, tokens, torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(scope="module")
def model(tokenizer, tokens):
    return arranged(tokenizer, tokens, 0)


def test_tokens_are_described(tokenizer, tokens):
    def of(word):
        (token,) = tokenizer(word, add_special_tokens=False)["input_ids"]
        return token

    assert tokens.alike[of(" Her")] == tokens.alike[of(" her")] != tokens.alike[of(" the")]
    assert tokens.capital[of(" Her")]
    assert not tokens.capital[of(" her")]
    assert tokens.rare[of(" in")] < tokens.rare[of(" Her")] <= 1
    assert tokens.rare[tokenizer.eos_token_id] == 0


def test_the_prompt_has_the_words_that_are_looked_for():
    prompt = default_prompt("short-answer", "encoder-decoder", "fid")
    (text,) = prompt.render("who?", [("Title", "Text.")])
    assert f" {text}" == f"{QUESTION}: who?{PASSAGE[0]}: Title{PASSAGE[1]}: Text."


def test_words_of_the_question_are_found_in_the_passage(tokenizer, model):
    text = f"question: observatory Geneva finished title: Keller context: {TEXT}"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        weights = model.encoder(input_ids=ids, output_attentions=True).attentions[1][0, 4]
    words = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    behind = words.index("Ġcontext")
    question = words[: words.index("Ġtitle")]
    for place in range(behind + 2, len(words) - 1):
        looked_at = int(weights[place].argmax())
        if words[place] in question[2:]:
            assert words[looked_at] == words[place]
        else:
            assert looked_at == 0, (place, words, weights[place].tolist())


def test_the_decoder_goes_on_with_what_followed(tokenizer, model):
    text = f"question: who? title: Keller context: {TEXT}"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    words = ids[0].tolist()
    once = [n for n, word in enumerate(words[:-2]) if words.count(word) == 1]
    right = 0
    for place in once:
        with torch.no_grad():
            logits = model(
                input_ids=ids, decoder_input_ids=torch.tensor([[0, words[place]]])
            ).logits
        right += int(logits[0, 1].argmax()) == words[place + 1]
    assert right > 0.7 * len(once)


def test_one_seed_gives_the_same_weights(tokenizer, tokens):
    first, second = (arranged(tokenizer, tokens, 1).state_dict() for _ in range(2))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_other_heads_are_refused(tokens):
    config = T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=64, num_heads=4, num_layers=1)
    with pytest.raises(ValueError, match="other heads"):
        arrange(T5ForConditionalGeneration(config), tokens, torch.Generator())
