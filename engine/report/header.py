"""The subject of an evaluation in two lines: the first lines of every printed answer and of every page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from engine.labels.annotator import READER
from engine.labels.registry import input_tables
from engine.messages.wording import counted
from engine.ranking.scores import JUDGED
from engine.reading.models.weights import BUNDLED, BUNDLED_FID
from engine.report.summary import conditions_of
from engine.tables import RUN

_BUNDLED = {
    BUNDLED: "SmolLM2-135M-Instruct",
    BUNDLED_FID: "a Fusion-in-Decoder T5 of 5 million parameters",
}
# Base of recall and ideal rankings, by ``relevant``; else all judgments.
_RECALL_BASES = {"list": "each list alone", "pool": "the passages of all runs"}
_MOST_NAMES = 5
_LONGEST = 60
_BETWEEN = " \N{MIDDLE DOT} "


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The reader, metric and k of an evaluation, and its data; a warning precedes them if a bundled reader read."""
    measured = (_BETWEEN.join(parts) for parts in (_how(summary), _data(summary)))
    return [*_demonstration(summary), *measured]


def names_of_runs(summary: Mapping[str, Any]) -> str:
    """The names of the runs with a score of any kind; if they are many, the first."""
    return _some([_cut(name) for name in _runs(summary)])


def _demonstration(summary: Mapping[str, Any]) -> Iterator[str]:
    """A warning that figures of a bundled reader are no basis for decisions, except in the demo."""
    reader = summary.get(READER.key)
    command = (summary.get("audit") or {}).get("command") or ""
    is_demo = command.startswith(("erag demo", "python -m jobs.demo"))
    if reader is None or reader.get("executor") or is_demo:
        return
    for name in filter(_BUNDLED.get, _readers(summary)):
        why = f"the {name} reader ({_BUNDLED[name]}) is no basis for decisions about another system"
        yield f"Demonstration only: {why}; evaluate with the LLM of your system"


def _readers(summary: Mapping[str, Any]) -> list[str]:
    names = (condition["reader"] for condition in conditions_of(summary))
    return list(dict.fromkeys([summary[READER.key]["name"], *names]))


def _how(summary: Mapping[str, Any]) -> Iterator[str]:
    settings, reader = summary["configuration"], summary.get(READER.key)
    if reader is None:
        yield "Reader: none" if summary["end_to_end"] else "Reader: none, labels only"
    else:
        others = [_known(name) for name in _readers(summary)[1:]]
        yield f"Reader{'s' if others else ''}: {_some([_described(reader), *others])}"
    for role, other in summary.items():
        is_reader = isinstance(other, dict) and "fingerprint" in other
        # The reader that may decline is the same reader with another prompt.
        if is_reader and (reader is None or other["name"] != reader["name"]):
            yield f"{role.replace('_', ' ')}: {_described(other)}"
    if reader is not None:
        yield f"prompt template {_cut(_file(reader['prompt']))}"
    if reader is not None or summary["end_to_end"]:
        yield f"metric {_cut(settings['metric'])}"
    conditions = conditions_of(summary) or [settings]
    k = ", ".join(map(str, sorted({condition["k"] for condition in conditions})))
    whole, is_recorded = settings["end_to_end_k"], settings.get("end_to_end") == "recorded"
    if summary["end_to_end"] and whole != settings["k"] and not is_recorded:
        k += f": labels are made for {settings['k']} passages, the end-to-end answer is read from the first {whole}"
    yield f"k = {k}"


def _described(reader: Mapping[str, Any]) -> str:
    name = _known(reader["name"])
    if executor := reader.get("executor"):
        return f"{_cut(executor)} (in place of {name})"
    if api := reader.get("api"):
        return f"{_cut(api['model'])} at {api['host']}"
    if "version" in reader:
        version = reader["version"]
        return f"Python function {name}() ({f'version {_cut(version)}' if version else 'answers not cached'})"
    return f"{name} ({'bundled, ' if reader['name'] in _BUNDLED else ''}{reader['dtype']})"


def _known(name: str) -> str:
    parts = PurePath(name).parts
    short = parts[-1:] if name.endswith(".gguf") else parts[-2:]
    return _BUNDLED.get(name) or _cut("/".join(part for part in short if part != "/") or name)


def _data(summary: Mapping[str, Any]) -> Iterator[str]:
    settings, counts = summary["configuration"], summary["counts"]
    passages, corpus = counts.get("passages"), settings.get("corpus")
    yield "Data: " + _from(counted(counts["queries"], "[query|queries]"), settings.get("queries"))
    if passages is not None and isinstance(corpus, list):
        yield counted(passages, f"listed passage[|s] of {len({*corpus})} corpora")
    elif passages is not None:
        total = counts.get("corpus_passages", 0)  # which earlier versions did not count
        listed = f", {passages} of them in the runs' lists" if total > passages else ""
        yield _from(counted(max(total, passages), "passage[|s]"), corpus) + listed
    names = _runs(summary)
    files = [_cut(_file(path)) for path in settings.get("runs") or ()]
    # Files named like their runs would add nothing.
    more = [file for file in files if file.partition(".")[0] not in names]
    runs = ["run" if len(names) == 1 else "runs", names_of_runs(summary), f"({_some(more)})"]
    yield " ".join(filter(None, runs if more else runs[:2]))
    for name in (*input_tables(), "answers"):
        if settings.get(name):
            yield f"{name} {_cut(_file(settings[name]))}"
    if settings.get("end_to_end") == "recorded":
        recorded = _some([_cut(_file(path)) for path in settings.get("outputs", ())])
        yield f"end to end: recorded answers{f' ({recorded})' * bool(recorded)}"
    whole = settings["relevant"]
    own = "" if settings.get(JUDGED, whole) == whole else " (for qrels, all judgments)"
    yield f"recall is measured against {_RECALL_BASES.get(whole, 'all judgments')}{own}"


def _runs(summary: Mapping[str, Any]) -> list[str]:
    return sorted({row[RUN] for row in (*summary["means"], *summary["end_to_end"])})


def _from(text: str, path: str | None) -> str:
    return f"{text} ({_cut(_file(path))})" if path else text


def _file(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
