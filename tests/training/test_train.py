"""A tiny reader learns; a training that was killed, or shared by two, has the same curve."""

import errno
import itertools
import json
import logging
import os
import signal
import socket
import traceback
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.trainer import TRAINER_STATE_NAME

from engine.messages.errors import ReadError, WriteError
from engine.reading import readers
from engine.reading.plan import INPUTS, requested_reads
from engine.reading.protocol import BIASED
from engine.scoring.metrics import exact_match
from engine.sources.io.folders import folder_at
from engine.tables import ANSWERS
from engine.training import checkpoints, learner
from engine.training.checkpoints import Progress, load_progress
from engine.training.examples import Example
from engine.training.learner import initial_model, load_learner
from engine.training.start import on_this_machine, specify_start
from engine.training.train import Plan, fetch_model, train
from engine.training.trainer import FidTrainer, arguments
from tests.expected import as_expected, refused
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
    as_expected(progress.ended)
    assert (progress.cuts.inputs, progress.cuts.cut_inputs) == (1920, 0)
    assert progress.peak_memory > 2**20
    # The model is that of the best evaluation, as any other reader.
    fetch_model(folder_at(tmp_path / "checkpoints"), tmp_path / "model")
    spec, prompt = readers.specify(
        str(tmp_path / "model"), augmentation="fid", task="short-answer", dtype="float32"
    )
    wanted = requested_reads(dev.lists, dev.queries, dev.corpus, prompt=prompt, fingerprint="")
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
WEIGHTS = "model/model.safetensors"


def size_of_weights(learner):
    """Stands for a metric: it rises as weights shrink."""
    return -float(learner.model.shared.weight.detach().abs().mean()), 1


@pytest.fixture
def small(start, monkeypatch):
    """Trains on numbers, with a function in the place of the metric; None for no development queries."""

    def run(folder, measure=size_of_weights, *, start=start, recipe=SMALL, **more):
        monkeypatch.setattr("engine.training.trainer.measuring", lambda *_: measure)
        queries = facts(4, 2) if measure else None
        plan = Plan(start, recipe, lambda *_: Numbers(), queries)
        return train(plan, folder_at(folder), **more)

    return run


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


@pytest.mark.parametrize("step", [1, 7])
def test_a_training_that_was_killed_goes_on_to_the_same_curve(small, step, tmp_path, monkeypatch):
    dropping = specify_start(str(save_start(tmp_path / "start", dropout=0.3)), augmentation="fid")
    expected = small(tmp_path / "whole", start=dropping)
    assert expected.best > 0  # else what is kept would be the start, whatever was learned

    def kill(progress, steps):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    killed = split_off(lambda: small(tmp_path / "killed", start=dropping, on_progress=kill))
    assert ended(killed) == -signal.SIGKILL
    # What is not named is of nobody's use.
    (tmp_path / "killed" / "checkpoint-99").mkdir(parents=True)
    (tmp_path / "killed" / "checkpoint-99" / TRAINER_STATE_NAME).write_text("{")
    steps, warnings = [], []
    handler = logging.Handler()
    handler.emit = warnings.append
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [handler])
    progress = small(
        tmp_path / "killed",
        start=dropping,
        on_progress=lambda progress, _: steps.append(progress.step),
    )
    # Steps 2, 4, 5 (an evaluation) and 6 have checkpoints.
    assert steps == list(range({1: 0, 7: 6}[step], 13))
    assert not warnings  # nothing that users cannot cure
    assert progress.losses == expected.losses
    assert progress.evaluations == expected.evaluations
    assert (progress.best, progress.cuts) == (expected.best, expected.cuts)
    assert progress.starts == (1 if step == 1 else 2)
    assert (tmp_path / "killed" / WEIGHTS).read_bytes() == (
        tmp_path / "whole" / WEIGHTS
    ).read_bytes()
    # Once it has ended, it is only looked up.
    assert small(tmp_path / "killed", start=dropping) == progress
    assert [one.name for one in sorted((tmp_path / "killed").iterdir())] == sorted(
        {"checkpoint-12", f"checkpoint-{progress.best}", "checkpoint.json", "model"}
    )


