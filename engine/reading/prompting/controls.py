"""Control tokens of a model, which are broken in data, and its chat template.

A tokenizer matches its added tokens (``<|im_end|>``, ``</s>``, ``<extra_id_0>``, ``<tool_call>``) anywhere in a text, so
that a passage with such a string could end the user's turn and speak for the model. The tokenizers' own remedy
(``split_special_tokens``) ignores added tokens that are not special, and vocabularies in which such a string is an
ordinary piece (``</s>`` in T5's). So the string is broken as data enters the prompt, by a space after its first
character. Other texts stay unchanged to the letter: the prompt, its tokens and the key of its read.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.machine import model_files
from engine.messages.errors import InputError

# Control and format characters, which tokenizers drop from a text before they look for pieces.
_DROPPED = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2064\\ufeff]"
)
_OTHER_FORMS = (
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "tokenizer_config.json",
)
# T5's tokenizer adds these even if its files do not list them.
_SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))


@dataclass(frozen=True)
class Controls:
    """The strings that a tokenizer takes for control tokens.

    Attributes:
        strings: control strings of two characters or more; may be empty.
        shapes: regular expressions for further strings, for unknown tokenizers.
    """

    strings: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.strings, key=lambda string: (-len(string), string))
        either = "|".join([*map(re.escape, longest_first), *self.shapes])
        return re.compile(either) if either else None

    def as_text(self, data: str) -> str:
        """Data in which control strings are broken by a space after their first character.

        Data without control strings stays unchanged. If a string would appear only after a tokenizer
        normalizes the data (NFKC, invisible characters dropped), the data is normalized, too.
        """
        if self._pattern is None:
            return data
        broken = _broken(data, self._pattern)
        normalized = _DROPPED.sub("", unicodedata.normalize("NFKC", broken))
        return _broken(normalized, self._pattern) if self._pattern.search(normalized) else broken

    def count(self, text: str) -> int:
        return sum(1 for _ in self._pattern.finditer(text)) if self._pattern else 0


NONE = Controls()
# Control tokens of chat formats. The tokenizer of a server, or of a user's function, is unknown, so data may contain no
# control token of any family: names in brackets with bars, and names of other forms. Strings of HTML, programs and
# formulas stay: short names (<|x|>, <|psi|>), blanks (f <| g |> h), lists ([|a; b|]).
COMMON = Controls(
    (
        "<s>", "</s>", "<bos>", "<eos>", "<<SYS>>", "<</SYS>>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "<think>", "</think>",
    ),
    (
        r"<[|｜]/?(?:e[no][dmst]|bos|[A-Za-z]{2}[\w▁.:-]{2,})[|｜]>",
        r"<\|[a-z]{4}\w*>|<[a-z]{4}\w*\|>",
        r"\[\|(?:system|user|assistant|tool|end_?of_?\w+)\|\]",
        r"<(?:start|end|begin)_of_(?:turn|text|utterance|sentence|role|message)>",
        r"◁/?[a-z]{3}\w*▷",
    ),
)  # fmt: skip


def _broken(data: str, pattern: re.Pattern[str]) -> str:
    # The remains of a broken string may form another.
    while pattern.search(data):
        data = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", data)
    return data


@functools.lru_cache(maxsize=64)
def controls_of(path: Path, digest: str, *, sentinels: bool, trusted: bool = False) -> Controls:
    """The control strings of the tokenizer in a model's directory.

    These are its special tokens, and other added tokens in angle or square brackets; not tokens for text (a run of
    blanks, a word).

    Args:
        digest: digest of the model's files, which with the path identifies a model.
        sentinels: whether the model is a T5, whose tokenizer adds sentinels.
        trusted: whether Python code that comes with the model may run.

    Raises:
        InputError: the tokenizer's files cannot be read.
    """
    del digest  # only part of the cache's key
    tokens: Iterable[tuple[Any, bool]] = ()  # no tokenizer: loading the reader will fail
    if (path / "tokenizer.json").is_file():
        tokens = _in_files(path)
    elif any((path / name).is_file() for name in _OTHER_FORMS):  # the class knows its added tokens
        tokenizer = load_tokenizer(path, trusted=trusted)
        added = tokenizer.added_tokens_decoder.values()
        tokens = [(token.content, token.special) for token in added]
        tokens += [(name, True) for name in tokenizer.all_special_tokens]
    strings = set(_SENTINELS if sentinels else ())
    for token, special in tokens:
        name = token.get("content") if isinstance(token, dict) else token
        special = special or (isinstance(token, dict) and token.get("special") is True)
        if not isinstance(name, str) or len(name) < 2 or not name.strip():
            continue
        if special or (name[0] in "<[" and name[-1] in ">]"):
            strings.add(name)
    return Controls(tuple(sorted(strings)))


def _in_files(path: Path) -> Iterator[tuple[Any, bool]]:
    """Added tokens in the files that transformers reads, strings or objects, and whether they are special."""
    yield from ((token, False) for token in _items(_read(path / "tokenizer.json"), "added_tokens"))
    yield from ((name, False) for name in _read(path / "added_tokens.json"))
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        content = _read(path / file)
        yield from ((token, False) for token in _items(content, "added_tokens_decoder"))
        yield from ((token, True) for key, token in content.items() if key.endswith("_token"))
        for key in ("additional_special_tokens", "extra_special_tokens"):
            yield from ((token, True) for token in _items(content, key))


def _items(content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot be read ({error})", "fetch the model again", "model.unreadable", path=file
        ) from None
    if not isinstance(content, dict):
        raise InputError("is not a JSON object", "fetch the model again", "model.config", path=file)
    return content


def load_tokenizer(path: Path, name: str = "", *, trusted: bool = False) -> Any:
    """The tokenizer in the directory of a model of this name; an InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trusted)
    except Exception as error:
        raise model_files.refusal(error, name or str(path), "its tokenizer") from error


