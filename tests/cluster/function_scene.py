"""A user's functions on nodes that have none of the user's files, each started in a folder of its own."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import engine
from engine.machine.functions import load_named
from tests.cluster.stage import Stage

READER = """
import os
import helpers

LOG = {log!r}

def read(prompts):
    helpers.note(LOG, f"{{os.getcwd()}} {{len(prompts)}}")
    return [helpers.last_word(prompt) for prompt in prompts]

read.name, read.version = "last words", "1"

def starts_alike(output, references):
    return float(any(output[:1] == reference[:1] for reference in references))

def short(query, answers, title, text):
    return 1.0 if len(text) < helpers.SHORT else 0.0
"""
HELPERS = """
import time

SHORT = 12

def note(log, line):
    with open(log, "a") as stream:
        stream.write(line + "\\n")
    time.sleep(0.5)  # so that each actor has its share

def last_word(prompt):
    before = prompt.split("\\nQuestion:")[0]
    return before.rsplit(maxsplit=1)[-1]
"""
N = 40


def functions(stage):
    """Two nodes read by a function whose files are gone by then."""
    code = stage.folder / "code"
    code.mkdir()
    log = stage.folder / "calls"
    (code / "mine.py").write_text(READER.format(log=str(log)))
    (code / "helpers.py").write_text(HELPERS)
    read, metric, annotator = (
        load_named(f"{code / 'mine.py'}:{name}") for name in ("read", "starts_alike", "short")
    )
    shutil.rmtree(code)
    sys.path.remove(str(code))
    places = []
    for name in ("one", "two"):
        place = stage.folder / name
        place.mkdir()
        os.chdir(place)  # what a node is started in, its workers work in
        places.append(str(place))
        stage.node()
    os.chdir(stage.folder)
    os.environ["RAY_ADDRESS"] = stage.cluster.address
    queries = {f"query {i}": ["ba" if i % 2 else "ca"] for i in range(N)}
    runs = {f"query {i}": [f"{i} says ba", f"{i} says at length ca"] for i in range(N)}

    def evaluate(**options):
        return engine.evaluate(
            queries, None, runs, reader=read, metric=metric, annotators=["erag", annotator], k=2,
            store=stage.folder / "store", measures="P@1", resamples=0, **options,
        )  # fmt: skip

    there = evaluate(actors=2, gpus_per_actor=1)
    calls = log.read_text().splitlines()
    again = evaluate()
    return {
        "places": sorted({line.split()[0] for line in calls}),
        "nodes": places,
        "prompts": sum(int(line.split()[1]) for line in calls),
        "labels": there.labels.to_dicts(),
        "done": [one.summary["reading"]["done"] for one in (there, again)],
        "equal": there.labels.equals(again.labels),
        "calls_again": len(log.read_text().splitlines()) - len(calls),
    }


def main():
    name, folder = sys.argv[1:]
    stage = Stage(folder)
    try:
        found = globals()[name](stage)
    finally:
        stage.end()
    found["seconds"] = round(time.monotonic() - stage.started, 1)
    (Path(folder) / "result.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