def test_two_workers_take_the_steps_of_one(start, small, tmp_path, monkeypatch):
    recipe = replace(SMALL, epochs=2, learning_rate=1e-2)
    expected = small(tmp_path / "one", None, recipe=recipe)  # the last weights are kept
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def work(rank):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
        progress = small(tmp_path / "two", None, recipe=recipe)
        (tmp_path / f"curve{rank}").write_text(json.dumps([progress.losses, progress.cuts.targets]))

    processes = [split_off(lambda r=r: work(r)) for r in (0, 1)]
    assert [ended(process) for process in processes] == [0, 0]
    losses, targets = json.loads((tmp_path / "curve0").read_text())
    assert json.loads((tmp_path / "curve1").read_text()) == [losses, targets]
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    assert targets == expected.cuts.targets == 22
    one, two = (load_file(tmp_path / name / WEIGHTS) for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-5)
    assert len(load_progress(folder_at(tmp_path / "two"), expected.run).at_once) == 2


def test_checkpoints_are_at_any_address_and_no_others_stay(small):
    place = "memory://training/checkpoints"
    progress = small(place)
    folder = folder_at(place)
    assert folder.names() == ["checkpoint.json"]
    kept = {"checkpoint-12", f"checkpoint-{progress.best}", "model"}
    assert set(folder.folders()) == kept
    folder.write("own.txt", b"")
    checkpoints.remove(folder)
    assert (folder.names(), folder.folders()) == (["own.txt"], [])


def test_training_ends_early_and_keeps_the_best(small, tmp_path):
    values = iter([0.1, 0.5, 0.4, 0.5, 0.3, 0.9])
    kept = {}

    def measure(learner):
        value = next(values)
        kept[value] = learner.model.shared.weight.detach().clone()
        return 2 * value, 2

    progress = small(tmp_path, measure, recipe=replace(SMALL, evaluate_every=1, patience=3))
    assert [e.value for e in progress.evaluations] == [0.1, 0.5, 0.4, 0.5, 0.3]
    # As good is no improvement; but of two that are equally good, the later one is kept.
    assert (progress.best, progress.step) == (3, 4)
    as_expected(progress.ended)
    assert torch.equal(load_file(tmp_path / WEIGHTS)["shared.weight"], kept[0.5])


def test_where_nothing_is_better_the_start_is_kept(start, small, tmp_path):
    values = itertools.chain([0.5], itertools.repeat(0.0))
    progress = small(tmp_path, lambda learner: (next(values), 1))
    assert (progress.best, progress.step) == (0, 12)
    kept = load_file(tmp_path / WEIGHTS)["shared.weight"]
    assert torch.equal(kept, initial_model(start, SMALL.seed).shared.weight)


def test_a_loss_that_is_not_a_number_ends_the_training(small, tmp_path):
    recipe = replace(SMALL, learning_rate=1e30, clip=0.0)
    with refused("training.diverged"):
        small(tmp_path, None, recipe=recipe)


def test_each_step_has_its_rate_and_its_clipped_mean_gradient(start, tmp_path):
    recipe = replace(SMALL, learning_rate=1e-2, clip=0.5)
    learner, _ = load_learner(start, recipe, torch.device("cpu"), "float32")
    before = learner.model.shared.weight.detach().clone()
    examples = Numbers()
    args = arguments(recipe, torch.device("cpu"), tmp_path)
    trainer = FidTrainer(learner, examples, recipe, args, Progress("r", "float32"))
    seen = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append(
            (optimizer.param_groups[0]["lr"], learner.model.shared.weight.grad.clone())
        )
    )
    moved = []
    trainer.optimizer.register_step_post_hook(
        lambda *_: moved.append(learner.model.shared.weight.detach().clone())
    )
    first = trainer.train_dataset[0]
    learner.accumulate(first, 0, may_checkpoint=False)
    gradients = [p.grad / sum(len(one.target) for one in first) for p in learner.model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([one.norm() for one in gradients]))
    assert norm > 0.5
    learner.model.zero_grad()
    trainer.train()
    assert [rate for rate, _ in seen] == pytest.approx([recipe.rate(n, 12) for n in range(1, 13)])
    torch.testing.assert_close(seen[0][1], gradients[0] * 0.5 / norm, rtol=1e-4, atol=1e-6)
    # AdamW's first step is the learning rate in the direction of the gradient's sign.
    step = (moved[0] - before)[gradients[0].abs() > 1e-3].abs()
    torch.testing.assert_close(step, torch.full_like(step, 1e-2), rtol=1e-2, atol=0)


