"""``erag evaluate`` for evaluations that no process holds: in shards, in the folder of the results."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.evaluation.assess import Evaluation
from engine.evaluation.inputs import InputFiles
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.start import partition_beside_ray
from engine.evaluation.sharded.stream import check_readers, evaluate_shards
from engine.report.audit import Origin
from engine.report.summary import SHARDS
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from jobs._progress import event, shown_progress
from jobs._results import print_results, write_results

_INPUTS = "inputs"


def evaluate_in_shards(
    files: InputFiles,
    settings: Settings,
    origin: Origin,
    named: dict[str, Any],
    *,
    out: Location,
    store: Location,
    pairs: int,
    full: bool = False,
) -> Evaluation:
    """Cut the inputs into shards, evaluate them, write every table and the summary, and print it.

    Args:
        origin: the command and its files, for the summary; ``named``: where the inputs came from.
        pairs: listed passages of a shard.
        full: whether to print all tables.
    """
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
