"""The pace of an earlier evaluation: how long LLM calls took there, by its ``summary.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.evaluation.jobs import Job
from engine.machine.device import this_machine
from engine.messages.errors import InputError
from engine.planning.counts import Counted
from engine.planning.forecast import Kind
from engine.reading.costs import SINGLE, WHOLE, ReadingCosts
from engine.report.findings import Findings, costs_of, read_summary
from engine.report.summary import SUMMARY, describe_reader, jsonable
from engine.sources.io.locations import Location, inside_of, locate, shown

_REMEDY = "name the results of an evaluation that made LLM calls of its own"
# What decides how fast LLM calls are: of a reader, of actors, and of a machine, as summary.json has it.
_OF_READERS = {"weights_sha256": "weights", "prompt_sha256": "prompt", "name": "name"} | {
    name: name for name in ("augmentation", "dtype", "engine", "executor", "max_new_tokens")
}
_OF_ACTORS = ("gpus_per_actor", "cpus_per_actor", "accelerator_type", "concurrency")
_OF_MACHINES = ("processor", "cpus", "gpus")


@dataclass(frozen=True, eq=False)
class RolePace:
    """What the reads of a role took; ``reader``: who did them, as ``summary.json`` describes it."""

    reader: Mapping[str, Any]
    costs: ReadingCosts

    @property
    def actors(self) -> int:
        """How many read."""
        return max(1, len(self.costs.workers))

    @property
    def start(self) -> float:
        """Seconds of an actor in which it did not read: it started, and loaded its model."""
        return max(0.0, self.costs.seconds - self.costs.reader_seconds / self.actors)

    def timed(self, counted: Counted) -> Kind:
        """Reads with their seconds: in proportion to the tokens of their prompts, where these are counted as they were
        there, else to their number. Without them where it has no reads of the kind.
        """
        costs = self.costs.kinds.get(WHOLE if counted.is_whole else SINGLE)
        kind, spec = counted.kind, counted.job.spec
        if costs is None or not costs.done:
            return kind
        amount: float = kind.left
        done = costs.done
        # A server, or a program of the user's, counts tokens in its own way.
        if spec.is_reproducible and not spec.executor and costs.prompt_tokens:
            amount, done = kind.prompt_tokens or 0, costs.prompt_tokens
        return replace(kind, seconds=amount * costs.reader_seconds / done)

    def differences(self, job: Job) -> list[str]:
        """What is different of the reader of a job that is planned."""
        planned = jsonable(describe_reader(job))
        planned["augmentation"] = "fid" if job.prompt.fused else "in-prompt"
        return [name for key, name in _OF_READERS.items() if _differ(self.reader, planned, key)]


@dataclass(frozen=True)
class Pace:
    """How long the reads of an evaluation took, or of a study: by roles, which a study has one of for each reader."""

    roles: tuple[tuple[str, RolePace], ...]
    summary: Mapping[str, Any]

    @property
    def actors(self) -> int:
        """How many read."""
        return max(one.actors for _, one in self.roles)

    def of(self, job: Job) -> RolePace | None:
        """That of the job's role, of the reader that is most like its own; None where nobody read in that role."""
        of_role = [one for role, one in self.roles if role == job.ask.role.name]
        return min(of_role, key=lambda one: len(one.differences(job)), default=None)

    def differences(self, configuration: Mapping[str, Any]) -> list[str]:
        """What is different of the actors that are planned, and of this machine."""
        there = self.summary.get("audit", {}).get("machine", {})
        here = jsonable(asdict(this_machine()))
        of_actors = (_OF_ACTORS, self.summary["configuration"], configuration)
        return [
            name
            for names, then, now in (of_actors, (_OF_MACHINES, there, here))
            for name in names
            if _differ(then, now, name)
        ]


def _differ(then: Mapping[str, Any], now: Mapping[str, Any], key: str) -> bool:
    return key in then and key in now and then[key] != now[key]


def pace_of(summary: Mapping[str, Any]) -> Pace:
    """The pace that the content of a ``summary.json`` tells.

    Raises:
        InputError: it is not of an evaluation, or of one that read nothing.
    """
    if not {"configuration", "reader", "reading"} <= summary.keys():
        raise InputError("is not the summary of an evaluation", _REMEDY)
    if study := summary.get("study"):
        # Its rows name reader and augmentation; all readers of a study have one precision.
        dtype = {"dtype": (summary["reader"] or {}).get("dtype")}
        roles = [
            (row["role"], RolePace({"name": row["reader"], **row, **dtype}, costs_of(row)))
            for row in study["costs"]
        ]
    else:
        found = Findings(summary, Path(), None).roles
        roles = [(role.name, RolePace(summary[role.key] or {}, found[role])) for role in found]
    if not any(kind.done for _, one in roles for kind in one.costs.kinds.values()):
        raise InputError("has no time of LLM calls: all were cached, or none was needed", _REMEDY)
    return Pace(tuple(roles), summary)


def read_pace(results: Location) -> Pace:
    """The pace of the evaluation whose results are in a folder, or at an address; its summary.json may be named.

    Raises:
        InputError: as ``pace_of``; or there is no summary that can be read.
    """
    folder = locate(str(results).removesuffix(SUMMARY))
    try:
        return pace_of(read_summary(folder))
    except InputError as error:
        raise InputError(error.problem, _REMEDY, path=shown(inside_of(folder, SUMMARY))) from None
