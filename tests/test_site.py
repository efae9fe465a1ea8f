"""The documentation as a site."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="make docs installs it"),
]


def build(config, target):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", target],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )  # fmt: skip


def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path):
    done = build(ROOT / "docs/site/mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--end-to-end-k" in (tmp_path / "reference" / "commands.html").read_text()
    assert "engine.inputs.read.read_inputs" in (tmp_path / "reference" / "python.html").read_text()
    readme = (tmp_path / "readme.html").read_text()
    assert 'href="guide/page.html"' in readme
    assert 'src="pictures/page.png"' in readme
