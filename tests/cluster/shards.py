"""An evaluation in shards on a stage's cluster, while something happens; compared with one undisturbed."""

import collections
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import polars as pl

from engine.evaluation import read
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.reading.local import Local
from engine.sources.io.folders import folder_at
from tests.cluster.stage import Stage
from tests.evaluation.in_shards import all_shards, assert_same

QUERIES, PASSAGES = 24, 4
# Every passage alone, and every query's list.
READS = QUERIES * (PASSAGES + 1)
PAIRS_PER_SHARD = 16
# A unit has a shard's reads at most: so many, where every query has its list.
UNIT_READS = PAIRS_PER_SHARD // PASSAGES * (PASSAGES + 1)


class Play(NamedTuple):
    """How long things take on workers, in seconds, and what goes wrong there.

    Attributes:
        pace: of a read; ``planning`` and ``judging``: of a shard; ``load``: of the reader.
        pad: characters that each prompt is longer by, so that units are too large to travel with messages.
        unit: the size of a unit where the pace is not known, in tokens.
        poison: the read with this text kills its process; with that of ``fails``, it fails.
        fatal: what always kills its process ("load", "plan", "judge").
    """

    pace: float = 0.1
    planning: float = 0.2
    judging: float = 0.2
    load: float = 0.0
    pad: int = 0
    unit: int = 250
    poison: str | None = None
    fails: str | None = None
    fatal: str | None = None


UNDISTURBED = Play(pace=0, planning=0, judging=0, unit=2**30)


def on_workers(log: str, play: Play) -> tuple[Any, Any, Any]:
    """What hosts the reader, a wrapper of planners, and what judges; by value, since workers lack this module.

    Each writes a line to the log when it begins: what, which, the node and the process, and the time.
    """
    from dataclasses import fields

    from engine.evaluation.plan import ShardPlans
    from engine.evaluation.read import score_shard
    from engine.reading.plan import INPUTS
    from engine.reading.protocol import ReaderStats, ReadOutput

    pace, planning, judging, load, pad, unit, poison, fails, fatal = play

    def note(what, which):
        import os
        import signal
        import time

        import ray

        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        with open(log, "a") as stream:
            stream.write(f"{what} {which} {node} {os.getpid()} {time.monotonic()}\n")
        if fatal == what and node != "here":
            os.kill(os.getpid(), signal.SIGKILL)

    class Reader:
        def __init__(self):
            self.stats = ReaderStats()

        def read(self, inputs):
            return [self.one("\n".join(texts).rstrip()) for texts in inputs]

        def one(self, text):
            import hashlib
            import os
            import signal
            import time

            digest = hashlib.sha256(text.encode()).hexdigest()
            note("read", digest)
            if poison and poison in text:
                os.kill(os.getpid(), signal.SIGKILL)
            if fails and fails in text:
                return ReadOutput.failed("the reader's process died in this read")
            time.sleep(pace)
            return ReadOutput(f"a{int(digest, 16) % 4}", 5, 1, False)

    class OnActor(Local):
        def load(self, spec):
            import time

            note("load", 0)
            time.sleep(load)
            return Reader()

    class Slow(ShardPlans):
        def __call__(self, shard, role):
            import time
            from dataclasses import replace

            import polars as pl

            note("plan", shard)
            time.sleep(planning)
            plan = ShardPlans.__call__(self, shard, role)
            padded = pl.col(INPUTS).list.eval(pl.element() + " " * pad)
            reads = plan.reads.with_columns(padded) if plan.reads.height else plan.reads
            return replace(plan, reads=reads, least=1, first=unit, most=2**30)

    def slow(plans):
        return Slow(**{one.name: getattr(plans, one.name) for one in fields(plans)})

    def judge(work, shard, *of):
        import time

        note("judge", shard)
        time.sleep(judging)
        return score_shard(work, shard, *of)

    return OnActor, slow, judge


def inputs_in(folder: Path, queries: int = QUERIES, passages: int = PASSAGES) -> InputFiles:
    """Queries with passages of their own, so that no two reads are equal."""
    folder.mkdir(exist_ok=True)
    listed = [(q, p, f"d{q}-{p}") for q in range(queries) for p in range(passages)]
    lines = {
        "q.jsonl": [
            json.dumps(
                {"id": f"q{q}", "input": f"what is {q}", "output": [{"answer": f"a{q % 4}"}]}
            )
            for q in range(queries)
        ],
        "c.jsonl": [
            json.dumps({"id": d, "title": f"Number {q}", "text": f"Fact {p} of {q}: a{p}."})
            for q, p, d in listed
        ],
        "r.trec": [f"q{q} Q0 {d} {p + 1} {9 - p} mine" for q, p, d in listed],
    }
    for name, of in lines.items():
        (folder / name).write_text("\n".join(of) + "\n")
    return InputFiles(
        queries=folder / "q.jsonl", corpus=folder / "c.jsonl", run=(folder / "r.trec",)
    )


def settings(**more: Any) -> Settings:
    given = {"k": PASSAGES, "annotators": ("erag", "containment"), "measures": "P@3 nDCG@4"}
    return Settings.of(**{**given, "resamples": 100, "dtype": "float32", **more})


def evaluated(
    folder, name, asked, play, log, pairs=PAIRS_PER_SHARD, on_event=lambda line: None, **inputs
):
    """Evaluate in shards; tables, store and log are under the name."""
    host, slow, judge = on_workers(str(log), play)
    plans_of = read.Readers.plans
    with (
        patch.object(read.Readers, "plans", lambda *of: slow(plans_of(*of))),
        patch.object(read, "score_shard", judge),
    ):
        (evaluation,) = evaluate_shards(
            partition(
                inputs_in(folder / f"{name}-files", **inputs),
                folder_at(folder / "inputs"),
                k=asked.ranking.k,
                pairs_per_shard=pairs,
            ),
            [asked],
            Context(store=folder / f"{name}-store", on_event=on_event, host=host),
            folder_at(folder / f"{name}-shards"),
        )[0]
        return evaluation


