"""What a reader was sent and what that took, for every call behind the labels and scores of a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from engine import tables
from engine.reading.plan import read_key
from engine.reading.prompting.prompts import Prompt
from engine.report.findings import Findings
from engine.report.summary import PROMPT_PARTS
from engine.tables import PROMPT_TOKENS, QUERY_ID, READ_KEY, SECONDS, THOUGHT, TRUNCATED


def prompts_of(findings: Findings) -> list[tuple[str, dict[str, Any]]]:
    """By role, the reader's first, the fingerprint of who reads, and what the prompts are made of (``Prompt.described``);
    none of an earlier version's.
    """
    roles = [one for one in findings.summary.values() if isinstance(one, dict)]
    return [(one["fingerprint"], one[PROMPT_PARTS]) for one in roles if one.get(PROMPT_PARTS)]


class Calls:
    """Looks calls up. The prompt of a call is known where its text has the key that the call is stored under."""

    def __init__(self, findings: Findings) -> None:
        self._prompts = [(key, Prompt.of(parts)) for key, parts in prompts_of(findings)]
        columns = (PROMPT_TOKENS, tables.OUTPUT_TOKENS, TRUNCATED, THOUGHT, SECONDS)
        self._calls: dict[str, list[Any]] = {}
        self._keys: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        self._outputs: dict[str, str] = {}
        identity = (READ_KEY, QUERY_ID, tables.DOC_IDS, tables.OUTPUT)
        rows = findings.table("reads").select(*identity, *columns).iter_rows()
        for key, query_id, doc_ids, self._outputs[
            key
        ], *tokens, truncated, thought, seconds in rows:
            timed = None if seconds is None else round(seconds, 4)
            call = self._calls[key] = [*tokens, int(truncated or 0), thought or None, timed]
            while call[-1] is None:
                call.pop()
            self._keys[query_id, tuple(doc_ids)].append(key)

    def of_key(self, key: str, query: str, passages: Sequence[tuple[str, str]]) -> list[Any] | None:
        """A call: the place of its prompt (None where its text is not known), the tokens of prompt and output, whether
        the prompt was cut, the thought, and the seconds; what is None at its end is left out.
        """
        if key not in self._calls:
            return None
        places = (
            place
            for place, (fingerprint, prompt) in enumerate(self._prompts)
            if read_key(fingerprint, prompt.render(query, passages)) == key
        )
        return [next(places, None), *self._calls[key]]

    def longest(self, query_id: str, listed: Sequence[str], output: str) -> int:
        """How many of the first passages of a list were read together, with this output; 0 for none."""
        for most in range(len(listed), 0, -1):
            keys = self._keys.get((query_id, tuple(listed[:most])), [])
            if any(self._outputs[key] == output for key in keys):
                return most
        return 0

    def of_list(
        self, query_id: str, query: str, doc_ids: Sequence[str], passages: Sequence[tuple[str, str]]
    ) -> list[Any] | None:
        """The reader's call of a list; None where it cannot be told from calls in other roles."""
        keys = dict.fromkeys(self._keys.get((query_id, tuple(doc_ids)), []))
        calls = [call for key in keys if (call := self.of_key(key, query, passages))]
        found = [call for call in calls if call[0] == 0] or calls
        return found[0] if found and (found[0][0] == 0 or len(calls) == 1) else None
