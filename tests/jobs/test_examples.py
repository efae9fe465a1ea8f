"""Examples in help, and completion in a shell: both name what there is."""

import re
import shlex
import shutil
import subprocess

import pytest

from engine.labels.registry import ANNOTATORS
from jobs import cli
from jobs._command import _EXAMPLES, HABITS
from tests.commands import erag, options_in
from tests.expected import as_expected


def commands(app, before=()):
    """The names of every command, and of those that commands are made of."""
    for name in app:
        if not name.startswith("-"):
            yield " ".join([*before, name])
            yield from commands(app[name], (*before, name))


def lines(text):
    """Commands as a shell has them: without continuations, in words, variables apart."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        first = next(place for place, word in enumerate(words) if word == "erag")
        yield dict(word.split("=", 1) for word in words[:first]), words[first + 1 :]


def test_every_command_has_examples_and_no_other():
    assert set(commands(cli.app)) == _EXAMPLES.keys()


def options_of(name):
    """The options of a command, as its help may name them."""
    app = cli.app
    for word in name.split():
        app = app[word]
    arguments = app.assemble_argument_collection() if app.default_command else ()
    names = {option for one in arguments for option in (*one.names, *one.negatives)}
    return {option for option in names if option.startswith("--")}


@pytest.mark.parametrize("name", sorted(_EXAMPLES))
def test_the_help_of_a_command_names_options_that_exist_and_ends_with_its_examples_which_can_be_parsed(
    name, capsys, monkeypatch
):
    known = {"--help", "--help-all"}.union(*map(options_of, _EXAMPLES))
    monkeypatch.setenv("COLUMNS", "400")  # so that no name is broken
    assert erag(*name.split(), "--help-all") == 0
    named, shown = capsys.readouterr().out.split("Examples:")
    assert "docs/" not in named  # pip brings no pages
    assert options_of(name) <= options_in(named) <= known
    assert [line.strip() for line in shown.splitlines() if line.strip()] == [
        line.strip() for line in _EXAMPLES[name].strip().splitlines()
    ]
    for variables, words in lines(_EXAMPLES[name].strip()):
        assert words[: len(name.split())] == name.split() or name == "index"
        for variable, value in variables.items():
            assert variable.startswith("ERAG_")
            monkeypatch.setenv(variable, value)
        # What a file holds is not known here, so neither is what the example lacks without it.
        if "--config" not in words:
            command, _, _ = cli.app.parse_args(words, exit_on_error=False, print_error=False)
            assert command.__name__ == words[1 if words[0] == "index" else 0]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_is_installed_for_the_shell_and_names_commands_and_options(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert erag("--install-completion", "--shell", "bash") == 0
    assert "Completion script installed" in capsys.readouterr().out
    script = tmp_path / ".local/share/bash-completion/completions/erag"
    assert str(script) in (tmp_path / ".bashrc").read_text()

    def completed(*words):
        code = (
            f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
            "eval $(complete -p erag | sed -E 's/.*-F ([^ ]+).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", code], capture_output=True, text=True, check=True
        )
        return {word.strip() for word in done.stdout.splitlines()}

    assert completed("erag", "ev") == {"evaluate"}
    assert {"--annotators", "--actors"} <= completed("erag", "evaluate", "--a")


def test_a_shell_that_is_not_known_is_refused_in_one_line(capsys):
    assert erag("--install-completion", "--shell", "tcsh") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search('tcsh.*"bash"', line)


def test_the_help_of_an_evaluation_shows_its_main_options_and_all_where_they_are_asked_for(capsys):
    shown = {}
    for flag in ("--help", "--help-all"):
        assert erag("evaluate", flag) == 0
        head = capsys.readouterr().out.split("--help-all")[0]
        shown[flag] = set(re.findall(r"^\u2502 [* ]*--([a-z][\w-]*)", head, re.M))
    main = "queries corpus run reader base-url metric k measures annotators store out overwrite json config"
    main += " end-to-end end-to-end-k concurrency failed-reads price-in price-out price-per-hour"
    assert shown["--help"] == set(main.split())
    assert shown["--help"] < shown["--help-all"]
    assert {"resamples", "reread", "verbose"} <= shown["--help-all"]


def test_the_help_says_what_each_annotator_labels_and_keeps_prices_together(capsys):
    for flag in ("--help", "--help-all"):
        assert erag("evaluate", flag) == 0
        printed = capsys.readouterr().out
        text = " ".join(printed.replace("│", " ").split())
        for annotator in ANNOTATORS.values():
            assert annotator.meaning
            assert f" {annotator.name}: {annotator.meaning}" in text
        named = re.findall(r"^│ [* ]*--([a-z][\w-]*)", printed, re.M)
        first = named.index("price-in")
        assert named[first : first + 3] == ["price-in", "price-out", "price-per-hour"]


def test_options_of_other_programs_are_answered_with_those_of_this_one(capsys):
    known = set().union(*map(options_of, _EXAMPLES))
    assert not known & HABITS.keys()
    assert set(HABITS.values()) <= known
    assert erag("evaluate", "--model", "gpt-4o", "--queries", "q") == 2
    assert capsys.readouterr().err == "erag: Unknown option: --model; use --reader\n"
    assert erag("evaluate", "--mesures=P@1", "--queries", "q", "--run", "r", "--out", "o") == 2
    as_expected(capsys.readouterr().err)


def test_a_missing_option_is_told_from_one_without_its_value(capsys):
    assert erag("evaluate", "--queries", "q", "--run", "r") == 2
    as_expected(capsys.readouterr().err)
    assert erag("evaluate", "--queries", "q", "--run", "r", "--out") == 2
    assert "--out requires an argument" in capsys.readouterr().err
