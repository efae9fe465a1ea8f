"""List the nodes of a cluster, and nodes that its autoscaler may add."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engine.machine import ray_internals
from engine.messages.wording import counted, listed

_ACCELERATOR = "accelerator_type:"
# Unstated memory of a node type is no limit, since nodes detect it themselves.
_ANY_MEMORY = {"memory": math.inf}


@dataclass(frozen=True)
class Needs:
    """An actor's share of a node's resources; ``memory`` is main memory in bytes, 0 if it is not counted."""

    cpus: float
    gpus: float
    memory: int
    accelerator_type: str | None

    def options(self) -> dict[str, Any]:
        """The options of Ray that request this share, but for memory."""
        kind = {"accelerator_type": self.accelerator_type} if self.accelerator_type else {}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, **kind}

    def __str__(self) -> str:
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus:g} GPUs" if self.gpus else ""
        kind = f" of type {self.accelerator_type}" if self.accelerator_type else ""
        cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus:g} CPUs" if self.cpus else ""
        memory = f"{self.memory / 2**30:.1f} GiB of memory" if self.memory else ""
        return listed([part for part in (gpus + kind, cpus, memory) if part]) or "some CPU"


@dataclass(frozen=True)
class Node:
    """A node, or a type of nodes of which ``most`` (perhaps infinite) may be added: its resources, used or not."""

    cpus: float
    gpus: float
    memory: float
    accelerator_types: frozenset[str]
    id: str = ""
    address: str = ""
    is_head: bool = False
    most: float = 1.0

    def fits(self, needs: Needs) -> bool:
        """Whether an actor with these needs could ever run here."""
        return self.room(needs) > 0

    def room(self, needs: Needs) -> int:
        """Number of actors with these needs that could run here."""
        kind = needs.accelerator_type
        if kind is not None and kind not in self.accelerator_types:
            return 0
        has = (self.cpus, self.gpus, self.memory)
        takes = (needs.cpus, needs.gpus, needs.memory)
        room = min((h / t + 1e-9 for h, t in zip(has, takes, strict=True) if t), default=1.0)
        # Resources that a node type does not state are unlimited, but the node still hosts only so many actors.
        return int(room) if room < math.inf else 1


def _node(resources: Mapping[str, float], **more: Any) -> Node:
    kinds = (name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR))
    cpus, gpus, memory = (float(resources.get(name, 0)) for name in ("CPU", "GPU", "memory"))
    is_head = ray_internals.HEAD in resources
    return Node(cpus, gpus, memory, frozenset(kinds), is_head=is_head, **more)


def _node_type(resources: Mapping[str, float] | None, most: float) -> Node:
    return _node({**_ANY_MEMORY, **(resources or {})}, most=most)


def alive() -> list[Node]:
    """The present nodes; Ray must have been started."""
    import ray

    return [
        _node(node["Resources"], id=node["NodeID"], address=node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def promised() -> list[Node] | None:
    """The types of nodes that an autoscaler may add; None without evidence of an autoscaler.

    Ray does not tell: ``ray start --head`` runs an autoscaler that adds nothing. Some platforms leave a configuration
    in Ray's control store, and ``ray up`` leaves a file on the head, where drivers run.
    """
    return _from_control_store() or _from_file()


def _from_control_store() -> list[Node] | None:
    groups = (group for group in ray_internals.node_groups() if group.max_count and group.resources)
    types = [(group.resources, float(group.max_count)) for group in groups]
    return [_node_type(has, most if most >= 0 else math.inf) for has, most in types] or None


def _from_file() -> list[Node] | None:
    import ray

    here = ray.get_runtime_context().get_node_id()
    if not any(node.id == here and node.is_head for node in alive()):
        return None
    try:
        config = yaml.safe_load((Path.home() / ray_internals.BOOTSTRAP).read_text(encoding="utf-8"))
        types = config["available_node_types"].values()
        most = float(config.get("max_workers", math.inf))
        return [
            _node_type(kind.get("resources"), min(most, float(kind.get("max_workers", math.inf))))
            for kind in types
            if kind.get("max_workers", 1)
        ] or None
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        return None


def room_ever(needs: Needs, alive: Iterable[Node], promised: Iterable[Node]) -> float:
    """The most such actors on a cluster once its autoscaler, which adds all nodes but the head, is at its limit."""
    alive = list(alive)
    rooms = [(kind.room(needs), kind.most) for kind in promised]
    added = sum(room * most for room, most in rooms if room)
    now = sum(node.room(needs) for node in alive)
    return max(now, added + sum(node.room(needs) for node in alive if node.is_head))


def describe_largest(known: Iterable[Node]) -> str:
    """The largest node in words, for messages."""
    largest = max(known, key=lambda node: (node.gpus, node.cpus), default=None)
    if largest is None:
        return "there is no node"
    kinds = ", ".join(sorted(largest.accelerator_types))
    gpus = counted(int(largest.gpus), "[GPU|GPUs]") + (f" ({kinds})" if kinds else "")
    gpus = gpus if largest.gpus else "no GPU"
    return f"the largest has {gpus} and {largest.cpus:g} CPUs"
