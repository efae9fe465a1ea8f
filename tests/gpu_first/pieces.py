"""Carry the checkout and wheels to a machine where nothing can be downloaded, in parts that its channel takes.

    python -m tests.gpu_first.pieces make FOLDER [--python 3.12] [--without torch numpy …] [PACKAGE …]
    python3 pieces.py join FOLDER TARGET

``make`` packs the tracked files without the bundled weights, and the wheels of the packages, by default those that
stages 1, 4 and 5 need, with all that they need, at the versions of docs/cluster/constraints-gpu.txt; it cuts them
into ``part-000`` and so on, of 24 MiB, beside ``parts.json`` with their digests and this file. ``join`` needs nothing
but Python and pip: it tells which parts lack or are damaged; once all are there, it unpacks the checkout into TARGET
and installs the wheels into TARGET/site, so that there

    cd TARGET/checkout && PYTHONPATH=.:../site python3 -m tests.gpu_first

runs. Stage 2 needs ``faiss-gpu`` beside these. Packages of that machine which are named after ``--without`` are not carried, whatever needs them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PART = 24 * 2**20
MANIFEST = "parts.json"
# What the H100 machines that were seen have: torch and all that belongs to it.
PRESENT = (
    *("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy"),
    *("accelerate", "sentencepiece", "pyarrow", "scipy", "regex", "filelock", "fsspec", "pyyaml"),
)
# faiss-gpu would bring CUDA 12's libraries, which are several times as large as all of these.
PACKAGES = ("polars", "ray[data]", "cyclopts", "docstring-parser", "gguf", "rich")
# Of the checkout: what is large, and not needed there.
_LEFT = ("engine/demo/fid-reader/", "docs/pictures/")
_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")


def pack(root: Path, wheels: Sequence[Path], folder: Path) -> list[str]:
    """Write the parts of an archive of the checkout and wheels; the names of the parts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            for name in filter(None, listed):
                if not name.startswith(_LEFT) and (root / name).is_file():
                    tar.add(root / name, f"checkout/{name}")
            for wheel in wheels:
                tar.add(wheel, f"wheels/{wheel.name}")
        archive.seek(0)
        names: dict[str, str] = {}
        while content := archive.read(PART):
            name = f"part-{len(names):03}"
            (folder / name).write_bytes(content)
            names[name] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    shutil.copy(__file__, folder / "pieces.py")
    return list(names)


def lacking(folder: Path) -> list[str]:
    """The parts that are not there, or are damaged."""
    wanted: dict[str, str] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return [
        name
        for name, digest in wanted.items()
        if not (folder / name).is_file()
        or hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest
    ]


class _Joined(io.RawIOBase):
    """The parts as one file, of which one is in memory at a time."""

    def __init__(self, parts: Iterator[Path]) -> None:
        self._parts, self._rest = parts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part.read_bytes())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def join(folder: Path, into: Path, *, install: bool = True) -> None:
    """Unpack all parts, and install the wheels.

    Raises:
        SystemExit: parts lack or are damaged.
    """
    if lacks := lacking(folder):
        raise SystemExit(f"{len(lacks)} parts lack or are damaged: {' '.join(lacks)}")
    into.mkdir(parents=True, exist_ok=True)
    parts = sorted(folder.glob("part-[0-9]*"))
    with tarfile.open(fileobj=io.BufferedReader(_Joined(iter(parts))), mode="r|gz") as tar:
        # Python has filters from 3.11.4 on, and the archive is our own.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(into, filter="data")
        else:
            tar.extractall(into)
    wheels = sorted((into / "wheels").glob("*.whl"))
    if install and wheels:
        options = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", *options]
            + ["--target", str(into / "site"), *map(str, wheels)],
            check=True,
        )
    print(f"joined: {into / 'checkout'}, {len(wheels)} wheels")


def download(packages: Sequence[str], without: Sequence[str], python: str, folder: Path) -> None:
    """Fetch the wheels that packages need, but for those that are there, by pip from its index.

    pip decides on versions as if it installed everything (``--dry-run``), which needs an interpreter of that version's
    kind only for markers; what is named in ``without`` is taken out of the list before anything large is fetched.
    """
    constraints = Path(__file__).parents[2] / "docs" / "cluster" / "constraints-gpu.txt"
    platforms = [f"--platform=manylinux_{tag}_x86_64" for tag in _PLATFORMS]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    kind = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet"]
    with tempfile.NamedTemporaryFile() as found:
        subprocess.run(
            [*pip, "install", "--dry-run", "--ignore-installed", "--target", str(folder)]
            + ["--report", found.name, "--constraint", str(constraints), *kind, *packages],
            check=True,
        )
        chosen = json.loads(Path(found.name).read_text(encoding="utf-8"))["install"]
    skipped = {name.lower().replace("_", "-") for name in without}
    for one in chosen:
        about = one["metadata"]
        if about["name"].lower().replace("_", "-") not in skipped:
            subprocess.run(
                [*pip, "download", "--no-deps", "--dest", str(folder), *kind]
                + [f"{about['name']}=={about['version']}"],
                check=True,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("packages", nargs="*", default=list(PACKAGES))
    making.add_argument("--python", default="3.12")
    making.add_argument("--without", nargs="*", default=list(PRESENT))
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    if options.verb == "join":
        join(options.folder, options.target)
        return 0
    with tempfile.TemporaryDirectory() as name:
        download(options.packages, options.without, options.python, Path(name))
        wheels = sorted(Path(name).glob("*.whl"))
        parts = pack(Path(__file__).parents[2], wheels, options.folder)
    print(f"{len(parts)} parts of at most {PART // 2**20} MiB: {len(wheels)} wheels, the checkout")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
