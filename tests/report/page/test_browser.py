"""The page in a real browser, opened from disk."""

import shutil
from urllib.parse import quote

import polars as pl
import pytest

from engine import compare
from engine.reading.plan import read_key
from engine.reading.prompting.prompts import Prompt
from engine.report.findings import read_findings
from engine.report.page.remake import remake
from engine.report.page.render import write_single
from jobs.compare import page_of
from tests.expected import as_expected
from tests.report.made import ANSWERED, values, write_evaluation
from tests.report.page.results import EMOJI, RIGHT_TO_LEFT, SCRIPT


@pytest.fixture
def page(browser, folder):
    """The page, with what its console said and what it asked for."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((folder / "report.html").as_uri())
        yield page
        assert page.said == []
        assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


def rows(page):
    return page.locator("#table tbody th button").all_text_contents()


def test_search_sort_and_filters_choose_queries(page):
    assert len(rows(page)) == 40
    page.fill("#search", "QUESTION 1 q1")
    assert page.locator("#count").inner_text() == "10 of 40 queries"
    page.fill("#search", "")
    page.locator("#table thead button").first.click()
    assert page.locator("#table thead th").first.get_attribute("aria-sort") == "ascending"
    assert rows(page)[:2] == ["question 0 <b>", "question 1 <b>"]
    button = page.locator("#filters button", has_text="useful, answer absent")
    count = int(button.inner_text().rpartition("(")[2].rstrip(")"))
    button.click()
    assert len(rows(page)) == count == 5
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert len(rows(page)) == 40


def test_a_query_opens_with_what_each_run_lists(page):
    page.fill("#search", "q04")
    page.locator("#table tbody button").click()
    dialog = page.locator("#dialog")
    dialog.locator(".passage").first.wait_for()
    assert dialog.locator("h2").inner_text() == "question 4 <b>"
    assert dialog.locator(".list > h3").all_text_contents() == ["good", "poor <&>"]
    assert dialog.locator("mark", has_text="Ann").count() > 0
    assert "Passages: 2 in both, 0 only in good, 0 only in poor <&>." in dialog.inner_text()
    assert page.evaluate("location.hash") == "#query=q04"
    # Of a passage of many lines, the first two.
    start, text = (
        dialog.locator(f".passage {of}").first for of in ("details .start", "details .text")
    )
    lines = start.evaluate("s => s.clientHeight / parseFloat(getComputedStyle(s).lineHeight)")
    assert round(lines) == 2
    assert not text.is_visible()
    start.click()
    assert text.is_visible()
    assert not start.is_visible()


def test_a_call_shows_its_tokens_and_the_very_prompt_that_was_sent(page, folder):
    findings = read_findings(folder, None)
    prompt = Prompt.of(findings.summary["reader"]["prompt_parts"])
    (passage,) = pl.read_parquet(folder.parent / "c.parquet").filter(doc_id="d0").rows()
    page.goto(page.url.partition("#")[0] + "#query=q00")
    page.reload()
    found = page.locator("#dialog .passage", has_text="A<i>0").first
    assert "output 1 token · finish: stop (before the limit of 16 tokens)" in found.inner_text()
    assert "· seconds not known" in found.inner_text()  # the program that reads here names none
    shown = page.evaluate(
        """() => {
          data.seconds = {single: 0.25, whole: 123.4};
          return [took(0.4124, 0, "single"), took(undefined, 0, "single"), took(undefined, 0, "whole"), took(undefined, 1, "single")];
        }"""
    )
    as_expected(shown)
    found.locator("summary", has_text="Prompt as sent").click()
    shown = found.locator("pre").text_content()
    assert shown == "".join(prompt.render("question 0 <b>", [passage[1:3]]))
    key = read_key(
        findings.summary["reader"]["fingerprint"], prompt.render("question 0 <b>", [passage[1:3]])
    )
    assert key in findings.table("reads")["read_key"]


def test_filters_and_groups_leave_queries_and_csv_has_them_whole(page, tmp_path):
    assert page.locator("#filters button").first.inner_text().startswith("runs differ (")
    first = page.locator("#table tbody tr").first
    assert first.locator(".answered").all_text_contents() == ["✓right: Ann", "✗wrong: nothing"]
    apart = page.evaluate("disagreement([, , [1, 0], [0.5, 1]])")
    assert apart == [1, 1]  # and in which run
    page.get_by_label("answer with good", exact=True).select_option("wrong")
    page.get_by_label("type").select_option("even")
    page.get_by_label("length").select_option("10 to 19")
    # By hand: even, a multiple of 3, and from 10 to 19.
    assert sorted(rows(page)) == ["question 12 <b>", "question 18 <b>"]
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(tmp_path / "q.csv")
    found = pl.read_csv(tmp_path / "q.csv", infer_schema=False)
    assert found.columns[:6] == [
        "query_id",
        "query",
        "answers",
        "good: em",
        "good: output",
        "good: erag P@1",
    ]
    assert sorted(found["query_id"]) == ["q12", "q18"]
    assert set(found["good: output"]) == {"Bo"}
    assert set(found["answers"]) == {"Ann · Anne-Marie"}
    assert set(found["type"]) == {"even"}


def test_what_turned_a_right_answer_wrong_is_said_where_it_is_known(page):
    spoiled = page.evaluate("""() => {
      data.given = 2; data.own_labels = true; data.by_reader = "erag";
      const passages = {a: ["", "", {erag: [1]}], b: ["", "", {erag: [0]}], c: ["", "", {erag: [0]}]};
      const wrong = (list) => ({score: 0, list});
      const of = (runs) => [...spoilers(runs[0], {passages, runs}).keys()];
      return [
        of([wrong(["a", "b"])]),                            // a alone is answered: b turned it
        of([wrong(["b", "c"])]),                            // neither alone is: nothing is known
        of([{score: 1, list: ["a", "b"]}]),                 // the list is answered
        of([wrong(["b", "a"]), {score: 1, list: []}]),      // empty, too: b also alone
      ];
    }""")
    assert spoiled == [["b"], [], [], ["b"]]


def test_what_three_runs_share_is_said_of_all_of_them(page):
    said = page.evaluate("""() => {
      data.runs = ["x", "y", "z"]; data.annotators = ["erag"];
      const lists = [["a", "b", "c"], ["a", "b", "d", "e"], ["f", "a"]];
      const passages = Object.fromEntries([..."abcdef"].map((doc) => [doc, ["", "", doc === "f" ? {} : {erag: [doc === "d" ? 1 : 0]}]]));
      return changed({passages, runs: lists.map((list) => ({list}))}).textContent;
    }""")
    as_expected(said)


def test_texts_of_users_are_shown_and_never_run(page):
    for place, text in enumerate((SCRIPT, RIGHT_TO_LEFT, EMOJI)):
        page.goto(page.url.partition("#")[0] + "#query=" + quote(f"q{place:02}"))
        page.reload()
        page.locator("#dialog .passage").first.wait_for()
        assert text in page.locator("#dialog").inner_text()
    assert page.title() == "good, poor <&>: erag-engine"
    assert page.locator("#dialog img").count() == 0


def test_the_keyboard_is_enough(page):
    page.locator("#table tbody button").first.focus()
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.textContent")
    assert second == rows(page)[1]
    page.keyboard.press("Enter")
    page.locator("#dialog .passage").first.wait_for()
    assert page.locator("#dialog-title").inner_text() == second
    page.keyboard.press("ArrowRight")
    assert page.locator("#dialog-title").inner_text() == rows(page)[2]
    page.keyboard.press("Escape")
    assert not page.locator("#dialog").is_visible()
    # Back where one was.
    assert page.evaluate("document.activeElement.textContent") == second


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.emulate_media(color_scheme=scheme)
    page.locator("#table tbody button").first.click()
    page.locator("#dialog .passage").first.wait_for()
    for opened in (True, False):
        if not opened:
            page.keyboard.press("Escape")
        found = axe.run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []


@pytest.mark.parametrize(("width", "media"), [(360, "screen"), (1280, "screen"), (640, "print")])
def test_nothing_is_wider_than_the_window(page, width, media):
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(media=media)
    scrolls = "[...document.querySelectorAll('.scroll')].map(s => [s.scrollWidth > s.clientWidth + 1, !!s.previousElementSibling?.matches('.hint:not([hidden])')])"
    page.wait_for_function(f"innerWidth <= {width}")
    page.locator(".researchers summary").first.click()
    if media == "screen":  # a table that is wider than its place says so, and no other does
        page.evaluate("hint()")
        found = page.evaluate(scrolls)
        assert all(wider == said for wider, said in found)
        assert any(wider for wider, _ in found) == (width == 360)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    empty = "[...document.querySelectorAll('.picture svg')].filter(s => s.getBoundingClientRect().height < 50).length"
    assert page.evaluate(empty) == 0


def test_a_page_of_one_file_works_alone(page, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    remake(tmp_path / "out", single_file=True, passages=True)
    alone = tmp_path / "alone.html"
    shutil.copy(tmp_path / "out" / "report.html", alone)
    page.goto(alone.as_uri())
    page.locator("#table tbody button").first.click()
    page.locator("#dialog .passage").first.wait_for()


def test_a_missing_folder_beside_the_page_is_told(browser, folder, tmp_path):
    shutil.copy(folder / "report.html", tmp_path / "report.html")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        page.locator("#table tbody button").first.click()
        page.get_by_text("report/queries-0001.js is missing beside this page").wait_for()


def test_other_pages_are_as_good(browser, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    out = tmp_path / "out"
    texts = {f"q{i}": f"question {i} {SCRIPT}" for i in range(ANSWERED)}
    for name, right in (("monday <b>", 60), ("tuesday", 70)):
        folder = write_evaluation(out / name, {"bm25": values(right)}, texts=texts)
        (folder / "report.html").touch()
    write_single(page_of(compare(out), out / "report.html"), out / "report.html")
    with browser.new_context(viewport={"width": 360, "height": 900}) as context:
        page = context.new_page()
        said, asked_for = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked_for.append(request.url))
        page.goto((tmp_path / "out" / "report.html").as_uri())
        assert SCRIPT in page.locator("#flipped").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = axe.run(page).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []
        assert said == []
        assert all(url.startswith(("file:", "data:")) for url in asked_for)
        for place in page.locator(".scroll:visible").all():  # says that it scrolls where it does
            said = place.evaluate(
                "s => [s.scrollWidth > s.clientWidth + 1, !!s.previousElementSibling?.matches('.hint:not([hidden])')]"
            )
            assert said[0] == said[1]
        # The name of an evaluation leads to its page.
        assert "send or move them together" in page.locator("#about").inner_text()
        page.get_by_role("link", name="monday <b>").click()
        page.wait_for_url("**/out/monday%20%3Cb%3E/report.html")
