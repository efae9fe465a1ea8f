"""The files of a page beside an evaluation's tables: their names, an earlier page's files, and where to look."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from engine.messages.extras import command, missing
from engine.messages.wording import listed
from engine.sources.io.folders import Folder

PAGE, BESIDE = "report.html", "report"
# Names every file beside the page, so that the next evaluation removes these and no others.
LISTED = "report.json"
_NAMES = re.compile(r"(queries-\d{4,}\.js|(figures|tables)/[a-z_-]+\.(svg|png|md|tex|csv))")


def where_to_look(out: str | Path) -> str:
    """A note that the page is among the results, or on missing packages and the commands that make the page."""
    if lacking := missing("page"):
        needs = f"there is no {PAGE}, which needs {listed(lacking)}"
        return f"{needs}: {command('page')} && erag report {shlex.quote(str(out))}"
    return f"open {PAGE} there"


def page_files(folder: Folder) -> Iterator[str]:
    """Names of an earlier page's files, and of the list that names them; all other files are the user's own."""
    yield PAGE
    try:
        names = json.loads((folder / BESIDE).read(LISTED).decode())
    except (OSError, ValueError, RecursionError):
        return
    yield f"{BESIDE}/{LISTED}"
    for name in names if isinstance(names, list) else []:
        # Anyone may have changed the list: files elsewhere stay.
        if isinstance(name, str) and _NAMES.fullmatch(name):
            yield f"{BESIDE}/{name}"
