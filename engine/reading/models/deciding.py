"""Reads that end as soon as their label is decided: which text is certain while tokens are still added.

The text of some tokens is not always the beginning of the text of more: bytes of a character that are not
complete yet show as U+FFFD, and a tokenizer may take away a space before the mark that follows it. What no
further token can change is asked for its goal (``engine.scoring.decided``); the rest is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from engine.errors import InputError
from engine.reading.protocol import ReaderSpec
from engine.scoring.decided import Goal, goal_of

# Stands for bytes that are not a character, or not a whole one yet.
INCOMPLETE = "\ufffd"
# What transformers replaces in a text, one after the other, where a tokenizer is to clean up its spaces
# (``PreTrainedTokenizerBase.clean_up_tokenization``).
_CLEANED = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}
# Decoders that turn each token into text by itself, so that more tokens only append to it. With bytes, see
# ``INCOMPLETE``.
_TOKEN_BY_TOKEN = {"Replace", "ByteFallback", "ByteLevel", "Metaspace", "Fuse", "Strip"}
_JOINING = {"ByteLevel", "Fuse"}
# Where transformers' own methods that make the text are defined. A class of another may have others.
_METHODS = {
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_tokenizers",
    "clean_up_tokenization": "transformers.tokenization_utils_base",
}


class Backend(Protocol):
    """The part of a tokenizer of the library tokenizers that is used here."""

    def decode_batch(
        self, sequences: list[list[int]], *, skip_special_tokens: bool
    ) -> list[str]: ...


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    @property
    def backend_tokenizer(self) -> Backend: ...

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...


class Text(NamedTuple):
    """The text of some tokens: as the tokenizer decodes them, and before spaces are cleaned up."""

    shown: str
    raw: str


class Deciding:
    """Says whether what a read has written decides its label.

    Args:
        spec: of the reader; ``ReaderSpec.metric`` decides.
        tokenizer: that of the reader.

    Attributes:
        able: whether it is known how the tokenizer's text grows. Else reads end by themselves.
    """

    def __init__(self, spec: ReaderSpec, tokenizer: Any) -> None:
        self._metric = spec.metric
        self._stop = spec.stop
        self._tokenizer: Tokenizer = tokenizer
        self.able = not spec.choices and not spec.code and grows(tokenizer)
        self._cleans = cleans(tokenizer)

    def goals(
        self, references: Sequence[Sequence[str] | None] | None, reads: int
    ) -> list[Goal | None]:
        """What decides each of so many reads; None for those that end by themselves."""
        if references is None or not self.able or not self._metric:
            return [None] * reads
        return [
            # In an output, such a character may stand for one that is not whole yet.
            None if known is None or any(INCOMPLETE in one for one in known)
            else goal_of(self._metric, tuple(known))
            for known in references
        ]  # fmt: skip

    def texts(self, written: Sequence[Sequence[int]]) -> list[Text]:
        """The texts of what reads have written, decoded together, what several have written only once.

        To be called with a tokenizer that grows: of such a one, transformers cleans up the spaces of what the
        library tokenizers decodes, and does no more.
        """
        if not written:
            return []
        distinct = [list(tokens) for tokens in dict.fromkeys(map(tuple, written))]
        raw = self._tokenizer.backend_tokenizer.decode_batch(distinct, skip_special_tokens=True)
        shown = (
            [self._tokenizer.decode(tokens, skip_special_tokens=True) for tokens in distinct]
            if self._cleans
            else raw
        )
        texts = dict(zip(map(tuple, distinct), map(Text, shown, raw), strict=True))
        return [texts[tuple(tokens)] for tokens in written]

    def decided(self, goals: Sequence[Goal], texts: Sequence[Text]) -> list[bool]:
        """Of each read that has written such a text, whether it scores 0, whatever follows.

        Args:
            goals: of the reads, in the order of ``texts``.
            texts: as ``texts`` gives them. What it says of one with a stop string means nothing.
        """
        asked = list(zip(goals, texts, strict=True))
        # Reads of one query often write the same.
        known = {one: self._is_decided(*one) for one in dict.fromkeys(asked)}
        return [known[one] for one in asked]

    def _is_decided(self, goal: Goal, text: Text) -> bool:
        beginnings = [text.raw.rstrip(INCOMPLETE)]
        if self._cleans:
            # Whether a tokenizer that is to clean up does so depends on its kind: both must be decided.
            beginnings.append(certain_cleaned(beginnings[0]))
        if any(goal.can_score(_without_begun(one, self._stop)) for one in beginnings):
            return False
        return goal.score(text.shown.strip()) == 0


def require_able(spec: ReaderSpec) -> None:
    """Refuse to end reads early, where that was asked for, with a tokenizer that it cannot be done with.

    Raises:
        InputError: its text is not known to grow, or it has code of its own.
    """
    from transformers import AutoTokenizer

    # Of a model whose code may run, nothing is loaded here: its tokenizer may be that code.
    if spec.code or not grows(
        AutoTokenizer.from_pretrained(spec.path, local_files_only=True, trust_remote_code=False)
    ):
        raise InputError(
            "`decide` with a tokenizer whose text may change while it grows",
            "leave `decide` out, and reads end by themselves",
            path=spec.name,
        )


def grows(tokenizer: Any) -> bool:
    """Whether the text of tokens is known to be the beginning of the text of these and more.

    But for incomplete characters at its end and for spaces that are cleaned up. So it is where transformers
    decodes with a decoder of the library tokenizers that takes token by token, or joins them by spaces.
    """
    methods = (getattr(type(tokenizer), name, None) for name in _METHODS)
    if [getattr(method, "__module__", "") for method in methods] != list(_METHODS.values()):
        return False
    made = tokenizer.backend_tokenizer.decoder
    if made is None:
        return True
    decoder = json.loads(made.__getstate__())  # as it is written in tokenizer.json
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    # Behind what joins the tokens, a step is done to the whole text: all may be lost but at its beginning.
    joined = next((at for at, kind in enumerate(kinds) if kind in _JOINING), len(kinds))
    return set(kinds) <= _TOKEN_BY_TOKEN and set(kinds[joined + 1 :]) <= {"Strip", "Fuse"}


def cleans(tokenizer: Any) -> bool:
    """Whether a tokenizer is to clean up the spaces of its text; it depends on its kind if it does."""
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))


def certain_cleaned(text: str) -> str:
    """The part of a text with its spaces cleaned up that is the same however the text goes on."""
    for pattern, replacement in _CLEANED.items():
        text = _without_begun(text.replace(pattern, replacement), [pattern])
    return text


def _without_begun(text: str, patterns: Sequence[str]) -> str:
    """A text without the part at its end in which one of the patterns may have begun."""
    begun = (
        size
        for pattern in patterns
        for size in range(len(pattern) - 1, 0, -1)
        if text.endswith(pattern[:size])
    )
    return text[: len(text) - max(begun, default=0)]
