"""Count a reader's tokens: of passages, for lists with a token budget, and of prompts, for plans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace

import polars as pl

from engine.machine.remote.api_settings import is_api
from engine.messages.notes import Note, count_note
from engine.reading.models.tokenizing import longest_input
from engine.reading.models.weights import resolve
from engine.reading.prompting.controls import count_tokens
from engine.reading.protocol import ReaderSpec
from engine.reading.reader_settings import ReaderSettings
from engine.reading.readers import positions
from engine.tables import QUERY_ID, RANK, RUN, TOKENS, N

# Characters per token, for a reader without a tokenizer here; as in plans (``plan.longest_first``).
_CHARACTERS = 4
# Most prompts that are tokenized: a random sample of more prompts, scaled up by characters.
_TOKENIZED = 1000


def has_tokenizer(reader: ReaderSettings) -> bool:
    """Whether a reader's tokenizer is here: functions and models behind an API have none."""
    return reader.own(reader.reader) is None and not is_api(reader.reader)


def passage_tokens(reader: ReaderSettings, passages: Iterable[tuple[str, str]]) -> list[int]:
    """Count tokens of (title, text) in a line, without a prompt; estimates them if there is no tokenizer."""
    texts = [" ".join(f"{title} {text}".split()) for title, text in passages]
    if not has_tokenizer(reader):
        return [-(-len(text) // _CHARACTERS) for text in texts]
    weights = resolve(reader.reader)
    return count_tokens(weights.path, weights.name, texts, trusted=reader.trust_remote_code)


def budget_notes(
    runs: pl.DataFrame,
    names: Iterable[str],
    budgets: Collection[int],
    k: int,
    reader: ReaderSettings,
) -> Iterator[Note]:
    """Note lists that a budget does not fit: their first passage is too long, or ``k`` ends them too early."""
    if not budgets:  # then runs have no lengths
        return
    first = pl.col(TOKENS).sort_by(RANK).first().alias("first")
    by_query = runs.group_by(RUN, QUERY_ID, maintain_order=True)
    all_lists = by_query.agg(first, pl.col(TOKENS).sum(), pl.len().alias(N))
    for budget, run in product(budgets, names):
        lists, about = all_lists.filter(pl.col(RUN) == run), (f"{run} at {budget} tokens",)
        yield count_note(
            "nothing_in_budget",
            lists.filter(pl.col("first") > budget).height,
            "[list|lists] of {} [begins with a passage that is|begin with passages that are] longer: nothing of "
            "[it|them] is within the budget",
            about=about,
        )
        yield count_note(
            "budget_not_filled",
            lists.filter(pl.col(TOKENS) <= budget, pl.col(N) == k).height,
            f"[list|lists] of {{}} [ends|end] at `k` {k}, and the budget may hold more: use a larger `k`",
            about=about,
        )
    text = f"tokens of passages are a quarter of their characters, since {reader.reader} has no tokenizer here"
    yield Note("estimated_tokens", int(not has_tokenizer(reader)), text)


def prompt_tokens(spec: ReaderSpec, inputs: pl.Series) -> float | None:
    """Estimate the total tokens of prompts after cuts; None for a function, whose tokens are unknown."""
    if spec.function or inputs.is_empty():
        return None if spec.function else 0.0
    if spec.api:  # in bytes: letters of other scripts have more bytes, and more tokens, too
        system = len(spec.api.system.encode()) * inputs.len()
        return (system + int(inputs.explode().str.len_bytes().sum())) / _CHARACTERS
    some = inputs.sample(min(inputs.len(), _TOKENIZED), seed=0)
    characters, tokenized = (int(own.explode().str.len_chars().sum()) for own in (inputs, some))
    # A scored text is no part of the prompt.
    reads = [read[:-1] if spec.scores == "target" else read for read in some.to_list()]
    known = positions(Path(spec.path))
    if spec.architecture == "causal":
        texts = list(map("".join, reads))
        longest = spec.max_input_tokens or (known and known - spec.most_new_tokens)
    else:
        texts = list(chain(*reads))
        longest = longest_input(spec, SimpleNamespace(max_position_embeddings=known))
    counts = (min(count, longest or count) for count in _counts(spec, texts))
    return sum(counts) * characters / max(1, tokenized)


def _counts(spec: ReaderSpec, texts: list[str]) -> list[int]:
    """Token counts by text; loads transformers, which takes seconds and hundreds of MiB, only if needed."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(f"{spec.path}/tokenizer.json")
    except Exception:  # any error: transformers supports other files, or reports it
        return count_tokens(Path(spec.path), spec.name, texts, trusted=bool(spec.code))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=spec.special_tokens)
    return [len(tokens) for tokens in encoded]
