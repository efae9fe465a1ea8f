"""Weigh a passage by how much surer a reader is of its own answer with it than without (GroGU).

From Hua et al. (arXiv 2601.23129) as public summaries have it: the reader writes an answer from the prompt with the
passage, the same tokens are given to it behind the prompt without, and the utility is the fall of its entropy, over the
answer's key tokens alone: those that the passage changes much. By which threshold the paper takes a token for a key
token was not available; ``KEY_FACTOR``, and the mean over the key tokens, are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple, Protocol, Self, TypeVar

from engine.reading.models.decoding import Step
from engine.reading.protocol import Finish, ReaderSpec, ReadOutput

# A token is a key token if it is at least so many times as likely with the passage as without. The store keeps what
# follows from it: a change needs another name in ``Scores``, so that no stored read answers for it.
KEY_FACTOR = 2.0


class Weighed(NamedTuple):
    """The output of a read, and the steps in which it was written or scored, where these are asked for."""

    output: ReadOutput
    steps: Sequence[Step]


class _Forcible(Protocol):
    """A read that can be asked to score tokens."""

    def forced(self, tokens: Sequence[int]) -> Self: ...


_Read = TypeVar("_Read", bound=_Forcible)


def finish(
    spec: ReaderSpec,
    inputs: Sequence[Sequence[str]],
    prepare: Callable[[Sequence[Sequence[str]]], list[_Read]],
    weigh: Callable[[Sequence[_Read]], list[Weighed]],
) -> Finish:
    """Prepare reads now; what it returns does them.

    Args:
        inputs: as ``Reader`` has them; where passages are weighed, the last of each is the prompt without any.
        prepare: makes reads of inputs.
        weigh: does reads.
    """
    if spec.scores != "grounded":
        reads = prepare(inputs)
        return lambda: [output for output, _ in weigh(reads)]
    reads = prepare([pieces[:-1] for pieces in inputs])
    bare = prepare([pieces[-1:] for pieces in inputs])
    return lambda: _grounded(reads, bare, weigh)


def _grounded(
    reads: Sequence[_Read],
    bare: Sequence[_Read],
    weigh: Callable[[Sequence[_Read]], list[Weighed]],
) -> list[ReadOutput]:
    """What is written from each read, with the tokens of both prompts, and with the fall of entropy as confidence."""
    written = weigh(reads)
    outputs = [output for output, _ in written]
    done = [i for i, output in enumerate(outputs) if output.failure is None]
    again = weigh([bare[i].forced([step.token for step in written[i].steps]) for i in done])
    for i, (without, steps) in zip(done, again, strict=True):
        output = outputs[i]
        both = output.prompt_tokens + without.prompt_tokens
        cut = output.truncated or without.truncated
        if without.failure is not None:
            outputs[i] = ReadOutput.failed(without.failure, prompt_tokens=both, truncated=cut)
            continue
        fall = key_entropy_fall(written[i].steps, steps)
        outputs[i] = replace(output, prompt_tokens=both, truncated=cut, confidence=fall)
    return outputs


def key_entropy_fall(grounded: Sequence[Step], bare: Sequence[Step]) -> float:
    """How much lower the reader's entropy is with the passage than without: the mean over the key tokens, in nats.

    Args:
        grounded, bare: an answer's tokens, with the passage and without, those that end it included.

    Returns:
        any number up to log of the vocabulary's size; 0 without a key token.

    >>> key_entropy_fall([Step(7, -0.1, 0.5), Step(9, -0.1, 0.5)], [Step(7, -0.2, 0.8), Step(9, -5.0, 4.5)])
    4.0
    """
    pairs = zip(grounded, bare, strict=True)
    falls = [b.entropy - g.entropy for g, b in pairs if g.log - b.log >= math.log(KEY_FACTOR)]
    return fmean(falls) if falls else 0.0
