"""Labels by gold articles, by answers held word for word, and by both, which are dual labels.

``provenance``: a passage is relevant if its article is among the query's gold articles (KILT).

``containment`` is DPR's ``has_answer``: tokens in a row. ``containment-substring`` looks for the answer
in the text as a string, both after KILT's normalization.

Dual labels: the document label is that of ``provenance``, the word label that of ``containment``, or, for languages
that write more than a word between two spaces, of ``containment-substring``. A single label cannot distinguish the
right document without the answering passage from the answer's words in a document on another subject.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
import regex

from engine import tables
from engine.labels import annotator
from engine.labels.annotator import Annotator, AnnotatorResult, Material, complete, labels_of
from engine.messages.checked import CheckedSettings
from engine.messages.notes import Note, count_note
from engine.messages.wording import with_interval
from engine.scoring.normalize import normalize_answer
from engine.statistics.arrays import Ints, Mask
from engine.statistics.bounded import mean_interval
from engine.statistics.comparison import Clusters, numbered
from engine.statistics.correlation import Bootstrap
from engine.tables import ARTICLE_ID, DOC_ID, LABEL, PROVENANCE, QUERY_ID, RUN, TEXT, WORD_LABEL, K

PROVENANCE_NAME = "provenance"


def gold_articles(pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame) -> pl.Series:
    """The passages' gold articles; null for none.

    All passages of a gold article are relevant, as in the eRAG paper; without provenance none is.
    """
    rows = pairs.join(
        corpus.select(DOC_ID, ARTICLE_ID), on=DOC_ID, how="left", maintain_order="left"
    ).join(queries.select(QUERY_ID, PROVENANCE), on=QUERY_ID, how="left", maintain_order="left")
    is_gold = pl.col(PROVENANCE).list.contains(pl.col(ARTICLE_ID)).fill_null(False)
    return rows.select(pl.when(is_gold).then(ARTICLE_ID).alias(ARTICLE_ID))[ARTICLE_ID]


def _label_provenance(material: Material) -> AnnotatorResult:
    passages = material.passages.height
    gold = gold_articles(material.pairs, material.queries, material.passages)
    is_gold = pl.col(ARTICLE_ID).is_not_null().cast(pl.Float64)
    labels = labels_of(PROVENANCE_NAME, material.pairs.with_columns(gold), is_gold)
    none_listed = labels.height > 0 and labels[LABEL].sum() == 0
    note = count_note(
        "no_gold_article_listed",
        passages if none_listed else 0,
        "listed [passage|passages], and none from a gold article: check that queries and corpus use the "
        "same article ids",
        passages=passages,
    )
    return AnnotatorResult(labels, complete(labels.with_columns(gold)), notes=(note,))


def _provenance_notes(queries: pl.DataFrame) -> Iterator[Note]:
    lacking, what = int((queries[PROVENANCE].list.len() == 0).sum()), "[query has|queries have]"
    yield count_note("queries_without_provenance", lacking, f"{what} no provenance")


PROVENANCE_ANNOTATOR = Annotator(
    name=PROVENANCE_NAME,
    meaning="1 if the passage is from a gold article",
    label=_label_provenance,
    needs_provenance=True,
    query_notes=_provenance_notes,
)


CONTAINMENT_NAME = "containment"
SUBSTRING = "containment-substring"

# Tasks whose answers do not occur in passages.
_UNFIT = {
    "claims": "its answers are verdicts, which a passage need not contain to decide the claim",
    "dialogue": "its answers are whole utterances, which a passage need not contain to inform them",
}

# DPR's SimpleTokenizer: runs of letters, digits and marks, or single other visible characters.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
# Scripts in which a word need not end at a space: Korean writes particles onto it, others no spaces.
_RUNS_ON = r"[\p{Hangul}\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}]$"


def tokenize(text: str) -> list[str]:
    """Tokens of DPR's match: NFD, lower case (Karpukhin et al. 2020).

    >>> tokenize("U.S. parties")
    ['u', '.', 's', '.', 'parties']
    """
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def count_running_on(queries: pl.DataFrame) -> int:
    """Number of queries all of whose answers may be followed by text without a space.

    Such an answer is not a separate token, so tokens do not match it. The query's other answers still match.
    """
    runs_on = pl.element().str.strip_chars().str.contains(_RUNS_ON).all()
    answered = queries[tables.ANSWERS].filter(queries[tables.ANSWERS].list.len() > 0)
    return int(answered.list.eval(runs_on).list.first().sum())


def find_answers(
    pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame, name: str = CONTAINMENT_NAME
) -> pl.DataFrame:
    """``query_id``, ``doc_id``, ``answer``: the first answer that the passage holds; null for none.

    The passage's text is searched, its title is not, as DPR does. As tokens in a row, "art" does not occur in
    "party", nor "US" in "U.S."; as a substring of the normalized text, "art" occurs in "party", and "US" in
    "U.S." as in "thus". An answer without tokens, or that normalizes to nothing, occurs nowhere (in DPR's own
    code it occurs everywhere). Rows come in the order of ``pairs``.
    """
    find = _holds_substring if name == SUBSTRING else holds_tokens
    answers: dict[str, list[str]] = dict(queries.select(QUERY_ID, tables.ANSWERS).iter_rows())
    texts = pairs.join(corpus.select(DOC_ID, TEXT), on=DOC_ID, how="left", maintain_order="left")
    matches = [
        find(text, answers[query_id]) for query_id, text in texts.select(QUERY_ID, TEXT).iter_rows()
    ]
    return texts.select(QUERY_ID, DOC_ID, pl.Series(tables.ANSWER, matches, dtype=pl.String))


def holds_tokens(text: str, answers: Sequence[str]) -> str | None:
    """The first answer whose tokens stand in a row in the text, if any."""
    tokens = f" {' '.join(tokenize(text))} "
    return next(
        (a for a in answers if (own := _tokens(a)) and f" {' '.join(own)} " in tokens), None
    )


def _holds_substring(text: str, answers: Sequence[str]) -> str | None:
    normalized = normalize_answer(text)
    return next((a for a in answers if (own := _normalized(a)) and own in normalized), None)


# A query's answers meet every one of its passages.
@functools.lru_cache(maxsize=4096)
def _tokens(answer: str) -> tuple[str, ...]:
    return tuple(tokenize(answer))


_normalized = functools.lru_cache(maxsize=4096)(normalize_answer)


def _label_by(name: str, material: Material) -> AnnotatorResult:
    matches = find_answers(material.pairs, material.queries, material.passages, name)
    labels = labels_of(name, matches, pl.col(tables.ANSWER).is_not_null().cast(pl.Float64))
    return AnnotatorResult(labels, complete(labels.with_columns(matches[tables.ANSWER])))


def _nothing_to_find(
    queries: pl.DataFrame, find: Callable[[str], Sequence[str] | str], name: str
) -> Note:
    answers = queries[tables.ANSWERS].to_list()
    return count_note(
        "queries_with_nothing_to_find",
        sum(bool(texts) and not any(map(find, texts)) for texts in answers),
        f"[query has|queries have] answers of which {name} has nothing to look for",
        about=(name,),
    )


def _containment_notes(queries: pl.DataFrame) -> Iterator[Note]:
    yield _nothing_to_find(queries, _tokens, CONTAINMENT_NAME)
    yield count_note(
        "queries_running_on",
        count_running_on(queries),
        "[query has|queries have] answers that Korean particles or further words may follow without a "
        f"space, where tokens do not match; {SUBSTRING} and `dual_words` substring find them",
    )


CONTAINMENT_ANNOTATOR = Annotator(
    name=CONTAINMENT_NAME,
    meaning="1 if the passage has an answer's words in a row",
    label=partial(_label_by, CONTAINMENT_NAME),
    unfit_tasks=_UNFIT,
    query_notes=_containment_notes,
    finds_answers=True,
    needs_answers=True,
)
BY_SUBSTRING = replace(
    CONTAINMENT_ANNOTATOR,
    name=SUBSTRING,
    meaning="1 if the passage has an answer as a string",
    label=partial(_label_by, SUBSTRING),
    query_notes=lambda queries: [_nothing_to_find(queries, _normalized, SUBSTRING)],
)


NAME = "dual"

# How answers are matched: as tokens in a row, or as a string, which finds "서울" in "서울은" too.
DualWords = Literal["tokens", "substring"]
CONTAINMENT: dict[DualWords, str] = {"tokens": CONTAINMENT_NAME, "substring": SUBSTRING}


@dataclass(frozen=True, kw_only=True)
class Options(CheckedSettings):
    """Options of the annotator ``dual``.

    Attributes:
        dual_words: How the annotator dual looks for answers in passages: as tokens in a row, or as a
            substring, which Korean needs because particles follow words without a space.
    """

    dual_words: DualWords = "tokens"


def _rests_on(settings: annotator.EvaluationSettings) -> tuple[str, ...]:
    return PROVENANCE_NAME, CONTAINMENT[settings.options(Options).dual_words]


def _label(material: Material) -> AnnotatorResult:
    settings = material.settings
    document, word = (material.rests_on[name] for name in _rests_on(settings))
    both = document.labels.with_columns(
        (pl.col(LABEL) > 0).alias(tables.DOCUMENT_LABEL), (word.labels[LABEL] > 0).alias(WORD_LABEL)
    ).select(list(tables.DUAL_LABELS))
    label = (pl.col(tables.DOCUMENT_LABEL) & pl.col(WORD_LABEL)).cast(pl.Float64)
    labels = labels_of(NAME, both, label)
    query_ids, cutoffs = material.queries[QUERY_ID].to_list(), sorted({1, settings.ranking.k})
    events = dual_events(material.runs, both, query_ids, cutoffs, names=material.run_names)
    # The gold article and the answer, whether or not both are there.
    traces = labels.with_columns(document.traces[ARTICLE_ID], word.traces[tables.ANSWER])
    return AnnotatorResult(
        labels, complete(traces), {_PROBABILITIES.name: events, _BOTH.name: both}
    )


def _conclude(
    events: pl.DataFrame, settings: annotator.EvaluationSettings, clusters: Clusters
) -> pl.DataFrame:
    skipped = settings.ranking.missing == "skip"
    return dual_table(events, settings.bootstrap, skip_missing=skipped, clusters=clusters)


def display(probabilities: pl.DataFrame, level: str) -> annotator.Display:
    """The probabilities for printing, by run and cutoff; ``level`` is the suffix of figures with intervals."""
    columns = probabilities.select(RUN, K).unique(maintain_order=True).rows()
    several = probabilities[RUN].n_unique() > 1
    texts = {
        (run, k, name): "undefined" if math.isnan(value) else with_interval(value, low, high, 2)
        for run, k, _, name, value, low, high, _ in probabilities.iter_rows()
    }
    return annotator.Display(
        f"Gold documents (Doc), answers held (Word){level.replace('[', '[exact ')}",
        ["probability"],
        [f"{run} @{k}" if several else f"@{k}" for run, k in columns],
        [([name], [texts[run, k, name] for run, k in columns]) for name in PROBABILITIES],
    )


_PROBABILITIES = annotator.FurtherTable(
    name="dual",
    schema=tables.DUAL,
    in_summary=True,
    conclusion=annotator.Conclusion(tables.DUAL_EVENTS, _conclude),
    display=display,
)
_BOTH = annotator.FurtherTable(name="dual_labels", schema=tables.DUAL_LABELS)

ANNOTATOR = Annotator(
    name=NAME,
    meaning="1 if the passage has an answer and is from a gold article",
    label=_label,
    options=Options,
    rests_on=_rests_on,
    further_tables=(_PROBABILITIES, _BOTH),
)


PROBABILITIES = ("P(Doc)", "P(Word)", "P(Doc ∩ Word)", "P(Doc | Word)", "P(Word | Doc)")


_EVENTS = pl.col(tables.DOCUMENT_LABEL, WORD_LABEL)


class Probability(NamedTuple):
    """A probability in [0, 1] with its interval; NaN if the condition never occurs, bounds also if not requested."""

    name: str
    value: float
    low: float
    high: float
    note: str


def dual_probabilities(
    document: Mask, word: Mask, bootstrap: Bootstrap, clusters: Ints | None = None
) -> list[Probability]:
    """The probabilities of two events over queries, in the order of ``PROBABILITIES``.

    Each is a proportion; a conditional one is over the queries with the condition, whose number counts as fixed.
    Intervals are therefore exact (``bounded.mean_interval``), also if an event occurs for every query.

    Args:
        document, word: shape (n,), whether the event occurred for a query.
        clusters: shape (n,), the cluster of every query, if queries are not independent.
    """
    always, both = np.ones_like(document), document & word
    events = [(document, always), (word, always), (both, always), (both, word), (both, document)]
    probabilities = []
    for name, (event, condition) in zip(PROBABILITIES, events, strict=True):
        value = low = high = math.nan
        note = "undefined: the condition never occurs"
        if n := int(condition.sum()):
            value, note = int(event[condition].sum()) / n, ""
            if bootstrap.resamples:
                codes = None
                if clusters is not None:
                    codes = np.unique(clusters[condition], return_inverse=True)[1]
                outcomes = event[condition].astype(np.float64)
                low, high = mean_interval(outcomes, bootstrap.confidence, codes)
        probabilities.append(Probability(name, value, low, high, note))
    return probabilities


def dual_events(
    runs: pl.DataFrame,
    both: pl.DataFrame,
    query_ids: Sequence[str],
    cutoffs: Sequence[int],
    *,
    names: Sequence[str],
) -> pl.DataFrame:
    """The events of every query (``tables.DUAL_EVENTS``), by run, cutoff and query in the order given.

    At cutoff k an event occurs for a query if it does for any passage within the first k: Doc if some passage is of a
    gold document, Word if some passage holds an answer, and Doc ∩ Word if both occur, even in different passages.
    (``Success@k`` of the annotator ``dual`` requires them in one passage.) Both are null if a run lists nothing for a
    query. Passages that ``both``, the dual labels table, lacks have neither.
    """
    lists = runs.join(both, on=[QUERY_ID, DOC_ID], how="left").group_by(RUN, QUERY_ID)
    either, rank = _EVENTS.fill_null(False), pl.col(tables.RANK)
    hits = [
        lists.agg(pl.lit(cutoff, pl.Int64).alias(K), (either & (rank <= cutoff)).any())
        for cutoff in cutoffs
    ]
    cells = pl.DataFrame({RUN: names}, {RUN: pl.String})
    for column, values in ((K, cutoffs), (QUERY_ID, query_ids)):
        each = pl.DataFrame({column: values}, {column: tables.DUAL_EVENTS[column]})
        cells = cells.join(each, how="cross", maintain_order="left_right")
    return cells.join(pl.concat(hits), on=[RUN, K, QUERY_ID], how="left", maintain_order="left")


def dual_table(
    events: pl.DataFrame,
    bootstrap: Bootstrap,
    *,
    skip_missing: bool = False,
    clusters: Clusters = None,
) -> pl.DataFrame:
    """The dual table: the five probabilities of every run at every cutoff, for any order of the queries.

    Args:
        events: of all queries (``dual_events``).
        skip_missing: leave out queries that a run lists nothing for; else neither event occurs for these.
    """
    rows = []
    for (run, cutoff), cell in events.group_by([RUN, K], maintain_order=True):
        counted = (cell.drop_nulls() if skip_missing else cell).sort(QUERY_ID)
        document, word = counted.select(_EVENTS.fill_null(False)).to_numpy().T
        five = dual_probabilities(document, word, bootstrap, numbered(counted[QUERY_ID], clusters))
        rows += [(run, cutoff, counted.height, *probability) for probability in five]
    return pl.DataFrame(rows, schema=tables.DUAL, orient="row")
