"""Models behind an API: the settings of server, rate and budget, and what a specification says of such a model alone."""

# Annotations are no strings here: the command line looks those of a base up where its subclasses are.

import json
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from engine.messages.checked import Amount, Checked, Positive, Within
from engine.messages.errors import InputError
from engine.messages.extras import require

Endpoint = Literal["chat", "completions"]
# What the names of models behind an API begin with.
PREFIX = "openai:"
# Where the openai client asks if nobody says.
_DEFAULT_ADDRESS = "https://api.openai.com/v1"
HOUR = 3600.0
KEY_VARIABLE, ADDRESS_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"


def is_api(name: str) -> bool:
    """Whether a name is that of a model behind an API."""
    return name.startswith(PREFIX)


def model_of(name: str) -> str:
    """The model that the name of a reader or an encoder asks a server for; an InputError where it names none."""
    model = name.removeprefix(PREFIX).strip()
    if not model:
        raise InputError(
            f"{name!r} names no model", f"write it like {PREFIX}MODEL", "server.modelless"
        )
    return model


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Checked):
    """The server that models named openai:MODEL are asked of, and bounds on what is asked.

    Attributes:
        base_url: Address of the server, as in http://localhost:8000/v1; by default the openai client's own:
            $OPENAI_BASE_URL, or the provider's.
        api_key_env: The environment variable that has the server's key.
        concurrency: Most requests at a time.
        requests_per_minute: Most requests per minute; by default as many as the server takes.
        tokens_per_minute: Most tokens per minute, prompts and answers together.
        request_timeout: Seconds without a full answer after which a request is repeated.
        max_tokens: Most tokens that may be used in all, prompts and answers together, as the server counts them.
        max_cost: Most that may be spent in all, in the currency of the prices.
        price_in: Price of a million tokens of prompts.

    Raises:
        InputError: a value out of range, an address that is none, or a cost without prices.
    """

    _prices: ClassVar[tuple[str, ...]] = ("price_in",)

    base_url: str | None = field(default=None, repr=False)  # it may hold credentials
    api_key_env: str = KEY_VARIABLE
    concurrency: Positive = 8
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    request_timeout: Annotated[float, Within(0, is_open=True)] = 120.0
    max_tokens: Positive | None = None
    max_cost: Amount | None = None
    price_in: Amount | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z_]\w*", self.api_key_env):
            raise InputError(
                "`api_key_env` is not the name of an environment variable",
                "name the variable that has the key, as in OPENROUTER_API_KEY; the key itself is not given here",
                "server.variable",
            )
        lacking = [f"`{name}`" for name in self._prices if getattr(self, name) is None]
        given = [f"`{name}`" for name in self._prices if f"`{name}`" not in lacking]
        if self.max_cost is not None and lacking and getattr(self, "price_per_hour", None) is None:
            raise InputError(
                f"`max_cost` without {' and '.join(lacking)}",
                "give the prices of a million tokens, or that of an hour, or bound tokens with `max_tokens`",
                "server.prices",
            )
        if lacking and given:
            raise InputError(
                f"{given[0]} without {lacking[0]}", "give both prices", "server.prices"
            )
        if self.base_url is not None:
            _refuse_address(self.base_url, "`base_url`")

    def server(self) -> "ApiSettings":
        """These settings alone, for requests that have no answer but vectors."""
        given = {one.name: getattr(self, one.name) for one in fields(ServerSettings)}
        return ApiSettings(**given, price_out=None if self.price_in is None else 0.0)


@dataclass(frozen=True, kw_only=True)
class ApiSettings(ServerSettings):
    """What is asked of readers named openai:MODEL, and of whom.

    Attributes:
        price_out: Price of a million tokens of answers.
        price_per_hour: Price of one actor for an hour, in the same currency: that of the machine, or of the part
            of it that one actor takes. `max_cost` bounds the sum of this price and that of tokens.
        max_hours: Most hours of LLM calls, start of the actors included. An evaluation ends in order, with exit
            status 4, when the next calls would pass it, or `max_cost`.
        batch_out: File for the requests of the LLM calls that are missing, in OpenAI's batch format; nothing
            is asked but the trial. Several files with numbers where one would be too large, or models differ.
        batch_in: The answers to such files, as the provider gives them; nothing is asked but the trial.
        endpoint: chat (a system message and a user message), or completions (a text to continue).
    """

    _prices: ClassVar[tuple[str, ...]] = ("price_in", "price_out")

    price_out: Amount | None = None
    price_per_hour: Amount | None = None
    max_hours: Annotated[float, Within(0, is_open=True)] | None = None
    batch_out: Path | None = None
    batch_in: Path | tuple[Path, ...] = ()
    endpoint: Endpoint = "chat"

    @property
    def address(self) -> str:
        """Where requests go; with the credentials that the user put there."""
        return self.base_url or os.environ.get(ADDRESS_VARIABLE) or _DEFAULT_ADDRESS

    @property
    def key(self) -> str:
        """The server's key; empty without one. White space around it, as of a file's last line, is no part of it.

        Raises:
            InputError: it holds what no header of a request may; its letters are not shown.
        """
        key = os.environ.get(self.api_key_env, "").strip()
        odd = next((letter for letter in key if not " " <= letter <= "~"), None)
        if odd is not None:
            what = "a line break" if odd in "\r\n" else f"U+{ord(odd):04X}"
            raise InputError(
                f"{self.api_key_env} holds {what}, and a key is of printable ASCII characters alone",
                "set the variable to one key, and type what was copied with it",
                "server.key",
            )
        return key

    @property
    def host(self) -> str:
        """The host of the address with its port, where it has one; without credentials."""
        return urlsplit(self.address).netloc.rpartition("@")[2].lower()

    @property
    def path(self) -> str:
        """The path of the address, which may tell servers of one host apart; empty for the usual one."""
        path = urlsplit(self.address).path.rstrip("/")
        return "" if path == "/v1" else path

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
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def cost(self, prompt: float, output: float, seconds: float | None = None) -> float | None:
        """What tokens cost, with the seconds of all actors where they are given; None without prices."""
        of_tokens = None
        if self.price_in is not None and self.price_out is not None:
            of_tokens = (prompt * self.price_in + output * self.price_out) / 1e6
        if self.price_per_hour is None or seconds is None:
            return of_tokens
        return (of_tokens or 0.0) + seconds * self.price_per_hour / HOUR

    def require_server(self, what: str) -> None:
        """Refuse a server that cannot be asked for ``what``, before it is; credentials in its address are masked.

        Raises:
            InputError: no address that requests can go to, no openai client, or no key where one is wanted.
        """
        _refuse_address(self.address, "`base_url`" if self.base_url else ADDRESS_VARIABLE)
        require(what, "api")
        wanted = self.address == _DEFAULT_ADDRESS or self.api_key_env != KEY_VARIABLE
        if wanted and not self.key:
            raise InputError(
                f"{self.api_key_env} is not set, and {self.host} wants a key",
                "set it in the environment, or give `base_url` for a server of your own",
                "server.keyless",
            )


