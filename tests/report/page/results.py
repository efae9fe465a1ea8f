"""An evaluation of two runs whose figures are known, written to a folder, with texts that a page must escape."""

import json
from pathlib import Path

import polars as pl

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.sources.io.folders import folder_at
from jobs import _evaluating
from tests.conftest import ScriptedReader, make_run

N = 40
SCRIPT = (
    "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
)
RIGHT_TO_LEFT = "القاهرة هي عاصمة مصر"
EMOJI = "🐪 👩‍🔬 says"


def _passage(number, says):
    more = {0: SCRIPT, 1: RIGHT_TO_LEFT, 2: EMOJI}.get(number, "")
    return f"{more} It is known that one says {says}"


def write_inputs(folder):
    """Queries, passages and two runs as files: ``good`` puts d before e, ``poor`` the other way round."""
    queries = [
        {"id": f"q{i:02}", "question": f"question {i} <b>", "answers": ["Ann", "Anne-Marie"],
         "type": "<i>odd" if i % 2 else "even", "length": i, "day": f"20{i // 10:02}-01-{1 + i % 10:02}"}
        for i in range(N)
    ]  # fmt: skip
    (folder / "q.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    corpus = [(f"d{i}", f"A<i>{i}", _passage(i, "Ann" if i % 3 else "Bo"), "A") for i in range(N)]
    long = {4: "as we all know " * 40}
    corpus += [(f"e{i}", f"B{i}", f"{long.get(i, '')}says nothing", "B") for i in range(N)]
    frame = pl.DataFrame(corpus, schema=tables.CORPUS, orient="row")
    frame.write_parquet(folder / "c.parquet")
    for name, order in (("good", "de"), ("poor <&>", "ed")):
        rows = [(f"q{i:02}", f"{order[rank]}{i}", rank + 1) for i in range(N) for rank in (0, 1)]
        make_run(rows, name).write_parquet(folder / f"{order}.parquet")
    return InputFiles(
        queries=folder / "q.jsonl",
        corpus=folder / "c.parquet",
        run=(folder / "de.parquet", folder / "ed.parquet"),
    )


def say_last(prompt):
    """The last word of the passage nearest to the question; of every seventh, something else."""
    word = prompt.rsplit("says ", 1)[-1].split("\n")[0]
    return "Ann" if "Passage: " in prompt and "A<i>3" in prompt else word


def write_results(folder, *, k=2, **options):
    """Evaluate, and write everything but the page, whose figures tests look at; the folder of results."""
    files = write_inputs(folder)
    inputs = read_inputs(files, k=k)
    settings = Settings.of(
        **{"k": k, "end_to_end_k": 1, "measures": "P@1 RR@2", "resamples": 300, "relevant": "pool",
           "annotators": ("erag", "containment")} | options
    )  # fmt: skip
    result = evaluate(inputs, settings, store=folder / "store", executor=ScriptedReader(say_last))
    named = {
        "queries": str(files.queries),
        "corpus": str(files.corpus),
        "runs": [str(run) for run in files.run],
    }
    out = Path(folder) / "out"
    _evaluating.write_results(result, named, folder_at(out).at)
    return out
