"""How many tokens passages have for a reader, where lists have a budget of them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.machine.remote.api_settings import is_api
from engine.reading.models.weights import resolve
from engine.reading.prompting.chat import count_tokens
from engine.reading.reader_settings import ReaderSettings

# Characters of a token, where the reader's tokenizer is elsewhere; as plans take them (``executors.input_sizes``).
_CHARACTERS = 4


def has_tokenizer(reader: ReaderSettings) -> bool:
    """Whether a reader's tokenizer is here: not of a function, and not of a model behind an API."""
    return reader.own(reader.reader) is None and not is_api(reader.reader)


def passage_tokens(reader: ReaderSettings, passages: Iterable[tuple[str, str]]) -> list[int]:
    """The tokens of titles and texts, without those that a prompt adds: by the reader's tokenizer, else about how many.

    Args:
        passages: (title, text), which prompts show in one line.

    Raises:
        InputError: the reader cannot be found, or its tokenizer cannot be loaded.
    """
    texts = [" ".join(f"{title} {text}".split()) for title, text in passages]
    if not has_tokenizer(reader):
        return [-(-len(text) // _CHARACTERS) for text in texts]
    weights = resolve(reader.reader)
    return count_tokens(weights.path, weights.name, texts, trusted=reader.trust_remote_code)
