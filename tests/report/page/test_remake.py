"""The files of a page: what is written, what is replaced, what is refused."""

import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.inputs.read import read_inputs
from engine.python.result import Result
from engine.report.findings import read_findings
from engine.report.page.drawings import drawings
from engine.report.page.plotting import figure_of
from engine.report.page.remake import make_page, remake
from engine.report.page_files import page_files
from engine.report.printed import full_grids
from engine.report.study_report import study_grids
from engine.sources.io.folders import folder_at
from jobs._evaluating import write_results
from tests.commands import erag
from tests.conftest import ScriptedReader
from tests.expected import refused
from tests.report.made import as_earlier
from tests.report.page import results


@pytest.fixture
def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "out")
    return tmp_path / "out"


def configured(copied, change):
    """Results whose configuration is another."""
    summary = as_earlier(json.loads((copied / "summary.json").read_text()))
    summary["configuration"] = change(summary["configuration"])
    (copied / "summary.json").write_text(json.dumps(summary))


def test_every_file_beside_the_page_is_listed_and_is_what_it_says(folder):
    listed = json.loads((folder / "report" / "report.json").read_text())
    there = {p.relative_to(folder / "report").as_posix() for p in (folder / "report").rglob("*.*")}
    assert there == {*listed, "report.json"}
    assert {"queries-0001.js", "tables/runs.tex", "figures/differences.svg"} <= there
    for name in listed:
        content = (folder / "report" / name).read_bytes()
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        elif name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
    assert set(page_files(folder_at(folder))) == {
        "report.html",
        *(f"report/{name}" for name in there),
    }


def test_pictures_within_the_page_are_those_beside_it_in_fewer_letters(folder):
    def drawn(svg):
        """The texts of a picture, and where its marks are."""
        made = ElementTree.fromstring(svg)
        of = "{http://www.w3.org/2000/svg}"
        marks = [(float(one.get("x")), float(one.get("y"))) for one in made.iter(f"{of}use")]
        return tuple(one.text for one in made.iter(f"{of}text")), marks

    beside = [path.read_text() for path in (folder / "report" / "figures").glob("*.svg")]
    whole = {drawn(svg)[0]: svg for svg in beside}
    shown = re.findall(r"<svg.*?</svg>", (folder / "report.html").read_text(), re.DOTALL)
    assert len(shown) == len(whole) >= 5
    for svg in shown:
        texts, marks = drawn(svg)
        assert len(svg) < 0.75 * len(whole[texts])
        assert np.abs(np.subtract(marks, drawn(whole[texts])[1])).max() <= 0.01
        assert set(re.findall(r"#(\w+)[\")]", svg)) <= set(re.findall(r' id="(\w+)"', svg))
        assert svg.count("font-family") == 1


def test_the_page_needs_no_network_and_holds_no_markup_of_users(folder):
    page = (folder / "report.html").read_text()
    for sign in ("http://", "https://", "//cdn", "@import"):
        # Names of namespaces in SVG are addresses that nobody opens.
        assert sign not in page.replace("http://www.w3.org/", "").replace(
            "http://purl.org/", ""
        ).replace("http://creativecommons.org/", ""), sign
    assert "poor <&>" not in page
    assert "poor &lt;&amp;&gt;" in page


def test_links_lead_to_the_sections_of_the_page_in_their_order(folder):
    page = (folder / "report.html").read_text()
    links = re.findall(r'^<a href="#(\w+)">', page, re.M)
    sections = re.findall(r'^<section id="(\w+)" aria-labelledby="([\w-]+)">', page, re.M)
    assert links == [name for name, _ in sections if name != "outputs"]
    assert {"answer", "runs", "trust", "groups", "queries", "cost", "about"} <= {*links}
    assert all(page.count(f' id="{head}"') == 1 for _, head in sections)


def test_a_page_is_the_same_when_it_is_made_again(copied):
    before = {path.name: path.read_bytes() for path in copied.rglob("report*.html")}
    beside = (copied / "report" / "queries-0001.js").read_bytes()
    remake(copied, single_file=False, passages=True)
    assert (copied / "report.html").read_bytes() == before["report.html"]
    assert (copied / "report" / "queries-0001.js").read_bytes() == beside


