"""Containment labels: a passage is relevant if it holds an answer, in either of the field's two ways.

``containment`` is DPR's ``has_answer``: tokens in a row. ``containment-substring`` looks for the answer
in the text as a string, both after KILT's normalization.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import polars as pl
import regex

from engine.labels.annotator import Annotator, Labelled, Material, labels_of
from engine.labels.traces import complete
from engine.messages.notes import Note, count_note
from engine.scoring.normalize import normalize_answer
from engine.tables import ANSWER, ANSWERS, DOC_ID, QUERY_ID, TEXT

NAME = "containment"
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
    """Queries whose answers, all of them, may be followed by text without a space.

    Such an answer is not a separate token there, and tokens do not match it. Where one answer of several is such, it is an alias, and the others can be found.
    """
    runs_on = pl.element().str.strip_chars().str.contains(_RUNS_ON).all()
    answered = queries[ANSWERS].filter(queries[ANSWERS].list.len() > 0)
    return int(answered.list.eval(runs_on).list.first().sum())


def find_answers(
    pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame, *, name: str = NAME
) -> pl.DataFrame:
    """``query_id``, ``doc_id``, ``answer``: the first answer that the passage holds; null for none.

    The passage's text is searched, its title is not, as DPR does. As tokens in a row, "art" does not occur in
    "party", nor "US" in "U.S."; as a substring of the normalized text, "art" occurs in "party", and "US" in
    "U.S." as in "thus". An answer without tokens, or that normalizes to nothing, occurs nowhere (in DPR's own
    code it occurs everywhere). Rows come in the order of ``pairs``.
    """
    find = _holds_substring if name == SUBSTRING else holds_tokens
    answers: dict[str, list[str]] = dict(queries.select(QUERY_ID, ANSWERS).iter_rows())
    texts = pairs.join(corpus.select(DOC_ID, TEXT), on=DOC_ID, how="left", maintain_order="left")
    matches = [
        find(text, answers[query_id]) for query_id, text in texts.select(QUERY_ID, TEXT).iter_rows()
    ]
    return texts.select(QUERY_ID, DOC_ID, pl.Series(ANSWER, matches, dtype=pl.String))


def holds_tokens(text: str, answers: Sequence[str]) -> str | None:
    """The first answer whose tokens stand in a row in the text; None where none does."""
    tokens = f" {' '.join(tokenize(text))} "
    held = (a for a in answers if (own := _tokens(a)) and f" {' '.join(own)} " in tokens)
    return next(held, None)


def _holds_substring(text: str, answers: Sequence[str]) -> str | None:
    normalized = normalize_answer(text)
    return next((a for a in answers if (own := _normalized(a)) and own in normalized), None)


# A query's answers meet every one of its passages.
@functools.lru_cache(maxsize=4096)
def _tokens(answer: str) -> tuple[str, ...]:
    return tuple(tokenize(answer))


_normalized = functools.lru_cache(maxsize=4096)(normalize_answer)


def _label_by(name: str) -> Callable[[Material], Labelled]:
    def label_material(material: Material) -> Labelled:
        matches = find_answers(material.pairs, material.queries, material.passages, name=name)
        labels = labels_of(name, matches, pl.col(ANSWER).is_not_null().cast(pl.Float64))
        return Labelled(labels, complete(labels.with_columns(matches[ANSWER])))

    return label_material


def _nothing_to_find(
    queries: pl.DataFrame, found_as: Callable[[str], Sequence[str] | str], name: str
) -> Note:
    return count_note(
        "queries_with_nothing_to_find",
        sum(
            bool(answers) and not any(map(found_as, answers))
            for answers in queries[ANSWERS].to_list()
        ),
        f"[query has|queries have] answers of which {name} has nothing to look for",
        about=(name,),
    )


def _query_notes(queries: pl.DataFrame) -> Iterator[Note]:
    yield _nothing_to_find(queries, _tokens, NAME)
    yield count_note(
        "queries_running_on",
        count_running_on(queries),
        "[query has|queries have] answers that Korean particles or further words may follow without a "
        f"space, where tokens do not match; {SUBSTRING} and `dual_words` substring find them",
    )


ANNOTATOR = Annotator(
    name=NAME,
    meaning="1 if an answer's words stand in a row in the passage",
    label=_label_by(NAME),
    unfit_tasks=_UNFIT,
    query_notes=_query_notes,
    finds_answers=True,
    needs_answers=True,
)
BY_SUBSTRING = replace(
    ANNOTATOR,
    name=SUBSTRING,
    meaning="1 if the passage contains an answer as a string",
    label=_label_by(SUBSTRING),
    query_notes=lambda queries: [_nothing_to_find(queries, _normalized, SUBSTRING)],
)
