"""Words that depend on a count."""

from __future__ import annotations

import re

_FORMS = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")


def counted(amount: int, what: str) -> str:
    """The amount and what it counts: ``counted(1, "[query has|queries have] no answer")`` is "1 query has no answer".

    Args:
        what: with ``[one|more]`` where the words for one differ from those for none or several.
    """
    return f"{amount} {agreeing(amount, what)}"


def agreeing(amount: int, what: str) -> str:
    """``what`` in the forms for that amount, without the amount."""
    return _FORMS.sub(lambda forms: forms[1 if amount == 1 else 2], what)
