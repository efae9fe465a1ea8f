"""The part of a specification that only readers behind an API have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.machine.remote.api_settings import ApiSettings, Endpoint


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
