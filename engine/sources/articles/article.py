"""What passages are cut from."""

from __future__ import annotations

from dataclasses import dataclass

# Sections that hold pointers rather than prose (the DPR passages leave them out too).
BACK_MATTER = frozenset(
    [
        "references",
        "external links",
        "see also",
        "further reading",
        "notes",
        "bibliography",
        "footnotes",
        "sources",
        "citations",
        "notes and references",
        "works cited",
        "gallery",
        "filmography and references",
    ]
)


@dataclass(frozen=True)
class Article:
    """One article: its id in the source, its title and its text.

    ``name`` is what questions name it by in their provenance; where empty, that is the title, and
    the id where there is no title either.
    """

    page_id: str
    title: str
    text: str
    name: str = ""
