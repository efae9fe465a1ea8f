"""Choose the next token from logits, and decide when a reader has written enough.

Settings of ``generation_config.json`` that change greedy outputs of ``generate`` are applied, and stop strings are
searched while the text of tokens grows. More tokens may change that text: bytes of an incomplete character show as
U+FFFD, and a tokenizer may remove a space before a following mark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig

from engine.messages.errors import InputError
from engine.reading.answers import INCOMPLETE, Rule, chosen, rule_of, scored, with_own
from engine.reading.models.tokenizing import PromptRead
from engine.reading.protocol import Ended, ReaderSpec, ReadOutput

Numbers = npt.NDArray[np.int64]
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


# Decoders that turn tokens into text one by one, so that more tokens only append text. For bytes, see
# ``INCOMPLETE``.
_TOKEN_BY_TOKEN = {"Replace", "ByteFallback", "ByteLevel", "Metaspace", "Fuse", "Strip"}
_JOINING = {"ByteLevel", "Fuse"}
# Modules of transformers' own methods that make the text. Other tokenizer classes may override them.
_METHODS = {
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_tokenizers",
    "clean_up_tokenization": "transformers.tokenization_utils_base",
}


def grows(tokenizer: Any) -> bool:
    """Whether more tokens only append text, incomplete characters at the end and cleaned-up spaces aside.

    True if transformers decodes with a decoder of the library tokenizers that works token by token, or that joins
    tokens by spaces.
    """
    methods = (getattr(type(tokenizer), name, None) for name in _METHODS)
    if [getattr(method, "__module__", "") for method in methods] != list(_METHODS.values()):
        return False
    own = tokenizer.backend_tokenizer.decoder
    if own is None:
        return True
    decoder = json.loads(own.__getstate__())  # as it is written in tokenizer.json
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    # After a joining step, a step changes the whole text, and only the beginning is safe.
    joined = next((at for at, kind in enumerate(kinds) if kind in _JOINING), len(kinds))
    return set(kinds) <= _TOKEN_BY_TOKEN and set(kinds[joined + 1 :]) <= {"Strip", "Fuse"}


# Caches and tables allot room to sequences in multiples of this number, which kernels prefer. Attention hides the keys
# beyond a sequence's end: libraries handle the remainder of a product or sum by another code path, which sometimes rounds
# differently. A sequence's room follows from its own length alone, and so does every sum over its tokens.
STEP = 32


def padded_length(tokens: int) -> int:
    """Room for a sequence of this many tokens."""
    return -(-tokens // STEP) * STEP


def to_device(device: torch.device, *parts: Numbers) -> list[torch.Tensor]:
    """Copy integer arrays to a device in one asynchronous transfer; shapes stay."""
    host = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    split = there.split([part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(split, parts, strict=True)]


@dataclass(eq=False)
class Continuation:
    """An answer in progress.

    Attributes:
        tokens: generated tokens, including the token that completed a stop string, without end tokens.
        text: their text, stop string included, or the choice; may be out of date until the answer ends.
        begun: the number of tokens of a thought, once it has ended.
        ended: what ended it, unless its text has a stop string.
        confidence, mass: see ``ReadOutput``.
        logs: if requested, natural log-probabilities of the written tokens, the end token included, or of a target's.
        prompt: the tokens before the answer in the decoder.
        encoded: the tokens in the encoder, if there is one.
        target: tokens to score in place of an answer, one after the other.
        offset: the place of the prompt's first token in a cache of many sequences.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    begun: int = 0
    ended: Ended | None = "end"
    confidence: float | None = None
    mass: float | None = None
    logs: list[float] = field(default_factory=list)
    prompt: Sequence[int] = ()
    encoded: Sequence[int] = ()
    target: Sequence[int] = ()
    offset: int = 0

    def output(self, read: PromptRead, rule: Rule, special: Collection[int] = ()) -> ReadOutput:
        """The output of the read, once the answer has ended; its ``special`` tokens do not count."""
        length, truncated = read.length, read.truncated
        if read.scored is not None:
            return scored(read.scored, self.logs, length, truncated=truncated)
        if self.confidence is not None:
            choice = self.text, self.confidence, self.mass
            return chosen(*choice, length, truncated=truncated)
        tokens = sum(token not in special for token in self.tokens)
        output = rule.output(self.text, length, tokens, truncated=truncated, ended=self.ended)
        return with_own(output, self.logs)


