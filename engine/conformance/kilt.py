"""Predictions in KILT's format, scored by the engine, by KILT's script, by SQuAD's and by ``rouge``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.conformance.comparison import (
    Comparison,
    Reference,
    Values,
    compare,
    not_installed,
    require_installed,
    version_of,
)
from engine.messages.errors import InputError, masked
from engine.messages.wording import quoted
from engine.scoring.metrics import get_metric
from engine.scoring.normalize import normalize_answer
from engine.sources.io.files import is_text
from engine.sources.io.lines import read_json_lines
from engine.sources.io.locations import require_file, suffix_of
from engine.sources.queries.read import read_queries
from engine.tables import ANSWERS, QUERY_ID

_GOLD = 'KILT JSONL: {"id": …, "input": …, "output": [{"answer": …}, …]}'
_GUESS = 'predictions in KILT JSONL: {"id": …, "output": [{"answer": …}]}'
_METRICS = ("em", "f1", "accuracy", "rouge-l-kilt")


@dataclass(frozen=True)
class Item:
    """A question with its answers, and what was predicted.

    Attributes:
        record: the line of the gold file.
        answers: as the engine reads them from it.
        guess: the predicted answer, stripped.
    """

    record: Mapping[str, Any]
    answers: tuple[str, ...]
    guess: str


@dataclass(frozen=True)
class _Metric:
    """A metric as a reference computes it.

    Attributes:
        there: its name of our metric.
        score: the value of an item, or NaN where the reference fails on it.
        matches_nothing: for which items a rule of the reference's about answers that normalize to
            nothing gives 1, where ours gives 0.
    """

    there: str
    score: Callable[[Item], float]
    matches_nothing: Callable[[Item], bool] = lambda item: False


@dataclass(frozen=True)
class _Source:
    package: str
    module: str
    install: str
    metrics: Callable[[], tuple[str, dict[str, _Metric]]]
    rules: tuple[str, ...]


def compare_kilt(gold: str | Path, guess: str | Path) -> Comparison:
    """Score predictions by the engine's em, f1, accuracy and rouge-l-kilt, and by each reference.

    Raises:
        InputError: a file that cannot be read; an item without answers, without prediction or with
            several; a prediction of an unknown item; no reference installed.
    """
    items = read_items(gold, guess)
    ours = {name: _ours(name, items) for name in _METRICS}
    references = []
    for source in _SOURCES:
        try:
            version, metrics = source.metrics()
        except ImportError as error:
            references.append(not_installed(source.package, source.module, source.install, error))
            continue
        rows, rules = [], list(source.rules)
        for name, metric in metrics.items():
            theirs = {key: metric.score(item) for key, item in items.items()}
            ids = [key for key in items if not math.isnan(theirs[key] + ours[name][key])]
            if len(ids) < len(items):
                rules.append(
                    f"{len(items) - len(ids)} items that {metric.there} fails on are left out of it"
                )
            if not ids:
                continue
            by_rule = {
                key: 1.0 if metric.matches_nothing(item) else ours[name][key]
                for key, item in items.items()
            }
            scored = {key: value for key, value in ours[name].items() if not math.isnan(value)}
            rows.append(
                compare(
                    name, metric.there, scored, theirs, ids, by_rule=by_rule, rule="empty answers"
                )
            )
        lacks = tuple(name for name in _METRICS if name not in metrics)
        references.append(
            Reference(source.package, version, source.install, tuple(rows), tuple(rules), lacks)
        )
    require_installed(references, "KILT's metrics")
    nothing = sum(not all(map(normalize_answer, item.answers)) for item in items.values())
    notes = (
        f"{len(items)} items; {nothing} of them have an answer that normalizes to nothing, which "
        "matches no output here",
    )
    return Comparison(masked(f"{guess} by {gold}"), "item", notes, tuple(references))


def read_items(gold: str | Path, guess: str | Path) -> dict[str, Item]:
    """Items by id, in the order of the gold file.

    Raises:
        InputError: as ``compare_kilt`` says, naming the line.
    """
    if suffix_of(require_file(gold, _GOLD)) == ".parquet":
        raise InputError("is Parquet, which KILT's script cannot read", f"give {_GOLD}", path=gold)
    answers = dict(
        read_queries(gold, need_answers=False, layout="kilt").select(QUERY_ID, ANSWERS).iter_rows()
    )
    records = {str(record["id"]): (n, record) for n, record in read_json_lines(gold, _GOLD)}
    guesses = _read_guesses(guess, answers, gold)
    items = {}
    for key, (number, record) in records.items():
        if not answers[key]:
            raise InputError(
                f"item {quoted(key)} has no answers", "leave it out", path=gold, line=number
            )
        if key not in guesses:
            raise InputError(
                f"no prediction for item {quoted(key)} in {guess}",
                "predict every item",
                path=gold,
                line=number,
            )
        items[key] = Item(record, tuple(answers[key]), guesses[key])
    return items


def _read_guesses(path: str | Path, known: Mapping[str, Any], gold: str | Path) -> dict[str, str]:
    guesses: dict[str, str] = {}
    for number, record in read_json_lines(path, _GUESS):
        fault = partial(InputError, path=path, line=number)
        key = str(record.get("id", "")).strip()
        outputs = record.get("output")
        if key not in known:
            raise fault(f"item {quoted(key)} is not in {gold}", "leave it out")
        if key in guesses:
            raise fault(f"item {quoted(key)} is predicted twice", "keep one")
        one = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else None
        answer = one.get("answer") if isinstance(one, dict) else None
        if not isinstance(answer, str) or not answer.strip():
            raise fault(
                f"the prediction of item {quoted(key)} is not exactly one output with an answer, as KILT's "
                "script wants it",
                f"give {_GUESS}",
            )
        if not is_text(answer):
            raise fault(f"item {quoted(key)} holds half a surrogate pair", "write valid Unicode")
        guesses[key] = answer.strip()
    return guesses


def _ours(name: str, items: Mapping[str, Item]) -> Values:
    """Our values; NaN where ROUGE's package cannot score a text that long."""
    score = get_metric(name)
    values = {}
    for key, item in items.items():
        try:
            values[key] = score(item.guess, item.answers)
        except InputError:
            values[key] = math.nan
    return values


