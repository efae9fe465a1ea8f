"""Downstream metrics: how good one output of the reader is, against its reference answers.

Every metric takes an output and the references, and gives a value in [0, 1], the maximum over the references that it
can score (``Metric.can_score``). A reference that normalizes to nothing is passed over: KILT's and KorQuAD's scripts
would count every output that does so too as a hit on it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import polars as pl

from engine.messages.characters import spaced
from engine.messages.errors import InputError
from engine.messages.wording import meant, name_of, number_of, quoted, reason_of
from engine.scoring.normalize import normalize_answer, normalize_korquad, words
from engine.tables import ANSWERS, OUTPUT, QUERY_ID, VALUE


def exact_match(output: str, references: Sequence[str]) -> float:
    """1 if the normalized output equals a normalized reference (KILT, ``exact_match_score``).

    >>> exact_match("The Beatles!", ["beatles", "the band"])
    1.0
    """
    normalized = normalize_answer(output)
    return float(bool(normalized) and normalized in map(normalize_answer, references))


def match(output: str, references: Sequence[str]) -> float:
    """1 if a normalized reference occurs, as whole words, in the normalized output.

    For readers that answer in sentences. The accuracy of Mallen et al. (ACL 2023, ``run_model.py`` of their code) is
    another: it looks for the reference as a string, as written, in lower case or capitalized, and finds "art" in
    "party". In scripts without spaces between words each letter is one (``characters.spaced``).

    >>> match("It was written by Orwell.", ["George Orwell", "Orwell"]), match("a party", ["art"])
    (1.0, 0.0)
    >>> match("首都は東京です。", ["東京"])
    1.0
    """
    text, *answers = (f" {spaced(normalize_answer(each))} " for each in (output, *references))
    return float(any(answer in text for answer in answers if answer.strip()))


def accuracy(output: str, references: Sequence[str]) -> float:
    """1 if the stripped output is one of the references to the letter (KILT, ``accuracy``).

    Case counts and nothing is normalized: for classes such as SUPPORTS and REFUTES.

    >>> accuracy(" SUPPORTS", ["SUPPORTS"]), accuracy("supports", ["SUPPORTS"])
    (1.0, 0.0)
    """
    return float(output.strip() in references)


def token_f1(output: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the multisets of normalized words (KILT, ``f1_score``).

    >>> token_f1("the author George Orwell", ["George Orwell"])  # 2 of 3 words, and 2 of 2
    0.8
    """
    counts = Counter(normalize_answer(output).split())
    return max((_f1(counts, Counter(normalize_answer(r).split())) for r in references), default=0.0)


def exact_match_korquad(output: str, references: Sequence[str]) -> float:
    """1 if output and a reference are the same after KorQuAD's normalization.

    As ``exact_match_score`` of KorQuAD 1.0's script (Lim, Kim & Lee 2019, ``evaluate-korquad_v1.0.py``).

    >>> exact_match_korquad("《춘향전》", ["춘향전"])
    1.0
    """
    normalized = normalize_korquad(output)
    return float(bool(normalized) and normalized in map(normalize_korquad, references))


def character_f1(output: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the multisets of characters; white space does not count.

    As ``f1_score`` of KorQuAD 1.0's script, after its normalization: Korean writes particles onto words,
    so that words of a right answer need not be equal.

    >>> character_f1("서울에", ["서울"])  # 2 of 3 characters, and 2 of 2
    0.8
    """
    counts = _characters(output)
    return max((_f1(counts, _characters(reference)) for reference in references), default=0.0)


def _characters(text: str) -> Counter[str]:
    return Counter(normalize_korquad(text).replace(" ", ""))


def _f1(output: Counter[str], reference: Counter[str]) -> float:
    common = (output & reference).total()
    if common == 0:
        return 0.0
    precision, recall = common / output.total(), common / reference.total()
    return 2 * precision * recall / (precision + recall)


def rouge_l(output: str, references: Sequence[str]) -> float:
    """ROUGE-L F-measure of the package ``rouge-score``, stemmed (as eRAG's examples use it).

    Equal to the package's on ASCII text; of other text it drops every character but a to z, and here
    words of all scripts count (``normalize.words``).

    >>> rouge_l("the novels of Orwell", ["a novel of George Orwell"])  # 3 of 4 words, and 3 of 5
    0.6666666666666665
    """
    scorer = _rouge_scorer()
    return max((scorer.score(r, output)["rougeL"].fmeasure for r in references), default=0.0)


def rouge_l_kilt(output: str, references: Sequence[str]) -> float:
    """ROUGE-L F-measure of the package ``rouge``, as KILT scores it.

    Other results than ``rouge_l``: case counts, white space separates words, and precision and recall are over distinct
    words. Output and references are stripped, as in KILT's script: to the package a space behind the last full stop is
    a sentence that lacks the words of the reference. An output or reference without words scores 0.

    >>> round(rouge_l_kilt("The novels of Orwell", ["the novels of Orwell"]), 3)  # 3 of 4 words
    0.75
    """
    stripped = output.strip()
    return max((_rouge_kilt(stripped, reference.strip()) for reference in references), default=0.0)


def _rouge_kilt(output: str, reference: str) -> float:
    from rouge import Rouge

    try:
        return float(Rouge().get_scores(output, reference, avg=True)["rouge-l"]["f"])
    except ValueError:  # the package's answer to a text without words
        return 0.0
    except RecursionError:
        lengths = f"{len(output.split())} and {len(reference.split())} words"
        problem = f"rouge-l-kilt cannot score a text this long ({lengths}; the package recurses once per word)"
        raise InputError(problem, "use rouge-l", "metric.length") from None


@functools.cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=SimpleNamespace(tokenize=words))


@dataclass(frozen=True)
class Metric:
    """A downstream metric. ``own``: a user's function, which need not be a maximum over the references."""

    name: str  # as users write it
    score: Callable[[str, Sequence[str]], float]
    can_score: Callable[[str], object]  # true, or not empty, for a reference that can be matched
    needs: str  # required content of such a reference, to end the sentence "write answers with …"
    graded: bool = False  # values lie between 0 and 1, too; a user's function's values decide
    own: bool = False
    code: str = ""  # a digest of that function's source; empty without a source

    def __call__(self, output: str, references: Sequence[str]) -> float:
        """The value in [0, 1] of an output against its references; 0 without any."""
        return self.score(output, references)


def _has_kilt_words(reference: str) -> bool:
    # The package counts words in sentences, which full stops end.
    return bool(reference.replace(".", " ").strip())


def _is_stripped_text(reference: str) -> bool:
    return bool(reference) and reference == reference.strip()


_MORE_THAN_ARTICLES = "more than punctuation and English articles"
_MORE_THAN_PUNCTUATION = "more than punctuation"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("em", exact_match, normalize_answer, _MORE_THAN_ARTICLES),
        Metric("match", match, normalize_answer, _MORE_THAN_ARTICLES),
        Metric("accuracy", accuracy, _is_stripped_text, "text and no white space around it"),
        Metric("f1", token_f1, normalize_answer, _MORE_THAN_ARTICLES, graded=True),
        Metric("em-char", exact_match_korquad, normalize_korquad, _MORE_THAN_PUNCTUATION),
        Metric("f1-char", character_f1, normalize_korquad, _MORE_THAN_PUNCTUATION, graded=True),
        Metric("rouge-l", rouge_l, words, "a letter or a digit", graded=True),
        Metric("rouge-l-kilt", rouge_l_kilt, _has_kilt_words, "more than full stops", graded=True),
    )
}

