"""Find out whether a server reads prompts whole: some cut those that are too long, and answer with status 200.

What is counted of the first reads, the longest, and of the trial shows where that is in doubt. The longest prompt is then
asked again, whole and in halves, behind letters by chance, so that the server has kept nothing of it: tokens of a prompt
that is read whole are those of its halves. Neither the tokenizer nor the order of reads matters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.reading.protocol import ReadOutput

# What a server is asked first, to see what it takes and what it gives.
TRIAL = "Reply with OK."
# What the failure of a read whose prompt was cut begins with.
CUT_PROMPT = "the server cut the prompt"
# Bytes that a token more in a prompt has at most, where nothing is in doubt; of English it has 4.5.
_MOST_BYTES = 9
# The longest prompt, and others of clearly fewer bytes, are compared; so many of one count are one too many.
_SHORTER, _ALIKE = 0.9, 3


class Counted(NamedTuple):
    """The bytes of a prompt, and its tokens as a server counts them; 0 where it does not."""

    size: int
    tokens: int


class Window(NamedTuple):
    """The most tokens of a prompt that a server reads, and the tokens of a byte of one that it cut."""

    tokens: int
    rate: float

    def judged(self, output: ReadOutput, size: int) -> ReadOutput:
        """The output of a read; a failed one where its prompt was cut."""
        reached = output.prompt_tokens >= self.tokens - self.tokens // 64
        # Some drop blocks, and have as much left as it comes.
        dropped = 2 * output.prompt_tokens >= self.tokens < self.rate * size / 1.2
        if output.failure is not None or not (reached or dropped):
            return output
        return ReadOutput.failed(
            f"{CUT_PROMPT}, of which it read {self.tokens:,} tokens at most: give it a longer context, or the reader "
            "fewer passages",
            prompt_tokens=output.prompt_tokens,
        )


def is_in_doubt(counts: Sequence[Counted], trial: Counted) -> bool:
    """Whether the longest of some prompts may have been cut: it has hardly more tokens than shorter ones."""
    known = [one for one in counts if one.tokens]
    longest = max(known, default=trial)
    if not trial.tokens or longest.tokens <= trial.tokens:  # what is counted is something else
        return False
    alike = [one.size for one in known if one.tokens == longest.tokens]
    return (len(alike) >= _ALIKE and min(alike) < max(alike)) or any(
        longest.size - one.size > _MOST_BYTES * (longest.tokens - one.tokens)
        for one in (*known, trial)
        if one.size <= _SHORTER * longest.size
    )


def find_window(count: Callable[[str], int], text: str, size: int) -> Window | None:
    """The window of a server that cuts a prompt; None where it reads it whole, or does not count.

    Args:
        count: asks for an answer to a prompt, and gives its tokens; 0 where that is not known.
    """
    half = len(text) // 2
    parts = (text, text[:half], text[half:], "")
    whole, first, second, nothing = (count(f"#{uuid.uuid4().hex[:6]} {part}") for part in parts)
    tokens = first + second - nothing
    if min(whole, first, second, nothing) and tokens > 1.05 * whole + 4:
        return Window(whole, tokens / size)
    return None
