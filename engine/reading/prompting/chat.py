"""Wrap a user's message into the chat template that a model was trained with."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine.messages.errors import InputError
from engine.reading.prompting.controls import load_tokenizer

# Stand for messages while the template is applied. Templates may trim what they are given.
_MESSAGE, _SYSTEM = "\ue000message\ue001", "\ue000system\ue001"


def _fixed_day(form: str) -> str:
    """Some templates name the day; reads must not depend on when they are done."""
    return datetime.date(2024, 7, 26).strftime(form)


def around_message(
    path: Path, name: str, system: str = "", *, trusted: bool = False
) -> tuple[str, str]:
    """The text before and after a user's message, up to where the model's answer begins.

    The template is the model's own (``chat_template.jinja`` or ``tokenizer_config.json``); it writes
    the tokenizer's special tokens itself. Models that can think before they answer are told not to:
    answers are short.

    Args:
        path: the model's directory.
        name: what the user called the model.
        system: the system message; empty for the template's own, or none.
        trusted: whether Python code that comes with the model may run.

    Raises:
        InputError: the model has no chat template, or it cannot be applied to these messages.
    """
    fault = partial(InputError, path=name)
    tokenizer = load_tokenizer(path, name, trusted=trusted)
    if not tokenizer.chat_template:
        raise fault(
            "has no chat template",
            "use a prompt without chat: true, or a model that was trained on conversations",
        )
    apply = partial(
        tokenizer.apply_chat_template,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
        strftime_now=_fixed_day,
    )
    asked = {"role": "user", "content": _MESSAGE}
    try:
        text = apply([{"role": "system", "content": system}, asked] if system else [asked])
        tried = apply([{"role": "system", "content": _SYSTEM}, asked]) if system else _SYSTEM
    except Exception as error:  # a template raises what it likes: often, that it takes no system
        raise fault(
            f"its chat template cannot be applied ({error})"[:300],
            "leave the system message out" if system else "use a prompt without chat: true",
        ) from error
    head, *rest = text.split(_MESSAGE)
    if len(rest) != 1:
        raise fault(
            f"its chat template writes the user's message {len(rest)} times",
            "use a prompt without chat: true",
        )
    if _SYSTEM not in tried:
        raise fault(
            "its chat template leaves the system message out",
            "put it into the prompt's text, before the passages",
        )
    return head, rest[0]


def is_begun(path: Path, name: str, *, trusted: bool) -> bool:
    """Whether a model's tokenizer adds a token before a text. Arguments and errors as ``around_message``."""
    return bool(load_tokenizer(path, name, trusted=trusted)("")["input_ids"])


def count_tokens(path: Path, name: str, texts: Sequence[str], *, trusted: bool) -> list[int]:
    """The tokens of each text alone, without those that the tokenizer adds. Errors as ``around_message``."""
    if not texts:
        return []
    tokenizer = load_tokenizer(path, name, trusted=trusted)
    # Not verbose: texts longer than the model's input are no news, since only their length counts.
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    return [len(tokens) for tokens in encoded["input_ids"]]
