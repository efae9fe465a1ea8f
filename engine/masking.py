"""Addresses without credentials, wherever one is shown or kept: errors, logs, summaries, titles."""

from __future__ import annotations

import re

# User and password, in which some leave a / or an @ as it is: up to the last @; or a user alone.
_USER = re.compile(r"(?<=:)(/+)(?:[^/\s@:]*:\S*@|[^/\s]*@)")
# Signatures and tokens of addresses that carry their own permission. What is masked stays as it is, with
# a line number that was put behind it.
_QUERY = re.compile(r"[?#](?!\*\*\*)\S+")
# A scheme is short; without a limit, a megabyte of letters would be looked through once from each of them.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,30}:/\S+")
MASK = "***"


def masked(text: str) -> str:
    """A text with the credentials of every address in it replaced by ``***``, for what is shown or kept.

    Credentials are user and password (``s3://key:secret@bucket/x``) and whatever stands after ``?`` or
    ``#`` (``https://host/x?signature=…``). A path with an ``@`` cannot be told from a password: after a
    user with a password, or a port, all up to the last ``@`` is masked.
    """

    def without(address: re.Match[str]) -> str:
        # No user stands behind the last @; looked for there, each place would be compared to the end.
        before, at, after = address[0].rpartition("@")
        return _QUERY.sub(f"?{MASK}", _USER.sub(rf"\1{MASK}@", before + at, count=1) + after)

    return _ADDRESS.sub(without, text)
