"""``erag train`` as a user runs it: files in, a reader out, one line for bad input."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import polars as pl
import pytest

from engine.tables import ANSWERS, DOC_IDS
from engine.training import checkpoints
from jobs.train import parameters
from tests.commands import erag
from tests.expected import as_expected
from tests.training.facts import facts, save_start, write_files
from tests.unknown import UNKNOWN_NAME

# Enough to learn some of it; on the command's own process, without Ray.
RECIPE = {
    "k": 3, "batch": 32, "learning-rate": 3e-3, "epochs": 3, "weight-decay": 0, "precision": "float32",
    "workers": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A start, and the files of 320 queries to train on and 50 to evaluate on, over one corpus."""
    folder = tmp_path_factory.mktemp("scene")
    train, dev = facts(320, 1), facts(50, 2)
    both = pl.concat([train.corpus, dev.corpus])
    paths = write_files(replace(train, corpus=both), folder, "train")
    of_dev = write_files(dev, folder, "dev")
    return {
        "reader": save_start(folder / "start"),
        "queries": paths["queries"],
        "corpus": paths["corpus"],
        "run": paths["run"],
        "dev-queries": of_dev["queries"],
        "dev-run": of_dev["run"],
    }


def train(scene, out, *more):
    given = [part for name, value in (RECIPE | scene).items() for part in (f"--{name}", value)]
    return erag("train", *given, "--out", out, *more)


@pytest.mark.pages
def test_a_reader_is_trained_and_evaluates(scene, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(scene, out, "--limit", 320) == 0
    said = capsys.readouterr()
    summary = json.loads((out / "training.json").read_text())
    values = [one["value"] for one in summary["evaluations"]]
    assert values[0] == 0.0
    assert max(values) > 0.3  # of 8 values, one is right by chance in 0.125
    assert summary["best"]["value"] == max(values)
    assert len(summary["losses"]) == len(summary["rates"]) == 30
    assert summary["counts"]["queries"] == 320
    assert summary["counts"]["dev_queries"] == 50
    assert (summary["counts"]["inputs"], summary["counts"]["cut_inputs"]) == (960, 0)
    asked = summary["configuration"]
    assert asked.keys() == {one.name for one in parameters()} - {"dry_run"}
    assert (asked["learning_rate"], asked["task"], asked["limit"]) == (3e-3, "short-answer", 320)
    assert (asked["out"], asked["checkpoints"], asked["gpus_per_worker"]) == (str(out), None, None)
    assert [one.keys() for one in summary["at_once"]] == [{"tokens", "checkpointing", "halvings"}]
    assert asked["queries"] == str(scene["queries"])
    assert summary["audit"]["command"].startswith("erag train --k 3 ")
    assert summary["peak_memory"] > 2**20
    assert f" 0.0000 at the start, {max(values):.4f} at step" in said.out
    assert f"model -> {out}/model" in said.out
    assert "training: 30/30 steps, loss " in said.err
    # Nothing but what the page of formats names; checkpoints are gone.
    assert {path.name for path in out.iterdir()} == {"model", "training.json", "training.html"}
    page = (out / "training.html").read_text()
    assert page.count("<svg") == 2
    assert f"{max(values):.4f}" in page
    # The dev metric is the score that an evaluation gives the same reader on the same lists.
    files = {"queries": scene["dev-queries"], "run": scene["dev-run"], "corpus": scene["corpus"]}
    given = [part for name, path in files.items() for part in (f"--{name}", path)]
    assert (
        erag("evaluate", *given, "--reader", out / "model", "--augmentation", "fid", "--k", 3,
             "--actors", 0, "--out", tmp_path / "evaluated", "--store", tmp_path / "store",
             "--annotators", "erag") == 0
    )  # fmt: skip
    evaluated = json.loads((tmp_path / "evaluated" / "summary.json").read_text())
    (end_to_end,) = evaluated["end_to_end"]
    assert end_to_end["value"] == pytest.approx(max(values))
    # What was trained is not trained over; also where only a model is there, whoever made it.
    (out / "training.json").unlink()
    capsys.readouterr()
    assert train(scene, out) == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])


def test_a_checkpoint_says_what_was_asked_for(scene, tmp_path, monkeypatch):
    # As if the command had ended before they are removed.
    monkeypatch.setattr(checkpoints, "remove", lambda folder: None)
    assert train(scene | {"epochs": 1}, tmp_path / "out", "--limit", 32) == 0
    asked = json.loads((tmp_path / "out/checkpoints/checkpoint.json").read_text())["configuration"]
    assert asked.keys() == {one.name for one in parameters()} - {"dry_run"}
    assert (asked["limit"], asked["batch"], asked["run"]) == (32, 32, str(scene["run"]))


def test_a_dry_run_says_what_would_be_done(scene, tmp_path, capsys):
    assert train(scene, tmp_path / "out", "--dry-run") == 0
    printed = capsys.readouterr().out
    as_expected(re.findall(r"\(from scratch\).*", printed))
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    assert train(scene, tmp_path / "file", "--dry-run") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert train(scene, tmp_path / "out", "--dry-run", "--checkpoints", tmp_path / "out") == 2


