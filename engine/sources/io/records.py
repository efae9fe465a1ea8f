"""Read text files, unpacked by name: lines, JSON (values, lines, arrays), records in CSV and TSV, settings in YAML.

Bad records are refused, or tolerated and counted up to a limit. Everywhere, ``what`` is the expected content, for
errors. Settings are keys with texts or lists of texts, each as it is written. YAML 1.1 takes ``010`` for 8, ``1:30``
for 90 and ``no`` for false, YAML 1.2 ``1e3`` for a number. Values that some YAML would change are refused.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import yaml

from engine.messages.errors import InputError
from engine.messages.wording import counted, cut, quoted
from engine.sources.io.locations import DAMAGE, Location, open_decompressed, require_file

Item = TypeVar("Item")
Parsed = TypeVar("Parsed")
Line = TypeVar("Line", bound=int | None)

_SHOWN = 3


class SkipBad:
    """Tolerates up to ``limit`` bad records; has their ``count`` so far, and the errors of the ``first`` ones."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.count = 0
        self.first: list[InputError] = []

    def tolerate(self, error: InputError) -> None:
        """Count the record that ``error`` is about; raises that error if there were ``limit`` bad records before."""
        if self.count >= self.limit:
            if not self.limit:
                raise error from None
            fault = partial(InputError, path=error.path, line=error.line)
            which = f"bad record {self.count + 1}; at most {self.limit} are skipped"
            problem = f"{error.problem} ({which})"
            raise fault(problem, error.remedy, "files.intolerable") from None
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(error)

    def parsed(
        self,
        parse: Callable[[Location, Line, Item], Parsed],
        path: Location,
        items: Iterable[tuple[Line, Item]],
    ) -> Iterator[tuple[Line, Parsed]]:
        """Yield (line, parsed item) of (line, item) pairs of a file; refused items are tolerated."""
        for line, item in items:
            try:
                value = parse(path, line, item)
            except InputError as error:
                self.tolerate(error)
            else:
                yield line, value

    def described(self) -> str:
        """``2 bad records skipped (a.jsonl:7: broken JSON …)``; empty if there were none."""
        if not self.count:
            return ""
        places = (f"{e.path}:{e.line}".removesuffix(":None") for e in self.first)
        problems = [f"{at}: {e.problem}" for at, e in zip(places, self.first, strict=True)]
        if self.count > len(self.first):
            problems.append(f"and {self.count - len(self.first)} more")
        return f"{counted(self.count, 'bad record[|s]')} skipped ({'; '.join(problems)})"


def tolerance(skip_bad: int | SkipBad) -> SkipBad:
    """``skip_bad`` as the object that counts; a caller that passes one can read it afterwards."""
    return skip_bad if isinstance(skip_bad, SkipBad) else SkipBad(skip_bad)


# Bytes of the longest line that is read: an endless one would fill the memory.
LONGEST_LINE = 64 << 20
# Bytes that identify a layout.
_START = 1 << 16
_OBJECTS = "one JSON object per line"
BOM = b"\xef\xbb\xbf"
# First bytes of a web page (as servers send in place of a missing file), an archive and a document.
_OTHERS = (b"<!doctype html", b"<html", b"pk\x03\x04", b"%pdf-")


def raw_lines(path: Location, what: str, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, undecoded line) of a file; ``blank`` lines only on request.

    An InputError refuses a missing file, a line of more than ``LONGEST_LINE`` bytes, and a broken ``.gz`` or ``.bz2``;
    one that ends early is never tolerated, since the missing records cannot be counted.
    """
    path = require_file(path, what)
    number = 0
    try:
        with open_decompressed(path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    problem = f"a line of more than {LONGEST_LINE >> 20} MiB"
                    raise InputError(problem, f"give {what}", "files.line", path=path, line=number)
                if number == 1:
                    line = line.removeprefix(BOM)
                    _refuse_others(path, line, what)
                if blank or (line and not line.isspace()):
                    yield number, line
    except DAMAGE as error:
        raise damaged(path, number + 1, error) from None


def start_of(path: Location, what: str) -> bytes:
    """The first bytes of a file from the first that is not white space; empty if there are none."""
    start = read_document(path, what, _START).removeprefix(BOM).lstrip()
    _refuse_others(path, start, what)
    return start


def _refuse_others(path: Location, start: bytes, what: str) -> None:
    if start[:99].lstrip().lower().startswith(_OTHERS):
        problem = "not a text file that is read here"
        raise InputError(problem, f"give {what}", "files.binary", path=path, line=1)


def read_document(path: Location, what: str, most: int = -1) -> bytes:
    """The whole of a file, or its first ``most`` bytes; an InputError if it is missing, or packed and broken."""
    path = require_file(path, what)
    try:
        with open_decompressed(path) as stream:
            return stream.read(most)
    except DAMAGE as error:
        raise damaged(path, None if most < 0 else 1, error) from None


def read_text(path: Location, what: str) -> str:
    """The whole of a text file; an InputError as of ``read_document`` and ``decode_line``."""
    return decode_line(path, 1, read_document(path, what).removeprefix(BOM))


def damaged(path: Location, line: int | None, error: Exception) -> InputError:
    """The error for a file that cannot be read from ``line`` on."""
    remedy = "check it, or fetch it again"
    return InputError(f"cannot be read ({error})", remedy, "files.unreadable", path=path, line=line)


def decode_line(path: Location, number: int, line: bytes) -> str:
    """A line, or all lines from this number on, as text; an InputError names the line that is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        number += line.count(b"\n", 0, error.start)
    remedy = "save the file as UTF-8"
    raise InputError("not UTF-8 text", remedy, "files.encoding", path=path, line=number)


