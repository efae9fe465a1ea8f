"""Models behind an API: settings of the server, its rates and the budget, and specifications of such models."""

# Annotations are no strings here: the command line looks up a base class's annotations in its subclasses' modules.

import json
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from engine.messages.checked import Amount, CheckedSettings, Positive, Range
from engine.messages.errors import InputError
from engine.messages.extras import require

Endpoint = Literal["chat", "completions"]
PREFIX = "openai:"  # prefix of the names of models behind an API
_DEFAULT_ADDRESS = "https://api.openai.com/v1"  # the openai client's own default
HOUR = 3600.0
KEY_VARIABLE, ADDRESS_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"


def is_api(name: str) -> bool:
    """Whether a name belongs to a model behind an API."""
    return name.startswith(PREFIX)


def model_of(name: str) -> str:
    """The model that a reader or an encoder requests from a server; raises an InputError if its name has none."""
    model = name.removeprefix(PREFIX).strip()
    if not model:
        problem = f"{name!r} names no model"
        raise InputError(problem, f"write it like {PREFIX}MODEL", "server.modelless")
    return model


@dataclass(frozen=True, kw_only=True)
class ServerSettings(CheckedSettings):
    """Server of models named openai:MODEL, with limits on requests.

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
        InputError: a value out of range, an invalid address, or a cost without prices.
    """

    _prices: ClassVar[tuple[str, ...]] = ("price_in",)

    base_url: str | None = field(default=None, repr=False)  # it may hold credentials
    api_key_env: str = KEY_VARIABLE
    concurrency: Positive = 8
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    request_timeout: Annotated[float, Range(0, is_open=True)] = 120.0
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
        present = [f"`{name}`" for name in self._prices if f"`{name}`" not in lacking]
        if self.max_cost is not None and lacking and getattr(self, "price_per_hour", None) is None:
            raise InputError(
                f"`max_cost` without {' and '.join(lacking)}",
                "give the prices of a million tokens, or that of an hour, or bound tokens with `max_tokens`",
                "server.prices",
            )
        if lacking and present:
            problem = f"{present[0]} without {lacking[0]}"
            raise InputError(problem, "give both prices", "server.prices")
        if self.base_url is not None:
            _refuse_address(self.base_url, "`base_url`")

    def server(self) -> "ApiSettings":
        """These settings for requests that return vectors, without output tokens."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(ServerSettings)}
        return ApiSettings(**values, price_out=None if self.price_in is None else 0.0)


@dataclass(frozen=True, kw_only=True)
class ApiSettings(ServerSettings):
    """Server and request settings of readers named openai:MODEL.

    Attributes:
        price_out: Price of a million tokens of answers.
        price_per_hour: Price of an actor for an hour, in the same currency: the price of the machine, or of its part
            that an actor takes. `max_cost` bounds the sum of this price and that of tokens.
        max_hours: Most hours of LLM calls, start of the actors included. An evaluation ends in order, with exit status
            4, when the next calls would pass it, or `max_cost`.
        batch_out: File for the requests of missing LLM calls, in OpenAI's batch format; only the trial request is sent.
            Several numbered files if one would be too large, or models differ.
        batch_in: The answers to such files, as the provider gives them; only the trial request is sent.
        endpoint: chat (a system message and a user message), or completions (a text to continue).
    """

    _prices: ClassVar[tuple[str, ...]] = ("price_in", "price_out")

    price_out: Amount | None = None
    price_per_hour: Amount | None = None
    max_hours: Annotated[float, Range(0, is_open=True)] | None = None
    batch_out: Path | None = None
    batch_in: Path | tuple[Path, ...] = ()
    endpoint: Endpoint = "chat"

    @property
    def address(self) -> str:
        """Address of requests, including the user's credentials."""
        return self.base_url or os.environ.get(ADDRESS_VARIABLE) or _DEFAULT_ADDRESS

    @property
    def key(self) -> str:
        """The server's key, stripped of white space; empty if unset, an InputError if no request header can hold it."""
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
        """Host of the address with its port, if any; without credentials."""
        return urlsplit(self.address).netloc.rpartition("@")[2].lower()

    @property
    def path(self) -> str:
        """Path of the address, which may distinguish servers on a host; empty for the usual path."""
        path = urlsplit(self.address).path.rstrip("/")
        return "" if path == "/v1" else path

    @property
    def is_batch(self) -> bool:
        """Whether reads come from files or go into a file, without requests to a server."""
        return bool(self.batch_in) or self.batch_out is not None

    @property
    def is_bounded(self) -> bool:
        """Whether tokens or costs of an evaluation are bounded."""
        return self.max_tokens is not None or self.max_cost is not None

    def changed(self) -> list[str]:
        """The names of settings that differ from their defaults."""
        defaults = {setting.name: setting.default for setting in fields(self)}
        return [name for name, default in defaults.items() if getattr(self, name) != default]

    def cost(self, prompt: float, output: float, seconds: float | None = None) -> float | None:
        """Cost of tokens, plus the price of ``seconds`` of all actors if given; None without prices."""
        cost = None
        if self.price_in is not None and self.price_out is not None:
            cost = (prompt * self.price_in + output * self.price_out) / 1e6
        if self.price_per_hour is None or seconds is None:
            return cost
        return (cost or 0.0) + seconds * self.price_per_hour / HOUR

    def require_server(self, what: str) -> None:
        """Refuse an unusable server before a request for ``what``; credentials in its address are masked.

        It has an invalid address, there is no openai client, or no key for a server that requires one.
        """
        _refuse_address(self.address, "`base_url`" if self.base_url else ADDRESS_VARIABLE)
        require(what, "api")
        needs_key = self.address == _DEFAULT_ADDRESS or self.api_key_env != KEY_VARIABLE
        if needs_key and not self.key:
            problem = f"{self.api_key_env} is not set, and {self.host} wants a key"
            remedy = "set it in the environment, or give `base_url` for a server of your own"
            raise InputError(problem, remedy, "server.keyless")


