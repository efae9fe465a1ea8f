"""Training on Ray Train: the steps of one process, whoever dies, and errors of input as they are."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import ray

from engine.sources.io.folders import folder_at
from engine.training.on_ray import train_on_ray
from engine.training.settings import Workers
from engine.training.start import specify_start
from engine.training.train import Plan, fetch_model, train
from tests.expected import refused
from tests.faults.processes import with_variable
from tests.training.facts import RECIPE, facts, save_start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    start = specify_start(str(save_start(tmp_path_factory.mktemp("start"))), augmentation="fid")
    recipe = replace(RECIPE, epochs=2, checkpoint_every=2)
    return Plan(start, recipe, facts(160, 1), facts(21, 2))


def test_two_workers_take_the_steps_of_this_process(plan, ray_session, tmp_path):
    here = train(plan, folder_at(tmp_path / "here"))
    told = []
    there = train_on_ray(
        plan,
        folder_at(tmp_path / "there"),
        Workers(workers=2),
        on_progress=lambda progress, steps: told.append((progress.step, steps)),
    )
    assert there.losses == pytest.approx(here.losses, rel=1e-4)
    assert there.cuts == here.cuts
    assert len(there.at_once) == 2
    assert [one.step for one in there.evaluations] == [0, 5, 10]
    assert there.evaluations[0] == here.evaluations[0]
    assert told[-1] == (10, 10)
    fetch_model(folder_at(tmp_path / "there"), tmp_path / "model")
    assert specify_start(str(tmp_path / "model"), augmentation="fid").from_scratch is False


def test_a_worker_that_is_killed_is_replaced_and_goes_on(plan, ray_session, tmp_path):
    # Long enough that it is killed before its end.
    plan = replace(plan, recipe=replace(plan.recipe, epochs=10))
    expected = train(plan, folder_at(tmp_path / "whole"))
    folder = tmp_path / "killed"

    def kill():
        """Kill the worker once its first checkpoint is there, well before the training ends."""
        for _ in range(6000):
            if (folder / "checkpoint.json").exists():
                break
            time.sleep(0.01)
        # Those of this Ray alone, whose token nobody else has.
        of_ray = with_variable("RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"])
        processes = [process for process, command in of_ray if "RayTrainWorker" in command]
        for process in processes:
            os.kill(process, signal.SIGKILL)
        killed.extend(processes)

    killed = []
    thread = threading.Thread(target=kill)
    thread.start()
    progress = train_on_ray(plan, folder_at(folder), Workers())
    thread.join()
    assert len(killed) == 1
    assert progress.losses == expected.losses
    assert progress.evaluations == expected.evaluations
    assert progress.starts == 2


def test_an_error_of_input_is_raised_as_it_is_and_once(plan, ray_session, tmp_path):
    folder = folder_at(tmp_path)
    folder.write("checkpoint.json", b"{}")
    with refused("training.format", path=tmp_path / "checkpoint.json"):
        train_on_ray(plan, folder, Workers())
    assert folder.names() == ["checkpoint.json"]


def test_gpus_that_are_not_there_are_refused(plan, ray_session, tmp_path):
    if ray.cluster_resources().get("GPU"):
        pytest.skip("there are GPUs")
    with refused("training.gpus"):
        train_on_ray(plan, folder_at(tmp_path), Workers(workers=2, gpus_per_worker=1))
