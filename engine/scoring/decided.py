"""When an output is decided while it is still being written: whatever follows, it scores 0.

Under a metric that is 1 or 0 by the whole output, most wrong outputs are known to be wrong from their
first word on. A metric that values parts of an output (match, f1, ROUGE) decides nothing before the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.normalize import (
    ARTICLES,
    KORQUAD_SPACES,
    PUNCTUATION,
    normalize_answer,
    normalize_korquad,
)
from engine.scoring.metrics import get_metric

# The letters and digits at the end of a text. Whether they are an article depends on what follows them.
_OPEN_WORD = re.compile(r"\w*\Z")
_BEGINNINGS_OF_ARTICLES = frozenset({"a", "an", "t", "th", "the"})


@dataclass(frozen=True)
class Goal:
    """What the output of a read must become to score above 0.

    Attributes:
        can_score: whether an output that begins with this text can: with some continuation, or as it is.
            Never False of one that can. True of one that cannot only by a sigma, since words that differ
            in nothing but its form are taken for equal.
        score: the value of a whole output.
    """

    can_score: Callable[[str], bool]
    score: Callable[[str], float]


def is_decidable(metric: str) -> bool:
    """Whether an output can be decided before its end under this metric."""
    return metric in _GOALS


# Many reads are of one query.
@lru_cache(maxsize=4096)
def goal_of(metric: str, references: tuple[str, ...]) -> Goal:
    """The goal of reads with these references, under a metric for which ``is_decidable`` holds."""
    scores = get_metric(metric)
    return Goal(_GOALS[metric](references), lambda output: scores(output, references))


def _exact_match(references: Sequence[str]) -> Callable[[str], bool]:
    targets = _ended(map(normalize_answer, references))

    def readings(text: str) -> Iterator[str]:
        """The beginning in normal form: its last word goes on, or is an article when it has ended."""
        plain = _plain(text.lower())
        last = _OPEN_WORD.findall(plain)[0]
        settled = ARTICLES.sub(" ", plain[: len(plain) - len(last)])
        yield _collapsed(settled + last)
        if last in _BEGINNINGS_OF_ARTICLES:
            yield _collapsed(settled + " ")

    return lambda text: any(
        target.startswith(reading) for reading in readings(text) for target in targets
    )


def _exact_match_korquad(references: Sequence[str]) -> Callable[[str], bool]:
    targets = _ended(map(normalize_korquad, references))

    def can_score(text: str) -> bool:
        reading = _collapsed(_plain(text.translate(KORQUAD_SPACES).lower()))
        return any(target.startswith(reading) for target in targets)

    return can_score


def _accuracy(references: Sequence[str]) -> Callable[[str], bool]:
    # Outputs are stripped, so a reference with white space around it is never met.
    targets = [reference for reference in references if reference == reference.strip()]

    def can_score(text: str) -> bool:
        beginning = text.lstrip()
        return any(target.startswith(beginning) for target in targets) or text.strip() in targets

    return can_score


def _ended(normalized: Iterable[str]) -> list[str]:
    """Targets that ``_collapsed`` texts are compared with; what normalizes to nothing scores nothing."""
    return [_one_sigma(target) + " " for target in dict.fromkeys(normalized) if target]


def _plain(lowered: str) -> str:
    return _one_sigma(lowered).translate(PUNCTUATION)


def _one_sigma(text: str) -> str:
    """The form of a sigma in lower case depends on what follows it, which is not known yet."""
    return text.replace("ς", "σ")


def _collapsed(text: str) -> str:
    """Words in single spaces; a space at the end where the last word has ended."""
    words = text.split()
    return " ".join(words) + (" " if words and text[-1].isspace() else "")


_GOALS: dict[str, Callable[[Sequence[str]], Callable[[str], bool]]] = {
    "em": _exact_match,
    "em-char": _exact_match_korquad,
    "accuracy": _accuracy,
}
