"""A tiny reader learns; a training that was killed, or shared by two, has the same curve."""

import itertools
import json
import os
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from engine.messages.errors import InputError, ReadError, WriteError
from engine.reading import readers
from engine.reading.plan import INPUTS, wanted_reads
from engine.reading.protocol import BIASED
from engine.scoring.metrics import exact_match
from engine.sources.io.folders import folder_at
from engine.tables import ANSWERS
from engine.training import checkpoints, loading
from engine.training.checkpoints import load_progress
from engine.training.examples import Example
from engine.training.group import Alone, Processes
from engine.training.learner import save
from engine.training.loading import load_learner
from engine.training.loop import Training
from engine.training.start import on_this_machine, specify_start
from engine.training.train import Plan, fetch_model, train
from tests.training.facts import RECIPE, facts, save_start


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = save_start(tmp_path_factory.mktemp("scratch"))
    start = specify_start(str(directory), augmentation="fid")
    return replace(start, spec=replace(start.spec, dtype="float32"))


def test_a_tiny_reader_learns_facts_from_nothing(start, tmp_path):
    recipe = replace(RECIPE, epochs=5)
    dev = facts(100, 2)
    told = []
    progress = train(
        Plan(start, recipe, facts(640, 1), dev),
        folder_at(tmp_path / "checkpoints"),
        on_progress=lambda progress, steps: told.append((progress.step, steps)),
    )
    values = [one.value for one in progress.evaluations]
    assert [one.step for one in progress.evaluations] == [0, 20, 40, 60, 80, 100]
    tokens = [one.tokens for one in progress.evaluations]
    assert tokens[0] == 0
    assert sorted(set(tokens)) == tokens
    assert progress.tokens == tokens[-1]
    assert values[0] == 0.0
    assert max(values) > 0.9
    assert told == [(step, 100) for step in range(101)]
    assert progress.ended == "all epochs are done"
    assert (progress.cuts.inputs, progress.cuts.cut_inputs) == (1920, 0)
    assert progress.peak_memory > 2**20
    # The model is that of the best evaluation, as any other reader.
    fetch_model(folder_at(tmp_path / "checkpoints"), tmp_path / "model")
    spec, prompt = readers.specify(
        str(tmp_path / "model"), augmentation="fid", task="short-answer", dtype="float32"
    )
    wanted = wanted_reads(dev.lists, dev.queries, dev.corpus, prompt=prompt, fingerprint="")
    outputs = readers.load(spec).read(wanted[INPUTS].to_list())
    scores = [
        exact_match(output.output, answers)
        for output, answers in zip(outputs, dev.queries[ANSWERS].to_list(), strict=True)
    ]
    assert sum(scores) / 100 == progress.best_value == max(values)


class Numbers:
    """Examples made of numbers alone; nothing that a process split off from this one could stumble over."""

    digest = "numbers"

    def __len__(self):
        return 22

    def draw(self, epoch, places):
        return [
            Example(tuple((3 + (i * j) % 19, 4 + i % 18, 1) for j in (1, 2)), (3 + i % 19, 1))
            for i in places
        ]


# Three steps an epoch, the last of 6 examples.
SMALL = replace(RECIPE, batch=8, epochs=4, checkpoint_every=2, evaluate_every=5)


def training(start, folder, recipe=SMALL, **more):
    learner, _ = load_learner(start, recipe, Alone())
    given = {"group": Alone(), "measure": size_of_weights} | more
    return Training(learner, Numbers(), recipe, folder=folder_at(folder), run="r", **given)


def size_of_weights(learner):
    """Stands for a metric: it rises as weights shrink."""
    return -float(learner.parameters["shared.weight"].detach().abs().mean()), 1


def state_of(learner):
    return {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}


