"""``erag evaluate`` with a reader behind an API, as a user runs it."""

import json

import pytest

from tests.commands import evaluate
from tests.expected import as_expected
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

KEY = "sk-secret-0123456789"


def say(body):
    text = prompt_of(body)
    found = [name for name in ("Oranjestad", "George Orwell") if name in text]
    return Said(found[-1] if found else "no idea", prompt_tokens=50)


@pytest.fixture
def behaviour(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("engine.machine.remote.client.FIRST_WAIT", 0.003)
    return Behaviour(say, key=KEY)


@pytest.mark.pages
def test_the_key_is_in_nothing_that_is_written_or_printed(behaviour, files, tmp_path, capsys):
    store = tmp_path / "store"
    with serving(behaviour) as url:
        asked = ["--reader", "openai:small", "--base-url", url, "--k", 2, "--store", store]
        asked += ["--resamples", 0]
        assert evaluate(files, *asked, "--full") == 0
        printed = capsys.readouterr()
        behaviour.key = "another"
        assert evaluate(files, *asked) == 2
    refused = capsys.readouterr()
    for printing, words in ((printed.out, "behind an API"), (printed.err, "is asked")):
        as_expected([line for line in printing.splitlines() if words in line])
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["reader"]["api"]["model"] == "small"
    assert summary["end_to_end"][0]["value"] == 1
    page = (files["out"] / "report.html").read_text()
    assert f"Reader: small at {url.split('/')[2]} · prompt template chat · metric em" in page
    (line,) = [line for line in refused.err.splitlines() if "status 401" in line]
    as_expected(line)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {store, files["out"]} <= {parent for path in written for parent in path.parents}
    for content in (
        *(path.read_bytes() for path in written),
        *map(str.encode, (*printed, *refused)),
    ):
        assert KEY.encode() not in content


@pytest.mark.parametrize(
    "given",
    [
        ["--reader", "bundled", "--max-tokens", 100],
        ["--max-cost", 1],
        ["--memory", "2GiB"],
        ["--actors", 2],
        ["--base-url", "ftp://x"],
        ["--augmentation", "fid"],
    ],
)
def test_options_that_do_not_fit_are_one_line(behaviour, files, capsys, given):
    reader = () if "--reader" in given else ("--reader", "openai:small")
    assert evaluate(files, *reader, *given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)


@pytest.mark.parametrize(
    ("bound", "reused"),
    [
        # the first request tries the server; a read is 50 tokens of a prompt and up to 16
        (["--max-tokens", 240], 3),
        # an actor's time counts from the first read on
        (["--max-cost", 0, "--price-per-hour", 1], 0),
    ],
)
def test_a_bound_ends_the_evaluation_with_what_was_read_in_the_store(
    behaviour, files, capsys, bound, reused
):
    store = files["out"].parent / "store"
    with serving(behaviour) as url:
        asked = ["--reader", "openai:small", "--base-url", url, "--k", 2, "--store", store]
        assert evaluate(files, *asked, *bound, "--concurrency", 1) == 4
        line = capsys.readouterr().err.splitlines()[-1]
        as_expected(line)  # it ends with the command that goes on
        assert [path.name for path in files["out"].iterdir()] == ["progress.json"]
        assert evaluate(files, *asked, "--resamples", 0) == 0
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert (summary["reading"]["reused"], summary["reading"]["done"]) == (reused, 6 - reused)
