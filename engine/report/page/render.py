"""Pages as HTML, and the files beside them: pictures, and tables as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from engine.messages.extras import require
from engine.report.layout import Answer, Grid, sentence
from engine.report.page import plotting
from engine.report.page.plotting import Drawing, Picture
from engine.report.page_files import BESIDE, LISTED, PAGE, page_files
from engine.sources.io.files import write_bytes, write_text
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location
from engine.sources.io.outputs import replaced_together

MARKDOWN = ".md"
# Parts of a picture that a page does not need: metadata, names without references, rotations by 0, blanks.
_NEEDLESS = re.compile(
    r'<metadata>.*?</metadata>| id="[\w.]+_\d{1,5}"| transform="rotate\(-0 [^"]*"|(?<=\n) +',
    re.DOTALL,
)
_TAG, _BEYOND_HUNDREDTHS = re.compile(r"<[^>]+>"), re.compile(r"(?<=\.\d\d)\d+")
_FAMILY = re.compile(r"font-family: [^;\"]+; ")
# Cells that spreadsheets would calculate, except for numbers, with an interval or a percent sign.
_FORMULA = re.compile(r"\A([=@\t\r]|[-+](?!\d[\d.,]*%?( \[[-+\d.,% ]*\])?$))")
# LaTeX for accents, by their combining sign, and for other signs, in fonts of any encoding.
_MARKS = "\u0300\u0301\u0302\u0303\u0304\u0307\u0308\u030a\u030b\u030c\u0327"
_ACCENTS = dict(zip(_MARKS, "`'^~=.\"rHvc", strict=True))
_LATEX = str.maketrans(
    {sign: rf"\{sign}" for sign in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "\N{GREEK SMALL LETTER TAU}": r"$\tau$",
        "\N{GREEK SMALL LETTER RHO}": r"$\rho$",
        "\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$",
        "\N{MULTIPLICATION SIGN}": r"$\times$",
        "\N{MIDDLE DOT}": r"$\cdot$",
        "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
        "\N{EN DASH}": r"\textendash{}",
        "\N{MINUS SIGN}": "$-$",
        "\N{NO-BREAK SPACE}": "~",
        "\N{EM DASH}": r"\textemdash{}",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": "``",
        "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    }
)
_BETWEEN_SENTENCES = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


class PageFiles(NamedTuple):
    """The files of a page: the page, the files beside it, and their bytes."""

    page: Location
    beside: tuple[Location, ...]
    size: int


@dataclass(frozen=True)
class Part:
    """A section of a page."""

    name: str  # the target of its links
    short: str  # the text of its links; empty for no link
    title: str
    grids: Sequence[Grid] = ()
    pictures: Sequence[str] = ()  # their names
    folded: Sequence[str] | None = None  # lines that open by a click on the title
    label: str = ""  # names the tables for screen readers, in place of headings


@dataclass(frozen=True)
class Page:
    """A page, whose parts refer to drawings by name."""

    title: str  # of the window
    answer: Answer
    parts: Sequence[Part]
    drawings: Sequence[Drawing]
    notes: Sequence[str]  # sentences
    settings: Mapping[str, object]
    with_png: bool = True  # beside SVG, which alone takes half the time


def require_page() -> None:
    """Refuse to continue without the extra ``page``."""
    require(f"the page {PAGE}", "page")


def rendered(template: str, drawn: Sequence[Picture], **content: Any) -> str:
    """A page of a template with its ``content``, which may show the pictures that were ``drawn``."""
    content |= {"style": as_it_is(source("page.css")), "pictures": _for_the_page(drawn)}
    return str(_template(template).render(**content))


@cache  # all pages of a study have one
def _template(name: str) -> Any:
    import jinja2

    loader, undefined = jinja2.FunctionLoader(source), jinja2.StrictUndefined
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    return environment.get_template(name)


def write_files(
    page: str,
    drawn: Sequence[Picture],
    parts: Sequence[Part],
    folder: Path,
    *,
    single_file: bool,
    also: Sequence[str] = (),
) -> PageFiles:
    """Write a page, with pictures and tables as files beside it unless ``single_file``; ``also``: files already there."""
    grids = [grid for part in parts for grid in part.grids]
    beside = {} if single_file else dict(_pictures_and_tables(drawn, grids))
    for name, content in beside.items():
        write_bytes(content, folder / BESIDE / name)
    if names := [*also, *beside]:
        write_text(json.dumps(sorted(names), indent=1) + "\n", folder / BESIDE / LISTED)
    write_text(page, folder / PAGE)
    written = tuple(folder / BESIDE / name for name in names)
    size = len(page.encode()) + sum(path.stat().st_size for path in written)
    return PageFiles(folder / PAGE, written, size)


def replace_page(folder: Folder, write: Callable[[Path], PageFiles]) -> PageFiles:
    """Write a page into an empty folder, then replace the earlier page, which an error leaves whole."""
    with replaced_together(folder.at, lambda: page_files(folder), last=PAGE) as new:
        written = write(new)
        beside = (Path(path).relative_to(new).as_posix() for path in written.beside)
        return PageFiles(folder.place(PAGE), tuple(map(folder.place, beside)), written.size)


def write_plain(page: Page, folder: Path) -> PageFiles:
    """Write a page as ``report.html``, with its pictures and tables as files in ``report/``."""
    text, drawn = drawn_page(page, single_file=False)
    return write_files(text, drawn, page.parts, folder, single_file=False)


def write_single(page: Page, path: Path) -> None:
    """Write a page as a single file: Markdown for a comment if the name ends in .md, else HTML."""
    is_markdown = path.suffix == MARKDOWN
    write_text(_markdown(page) if is_markdown else drawn_page(page, single_file=True)[0], path)


def _markdown(page: Page) -> str:
    """A page in GitHub's Markdown; the parts after the first that has pictures are folded."""
    lines = [f"<!-- {page.title} -->", f"### {escaped(page.answer.headline)}"]
    lines += [f"> [!WARNING]\n> {escaped(warning)}" for warning in page.answer.warnings]
    lines += map(escaped, page.answer.reasons)
    is_folded = False
    for part in page.parts:
        lines += [f"<details><summary>{escaped(part.title)}</summary>"] * is_folded
        for grid in part.grids:
            lines += [f"**{escaped(grid.title)}**"] * (grid.title not in ("", grid.caption))
            lines.append(markdown(grid).strip())
        lines += ["</details>"] * is_folded
        is_folded = is_folded or bool(part.pictures)
    return "\n\n".join(lines) + "\n"


