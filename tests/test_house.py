"""The rules of the code: imports run one way, modules stay small, and the map says where things are."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.reading.protocol import ENGINES

ROOT = Path(__file__).parent.parent
# The folders and modules of engine/ from the top layer down: each may import those after it (and itself).
ORDER = [
    "compat",
    "python",
    "training",
    "report",
    "evaluation",
    "adaptive",
    "labels",
    "statistics",
    "ranking",
    "retrieval",
    "reading",
    "scoring",
    "inputs",
    "machine",
    "sources",
]
BASE = {"tables", "messages", "version"}
CODE = ("engine", "jobs", "benchmarks")
PACKAGE = "engine"  # hands on what is asked for, and imports nothing by itself
# Functions beyond these need a comment that says why, directly above: "# Long: …" or "# Wide: …".
LONGEST, WIDEST, EXCEPTIONS = 80, 8, 5
# Limits of size. Only a change whose issue names a figure raises one.
LIMITS = {
    "lines": 51_710,  # of Python in engine/ and jobs/
    "folders": 22,  # folders and modules directly in engine/, jobs/, benchmarks/
    "layers": 11,  # each folder stands above all that it imports from
    "imports": 114,  # pairs of folders of which one imports from the other
    "options": 73,  # of erag evaluate
}


@functools.cache
def modules(*folders):
    """Module names with their paths, of the folders' Python files."""
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _parsed_once():
    yield
    parsed.cache_clear()


