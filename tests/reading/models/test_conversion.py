"""Checkpoints in the layout of Fusion-in-Decoder's own code, and pickles in general."""

import json
import pickle
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.utils import WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from engine.machine import model_files
from engine.reading import readers
from engine.reading.models import weights
from tests.expected import refused
from tests.reading.models import t5_family

NAME = "encoder.block.1.layer.0.SelfAttention.q.weight"


@pytest.fixture
def original(tiny_t5, tmp_path):
    """A directory as Fusion-in-Decoder's own code leaves it, and t5's tokenizer put there."""
    return t5_family.add_tokenizer(t5_family.make_original(tiny_t5, tmp_path / "fid"), tiny_t5)


def rewrite(directory, change):
    """Change the pickled weights."""
    state = torch.load(directory / WEIGHTS_NAME, weights_only=True)
    change(state)
    torch.save(state, directory / WEIGHTS_NAME)


def test_a_checkpoint_is_converted_once_and_found_again(original, monkeypatch):
    found = weights.resolve(str(original))
    assert found.architecture == "encoder-decoder"
    assert found.path.is_relative_to(model_files.cache_directory())
    assert not (found.path / "optimizer.pth.tar").exists()

    def converted_again(*_):
        raise AssertionError("converted again")

    monkeypatch.setattr("engine.reading.models.conversion.convert_checkpoint", converted_again)
    assert weights.resolve(str(original)) == found
    # What the specification says is enough to come back to it, and so it is on another machine,
    # which has no such path.
    assert weights.resolve(str(found.path)).digest == found.digest
    spec, _ = readers.specify(str(original), augmentation="fid", task="short-answer")
    assert (spec.weights, spec.path) == (found.digest, str(found.path))
    elsewhere = replace(spec, path=str(found.path) + "-not-here")
    assert readers.load(elsewhere).read([["w1 w2"]])[0].failure is None


def test_a_relative_path_leads_to_the_weights_from_anywhere(original, monkeypatch):
    monkeypatch.chdir(original.parent)
    spec, _ = readers.specify(original.name, augmentation="fid", task="short-answer")
    monkeypatch.chdir("/")
    elsewhere = replace(spec, path=spec.path + "-not-here")
    assert readers.load(elsewhere).read([["w1 w2"]])[0].failure is None


def test_the_digest_follows_weights_configuration_and_tokenizer(original):
    digests = [weights.resolve(str(original)).digest]
    rewrite(original, lambda state: state[t5_family.wrapped_name(NAME)].mul_(2))
    digests.append(weights.resolve(str(original)).digest)
    t5_family.rewrite_config(original, dropout_rate=0.2)
    digests.append(weights.resolve(str(original)).digest)
    text = (original / "tokenizer.json").read_text()
    (original / "tokenizer.json").write_text(text.replace('"w96"', '"w97"'))
    digests.append(weights.resolve(str(original)).digest)
    assert len(set(digests)) == len(digests)
    (original / "optimizer.pth.tar").write_bytes(b"other")
    assert weights.resolve(str(original)).digest == digests[-1]


def test_weights_keep_their_precision_and_ties(original):
    rewrite(original, lambda state: state.update({k: t.half() for k, t in state.items()}))
    found = weights.resolve(str(original))
    with safe_open(found.path / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    assert NAME in names
    assert not [name for name in names if re.search("head|embed", name)]


@pytest.mark.parametrize("layout", ["plain", "shards", "wrapped safetensors"])
def test_other_layouts_give_the_same_weights(tiny_t5, original, tmp_path, layout):
    directory = t5_family.add_tokenizer(shutil.copytree(original, tmp_path / "other"), tiny_t5)
    state = torch.load(directory / WEIGHTS_NAME, weights_only=True)
    (directory / WEIGHTS_NAME).unlink()
    if layout == "plain":
        torch.save(t5_family.state_of(tiny_t5), directory / WEIGHTS_NAME)
    elif layout == "wrapped safetensors":
        save_file({name: t.clone() for name, t in state.items()}, directory / "model.safetensors")
    else:
        files = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
        places = {name: files[i % 2] for i, name in enumerate(state)}
        for file in files:
            torch.save({n: t for n, t in state.items() if places[n] == file}, directory / file)
        index = directory / WEIGHTS_INDEX_NAME
        index.write_text(json.dumps({"weight_map": places}))
    assert weights.resolve(str(directory)).digest == weights.resolve(str(original)).digest
    if layout == "shards":
        (directory / files[1]).unlink()
        with refused("model.file"):
            weights.resolve(str(directory))


def test_a_checkpoint_without_a_tokenizer_says_what_to_put_there(tiny_t5, tmp_path):
    directory = t5_family.make_original(tiny_t5, tmp_path / "fid")
    with refused("model.tokenizer"):
        weights.resolve(str(directory))


def without_one(state):
    del state[t5_family.wrapped_name(NAME)]


def one_too_many(state):
    state["encoder.encoder.block.2.module.layer.0.layer_norm.weight"] = torch.ones(32)


def one_of_another_shape(state):
    state[t5_family.wrapped_name(NAME)] = torch.ones(32, 33)


def another_head(state):
    state["lm_head.weight"] = state["lm_head.weight"] + 1


def fewer_rows(state):
    for name in [*state]:
        if state[name].shape[0] == 100:
            state[name] = state["shared.weight"][:90].clone()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without_one, "model.weights"),
        (one_too_many, "model.weights"),
        (one_of_another_shape, "model.weights"),
        (another_head, "model.untied"),
        (fewer_rows, "model.weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused(original, change, code):
    rewrite(original, change)
    with refused(code):
        weights.resolve(str(original))


def test_a_tokenizer_of_another_model_is_refused(original):
    rewrite(original, fewer_rows)
    t5_family.rewrite_config(original, vocab_size=90)
    with refused("model.vocabulary"):
        weights.resolve(str(original))


class Hostile:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a checkpoint was run')",))


@pytest.mark.parametrize("legacy_zip", [False, True])
def test_code_in_a_checkpoint_is_never_run(original, legacy_zip):
    torch.save(
        {"shared.weight": Hostile()},
        original / WEIGHTS_NAME,
        _use_new_zipfile_serialization=not legacy_zip,
    )
    with refused("model.tensors"):
        weights.resolve(str(original))


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps([1, 2])])
def test_damaged_checkpoints_are_refused_in_one_line(original, content):
    (original / WEIGHTS_NAME).write_bytes(content)
    with refused("model.tensors"):
        weights.resolve(str(original))


def test_a_failed_conversion_leaves_no_directory(original):
    rewrite(original, without_one)
    before = set((model_files.cache_directory() / "readers").glob("*"))
    with refused("model.weights"):
        weights.resolve(str(original))
    assert set((model_files.cache_directory() / "readers").glob("*")) == before