class ShardStage(Stage):
    """A head without CPUs, on which the driver runs."""

    def __init__(self, folder, *, cpus=0, **more):
        super().__init__(folder, cpus=cpus, **more)
        self.happened = 0.0
        self.before = 0
        self.wholes = {}

    def noted(self, *kinds):
        """What was begun: kind, which, node, process and time."""
        lines = [line.split() for line in self.log.read_text().splitlines()[self.before :]]
        return [line for line in lines if line[0] in kinds]

    def until(self, kind, count=1, nodes=()):
        """Wait until so many of a kind were begun (on these nodes); the latest of them."""
        wanted = {node.node_id for node in nodes}
        while True:
            found = [line for line in self.noted(kind) if not wanted or line[2] in wanted]
            if len(found) >= count:
                return found[-1]
            time.sleep(0.02)

    def node_of(self, line, nodes):
        return next(node for node in nodes if node.node_id == line[2])

    def evaluate(self, *, do=None, play=None, undisturbed=None, name="one", again=False, **more):
        """Evaluate in a thread, ``do`` something beside it, and say what came of it.

        Args:
            play: of this evaluation.
            undisturbed: of the one that it is compared with, which has neither pace nor mishaps.
            name: of its store and folders.
            again: whether reads that were begun before it count, too.
            more: as in ``evaluated``, and settings.
        """
        play = play or Play()
        shape = {key: more.pop(key) for key in ("pairs", "queries", "passages") if key in more}
        got, raised = [], []
        self.events, self.happened = [], 0.0
        self.before = 0 if again else len(self.log.read_text().splitlines())
        started = time.monotonic()

        def run():
            try:
                got.append(
                    evaluated(
                        self.folder, name, settings(**more), play, self.log,
                        on_event=self.say, **shape,
                    )
                )  # fmt: skip
            except Exception as error:
                raised.append(error)

        working = threading.Thread(target=run, daemon=True)
        working.start()
        if do:
            do()
        working.join()
        ended = time.monotonic()
        print(f"{ended - self.started:6.1f} {name} ended", flush=True)
        if raised:
            error = f"{type(raised[0]).__name__}: {raised[0]}"
            found = {"error": error, "events": self.events, **self.costs(started, ended)}
            (self.folder / f"{name}.json").write_text(json.dumps(found))
            return found
        found = self.compared(got[0], name, undisturbed, more, shape) | self.costs(started, ended)
        (self.folder / f"{name}.json").write_text(json.dumps(found))
        return found

    def undisturbed(self, play, more, shape):
        """The same evaluation in this process, and the folder of its shards; done once for a shape."""
        key = str((play, sorted(shape.items())))
        if key not in self.wholes:
            name = f"undisturbed{len(self.wholes)}"
            asked = settings(**{**more, "actors": 0})
            whole = evaluated(self.folder, name, asked, play, self.folder / f"{name}.log", **shape)
            self.wholes[key] = whole, self.folder / f"{name}-shards"
        return self.wholes[key]

    def compared(self, parts, name, undisturbed, more, shape):
        """Whether scores, tables and notes are those undisturbed; what was lost and what is twice."""
        whole, folder = self.undisturbed(undisturbed or UNDISTURBED, more, shape)
        costs = parts.readings["reader"].costs
        found = {
            "done": costs.done,
            "failed": costs.failed,
            "events": self.events,
            **{key: getattr(costs, key) for key in
               ("lost_nodes", "joined_nodes", "restarted_actors", "repeated_units", "waited_seconds")},
        }  # fmt: skip
        costs.done = whole.readings["reader"].costs.done  # a resumed evaluation has done fewer
        tables = {of: all_shards(folder, whole, of) for of in ("labels", "traces", "reads")}
        labels = all_shards(self.folder / f"{name}-shards", parts, "labels")
        try:
            assert_same(replace(whole, **tables), parts, self.folder / f"{name}-shards")
            found["equal"] = True
        except AssertionError as error:
            found["equal"] = str(error)
        by_label = ["query_id", "doc_id", "annotator"]
        found["doubled"] = labels.height - labels.select(by_label).n_unique()
        stored = [
            key
            for path in (self.folder / f"{name}-store").rglob("[!.]*.parquet")
            for key in pl.read_parquet(path)["read_key"]
        ]
        found["stored"], found["stored_twice"] = len(set(stored)), len(stored) - len(set(stored))
        return found

    def costs(self, started, ended):
        begun = collections.Counter(line[1] for line in self.noted("read"))
        times = [float(line[4]) for line in self.noted("read")]
        after = [when for when in times if when > self.happened] if self.happened else []
        return {
            "repeated": sum(count - 1 for count in begun.values()),
            "begun": len(begun),
            "planned": len(self.noted("plan")),
            "judged": len(self.noted("judge")),
            "nodes": len({line[2] for line in self.noted("read")}),
            "took": round(ended - started, 1),
            "first_read": round(min(times, default=0) - started, 1),
            "went_on": round(min(after) - self.happened, 1) if after else None,
        }

    def now(self):
        """Something happens now."""
        self.happened = time.monotonic()

    def spilled(self):
        """Bytes that object stores have written to disk."""
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        reply = get_memory_info_reply(get_state_from_address(self.cluster.address))
        return reply.store_stats.spilled_bytes_total