def split_off(task):
    """Do something in a process that is split off from this one; how that ended."""
    if (process := os.fork()) == 0:
        status = 1
        try:
            task()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_training_that_was_killed_goes_on_to_the_same_curve(start, step, tmp_path):
    def made(folder, **more):
        one = training(start, folder, **more)
        for module in one.learner.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.3
        return one

    whole = made(tmp_path / "whole")
    expected = whole.fit()
    assert expected.best > 0  # else what is kept would be the start, whatever was learned

    def kill(progress, steps):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    killed = made(tmp_path / "killed", on_progress=kill)
    assert ended(split_off(killed.fit)) == -signal.SIGKILL
    again = made(tmp_path / "killed")
    steps = []
    again.on_progress = lambda progress, _: steps.append(progress.step)
    progress = again.fit()
    # Steps 2, 4 and 5 (an evaluation) have checkpoints; the step that was killed may have had its own.
    assert steps[0] == {1: 0, 5: 5, 7: 6}[step]
    assert progress.losses == expected.losses
    assert progress.evaluations == expected.evaluations
    assert (progress.best, progress.cuts) == (expected.best, expected.cuts)
    assert progress.starts == 2
    for name, weight in state_of(whole.learner).items():
        assert torch.equal(again.learner.parameters[name], weight), name
    # Once it has ended, it is only looked up.
    assert made(tmp_path / "killed").fit() == progress


def test_another_budget_of_memory_holds_from_where_a_training_goes_on(start, tmp_path):
    def stop(progress, steps):
        if progress.step == 4:
            raise KeyboardInterrupt

    def made(**changed):
        return training(start, tmp_path, replace(SMALL, **changed), measure=None)

    with pytest.raises(KeyboardInterrupt):
        one = made()
        one.learner.restore(replace(one.learner.capacity, tokens=40))
        one.on_progress = stop
        one.fit()
    same = made()
    same.on_progress = stop
    with pytest.raises(KeyboardInterrupt):
        same.fit()
    assert same.learner.capacity.tokens == 40
    other = made(gradient_checkpointing=True)
    other.fit()
    assert other.learner.capacity.checkpointing
    assert other.learner.capacity.tokens > 40


def test_two_workers_take_the_steps_of_one(start, tmp_path):
    recipe = replace(SMALL, epochs=2, learning_rate=1e-2)
    one = training(start, tmp_path / "one", recipe, measure=None)  # the last weights are kept
    before = state_of(one.learner)
    expected = one.fit()
    two = training(start, tmp_path / "two", recipe, measure=None)

    def work(rank):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=2
        )
        two.group = Processes()
        progress = two.fit()
        shared = two.group.gather([float(w.sum()) for w in two.learner.parameters.values()])
        assert shared[0] == shared[1]
        if rank == 0:
            torch.save(state_of(two.learner), tmp_path / "weights")
            (tmp_path / "curve").write_text(json.dumps([progress.losses, progress.cuts.targets]))
        two.group.gather(None)

    assert [ended(process) for process in [split_off(lambda r=r: work(r)) for r in (0, 1)]] == [
        0,
        0,
    ]
    losses, targets = json.loads((tmp_path / "curve").read_text())
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    assert targets == expected.cuts.targets == 22
    moved = torch.load(tmp_path / "weights", weights_only=True)
    for name, weight in state_of(one.learner).items():
        torch.testing.assert_close(moved[name], weight, rtol=1e-3, atol=1e-5)
    assert any(not torch.allclose(moved[name], before[name], atol=1e-3) for name in before)
    assert load_progress(folder_at(tmp_path / "two"), "r").step == 6


def test_checkpoints_are_at_any_address_and_no_others_stay(start):
    place = "memory://training/checkpoints"
    folder = folder_at(place)
    progress = training(start, place).fit()
    kept = {f"weights-{progress.step}.safetensors", f"weights-{progress.best}.safetensors"}
    kept |= {"optimizer-12.safetensors", "checkpoint.json"}
    assert set(folder.names()) == kept
    folder.write("own.txt", b"")
    checkpoints.remove(folder)
    assert folder.names() == ["own.txt"]


