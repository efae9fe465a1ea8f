"""Options as they are converted: numbers as they are written, on the command line and in files."""

from pathlib import Path

import pytest

from jobs import _command, cli
from jobs._command import run_app
from tests.commands import erag
from tests.expected import as_expected


@pytest.fixture
def fused(tmp_path, capsys):
    """A function that fuses two runs of 40 documents; the number of results, or the message."""
    for name in ("one", "two"):
        rows = (f"1 Q0 d{i} {i} {-i} {name}\n" for i in range(40))
        (tmp_path / name).write_text("".join(rows))

    def fuse(*options, yaml=None):
        given = ["--run", tmp_path / "one", "--run", tmp_path / "two", "--out", tmp_path / "out"]
        if yaml is not None:
            (tmp_path / "o.yaml").write_text(yaml)
            options = ["--config", tmp_path / "o.yaml", *options]
        status = erag("fuse", *given, *options)
        printed = capsys.readouterr()
        return int(printed.out.split()[0]) if status == 0 else printed.err

    return fuse


@pytest.mark.parametrize(
    ("text", "results"),
    [("12", 12), ("+12", 12), ("010", 10), ("30.0", 30), ("0x10", 16), ("0b11", 3), ("0o17", 15)],
)
def test_whole_numbers_are_what_they_look_like_wherever_they_stand(fused, text, results):
    assert fused("--k", text) == results
    assert fused(yaml=f"k: '{text}'\n") == results


def test_a_number_that_yaml_would_change_is_to_be_put_in_quotes(fused):
    assert fused(yaml="k: 12\n") == 12
    for text in ("010", "1e1", "1_0", "yes"):
        as_expected(fused(yaml=f"name: x\nk: {text}\n"))


@pytest.mark.parametrize("text", ["2.5", "1_0", "٣"])
def test_other_numbers_are_refused_wherever_they_stand(fused, monkeypatch, text):
    as_expected([fused("--k", text), fused(yaml=f"k: '{text}'\n")])
    monkeypatch.setenv("ERAG_K", text)
    as_expected(fused())


@pytest.mark.parametrize("text", ["1e1", "ten", "1:30", "yes"])
def test_words_are_no_numbers(fused, text):
    assert (
        fused("--k", text) == f'erag: Invalid value for --k: unable to convert "{text}" into int.\n'
    )


def test_the_command_line_wins_over_the_file_and_texts_are_as_written(fused, tmp_path):
    assert fused("--k", 5, yaml="k: 7\nname: 'no'\n") == 5
    assert (tmp_path / "out").read_text().split()[5] == "no"
    assert fused(yaml="name: '1.50'\nconstant: 60\n") == 40
    assert (tmp_path / "out").read_text().split()[5] == "1.50"


def test_a_file_of_options_is_that_of_one_call(fused):
    assert fused(yaml="k: 3\nname: both\n") == 3
    # A command that knows neither option.
    words = ["passages", "articles.xml", "--out", "corpus.parquet"]
    cli.app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("text", ["'on'", "'Off'", "'yes'", "true", "false"])
def test_switches_take_the_words_of_yaml(tmp_path, capsys, text):
    (tmp_path / "o.yaml").write_text(f"end-to-end: {text}\n")
    given = ["evaluate", "--queries", "q", "--corpus", "c", "--run", "r", "--out", tmp_path / "o"]
    more = ["--annotators", "containment", "--end-to-end-k", 10, "--augmentation", "fid"]
    assert erag(*given, *more, "--config", tmp_path / "o.yaml") == 2
    # Without the reading of whole lists nothing is read.
    as_expected(capsys.readouterr().err)


@pytest.mark.parametrize("text", ["true", "false"])
def test_a_file_turns_an_option_off_by_its_own_name_alone(tmp_path, capsys, text):
    (tmp_path / "o.yaml").write_text(f"k: 3\nno-end-to-end: {text}\n")
    assert erag("evaluate", "--config", tmp_path / "o.yaml") == 2
    as_expected(capsys.readouterr().err)


def test_an_unforeseen_error_prints_one_line_and_leaves_a_log(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_command.tempfile, "tempdir", str(tmp_path))

    def break_down(*arguments, **options):
        raise KeyError("a\nb")

    monkeypatch.setattr("jobs._options.options_from", break_down)
    with pytest.raises(SystemExit) as stop:
        run_app(cli.app, ["fuse"])
    assert stop.value.code == 1
    (log,) = tmp_path.iterdir()
    printed = capsys.readouterr().err
    as_expected(printed.replace(str(log), "LOG"))
    assert "in break_down" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_where_no_log_can_be_written_the_traceback_is_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_command.tempfile, "tempdir", str(tmp_path / "missing"))
    as_expected(_command.unforeseen(ValueError("x")))
    assert "ValueError: x" in capsys.readouterr().err


def test_files_that_are_left_out_pass_where_pydantic_checks_values():
    """Once something has imported pydantic, as Ray does, options are checked by it too, their defaults included."""
    pytest.importorskip("pydantic")
    given = ["evaluate", "--queries", "q", "--corpus", "c", "--run", "r.trec", "--out", "o"]
    for more, files in (([], None), (["--batch-in", "a,b"], [Path("a"), Path("b")])):
        _, bound, *_ = cli.app.parse_args([*given, *more])
        assert bound.kwargs.get("batch_in") == files
