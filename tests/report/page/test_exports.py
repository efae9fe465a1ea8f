"""What goes out of a page: no formulas, no pictures out of names, LaTeX that compiles, nothing raw in drawings."""

import csv
import re
import shutil
import subprocess
import warnings

import pytest

from engine.report.layout import Grid
from engine.report.page.plotting import Drawing, add_legend, label_of, name_rows, pictures
from engine.report.page.render import comma_separated, latex, markdown


def grid(*cells):
    return Grid("t", "caption", ["run", "value"], [[cell, "0.5"] for cell in cells], names=1)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("\tx", "'\tx"),
        ("-", "'-"),
        ("-0.25", "-0.25"),
        ("+0.25 [-0.10, +0.40]", "+0.25 [-0.10, +0.40]"),
        ("bm25", "bm25"),
        ("a=b", "a=b"),
    ],
)
def test_a_table_in_csv_holds_no_formula(cell, written):
    rows = list(csv.reader(comma_separated(grid(cell)).splitlines()))
    assert rows[1] == [written, "0.5"]


def test_a_table_in_markdown_holds_no_picture_and_no_link_of_a_name():
    content = markdown(grid("![x](http://host/p.png)", "[x](http://host)", "<img src=x>", "a | b"))
    assert "![" not in content
    assert "](" not in content
    assert "<img" not in content
    assert "| !\\[x]\\(http://host/p.png) |" in content


@pytest.fixture
def written():
    """A table of names that LaTeX could take for more than texts, as it is written."""
    names = ["[x]", "*", "5% & <c> | {d} ~ ^ \\ # $e_f$", "Café 한 🐪\x07", "τ\n\nρ", "a--b ''"]
    rows = [[name, "\N{MINUS SIGN}0.5 [0,\N{NO-BREAK SPACE}1]"] for name in names]
    return latex(Grid("t", "A note.", ["run", "ρ [95%]"], rows, title="τ of [a], less that of:"))


def test_a_table_in_latex_has_a_label_a_sentence_as_caption_and_cells_in_columns(written):
    assert written.isascii()
    assert r"\caption{$\tau$ of [a], less that of each row.}" in written
    assert r"\label{tab:t}" in written
    begun, ended = (re.findall(rf"\\{way}{{(\w+)}}", written) for way in ("begin", "end"))
    assert begun == ended[::-1] == ["table", "tabular"]
    marks = re.sub(r"\\[{}$]", "", written)
    assert (marks.count("{"), marks.count("$") % 2) == (marks.count("}"), 0)
    rows = [line for line in written.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [1] * 7
    assert not any(row.startswith(("[", "*")) for row in rows)
    assert r"Caf\'{e}" in written


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_a_table_in_latex_compiles(written, tmp_path):
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{written}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_names_in_pictures_are_cleaned_and_cut_and_warnings_stay_inside(capfd):
    names = ["run\x1b[2J\x07\nname", "x" * 500, "한국어 검색", "_hidden", "$a^$"]

    def draw(figure):
        axes = figure.subplots()
        name_rows(axes, names)
        for place, name in enumerate(names):
            axes.plot([place], [place], label=name)
        add_legend(figure, axes, len(names))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (picture,) = pictures([Drawing("n", "t", "c", 2.0, draw)], with_png=True)
    assert not caught
    assert capfd.readouterr() == ("", "")
    assert "\x1b" not in picture.svg
    assert "x" * 80 not in picture.svg
    assert "한국어 검색" in picture.svg
    assert label_of("a\tb\x00") == "a b\N{REPLACEMENT CHARACTER}"


def test_a_glyph_that_the_first_font_lacks_is_drawn_by_another(monkeypatch):
    # Matplotlib's own STIX fonts stand for a system's: DejaVu Sans has no glyph at U+E000.
    def drawn(families):
        monkeypatch.setattr("engine.report.page.plotting._FURTHER_FONTS", re.compile(families))
        sign = Drawing("n", "t", "c", 2.0, lambda figure: figure.text(0.5, 0.5, "\ue000"))
        (picture,) = pictures([sign], with_png=True)
        return picture.png

    assert drawn("^STIXNonUnicode$") != drawn("^no such family$")
