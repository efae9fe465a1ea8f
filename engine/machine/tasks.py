"""Call a function on Ray's workers, some calls at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions

from engine.machine import cluster
from engine.machine.attempts import LOST_WITH_NODE
from engine.messages.errors import ReadError

# Of a CPU: such calls go on beside actors that take nearly all of them.
_CPUS = 0.1
# Deaths of its process after which a call is given up, and what each counts: a node may be taken away.
_STRIKES = 4.0
_DEATHS = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
)


class Tasks:
    """Calls ``function(shared, …)`` on workers; it is called again where its process or node is lost.

    Ray itself would call it again for ever where it always ends its process (for want of memory, say).

    Args:
        function: gives None, or the error that is to be raised here.
        shared: sent to every node once.
    """

    def __init__(self, function: Callable[..., Exception | None], shared: Any, what: str) -> None:
        self._function = ray.remote(num_cpus=_CPUS, max_retries=0)(function)
        self._shared = ray.put(shared)
        self._what = what
        # The arguments of each call, and what the deaths of its processes count for so far.
        self._under_way: dict[ray.ObjectRef, tuple[tuple[Any, ...], float]] = {}

    def submit(self, *arguments: Any) -> None:
        """Call the function, when fewer calls than CPUs are under way.

        Raises:
            Exception: what an earlier call gave.
            ReadError: an earlier call failed, or its process died each time.
        """
        # Of the cluster as it is now: nodes come and go.
        most = max(2, int(ray.cluster_resources().get("CPU", 1)))
        self._wait(most - 1)
        self._call(arguments, 0.0)

    def finish(self) -> None:
        """Wait for all calls; raises as ``submit``."""
        self._wait(0)

    def _call(self, arguments: tuple[Any, ...], deaths: float) -> None:
        call = self._function.remote(self._shared, *arguments)
        self._under_way[call] = arguments, deaths

    def _wait(self, left: int) -> None:
        """Wait until at most so many calls are under way."""
        while len(self._under_way) > left:
            (done,), _ = ray.wait(list(self._under_way), num_returns=1)
            arguments, deaths = self._under_way.pop(done)
            try:
                problem = ray.get(done)
            except _DEATHS as error:
                with_node = ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError
                deaths += LOST_WITH_NODE if isinstance(error, with_node) else 1.0
                if deaths >= _STRIKES:
                    raise ReadError(
                        f"{self._what} on Ray failed: its process died again and again, perhaps for want of "
                        f"memory; what is finished is kept ({cluster.cause(error)})"
                    ) from error
                self._call(arguments, deaths)
                continue
            except ray.exceptions.RayError as error:
                raise ReadError(f"{self._what} on Ray failed: {cluster.cause(error)}") from error
            if problem is not None:
                raise problem
