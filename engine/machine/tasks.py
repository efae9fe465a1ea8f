"""Calls of a function on Ray's workers, some at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions

from engine.errors import ReadError
from engine.machine import cluster

# Of a CPU: such calls go on beside actors that take nearly all of them.
_CPUS = 0.1


class Tasks:
    """Calls ``function(shared, …)`` on workers; it is called again where its process or node is lost.

    Args:
        function: gives None, or the error that is to be raised here.
        shared: sent to every node once.
        what: names the work, for an error.
    """

    def __init__(self, function: Callable[..., Exception | None], shared: Any, what: str) -> None:
        self._function = ray.remote(num_cpus=_CPUS, max_retries=-1)(function)
        self._shared = ray.put(shared)
        self._what = what
        self._under_way: list[ray.ObjectRef] = []

    def submit(self, *arguments: Any) -> None:
        """Call the function, when fewer calls than CPUs are under way.

        Raises:
            Exception: what an earlier call gave.
            ReadError: an earlier call failed.
        """
        # Asked each time: a cluster may have grown since.
        if len(self._under_way) >= max(2, int(ray.cluster_resources().get("CPU", 0))):
            self._wait(1)
        self._under_way.append(self._function.remote(self._shared, *arguments))

    def finish(self) -> None:
        """Wait for all calls; raises as ``submit``."""
        self._wait(len(self._under_way))

    def _wait(self, some: int) -> None:
        if not some:
            return
        done, self._under_way = ray.wait(self._under_way, num_returns=some)
        try:
            told = ray.get(done)
        except ray.exceptions.RayError as error:
            raise ReadError(f"{self._what} on Ray failed: {cluster.cause(error)}") from error
        for problem in told:
            if problem is not None:
                raise problem
