"""A model behind a server reads as it does in this process, where the prompts are the same.

The server runs it with transformers' own ``generate``, and applies its chat template to the messages. The
bundled reader takes minutes for that; a small random one with its tokenizer takes seconds.
"""

import contextlib
import functools
import shutil
import threading

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.reading.models import weights
from tests.reading.remote.server import Behaviour, Said, serving
from tests.tables import read_files

# Tokens that the choices of judges begin with: listed whether or not they are among the likeliest, which
# those of a random model are not.
CHOICES = ("Yes", "No", " Yes", " No")


@pytest.fixture(scope="module")
def random_reader(tmp_path_factory):
    """The directory of a random model with the tokenizer of the bundled one."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    bundled = weights.resolve("bundled").path
    directory = tmp_path_factory.mktemp("random") / "model"
    unwanted = shutil.ignore_patterns("*.safetensors", "config.json", "generation_config.json")
    shutil.copytree(bundled, directory, ignore=unwanted)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        initializer_range=0.5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return str(directory)


@functools.cache
def model_of(reader):
    """What a model says to the body of a request."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = weights.resolve(reader).path
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    listed = [tokenizer.encode(text, add_special_tokens=False)[0] for text in CHOICES]
    turn = threading.Lock()

    def say(body):
        if "messages" in body:
            text = tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
            encoded = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        else:
            encoded = tokenizer(body["prompt"], return_tensors="pt")
        length = encoded["input_ids"].shape[1]

        def stops(tokens, scores):  # transformers' own takes seconds to look through the vocabulary
            written = tokenizer.decode(tokens[0, length:])
            return torch.tensor([any(stop in written for stop in body.get("stop", []))])

        with turn, torch.inference_mode():
            made = model.generate(
                **encoded,
                max_new_tokens=body["max_tokens"],
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=0,
                stopping_criteria=[stops],
            )
        said = tokenizer.decode(made.sequences[0, length:], skip_special_tokens=True)
        for stop in body.get("stop", []):
            said = said.split(stop)[0]
        values = made.logits[0][0].log_softmax(-1)
        tokens = [*listed, *values.topk(20 - len(listed)).indices.tolist()]
        top = {tokenizer.decode([token]): float(values[token]) for token in tokens}
        return Said(said, top, prompt_tokens=length)

    return say


def test_a_server_and_this_process_read_alike(random_reader, files, tmp_path, any_mass):
    compare(random_reader, files, tmp_path, "chat", "chat")


@pytest.mark.slow
def test_a_server_and_this_process_continue_texts_alike(random_reader, files, tmp_path, any_mass):
    compare(random_reader, files, tmp_path, "completions", "completion")


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "prompt"), [("completions", "completion"), ("chat", "chat")])
def test_the_bundled_reader_reads_alike_behind_a_server(
    files, tmp_path, endpoint, prompt, any_mass
):
    compare("bundled", files, tmp_path, endpoint, prompt)


def compare(reader, files, tmp_path, endpoint, prompt, url=None):
    """Evaluate with the reader here, and behind the server at ``url``, by default one made for it."""
    inputs = read_files(files["queries"], files["corpus"], [files["run"]], k=2)
    base = Settings.of(
        k=2, resamples=0, annotators=("erag", "judge"), judge_labels="graded", measures="P@2",
        prompt=prompt, judge_prompt=prompt,
    )  # fmt: skip
    local = base.but(reader=reader, dtype="float32", actors=0)
    here = evaluate(inputs, local, store=tmp_path / "store")
    with contextlib.nullcontext(url) if url else serving(Behaviour(model_of(reader))) as url:
        served = base.but(reader="openai:served", base_url=url, endpoint=endpoint)
        there = evaluate(inputs, served, store=tmp_path / "store")
    outputs = here.reads["output"].to_list()
    assert there.reads["output"].to_list() == outputs
    assert len(set(outputs)) > 3
    for column in ("query_id", "doc_ids", "prompt_tokens"):
        assert there.reads[column].to_list() == here.reads[column].to_list()
    chosen = there.reads["confidence"].drop_nulls().to_list()
    assert chosen == pytest.approx(here.reads["confidence"].drop_nulls().to_list(), abs=1e-4)
    assert there.labels.drop("label").equals(here.labels.drop("label"))
    labels = there.labels["label"].to_list()
    assert labels == pytest.approx(here.labels["label"].to_list(), abs=1e-4)
    assert there.end_to_end.equals(here.end_to_end)
