"""Training on Ray Train: one worker on a laptop, or several with a GPU each, by the same plan.

The workers share every batch and sum their gradients: by gloo on CPUs, by NCCL on GPUs. A worker that dies
takes the group with it; Ray starts it again, and it goes on from the latest checkpoint.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from engine.machine import cluster, nodes
from engine.machine.batching import machine_memory
from engine.messages.errors import InputError, ReadError, WriteError
from engine.sources.io.folders import Folder
from engine.training.checkpoints import OnProgress, Progress
from engine.training.settings import Workers
from engine.training.train import Plan, train

# Restarts of a group after a worker's death.
_RESTARTS = 3
_SECONDS_BETWEEN_LOOKS = 0.3
# Timeout of workers for each other: all wait while the first one writes checkpoints and the model.
_SECONDS_OF_PATIENCE = 6 * 3600


class _Desk:
    """An actor beside the driver: takes the first worker's progress, and the error of a failed worker."""

    def __init__(self) -> None:
        self._news: tuple[Progress, int] | None = None
        self._outcome: tuple[Progress | None, Exception | None] = None, None

    def tell(self, progress: Progress, steps: int) -> None:
        self._news = progress, steps

    def news(self) -> tuple[Progress, int] | None:
        news, self._news = self._news, None
        return news

    def end(self, result: Progress | None, error: Exception | None = None) -> None:
        self._outcome = result or self._outcome[0], self._outcome[1] or error

    def outcome(self) -> tuple[Progress | None, Exception | None]:
        return self._outcome


def train_on_ray(
    plan: Plan,
    folder: Folder,
    workers: Workers,
    *,
    on_progress: OnProgress = lambda progress, steps: None,
) -> Progress:
    """Train as ``train.train`` does, on Ray, with checkpoints in a folder that every worker must reach. ``on_progress``
    is called with the latest step now and then, with its loss alone, and with the last step. Errors as of
    ``train.train``; an InputError if there are fewer GPUs than workers, a ReadError if training failed again and again.
    """
    cluster.start_ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No metrics, and no change of working directory.
    os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    gpus = _gpus(workers)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    desk = ray.remote(num_cpus=0, scheduling_strategy=here)(_Desk).remote()
    spec = plan.start.spec
    if not gpus and not spec.memory and workers.workers > 1:
        # Half of the machine, as two workers would have by default.
        spec = replace(spec, memory=machine_memory() // (2 * workers.workers))
        plan = replace(plan, start=replace(plan.start, spec=spec))
    at = Folder(folder.at.absolute()) if isinstance(folder.at, Path) else folder
    own = {"GPU": 1.0} if gpus else {"CPU": cluster.cpus_per_actor(workers.workers)}
    resources, restarts = {"CPU": 0.0} | own, FailureConfig(max_failures=_RESTARTS)
    scaling = ScalingConfig(
        num_workers=workers.workers, use_gpu=bool(gpus), resources_per_worker=resources
    )
    with tempfile.TemporaryDirectory(prefix="erag-train-") as storage:
        trainer = TorchTrainer(
            _work,
            train_loop_config={"plan": plan, "folder": at, "desk": desk},
            torch_config=_group("nccl" if gpus else "gloo"),
            scaling_config=scaling,
            run_config=RunConfig(storage_path=storage, failure_config=restarts),
        )
        failure = _watched(trainer, desk, on_progress)
    result, error = ray.get(desk.outcome.remote())
    ray.kill(desk)
    if error is not None:
        raise error
    if failure is not None or result is None:
        why = cluster.cause(failure) if failure else "it ended without a result"
        remedy = "checkpoints are kept: run the same command again"
        raise ReadError(f"training on Ray failed: {why}; {remedy}") from failure
    return result


def _watched(trainer: Any, desk: Any, on_progress: OnProgress) -> Exception | None:
    """Run a trainer to its end and report progress; returns its error, if any."""
    failures: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(error)

    # On the main thread Ray would take Ctrl-C for itself.
    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    goes_on = True
    while goes_on:
        thread.join(_SECONDS_BETWEEN_LOOKS)
        goes_on = thread.is_alive()
        if (news := ray.get(desk.news.remote())) is not None:
            on_progress(*news)
    return failures[0] if failures else None


def _gpus(workers: Workers) -> int:
    has = ray.cluster_resources().get("GPU", 0)
    gpus = workers.gpus_per_worker
    if gpus is None:
        gpus = int(any(node.gpus for node in [*nodes.alive(), *(nodes.promised() or [])]))
    if gpus and workers.workers > has and not cluster.is_joined():
        problem = f"{workers.workers} workers with a GPU each on {has:g} GPUs"
        raise InputError(problem, "use fewer `workers`, or `gpus_per_worker` 0", "training.gpus")
    return gpus


def _group(backend: str) -> Any:
    """Ray Train's settings of a group in which every worker sees the GPU that Ray gave it, and no other."""
    from ray.train.torch import TorchConfig

    # By default a worker sees the GPUs of all workers on its node. A variable would reach the driver alone, while the
    # trainer's controller, a separate process, decides.
    own = type("Own", (TorchConfig().backend_cls,), {"share_cuda_visible_devices": False})
    config = type("OwnConfig", (TorchConfig,), {"backend_cls": own})
    return config(backend=backend, timeout_s=_SECONDS_OF_PATIENCE)


def _work(config: dict[str, Any]) -> None:
    from ray.train import get_context

    # A worker's GPU is its first one; accelerate would index by the worker's number on the machine.
    os.environ["LOCAL_RANK"] = "0"
    desk = config["desk"]
    if ray.get(desk.outcome.remote())[1] is not None:
        return  # it would stop again, for the same reason
    latest = 0.0

    def tell(progress: Progress, steps: int) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= _SECONDS_BETWEEN_LOOKS or progress.step == 0 or progress.ended:
            latest = now
            desk.tell.remote(replace(progress, losses=progress.losses[-1:]), steps)

    try:
        result = train(config["plan"], config["folder"], on_progress=tell)
        if get_context().get_world_rank() == 0:
            ray.get(desk.end.remote(result))
    except (InputError, ReadError, WriteError) as error:
        ray.get(desk.end.remote(None, error))
        raise