def _refuse_address(address: str, what: str) -> None:
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")  # labels of 64 letters are invalid
        fits = parts.scheme in ("http", "https") and 0 < len(host) < 254 and (parts.port or 1) > 0
    except ValueError:  # a port that is not a number, a bracket that is not closed
        fits = False
    if not fits:
        # Masking of user and password recognizes addresses by their scheme.
        shown = address if "://" in address else address.rpartition("@")[2]
        problem = f"{what} is {shown}"
        raise InputError(problem, "write it like http://localhost:8000/v1", "server.address")
    if parts.query or parts.fragment:
        raise InputError(
            f"{what} {address} goes on behind its path", "leave out ? and #", "server.address"
        )


@dataclass(frozen=True, kw_only=True)
class ApiSpec:
    """A model behind a server that speaks OpenAI's protocol."""

    model: str  # its name on the server
    settings: ApiSettings
    system: str  # the system message of a chat; empty for none
    parameters: str  # of requests, besides model and messages (JSON)
    embeds: bool = False  # requests return vectors, for texts in a JSON list
    server: str = ""  # the server's own fingerprint; empty if it reports none
    refused: tuple[str, ...] = ()  # unsupported parameters, which are not sent
    # Whether answers hold only the end of a thought, because the server's template writes its beginning.
    opened: bool = False
    # Observed begin and end of thoughts, if the prompt's differ.
    thought: tuple[str, str] | None = None
    # Tokens of the trial's answer with more room, if the prompt's limit cut it, 0 if their number is unknown; None for
    # a whole answer.
    cut: int | None = None
    trial_tokens: int = 0  # of the trial's prompt, as the server counts them; 0 if it does not
    named: str = ""  # the model that the answer to the trial names; empty if it names none
    trial_answer: str = ""  # to a greedy trial
    # Host and fingerprint that identified the server in earlier versions; None for its address.
    former: tuple[str, str] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Kind of request: a chat, or a text to continue."""
        return self.settings.endpoint

    @property
    def decisive(self) -> list[object]:
        """The inputs that determine answers, as far as a client can know."""
        place, server = self.former or (f"{self.settings.host}{self.settings.path}", "")
        return [place, self.model, server, self.endpoint, self.system, self.parameters]

    @property
    def sent(self) -> dict[str, Any]:
        """Request parameters besides model and prompt."""
        sent: dict[str, Any] = json.loads(self.parameters)
        if self.endpoint == "chat":
            # A chat may begin with a string that ends an answer, or with a thought that holds one: the client cuts.
            sent.pop("stop", None)
        return sent

    def body(self, text: str) -> dict[str, Any]:
        """The body of a request for a prompt."""
        sent = {"model": self.model, **self.sent}
        if self.embeds:
            return sent | {"input": json.loads(text)}
        if self.endpoint == "completions":
            return sent | {"prompt": text}
        messages = [{"role": "system", "content": self.system}] if self.system else []
        return sent | {"messages": [*messages, {"role": "user", "content": text}]}

    def request(self, text: str) -> dict[str, Any]:
        """The body of a request for a prompt to a server that answers now."""
        # Some servers stream by default. Neither an answer nor a read's key depends on it.
        whole = {} if self.embeds or "stream" in self.refused else {"stream": False}
        return self.body(text) | whole

    def size(self, text: str) -> int:
        """Bytes of a prompt, with the system message."""
        return len((self.system + text).encode("utf-8", "surrogatepass"))
