"""Attempts at a piece of work whose process may die in it, and how much they say of the work."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import NamedTuple

import ray

# An attempt that ended with its whole node says little of the work: nodes are taken away in the middle of
# it. It says something, since a piece of work can bring its machine down.
LOST_WITH_NODE = 0.25


class Attempt(NamedTuple):
    """One beginning of a piece of work: its name, by which a repeated message counts once, and its node."""

    name: str
    node: str


def new_attempt() -> Attempt:
    """An attempt of this process, which is a worker of Ray or a driver."""
    return Attempt(uuid.uuid4().hex, ray.get_runtime_context().get_node_id())


def weight(ended: Collection[Attempt]) -> float:
    """How many deaths these attempts count for; those whose node is gone count ``LOST_WITH_NODE``."""
    if not ended:
        return 0.0
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return sum(1.0 if attempt.node in alive else LOST_WITH_NODE for attempt in ended)