def _matches(item: Item, which: Callable[[Sequence[bool]], bool]) -> bool:
    empty = [not normalize_answer(answer) for answer in item.answers]
    return not normalize_answer(item.guess) and which(empty)


def _kilt() -> tuple[str, dict[str, _Metric]]:
    from kilt import eval_downstream as script

    def best(function: Callable[[str, str], float]) -> Callable[[Item], float]:
        def score(item: Item) -> float:
            try:
                answers = script.get_gold_answers(item.record)
                return float(script._metric_max_over_ground_truths(function, item.guess, answers))
            except (ValueError, RecursionError):  # of rouge, see _rouge
                return math.nan

        return score

    def in_answers(item: Item) -> float:
        return float(item.guess in script.get_gold_answers(item.record))

    return version_of("kilt"), {
        "em": _Metric("em", best(script._exact_match_score), lambda item: _matches(item, any)),
        "f1": _Metric("f1", best(script._f1_score)),
        "accuracy": _Metric("accuracy", in_answers),
        "rouge-l-kilt": _Metric("rougel", best(script._rougel_score)),
    }


def _squad() -> tuple[str, dict[str, _Metric]]:
    from transformers.data.metrics import squad_metrics

    def both(item: Item) -> tuple[float, float]:
        example = SimpleNamespace(qas_id="", answers=[{"text": answer} for answer in item.answers])
        exact, f1 = squad_metrics.get_raw_scores([example], {"": item.guess})
        return float(exact[""]), float(f1[""])

    def matches(item: Item) -> bool:
        return _matches(item, all)

    return version_of("transformers"), {
        "em": _Metric("exact", lambda item: both(item)[0], matches),
        "f1": _Metric("f1", lambda item: both(item)[1], matches),
    }


def _rouge() -> tuple[str, dict[str, _Metric]]:
    from rouge import Rouge

    scorer = Rouge(metrics=["rouge-l"])

    def score(item: Item) -> float:
        values = []
        for answer in item.answers:
            try:
                values.append(float(scorer.get_scores(item.guess, answer)[0]["rouge-l"]["f"]))
            except ValueError:  # a text without words
                continue
            except RecursionError:  # it recurses once per word
                return math.nan
        return max(values, default=math.nan)

    return version_of("rouge"), {"rouge-l-kilt": _Metric("rouge-l f", score)}


_SOURCES = (
    _Source(
        package="kilt",
        module="kilt",
        install="pip install git+https://github.com/facebookresearch/KILT",
        metrics=_kilt,
        rules=(
            "is the script of the leaderboard, kilt/eval_downstream.py",
            "answers: the best over the distinct stripped answers, as here",
            "empty answers: an output that normalizes to nothing is an exact match of such an "
            "answer; here it matches nothing",
            "means: over all items, as here; a missing or empty prediction stops the script",
        ),
    ),
    _Source(
        package="transformers",
        module="transformers",
        install="pip install transformers",
        metrics=_squad,
        rules=(
            "is SQuAD's script 2.0, from which KILT's em and f1 derive",
            "empty answers: passed over; where no other is left, an output that normalizes to "
            "nothing counts 1; here it matches nothing",
            "means: over the predicted items; here every item needs a prediction",
        ),
    ),
    _Source(
        package="rouge",
        module="rouge",
        install="pip install rouge",
        metrics=_rouge,
        rules=(
            "is what KILT's script computes ROUGE-L with; here too",
            "texts without words and texts beyond Python's recursion limit are errors there; here "
            "the former score 0, the latter are refused",
        ),
    ),
)