def _refuse_address(address: str, what: str) -> None:
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")  # a label of 64 letters is no host's
        fits = parts.scheme in ("http", "https") and 0 < len(host) < 254 and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number, a bracket that is not closed
        fits = False
    if not fits:
        # Without its scheme an address is not known as one, whose user and password are masked.
        shown = address if "://" in address else address.rpartition("@")[2]
        raise InputError(
            f"{what} is {shown}", "write it like http://localhost:8000/v1", "server.address"
        )
    if parts.query or parts.fragment:
        raise InputError(
            f"{what} {address} goes on behind its path", "leave out ? and #", "server.address"
        )


@dataclass(frozen=True, kw_only=True)
class ApiSpec:
    """A model behind a server that speaks OpenAI's protocol.

    Attributes:
        model: its name there.
        settings: the server, and bounds on what it is asked.
        system: the system message of a chat; empty for none.
        parameters: what is sent beside model and messages (JSON).
        embeds: whether vectors are asked for, of texts that are given as a list in JSON.
        server: the fingerprint that the server gave of itself; empty where it gives none.
        refused: parameters that the server does not take, and that are not sent.
        named: the model that the answer to the trial names; empty where it names none.
        said: that answer, where it is greedy; else empty.
        former: the host and the fingerprint of the server by which earlier versions knew it; None for its address.
        opened: whether answers hold the end of a thought, and not its beginning, which the server's template writes.
        thought: what thoughts were seen to begin and end with, where it is not what the prompt says; None otherwise.
        cut: where the answer to the trial was cut at the prompt's limit, the tokens that it took with more room, 0 where
            they are not known; None where it was whole.
        trial_tokens: of the prompt of the trial, as the server counts them; 0 where it does not.
    """

    model: str
    settings: ApiSettings
    system: str
    parameters: str
    embeds: bool = False
    server: str = ""
    refused: tuple[str, ...] = ()
    opened: bool = False
    thought: tuple[str, str] | None = None
    cut: int | None = None
    trial_tokens: int = 0
    named: str = ""
    said: str = ""
    former: tuple[str, str] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """What is asked of the server: a chat, or a text to continue."""
        return self.settings.endpoint

    @property
    def decisive(self) -> list[object]:
        """What the answers depend on, as far as anybody here can know."""
        place, server = self.former or (f"{self.settings.host}{self.settings.path}", "")
        return [place, self.model, server, self.endpoint, self.system, self.parameters]

    @property
    def sent(self) -> dict[str, Any]:
        """What is sent beside model and prompt.

        Chats may begin with a string that ends an answer, or with a thought that holds one: where they end is
        decided here alone.
        """
        sent: dict[str, Any] = json.loads(self.parameters)
        if self.endpoint == "chat":
            sent.pop("stop", None)
        return sent

    def body(self, text: str) -> dict[str, Any]:
        """What is sent for a prompt."""
        sent = {"model": self.model, **self.sent}
        if self.embeds:
            return sent | {"input": json.loads(text)}
        if self.endpoint == "completions":
            return sent | {"prompt": text}
        messages = [{"role": "system", "content": self.system}] if self.system else []
        return sent | {"messages": [*messages, {"role": "user", "content": text}]}

    def request(self, text: str) -> dict[str, Any]:
        """What is sent for a prompt to a server that answers now.

        Some servers stream where nothing is said of it. No answer depends on it, and no read's key.
        """
        whole = {} if self.embeds or "stream" in self.refused else {"stream": False}
        return self.body(text) | whole

    def size(self, text: str) -> int:
        """The bytes of a prompt, with the system message."""
        return len((self.system + text).encode("utf-8", "surrogatepass"))
