"""Calls on workers are made again where their process is lost, and not for ever."""

import pytest

from engine.machine.tasks import Tasks
from engine.messages.errors import InputError, ReadError

pytestmark = pytest.mark.usefixtures("ray_session")


def dying(times):
    """A function that notes each call in a file, and kills its process so many times; by value."""

    def call(folder, name):
        import os
        import signal

        path = os.path.join(folder, name)
        with open(path, "a") as stream:
            stream.write(".")
        if os.path.getsize(path) <= times:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def test_a_call_whose_process_died_is_made_again(tmp_path):
    tasks = Tasks(dying(1), str(tmp_path), "judging")
    for name in "abc":
        tasks.submit(name)
    tasks.finish()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", 2
    )


def test_a_call_that_always_kills_its_process_is_given_up(tmp_path):
    tasks = Tasks(dying(10**6), str(tmp_path), "judging")
    tasks.submit("a")
    with pytest.raises(ReadError, match=r"judging on Ray failed: its process died again and again"):
        tasks.finish()
    assert (tmp_path / "a").stat().st_size == 4


def test_what_a_call_gives_is_raised_and_what_it_raises_is_a_failure():
    def give(shared, what):
        if what == "give":
            return InputError("is bad", "mend it", path="f", line=3)
        if what == "raise":
            raise ValueError("no such shard")
        return None

    tasks = Tasks(give, None, "judging")
    tasks.submit("nothing")
    tasks.submit("give")
    with pytest.raises(InputError, match=r"f:3: is bad"):
        tasks.finish()
    tasks = Tasks(give, None, "judging")
    tasks.submit("raise")
    with pytest.raises(ReadError, match=r"judging on Ray failed: ValueError: no such shard"):
        tasks.finish()
