"""``erag evaluate`` with a reader behind an API, as a user runs it."""

import json

import pytest

from tests.commands import evaluate
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
    assert (
        "openai:small answers behind an API: LLM calls are not reproducible; erag repeat"
        in printed.out
    )
    assert f"reader openai:small is asked of {url.split('/')[2]}, 8 requests at" in printed.err
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["reader"]["api"]["model"] == "small"
    assert summary["end_to_end"][0]["value"] == 1
    page = (files["out"] / "report.html").read_text()
    assert f"Reader: small at {url.split('/')[2]} · prompt chat · metric em" in page
    (line,) = [line for line in refused.err.splitlines() if "status 401" in line]
    assert "give a key that may ask this in the environment, as OPENAI_API_KEY" in line
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {store, files["out"]} <= {parent for path in written for parent in path.parents}
    for content in (
        *(path.read_bytes() for path in written),
        *map(str.encode, (*printed, *refused)),
    ):
        assert KEY.encode() not in content


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--reader", "bundled", "--max-tokens", 100],
            "erag: --max-tokens without a reader behind an API; name one, as in --reader openai:MODEL",
        ),
        (["--max-cost", 1], "--max-cost without --price-in and --price-out; give the prices of"),
        (["--memory", "2GiB"], "--memory with openai:small, which a server runs; leave it out"),
        (
            ["--actors", 2],
            "--actors with openai:small, which a server runs; use --concurrency: this",
        ),
        (
            ["--base-url", "ftp://x"],
            "--base-url is ftp://x; write it like http://localhost:8000/v1",
        ),
        (["--augmentation", "fid"], "cannot do Fusion-in-Decoder; use --augmentation in-prompt"),
    ],
)
def test_options_that_do_not_fit_are_one_line(behaviour, files, capsys, given, said):
    reader = () if "--reader" in given else ("--reader", "openai:small")
    assert evaluate(files, *reader, *given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("bound", "said", "reused"),
    [
        # the first request tries the server; a read is 50 tokens of a prompt and up to 16
        (["--max-tokens", 240], "--max-tokens is 240", 3),
        # an actor's time counts from the first read on
        (["--max-cost", 0, "--price-per-hour", 1], "--max-cost is 0", 0),
    ],
)
def test_a_bound_ends_the_evaluation_with_what_was_read_in_the_store(
    behaviour, files, capsys, bound, said, reused
):
    store = files["out"].parent / "store"
    with serving(behaviour) as url:
        asked = ["--reader", "openai:small", "--base-url", url, "--k", 2, "--store", store]
        assert evaluate(files, *asked, *bound, "--concurrency", 1) == 4
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"{said}; finished LLM calls are cached in {store}; run the same command" in line
        # the command that goes on
        assert line.endswith(f" {' '.join(map(str, bound))} --concurrency 1")
        assert ": erag evaluate --queries" in line
        assert [path.name for path in files["out"].iterdir()] == ["progress.json"]
        assert evaluate(files, *asked, "--resamples", 0) == 0
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert (summary["reading"]["reused"], summary["reading"]["done"]) == (reused, 6 - reused)