def drawn_page(
    page: Page, *, single_file: bool, template: str = "base.html.j2", **more: Any
) -> tuple[str, list[Picture]]:
    """A page as HTML, by a template that may show ``more``; and its pictures."""
    require_page()
    drawn = plotting.pictures(page.drawings, with_png=page.with_png and not single_file)
    return rendered(template, drawn, single_file=single_file, **vars(page), **more), drawn


def _pictures_and_tables(
    drawn: Sequence[Picture], grids: Sequence[Grid]
) -> Iterator[tuple[str, bytes]]:
    for picture in drawn:
        yield f"figures/{picture.name}.svg", picture.svg.encode()
        if picture.png:
            yield f"figures/{picture.name}.png", picture.png
    if rows := [[picture.name, picture.title, picture.caption] for picture in drawn]:
        head, caption = ["file", "shows", "caption"], "The pictures of this page."
        yield "figures/captions.md", markdown(Grid("figures", caption, head, rows, 3)).encode()
    for grid in grids:
        for suffix, written in _KINDS.items():
            yield f"tables/{grid.name}.{suffix}", written(grid).encode()


def _for_the_page(drawn: Sequence[Picture]) -> dict[str, Picture]:
    colours = {plotting.INK: "currentColor", plotting.FAINT: "var(--line)"}
    colours |= {colour: f"var(--c{n})" for n, colour in enumerate(plotting.COLOURS, start=1)}
    shown = {}
    for picture in drawn:
        # Cut the prolog, which a page must not contain. matplotlib escapes the names in it.
        svg = _slim(picture.svg[picture.svg.index("<svg") :])
        for colour, variable in colours.items():
            svg = svg.replace(colour, variable)
        shown[picture.name] = replace(picture, svg=as_it_is(svg))
    return shown


