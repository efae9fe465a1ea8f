"""The rules of the house: imports run one way, and heavy libraries wait until they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each part may import those after it (and itself).
ORDER = [
    "report",
    "conformance",
    "query_coverage",
    "evaluation",
    "statistics",
    "ranking",
    "labels",
    "retrieval",
    "reading",
    "scoring",
    "machine",
    "sources",
]
BASE = {"tables", "errors", "normalize", "wording", "__version__"}


def imported_parts(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = (
                [node.module]
                if node.module != "engine"
                else [f"engine.{a.name}" for a in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            yield top, rest.split(".")[0]


def test_imports_run_one_way():
    for path in sorted((ROOT / "engine").rglob("*.py")):
        relative = path.relative_to(ROOT / "engine").with_suffix("")
        own = relative.parts[0]
        for top, part in imported_parts(path):
            assert top not in {"jobs", "benchmarks", "tests"}, f"{relative} imports {top}"
            if top != "engine" or part in BASE or part == own:
                continue
            assert own not in BASE, f"{relative} is at the bottom and imports {part}"
            if own in ORDER:
                assert ORDER.index(part) > ORDER.index(own), f"{relative} imports {part}"


@pytest.mark.parametrize("library", ["ray", "torch", "transformers", "vllm", "jnius", "faiss"])
def test_heavy_libraries_are_imported_only_where_they_are_used(library):
    allowed = {
        "ray": {"machine/cluster.py", "reading/pipeline.py", "retrieval/distribute.py"},
        "torch": {"reading/models/attention.py", "machine/batching.py", "reading/models/causal.py",
            "reading/models/conversion.py", "machine/device.py", "reading/models/encoder_decoder.py",
            "reading/models/encodings.py", "reading/models/fid_t5.py", "reading/models/packed.py",
            "reading/models/padded.py", "reading/models/t5.py", "reading/models/t5_attention.py",
            "reading/models/vllm_reader.py", "reading/models/decoding.py", "retrieval/encoder.py"},
        "transformers": {"conformance/kilt.py", "reading/models/attention.py", "reading/models/causal.py",
            "reading/prompting/chat.py", "reading/models/conversion.py", "reading/models/encoder_decoder.py",
            "reading/models/fid_t5.py", "reading/models/padded.py", "reading/readers.py",
            "reading/models/vllm_reader.py", "retrieval/encoder.py"},
        "vllm": {"reading/models/vllm_reader.py"},
        "jnius": {"retrieval/java.py"},
        "faiss": {"retrieval/approximate.py", "query_coverage/clusters.py", "retrieval/flat.py"},
    }[library]  # fmt: skip
    users = {
        str(path.relative_to(ROOT / "engine"))
        for path in (ROOT / "engine").rglob("*.py")
        if any(top == library for top, _ in imported_parts(path))
    }
    assert users == allowed


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from jobs.cli import app; app(['evaluate', '--help'], result_action='return_value');"
        "print([m for m in ('torch', 'ray', 'transformers', 'pyserini', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]") or done.stdout.strip().endswith("['scipy.stats']")
    assert "--queries" in done.stdout


def test_modules_stay_short():
    long = {
        str(path): count
        for folder in ("engine", "jobs", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long