def test_one_file_holds_everything_and_takes_the_others_away(copied):
    mine = copied / "report" / "mine.txt"
    mine.write_text("stays")
    hint = "<code>erag report FOLDER --single-file</code>"  # to who would send the page
    assert hint in (copied / "report.html").read_text()
    written = remake(copied, single_file=True, passages=True)
    assert written.beside == ()
    assert written.size == (copied / "report.html").stat().st_size
    assert [path.name for path in (copied / "report").rglob("*.*")] == ["mine.txt"]
    page = (copied / "report.html").read_text()
    assert "details(1, {" in page
    assert hint not in page


def test_labels_of_an_annotator_that_is_gone_are_shown_compared_and_exported(
    copied, folder, capsys
):
    """As the folder of an evaluation that an earlier version wrote, whose reads were in a role that is gone, too."""
    for path in copied.glob("*.parquet"):
        table = pl.read_parquet(path)
        columns = [
            pl.col(name).replace("containment", "grogu")
            for name in table.columns
            if name.startswith("annotator")
        ]
        table.with_columns(columns).write_parquet(path)
    content = json.loads((copied / "summary.json").read_text().replace("containment", "grogu"))
    content["grounded"] = content["reader"] | {"reading": content["reading"]}
    (copied / "summary.json").write_text(json.dumps(as_earlier(content)))
    with refused("annotator.gone"):
        Settings.of(annotators=("grogu",))
    assert erag("report", copied) == 0
    assert "grogu" in (copied / "report.html").read_text()
    costs = (copied / "report" / "tables" / "costs.csv").read_text()
    assert "grounded" in costs
    assert erag("compare", folder, copied) == 0
    gate = ("gate", "--baseline", folder, "--candidate", copied, "--margin", 0.2)
    assert erag(*gate, "--allow", "reader") == 0
    assert "not worse" in capsys.readouterr().out
    before, now = Result.load(folder), Result.load(copied)
    assert now.qrels("grogu") == before.qrels("containment")
    assert now.verdict == before.verdict.replace("containment", "grogu")
    assert "grogu" in now.report(copied / "page.md").read_text()


def test_other_inputs_than_those_evaluated_are_refused(copied, folder, tmp_path):
    other = tmp_path / "q.jsonl"
    text = (folder.parent / "q.jsonl").read_text()
    other.write_text(text.replace("question 7", "question seven"))
    configured(copied, lambda known: known | {"queries": str(other)})
    page = (copied / "report.html").read_bytes()
    with refused("results.inputs"):
        remake(copied, single_file=False, passages=True)
    assert (copied / "report.html").read_bytes() == page
    remake(copied, single_file=False, passages=False)
    assert not (copied / "report" / "queries-0001.js").exists()


def test_runs_that_an_earlier_version_edited_are_shown_without_passages(copied):
    # In no file that can be read again is the second run as it was evaluated.
    configured(copied, lambda known: known | {"edits": "e.jsonl", "runs": known["runs"][:1]})
    remake(copied, single_file=False, passages=True)
    assert not (copied / "report" / "queries-0001.js").exists()


def test_the_command_says_what_it_wrote(copied, capsys):
    assert erag("report", copied, "--single-file") == 0
    assert f"{copied}/report.html (0." in capsys.readouterr().out
    assert erag("report", copied / "report") == 2
    assert "summary.json" in capsys.readouterr().err


def test_tables_from_python_have_no_files_to_read_again(copied):
    files = ("queries", "corpus", "runs")
    configured(copied, lambda known: {key: known[key] for key in known if key not in files})
    with refused("results.files"):
        remake(copied, single_file=False, passages=True)


