"""The settings of readers behind an API: server, rate and budget."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from engine.messages.checked import Amount, Checked, Positive, Within
from engine.messages.errors import InputError

Endpoint = Literal["chat", "completions"]
# What the names of readers behind an API begin with.
PREFIX = "openai:"
# Where the openai client asks if nobody says.
_DEFAULT_ADDRESS = "https://api.openai.com/v1"
KEY_VARIABLE, ADDRESS_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"


def is_api(name: str) -> bool:
    """Whether a reader's name is that of a model behind an API."""
    return name.startswith(PREFIX)


def model_of(name: str) -> str:
    """The model that a reader's name asks a server for.

    Raises:
        InputError: it names none.
    """
    model = name.removeprefix(PREFIX).strip()
    if not model:
        raise InputError(f"reader {name!r} names no model", f"write it like {PREFIX}MODEL")
    return model


@dataclass(frozen=True, kw_only=True)
class ApiSettings(Checked):
    """The server that readers named openai:MODEL are asked of, and bounds on what is asked.

    Attributes:
        base_url: Address of the server, as in http://localhost:8000/v1; by default the openai client's own:
            $OPENAI_BASE_URL, or the provider's.
        api_key_env: The environment variable that has the server's key.
        batch_out: File for the requests of the reads that are missing, in OpenAI's batch format; nothing is
            asked but the trial. Several files with numbers where one would be too large, or models differ.
        batch_in: The answers to such files, as the provider gives them; nothing is asked but the trial.
        endpoint: chat (a system message and a user message), or completions (a text to continue).
        concurrency: Most requests at a time.
        requests_per_minute: Most requests per minute; by default as many as the server takes.
        tokens_per_minute: Most tokens per minute, prompts and answers together.
        request_timeout: Seconds without a full answer after which a request is repeated.
        max_tokens: Most tokens that the evaluation may use, prompts and answers together, as the server counts
            them.
        max_cost: Most that the evaluation may cost, by `price_in` and `price_out`, in their currency.
        price_in: Price of a million tokens of prompts.
        price_out: Price of a million tokens of answers.

    Raises:
        InputError: a value out of range, an address that is none, or a cost without prices.
    """

    base_url: str | None = field(default=None, repr=False)  # it may hold credentials
    api_key_env: str = KEY_VARIABLE
    batch_out: Path | None = None
    batch_in: Path | tuple[Path, ...] = ()
    endpoint: Endpoint = "chat"
    concurrency: Positive = 8
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    request_timeout: Annotated[float, Within(0, is_open=True)] = 120.0
    max_tokens: Positive | None = None
    max_cost: Amount | None = None
    price_in: Amount | None = None
    price_out: Amount | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z_]\w*", self.api_key_env):
            raise InputError(
                "`api_key_env` is not the name of an environment variable",
                "name the variable that has the key, as in OPENROUTER_API_KEY; the key itself is not given here",
            )
        prices = {"price_in": self.price_in, "price_out": self.price_out}
        lacking = [f"`{name}`" for name, price in prices.items() if price is None]
        if self.max_cost is not None and lacking:
            raise InputError(
                f"`max_cost` without {' and '.join(lacking)}",
                "give the prices of a million tokens, or bound tokens with `max_tokens`",
            )
        if len(lacking) == 1:
            given = next(f"`{name}`" for name, price in prices.items() if price is not None)
            raise InputError(f"{given} without {lacking[0]}", "give both prices")
        if self.base_url is not None:
            self.require_address()

    @property
    def address(self) -> str:
        """Where requests go; with the credentials that the user put there."""
        return self.base_url or os.environ.get(ADDRESS_VARIABLE) or _DEFAULT_ADDRESS

    @property
    def key(self) -> str:
        """The server's key; empty without one."""
        return os.environ.get(self.api_key_env, "").strip()

    @property
    def is_default(self) -> bool:
        """Whether that is the provider's own address."""
        return self.address == _DEFAULT_ADDRESS

    @property
    def host(self) -> str:
        """The host of the address with its port, where it has one; without credentials."""
        return urlsplit(self.address).netloc.rpartition("@")[2].lower()

    @property
    def is_batch(self) -> bool:
        """Whether reads are taken from files or written into one, and no server is asked for them."""
        return bool(self.batch_in) or self.batch_out is not None

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound on what an evaluation uses in all."""
        return self.max_tokens is not None or self.max_cost is not None

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) != one.default
        }

    def cost(self, prompt_tokens: float, output_tokens: float) -> float | None:
        """What tokens cost; None without prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return (prompt_tokens * self.price_in + output_tokens * self.price_out) / 1e6

    def require_address(self) -> None:
        """Refuse an address that requests cannot go to; credentials in it are masked.

        Raises:
            InputError: it is none, or has something behind its path.
        """
        _refuse_address(self.address, "`base_url`" if self.base_url else ADDRESS_VARIABLE)


def _refuse_address(address: str, what: str) -> None:
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")  # a label of 64 letters is no host's
        fits = parts.scheme in ("http", "https") and 0 < len(host) < 254 and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number, a bracket that is not closed
        fits = False
        parts = urlsplit("")
    if not fits:
        raise InputError(f"{what} is {address}", "write it like http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise InputError(f"{what} {address} goes on behind its path", "leave out ? and #")
