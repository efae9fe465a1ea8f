"""``erag evaluate`` for evaluations that no process holds: in shards, in the folder of the results."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.evaluation.assess import Evaluation
from engine.evaluation.inputs import InputFiles
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.partition import shards_sha256
from engine.evaluation.sharded.start import partition_beside_ray
from engine.evaluation.sharded.stream import check_readers, evaluate_shards
from engine.evaluation.study import Sweep, vary
from engine.report.audit import Origin, input_files
from engine.report.identity import refuse_another
from engine.report.summary import SHARDS
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from jobs._command import command_line
from jobs._progress import event, shown_progress
from jobs._results import print_results, write_results

_INPUTS = "inputs"


def evaluate_in_shards(
    files: InputFiles,
    settings: Settings,
    named: dict[str, Any],
    *,
    out: Location,
    store: Location,
    pairs: int,
    full: bool = False,
    overwrite: bool = False,
) -> Evaluation:
    """Cut the inputs into shards, evaluate them, write every table and the summary, and print it.

    Args:
        named: where the inputs came from, for the summary.
        pairs: listed passages of a shard.
        full: whether to print all tables.
        overwrite: whether to replace another evaluation under ``out``.

    Raises:
        InputError: another evaluation is there.
    """
    origin = Origin(command_line(), input_files(named))
    folder = folder_at(out) / SHARDS
    with shown_progress("cutting into shards", "rows") as on_rows:

        def on_cut(what: str, done: int) -> None:
            if what == "runs":
                on_rows(done, done)

        made = partition_beside_ray(
            files,
            folder / _INPUTS,
            settings.running.pool(),
            k=settings.ranking.k,
            pairs_per_shard=pairs,
            on_progress=on_cut,
            check=partial(check_readers, settings, event),
        )
    if not overwrite:
        digests = {"shards": shards_sha256(made)}
        refuse_another(out, vary(settings, Sweep()), digests, runs=len(made.runs))
    with shown_progress() as on_progress:
        result = evaluate_shards(
            made,
            settings,
            place=folder_at(store),
            folder=folder,
            on_progress=on_progress,
            on_event=event,
        )
    content = write_results(result, None, named, out, origin=origin)
    print_results(result, folder_at(out).shown(), content, full=full)
    return result