@functools.cache
def imports(path):
    """Every name that a file imports, wherever in the file: ``package.module`` or ``package.module.name``."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
    return found


def folder_of(module):
    return module.split(".")[1] if "." in module else module


def test_imports_run_one_way():
    for name, path in modules("engine").items():
        own = folder_of(name)
        for imported in imports(path):
            top = imported.split(".")[0]
            assert top not in {"jobs", "benchmarks", "tests"}, f"{name} imports {imported}"
            if top != "engine" or folder_of(imported) in BASE or folder_of(imported) == own:
                continue
            assert own not in BASE, f"{name} is at the bottom and imports {imported}"
            assert own in ORDER or name == "engine", f"{name} is in a folder without a layer"
            if own in ORDER:
                assert ORDER.index(folder_of(imported)) > ORDER.index(own), (
                    f"{name} imports {imported}"
                )


def test_retrieval_and_reading_do_not_know_each_other():
    for one, other in (("retrieval", "reading"), ("reading", "retrieval")):
        for name, path in modules(f"engine/{one}").items():
            assert not any(known.startswith(f"engine.{other}") for known in imports(path)), name


def test_no_modules_import_each_other_in_a_circle():
    known = {name: path for name, path in modules(*CODE).items() if name != PACKAGE}
    graph = {
        name: {
            imported if imported in known else imported.rpartition(".")[0]
            for imported in imports(path)
        }
        & known.keys()
        for name, path in known.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_subfolders_import_one_way():
    known = modules("engine")
    pairs = set()
    for name, path in known.items():
        for imported in imports(path):
            target = imported if imported in known else imported.rpartition(".")[0]
            folders = [known[n].parent for n in (name, target) if n in known]
            if len(folders) == 2 and folders[0] != folders[1]:
                pairs.add(tuple(folders))
    # The report stands below its own subfolders.
    ordered = {(a, b) for a, b in pairs if a.parent == b.parent or b.parent.name == "report"}
    assert not {(a, b) for a, b in ordered if (b, a) in pairs}


@pytest.mark.parametrize(
    ("part", "commands"),
    [
        ("engine.training", {"train"}),
        # What the doctor shows of retrieval is what it needs: Java, FAISS.
        ("engine.retrieval", {"index", "retrieve", "fuse", "coverage", "demo", "doctor"}),
        ("engine.report.query_coverage", {"coverage"}),
        ("engine.report.page.asking", {"ask"}),
    ],
)
def test_parts_of_single_commands_are_reached_from_these_alone(part, commands):
    known = {name: path for name, path in modules("engine", "jobs").items() if name != PACKAGE}
    users = {}
    for name, path in known.items():
        for imported in imports(path):
            target = imported if imported in known else imported.rpartition(".")[0]
            users.setdefault(target, set()).add(name)
    inside = {name for name in known if f"{name}.".startswith(f"{part}.")}
    reaching, waiting = set(), [*inside]
    while waiting:
        new = users.get(waiting.pop(), set()) - reaching
        reaching |= new
        waiting += new
    assert inside
    assert reaching - inside == {f"jobs.{command}" for command in commands}


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        (
            "ray",
            {
                f"machine/{name}.py"
                for name in ("attempts", "cluster", "functions", "nodes", "pool", "ray_internals", "survey", "watch")
            }
            | {"evaluation/read.py"}
            | {"reading/ledger.py", "reading/observed.py", "reading/stream_on_ray.py"}
            | {"retrieval/distribute.py"}
            | {"training/on_ray.py"},
        ),
        (
            "torch",
            {"machine/batching.py", "machine/device.py", "machine/model_files.py"}
            | {"retrieval/encoder.py"}
            | {"training/learner.py", "training/trainer.py"}
            | {
                f"reading/models/{name}.py"
                for name in (
                    "attention", "continuing", "conversion", "decoding",
                    "layers", "packed", "padded", "t5", "t5_attention", "vllm_reader",
                )
            },
        ),
        (
            "transformers",
            {"reading/readers.py"}
            | {"machine/model_files.py", "retrieval/encoder.py"}
            | {"reading/prompting/controls.py", "training/learner.py"}
            | {"training/train.py", "training/trainer.py"}
            | {
                f"reading/models/{name}.py"
                for name in (
                    "attention", "causal", "continuing", "conversion", "decoding", "t5",
                    "layers", "padded",
                )
            },
        ),
        ("accelerate", {"training/train.py", "training/trainer.py"}),
        *(
            (library, {f"reading/{place.split(':')[0].replace('.', '/')}.py" for place in row.readers.values()})
            for row in ENGINES.values()
            for library in row.modules
        ),
        (
            "matplotlib",
            {f"report/page/{name}.py" for name in ("drawings", "plotting")}
            | {"python/result.py", "training/report.py"},
        ),
        ("openai", {"machine/remote/client.py", "machine/remote/transport.py"}),
        ("jnius", {"retrieval/lucene.py"}),
        ("datasets", {"sources/data_sets.py"}),
        ("ir_datasets", {"sources/data_sets.py"}),
        ("faiss", {"report/query_coverage.py", "retrieval/dense.py", "retrieval/flat.py"}),
    ],
)  # fmt: skip
def test_heavy_libraries_are_imported_only_where_they_are_used(library, allowed):
    users = {
        path.relative_to(ROOT / "engine").as_posix()
        for path in modules("engine").values()
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users == allowed


def private_to_ray(name, path):
    """What a module that imports Ray uses of what begins with an underscore or is called internal, but its own; and
    how any module of the engine ends its process.
    """
    of_ray = [imported for imported in imports(path) if imported.split(".")[0] == "ray"]
    found = [imported for imported in of_ray if re.search(r"\._|internal", imported)]
    found += {"os._exit"}.intersection(imports(path) if name.startswith("engine.") else ())
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="_exit") if name.startswith("engine."):
                found.append("os._exit")
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr="_asdict" | "_replace"):
                pass  # of a named tuple
            case ast.Attribute(attr=used) | ast.keyword(arg=str(used)) | ast.Constant(str(used)):
                if of_ray and re.search(r"^_[a-z]|\bray\W[\w\W]*_internal|__internal", used):
                    found.append(used)
    return found


def test_what_is_private_to_ray_is_used_in_one_module():
    found = {name: private_to_ray(name, path) for name, path in modules(*CODE).items()}
    own = found.pop("engine.machine.ray_internals")
    assert {name: used for name, used in found.items() if used} == {}
    assert {"_client_job", "_temp_dir", "_global_node", "node:__internal_head__"} <= {*own}
    assert {"os._exit", "ray.autoscaler._private.commands.debug_status"} <= {*own}


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from jobs.cli import app; early = ['polars'] * ('polars' in sys.modules);"
        "show = lambda *names: [app([name, '--help'], result_action='return_value') for name in names];"
        "show('evaluate', 'plan'); work = ('evaluation.study', 'evaluation.score', 'reading.backends', 'report.summary');"
        "early += [m for m in work if f'engine.{m}' in sys.modules]; show('compare', 'gate');"
        "heavy = ('torch', 'ray', 'transformers', 'pyserini', 'openai', 'scipy.special', 'scipy.stats', 'pyarrow');"
        "print(early + [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip().endswith("[]")
    assert "--queries" in done.stdout
    assert "--pace" in done.stdout
    assert "--margin" in done.stdout


def top(module):
    """The folder that a module counts for: a folder or module of the engine, or all of another package."""
    return folder_of(module) if module.startswith("engine.") else module.split(".")[0]


def imports_between_folders():
    """(folder, folder that it imports from), each once; the engine's version and the package itself do not count."""
    known = modules(*CODE)
    pairs = set()
    for name in known.keys() - {PACKAGE}:
        for imported in set(imports(known[name])) - {"engine.__version__"}:
            target = imported if imported in known else imported.rpartition(".")[0]
            if target in known:
                pairs.add((top(name), top(target)))
    return {(above, below) for above, below in pairs if above != below}


