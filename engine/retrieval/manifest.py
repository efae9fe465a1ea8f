"""The manifest of an index directory; written last, so that an unfinished index has none."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from engine.messages.errors import InputError
from engine.messages.extras import version_of
from engine.sources.io.digests import sealed_json, unsealed_json
from engine.sources.io.files import write_bytes
from engine.sources.io.locations import locate
from engine.sources.io.records import parse_json

Kind = Literal["bm25", "dense"]
FILE = "erag-index.json"
# Marks a directory in which an index is built for the first time.
UNFINISHED = "erag-index.unfinished"
_FORMAT = 2
# Required settings of an index, by its kind.
_SETTINGS: dict[Kind, frozenset[str]] = {
    "bm25": frozenset({"language", "tokenizer"}),
    "dense": frozenset({"encoder", "storage", "factory", "shard", "shards"}),
}
# File names in an index directory, by kind; Lucene's are segments_1, _0.cfs, write.lock and the like.
_OURS: dict[Kind, re.Pattern[str]] = {
    "bm25": re.compile(r"erag-index\.json|segments_\w+|_\w+\.\w+|write\.lock"),
    "dense": re.compile(
        r"erag-index\.(json|unfinished)|shards|\w+\.faiss|\..*\.tmp\..*|\..*\.erag(\..*)?"
    ),
}


@dataclass(frozen=True)
class Manifest:
    """A finished index.

    Attributes:
        passages: their number, 1 or more.
        corpus: fingerprint of the corpus that it was built from (``sources.io.fingerprint``).
        settings: settings of the build; they depend on the kind.
        versions: of the libraries that wrote its files.
        format: of the directory; other formats are not read.
    """

    kind: Kind
    passages: int
    corpus: str
    settings: dict[str, Any]
    versions: dict[str, str]
    format: int = _FORMAT


def versions(*packages: str) -> dict[str, str]:
    """The versions of the installed ones among the packages."""
    return {package: version for package in packages if (version := version_of(package))}


def write(manifest: Manifest, directory: Path) -> None:
    """Write the manifest atomically; from then on the directory is an index."""
    write_bytes(sealed_json(asdict(manifest)) + b"\n", directory / FILE)


def read(directory: str | Path, kind: Kind | None = None) -> Manifest:
    """The manifest of a finished index, of any kind or of this one; an InputError for any other directory."""
    directory = Path(directory)
    fault = partial(InputError, path=directory)
    if locate(directory) != directory:
        raise fault("is an address", "give an index on a local disk", "index.address")
    path = directory / FILE
    if not path.is_file():
        if is_unfinished(directory):
            remedy = "run the same 'erag index' again; it resumes where it stopped"
            raise fault("is an index whose build was interrupted", remedy, "index.unfinished")
        remedy = "build one with 'erag index bm25' or 'erag index dense'"
        raise fault("is not an index", remedy, "index.absent")
    try:
        value = unsealed_json(path.read_bytes())
    except (ValueError, OSError) as error:
        problem, remedy = f"cannot be read ({error})", "build the index again"
        raise InputError(problem, remedy, "index.unreadable", path=path) from None
    names = {field.name for field in fields(Manifest)}
    types = {"passages": int, "corpus": str, "versions": dict, "settings": dict}
    if not (
        value.get("format") == _FORMAT
        and names <= value.keys()
        and value["kind"] in get_args(Kind)
        and all(type(value[name]) is kind for name, kind in types.items())
        and value["passages"] >= 1
        and _SETTINGS[value["kind"]] <= value["settings"].keys()
    ):
        problem = "is not a manifest of this version of the engine"
        raise InputError(problem, "build the index again", "index.manifest", path=path)
    if kind not in (None, value["kind"]):
        raise fault(f"is a {value['kind']} index", f"give a {kind} index", "index.kind")
    return Manifest(**{name: value[name] for name in names})


def is_unfinished(directory: Path) -> bool:
    """Whether a build of an index was started here and not finished."""
    return (directory / UNFINISHED).exists() and not (directory / FILE).exists()


def require_place(directory: Path, kind: Kind) -> None:
    """Refuse, by an InputError, to index into a directory with anything but such an index: a build removes files."""
    fault = partial(InputError, path=directory)
    if not directory.exists():
        return
    if not directory.is_dir():
        raise fault("is a file", "give a directory", "index.file")
    if not (names := sorted(path.name for path in directory.iterdir())):
        return
    remedy = "give another directory, or remove this one"
    if (directory / FILE).exists():
        value = None
        with contextlib.suppress(ValueError, OSError):  # of any version; it may not state a kind
            value = parse_json((directory / FILE).read_bytes())
        existing = str(value["kind"]) if isinstance(value, dict) and "kind" in value else kind
        if existing != kind:
            raise fault(f"holds an index of another kind, {existing}", remedy, "index.kind")
    elif kind != "dense" or not is_unfinished(directory):
        raise fault("exists and is not an index", remedy, "index.absent")
    if foreign := [name for name in names if not _OURS[kind].fullmatch(name)]:
        problem = f"holds {foreign[0]!r} beside an index"
        raise fault(problem, "move it, or give another directory", "index.foreign")


def require_corpus(
    manifest: Manifest, fingerprint: str, *, directory: str | Path, corpus: str | Path
) -> None:
    """Refuse an index of another corpus, by its fingerprint."""
    if manifest.corpus != fingerprint:
        marks = f"its fingerprint is {manifest.corpus[:12]}, that of the corpus {fingerprint[:12]}"
        problem = f"is an index of another corpus than {corpus} ({marks})"
        remedy = "build the index again from this corpus, or give the corpus that it was built from"
        raise InputError(problem, remedy, "index.corpus", path=directory)
