"""Find the strings at which outputs end, while the text of tokens grows.

The text of some tokens is not always the beginning of the text of more: bytes of a character that are not
complete yet show as U+FFFD, and a tokenizer may take away a space before the mark that follows it.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from engine.reading.answers import Rule

# Stands for bytes that are not a character, or not a whole one yet.
INCOMPLETE = "\ufffd"
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


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class Stops:
    """The strings at which outputs end, looked for only where one may have been completed.

    A string is complete when its last character is, so a token whose text has no such character completes
    none. That is known of tokenizers whose text grows token by token (``grows``); with others every
    text is looked at.

    Args:
        rule: has the strings. Where the prompt begins a thought, the tag that ends it is one of those looked for.
    """

    def __init__(self, tokenizer: Tokenizer, rule: Rule) -> None:
        self._tokenizer = tokenizer
        stop = (*rule.stop, rule.tags[1]) if rule.opened else rule.stop
        self._stop = stop
        self._last = {string[-1] for string in stop}
        # Where spaces are cleaned up, a token's own text may lose one that it has behind others.
        cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        strange = any(INCOMPLETE in string for string in stop)
        self._always = bool(stop) and (cleans or strange or not grows(tokenizer))
        self._ends: dict[int, bool] = {}

    def may_end(self, token: int) -> bool:
        """Whether a text that this token was added to may now have a stop string."""
        if self._always or not self._stop:
            return self._always
        if token not in self._ends:
            # Twice, since what stands first may lose its space.
            text = self._tokenizer.decode([token, token], skip_special_tokens=True)
            whole = text and INCOMPLETE not in text
            self._ends[token] = not whole or not self._last.isdisjoint(text)
        return self._ends[token]


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