def test_checkpoints_of_another_training_and_of_an_earlier_version_are_refused(small, tmp_path):
    small(tmp_path)
    with refused("training.checkpoint"):
        small(tmp_path, recipe=replace(SMALL, seed=2))
    known = json.loads((tmp_path / "checkpoint.json").read_text())
    for content in ('{"step": 3', "{}", json.dumps(known | {"capacity": []})):
        (tmp_path / "checkpoint.json").write_text(content)
        with refused("training.format"):
            small(tmp_path)


def test_a_checkpoint_that_lacks_a_file_or_is_damaged_is_refused(small, tmp_path):
    def stop(progress, steps):
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(tmp_path, on_progress=stop)
    weights = tmp_path / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(b"cut")
    with refused("training.damaged"):
        small(tmp_path)
    weights.unlink()
    with refused("training.missing"):
        small(tmp_path)


def test_a_full_disk_is_told(small, tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError(f"Error while serializing: {os.strerror(errno.ENOSPC)} (os error 28)")

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    with pytest.raises(WriteError) as caught:
        small(tmp_path)
    as_expected(str(caught.value))


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
        with refused("training.checkpoint"):
            train(changed, place)


def test_a_curve_has_one_arithmetic_whatever_the_machine(start, tmp_path, monkeypatch):
    plan = Plan(start, replace(RECIPE, epochs=1, batch=16, precision=None), facts(16, 1))
    place = folder_at(tmp_path)
    monkeypatch.setattr(learner, "best_precision", lambda: "float32")
    assert train(plan, place).precision == "float32"
    named = replace(plan, recipe=replace(plan.recipe, precision="float32"))
    assert train(named, place).starts == 1
    monkeypatch.setattr(learner, "best_precision", lambda: "bfloat16")
    with refused("training.checkpoint"):
        train(plan, place)


def test_passages_in_one_prompt_and_nothing(start, tmp_path):
    in_prompt = specify_start(start.spec.path, augmentation="in-prompt")
    recipe = replace(RECIPE, epochs=2, batch=16)
    place = folder_at(tmp_path / "in-prompt")
    progress = train(Plan(in_prompt, recipe, facts(32, 1), facts(4, 2)), place)
    assert progress.cuts.inputs == 32
    assert progress.losses[-1] < progress.losses[0]
    with refused("training.empty"):
        train(Plan(start, recipe, facts(0, 1)), folder_at(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"vocab_size": 5}, "model.vocabulary"),
        ({"eos_token_id": None}, "model.endless"),
        ({"eos_token_id": 9}, "model.ends"),
    ],
)
def test_a_start_that_cannot_be_trained_is_refused(change, code, tmp_path):
    save_start(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    start = specify_start(str(tmp_path), augmentation="fid")
    with refused(code):
        load_learner(start, RECIPE, torch.device("cpu"), "float32")


def test_a_start_is_found_on_another_machine_and_must_be_the_same(start, tmp_path):
    there = replace(start, spec=replace(start.spec, path="/nowhere", source=start.spec.path))
    assert on_this_machine(there) == replace(there, spec=replace(there.spec, path=start.spec.path))
    other = specify_start(str(save_start(tmp_path / "other")), augmentation="fid")
    (tmp_path / "other" / "added.json").write_text("{}")
    with pytest.raises(ReadError) as caught:
        train(Plan(other, RECIPE, facts(2, 1)), folder_at(tmp_path / "checkpoints"))
    as_expected(str(caught.value))


def test_what_is_no_start_is_refused(start, tmp_path):
    def no_start(code, place, augmentation="fid", **options):
        with refused(code, text="memory" not in options):
            specify_start(str(place), augmentation=augmentation, **options)

    no_start("model.unconfigured", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    no_start("training.architecture", tmp_path, "in-prompt")
    unread = save_start(tmp_path / "unread")
    (unread / "tf_model.h5").write_text("")
    no_start("model.weightless", unread)
    biased = save_start(tmp_path / "biased")
    config = json.loads((biased / "config.json").read_text())
    (biased / "config.json").write_text(json.dumps(config | {"model_type": BIASED}))
    no_start("training.start", biased)
    choice = tmp_path / "choice.txt"
    choice.write_text("---\nchoices: [a, b]\n---\n{query}{passages}\n")
    no_start("training.choices", start.spec.path, prompt=str(choice))
    small = replace(start, spec=replace(start.spec, memory=2**20))
    with refused("settings.memory", text=False):  # the least depends on the machine
        load_learner(small, RECIPE, torch.device("cpu"), "float32")
    weighted = save_start(tmp_path / "weighted", weights=True)
    no_start("settings.memory", weighted, memory=2**20)