# Placeholders for messages while the template is applied; without spaces, which templates may trim.
_MESSAGE, _SYSTEM = "\ue000message\ue001", "\ue000system\ue001"
# Some templates name the day; reads must not depend on their date.
_DAY = datetime.date(2024, 7, 26)


def around_message(
    path: Path, name: str, system: str = "", *, trusted: bool = False
) -> tuple[str, str]:
    """The text before and after a user's message, up to where the model's answer begins.

    The template is the model's own (``chat_template.jinja`` or ``tokenizer_config.json``) and writes the tokenizer's special
    tokens. Thinking before the answer is disabled in models that support it.

    Args:
        system: the system message; empty for the template's own, or none.
        trusted: whether Python code that comes with the model may run.

    Raises:
        InputError: the model has no chat template, or the template cannot be applied to these messages.
    """
    fault = functools.partial(InputError, path=name)
    tokenizer = load_tokenizer(path, name, trusted=trusted)
    if not tokenizer.chat_template:
        remedy = "use a prompt without chat: true, or a model that was trained on conversations"
        raise fault("has no chat template", remedy, "model.templateless")
    apply = functools.partial(
        tokenizer.apply_chat_template,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
        strftime_now=_DAY.strftime,
    )
    message = {"role": "user", "content": _MESSAGE}
    try:
        text = apply([{"role": "system", "content": system}, message] if system else [message])
        tried = apply([{"role": "system", "content": _SYSTEM}, message]) if system else _SYSTEM
    except Exception as error:  # a template may raise any: often, that it takes no system
        problem = f"its chat template cannot be applied ({error})"[:300]
        remedy = "leave the system message out" if system else "use a prompt without chat: true"
        raise fault(problem, remedy, "model.template") from error
    head, *rest = text.split(_MESSAGE)
    if len(rest) != 1:
        problem = f"its chat template writes the user's message {len(rest)} times"
        raise fault(problem, "use a prompt without chat: true", "model.template")
    if _SYSTEM not in tried:
        remedy = "put it into the prompt's text, before the passages"
        raise fault("its chat template leaves the system message out", remedy, "model.template")
    return head, rest[0]


def count_tokens(path: Path, name: str, texts: Sequence[str], *, trusted: bool) -> list[int]:
    """Numbers of tokens by text, without tokens that the tokenizer adds. Errors as ``around_message``."""
    if not texts:
        return []
    tokenizer = load_tokenizer(path, name, trusted=trusted)
    # Not verbose: no warnings on texts longer than the model's input, since only their length counts.
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    return [len(tokens) for tokens in encoded["input_ids"]]
