"""Pages as HTML, and the files beside them, whatever a page is about."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from engine.messages.errors import InputError, WriteError
from engine.messages.extras import command, missing, require
from engine.messages.wording import listed
from engine.report.layout import Grid
from engine.report.page import exports, plotting
from engine.report.page.figures import Picture
from engine.sources.io.files import write_bytes, write_text
from engine.sources.io.folders import Folder

PAGE, BESIDE = "report.html", "report"
# Names every file beside the page, so that the next evaluation removes these and no others.
_LISTED = "report.json"
_NAMES = re.compile(r"(queries-\d{4,}\.js|(figures|tables)/[a-z]+\.(svg|png|md|tex|csv))")
# What a picture within a page can do without: who made it, names that nothing refers to, turns by nothing, blanks.
_NEEDLESS = re.compile(
    r'<metadata>.*?</metadata>| id="[\w.]+_\d{1,5}"| transform="rotate\(-0 [^"]*"|(?<=\n) +',
    re.DOTALL,
)
_TAG, _BEYOND_HUNDREDTHS = re.compile(r"<[^>]+>"), re.compile(r"(?<=\.\d\d)\d+")
_FAMILY = re.compile(r"font-family: [^;\"]+; ")
_KINDS = {"md": exports.markdown, "tex": exports.latex, "csv": exports.comma_separated}


@dataclass(frozen=True)
class Written:
    """The files of a page: the page, those beside it, and how many bytes they have."""

    page: Path
    beside: tuple[Path, ...]
    size: int


def require_page() -> None:
    """Refuse to go on where the extra ``page`` is not installed."""
    require(f"the page {PAGE}", "page")


def where_to_look(out: str | Path) -> str:
    """That the page is among the results, or what it lacks and the commands that make it."""
    if lacking := missing("page"):
        needs = f"there is no {PAGE}, which needs {listed(lacking)}"
        return f"{needs}: {command('page')} && erag report {shlex.quote(str(out))}"
    return f"open {PAGE} there"


def rendered(
    template: str,
    drawn: Sequence[Picture],
    *,
    single_file: bool,
    settings: Mapping[str, object],
    **content: Any,
) -> str:
    """A page of a template, which may show the pictures that were ``drawn``."""
    import jinja2

    loader, undefined = jinja2.FunctionLoader(source), jinja2.StrictUndefined
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    content |= {"single_file": single_file, "settings": settings}
    content |= {"style": as_it_is(source("page.css")), "pictures": _for_the_page(drawn)}
    return str(environment.get_template(template).render(**content))


def write_files(
    page: str,
    drawn: Sequence[Picture],
    grids: Sequence[Grid],
    folder: Path,
    *,
    single_file: bool,
    also: Sequence[str] = (),
) -> Written:
    """Write a page, and its pictures and tables as files beside it unless it is to be a ``single_file``.

    The files beside it that ``also`` names are there already.
    """
    beside = {} if single_file else dict(_pictures_and_tables(drawn, grids))
    for name, content in beside.items():
        write_bytes(content, folder / BESIDE / name)
    names = [*also, *beside]
    if names:
        write_text(json.dumps(sorted(names), indent=1) + "\n", folder / BESIDE / _LISTED)
    write_text(page, folder / PAGE)
    written = tuple(folder / BESIDE / name for name in names)
    size = len(page.encode()) + sum(path.stat().st_size for path in written)
    return Written(folder / PAGE, written, size)


@contextlib.contextmanager
def sparing(folder: Path, unforeseen: list[Exception]) -> Iterator[None]:
    """Where a page fails by what nobody foresaw, leave nothing of it, and go on: its results are not lost for it.

    ``unforeseen`` takes the error, to be raised when the results are in their place.
    """
    try:
        yield
    except (InputError, WriteError):
        raise
    except Exception as error:
        shutil.rmtree(folder / BESIDE, ignore_errors=True)
        unforeseen.append(error)


def page_files(folder: Folder) -> Iterator[str]:
    """The names, in the folder of results, of the files of an earlier page, and of its list of them.

    Files that the list does not name are the user's own, and not among them.
    """
    yield PAGE
    try:
        names = json.loads((folder / BESIDE).read(_LISTED).decode())
    except (OSError, ValueError, RecursionError):
        return
    yield f"{BESIDE}/{_LISTED}"
    for name in names if isinstance(names, list) else []:
        # Whoever may have changed the list: nothing elsewhere is removed for it.
        if isinstance(name, str) and _NAMES.fullmatch(name):
            yield f"{BESIDE}/{name}"


def _pictures_and_tables(
    drawn: Sequence[Picture], grids: Sequence[Grid]
) -> Iterator[tuple[str, bytes]]:
    for picture in drawn:
        yield f"figures/{picture.name}.svg", picture.svg.encode()
        yield f"figures/{picture.name}.png", picture.png
    if drawn:
        rows = [[picture.name, picture.title, picture.caption] for picture in drawn]
        head = ["file", "shows", "caption"]
        captions = Grid("figures", "The pictures of this page.", head, rows, names=3)
        yield "figures/captions.md", exports.markdown(captions).encode()
    for grid in grids:
        for suffix, written in _KINDS.items():
            yield f"tables/{grid.name}.{suffix}", written(grid).encode()


def _for_the_page(drawn: Sequence[Picture]) -> dict[str, Any]:
    colours = {plotting.INK: "currentColor", plotting.FAINT: "var(--line)"}
    colours |= {
        colour: f"var(--c{place})" for place, colour in enumerate(plotting.COLOURS, start=1)
    }
    found = {}
    for picture in drawn:
        # From the element on: a prolog has no place within a page. Names in it are matplotlib's to escape.
        svg = _slim(picture.svg[picture.svg.index("<svg") :])
        for colour, variable in colours.items():
            svg = svg.replace(colour, variable)
        found[picture.name] = {
            "title": picture.title,
            "caption": picture.caption,
            "svg": as_it_is(svg),
        }
    return found


def _slim(svg: str) -> str:
    """A picture that looks the same in half as many letters: coordinates to a hundredth of a point, its font named once."""
    svg = _TAG.sub(lambda tag: _BEYOND_HUNDREDTHS.sub("", tag[0]), _NEEDLESS.sub("", svg))
    if family := _FAMILY.search(svg):
        svg = svg.replace(family[0], "").replace("<svg ", f'<svg style="{family[0]}" ', 1)
    return svg


def source(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def as_it_is(text: str) -> Any:
    """A text that is the page's own, or is escaped already."""
    from markupsafe import Markup

    return Markup(text)