def test_training_ends_early_and_keeps_the_best(start, tmp_path):
    values = iter([0.1, 0.5, 0.4, 0.5, 0.3, 0.9])
    kept = {}

    def measure(learner):
        value = next(values)
        kept[value] = state_of(learner)
        return 2 * value, 2

    recipe = replace(SMALL, evaluate_every=1, patience=3)
    one = training(start, tmp_path, recipe, measure=measure)
    progress = one.fit()
    assert [e.value for e in progress.evaluations] == [0.1, 0.5, 0.4, 0.5, 0.3]
    # As good is no improvement; but of two that are equally good, the later one is kept.
    assert (progress.best, progress.step) == (3, 4)
    assert progress.ended == "no better evaluation among the last 3"
    assert all(torch.equal(one.learner.parameters[name], kept[0.5][name]) for name in kept[0.5])


def test_where_nothing_is_better_the_start_is_kept(start, tmp_path):
    values = itertools.chain([0.5], itertools.repeat(0.0))
    one = training(start, tmp_path, measure=lambda learner: (next(values), 1))
    before = state_of(one.learner)
    progress = one.fit()
    assert (progress.best, progress.step) == (0, 12)
    assert all(torch.equal(one.learner.parameters[name], before[name]) for name in before)


def test_without_development_queries_the_last_model_is_kept(start, tmp_path):
    one = training(start, tmp_path, measure=None)
    progress = one.fit()
    assert progress.evaluations == ()
    assert progress.best == progress.step == 12


def test_checkpoints_of_another_training_are_refused(start, tmp_path):
    training(start, tmp_path).fit()
    other = training(start, tmp_path)
    other.run = "other"
    with pytest.raises(
        InputError, match="of another training.*; train in another folder, or remove them"
    ):
        other.fit()
    (tmp_path / "checkpoint.json").write_text('{"step": 3')
    with pytest.raises(InputError, match=r"checkpoint\.json: is not a checkpoint of a training"):
        training(start, tmp_path).fit()


def test_a_damaged_checkpoint_and_a_full_disk_are_told(start, tmp_path, monkeypatch):
    training(start, tmp_path / "damaged").fit()
    (tmp_path / "damaged" / "weights-12.safetensors").write_bytes(b"cut")
    learner = training(start, tmp_path / "damaged").learner
    folder = folder_at(tmp_path / "damaged")
    with pytest.raises(InputError, match=r"weights-12\.safetensors: is damaged"):
        checkpoints.restore(folder, load_progress(folder, "r"), learner)

    def full(*_, **__):
        raise SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    with pytest.raises(WriteError, match="no space is left on the disk"):
        training(start, tmp_path / "full").fit()
    with pytest.raises(WriteError, match="no space is left on the disk"):
        save(learner, Path(start.spec.path), tmp_path)


def test_what_decides_the_curve_tells_trainings_apart(start, tmp_path):
    data, dev = facts(16, 1), facts(4, 2)
    recipe = replace(RECIPE, epochs=1, batch=16)
    place = folder_at(tmp_path)
    plan = Plan(start, recipe, data, dev)
    train(plan, place)
    assert train(replace(plan, recipe=replace(recipe, checkpoint_every=7)), place).starts == 1
    for changed in (
        replace(plan, recipe=replace(recipe, seed=2)),
        replace(plan, train=facts(16, 3)),
        replace(plan, dev=facts(4, 3)),
        replace(plan, metric="f1"),
        replace(plan, start=replace(start, spec=replace(start.spec, max_input_tokens=9))),
    ):
        with pytest.raises(InputError, match="another training"):
            train(changed, place)


def test_a_curve_has_one_arithmetic_whatever_the_machine(start, tmp_path, monkeypatch):
    plan = Plan(start, replace(RECIPE, epochs=1, batch=16, precision=None), facts(16, 1))
    place = folder_at(tmp_path)
    monkeypatch.setattr(loading, "best_precision", lambda: "float32")
    assert train(plan, place).precision == "float32"
    named = replace(plan, recipe=replace(plan.recipe, precision="float32"))
    assert train(named, place).starts == 1
    monkeypatch.setattr(loading, "best_precision", lambda: "bfloat16")
    with pytest.raises(InputError, match="another training"):
        train(plan, place)