def test_what_is_left_out_and_cut_is_counted(scene, tmp_path, capsys):
    data = facts(6, 3)
    answers = [["v1"], [], ["v2"], ["v1 " * 20], ["v3"], ["v4"]]
    queries = data.queries.with_columns(pl.Series(ANSWERS, answers, dtype=pl.List(pl.String)))
    lists = data.lists.with_columns(
        pl.Series(DOC_IDS, [[]] + data.lists[DOC_IDS].to_list()[1:], dtype=pl.List(pl.String))
    )
    given = scene | write_files(replace(data, queries=queries, lists=lists), tmp_path, "own")
    del given["dev-queries"], given["dev-run"]
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(
        "---\npassage: ' context: {text}'\nmax_input_tokens: 4\nmax_new_tokens: 16\n---\n"
        "question: {query}{passages}\n"
    )
    given |= {"epochs": 1, "batch": 8}
    assert train(given, tmp_path / "out", "--prompt", prompt, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    as_expected(summary["notes"])
    assert summary["best"] == {"step": 1, "value": None}


@pytest.mark.parametrize("place", ["out", "out/model", "out/model/checkpoints", "."])
def test_checkpoints_are_not_where_the_model_goes(scene, place, tmp_path, capsys):
    assert train(scene, tmp_path / "out", "--checkpoints", tmp_path / place) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)


def test_a_model_of_somebody_else_beside_checkpoints_stays(scene, tmp_path, capsys):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "config.json").write_text("mine")
    assert train(scene, tmp_path / "out", "--checkpoints", tmp_path / "own") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert (tmp_path / "own" / "model" / "config.json").read_text() == "mine"


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_when_it_is_run_again(scene, tmp_path):
    given = [str(part) for name, value in (RECIPE | scene).items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "jobs.cli", "train", *given]
    command += ["--checkpoint-every", "4", "--out"]
    subprocess.run([*command, tmp_path / "whole"], check=True, capture_output=True)
    killed = subprocess.Popen(
        [*command, tmp_path / "out"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(60000):
        if (tmp_path / "out" / "checkpoints" / "checkpoint.json").exists():
            break
        time.sleep(0.005)
    killed.kill()
    assert killed.wait() == -9
    assert not (tmp_path / "out" / "model").exists()
    subprocess.run([*command, tmp_path / "out"], check=True, capture_output=True)
    one, two = (
        json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "out")
    )
    assert two["losses"] == one["losses"]
    assert two["evaluations"] == one["evaluations"]
    assert (two["starts"], one["starts"]) == (2, 1)
    weights = "model/model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("queries", '{"id": "1"\n'),
        ("queries", '{"id": "1", "input": "n1", "output": []}\n'),
        ("run", "1 Q0 nowhere\n"),
        ("corpus", '{"id": "a", "text": "b"}\n'),
        ("dev-queries", '{"id": "2-0", "input": "n1", "output": []}\n'),
        ("dev-queries", '{"id": "2-0", "input": "n1", "output": [{"answer": "the"}]}\n'),
        ("dev-run", None),
        ("gpus-per-worker", 0),
        ("k", 0),
        ("warmup", 2),
        ("workers", -1),
        ("gpus-per-worker", 2),
        ("metric", UNKNOWN_NAME),
        ("reader", UNKNOWN_NAME),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(scene, option, content, tmp_path, capsys):
    file = tmp_path / "own.jsonl"
    given = dict(scene)
    if content is None:
        del given[option]
    elif option in ("queries", "run", "corpus", "dev-queries"):
        file.write_text(content)
        given[option] = file
    else:
        given[option] = content
    assert train(given, tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)
    assert not (tmp_path / "out").exists()


def test_patience_without_development_queries_is_refused(scene, tmp_path, capsys):
    given = dict(scene)
    del given["dev-queries"], given["dev-run"]
    assert train(given, tmp_path / "out", "--patience", 3) == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / "out").exists()


def test_checkpoints_of_another_training_are_refused_and_stay(scene, tmp_path, capsys):
    place = tmp_path / "kept"
    place.mkdir()
    (place / "checkpoint.json").write_text("{}")
    assert train(scene, tmp_path / "out", "--checkpoints", place) == 2
    (line,) = (one for one in capsys.readouterr().err.splitlines() if one.startswith("erag: "))
    as_expected(line)
    assert (place / "checkpoint.json").read_text() == "{}"


def test_the_help_and_a_plan_load_no_torch(scene, tmp_path):
    given = [part for name, path in scene.items() for part in (f"--{name}", str(path))]
    words = ["train", *given, "--out", str(tmp_path / "out"), "--dry-run"]
    code = (
        "import sys; from jobs.cli import app;"
        f"[app(words, result_action='return_value') for words in (['train', '--help'], {words!r})];"
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", done.stdout).split())
    assert "the defaults are the recipe of eRAG's study" in shown
    recipe = {
        "k": 50, "epochs": 10, "batch": 64, "learning-rate": 5e-5, "warmup": 0.05, "weight-decay": 0.01,
        "augmentation": "fid",
    }  # fmt: skip
    for name, value in recipe.items():
        (of_option,) = re.findall(rf" --{name} (?:INT|FLOAT|CHOICE) (.*?) --[a-z]", shown)
        assert f"[default: {value}]" in of_option


@pytest.mark.slow
def test_checkpoints_in_s3_are_taken_up_again_after_the_server_was_gone(
    scene, s3, tmp_path, capsys, monkeypatch
):
    place = ("--checkpoints", "s3://bucket/a folder", "--checkpoint-every", 5)
    assert train(scene, tmp_path / "whole", *place[2:]) == 0
    save, saved = checkpoints.save, []

    def save_twice(*given, **named):
        if len(saved) == 2:
            s3.stop()
        saved.append(given)
        return save(*given, **named)

    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", save_twice)
        assert train(scene, tmp_path / "out", *place) == 1
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("erag:")]
    as_expected(re.sub(r" \(.*\)", "", line))
    s3.start()
    assert train(scene, tmp_path / "out", *place) == 0
    whole, resumed = (
        json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "out")
    )
    assert resumed["losses"] == whole["losses"]
    assert resumed["evaluations"] == whole["evaluations"]
