"""Singular and plural forms that depend on a count."""

from __future__ import annotations

import re

_FORMS = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")


def counted(amount: int, what: str) -> str:
    """An amount and what it counts.

    ``counted(1, "[query has|queries have] no answer")`` gives "1 query has no answer".

    Args:
        amount: 0 or more.
        what: a phrase with ``[singular|plural]`` where the two forms differ.
    """
    return f"{amount} {agreeing(amount, what)}"


def agreeing(amount: int, what: str) -> str:
    """``what`` in the form for that amount, without the amount."""
    return _FORMS.sub(lambda forms: forms[1 if amount == 1 else 2], what)
