"""Training examples of a reader: queries with passages, as in its prompts, and target answers.

Inputs come from the functions of an evaluation: ``Prompt.render`` and ``models.tokenizing.tokenize``. Nothing here
needs torch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl

from engine.reading.models.tokenizing import tokenize
from engine.reading.prompting.prompts import Prompt
from engine.tables import ANSWERS, DOC_ID, DOC_IDS, QUERY, QUERY_ID, TEXT, TITLE
from engine.training.settings import Recipe


class Example(NamedTuple):
    """A query in tokens.

    Attributes:
        inputs: of the encoder: a single one, or one per passage with Fusion-in-Decoder.
        target: the decoder's target, with its end token unless it was cut.
    """

    inputs: tuple[tuple[int, ...], ...]
    target: tuple[int, ...]
    cut_inputs: int = 0
    cut_target: bool = False


class Examples(Protocol):
    """A source of examples, equal in every process for an epoch and places; ``digest`` is a hash of the source."""

    digest: str

    def __len__(self) -> int: ...

    def draw(self, epoch: int, places: Sequence[int]) -> list[Example]: ...


@dataclass(frozen=True)
class Cuts:
    """Counts of cut inputs and targets, in an epoch."""

    inputs: int = 0
    cut_inputs: int = 0
    targets: int = 0
    cut_targets: int = 0

    @staticmethod
    def of(examples: Sequence[Example]) -> Cuts:
        """The counts of some examples."""
        counts = [
            (len(example.inputs), example.cut_inputs, 1, example.cut_target) for example in examples
        ]
        return Cuts(*map(sum, zip(*counts, strict=True)))


@dataclass(frozen=True, eq=False)
class Readings:
    """Queries with a reader's passages: ``lists`` has ``query_id`` and ``doc_ids``, best first."""

    queries: pl.DataFrame
    lists: pl.DataFrame
    corpus: pl.DataFrame


def trainable(readings: Readings) -> tuple[Readings, int, int]:
    """The trainable queries, and the numbers of queries without answers, and without passages."""
    has_text = pl.col(ANSWERS).list.eval(pl.element().str.strip_chars() != "").list.any()
    answered = readings.queries.filter(has_text.fill_null(False))
    listed = readings.lists.filter(pl.col(DOC_IDS).list.len() > 0)
    queries = answered.join(listed, on=QUERY_ID, how="semi", maintain_order="left")
    lists = queries.select(QUERY_ID).join(listed, on=QUERY_ID, how="left", maintain_order="left")
    trained = replace(readings, queries=queries, lists=lists)
    return trained, readings.queries.height - answered.height, answered.height - queries.height


def order(examples: int, seed: int, epoch: int) -> list[int]:
    """The places of all examples in the order of an epoch, counted from 0."""
    return np.random.default_rng((seed, epoch)).permutation(examples).tolist()


@dataclass(eq=False)
class ReadingExamples:
    """The examples of ``trainable`` queries: ``longest_input`` tokens at most, targets that ``end`` in this token."""

    readings: Readings
    prompt: Prompt
    tokenizer: Any
    longest_input: int
    special_tokens: bool
    longest_target: int
    end: int
    recipe: Recipe
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        queries, corpus = self.readings.queries, self.readings.corpus
        self._rows = list(queries.select(QUERY_ID, QUERY, ANSWERS).iter_rows())
        self._lists: list[list[str]] = self.readings.lists[DOC_IDS].to_list()
        rows = corpus.select(DOC_ID, TITLE, TEXT).iter_rows()
        self._passages = {doc_id: (title, text) for doc_id, title, text in rows}
        content = hashlib.sha256(json.dumps([self._rows, self._lists]).encode())
        for doc_id, passage in sorted(self._passages.items()):
            content.update(json.dumps([doc_id, *passage]).encode())
        self.digest = content.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, epoch: int, places: Sequence[int]) -> list[Example]:
        """The examples at some places, as an epoch (counted from 0) has them."""
        passages = ([self._passages[doc_id] for doc_id in self._lists[i]] for i in places)
        queries = (self._rows[i][1] for i in places)
        texts = [*map(self.prompt.render, queries, passages)]
        flat, limit = list(chain.from_iterable(texts)), self.longest_input
        special = self.special_tokens
        items = iter(tokenize(self.tokenizer, flat, limit=limit, special_tokens=special))
        targets = self._targets([self._answer(epoch, i) for i in places])
        examples: list[Example] = []
        for inputs, (target, is_cut) in zip(texts, targets, strict=True):
            own = [next(items) for _ in inputs]
            tokens = tuple(item.tokens for item in own)
            examples.append(Example(tokens, target, sum(item.truncated for item in own), is_cut))
        return examples

    def _answer(self, epoch: int, place: int) -> str:
        query_id, _, answers = self._rows[place]
        filled = [answer for answer in answers if answer.strip()]
        if self.recipe.target == "first":
            return filled[0]
        return random.Random(f"{self.recipe.seed} {epoch} {query_id}").choice(filled)

    def _targets(self, answers: Sequence[str]) -> list[tuple[tuple[int, ...], bool]]:
        """Tokens of answers, and whether they were cut: a reader stops there, so that no end follows."""
        if not answers:
            return []
        # As in a prompt, no data may stand for a control token.
        texts = [self.prompt.controls.as_text(answer.strip()) for answer in answers]
        encoded = self.tokenizer(texts, return_attention_mask=False, add_special_tokens=False)
        most = self.longest_target
        return [
            (tuple(tokens[:most]), True) if len(tokens) > most else ((*tokens, self.end), False)
            for tokens in encoded["input_ids"]
        ]
