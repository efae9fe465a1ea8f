"""``erag fuse``: one run from several."""

from __future__ import annotations

from pathlib import Path

from engine.messages.checked import Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.retrieval.fusion import RRF_K, reciprocal_rank
from engine.sources.io.folders import folder_at, require_file_output
from engine.sources.io.outputs import Inputs, Outputs, delivered, refuse_overlap
from engine.sources.runs.read import read_runs, write_run
from engine.tables import QUERY_ID
from jobs._command import ConfigFile, run_command, with_verbosity
from jobs._options import Paths
from jobs._terminal import say


@with_verbosity
def fuse(
    *,
    run: Paths,
    out: Path,
    k: int = 100,
    name: str = "rrf",
    constant: int = RRF_K,
    config: ConfigFile = None,
) -> None:
    """Fuse runs by reciprocal ranks.

    Args:
        run: The runs, one per system; at least two.
        out: The run to write, a path or an address like s3://…: .parquet, else TREC text.
        k: Passages per query.
        name: Name of the fused system.
        constant: Constant of reciprocal rank fusion, which is added to every rank.
    """
    fitted("k", k, Positive)
    fitted("constant", constant, Natural)
    if len(run) < 2:
        raise InputError("only one --run", "give at least two", "settings.run")
    require_file_output(out)
    refuse_overlap(Inputs({"run": run, "config": config}, {}), Outputs([out]))
    fused = reciprocal_rank(read_runs(run), k=k, name=name, constant=constant)
    with delivered(out) as file:
        write_run(fused, file)
    queries = counted(fused[QUERY_ID].n_unique(), "[query|queries]")
    say(f"{counted(fused.height, 'result[|s]')} for {queries} -> {folder_at(out).shown()}")


if __name__ == "__main__":
    run_command(fuse)
