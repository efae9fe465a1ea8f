"""Downstream metrics: how good one output of the reader is, against its reference answers.

Every metric takes an output and the references, gives a value in [0, 1], and is the maximum over
the references. References that normalize to nothing are passed over by the metrics that normalize:
KILT's script would count every empty output as a hit on them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from engine.errors import InputError
from engine.normalize import normalize_answer
from engine.tables import ANSWERS, OUTPUT, QUERY_ID, VALUE

Metric = Callable[[str, Sequence[str]], float]


def exact_match(output: str, references: Sequence[str]) -> float:
    """1 if the normalized output equals a normalized reference (KILT, ``exact_match_score``)."""
    normalized = normalize_answer(output)
    return float(bool(normalized) and normalized in map(normalize_answer, references))


def match(output: str, references: Sequence[str]) -> float:
    """1 if a normalized reference occurs, as whole words, in the normalized output.

    Whole words, so that "art" does not occur in "party". This is the accuracy by containment of
    Mallen et al. (ACL 2023), for readers that answer in sentences.
    """
    words = f" {normalize_answer(output)} "
    return float(any(f" {n} " in words for n in map(normalize_answer, references) if n))


def accuracy(output: str, references: Sequence[str]) -> float:
    """1 if the stripped output is one of the references to the letter (KILT, ``accuracy``).

    Case counts and nothing is normalized: for classes such as SUPPORTS and REFUTES.
    """
    return float(output.strip() in references)


def token_f1(output: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over the multisets of normalized words (KILT, ``f1_score``)."""
    words = Counter(normalize_answer(output).split())
    return max((_f1(words, Counter(normalize_answer(r).split())) for r in references), default=0.0)


def _f1(output: Counter[str], reference: Counter[str]) -> float:
    common = (output & reference).total()
    if common == 0:
        return 0.0
    precision, recall = common / output.total(), common / reference.total()
    return 2 * precision * recall / (precision + recall)


def rouge_l(output: str, references: Sequence[str]) -> float:
    """ROUGE-L F-measure of the package ``rouge-score``, with its stemmer (as eRAG's examples use it)."""
    scorer = _rouge_scorer()
    return max((scorer.score(r, output)["rougeL"].fmeasure for r in references), default=0.0)


def rouge_l_kilt(output: str, references: Sequence[str]) -> float:
    """ROUGE-L F-measure of the package ``rouge``, as KILT scores it.

    Other results than ``rouge_l``: case counts, words are what white space separates, and the
    precision and recall are over distinct words. An output or reference without words scores 0.
    """
    return max((_rouge_kilt(output, reference) for reference in references), default=0.0)


def _rouge_kilt(output: str, reference: str) -> float:
    from rouge import Rouge

    try:
        return float(Rouge().get_scores(output, reference, avg=True)["rouge-l"]["f"])
    except ValueError:  # the package's answer to a text without words
        return 0.0
    except RecursionError:
        raise InputError(
            None,
            None,
            f"rouge-l-kilt cannot score a text this long ({len(output.split())} and "
            f"{len(reference.split())} words; the package recurses once per word)",
            "use rouge-l",
        ) from None


@functools.cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)


METRICS: dict[str, Metric] = {
    "em": exact_match,
    "match": match,
    "accuracy": accuracy,
    "f1": token_f1,
    "rouge-l": rouge_l,
    "rouge-l-kilt": rouge_l_kilt,
}


def get_metric(name: str) -> Metric:
    """The metric called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in METRICS:
        raise InputError(None, None, f"unknown metric {name!r}", f"use one of {', '.join(METRICS)}")
    return METRICS[name]


def score_outputs(outputs: pl.DataFrame, queries: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Add ``value``, the metric of each row's ``output`` against the answers of its ``query_id``.

    Distinct (query, output) pairs are scored once: many passages lead to the same answer.
    """
    function = get_metric(metric)
    answers = dict(queries.select(QUERY_ID, ANSWERS).iter_rows())
    distinct = outputs.select(QUERY_ID, OUTPUT).unique(maintain_order=True)
    values = [function(output, answers[query_id]) for query_id, output in distinct.iter_rows()]
    scored = distinct.with_columns(pl.Series(VALUE, values, dtype=pl.Float64))
    return outputs.join(scored, on=[QUERY_ID, OUTPUT], how="left", maintain_order="left")
