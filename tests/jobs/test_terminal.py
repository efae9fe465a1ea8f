"""What commands print: nothing that a terminal would obey, but for colours of the engine's own."""

import io

import pytest
from cyclopts import App
from rich.table import Table
from rich.text import Text

from engine.messages.errors import InputError
from jobs._command import run_app
from jobs._terminal import Terminal, say, shown, tell

# A title of the window, a colour, a line overwritten, C1's escape, a name that reads backwards.
EVIL = "a\x1b]0;owned\x07\x1b[31mb\rc\x9b2Jd\u202ee\x00\x7f\ud800"
TAME = "a\ufffd]0;owned\ufffd\ufffd[31mb\ufffdc\ufffd2Jd\ufffde\ufffd\ufffd\ufffd"


def test_control_characters_are_replaced_one_by_one():
    assert shown(EVIL) == TAME
    assert shown("tab\tand\nlines, 한국어 é \u200f stay") == "tab\tand\nlines, 한국어 é \u200f stay"


def test_lines_are_printed_without_them(capsys):
    say(EVIL)
    tell(EVIL)
    assert capsys.readouterr() == (f"{TAME}\n", f"{TAME}\n")


def test_a_table_shows_names_without_them_and_keeps_its_colours_and_columns():
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", width=200)
    table = Table(title=Text(EVIL), caption=EVIL)
    table.add_column(Text(EVIL, style="red"), no_wrap=True)
    table.add_column("n", no_wrap=True)
    table.add_row(Text(EVIL), EVIL)
    console.print(table)
    console.print_parts([EVIL])
    printed = out.getvalue()
    assert "\x1b[1;31m" in printed  # the header's colour
    for colour in ("\x1b[31m", "\x1b[1;31m", "\x1b[1m", "\x1b[3m", "\x1b[2;3m", "\x1b[0m"):
        printed = printed.replace(colour, "")
    assert shown(printed) == printed
    rows = [line for line in printed.splitlines() if "│" in line or "┃" in line]
    assert len({len(row) for row in rows}) == 1
    # rich itself drops some of them from a Text
    assert all("]0;owned" in row and "2Jd\ufffde" in row for row in rows)


def app_that(raises):
    app = App(name="erag")

    @app.default
    def command(*, k: int = 1) -> None:
        raise raises

    return app


@pytest.mark.parametrize(
    "problem", [f"run {EVIL}\nhas\x85no\u2028rank", "s3://key:secret@bucket/x"]
)
def test_an_error_is_one_line_without_control_characters_or_credentials(problem, capsys):
    for raised in (InputError(problem, "mend it", path=problem, line=3), KeyError):
        arguments = [] if raised is not KeyError else ["--k", problem]
        with pytest.raises(SystemExit) as stop:
            run_app(app_that(raised), arguments)
        assert stop.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert shown(line) == line
        assert "secret" not in line


def test_an_unknown_command_is_named_without_control_characters(capsys):
    app = App(name="erag")
    app.command(lambda: None, name="evaluate")
    with pytest.raises(SystemExit):
        run_app(app, [EVIL])
    (line,) = capsys.readouterr().err.splitlines()
    assert shown(line) == line
    assert "]0;owned" in line