def first_tokens(tokenizer: Any, choices: Sequence[str], name: str) -> list[int]:
    """The first tokens of choices; an InputError if two choices share theirs, or a choice has no token."""
    encoded = [tokenizer.encode(choice, add_special_tokens=False) for choice in choices]
    first = [next(iter(tokens), -1) for tokens in encoded]
    if len(set(first)) < len(first) or -1 in first:
        raise InputError(
            f"begins two of the answers {', '.join(choices)} with the same token, or one with none",
            "let the reader write its answers, or take another reader",
            "model.choices",
            path=name,
        )
    return first


def choose(
    logits: torch.Tensor, choices: Sequence[str], first: Sequence[int]
) -> list[tuple[str, float, float | None]]:
    """The choice of each row, with its ``confidence`` and ``mass`` (see ``ReadOutput``).

    Args:
        logits: (rows, vocabulary), of the next token.
        choices: two or more, weighed by the probabilities of their first tokens among themselves; or a single choice,
            taken if its first token's probability among all tokens exceeds 1/2, else the answer is empty.
        first: first tokens of the choices.
    """
    shares = all_shares = logits.float().softmax(-1)[:, list(first)]
    if len(choices) > 1:
        shares = torch.stack([logits[:, token] for token in first], 1).float().softmax(-1)
    # Copied with the rest, in one synchronisation.
    broken = logits.isnan().any(-1, keepdim=True)
    masses = torch.cat([all_shares.sum(-1, keepdim=True), shares], 1)
    rows: list[list[float]] = masses.masked_fill(broken, math.nan).tolist()
    if any(math.isnan(row[0]) for row in rows):
        raise _not_numbers()
    if len(choices) == 1:
        return [(choices[0] if share > 0.5 else "", share, None) for _, share in rows]
    return [(choices[row.index(max(row))], row[0], mass) for mass, *row in rows]


def next_tokens(logits: torch.Tensor) -> list[int]:
    """The token of highest probability in each row of logits, (rows, vocabulary), in one synchronisation.

    Raises:
        ArithmeticError: some logits are NaN, which makes the choice arbitrary.
    """
    # On a CPU, argmax is several times as slow in bf16. Elsewhere a copy would only take memory.
    best = (logits.float() if logits.device.type == "cpu" else logits).argmax(-1, keepdim=True)
    # argmax takes NaN for the greatest, so that testing this value suffices.
    broken = logits.gather(-1, best).isnan()
    tokens: list[int] = torch.where(broken, -1, best)[:, 0].tolist()
    if min(tokens, default=0) < 0:
        raise _not_numbers()
    return tokens