def layers(pairs):
    """The number of layers, where each folder stands above all that it imports from."""
    below = {}
    for above, under in pairs:
        below.setdefault(above, set()).add(under)
    height = {}
    for own in graphlib.TopologicalSorter(below).static_order():
        height[own] = 1 + max((height[under] for under in below.get(own, ())), default=0)
    return max(height.values())


@functools.cache
def figures():
    from jobs.evaluate import parameters

    paths = modules("engine", "jobs").values()
    pairs = imports_between_folders()
    return {
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths),
        "folders": len({top(name) for name in modules(*CODE)}),
        "layers": layers(pairs),
        "imports": len(pairs),
        "options": len(parameters()),
    }


@pytest.mark.parametrize("figure", LIMITS)
def test_the_code_does_not_grow(figure):
    size = figures()[figure]
    assert size <= LIMITS[figure], (
        f"{figure}: {size}, and the limit is {LIMITS[figure]}: delete something"
    )


def test_modules_stay_short():
    long = {
        name: count
        for name, path in modules(*CODE).items()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert not long


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_functions_stay_short_and_narrow_or_say_why():
    excused = []
    for name, path in modules(*CODE).items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            width = len(set(arguments) - {"self", "cls"}) + len(node.args.kwonlyargs)
            length = node.end_lineno - node.lineno + 1
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            for word, beyond in (("Long", length > LONGEST), ("Wide", width > WIDEST)):
                if not beyond:
                    continue
                above = lines[max(0, first - 4) : first - 1]
                reason = [line for line in above if line.strip().startswith(f"# {word}: ")]
                assert reason, f"{name}:{node.name} has {length} lines, {width} parameters"
                excused.append(f"{name}:{node.name}")
    assert len(excused) <= EXCEPTIONS, excused


def literals(path):
    """The strings of a file's code, docstrings apart, in the parts that f-strings are made of too."""
    tree = parsed(path)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield node.value


def test_modules_of_annotators_are_imported_in_labels_alone():
    # Others know the registry, the interface, the settings, and the names that users import.
    known = {"annotator", "registry", "Annotator", "from_function"}
    for name, path in modules("engine").items():
        if folder_of(name) == "labels":
            continue
        for imported in imports(path):
            parts = imported.split(".")
            if parts[:2] == ["engine", "labels"] and len(parts) > 2:
                assert parts[2] in known, f"{name}: {imported}"


def test_the_engine_names_fields_and_jobs_name_options():
    # "--no-deps" and the like are options of other programs, in commands that a remedy shows; "var(--c" is CSS.
    options = re.compile(r"(?<![\w-])(?<!var\()--[a-z]")
    named = {
        name: text
        for name, path in modules("engine").items()
        for text in literals(path)
        if options.search(text) and "pip install" not in text and text != "--list-modules"
    }
    assert not named


def test_every_input_error_has_a_code():
    # "room.word", the third argument; also of a partial one, which has the path and the line.
    code = re.compile(r"f?'[a-z]+\.([a-z-]+|\{kind or key\})'")
    for name, path in modules("engine", "jobs").items():
        for scope in ast.walk(parsed(path)):
            if not isinstance(scope, ast.FunctionDef):
                continue
            inner = list(ast.walk(scope))
            makers = {"InputError"}
            for node in inner:
                made = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
                if "partial(InputError" in made and "code=" not in made:
                    makers |= {*map(ast.unparse, node.targets)}
            for node in inner:
                if isinstance(node, ast.Call) and ast.unparse(node.func) in makers:
                    given = ast.unparse(node.args[2]) if len(node.args) > 2 else ""
                    assert code.fullmatch(given), f"{name}:{node.lineno}"


def test_the_map_names_every_folder_by_its_head():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w./-]+)/` \| (.*) \|$", text, re.M)) | {"engine/alias": ""}
    listed = subprocess.run(
        ["git", "ls-files", "engine", "jobs", "benchmarks", "docs"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    for folder in {Path(path).parent for path in listed} - {Path("engine")}:
        # Folders of data may stand under the one above them.
        assert str(folder) in rows or str(folder.parent) in rows, folder
    assert all((ROOT / folder).is_dir() for folder in rows)
    for name, path in modules("engine").items():
        if path.name == "__init__.py" and name.count(".") and ".alias" not in name:
            head = ast.get_docstring(parsed(path)).splitlines()[0].rstrip(".").replace("``", "`")
            assert rows[path.parent.relative_to(ROOT).as_posix()] == head


