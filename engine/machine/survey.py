"""Ask the reading nodes for their abilities; the driver's machine may differ.

Precision and engine decide outputs and keys, so they must not depend on which nodes are up: if nodes differ, the user
chooses.
"""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from engine.machine import device, nodes
from engine.machine.device import Dtype
from engine.machine.nodes import Needs, Node
from engine.machine.pool import PoolSettings, decide
from engine.machine.watch import OnEvent, PoolTotals, silent, watched
from engine.messages.errors import InputError, ReadError
from engine.messages.extras import is_installed
from engine.messages.wording import counted

Answer = TypeVar("Answer")


class Ability(NamedTuple):
    """A machine's fastest precision, whether it reads on vLLM, and vLLM's needs there (``device.lacking_compiler``)."""

    dtype: Dtype
    vllm: bool
    lacks: str = ""


# Seconds for an answer, which may have to wait for a GPU that another job holds; the first node gets as long as a
# cluster may take to find one.
_FOR_AN_ANSWER, _FOR_A_NODE = 120.0, 6 * 3600.0


def reading_dtype(settings: PoolSettings, on_event: OnEvent = silent) -> Dtype:
    """The fastest precision of the nodes that will read; without a cluster (``RAY_ADDRESS``), of this machine. Every
    node that can host an actor answers; this waits for the first. An InputError if nodes differ, or none can ever host
    an actor; a ReadError if none came or answered.
    """
    if _is_own(settings):
        return device.best_dtype()
    dtypes = [(ability.dtype, node) for ability, node in _abilities(settings, on_event)]
    differ = "the nodes that read are fast in different precisions"
    return agreed(dtypes, differ=differ, option="dtype")


def reading_on_vllm(settings: PoolSettings, on_event: OnEvent = silent) -> bool:
    """Whether the reading nodes have usable GPUs and vLLM; else as ``reading_dtype``. An InputError, too, if vLLM has
    no C compiler there.
    """
    if settings.gpus_per_actor == 0:
        return False
    if _is_own(settings):
        if on_vllm := device.reads_on_vllm():
            device.require_compiler()
        return on_vllm
    abilities = _abilities(settings, on_event)
    engines = [("vllm" if ability.vllm else "transformers", node) for ability, node in abilities]
    differ = "vLLM is installed on some of the nodes that read, beside a GPU, and not on others"
    on_vllm = agreed(engines, differ=differ, option="engine") == "vllm"
    lacking = [(ability.lacks, node) for ability, node in abilities if ability.lacks]
    if on_vllm and lacking:
        where = _some([node for _, node in lacking])
        problem = f"vLLM cannot start on {where}: there is {lacking[0][0]}"
        raise InputError(problem, device.COMPILER_REMEDY, "cluster.compiler")
    return on_vllm


def either_engine_reads(settings: PoolSettings) -> bool:
    """Whether readers may run on the engine's own loops or on vLLM: on this machine's CPU, with vLLM installed.

    On a cluster without GPUs they run on the own loops: its nodes may differ in installed packages.
    """
    return _is_own(settings) and is_installed("vllm") and not device.machine_has_gpu()


def reads_on_gpus(settings: PoolSettings) -> bool:
    """Whether actors will have GPUs: by the user's setting, or by the present nodes."""
    is_set = settings.accelerator_type is not None or settings.gpus_per_actor is not None
    if is_set and not settings.in_process:
        return settings.gpus_per_actor != 0
    if _is_own(settings):
        return device.machine_has_gpu()
    from engine.machine import cluster

    cluster.start_ray()
    return decide(settings, 0).needs.gpus > 0


def _is_own(settings: PoolSettings) -> bool:
    return settings.in_process or not os.environ.get("RAY_ADDRESS")


# One answer for all conditions of a study, and for all roles.
@functools.cache
def _abilities(settings: PoolSettings, on_event: OnEvent) -> list[tuple[Ability, Node]]:
    import ray

    from engine.machine import cluster

    cluster.start_ray()
    needs = decide(settings, 0).needs
    if not any(node.fits(needs) for node in nodes.alive()):
        with watched(needs, on_event, PoolTotals(), lambda: None):
            # A task without a place makes an autoscaler add a node.
            ready, _ = ray.wait([_ask(needs)], timeout=_FOR_A_NODE)
        if not ready:
            raise ReadError(f"no node with {needs} joined the cluster")
    questions = {_ask(needs, node): node for node in nodes.alive() if node.fits(needs)}
    deadline = time.monotonic() + _FOR_AN_ANSWER
    answers: list[tuple[Ability, Node]] = []
    left = list(questions)
    while left and time.monotonic() < deadline:
        ready, left = ray.wait(left, timeout=max(0.1, deadline - time.monotonic()))
        for question in ready:
            try:
                answers.append((ray.get(question), questions[question]))
            except ray.exceptions.RayError as error:
                # A node that left, or whose GPU fails, does not count; a node without the package does.
                if isinstance(error, ray.exceptions.RayTaskError) and not device.is_fatal(error):
                    problem = f"a node cannot read: {cluster.cause(error)}"
                    raise ReadError(f"{problem}; install the package there") from error
    for question in left:
        ray.cancel(question)
    return answers


def agreed(answers: Sequence[tuple[Answer, Node]], *, differ: str, option: str) -> Answer:
    """The common answer of all nodes; an InputError if they differ, and a ReadError if none answered."""
    by_answer: defaultdict[Answer, list[Node]] = defaultdict(list)
    for answer, node in answers:
        by_answer[answer].append(node)
    if not by_answer:
        raise ReadError(f"no node answered what it can do; give `{option}`")
    if len(by_answer) > 1:
        parts = sorted(by_answer.items(), key=str)
        differ += ": " + "; ".join(f"{answer} on {_some(those)}" for answer, those in parts)
        remedy = f"choose one with `{option}`, or nodes with `accelerator_type`"
        raise InputError(differ, remedy, "cluster.unlike")
    (answer,) = by_answer
    return answer


def ability() -> Ability:
    """The abilities of this machine."""
    on_vllm = device.reads_on_vllm()
    return Ability(device.best_dtype(), on_vllm, device.lacking_compiler() if on_vllm else "")


def _some(those: list[Node]) -> str:
    """The number and kinds of nodes, in words."""
    kinds = sorted({kind for node in those for kind in node.accelerator_types} or {"CPU"})
    return f"{counted(len(those), '[node|nodes]')} ({', '.join(kinds)})"


def _ask(needs: Needs, node: Node | None = None) -> Any:
    """Ask a node, or any node with room for an actor, for its abilities."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = needs.options()
    if node is not None:
        # A small share, so that the question finds room beside other jobs.
        options = {"num_cpus": 0, "num_gpus": min(needs.gpus, 0.01)}
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(**options, max_retries=3)(ability).remote()
