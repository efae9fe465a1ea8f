"""Choose between given answers by the log-probabilities of the first tokens, as a server reports them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Chosen(NamedTuple):
    """The place of the choice that was made (None for none of them), the probability of the first, and of several
    that of all of them among all tokens.
    """

    place: int | None
    confidence: float
    mass: float | None


def choose(choices: Sequence[str], likeliest: Mapping[str, float]) -> Chosen | None:
    """The likeliest choice, as readers on this machine choose (``ReaderSpec.choices``).

    The server's tokenizer is not known here: a choice begins with the longest listed token that it begins
    with, and that no other choice begins with. A choice of which no token is listed has a probability below
    the least that is listed, and counts as 0.

    Args:
        choices: one is taken among all tokens; several are weighed among each other.
        likeliest: log-probabilities by the text of the token.

    Returns:
        None where several choices are to be weighed and none of them is listed.
    """
    found = [_log_probability(place, choices, likeliest) for place in range(len(choices))]
    if len(choices) == 1:
        confidence = math.exp(min(0.0, found[0]))
        return Chosen(0 if confidence > 0.5 else None, confidence, None)
    most = max(found)
    if most == -math.inf:
        return None
    shares = [math.exp(value - most) for value in found]
    mass = math.fsum(map(math.exp, found))
    return Chosen(shares.index(max(shares)), shares[0] / sum(shares), mass)


def following(tokens: Sequence[tuple[str, float]], target: str) -> list[float] | None:
    """Those of the tokens that a target is, the last or before one generated; None where no tokens are the target."""
    for end in (len(tokens) - 1, len(tokens)):
        text, at = "", end
        while at > 0 and len(text) < len(target):
            at -= 1
            text = tokens[at][0] + text
        logs = [log for _, log in tokens[at:end]]
        if text == target and not any(map(math.isnan, logs)):
            return logs
    return None


def _log_probability(place: int, choices: Sequence[str], likeliest: Mapping[str, float]) -> float:
    """Of the token that a choice begins with; as it is written, else whatever blanks stand before it."""
    for trimmed in (str, str.lstrip):
        texts = [trimmed(choice) for choice in choices]
        others = [text for other, text in enumerate(texts) if other != place]
        fitting = [
            (len(trimmed(token)), value)
            for token, value in likeliest.items()
            if trimmed(token)
            and texts[place].startswith(trimmed(token))
            and not any(text.startswith(trimmed(token)) for text in others)
        ]
        if fitting:
            return max(fitting)[1]
    return -math.inf
