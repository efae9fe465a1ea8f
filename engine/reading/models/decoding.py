"""Choose the next token from logits, and decide when a reader has written enough.

The settings of ``generation_config.json`` that change what ``generate`` writes greedily are applied, and the strings at
which outputs end are found while the text of tokens grows. More tokens may change that text: bytes of an incomplete
character show as U+FFFD, and a tokenizer may take away a space before the mark that follows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig

from engine.messages.errors import InputError
from engine.reading.answers import INCOMPLETE, Rule, rule_of
from engine.reading.models.tokenizing import Tokenizer
from engine.reading.protocol import ReaderSpec

Numbers = npt.NDArray[np.int64]
_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


class Row(NamedTuple):
    """What a decoder was given, what it wrote, and what the encoder was given: of a decoder-only model, the first again."""

    given: Sequence[int]
    written: Sequence[int]
    encoded: Sequence[int]


class Greedy:
    """Changes logits as ``generate(do_sample=False)`` does, by transformers' own processors, for ``most`` tokens at most.

    Raises:
        ValueError: transformers refuses a value.
    """

    def __init__(self, spec: ReaderSpec, model: Any, most: int) -> None:
        self._model, self._most = model, most
        settings = json.loads(spec.generation) if spec.writes and spec.generation else {}
        self._settings: dict[str, Any] = settings
        self._looks_at_input = any(name.startswith("encoder_") for name in settings)
        self._made: dict[int, Any] = {}  # by the length of what was given: nothing else decides
        if settings:
            self._processors(Row([0], [], [0]))

    def scores(self, logits: torch.Tensor, rows: Iterable[Row]) -> torch.Tensor:
        """The logits of next tokens, (rows, vocabulary), as the settings change them."""
        if not self._settings:
            return logits
        # In fp32, as transformers does; each by itself, since lengths differ.
        changed = [
            self._processors(row)(
                self._tensor([*row.given, *row.written]), row_logits[None].float()
            )
            for row, row_logits in zip(rows, logits, strict=True)
        ]
        return torch.cat(changed)

    def _tensor(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self._model.device)

    def _processors(self, row: Row) -> Any:
        length = len(row.given)
        if length not in self._made or self._looks_at_input:
            own = self._model.generation_config
            config = GenerationConfig(
                **{name: getattr(own, name) for name in _TOKENS}, **self._settings
            )
            # As ``generate`` completes them from its arguments and its input.
            config.max_length = length + self._most
            if config.min_new_tokens is not None:
                config.min_length = config.min_new_tokens + length
            self._model._prepare_special_tokens(config, device=self._model.device)
            self._made[length] = self._model._get_logits_processor(
                config,
                input_ids_seq_length=length,
                encoder_input_ids=self._tensor(row.encoded),
                device=self._model.device,
            )
        return self._made[length]


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


class Stops:
    """The strings at which outputs end, and the tag that ends a thought which the prompt begins.

    A string is complete when its last character is, so a token whose text has no such character completes none. That is
    known of tokenizers whose text grows token by token (``grows``); with others every text is looked at.
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


