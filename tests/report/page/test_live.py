"""The page while an evaluation runs."""

import pytest

from engine.report.page import live
from engine.report.page.live import live_page


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a test says so."""
    now = [0.0]
    monkeypatch.setattr("engine.report.page.live.time.monotonic", lambda: now[0])
    return now


def test_a_page_says_how_far_it_is_after_a_while_and_not_more_often(tmp_path, clock):
    heard = []
    with live_page(tmp_path, {"metric": "em"}, lambda *told: heard.append(told)) as tell:
        for second, done in ((0, 10), (29, 20), (30, 40), (31, 90), (59, 95)):
            clock[0] = float(second)
            tell(done, 100)
    # The second to last before 60: of 30 s after the first, and no other. 30 calls in 30 seconds, 60 left.
    page = (tmp_path / "report.html").read_text()
    assert "40% of the LLM calls are done" in page
    assert "40 of 100, 1.0 a second" in page
    assert "0:01:00" in page
    assert '<meta http-equiv="refresh" content="30">' in page
    assert heard == [(10, 100), (20, 100), (40, 100), (90, 100), (95, 100)]


def test_no_page_takes_the_place_of_earlier_results_or_stands_at_an_address(tmp_path, clock):
    (tmp_path / "summary.json").write_text("{}")
    for out in (tmp_path, "memory://bucket/out"):
        with live_page(out, {}, lambda *_: None) as tell:
            tell(0, 10)
            clock[0] += 2 * live.SECONDS
            tell(5, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_an_evaluation_goes_on_where_its_page_cannot_be_written(tmp_path, clock):
    (tmp_path / "out").write_text("no folder")
    with live_page(tmp_path / "out", {}, lambda *_: None) as tell:
        tell(0, 10)
        clock[0] += 2 * live.SECONDS
        tell(5, 10)
        tell(10, 10)
    assert (tmp_path / "out").read_text() == "no folder"
