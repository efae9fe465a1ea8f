"""Shards are scored on workers again where their process is lost, and not for ever."""

from types import SimpleNamespace

import pytest
import ray

from engine.evaluation import read
from engine.messages.errors import InputError, ReadError, WriteError

pytestmark = pytest.mark.usefixtures("ray_session")


def score_on_ray(monkeypatch, score, *shards, folder=""):
    """Score shards on workers by a function that takes the work, a shard, its failures and files; it goes by value."""
    monkeypatch.setattr(read, "score_shard", score)
    known = SimpleNamespace(shards=[SimpleNamespace(span=None)] * 3)
    scoring = read._Scoring(SimpleNamespace(shards=known, folder=folder), on_ray=True)
    for shard in shards:
        scoring.score(shard, {})
    scoring.finish()


def dying(times):
    """A function that notes each call in a file, and kills its process so many times."""

    def call(work, shard, failures, files):
        import os
        import signal

        path = os.path.join(work.folder, str(shard))
        with open(path, "a") as stream:
            stream.write(".")
        if os.path.getsize(path) <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def calls(folder):
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_shard_whose_process_died_is_scored_again(monkeypatch, tmp_path):
    score_on_ray(monkeypatch, dying(1), 0, 1, 2, folder=str(tmp_path))
    assert calls(tmp_path) == {"0": 2, "1": 2, "2": 2}


def test_a_shard_that_always_kills_its_process_is_given_up(monkeypatch, tmp_path):
    told = r"^scoring on Ray failed: its process died again and again, .*; what is finished is kept"
    with pytest.raises(ReadError, match=told):
        score_on_ray(monkeypatch, dying(10**6), 0, folder=str(tmp_path))
    assert calls(tmp_path) == {"0": 4}


def test_a_process_that_rays_memory_monitor_kills_is_given_up_too(monkeypatch):
    """Ray itself would start it again for ever, whatever its ``max_retries``."""
    asked = []

    def get(call):
        asked.append(call)
        raise ray.exceptions.OutOfMemoryError("1 worker(s) were killed")

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(ReadError, match=r"died again and again.*1 worker\(s\) were killed"):
        score_on_ray(monkeypatch, lambda *_: None, 0)
    assert len(asked) == len(set(asked)) == 4


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InputError("is bad", "mend it", path="f", line=3), "^f:3: is bad; mend it$"),
        (WriteError("out: the disk is full"), "^out: the disk is full$"),
        (ValueError("no such shard"), "^scoring on Ray failed: ValueError: no such shard$"),
    ],
)
def test_errors_of_users_are_raised_as_they_are_and_others_in_one_line(monkeypatch, error, told):
    def score(work, shard, failures, files):
        if shard == 1:
            raise error

    kind = type(error) if isinstance(error, (InputError, WriteError)) else ReadError
    with pytest.raises(kind, match=told) as raised:
        score_on_ray(monkeypatch, score, 0, 1)
    assert type(raised.value) is kind