def to_device(device: torch.device, *parts: Numbers) -> list[torch.Tensor]:
    """Whole numbers on a device, in one copy that nobody waits for; of the shapes that they have here."""
    host = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    split = there.split([part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(split, parts, strict=True)]


@dataclass(eq=False)
class Continuation:
    """An answer.

    Attributes:
        tokens: generated, the token that ended a stop string included, end tokens not.
        text: their text, with the string that ended it, or the choice; not yet looked at, maybe, while it goes on.
        begun: how many of the tokens were a thought's, once that has ended.
        is_cut: whether it has as many tokens as it may have, and no end token followed.
        confidence, mass: see ``ReadOutput``.
        logs: where asked for, the natural log-probability of each token written, the end token included, or of a target's.
        prompt: the tokens that it follows.
        offset: where in a cache of many sequences these begin.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    begun: int = 0
    is_cut: bool = False
    confidence: float | None = None
    mass: float | None = None
    logs: list[float] = field(default_factory=list)
    prompt: Sequence[int] = ()
    offset: int = 0


def first_tokens(tokenizer: Tokenizer, choices: Sequence[str], name: str) -> list[int]:
    """The token that each choice begins with; an InputError where two begin with the same one, or one has none."""
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
    """The choice made in each row, with its ``confidence`` and ``mass`` (see ``ReadOutput``).

    Args:
        logits: (rows, vocabulary), of the next token.
        choices: two or more, told apart by the probabilities of their first tokens among themselves; or one, which is
            chosen where its first token's probability among all tokens exceeds 1/2, else nothing is.
        first: their first tokens.
    """
    shares = all_shares = logits.float().softmax(-1)[:, list(first)]
    if len(choices) > 1:
        shares = torch.stack([logits[:, token] for token in first], 1).float().softmax(-1)
    # Told with the rest, in one synchronisation.
    broken = logits.isnan().any(-1, keepdim=True)
    told = torch.cat([all_shares.sum(-1, keepdim=True), shares], 1).masked_fill(broken, math.nan)
    rows: list[list[float]] = told.tolist()
    if any(math.isnan(row[0]) for row in rows):
        raise _not_numbers()
    if len(choices) == 1:
        return [(choices[0] if share > 0.5 else "", share, None) for _, share in rows]
    return [(choices[row.index(max(row))], row[0], mass) for mass, *row in rows]


def next_tokens(logits: torch.Tensor) -> list[int]:
    """The token of highest probability in each row of logits, (rows, vocabulary), in one synchronisation.

    Raises:
        ArithmeticError: some logits are not numbers: any token would do.
    """
    # On a CPU it is several times as slow in bf16. Elsewhere a copy would only take memory.
    best = (logits.float() if logits.device.type == "cpu" else logits).argmax(-1, keepdim=True)
    # What is not a number is taken for the greatest, so that one look at this value suffices.
    broken = logits.gather(-1, best).isnan()
    tokens: list[int] = torch.where(broken, -1, best)[:, 0].tolist()
    if min(tokens, default=0) < 0:
        raise _not_numbers()
    return tokens


def log_probabilities(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """The natural log-probability of one token in each row of logits, (rows, vocabulary), among all tokens.

    Raises:
        ArithmeticError: some logits are not numbers.
    """
    (places,) = to_device(logits.device, np.array(tokens, dtype=np.int64))
    # Copies in fp32 of a few rows at a time.
    parts = zip(logits.split(32), places[:, None].split(32), strict=True)
    gathered = [part.float().log_softmax(-1).gather(-1, of) for part, of in parts]
    logs: list[float] = torch.cat(gathered)[:, 0].tolist()
    if any(map(math.isnan, logs)):
        raise _not_numbers()
    return logs


def _not_numbers() -> ArithmeticError:
    return ArithmeticError("the model's logits are not numbers; use `dtype` float32 or bfloat16")


class Writer:
    """Adds to answers greedily, or chooses between given ones, as a specification says.

    Attributes:
        most: tokens generated at most.
        padding: a token that is never read.
    """

    def __init__(
        self,
        spec: ReaderSpec,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        model: torch.nn.Module | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._rule = rule_of(spec)
        self._stops = Stops(tokenizer, self._rule)
        self._most_of_answer = spec.max_new_tokens
        self._choices = spec.choices
        self._first = first_tokens(tokenizer, spec.choices, spec.name)
        self._scores = spec.scores
        self.most = 0 if spec.choices else spec.most_new_tokens
        self.padding = min(ends, default=0)
        self._greedy = Greedy(spec, model, self.most)

    def write(self, answers: Sequence[Continuation], logits: torch.Tensor) -> list[int]:
        """Take the next token of each answer, from logits (answers, vocabulary); the places of those that go on."""
        if self._choices:
            chosen = choose(logits, self._choices, self._first)
            for answer, choice in zip(answers, chosen, strict=True):
                answer.text, answer.confidence, answer.mass = choice
            return []
        rows = (Row(answer.prompt, answer.tokens, answer.prompt) for answer in answers)
        tokens = next_tokens(self._greedy.scores(logits, rows))
        if self._scores:  # how probable the model finds them, whatever had them taken
            for answer, log in zip(answers, log_probabilities(logits, tokens), strict=True):
                answer.logs.append(log)
        return [
            place
            for place, (answer, token) in enumerate(zip(answers, tokens, strict=True))
            if self._take(answer, token)
        ]

    def _take(self, answer: Continuation, token: int) -> bool:
        """Whether an answer goes on with this token."""
        if token in self._ends:
            answer.text = self._text(answer)
            return False
        answer.tokens.append(token)
        most = self.most
        if answer.begun or not self._rule.opened:
            most = min(most, answer.begun + self._most_of_answer)
        answer.is_cut = len(answer.tokens) >= most
        if not answer.is_cut and not self._stops.may_end(token):
            return True
        answer.text = self._text(answer)
        parts = self._rule.parts(answer.text)
        if self._rule.opened and not answer.begun and not parts.is_thinking:
            answer.begun = len(answer.tokens)
        return not answer.is_cut and not parts.is_ended

    def _text(self, answer: Continuation) -> str:
        return self._tokenizer.decode(answer.tokens, skip_special_tokens=True)
