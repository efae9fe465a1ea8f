"""An article, from which passages are cut."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages.characters import composed

# Sections that contain references rather than prose (the DPR passages leave them out too).
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
    """One article.

    Attributes:
        page_id: its id in the source.
        title, text: may be empty; composed (NFC), as the name is.
        name: what identifies it in the provenance of questions; if empty, the title does, or the id
            if there is no title.
    """

    page_id: str
    title: str
    text: str
    name: str = ""

    def __post_init__(self) -> None:
        for part in ("title", "text", "name"):
            object.__setattr__(self, part, composed(getattr(self, part)))
