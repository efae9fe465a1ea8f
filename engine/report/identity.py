"""Whether a folder holds the results of another evaluation than the one that is to be written there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.evaluation.jobs import WITHOUT_EFFECT
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition
from engine.messages.errors import InputError
from engine.report import header
from engine.report.summary import SUMMARY, configuration, jsonable
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location

# Settings under which an evaluation stays the same: they change no label and no score, only how these are
# analysed, or nothing.
_SAME = frozenset(WITHOUT_EFFECT) - {"engine", "base_url", "endpoint"}
_SHARDS = "shards"


def refuse_another(
    out: Location,
    conditions: Mapping[Condition, Settings],
    sha256: Mapping[str, str] | None = None,
    *,
    runs: int = 0,
) -> None:
    """Refuse to write into a folder that holds another evaluation: of other settings, or of other inputs.

    The same evaluation may be repeated there, also with other settings of its statistics. One that was interrupted has left no summary to compare with.
    What a reader's name, or a function's, stands for is not compared.

    Args:
        sha256: digests of its inputs under the first condition, by name; None where they are not known yet,
            so that settings alone are compared.
        runs: how many it has, where its inputs are known.

    Raises:
        InputError: the folder holds another evaluation, or the summary of something else; it cannot be read.
    """
    folder = folder_at(out)
    try:
        content = json.loads(folder.read(SUMMARY))
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:
        content = None
    if other := "; ".join(_differences(content, conditions, sha256, runs)):
        raise InputError(
            f"holds another evaluation ({other})",
            "give another folder, or `overwrite` to replace it",
            path=folder.shown(),
        )


def _differences(
    there: Any,
    conditions: Mapping[Condition, Settings],
    sha256: Mapping[str, str] | None,
    runs: int,
) -> Iterator[str]:
    known = there.get("configuration") if isinstance(there, dict) else None
    if not isinstance(known, dict) or "means" not in there:
        yield f"{SUMMARY} there is not that of an evaluation"
        return
    first, settings = next(iter(conditions.items()))
    relevant = settings.relevant(runs) if runs else None
    asked = jsonable(configuration(settings, relevant or "list", {}))
    for name, value in asked.items():
        if name in _SAME or name not in known or (name == "relevant" and relevant is None):
            continue
        if name == "failed_reads" and {known[name], value} == {None, "error"}:
            continue  # without a failed read, which neither would leave many of, they are the same
        if known[name] != value:
            yield f"`{name}` {_shown(known[name])} there, {_shown(value)} here"
    varied = (there.get("study") or {"conditions": []})["conditions"]
    of_study = {Condition(one["reader"], one["augmentation"], one["k"]) for one in varied}
    if (of_study or {first}) != conditions.keys() and (of_study or len(conditions) > 1):
        yield "a study of other conditions" if of_study else "no study there"
    if sha256 is not None:
        yield from _other_inputs(there, sha256)


def _other_inputs(there: Mapping[str, Any], sha256: Mapping[str, str]) -> Iterator[str]:
    known = (there.get("audit") or {}).get("tables_sha256", {})
    if (_SHARDS in known) != (_SHARDS in sha256):
        yield f"in shards {'there' if _SHARDS in known else 'here'} alone"
        return
    for name in sorted({*known, *sha256}):
        if known.get(name) != sha256.get(name):
            names = f" ({header.names_of_runs(there)} there)" if name == "runs" else ""
            yield f"other {'inputs' if name == _SHARDS else name}{names}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
