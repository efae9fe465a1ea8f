"""Which engine runs a reader where the user leaves it open."""

import importlib.util

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.jobs import specify_jobs, tell_engines
from engine.evaluation.settings import Settings
from engine.machine import device, pool
from engine.machine.pool import PoolSettings
from engine.machine.survey import reading_dtype
from engine.messages import extras
from engine.messages.errors import InputError
from engine.reading import readers
from engine.reading.backends import backend_for
from engine.reading.local import Local
from engine.reading.protocol import ReaderStats, ReadOutput
from tests.conftest import ScriptedReader
from tests.tables import inputs


def local_of(jobs):
    return Local([job.spec for job in jobs], [None] * len(jobs))


@pytest.fixture
def gpu_with_vllm(monkeypatch):
    """A machine that says it has a GPU and vLLM; neither is ever used."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: find("json" if name == "vllm" else name, *a)
    )
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def specified(executor=None, **options):
    settings = Settings.of(dtype="float32", **options)
    return specify_jobs(settings.resolved.roles, settings, executor)


def engines(executor=None, **options):
    return {job.spec.engine for job in specified(executor, **options)}


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_decoder_only_readers_run_on_vllm_where_a_gpu_has_it(tiny_t5):
    assert engines() == {"vllm"}
    assert engines(engine="transformers") == {"transformers"}
    assert engines(gpus_per_actor=0) == {"transformers"}
    assert engines(reader=str(tiny_t5)) == {"transformers"}
    assert engines(ScriptedReader(str)) == {"transformers"}


@pytest.mark.usefixtures("bundled_spec")
def test_without_a_gpu_our_own_loops_read(monkeypatch):
    monkeypatch.setattr(device, "reads_on_vllm", lambda: False)
    assert engines() == {"transformers"}


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_what_was_chosen_is_told_once_and_has_keys_of_its_own(tiny_t5):
    ours, theirs = specified(engine="transformers"), specified()
    assert not {job.spec.fingerprint for job in ours} & {job.spec.fingerprint for job in theirs}
    told = []
    tell_engines(
        [*theirs, *theirs, *ours, *specified(reader=str(tiny_t5))], Settings.of(), told.append
    )
    assert told == ["reader bundled runs on vLLM"]


class Pretended:
    """A reader that answers with the name of its engine."""

    def __init__(self, spec):
        self.stats, self.engine = ReaderStats(), spec.engine

    def read(self, inputs):
        return [ReadOutput(self.engine, 5, 1, False) for _ in inputs]


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_on_a_cpu_that_has_vllm_the_store_decides_and_without_reads_our_own_loops(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    monkeypatch.setattr(readers, "load", Pretended)

    def evaluated(place, **options):
        told = []
        settings = Settings.of(
            k=3, annotators=("erag",), resamples=0, dtype="float32", actors=0, **options
        )
        found = evaluate(inputs(), settings, store=tmp_path / place, on_event=told.append)
        reading = found.readings["reader"]
        return set(found.reads["output"]), reading.costs.done > 0, told

    assert evaluated("empty") == ({"transformers"}, True, [])
    assert evaluated("vllm", engine="vllm") == ({"vllm"}, True, ["reader bundled runs on vLLM"])
    assert evaluated("vllm") == (
        {"vllm"},
        False,
        ["reader bundled runs on vLLM, as its reads in the store did; `engine` names the other"],
    )
    assert evaluated("vllm", engine="transformers") == ({"transformers"}, True, [])


@pytest.mark.usefixtures("bundled_spec")
def test_without_ray_this_process_reads_and_says_so_unless_actors_are_asked_for(monkeypatch):
    monkeypatch.setattr(pool, "missing", lambda extra: [extra])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    jobs, told = specified(engine="transformers"), []
    for settings in (PoolSettings(), PoolSettings(actors=0)):
        assert backend_for(settings, local_of(jobs)).on_ray is False
        tell_engines(jobs, Settings.of(actors=settings.actors), told.append)
    assert told == [
        "this process reads, since Ray is not installed; pip install 'erag-engine[ray]' adds others"
    ]
    assert reading_dtype(PoolSettings()) == device.best_dtype()
    monkeypatch.setattr(extras, "missing", lambda extra, *modules: [extra])
    for settings in (PoolSettings(actors=2), PoolSettings(gpus_per_actor=1)):
        with pytest.raises(
            InputError, match=r"^work on actors needs ray, which is not installed; "
        ):
            backend_for(settings, local_of(jobs))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InputError, match=r"pip install 'erag-engine\[ray\]'$"):
        backend_for(PoolSettings(), local_of(jobs))


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_several_gpus_hold_a_reader_on_vllm_and_no_other(tiny_t5):
    assert {job.spec.gpus for job in specified(gpus_per_actor=3)} == {3}
    words = "4, which cannot share the 9 attention heads of 'bundled'; use one of 1, 3, 9"
    with pytest.raises(InputError, match=words):
        specified(gpus_per_actor=4)
    assert {job.spec.gpus for job in specified(gpus_per_actor=0.5)} == {1}
    for other in ({"engine": "transformers"}, {"reader": str(tiny_t5)}):
        with pytest.raises(InputError, match="`gpus_per_actor` is 4, and reader .* on 1 of them"):
            specified(gpus_per_actor=4, **other)
