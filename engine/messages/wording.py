"""Words of messages: forms that depend on a count, and quotes from users' files and functions."""

from __future__ import annotations

import difflib
import math
import re
import sysconfig
import traceback
import unicodedata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

_FORMS = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")


def counted(amount: int, what: str) -> str:
    """An amount with its noun.

    >>> counted(1, "[query has|queries have] no answer")
    '1 query has no answer'
    """
    return f"{amount} {agreeing(amount, what)}"


def agreeing(amount: int, what: str) -> str:
    """``what`` in the form for that amount, without the amount."""
    return _FORMS.sub(lambda forms: forms[1 if amount == 1 else 2], what)


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence: ``a, b and c``.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def meant(name: str, known: Collection[str]) -> str:
    """ "did you mean X? ", for a name that is nearly a known one (case does not matter); else nothing."""
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[near[0]]}? " if near else ""


_LONGEST = 80
# Places of code that is not the user's: libraries, the engine, code without a file.
_NOT_THE_USERS = (*sysconfig.get_paths().values(), str(Path(__file__).parents[1]), "<")


def cut(text: str, letters: int) -> str:
    """A text in one line, of at most so many letters."""
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 1]}…"


def quoted(value: object) -> str:
    """A value of a user's file for a message: in quotes if it is a text, and cut if it is long.

    A text outside Unicode's normalization form C looks like its normalized form; escapes (``'cafe\\u0301'``)
    distinguish two such ids.
    """
    if isinstance(value, str):
        value = value[:_LONGEST] + "…" * (len(value) > _LONGEST)
        return repr(value) if unicodedata.is_normalized("NFC", value) else ascii(value)
    if isinstance(value, (list, tuple)):
        # Only a few items: a list may be too long, or too deep, to print.
        inside = ", ".join(quoted(item) for item in value[:3]) + ", …" * (len(value) > 3)
        return f"[{inside}]" if len(inside) <= 3 * _LONGEST else "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:
        return "a number of more than 80 digits"
    return repr(value)


def number(value: float, digits: int = 3, *, plus: str = "") -> str:
    """A number with so many decimals; no sign if it rounds to 0.

    >>> number(-0.0004), number(0.25, 2, plus="+")
    ('0.000', '+0.25')
    """
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else ("-" if value < 0 else plus) + text


def with_interval(value: float, low: float, high: float, digits: int = 3, *, plus: str = "") -> str:
    """A number with its interval, where there is one: "0.25 [0.10, 0.40]"."""
    if math.isnan(low):
        return number(value, digits, plus=plus)
    return "{} [{}, {}]".format(*(number(n, digits, plus=plus) for n in (value, low, high)))


def number_of(value: Any) -> float:
    """A function's return value as a number from 0 to 1; NaN if it is not."""
    try:
        # A text that reads as a number is a mistake in the function, not a number.
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if 0 <= number <= 1 else math.nan


def name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def reason_of(error: BaseException) -> str:
    """The exception from a user's function, in one line, with the last place in the user's own code."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    frames = ((f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__))
    own = [(name, line) for name, line in frames if not name.startswith(_NOT_THE_USERS)]
    return "{} ({}:{})".format(text, *own[-1]) if own else text


def as_unicode(text: str) -> str:
    """A text as UTF-8 can hold it, composed (NFC): halves of surrogate pairs become U+FFFD, or a whole pair.

    >>> as_unicode("a\\ud83d"), as_unicode("Cafe\\u0301")
    ('a\ufffd', 'Café')
    """
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return unicodedata.normalize("NFC", whole)
