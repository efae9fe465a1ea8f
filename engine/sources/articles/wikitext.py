"""Wikitext rendered as prose."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import mwparserfromhell as mw
from mwparserfromhell import nodes

_DROPPED = "ref references table gallery math timeline imagemap score source syntaxhighlight"
_DROPPED_TAGS = frozenset(_DROPPED.split())
_DROPPED_LINKS = re.compile(r"\s*(?:file|image|category|media)\s*:|\s*[a-z\-]{2,12}:[^ ]", re.I)
_BLOCK_TAGS = frozenset({"li", "dd", "dt", "br", "blockquote", "p", "div", "poem", "center", "hr"})


def plain_text(markup: str, back_matter: Collection[str]) -> str:
    """Render wikitext as prose, one paragraph per line.

    Kept: running text, list items, link texts, and inline templates with words or numbers (``convert``, ``lang`` …).
    Left out: references, tables, infoboxes, images, formulas, headings, and the sections of ``back_matter``.
    """
    pieces: list[str] = []
    skipped_level: int | None = None
    for node in mw.parse(markup).nodes:
        if isinstance(node, nodes.Heading):
            title = str(node.title.strip_code()).strip().lower()
            if skipped_level is not None and node.level > skipped_level:
                continue
            skipped_level = node.level if title in back_matter else None
            pieces.append("\n")
        elif skipped_level is None:
            pieces.append(_render_node(node))
    text = "".join(pieces).replace("\xa0", " ")
    text = re.sub(r"__[A-Z]+__|'{2,}", "", text)
    # Remains of templates and footnotes: empty brackets, and commas before a closing bracket.
    text = re.sub(r"\(\s*(?:[;,]\s*)*", "(", text)
    text = re.sub(r"\s*(?:[;,]\s*)*\)", ")", text)
    text = text.replace("()", "")
    lines = (re.sub(r"\s+", " ", line).strip(" *#:;") for line in text.splitlines())
    return "\n".join(re.sub(r" ([,.;:])(?= |$)", r"\1", line) for line in lines if line)


def _render(code: object) -> str:
    if code is None:
        return ""
    return "".join(_render_node(node) for node in mw.parse(code).nodes)


def _render_node(node: nodes.Node) -> str:
    if isinstance(node, nodes.Text):
        return str(node.value)
    if isinstance(node, nodes.Wikilink):
        target = str(node.title)
        if _DROPPED_LINKS.match(target):
            return ""
        return target.removeprefix(":") if node.text is None else _render(node.text)
    if isinstance(node, nodes.ExternalLink):
        return _render(node.title) if node.brackets else ""
    if isinstance(node, nodes.Tag):
        name = str(node.tag).strip().lower()
        content = "" if name in _DROPPED_TAGS else _render(node.contents)
        return f"\n{content}" if name in _BLOCK_TAGS else content
    if isinstance(node, nodes.HTMLEntity):
        return str(node.normalize())
    if isinstance(node, nodes.Template):
        name = str(node.name).strip().lower().replace("_", " ")
        arguments = [_render(p.value).strip() for p in node.params if not p.showkey]
        if name in _INLINE_TEMPLATES:
            return _INLINE_TEMPLATES[name](arguments)
        return "".join(arguments[:1]) if name.startswith("lang-") else _FIXED.get(name, "")
    return ""  # comments and stray template arguments


def _nth(position: int) -> Callable[[list[str]], str]:
    return lambda arguments: arguments[position] if len(arguments) > position else ""


def _convert(arguments: list[str]) -> str:
    # {{convert|120|km|mi}} and the range form {{convert|120|to|150|km}}: as written, not converted.
    parts: list[str] = []
    for argument in arguments:
        parts.append({"-": "to", "–": "to"}.get(argument, argument))
        if not re.fullmatch(r"[\d.,/+\-−]+|to|and|by|x|or|to\(-\)|–|-|\+/-|±", argument):
            break
    return " ".join(parts)


# Templates that stand for one of their arguments, by its position.
_BY_POSITION = (
    (0, "angbr flag ill keypress nihongo nowrap nts plainlist quote sc small smaller val vanchor"),
    (1, "inflation lang"),
)
# Templates whose words belong to the sentence around them.
_INLINE_TEMPLATES: dict[str, Callable[[list[str]], str]] = {
    **{name: _nth(position) for position, names in _BY_POSITION for name in names.split()},
    "convert": _convert,
    "transl": lambda a: a[-1] if a else "",
    "chem": "".join,
    "frac": "/".join,
    "hlist": ", ".join,
    "as of": lambda a: f"As of {' '.join(a)}",
    "circa": lambda a: f"c. {' '.join(a)}",
    "c.": lambda a: f"c. {' '.join(a)}",
}
_FIXED = {"nbsp": " ", "spaces": " ", "'s": "'s", "'": "'", "·": " · ", "pipe": "|", "!": ""}
