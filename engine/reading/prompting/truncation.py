"""Cut prompts that are longer than a decoder-only reader's input: drop passages, never the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

DOES_NOT_FIT = "the prompt exceeds the reader's longest input even without passages"


@dataclass(frozen=True)
class Fitted:
    """A tokenized prompt that fits the reader's input.

    Attributes:
        tokens: those that the reader is given; None where not even the question fits.
        length: their number; that of the whole prompt where it does not fit.
    """

    tokens: list[int] | None
    length: int
    truncated: bool


def fit(
    tokens: list[int],
    text: str,
    *,
    head: Sequence[int],
    limit: int,
    tail_marker: str,
    encode: Callable[[str], Sequence[int]],
) -> Fitted:
    """Cut a prompt to ``limit`` tokens.

    What it begins with stays (the instruction and examples), and so does what follows the last
    ``tail_marker`` (the question). Between them those passages are cut first that stand first: the
    best ones stand last.

    Args:
        head: tokens of what prompts begin with; those that this one shares with it are kept.
        tail_marker: as in ``ReaderSpec``; where the text lacks it, one token is kept at least.
    """
    excess = len(tokens) - limit
    if excess <= 0:
        return Fitted(tokens, len(tokens), False)
    # Tokens may merge across the end of the head's text, so what is kept is decided on tokens.
    same = (a == b for a, b in zip(head, tokens, strict=False))
    kept = next((i for i, equal in enumerate(same) if not equal), min(len(head), len(tokens)))
    at = text.rfind(tail_marker) if tail_marker else -1
    tail = len(encode(text[at:])) if at >= 0 else 1
    rest = tokens[kept + excess :]
    if len(rest) < tail:
        return Fitted(None, len(tokens), True)
    return Fitted([*tokens[:kept], *rest], limit, True)
