"""Refusals by their code, and every text that a user reads, compared to what stands in ``tests/texts/``.

A test names the code, the path and the line of a refusal; the words are in one file for each folder of
tests, by test. ``pytest --write-texts`` writes the texts of the tests that it runs anew: who changes a
sentence edits no test, and reads the difference of these files.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import currently_in_test_context

from engine import compat
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.ranking.measures import KINDS
from engine.scoring.metrics import METRICS
from engine.sources.runs.scan import WHAT

ROOT = Path(__file__).parents[1]
TEXTS = ROOT / "tests" / "texts"
# What differs from machine to machine, and from run to run.
_CHANGING = (
    (re.compile(re.escape(str(ROOT))), "ROOT"),
    (
        re.compile(r"(?:[\w./-]*/)?pytest-of-[^/\s]+/pytest-\d+(?:/popen-gw\d+)?/[^/\s:;,'\")]+"),
        "TMP",
    ),
    (re.compile(rf"{re.escape(tempfile.gettempdir())}/[\w.-]+"), "TMP"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"in [\d.,]+ s \(start"), "in N s (start"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x"),
    (re.compile(r"\b(here/\w+)-\d+"), r"\1-N"),
    (re.compile(r"(?<![0-9a-z])[0-9a-f]{32,64}(?![0-9a-z])"), "DIGEST"),
)


def _registered() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Lists of what is registered, as messages have them: one more name leaves the texts as they are."""
    known = sorted({*ANNOTATORS, *METRICS, *KINDS}, key=len, reverse=True)
    name = f"(?:{'|'.join(map(re.escape, known))})(?![\\w-])"
    listed = re.compile(rf"(?<![\w-]){name}(?:(?:, | or | and ){name}){{3,}}")
    whole = ((WHAT, "a run"), (compat._NAMES, "NAMES"))
    return (*((re.compile(re.escape(text)), stands) for text, stands in whole), (listed, "NAMES"))


_writes = False
_known: dict[Path, dict[str, dict[str, list[Any]]]] = {}
_seen: dict[str, list[Any]] = defaultdict(list)
_current: list[str] = []
_passed: set[str] = set()


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, stands in (*_CHANGING, *_registered()):
            value = pattern.sub(stands, value)
        return value
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return (
        value if value is None or isinstance(value, bool | int | float) else _scrubbed(str(value))
    )


def _file(module: str) -> Path:
    """The texts of ``tests/jobs/test_x.py`` and its neighbours: ``tests/texts/jobs.yaml``."""
    parts = Path(module).parts
    return TEXTS / f"{parts[1] if len(parts) > 2 else 'tests'}.yaml"


def _read(file: Path) -> dict[str, dict[str, list[Any]]]:
    return yaml.load(file.read_bytes(), yaml.CSafeLoader) or {} if file.exists() else {}


def _node() -> str:
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def _texts_of(node: str) -> list[Any]:
    module, _, test = node.partition("::")
    file = _file(module)
    if file not in _known:
        _known[file] = _read(file)
    texts = map(_scrubbed, _known[file].get(module, {}).get(test, []))
    return [text for text, _ in groupby(texts)]


def as_expected(value: Any) -> None:
    """Compare a text, or a list of texts, to the one that stands in ``tests/texts`` for this place in this test.

    Where a test has the same text again at once, as in a loop, it stands once. ``end`` finds texts that did not come.
    """
    node, text = _node(), _scrubbed(value)
    if _current != [node]:
        _current[:] = [node]
        _seen.pop(node, None)
    seen = _seen[node]
    if seen[-1:] == [text]:
        return
    seen.append(text)
    if _writes:
        return
    known = _texts_of(node)
    assert len(seen) <= len(known), f"no expected text; run {node} with --write-texts"
    assert text == known[len(seen) - 1]


def end() -> None:
    """Whether all texts that stand for this test, which passed, came."""
    node = _node()
    _passed.add(node)
    if not _writes:
        left = _texts_of(node)[len(_seen[node]) :]
        assert not left, f"texts that did not come; run {node} with --write-texts"


@contextmanager
def refused(
    code: str, *, path: Any = None, line: int | None = None, text: bool = True
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Whether an InputError of this code is raised, at this path and line if they are given, in the expected words.

    Args:
        text: False for words that differ from machine to machine; examples that are drawn have no expected text.
    """
    with pytest.raises(InputError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, error
    assert path is None or str(error.path) == str(path)
    assert line is None or error.line == line
    if text and not currently_in_test_context():
        as_expected(str(error))
    # Else this frame would keep the files that are open in the frames of the error.
    del error, caught


def outcome(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a function gives, or the error that it raises."""
    try:
        return function(*given, **named)
    except InputError as error:
        return str(error.path), error.line, error.problem, error.remedy


def start(*, writes: bool) -> None:
    """Compare texts from now on, or collect them."""
    global _writes
    _writes = writes


def finish() -> None:
    """Put the texts of this session's tests that passed in the place of those that stood for them."""
    by_file: dict[Path, list[str]] = defaultdict(list)
    for node in _passed if _writes else ():
        by_file[_file(node.partition("::")[0])].append(node)
    TEXTS.mkdir(exist_ok=True)
    for file, nodes in by_file.items():
        lock = os.open(TEXTS, os.O_RDONLY)  # processes of one session write one after the other
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            texts = _read(file)
            for node in nodes:
                module, _, test = node.partition("::")
                texts.setdefault(module, {})[test] = _seen[node]
            kept = {module: _kept(module, of_tests) for module, of_tests in texts.items()}
            kept = {module: of_tests for module, of_tests in kept.items() if of_tests}
            if kept or file.exists():
                options: dict[str, Any] = {"width": 10**6, "allow_unicode": True}
                file.write_text(yaml.dump(kept, Dumper=yaml.CSafeDumper, **options), "utf-8")
        finally:
            os.close(lock)


def _kept(module: str, texts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The texts of the tests that are still there and have some."""
    path = ROOT / module
    named = re.findall(r"def (test_\w+)", path.read_text("utf-8")) if path.exists() else []
    return {test: own for test, own in texts.items() if own and test.partition("[")[0] in named}
