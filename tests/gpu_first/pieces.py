"""Carry what is installed nowhere else to a machine where nothing can be downloaded, in two archives.

    python -m tests.gpu_first.pieces make FOLDER [--python 3.12]

``first.tar.xz`` has what all stages but that of Ray need, and the reads of the bundled reader; ``ray.tar.xz`` has Ray,
without its parts in Java, for training by reinforcement, for serving, and for browsers. They hold installed files, of
which xz leaves less than wheels have, at the versions of docs/cluster/constraints-gpu.txt. What that machine has is not
carried, and so not shadowed, but filelock: before 3.30 it lacks what the engine needs. There, in a checkout,

    python3 -m tarfile -e first.tar.xz site && PYTHONPATH=.:site python3 -m tests.gpu_first

runs, and says of Ray's stage that it cannot be run until ``ray.tar.xz`` is unpacked beside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gpu_first import real

CONSTRAINTS = Path(__file__).parents[2] / "docs" / "cluster" / "constraints-gpu.txt"
# What the machines with an H100 that were seen have, of what these packages need.
PRESENT = {
    *(
        "accelerate",
        "aiosignal",
        "attrs",
        "certifi",
        "charset-normalizer",
        "click",
        "frozenlist",
        "fsspec",
        "idna",
    ),
    *(
        "jinja2",
        "markdown-it-py",
        "markupsafe",
        "mdurl",
        "msgpack",
        "numpy",
        "packaging",
        "pandas",
        "protobuf",
    ),
    *(
        "pyarrow",
        "pygments",
        "python-dateutil",
        "pyyaml",
        "regex",
        "requests",
        "rich",
        "six",
        "tqdm",
    ),
    *("typing-extensions", "urllib3"),
}
ARCHIVES = {
    "first": ("polars", "cyclopts", "docstring-parser", "gguf", "filelock"),
    "ray": ("ray[data]",),
}
# Of installed packages: what is large, and not used.
_LEFT = tuple(f"ray/{name}" for name in ("jars", "rllib", "serve", "dashboard/client", "cpp"))
_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")


def pack(installed: Path, target: Path) -> None:
    """Write an archive of what is in a folder."""

    def kept(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if file.name.startswith((*_LEFT, "bin")) else file

    with tarfile.open(target, mode="w:xz", preset=9) as tar:
        for path in sorted(installed.iterdir()):
            tar.add(path, path.name, filter=kept)


def install(packages: Sequence[str], python: str, folder: Path, there: set[str]) -> set[str]:
    """Install packages, with what they need and is not there, for another Python; their names.

    pip decides on versions as if it installed everything (``--dry-run``), and fetches nothing large for that.
    """
    platforms = [f"--platform=manylinux_{tag}_x86_64" for tag in _PLATFORMS]
    kind = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    kind += [*platforms, "--platform=manylinux2014_x86_64", "--target", str(folder)]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "--quiet",
        "install",
    ]
    with tempfile.NamedTemporaryFile() as found:
        asked = ["--dry-run", "--ignore-installed", "--report", found.name]
        subprocess.run(
            [*pip, *asked, "--constraint", str(CONSTRAINTS), *kind, *packages], check=True
        )
        report = json.loads(Path(found.name).read_text(encoding="utf-8"))["install"]
    chosen = {
        one["metadata"]["name"].lower().replace("_", "-"): one["metadata"]["version"]
        for one in report
    }
    carried = set(chosen.keys() - there)
    exact = [f"{name}=={chosen[name]}" for name in sorted(carried)]
    subprocess.run([*pip, "--no-deps", "--no-compile", *kind, *exact], check=True)
    return carried


def make(folder: Path, python: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    there = set(PRESENT)
    for name, packages in ARCHIVES.items():
        with tempfile.TemporaryDirectory() as installed:
            carried = install(packages, python, Path(installed), there)
            if name == "first":
                reads = json.dumps(real.made())
                Path(installed, real.CARRIED).write_text(reads, encoding="utf-8")
            target = folder / f"{name}.tar.xz"
            pack(Path(installed), target)
        there |= carried
        print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB, {', '.join(sorted(carried))}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("verb", choices=["make"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12")
    options = parser.parse_args(arguments)
    make(options.folder, options.python)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
