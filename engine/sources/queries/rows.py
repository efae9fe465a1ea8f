"""One query, the same for every layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.fields import texts_of, written
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location


@dataclass(frozen=True)
class QueryRow:
    """A row of the queries table, and its line in the file (None if lines have no meaning).

    Attributes:
        titles: those of ``provenance`` that are titles of articles, whose ids the file does not give.
        unanswerable: whether the file marks the question so.
        written: how many answers and articles were lists that are written as a text.
        numbered: whether the id is a number that the file does not give.
        record: the query as the file has it, for fields of other names; empty where it is a row of
            the queries table.
    """

    line: int | None
    query_id: str
    query: str
    answers: list[str]
    provenance: list[str]
    titles: tuple[str, ...] = ()
    unanswerable: bool = False
    written: int = 0
    numbered: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)

    def answered(self, by: QueryRow) -> QueryRow:
        """The query with the answers of another row, which were given apart."""
        written = self.written + by.written
        return replace(self, answers=by.answers, unanswerable=False, written=written)


def no_text(
    path: Location, line: int | None, query_id: object, value: object, field: str
) -> InputError:
    """The error for a query whose ``field`` holds ``value``, which is not a text."""
    problem, remedy = f"query {quoted(query_id)} has no text", f'add "{field}"'
    if value is not None:
        problem = f"the text of query {quoted(query_id)} is {quoted(value)}"
        remedy = "write it as a string, in quotes"
    return InputError(problem, remedy, path=path, line=line)


def clean_row(
    path: Location,
    line: int | None,
    query_id: str,
    query: str,
    answers: Sequence[str | None],
    articles: Sequence[str | None],
) -> QueryRow:
    """A row with its answers stripped, and answers and articles distinct, in their order; all but the id is composed (NFC).

    A text that is a written list (``fields.written``) stands for its items, whatever the layout.

    Raises:
        InputError: an id that is empty or contains white space, or text that is not valid Unicode.
    """
    fault = partial(InputError, path=path, line=line)
    if query_id.split() != [query_id]:
        problem = f"query id {quoted(query_id)} is empty or contains white space"
        raise fault(problem, "use another id, since run and qrels files are split at white space")
    lists = {
        text: items
        for text in (*answers, *articles)
        if text and (found := written(text)) is not None and (items := texts_of(found)) is not None
    }
    if lists:
        answers, articles = (
            [item for text in texts if text for item in lists.get(text, [text])]
            for texts in (answers, articles)
        )
    if not is_text(query_id, query, *answers, *articles):
        raise fault(f"query {quoted(query_id)} holds half a surrogate pair", "write valid Unicode")
    stripped = (composed(answer).strip() for answer in answers if answer)
    return QueryRow(
        line,
        query_id,
        composed(query),
        list(dict.fromkeys(filter(None, stripped))),
        list(dict.fromkeys(composed(article) for article in articles if article)),
        written=len(lists),
    )
