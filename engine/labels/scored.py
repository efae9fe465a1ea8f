"""Labels from log-probabilities: of reference answers, of the query, and of what the reader writes itself.

For a query q, a passage d and reference answers y, where p is the reader's probability of a text behind its
prompt, teacher-forced:

- ``likelihood``: max over y of p(y | q, d) ** (1 / |y|), the probability by token, in [0, 1] (REPLUG, Shi et al.,
  NAACL 2024, and Atlas, Izacard et al., JMLR 2023, weigh passages by p(y | q, d));
- ``dig``: max over y of p(y | q, d), less max over y of p(y | q), in [-1, 1] (document information gain, Wang et
  al., EMNLP 2025, arXiv 2509.12765; without their smoothing of p over windows and their weights of the first tokens);
- ``pmi``: (log p(q | d) - log p(q)) / |q|, in nats by token (Liu et al., NAACL 2025, arXiv 2411.07773);
- ``perplexity``: one over the perplexity of the reader's own answer a from d, p(a | q, d) ** (1 / |a|), in (0, 1].

A read that failed counts as a probability of 0; with ``pmi`` its passage has label 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import polars as pl

from engine.labels import erag
from engine.labels.annotator import (
    Annotator,
    Ask,
    EvaluationSettings,
    Labelled,
    Material,
    Role,
    Scale,
    labels_of,
)
from engine.labels.traces import trace_judge
from engine.reading.prompting.prompts import QUESTION, styles
from engine.tables import CONFIDENCE, DOC_ID, DOC_IDS, OUTPUT_TOKENS, QUERY_ID, VALUE

_ANSWERS = Role("score", "the reader that scores answers", "score", is_readers=True)
_QUESTIONS = Role("question", "the reader that scores questions", "question", is_readers=True)
_OWN = Role("own", "the reader that weighs its answers", "own_answers", is_readers=True)

_BY_TOKEN = pl.col(CONFIDENCE).fill_null(0.0)
_WHOLE = _BY_TOKEN.pow(pl.col(OUTPUT_TOKENS))
# Finite, whatever underflowed.
_LOG = pl.col(CONFIDENCE).clip(lower_bound=1e-300).log()
CLOSED = "closed"
# What a passage adds to the value without any.
GAINED = pl.col(VALUE) - pl.col(CLOSED)


def best(reads: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Of each query and passage (or none) the read whose ``value`` is the largest, in the order of the reads."""
    passage = pl.col(DOC_IDS).list.first().fill_null("")
    named, pair = reads.with_columns(passage.alias(DOC_ID), value.alias(VALUE)), [QUERY_ID, DOC_ID]
    most = pl.col(VALUE).max().over(pair)
    of_most = named.filter((pl.col(VALUE) == most) | most.is_null())
    return of_most.unique(pair, keep="first", maintain_order=True)


def with_closed(reads: pl.DataFrame) -> pl.DataFrame:
    """Those of a passage, each with the query's ``value`` without one as ``closed``."""
    none = pl.col(DOC_IDS).list.len() == 0
    known = reads.filter(none).select(QUERY_ID, pl.col(VALUE).alias(CLOSED))
    return reads.filter(~none).join(known, on=QUERY_ID, how="left", maintain_order="left")


def _label(name: str, value: pl.Expr, closed: bool, material: Material) -> Labelled:
    valued, label = best(material.reads, value), pl.col(VALUE)
    if closed:
        valued, label = with_closed(valued), GAINED
    labels = labels_of(name, valued, label.fill_null(0.0))
    return Labelled(labels, trace_judge(labels, valued))


def _asks(role: Role, closed: bool, settings: EvaluationSettings) -> Ask:
    ask = replace(
        erag.asks(settings),
        role=role,
        value=lambda reads, queries: reads.select(_BY_TOKEN)[CONFIDENCE],
        scores="own" if role == _OWN else "target",
        closed=closed,
    )
    if role != _QUESTIONS:
        return ask
    style = ask.prompt if ask.prompt in styles(QUESTION) else None
    return replace(ask, task=QUESTION, prompt=style, augmentation="in-prompt")


def _annotator(
    name: str, meaning: str, value: pl.Expr, scale: Scale, role: Role, closed: bool = False
) -> Annotator:
    return Annotator(
        name=name,
        meaning=meaning,
        label=partial(_label, name, value, closed),
        uses_options_of=(erag.NAME,),
        needs_answers=role == _ANSWERS,
        role=role,
        asks=partial(_asks, role, closed),
        scale=lambda settings: scale,
    )


LIKELIHOOD = _annotator(
    "likelihood",
    "the probability by token of the likeliest reference answer, given the passage",
    _BY_TOKEN,
    Scale(graded="likelihoods of answers"),
    _ANSWERS,
)
DIG = _annotator(
    "dig",
    "how much more likely a reference answer is with the passage than without",
    _WHOLE,
    Scale(graded="document information gains"),
    _ANSWERS,
    closed=True,
)
PMI = _annotator(
    "pmi",
    "above 0 if the query is likelier given the passage than alone",
    _LOG,
    Scale(utilities=True),
    _QUESTIONS,
    closed=True,
)
PERPLEXITY = _annotator(
    "perplexity",
    "how sure the reader is of its own answer from the passage: one over its perplexity",
    _BY_TOKEN,
    Scale(graded="inverse perplexities"),
    _OWN,
)