def _slim(svg: str) -> str:
    """Halve an SVG without visible change: coordinates to a hundredth of a point, its font named once."""
    svg = _TAG.sub(lambda tag: _BEYOND_HUNDREDTHS.sub("", tag[0]), _NEEDLESS.sub("", svg))
    if family := _FAMILY.search(svg):
        svg = svg.replace(family[0], "").replace("<svg ", f'<svg style="{family[0]}" ', 1)
    return svg


def source(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def as_it_is(text: str) -> Any:
    """Mark a text as safe: the page's own, or escaped already."""
    from markupsafe import Markup

    return Markup(text)


def markdown(grid: Grid) -> str:
    """The table in GitHub's Markdown, its caption below it."""
    head = [escaped(name) for name in grid.head]
    rule = ["---" if place < grid.names else "---:" for place in range(len(head))]
    rows = [[escaped(cell) for cell in row] for row in grid.rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]
    title = [f"**{escaped(grid.title)}**", ""] if grid.title not in ("", grid.caption) else []
    return "\n".join([*title, *lines, "", escaped(grid.caption), ""])


def latex(grid: Grid) -> str:
    """The table in LaTeX, in ASCII, with the rules of the package booktabs.

    Its caption is one sentence, the title if there is one; further sentences stand below.
    """
    columns = "l" * grid.names + "r" * (len(grid.head) - grid.names)
    head, *rows = [" & ".join(map(_as_latex, row)) + r" \\" for row in (grid.head, *grid.rows)]
    # After a rule or the end of a row, LaTeX would take a bracket or star for its option.
    rows = [f"{{}}{row}" if row[0] in "[*" else row for row in rows]
    caption, *below = _BETWEEN_SENTENCES.split(grid.caption.strip(), maxsplit=1)
    if grid.title not in ("", grid.caption):
        # A title such as "Tau of erag, less that of:" goes on in the rows.
        title = grid.title.removesuffix(":") + " each row" * grid.title.endswith(":")
        caption, below = title, [grid.caption]
    note = _as_latex(" ".join(below))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_as_latex(sentence(caption or grid.name))}}}",
        rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', grid.name)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip", rf"{{\footnotesize {note}\par}}"] if note else []),
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


def _as_latex(text: str) -> str:
    """A text in ASCII for a single line of LaTeX; letters that its fonts may lack appear as code points."""
    plain = " ".join(re.split(r"[^\S\N{NO-BREAK SPACE}]+", text)).strip()
    shown = "".join(map(_letter, unicodedata.normalize("NFC", plain)))
    return shown.replace("--", "-{}-")  # two hyphens would be a dash


def _letter(letter: str) -> str:
    known = letter.translate(_LATEX)
    if known != letter or " " <= letter <= "~":
        return known
    parts = unicodedata.normalize("NFD", letter)
    if len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS:
        return rf"\{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    code = ord(letter)
    return rf"\ifdefined\Uchar\symbol{{{code}}}\else U+{code:04X}\fi{{}}"


def comma_separated(grid: Grid) -> str:
    """The table in CSV (RFC 4180), without its caption; spreadsheets take no text in it for a formula."""
    content = io.StringIO()
    rows = ([_FORMULA.sub(r"'\g<0>", cell) for cell in row] for row in (grid.head, *grid.rows))
    csv.writer(content).writerows(rows)
    return content.getvalue()


def escaped(text: str) -> str:
    """A text escaped for a single line of Markdown: HTML, pictures and links in names of runs have no effect."""
    for mark, shown in (("\\", r"\\"), ("|", r"\|"), ("<", "&lt;"), ("](", r"]\("), ("![", r"!\[")):
        text = text.replace(mark, shown)
    return " ".join(text.split())


_KINDS = {"md": markdown, "tex": latex, "csv": comma_separated}
