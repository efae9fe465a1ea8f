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


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (writing(CLEAN, CLEAN | {"name": "d"}), 0, "2 dependencies audited, 0 known vulnerabilities"),
        (writing(CLEAN, BAD), 1, "c 2: PYSEC-1, fixed in 3"),
        # Without an answer nothing is called audited.
        ("print('cannot connect', file=sys.stderr); sys.exit(1)", 2, "not audited: cannot connect"),
        ("sys.exit(1)", 2, "no report"),
        (writing(), 2, "the list (it is empty)"),
        (writing(CLEAN, SKIPPED, SKIPPED | {"name": "e"}), 2, "b and 1 more (not on PyPI)"),
        (writing().replace("'w').write(", "'w').write('<html>' + "), 2, "not audited: "),
    ],
)  # fmt: skip
def test_what_the_audit_says_and_how_it_ends(audit, code, status, said):
    done = audit(code)
    assert done.returncode == status
    assert said in (done.stderr if status == 2 else done.stdout)
