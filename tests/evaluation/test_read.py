"""Shards are read by all roles together, and scored; on Ray too, where what is lost is done again, and not for ever."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from polars.testing import assert_frame_equal

from engine.evaluation import read
from engine.evaluation.read import check_readers
from engine.machine import cluster, device
from engine.messages.errors import BoundError, InputError, ReadError, WriteError
from engine.reading import plan as reading_plan
from engine.reading import store
from engine.reading.function import ReaderFunction
from engine.reading.local import Local
from engine.reading.protocol import ReaderStats
from engine.sources.io.folders import Folder, folder_at
from tests.evaluation.in_shards import (
    Scripted,
    answering,
    assert_same,
    in_shards,
    scripted,
    settings,
    shards_of,
    sorted_rows,
    the_whole,
)
from tests.expected import as_expected, refused

__all__ = ["scripted"]  # a fixture
on_ray = pytest.mark.usefixtures("ray_session")


def score_on_ray(monkeypatch, score, *shards, folder=""):
    """Score shards on workers by a function that takes the work, a shard, its failures and files; it goes by value."""
    monkeypatch.setattr(read, "score_shard", score)
    known = SimpleNamespace(shards=[SimpleNamespace(span=None)] * 3)
    scoring = read._Scorer(SimpleNamespace(shards=known, folder=folder), on_ray=True)
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


@on_ray
def test_a_shard_whose_process_died_is_scored_again(monkeypatch, tmp_path):
    score_on_ray(monkeypatch, dying(1), 0, 1, 2, folder=str(tmp_path))
    assert calls(tmp_path) == {"0": 2, "1": 2, "2": 2}


@on_ray
def test_a_shard_that_always_kills_its_process_is_given_up(monkeypatch, tmp_path):
    with pytest.raises(ReadError) as caught:
        score_on_ray(monkeypatch, dying(10**6), 0, folder=str(tmp_path))
    as_expected(str(caught.value).partition(", ")[0])
    assert calls(tmp_path) == {"0": 4}


@on_ray
def test_a_process_that_rays_memory_monitor_kills_is_given_up_too(monkeypatch):
    """Ray itself would start it again for ever, whatever its ``max_retries``."""
    asked = []

    def get(call):
        asked.append(call)
        raise ray.exceptions.OutOfMemoryError("1 worker(s) were killed")

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(ReadError) as caught:
        score_on_ray(monkeypatch, lambda *_: None, 0)
    as_expected(str(caught.value))
    assert len(asked) == len(set(asked)) == 4


@on_ray
@pytest.mark.parametrize(
    "error",
    [
        InputError("is bad", "mend it", path="f", line=3),
        WriteError("out: no room"),
        ValueError("no such shard"),
    ],
)
def test_errors_of_users_are_raised_as_they_are_and_others_in_one_line(monkeypatch, error):
    def score(work, shard, failures, files):
        if shard == 1:
            raise error

    kind = type(error) if isinstance(error, (InputError, WriteError)) else ReadError
    with pytest.raises(kind) as raised:
        score_on_ray(monkeypatch, score, 0, 1)
    assert type(raised.value) is kind
    as_expected(str(raised.value))


def test_a_shard_is_scored_when_all_roles_have_read_it_and_has_one_file_of_each_reader(
    tmp_path, monkeypatch
):
    """Roles that share a model read shard after shard together, and all that is done is told on the way."""
    monkeypatch.setattr(reading_plan, "CPU_BATCH_TOKENS", 200)
    begun, written, told = [], [], []
    score, add = read.score_shard, store.add

    def scored(*of):
        begun.append(len(Scripted.asked))
        score(*of)

    monkeypatch.setattr(read, "score_shard", scored)
    monkeypatch.setattr(
        store, "add", lambda *of, **more: written.append(add(*of, **more)) or written[-1]
    )
    asked = settings(annotators=("erag", "judge"), measures="nDCG@6")
    result = in_shards(tmp_path, asked, on_progress=lambda *reached: told.append(reached))
    assert 2 < len(begun) == shards_of(tmp_path, result)
    assert 0 < begun[0] < begun[1] < begun[-1] == len(Scripted.asked)
    # The reader alone has more than half of all reads: one role after the other would be past them here.
    assert begun[0] < len(Scripted.asked) / 2
    files = list((tmp_path / "shards-store").rglob("*.parquet"))
    assert len(set(written)) > len(files) == 2 * len(begun)
    costs = [reading.costs for reading in result.readings.values()]
    assert len(costs) == 2
    assert sum(one.seconds for one in costs) < result.seconds
    wanted = sum(one.wanted for one in costs)
    assert told[-1] == (wanted, wanted)
    done, total = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert list(total) == sorted(total, reverse=True)


def test_a_pass_lists_the_store_of_each_reader_once_whatever_the_shards(tmp_path, monkeypatch):
    listed, sizes = Counter(), Folder.sizes

    def counted(folder):
        listed[str(folder)] += 1
        return sizes(folder)

    monkeypatch.setattr(Folder, "sizes", counted)
    asked = settings(annotators=("erag", "judge"), measures="nDCG@6")
    seen = []
    for pairs in (30, 240):
        folder = tmp_path / str(pairs)
        listed.clear()
        result = in_shards(folder, asked, pairs=pairs)
        of_readers = sorted(listed[name] for name in listed if "/shards-store/" in name)
        seen.append((shards_of(folder, result), of_readers))
    (many, of_many), (few, of_few) = seen
    assert many > 4 * few
    assert of_many == of_few
    assert len(of_many) == 2


def test_nodes_are_asked_for_the_folders_that_they_are_to_write_to_and_for_no_others(
    tmp_path, monkeypatch
):
    """While inputs are cut, and before shards are planned; held inputs, and readers here, need no shared folder."""

    class Asked(BaseException):
        pass

    def ask(folders):
        raise Asked(*(str(folder) for folder in folders))

    monkeypatch.setattr(cluster, "start_ray", lambda plan_bytes=0: None)
    monkeypatch.setattr(cluster, "require_shared", ask)
    asked, out = settings(actors=2), folder_at(tmp_path / "out")
    with pytest.raises(Asked) as while_cut:
        check_readers([asked], folders=(out,))
    assert while_cut.value.args == (str(out),)
    with pytest.raises(Asked) as before_planned:
        in_shards(tmp_path, asked)
    at_work, place = before_planned.value.args
    assert Path(at_work).parent.parent == tmp_path / "shards"
    assert place == str(tmp_path / "shards-store")
    with pytest.raises(Asked) as held:
        the_whole(tmp_path, asked)
    assert held.value.args == ()
    check_readers([asked.but(actors=0)], folders=(out,))


@pytest.mark.usefixtures("ray_session")
@pytest.mark.skipif(device.machine_has_gpu(), reason="has the GPU")
def test_readers_and_pools_that_cannot_be_are_refused_without_any_inputs():
    asked = settings(actors=2)
    check_readers([asked])
    with refused("cluster.node", text=False):  # which names the CPUs of this machine
        check_readers([asked.but(gpus_per_actor=1, dtype="float32")])
    with refused("model.unknown"):
        check_readers([asked.but(reader="no-such-reader")])


def host_of():
    """What hosts a reader that answers alike on actors; by value, too."""

    answer = answering()

    class Reader:
        def __init__(self, spec):
            self.stats, self.choices = ReaderStats(), spec.choices

        def read(self, inputs):
            return [answer("\n".join(texts), self.choices) for texts in inputs]

    class OnActor(Local):
        def load(self, spec):
            return Reader(spec)

    return OnActor


@on_ray
@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shards_on_ray_have_the_figures_of_the_whole(tmp_path, actors):
    """Two CPUs, which the actors could take whole: planning and judging still go on beside them."""
    asked = settings(annotators=("erag", "containment", "judge"), measures="nDCG@6", actors=actors)
    whole = the_whole(tmp_path, asked.but(actors=0))
    assert_same(whole, in_shards(tmp_path, asked, host=host_of()), tmp_path / "shards")


@on_ray
def test_a_function_of_the_users_travels_by_value_to_actors(tmp_path):
    reader = ReaderFunction(lambda prompts: [f"a{len(one) % 4}" for one in prompts], "mine")
    asked = settings((reader,), dtype=None, reader="mine").but(actors=1)
    whole = the_whole(tmp_path, asked.but(actors=0))
    assert_same(whole, in_shards(tmp_path, asked), tmp_path / "shards")
    assert not list((tmp_path / "shards").rglob("unkept/*/*.parquet"))


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "how",
    [the_whole, in_shards],
)
def test_an_evaluation_on_ray_keeps_all_that_was_begun_when_it_ends_at_a_bound(tmp_path, how):
    """What two actors were at is in the store, of what none was at there is nothing, and the rest is read later."""
    log = tmp_path / "log"

    class Logging(host_of()):
        def load(self, spec):
            reader = super().load(spec)
            answers = reader.read

            def logged(inputs):
                outputs = answers(inputs)
                with log.open("a") as file:
                    file.write(f"{len(inputs)}\n")
                return outputs

            reader.read = logged
            return reader

    asked = settings(actors=2)
    whole = the_whole(tmp_path / "free", asked.but(actors=0))
    run = partial(how, tmp_path, host=Logging)
    with pytest.raises(BoundError, match="`max_cost` is 0, "):
        run(asked=asked.but(max_cost=0.0, price_per_hour=1.0))
    done = sum(map(int, log.read_text().split()))
    total = whole.readings["reader"].costs.wanted
    assert 0 < done < total
    found = run(asked=asked)
    costs = found.readings["reader"].costs
    assert (costs.reused, costs.done) == (done, total - done)
    assert_frame_equal(sorted_rows(found.query_scores), sorted_rows(whole.query_scores))
