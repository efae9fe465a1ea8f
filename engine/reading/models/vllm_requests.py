"""Keep the requests of several units in one vLLM: those of the next one run beside the last ones of a unit."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Asked:
    """Prompts of a unit, as tokens, by keys of the caller's; what came of them so far, or why nothing more will."""

    prompts: dict[int, list[int]]
    sampling: Any
    results: deque[tuple[int, Any]] = field(default_factory=deque)
    error: BaseException | None = None


class RequestsUnderWay:
    """What a ``vllm.LLMEngine`` has been asked: by any thread, while one alone, which reads, has it work."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._names = itertools.count()  # no two requests may have the same
        self._new: deque[Asked] = deque()
        self._under_way: dict[str, tuple[Asked, int]] = {}

    def ask(self, prompts: dict[int, list[int]], sampling: Any) -> Asked:
        """Hand prompts over: vLLM has them from its next step on, behind those that it has."""
        asked = Asked(prompts, sampling)
        self._new.append(asked)
        return asked

    def results(self, asked: Asked) -> Iterator[tuple[int, Any]]:
        """Have vLLM work until all of these prompts have ended; results come as they end, with their keys.

        What vLLM raises is raised for all that was under way, since it may have been at any of it.
        """
        for _ in asked.prompts:
            while not asked.results:
                if asked.error is not None:
                    raise asked.error
                self._step()
            yield asked.results.popleft()

    def _step(self) -> None:
        try:
            while self._new:
                asked = self._new.popleft()
                for key, tokens in asked.prompts.items():
                    self._under_way[name := str(next(self._names))] = asked, key
                    self.engine.add_request(name, {"prompt_token_ids": tokens}, asked.sampling)
            results = self.engine.step()
        except BaseException as error:
            for asked, _ in self._under_way.values():
                asked.error = error
            self.engine.abort_request(list(self._under_way))
            self._under_way.clear()
            raise
        for result in results:
            if result.finished:
                asked, key = self._under_way.pop(result.request_id)
                asked.results.append((key, result))