def test_the_way_of_a_query_id_only_goes_down():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("## The way of a query id")[1].split("\n## ")[0]
    steps = re.findall(r"^( *)- `([\w.]+):(\w+)`", section, re.M)
    assert len(steps) > 15
    order = ["jobs", *ORDER]
    callers: list[tuple[int, str]] = []  # indentation and module, of what leads here
    for indent, module, function in steps:
        path = ROOT / f"{module.replace('.', '/')}.py"
        tree = parsed(path)
        defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert function in defined, f"{module}:{function}"
        callers = [caller for caller in callers if caller[0] < len(indent)]
        layer = order.index(folder_of(module) if module.startswith("engine.") else "jobs")
        if callers:
            caller = callers[-1][1]
            text = (ROOT / f"{caller.replace('.', '/')}.py").read_text(encoding="utf-8")
            # Annotators are called through their interface.
            assert re.search(rf"\b{function}\b", text) or ".labels." in module, (caller, function)
            above = order.index(folder_of(caller) if caller.startswith("engine.") else "jobs")
            assert above <= layer, f"{caller} calls {module}, which is above it"
        callers.append((len(indent), module))


def test_tests_mirror_the_tree():
    listed = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in listed:
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.name in (
            "cluster",
            "doors",
            "faults",
            "integrations",
        ):  # faults and doors do not keep to folders
            continue
        places = [ROOT / "engine" / folder, ROOT / folder, ROOT / "docs" / folder]
        assert any(place.is_dir() for place in places), path


def test_commands_write_to_the_terminal_through_one_module_alone():
    for name, path in modules("engine", "jobs").items():
        called = {
            node.func.id
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        # In a notebook and on a terminal, who calls from Python sees how far it is.
        allowed = {"jobs._terminal", "engine.python.evaluate"}
        assert name in allowed or not called & {"print", "Console"}, name


def test_whatever_is_loaded_says_whether_code_of_the_model_may_run():
    loaders = {"from_pretrained", "from_config"}
    plain = {"GenerationConfig"}  # reads numbers alone
    for name, path in modules(*CODE).items():
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in loaders and getattr(node.func.value, "id", "") not in plain:
                said = {keyword.arg for keyword in node.keywords}
                assert "trust_remote_code" in said, f"{name}:{node.lineno}"