# Other names of metrics; some mean slightly different things, so that the name is only suggested.
OTHER_NAMES = {
    "exact_match": "em",
    "exact": "em",
    "acc": "accuracy",
    "token_f1": "f1",
    "contains": "match",
    "inclusion": "match",
    "rouge": "rouge-l",
    "rougel": "rouge-l",
    "rouge_l_f": "rouge-l",
    "korquad": "f1-char",
    "char_f1": "f1-char",
}


class UnscoredError(Exception):
    """A user's metric does not score an output: the problem, and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


def get_metric(metric: str | Metric) -> Metric:
    """The metric of that name, an InputError for an unknown one; a metric itself."""
    if isinstance(metric, Metric):
        return metric
    if metric not in METRICS:
        other = OTHER_NAMES.get(metric.lower().replace("-", "_"))
        near = f"did you mean {other}? " if other else meant(metric, METRICS)
        remedy = f"{near}use one of {', '.join(METRICS)}"
        raise InputError(f"unknown metric {metric!r}", remedy, "metric.unknown")
    return METRICS[metric]


def score_outputs(
    outputs: pl.DataFrame, queries: pl.DataFrame, metric: str | Metric
) -> pl.DataFrame:
    """Add ``value``, the metric of each row's ``output`` against the answers of its ``query_id``.

    Distinct (query, output) pairs are scored once: many passages lead to the same answer. An InputError, which names
    the query, if a user's metric raises an error or returns a value outside [0, 1].
    """
    score = get_metric(metric)
    answers = dict(queries.select(QUERY_ID, ANSWERS).iter_rows())
    distinct = outputs.select(QUERY_ID, OUTPUT).unique(maintain_order=True)
    values: list[float] = []
    for query_id, output in distinct.iter_rows():
        try:
            values.append(score(output, answers[query_id]))
        except UnscoredError as error:
            problem = f"{error.problem} for the output {quoted(output)} of query {quoted(query_id)}"
            raise InputError(problem, error.remedy, "metric.value") from error.__cause__
    scored = distinct.with_columns(pl.Series(VALUE, values, dtype=pl.Float64))
    return outputs.join(scored, on=[QUERY_ID, OUTPUT], how="left", maintain_order="left")


# Most cached values: many passages lead to the same output.
_MOST_VALUES = 200_000


def metric_from_function(
    function: Callable[[str, list[str]], float], name: str | None = None, *, code: str = ""
) -> Metric:
    """A metric from a user's function; an InputError without a name, and for the name of an engine metric.

    Args:
        function: takes an output and the reference answers, and returns the output's quality in [0, 1] (a bool is 0 or
            1). It is called in one process, once for an output and its references.
        name: by default the function's.
    """
    name = name_of(function) if name is None else name
    if not name.strip():
        raise InputError("a metric without a name", "give it one", "metric.nameless")
    if name in METRICS:
        problem = f"a metric of the engine is called {name!r}"
        raise InputError(problem, "rename yours", "metric.taken")
    return Metric(name, _Score(name, function), bool, "text", own=True, code=code)


class _Score:
    """The values of a user's function, checked and cached."""

    def __init__(self, name: str, function: Callable[[str, list[str]], float]) -> None:
        self._name, self._function = name, function
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}

    def __call__(self, output: str, references: Sequence[str]) -> float:
        key = output, tuple(references)
        if key not in self._known:
            if len(self._known) >= _MOST_VALUES:
                self._known.clear()
            self._known[key] = self._checked(output, list(references))
        return self._known[key]

    def _checked(self, output: str, references: list[str]) -> float:
        try:
            value: Any = self._function(output, references)
        except (Exception, SystemExit) as error:
            problem = f"the metric {self._name} raises {reason_of(error)}"
            raise UnscoredError(problem, "correct the function") from error
        number = number_of(value)
        if math.isnan(number):
            problem = f"the metric {self._name} gives {value!r}"
            raise UnscoredError(problem, "return a number from 0 to 1")
        return number