def test_a_study_has_a_page_for_each_condition(tmp_path):
    named = {
        "queries": str(tmp_path / "q.jsonl"),
        "corpus": str(tmp_path / "c.parquet"),
        "runs": [str(tmp_path / "de.parquet"), str(tmp_path / "ed.parquet")],
    }
    out = swept(tmp_path, results.say_last, named)
    remake(out, single_file=False, passages=True)
    assert 'href="conditions/k1/report.html"' in (out / "report.html").read_text()
    assert (out / "conditions" / "k1" / "report.html").exists()
    (cutoffs,) = (one for one in drawings(read_findings(out, None)) if one.name == "cutoffs")
    ticks = figure_of(cutoffs).axes[0].get_xticks()
    assert [tick for tick in ticks if tick % 1] == []
    assert (out / "report" / "figures" / "cutoffs.svg").exists()
    page, tables = (out / "report.html").read_text(), out / "report" / "tables"
    result = Result.load(out)
    text = result.report(tmp_path / "report.md").read_text()
    for one in [*study_grids(result.findings), *full_grids(result.findings)]:
        assert f">{one.title}<".replace("'", "&#39;") in page, one.name
        assert f"**{one.title}**" in text, one.name
        assert {path.suffix for path in tables.glob(f"{one.name}.*")} == {".md", ".tex", ".csv"}
    shutil.rmtree(out / "conditions")
    assert "not all of its conditions" in Result.load(out).report(tmp_path / "r.md").read_text()


def swept(tmp_path, say, named=()):
    """The folder of a study, written as the command writes it."""
    out = tmp_path / "out"
    write_results(*studied(tmp_path, say, named, out))
    return out


def studied(tmp_path, say, named, out):
    """A study, as it is written."""
    inputs = read_inputs(results.write_inputs(tmp_path), k=2)
    settings = Settings.of(k=2, measures="P@1", resamples=0, annotators=("erag",))
    conditions = vary(settings, Sweep(k_sweep=(1, 2)))
    done = study(inputs, conditions, store=tmp_path / "store", executor=ScriptedReader(say))
    return done.evaluations[done.main], dict(named), out, done


@pytest.mark.pages
def test_pages_of_results_at_an_address_are_those_of_a_folder(tmp_path):
    out, there = tmp_path / "out", f"memory://{tmp_path.name}/out"
    found = write_results(*studied(tmp_path, results.say_last, (), out))
    make_page(found, there)  # of what is in memory: tables at an address are not read again
    for place in (".", "conditions/k1"):
        folder = folder_at(out / place)
        at_address = folder_at(there if place == "." else f"{there}/{place}")
        names = set(page_files(folder))
        assert {"report.html", "report/queries-0001.js"} <= names == set(page_files(at_address))
        for name in names:
            assert at_address.read(name) == folder.read(name), name


@pytest.mark.pages
def test_a_study_in_which_nothing_is_answered_has_a_page_without_that_picture(tmp_path):
    out = swept(tmp_path, lambda prompt: "no idea")
    assert (out / "report.html").exists()
    assert not (out / "report" / "figures" / "cutoffs.svg").exists()


@pytest.mark.pages
@pytest.mark.parametrize("stop", [ZeroDivisionError("in a picture"), KeyboardInterrupt()])
def test_a_page_that_fails_costs_nothing_else_and_leaves_no_earlier_one(
    stop, tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise stop

    out = swept(tmp_path, lambda prompt: "no idea")
    pages = [place / "report.html" for place in (out, out / "conditions" / "k1")]
    before = [page.read_bytes() for page in pages]
    monkeypatch.setattr("engine.report.page.plotting.pictures", fail)
    with pytest.raises(type(stop)):
        swept(tmp_path, results.say_last)
    tables = {"summary.json", "labels.parquet", "query_scores.parquet"}
    for page in pages:
        assert tables <= {path.name for path in page.parent.iterdir()}
        assert not page.exists()
        assert not (page.parent / "report").exists()
    assert Result.load(out).scores["value"].sum() > 0  # the new ones
    monkeypatch.undo()
    remake(out, single_file=False, passages=False)
    assert all(page.read_bytes() != old for page, old in zip(pages, before, strict=True))
