"""The page while an evaluation runs."""

import pytest

from engine.evaluation.context import Context, Known
from engine.report.page import live
from engine.report.page.live import live_page
from tests.commands import evaluate


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test says so."""
    now = [0.0]
    monkeypatch.setattr("engine.report.page.live.time.monotonic", lambda: now[0])
    return now


def test_a_page_says_what_is_known_after_a_while_and_not_more_often(tmp_path, clock):
    heard = []
    given = Context(store=tmp_path, on_progress=lambda *told: heard.append(told))
    known = Known(("<a>", "b"), {"<a>": (0.25, 8)}, {"b": (0.5, 4)}, "em", "erag", 3, None)
    asked = []
    with live_page(tmp_path, {"metric": "em"}, given) as context:
        context.on_known(lambda: asked.append(clock[0]) or known)
        for second, done in ((0, 10), (29, 20), (30, 40), (31, 90), (59, 95)):
            clock[0] = float(second)
            context.on_progress(done, 100)
    # The second to last before 60: of 30 s after the first, and no other. 30 calls in 30 seconds, 60 left.
    page = (tmp_path / "report.html").read_text()
    for words in (
        "40% of the LLM calls are done",
        "40 of 100, 1.0 a second",
        "0:00:30 so far; left: about 0:01:00",
        '<meta http-equiv="refresh" content="30">',
        '&lt;a&gt;</th><td class="figure">0.250 (n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}8)</td>',
        "not of a random sample",
    ):
        assert words in page.replace("\n", "")
    assert len(asked) == 1
    assert heard == [(10, 100), (20, 100), (40, 100), (90, 100), (95, 100)]


def test_no_page_takes_the_place_of_earlier_results_or_stands_at_an_address(tmp_path, clock):
    (tmp_path / "summary.json").write_text("{}")
    for out in (tmp_path, "memory://bucket/out"):
        with live_page(out, {}, Context(store=tmp_path)) as context:
            context.on_progress(0, 10)
            clock[0] += 2 * live.SECONDS
            context.on_progress(5, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


READER = """
import time
from pathlib import Path

PAGE = Path({page!r})

def read(prompts):
    for _ in range(600 * {waits}):
        if PAGE.exists():
            break
        time.sleep(0.01)
    PAGE.with_name("seen.html").write_text(PAGE.read_text() if PAGE.exists() else "no page")
    return ["Oranjestad" for _ in prompts]
"""


@pytest.mark.pages
@pytest.mark.parametrize("fails", ["", "engine.report.page.live.write_plain", "engine.evaluation.known.SoFar.__call__"])  # fmt: skip
def test_the_command_shows_the_page_until_the_results_take_its_place(files, tmp_path, monkeypatch, fails):  # fmt: skip
    def fail(*_, **__):
        raise OSError("in a page")

    monkeypatch.setattr(live, "SECONDS", 0)
    if fails:
        monkeypatch.setattr(fails, fail)
    place = tmp_path / "slow.py"
    place.write_text(READER.format(page=str(files["out"] / "report.html"), waits=int(not fails)))
    options = ("--k", 2, "--resamples", 0, "--annotators", "erag", "--store", tmp_path / "store")
    assert evaluate(files, "--reader", f"{place}:read", *options) == 0
    seen = (files["out"] / "seen.html").read_text()
    assert seen == "no page" if fails else "0% of the LLM calls are done" in seen
    page = (files["out"] / "report.html").read_text()
    assert "http-equiv" not in page
    assert "dialog" in page
