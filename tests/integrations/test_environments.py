"""The engine installed from a package index, alone and beside other packages, each in an environment of its own.

``make test-integrations`` runs these; they download and install for minutes.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# By script: the extras of the engine, what is installed beside it, and how many packages there may be at most.
ENVIRONMENTS = {
    "core": ("", (), 30),
    "api": ("[api]", (), 45),
    "mlflow_run": ("[page]", ("mlflow",), None),
    "langchain_store": ("", ("langchain-core",), None),
    "llama_index_index": ("", ("llama-index-core",), None),
    "haystack_pipeline": ("", ("haystack-ai",), None),
    "autojudge_judge": ("", ("autojudge-base", "autojudge-evaluate"), None),
    "pyterrier_experiment": ("", ("pyterrier",), None),
    "exported_data_set": ("", ("datasets", "ir-measures"), None),
    "embedding_models": ("[local]", ("sentence-transformers", "pytest"), None),
}


def run(*command, cwd, **more):
    """What a user's program prints, who knows nothing of this checkout."""
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "RAY_ADDRESS")
    }
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd, env=known | more
    )  # fmt: skip


def installed(folder, extra, packages):
    """The programs of a new environment."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    tracked = run(
        "git", "ls-files", "engine", "jobs", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT
    )
    for name in tracked.stdout.split():  # the build leaves folders in what it is given
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    (folder / "source" / "erag_engine").symlink_to((ROOT / "erag_engine").readlink())
    # Other packages have bounds of their own, which ours need not fit.
    pins = {} if packages else {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = run(
        programs / "python", "-m", "pip", "install", "--quiet", f"{folder / 'source'}{extra}", *packages,
        cwd=folder, **pins,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return programs


def packages_in(programs, folder):
    listed = run(programs / "python", "-m", "pip", "list", "--format=json", cwd=folder)
    return {one["name"] for one in json.loads(listed.stdout)} - {"pip", "setuptools"}


@pytest.mark.parametrize("script", ENVIRONMENTS)
def test_it_works_in_an_environment_of_its_own(script, tmp_path, files):
    extra, packages, most = ENVIRONMENTS[script]
    programs = installed(tmp_path, extra, packages)
    if most is not None:
        found = packages_in(programs, tmp_path)
        assert len(found) <= most, sorted(found)
    file = HERE / f"{script if script != 'api' else 'core'}.py"
    done = run(
        programs / "python", file, ROOT / "docs/guide/recipes.md",
        cwd=tmp_path, ERAG_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if script == "core":
        commands(programs, tmp_path, files)


def commands(programs, folder, files):
    """What the command does where nothing but the core is installed."""

    def erag(*given):
        return run(programs / "erag", *given, cwd=folder, ERAG_CACHE=str(folder / "cache"))

    inputs = [f"--{name}={value}" for name, value in files.items() if name != "out"]
    for number, more in enumerate(
        (
            ("--annotators=containment", "--no-end-to-end"),
            (f"--reader={HERE / 'own_llm.py'}:ask", "--shard-pairs=2"),
        )
    ):
        done = erag("evaluate", *inputs, *more, f"--out={number}")
        assert done.returncode == 0, done.stderr
        assert json.loads((folder / f"{number}/summary.json").read_text())["counts"]["queries"] == 2
    for given in (["--help"], ["doctor"], ["evaluate", "--help"]):
        assert erag(*given).returncode == 0
    done = erag("demo")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'erag-engine[articles,local,retrieval]' && " in done.stderr
    done = erag(
        "evaluate", *inputs, "--out=more", f"--reader={HERE / 'own_llm.py'}:ask", "--actors=2"
    )
    assert done.stderr == (
        "erag: work on actors needs ray, which is not installed; pip install 'erag-engine[ray]'\n"
    )
    assert run(programs / "python", "-m", "erag_engine", "--version", cwd=folder).returncode == 0


def test_the_first_minutes_on_a_gpu_run_on_a_bare_machine(tmp_path):
    """With the engine's packages from the two archives alone; all stages, tiny, without a GPU.

    ``BARE_MACHINE`` names an environment to be taken for the machine, which else is made, of gigabytes.
    """
    pythons = [*Path.home().glob(".pyenv/versions/3.12.*/bin/python"), shutil.which("python3.12")]
    machine = Path(os.environ.get("BARE_MACHINE") or tmp_path / "machine")
    if not machine.exists():
        works = [one for one in pythons if one and not run(one, "-V", cwd=tmp_path).returncode]
        if not works:
            pytest.skip("the machine has Python 3.12, which is not here")
        assert run(works[0], "-m", "venv", machine, cwd=tmp_path).returncode == 0
        done = run(
            machine / "bin/pip", "install", "--quiet", "-r", HERE / "bare_machine.txt", cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
    there = tmp_path / "checkout"
    for name in run("git", "ls-files", cwd=ROOT).stdout.split("\n"):
        if (ROOT / name).is_file():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / name).write_bytes((ROOT / name).read_bytes())
    done = run(
        sys.executable, "-m", "tests.gpu_first.pieces", "make", tmp_path / "pieces", cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    tree = sum(file.stat().st_size for file in there.rglob("*") if file.is_file())
    archives = [tmp_path / "pieces" / f"{name}.tar.xz" for name in ("first", "ray")]
    assert all(tree + archive.stat().st_size < 64 * 2**20 for archive in archives)
    for archive, stages in zip(
        archives, (("0", "real", "5", "exact", "1"), ("0", "4")), strict=True
    ):
        for command in (
            ("-m", "tarfile", "-e", archive, "site"),
            ("-m", "tests.gpu_first", "--tiny", "--stage", *stages),
        ):
            done = run(machine / "bin/python", *command, cwd=there, PYTHONPATH=".:site")
            assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(tmp_path / "machine", ignore_errors=True)
    rows = [
        row
        for stage in ("0", "real", "5", "exact", "1", "4")
        for row in json.loads((there / f"build/gpu-first/stage-{stage}.json").read_text())
    ]
    assert {row["what"]: row["said"] for row in rows if row["outcome"] != "holds"} == {
        "GPU": "no GPU",
        "a lack of memory halves batches": "no GPU",
        "search on several GPUs": "not installed: faiss, ray",
    }
