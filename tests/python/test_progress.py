import sys
import types

from engine.python.evaluate import progress


def test_nothing_is_shown_in_a_log(capfd):
    with progress(shown=True) as on_progress:
        on_progress(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress(shown=True) as on_progress:
        on_progress(0, 7)
        on_progress(3, 7)
    assert "3/7" in capsys.readouterr().err
    with progress(shown=False) as on_progress:
        on_progress(3, 7)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_one_line_that_changes(monkeypatch):
    shown, handles = [], []

    class Handle:
        def update(self, thing):
            handles.append(thing._repr_html_())

    def display(thing, *, display_id):
        shown.append(repr(thing))
        return Handle()

    class ZMQInteractiveShell:
        pass

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    inside = types.ModuleType("IPython.display")
    inside.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    with progress(shown=True) as on_progress:
        for done in range(3):
            on_progress(done, 2)
    assert shown == ["reading: 0/2 LLM calls"]
    assert handles == [
        f'<progress value="{done}" max="2"></progress> reading: {done}/2 LLM calls'
        for done in (1, 2)
    ]
