"""Cut prompts that are longer than a decoder-only reader's input: drop passages, never the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

DOES_NOT_FIT = "the prompt exceeds the reader's longest input even without passages"


def fit(
    tokens: list[int],
    text: str,
    *,
    head: Sequence[int],
    limit: int,
    tail_marker: str,
    encode: Callable[[str], Sequence[int]],
) -> list[int]:
    """Cut a prompt to ``limit`` tokens; none where not even the question fits.

    What it begins with stays (the instruction and examples), and so does what follows the last
    ``tail_marker`` (the question). Between them those passages are cut first that stand first: the
    best ones stand last.

    Args:
        head: tokens of what prompts begin with; those that this one shares with it are kept.
        tail_marker: as in ``ReaderSpec``; where the text lacks it, one token is kept at least.
    """
    excess = len(tokens) - limit
    if excess <= 0:
        return tokens
    # Tokens may merge across the end of the head's text, so what is kept is decided on tokens.
    same = (a == b for a, b in zip(head, tokens, strict=False))
    kept = next((i for i, equal in enumerate(same) if not equal), min(len(head), len(tokens)))
    at = text.rfind(tail_marker) if tail_marker else -1
    tail = len(encode(text[at:])) if at >= 0 else 1
    rest = tokens[kept + excess :]
    if len(rest) < tail:
        return []
    return [*tokens[:kept], *rest]
