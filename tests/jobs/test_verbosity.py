"""How much commands say, and where their options come from: files, the environment, the command line."""

import json

import pytest

from jobs import _terminal, demo
from jobs._command import with_verbosity
from tests.commands import CONTAINMENT, erag, evaluate
from tests.expected import as_expected


@pytest.fixture
def printed(files, capsys):
    """A function that evaluates the files by labels alone: status, standard output and error."""

    def call(*options):
        status = evaluate(files, *CONTAINMENT, *options)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_quiet_says_nothing_and_is_over_with_the_command(printed, files):
    assert printed("--quiet") == (0, "", "")
    assert (files["out"] / "summary.json").exists()
    status, out, _ = printed()
    assert status == 0
    assert "results ->" in out
    assert printed("-q") == (0, "", "")


def test_quiet_leaves_errors_and_warnings(printed, capsys, files, tmp_path):
    status, out, err = printed("--quiet", "--k", 0)
    assert (status, out) == (2, "")
    assert err.startswith("erag: --k is 0")
    assert erag("report", tmp_path / "nothing", "--quiet") == 2
    assert capsys.readouterr().err
    status, out, err = printed("--quiet", "--trust-remote-code")
    assert (status, out) == (0, "")
    as_expected(err)


def test_json_is_the_summary_and_nothing_else(printed, files):
    status, out, err = printed("--json", "--k-sweep", "1,2")
    assert status == 0
    assert len(json.loads(out)["study"]["conditions"]) == 2
    assert json.loads(out) == json.loads((files["out"] / "summary.json").read_text())
    _, quiet, err = printed("--json", "--quiet", "--k-sweep", "1,2")
    assert json.loads(quiet)["counts"] == json.loads(out)["counts"]
    assert err == ""


def test_names_in_json_reach_the_terminal_in_ascii_alone(printed, files):
    files["run"].write_text(files["run"].read_text().replace("mine", "\u202emine\x9b"))
    status, out, _ = printed("--json")
    assert status == 0
    assert out.isascii()
    assert "\u202emine\x9b" in json.dumps(json.loads(out), ensure_ascii=False)


def test_a_command_that_another_calls_says_no_more_than_that_one(capsys):
    @with_verbosity
    def inner():
        _terminal.say("from within")

    @with_verbosity
    def outer():
        inner()

    for options, expected in (({"quiet": True}, ""), ({}, "from within\n")):
        outer(**options)
        assert capsys.readouterr().out == expected
    inner(quiet=True)
    assert capsys.readouterr().out == ""


def test_quiet_and_verbose_exclude_each_other(printed):
    status, _, err = printed("--quiet", "--verbose")
    assert status == 2
    as_expected(err)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    printed, tmp_path, monkeypatch
):
    (tmp_path / "o.yaml").write_text("k: 5\nresamples: 100\nmeasures: 'P@1'\n")
    monkeypatch.setenv("ERAG_K", "4")
    monkeypatch.setenv("ERAG_RESAMPLES", "200")
    status, out, _ = printed("--config", tmp_path / "o.yaml", "--k", 3, "--json")
    assert status == 0
    asked = json.loads(out)["configuration"]
    assert (asked["k"], asked["resamples"], asked["measures"]) == (3, 200, ["P@1"])
    monkeypatch.setenv("ERAG_CONFIG", str(tmp_path / "o.yaml"))
    _, out, _ = printed("--json", "--overwrite")
    asked = json.loads(out)["configuration"]
    assert (asked["k"], asked["resamples"], asked["measures"]) == (4, 200, ["P@1"])
    # A switch that the command line turns off, against one that the environment turns on.
    monkeypatch.setenv("ERAG_END_TO_END", "on")
    _, out, _ = printed("--json")
    assert json.loads(out)["end_to_end"] == []


def test_variables_take_lists_switches_and_numbers_as_the_command_line_does(
    tmp_path, monkeypatch, capsys
):
    for name in ("one run", "two"):
        (tmp_path / name).write_text(f"1 Q0 d{len(name)} 1 2 {name[:3]}\n1 Q0 e 2 1 {name[:3]}\n")
    monkeypatch.setenv("ERAG_RUN", f"'{tmp_path}/one run' {tmp_path}/two")
    monkeypatch.setenv("ERAG_OUT", str(tmp_path / "out.trec"))
    monkeypatch.setenv("ERAG_QUIET", "yes")
    assert erag("fuse", "--k", 2) == 0
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "out.trec").read_text().splitlines()) == 2
    monkeypatch.setenv("ERAG_QUIET", "no")
    assert erag("fuse") == 0
    assert capsys.readouterr().out.startswith("3 results")
    monkeypatch.setenv("ERAG_K", "2.5")
    assert erag("fuse") == 2
    as_expected(capsys.readouterr().err)
    monkeypatch.setenv("ERAG_RUN", "'one")
    assert erag("fuse", "--k", 1) == 2
    as_expected(capsys.readouterr().err)


def test_a_variable_that_is_no_option_of_the_command_changes_nothing(printed, monkeypatch):
    for name in ("ERAG_TASKS", "ERAG_K_OTHER", "ERAG_RUN_X", "ERAG_", "ERAG_CLUSTERS"):
        monkeypatch.setenv(name, "{'no': 1}")
    monkeypatch.setenv("ERAG_K", "")  # as good as not set
    assert printed()[0] == 0


def test_verbose_names_where_options_come_from_and_no_value(printed, tmp_path, monkeypatch):
    (tmp_path / "o.yaml").write_text("k: 5\n")
    monkeypatch.setenv("ERAG_STORE", str(tmp_path / "a-secret-place"))
    status, _, err = printed("--config", tmp_path / "o.yaml", "--verbose")
    assert status == 0
    assert f"erag: --k comes from {tmp_path}/o.yaml\n" in err
    assert "erag: --store comes from ERAG_STORE\n" in err
    assert "secret" not in err
    assert "--annotators" not in err
    assert "comes from" not in printed("--config", tmp_path / "o.yaml")[2]


def test_verbose_shows_the_traceback_of_what_nobody_foresaw(monkeypatch, capsys, tmp_path):
    def fail():
        raise RuntimeError("nobody foresaw s3://key:secret@bucket/x")

    monkeypatch.setattr(demo, "require_for_demo", fail)
    assert erag("demo", "--out", tmp_path / "o", "--verbose") == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "secret" not in err
    assert erag("demo", "--out", tmp_path / "o") == 1
    assert "Traceback (" not in capsys.readouterr().err
    assert _terminal.verbosity() == _terminal.Verbosity()


def test_credentials_in_variables_are_masked(monkeypatch, capsys, files):
    monkeypatch.setenv("ERAG_STORE", "nosuch://key:topsecret@bucket/reads")
    assert evaluate(files, *CONTAINMENT) == 2
    err = capsys.readouterr().err
    assert "topsecret" not in err
    assert "nosuch" in err
