"""Whether some read of an evaluation can end as soon as it is decided, by whoever reads it."""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import InputError
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER, Ask
from engine.reading.api.settings import is_api
from engine.reading.prompting.template import read_template


def refuse_ignored(conditions: Iterable[Settings]) -> None:
    """Refuse ``decide`` where it was asked for and would be ignored under every condition.

    What one condition alone shows, ``Settings`` refuses by itself. Here conditions count together: of several
    readers, one on a machine is enough.

    Raises:
        InputError: naming what keeps the reads from ending early.
    """
    hindrances: list[tuple[str, str]] = []
    for settings in conditions:
        for ask in settings.asks().values() if settings.running.decide else ():
            if not settings.decides(ask.role):
                continue
            hindrance = _hindrance(settings, ask)
            if hindrance is None:
                return
            hindrances.append(hindrance)
    for reason, remedy in hindrances:
        raise InputError(f"`decide` {reason}", remedy)


def _hindrance(settings: Settings, ask: Ask) -> tuple[str, str] | None:
    """Why no read of a role that may end early can, after "`decide` ", and what to do; None if one can."""
    read_by = f"with single passages read by {ask.model}"
    if settings.reader.own(ask.model):
        return f"{read_by}, a function", "leave it out"
    if is_api(ask.model):
        return f"{read_by}, which a server runs", "leave it out"
    if ask.prompt is not None and read_template(ask.prompt, ask.task).choices:
        reason = f"with the `prompt` {ask.prompt}, by which the reader chooses its answer"
        return reason, "leave one of them out"
    if ask.role == READER and settings.reader.end_to_end and settings.ranking.k == 1:
        reason = "with `k` 1, where every passage is read as a whole list, too"
        return reason, "use a larger `k`, or leave `decide` out"
    return None