def read_lines(
    path: Location, what: str, *, skip: SkipBad | None = None, blank: bool = False
) -> Iterator[tuple[int, str]]:
    """As ``raw_lines``, as text; a line that is not UTF-8 is an InputError, which ``skip`` tolerates."""
    return (skip or SkipBad()).parsed(decode_line, path, raw_lines(path, what, blank=blank))


def read_json_lines(
    path: Location, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As ``read_lines``, as the objects of JSONL; ``skip`` tolerates other lines, too."""
    skip = skip or SkipBad()
    return skip.parsed(parse_json_object, path, read_lines(path, what, skip=skip))


def parse_json_object(path: Location, number: int, line: str) -> dict[str, Any]:
    """The object in a line; an InputError if it is anything else, or an object in it has a key twice."""
    try:
        value = parse_json(line)
    except ValueError as error:
        raise _broken(path, _OBJECTS, error, number) from None
    return _object_in(path, number, value, f"give {_OBJECTS}")


def _object_in(
    path: Location, line: int, value: Any, remedy: str = "write a list of objects"
) -> dict[str, Any]:
    if not isinstance(value, dict):
        problem = f"a JSON {type(value).__name__}, not an object"
        raise InputError(problem, remedy, "json.object", path=path, line=line)
    return value


def read_json_document(path: Location, what: str) -> Any:
    """The value of a whole file in JSON: an InputError if it is broken, or has a key twice."""
    content = read_document(path, what)
    try:
        return parse_json(content)
    except ValueError as error:
        raise _broken(path, what, error) from None


def _broken(path: Location, what: str, error: ValueError, line: int | None = None) -> InputError:
    """The error for text that ``parse_json`` refuses; ``line``: its number, if the text is a line."""
    if isinstance(error, DuplicateKeyError):
        return InputError(str(error), "keep one of them", "json.broken", path=path, line=line)
    problem = f"broken JSON ({getattr(error, 'msg', None) or str(error)[:60]})"
    line = line or getattr(error, "lineno", None)
    return InputError(problem, f"give {what}", "json.broken", path=path, line=line)


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice; only the last would count."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8, UTF-16 or UTF-32.

    A ValueError refuses broken JSON (``json.JSONDecodeError``), a key given twice (``DuplicateKeyError``), an integer
    of thousands of digits, brackets nested too deep, and bytes that are not text.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None


def _items(text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, value) for the items of a JSON array; a broken one raises as in ``parse_json``, in its turn."""
    line, before = 1, 0
    place = _after_space(text, 0)
    if text[place : place + 1] != "[":
        raise json.JSONDecodeError("Expecting '['", text, place)
    place = _after_space(text, place + 1)
    ended = text[place : place + 1] == "]"
    while not ended:
        try:
            value, end = _DECODER.raw_decode(text, place)
        except RecursionError:
            raise ValueError("brackets are nested too deep") from None
        line += text.count("\n", before, place)
        before = place
        yield line, value
        place = _after_space(text, end)
        ended = text[place : place + 1] == "]"
        if not ended and text[place : place + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
        place = place if ended else _after_space(text, place + 1)
    if (end := _after_space(text, place + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


_SPACE = re.compile(r"[ \t\n\r]*")


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(f"the key {key[:80]!r} is given twice")
            seen.add(key)
    return members


# A constant: json.loads creates a decoder in every call with a hook.
_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def read_json_records(
    path: Location, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file, or of a JSON array, by the first character.

    An array is read as a whole text, and parsed an object at a time. ``skip`` tolerates items that are no objects, and
    never broken JSON, as the next item's start is unknown.
    """
    try:
        is_array = start_of(path, what)[:1] == b"["
    except InputError:  # the reader of lines names the line at fault
        is_array = False
    if not is_array:
        yield from read_json_lines(path, what, skip=skip)
        return

    text = read_text(path, what)
    try:
        yield from (skip or SkipBad()).parsed(_object_in, path, _items(text))
    except ValueError as error:
        raise _broken(path, what, error) from None


# Programs write TSV with quotes and without them.
_QUOTES = 'write each " within a field twice and the field in quotes, or write CSV or JSONL'


def read_csv_records(
    path: Location, what: str, needed: Sequence[str], *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, record) of a CSV file, or of a TSV file if the header contains a tab.

    An InputError refuses a header without any of the ``needed`` columns, and quotes that are broken, or that span lines
    of a TSV, which may be rows. ``skip`` tolerates rows of another length, and lines that are not UTF-8.
    """
    skip = skip or SkipBad()
    fault = partial(InputError, path=path)
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in read_lines(path, what, skip=skip, blank=True):
            numbers.append(number)
            yield line

    lines = texts()
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; by default 128 KiB
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header else ","
    rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        line = numbers[-1] if numbers else 1
        if not set(names) & set(needed):
            problem = f"no header with a column {', '.join(needed)}"
            remedy = "name the columns in the first line, separated by commas or tabs"
            raise fault(problem, remedy, "table.header", line=line)
        refuse_repeated_column(path, names, line)
        # A quoted field may span lines, so every row's lines are noted.
        while True:
            numbers.clear()
            row = next(rows, None)
            if row is None:
                return
            if not any(map(str.strip, row)):
                continue
            line = numbers[0]
            # Rows of a program that writes no quotes: with the line end, the field took in tabs.
            if delimiter == "\t" and any("\n" in text and "\t" in text for text in row):
                problem = f"a quoted field goes on to line {numbers[-1]}, over tabs"
                raise fault(problem, _QUOTES, "table.quotes", line=line)
            if len(row) == len(names):
                yield line, dict(zip(names, row, strict=True))
            else:
                problem = f"{len(row)} columns, the header has {len(names)}"
                skip.tolerate(fault(problem, "quote fields", "table.fields", line=line))
    except csv.Error as error:
        problem = f"broken quotes or line ends from this line on ({error})"
        remedy = 'double the quotes within "…"'
        raise fault(problem, remedy, "table.quotes", line=numbers[0]) from None


def refuse_repeated_column(path: Location, names: Sequence[str], line: int | None = None) -> None:
    """Refuse a table with two columns of a name; several may have none."""
    if name := next((name for name in names if name and names.count(name) > 1), None):
        problem = f"the column {quoted(name)} is given twice"
        raise InputError(problem, "keep one of them", "table.duplicate", path=path, line=line)


_SETTINGS = 'write "key: value", one a line'
_TAG = "tag:yaml.org,2002:"
# Numbers that every YAML reads alike, and the common forms of true, false and null.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,15})?")


def read_settings(
    text: str, path: Location, *, first_line: int = 1
) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML text by key, texts, None for null, or lists of both; and the keys' lines.

    An empty text has no settings. It begins in ``first_line`` of the file. An InputError refuses broken YAML, a
    duplicate key or one that is not a text, a value that is neither a scalar nor a list of scalars, and an unquoted
    value that YAML takes for something else.
    """

    def fault(problem: str, at: int, remedy: str = _SETTINGS) -> InputError:
        line = first_line + text.count("\n", 0, at)
        return InputError(problem, remedy, "files.yaml", path=path, line=line)

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = mark.index if mark else getattr(error, "position", 0)
        raise fault(f"broken YAML ({getattr(error, 'problem', None) or error})", at) from None
    except RecursionError:
        problem = "broken YAML (brackets are nested too deep)"
        raise InputError(problem, _SETTINGS, "files.yaml", path=path) from None
    if node is None or node.tag == f"{_TAG}null":
        return {}, {}
    if not isinstance(node, yaml.MappingNode):
        raise fault("holds no keys", 0)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        at = key.start_mark.index
        if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}null":
            raise fault("a key that is not a text", at)
        name = quoted(key.value)
        if key.value in values:
            problem = f"the key {name} is given twice (see line {lines[key.value]})"
            raise fault(problem, at, "give it once")
        several = isinstance(value, yaml.SequenceNode)
        items = value.value if several else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise fault(f"{name} is neither a value nor a list of values", at)
        if wrong := next(filter(_is_changed, items), None):
            problem = f"{name} is {cut(wrong.value, 80)}, which YAML takes for something else"
            raise fault(problem, wrong.start_mark.index, "put it in quotes")
        texts = [None if item.tag == f"{_TAG}null" else item.value for item in items]
        values[key.value] = texts if several else texts[0]
        lines[key.value] = first_line + key.start_mark.line
    return values, lines


def _is_changed(node: yaml.ScalarNode) -> bool:
    """Whether YAML 1.1 or 1.2 would change the text of a value."""
    if node.style is not None or node.tag == f"{_TAG}null":
        return node.tag not in (f"{_TAG}str", f"{_TAG}null")
    if node.tag == f"{_TAG}str":
        try:
            float(node.value.replace("0o", "0"))  # 1e3 and 0o17 are numbers of YAML 1.2
        except ValueError:
            return False
    return node.value not in ("true", "false") and not _NUMBER.fullmatch(node.value)
