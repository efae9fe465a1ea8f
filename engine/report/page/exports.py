"""A page's tables as files for papers and other programs: Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import re

from engine.report.layout import Grid

# What spreadsheets calculate, but for numbers, with an interval or a percent sign.
_FORMULA = re.compile(r"[=@\t\r]|[-+](?!\d[\d.,]*%?( \[[-+\d.,% ]*\])?$)")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\N{MINUS SIGN}": "$-$",
        "\N{NO-BREAK SPACE}": "~",
        "\N{EM DASH}": "---",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": "``",
        "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    }
)


def markdown(grid: Grid) -> str:
    """The table in GitHub's Markdown, its caption below it."""
    head = [escaped(name) for name in grid.head]
    rule = ["---" if place < grid.names else "---:" for place in range(len(head))]
    rows = [[escaped(cell) for cell in row] for row in grid.rows]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]
    return "\n".join([*lines, "", escaped(grid.caption), ""])


def latex(grid: Grid) -> str:
    """The table in LaTeX, with the rules of the package booktabs."""
    columns = "l" * grid.names + "r" * (len(grid.head) - grid.names)
    rows = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in grid.rows]
    head = " & ".join(name.translate(_LATEX) for name in grid.head) + r" \\"
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{grid.caption.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def comma_separated(grid: Grid) -> str:
    """The table in CSV (RFC 4180), without its caption; a spreadsheet takes no text of it for a formula."""
    content = io.StringIO()
    writer = csv.writer(content)
    for row in [grid.head, *grid.rows]:
        writer.writerow(["'" + cell if _FORMULA.match(cell) else cell for cell in row])
    return content.getvalue()


def escaped(text: str) -> str:
    """A text as Markdown shows it, in one line: without HTML, pictures and links, which names of runs may hold."""
    for mark, shown in (
        ("\\", "\\\\"),
        ("|", "\\|"),
        ("<", "&lt;"),
        ("](", "]\\("),
        ("![", "!\\["),
    ):
        text = text.replace(mark, shown)
    return " ".join(text.split())