def test_passages_in_one_prompt_and_examples_of_ones_own_are_learned(start, tmp_path):
    in_prompt = specify_start(start.spec.path, augmentation="in-prompt")
    recipe = replace(RECIPE, epochs=2, batch=16)
    place = folder_at(tmp_path / "in-prompt")
    progress = train(Plan(in_prompt, recipe, facts(32, 1), facts(4, 2)), place)
    assert progress.cuts.inputs == 32
    assert progress.losses[-1] < progress.losses[0]
    asked = []

    def made(start, tokenizer):
        asked.append((start, len(tokenizer)))
        return Numbers()

    own = train(Plan(start, replace(SMALL, epochs=2), made), folder_at(tmp_path / "own"))
    assert asked == [(start, 22)]
    assert own.cuts.targets == 22
    assert own.losses[-1] < own.losses[0]
    nothing = facts(0, 1)
    with pytest.raises(InputError, match="there is nothing to train on"):
        train(Plan(start, recipe, nothing), folder_at(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"vocab_size": 5}, "its tokenizer has 22 tokens, and vocab_size is 5"),
        ({"eos_token_id": None}, "has no eos_token_id"),
        ({"eos_token_id": 9}, "its tokenizer ends texts with token 1, and eos_token_id is 9"),
    ],
)
def test_a_start_that_cannot_be_trained_is_refused(change, refusal, tmp_path):
    save_start(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    start = specify_start(str(tmp_path), augmentation="fid")
    with pytest.raises(InputError, match=refusal):
        load_learner(start, RECIPE, Alone())


def test_a_start_is_found_on_another_machine_and_must_be_the_same(start, tmp_path):
    there = replace(start, spec=replace(start.spec, path="/nowhere", source=start.spec.path))
    assert on_this_machine(there) == replace(there, spec=replace(there.spec, path=start.spec.path))
    other = specify_start(str(save_start(tmp_path / "other")), augmentation="fid")
    (tmp_path / "other" / "added.json").write_text("{}")
    with pytest.raises(ReadError, match="on this machine are not those asked for"):
        train(Plan(other, RECIPE, facts(2, 1)), folder_at(tmp_path / "checkpoints"))


def test_what_is_no_start_is_refused(start, tmp_path):
    with pytest.raises(InputError, match=r"holds no config\.json"):
        specify_start(str(tmp_path), augmentation="fid")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="decoder-only"):
        specify_start(str(tmp_path), augmentation="in-prompt")
    unread = save_start(tmp_path / "unread")
    (unread / "tf_model.h5").write_text("")
    with pytest.raises(InputError, match=r"holds no \*\.safetensors \(tf_model\.h5 is not read\)"):
        specify_start(str(unread), augmentation="fid")
    biased = save_start(tmp_path / "biased")
    config = json.loads((biased / "config.json").read_text())
    (biased / "config.json").write_text(json.dumps(config | {"model_type": BIASED}))
    with pytest.raises(InputError, match="start from its weights"):
        specify_start(str(biased), augmentation="fid")
    (tmp_path / "choice.txt").write_text("---\nchoices: [a, b]\n---\n{query}{passages}\n")
    with pytest.raises(InputError, match="a prompt with choices"):
        specify_start(start.spec.path, augmentation="fid", prompt=str(tmp_path / "choice.txt"))
    small = replace(start, spec=replace(start.spec, memory=2**20))
    with pytest.raises(InputError, match="`memory` of 1 MiB cannot hold the reader"):
        load_learner(small, RECIPE, Alone())
    weighted = save_start(tmp_path / "weighted", weights=True)
    with pytest.raises(InputError, match="`memory` of 1 MiB cannot hold the reader"):
        specify_start(str(weighted), augmentation="fid", memory=2**20)
