"""What groups the queries of a file: the values of one of its fields, or the contexts that it gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.fields import CONTEXT_FIELD, first_of
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow


def no_column(path: Location, column: str, names: Iterable[str]) -> InputError:
    """The error for a column that no query has a value in, with the names of those that there are."""
    return InputError(
        f"no query has a value in a column {quoted(column)}",
        f"name one of its columns: {', '.join(names)}",
        path=path,
    )


class Groups:
    """Collects the value of a field from the rows of a file.

    Args:
        path: the file, for errors.
        column: the field; None for the context, of which a digest is kept.
    """

    def __init__(self, path: Location, column: str | None) -> None:
        self._path, self._column = path, column
        self._values: dict[str, str] = {}
        self._names: dict[str, None] = {}

    def add(self, row: QueryRow) -> None:
        """Take note of a row."""
        value = first_of(row.record, [self._column or CONTEXT_FIELD])
        if self._column:
            self._names.update(dict.fromkeys(row.record))
        if value is None:
            return
        text = str(value)
        if not self._column:
            text = hashlib.blake2b(
                text.encode("utf-8", "surrogatepass"), digest_size=16
            ).hexdigest()
        self._values[row.query_id] = text

    def found(self) -> dict[str, str]:
        """The values by query id, of the queries that have one.

        Raises:
            InputError: a field was asked for, and no query has it.
        """
        if self._column and not self._values:
            raise no_column(self._path, self._column, self._names)
        return self._values
