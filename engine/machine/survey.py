"""What the nodes that will read can do, asked of them: the driver's machine need not be like them."""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from typing import Any

from engine.errors import InputError, ReadError
from engine.machine import device, nodes
from engine.machine.device import Dtype
from engine.machine.nodes import Needs, Node
from engine.machine.pool import PoolSettings, decide
from engine.machine.watch import OnEvent, PoolTotals, silent, watched
from engine.wording import counted

# Seconds for an answer, which may have to wait for a GPU that another job holds; the first node gets as
# long as a cluster may take to find one.
_FOR_AN_ANSWER, _FOR_A_NODE = 120.0, 6 * 3600.0


def reading_dtype(settings: PoolSettings, on_event: OnEvent = silent) -> Dtype:
    """The fastest precision of the nodes that will read; on a machine of its own, of this machine.

    On a cluster (``RAY_ADDRESS``) every node that can host an actor is asked. Where there is none yet,
    this waits for the first one.

    Raises:
        InputError: the nodes differ, or none can ever host an actor.
        ReadError: no node came, or none answered.
    """
    if settings.in_process or not os.environ.get("RAY_ADDRESS"):
        return device.best_dtype()
    return _of_cluster(settings, on_event)


# One answer for all conditions of a study, and for all roles.
@functools.cache
def _of_cluster(settings: PoolSettings, on_event: OnEvent) -> Dtype:
    import ray

    from engine.machine import cluster

    cluster.start_ray()
    needs = decide(settings, 0).needs
    if not any(node.fits(needs) for node in nodes.alive()):
        with watched(needs, on_event, PoolTotals(), lambda: None):
            # A task that cannot be placed is what tells an autoscaler to add a node.
            ready, _ = ray.wait([_ask(needs)], timeout=_FOR_A_NODE)
        if not ready:
            raise ReadError(f"no node with {needs} joined the cluster")
    asked = {_ask(needs, node): node for node in nodes.alive() if node.fits(needs)}
    deadline = time.monotonic() + _FOR_AN_ANSWER
    answers: defaultdict[Dtype, list[Node]] = defaultdict(list)
    left = list(asked)
    while left and time.monotonic() < deadline:
        done, left = ray.wait(left, timeout=max(0.1, deadline - time.monotonic()))
        for answer in done:
            try:
                answers[ray.get(answer)].append(asked[answer])
            except ray.exceptions.RayError as error:
                # A node that left meanwhile has no say; one that lacks the package has a cause to tell.
                if isinstance(error, ray.exceptions.RayTaskError):
                    raise ReadError(
                        f"a node cannot read: {cluster.cause(error)}; install the package there"
                    ) from error
    for answer in left:
        ray.cancel(answer)
    return agreed(answers)


def agreed(answers: dict[Dtype, list[Node]]) -> Dtype:
    """The one precision that all nodes name.

    Raises:
        InputError: they differ: precision decides outputs, so it must not depend on which nodes are up.
        ReadError: nobody answered.
    """
    if not answers:
        raise ReadError("no node answered which precision it is fast in; give it with `dtype`")
    if len(answers) > 1:
        said = "; ".join(
            f"{dtype} on {counted(len(those), '[node|nodes]')} ({_kinds(those)})"
            for dtype, those in sorted(answers.items())
        )
        raise InputError(
            None,
            None,
            f"the nodes that read are fast in different precisions: {said}",
            "choose one with `dtype`, or nodes with `accelerator_type`",
        )
    (dtype,) = answers
    return dtype


def _kinds(those: list[Node]) -> str:
    return ", ".join(sorted({kind for node in those for kind in node.accelerator_types} or {"CPU"}))


def _ask(needs: Needs, node: Node | None = None) -> Any:
    """Ask a node, or whichever has room for an actor, for its precision."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 3}
    if node is not None:
        # A sliver, so that the question finds room beside other jobs.
        options |= {"num_cpus": 0, "num_gpus": min(needs.gpus, 0.01)}
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node.id, soft=False)
    elif needs.accelerator_type:
        options["accelerator_type"] = needs.accelerator_type
    return ray.remote(**options)(device.best_dtype).remote()