def log_probabilities(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """The natural log-probability of a token in each row of logits, (rows, vocabulary), among all tokens.

    Raises:
        ArithmeticError: some logits are NaN.
    """
    (places,) = to_device(logits.device, np.array(tokens, dtype=np.int64))
    # Copies in fp32 of a few rows at a time.
    parts = zip(logits.split(32), places[:, None].split(32), strict=True)
    gathered = [part.float().log_softmax(-1).gather(-1, own) for part, own in parts]
    logs: list[float] = torch.cat(gathered)[:, 0].tolist()
    if any(map(math.isnan, logs)):
        raise _not_numbers()
    return logs


def _not_numbers() -> ArithmeticError:
    return ArithmeticError("the model's logits are not numbers; use `dtype` float32 or bfloat16")


class Writer:
    """Extends answers greedily, or chooses between given answers, by a specification.

    An answer ends at an end token, a stop string or the limit of tokens. A token can complete a string (a stop string, or
    the closing tag of a thought that the prompt opens) only if the token's text has the string's last character. This
    holds for tokenizers whose text grows token by token (``grows``); with other tokenizers every text is searched.

    Attributes:
        most: tokens generated at most.
        padding: a token that is never read.

    Raises:
        ValueError: transformers refuses a generation setting.
    """

    def __init__(
        self, spec: ReaderSpec, tokenizer: Any, ends: frozenset[int], model: Any = None
    ) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._ends = ends
        self._rule = rule = rule_of(spec)
        self._most_of_answer = spec.max_new_tokens
        self._choices = spec.choices
        self._first = first_tokens(tokenizer, spec.choices, spec.name)
        self._scores = spec.scores
        self.most = 0 if spec.choices else spec.most_new_tokens
        self.padding = min(ends, default=0)
        strings = (*rule.stop, rule.tags[1]) if rule.opened else rule.stop
        self._last = {string[-1] for string in strings}
        # If spaces are cleaned up, a token's own text may lose a space that it has after other tokens.
        cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        strange = any(INCOMPLETE in string for string in strings)
        self._searches_all = bool(strings) and (cleans or strange or not grows(tokenizer))
        self._may_end: dict[int, bool] = {}  # by token
        settings = json.loads(spec.generation) if spec.writes and spec.generation else {}
        self._settings: dict[str, Any] = settings
        self._looks_at_input = any(name.startswith("encoder_") for name in settings)
        self._processors: dict[int, Any] = {}  # by the length of the input, which alone decides
        if settings:
            self._processors_of(Continuation(prompt=[0]))

    def write(self, answers: Sequence[Continuation], logits: torch.Tensor) -> list[int]:
        """Append the next token to answers, from logits (answers, vocabulary); returns places of unfinished answers."""
        if self._choices:
            chosen = choose(logits, self._choices, self._first)
            for answer, choice in zip(answers, chosen, strict=True):
                answer.text, answer.confidence, answer.mass = choice
            return []
        if answers[0].target:  # of all answers of a call, or of none
            tokens = [answer.target[len(answer.tokens)] for answer in answers]
        else:
            tokens = next_tokens(self._changed(logits, answers) if self._settings else logits)
        if self._scores:  # the model's own probabilities, before the settings changed logits
            for answer, log in zip(answers, log_probabilities(logits, tokens), strict=True):
                answer.logs.append(log)
        pairs = enumerate(zip(answers, tokens, strict=True))
        return [place for place, (answer, token) in pairs if self._take(answer, token)]

    def _changed(self, logits: torch.Tensor, answers: Sequence[Continuation]) -> torch.Tensor:
        """Logits changed by the settings like ``generate(do_sample=False)``, by transformers' own processors."""
        rows = []
        for answer, row in zip(answers, logits, strict=True):  # one by one, since lengths differ
            tokens = self._tensor([*answer.prompt, *answer.tokens])
            rows.append(self._processors_of(answer)(tokens, row[None].float()))  # fp32 as there
        return torch.cat(rows)

    def _tensor(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self._model.device)

    def _processors_of(self, answer: Continuation) -> Any:
        length = len(answer.prompt)
        if length not in self._processors or self._looks_at_input:
            own = self._model.generation_config
            tokens = {name: getattr(own, name) for name in _TOKENS}
            config = GenerationConfig(**tokens, **self._settings)
            # ``generate`` derives these from its arguments and its input.
            config.max_length = length + self.most
            if config.min_new_tokens is not None:
                config.min_length = config.min_new_tokens + length
            self._model._prepare_special_tokens(config, device=self._model.device)
            self._processors[length] = self._model._get_logits_processor(
                config,
                input_ids_seq_length=length,
                encoder_input_ids=self._tensor(answer.encoded or answer.prompt),
                device=self._model.device,
            )
        return self._processors[length]

    def _take(self, answer: Continuation, token: int) -> bool:
        """Append a token; whether the answer goes on."""
        if answer.target:
            answer.tokens.append(token)
            return len(answer.tokens) < len(answer.target)
        if token in self._ends:
            answer.text = self._text(answer.tokens)
            return False
        answer.tokens.append(token)
        most = self.most
        if answer.begun or not self._rule.opened:
            most = min(most, answer.begun + self._most_of_answer)
        is_cut = len(answer.tokens) >= most
        if not is_cut and not self._completes(token):
            return True
        answer.ended = "length" if is_cut else "end"
        answer.text = self._text(answer.tokens)
        parts = self._rule.parts(answer.text)
        if self._rule.opened and not answer.begun and not parts.is_thinking:
            answer.begun = len(answer.tokens)
        return not is_cut and not parts.is_ended

    def _completes(self, token: int) -> bool:
        """Whether a text that ends with this token may have a new string at which it ends."""
        if self._searches_all or not self._last:
            return self._searches_all
        if token not in self._may_end:
            # Twice, since the first token of a text may lose its space.
            text = self._text([token, token])
            whole = text and INCOMPLETE not in text
            self._may_end[token] = not whole or not self._last.isdisjoint(text)
        return self._may_end[token]

    def _text(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
