"""What can happen to a cluster while an evaluation in shards is done. ``tests.cluster.play`` plays a scene.

Every scene is given a head alone, without CPUs and GPUs but where ``HEADS`` says so, and gives what
``ShardStage.evaluate`` found, of each of its evaluations.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.cluster.shards import Play, ShardStage, evaluated, settings

# Of the scenes in which the head is all there is.
HEADS = {
    "two_cpus": {"cpus": 2},
    "fatal": {"cpus": 2},
    "processes_killed": {"cpus": 2},
    "little_memory": {"cpus": 2, "store": 150 * 2**20},
}


def nodes_killed(stage):
    """Of two nodes that on which shards are planned is killed, then that which reads, which judges."""
    nodes = [stage.node(), stage.node()]
    moments = {
        "planned": ("plan", 2, Play(planning=1.5)),
        "read": ("read", 20, Play()),
        # Units too large for messages wait on the node, and are made again when the pace is known.
        "units": ("read", 30, Play(pad=40_000)),
        "judged": ("judge", 1, Play(judging=2)),
    }
    found = {}
    for name, (kind, count, play) in moments.items():

        def kill(kind=kind, count=count):
            lost = stage.node_of(stage.until(kind, count, nodes), nodes)
            stage.now()
            stage.kill(lost)
            nodes.remove(lost)

        found[name] = stage.evaluate(actors="1:2", do=kill, play=play, name=name)
        nodes.append(stage.node())
    return found


def node_drained(stage):
    """The end of a node that reads is announced two seconds before."""
    nodes = [stage.node(), stage.node()]

    def drain():
        line = stage.until("read", 20, nodes)
        stage.now()
        stage.drain(stage.node_of(line, nodes), 2)

    return {"drained": stage.evaluate(actors=2, do=drain)}


def all_lost(stage):
    """Every node that works is killed; others join."""
    nodes = [stage.node(), stage.node()]

    def change():
        stage.until("read", 20)
        for node in nodes:
            stage.kill(node)
        time.sleep(3)
        stage.node()
        stage.node()
        stage.now()

    return {"lost": stage.evaluate(actors="1:2", do=change)}


def from_zero(stage):
    """A node joins when the job has said that it waits for one, and another when that one reads."""

    def later():
        # However busy the machine: the job begins to look at its cluster some seconds after its start.
        while not any(line.startswith("waiting for a node") for line in stage.events):
            time.sleep(0.1)
        first = stage.node()
        stage.now()
        stage.until("read", 8, [first])
        stage.node()

    found = stage.evaluate(actors="1:4", gpus_per_actor=1, do=later, play=Play(pace=0.5))
    return {"zero": found}


def processes_killed(stage):
    """The ledger's, an actor's that reads, one that judges, and one that plans."""

    def kill(kind, count):
        line = stage.until(kind, count)
        stage.now()
        os.kill(int(line[3]), signal.SIGKILL)

    def ledger():
        stage.until("read", 20)
        stage.now()
        stage.kill_process("Ledger")

    return {
        "ledger": stage.evaluate(actors=2, do=ledger, name="ledger"),
        "actor": stage.evaluate(actors=2, do=lambda: kill("read", 20), name="actor"),
        "judging": stage.evaluate(
            actors=2, do=lambda: kill("judge", 1), play=Play(judging=1), name="judging"
        ),
        "planning": stage.evaluate(
            actors=2, do=lambda: kill("plan", 2), play=Play(planning=1), name="planning"
        ),
    }


def fatal(stage):
    """A read that ends its process each time it is begun; and a load, a plan and a judgment that do."""
    poison = "Fact 2 of 5:"
    found = {
        "read": stage.evaluate(
            actors=2,
            play=Play(pace=0.02, planning=0, judging=0, poison=poison),
            undisturbed=Play(pace=0, planning=0, judging=0, unit=2**30, fails=poison),
            failed_reads="zero",
            name="read",
        )
    }
    for what in ("load", "plan", "judge"):
        play = Play(pace=0, planning=0, judging=0, fatal=what)
        found[what] = stage.evaluate(actors=2, play=play, name=what, queries=6, pairs=8)
    return found


def two_cpus(stage):
    """Two actors could take both CPUs that there are: planning and judging need some of them."""
    few = {"queries": 12}
    quick = Play(pace=0.02, planning=0.1, judging=0.1)
    whole = quick._replace(unit=2**30)
    return {
        "single": stage.evaluate(actors=2, play=whole, name="single", **few),
        "many": stage.evaluate(actors=2, play=whole, name="many", pairs=1, **few),
        "judging": stage.evaluate(
            actors=2, play=quick._replace(judging=1.5), name="judging", pairs=1, **few
        ),
        "range": stage.evaluate(actors="1:2", play=quick, name="range", **few),
    }


def little_memory(stage):
    """Prompts of twice what the object store holds, and a reader slower than the planning."""
    # 120 reads of 2.5 MB each.
    play = Play(pace=0.1, planning=0, judging=0, pad=2_500_000)
    found = stage.evaluate(actors=2, play=play)
    return {"memory": found | {"spilled": stage.spilled()}}


def driver_killed(stage):
    """The head's machine, with the driver on it, in the middle of reading; never returns."""
    stage.node()
    stage.node()
    threading.Thread(
        target=evaluated,
        args=(stage.folder, "one", settings(actors=2), Play(), stage.log),
        daemon=True,
    ).start()
    stage.until("judge", 1)
    stage.until("read", 60)
    stage.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(stage):
    """The same evaluation on a new cluster, with what a lost head left."""
    stage.node()
    stage.node()
    return {"resumed": stage.evaluate(actors=2, again=True)}


def main():
    name, folder = sys.argv[1:]
    stage = ShardStage(folder, **HEADS.get(name, {}))
    try:
        found = globals()[name](stage)
    finally:
        stage.end()
    (Path(folder) / "result.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
