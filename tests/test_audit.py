"""``make audit``: what it says and how it ends, by what pip-audit gives."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "audit"
CLEAN = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not on PyPI"}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}


@pytest.fixture
def audit(tmp_path):
    """Runs the script with a pip-audit that does as given, already installed."""

    def run(code):
        program = tmp_path / "bin" / "pip-audit"
        program.parent.mkdir()
        (name,) = re.findall(r'PIP_AUDIT = "(.*)"', SCRIPT.read_text())
        (tmp_path / f".{name}").touch()
        program.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
        program.chmod(0o755)
        return subprocess.run(
            [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False
        )

    return run


def writing(*dependencies):
    report = json.dumps({"dependencies": dependencies, "fixes": []})
    return (
        "assert 'constraints.txt' in ' '.join(sys.argv)\n"
        f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({report!r})\n"
        "sys.exit(1)"
    )


def test_no_known_vulnerability_is_success(audit):
    done = audit(writing(CLEAN, CLEAN | {"name": "d"}))
    assert done.returncode == 0
    assert "2 dependencies audited, 0 known vulnerabilities" in done.stdout


def test_a_vulnerability_is_named_with_the_version_that_mends_it(audit):
    done = audit(writing(CLEAN, BAD))
    assert done.returncode == 1
    assert "c 2: PYSEC-1, fixed in 3" in done.stdout


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('cannot connect to pypi.org', file=sys.stderr); sys.exit(1)", "cannot connect"),
        ("sys.exit(1)", "no report"),
        (writing(), "the list (it is empty)"),
        (writing(SKIPPED), "b (not on PyPI)"),
        (writing(CLEAN, SKIPPED, SKIPPED | {"name": "e"}), "b and 1 more (not on PyPI)"),
        (writing().replace("'w').write(", "'w').write('<html>' + "), "not audited"),
    ],
)
def test_without_an_answer_nothing_is_called_audited(audit, code, reason):
    done = audit(code)
    assert done.returncode == 2
    assert done.stderr.startswith("not audited: ")
    assert reason in done.stderr
