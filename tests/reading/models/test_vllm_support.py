"""What is known of a reader on vLLM without vLLM: refusals come before anything starts."""

import gc
import importlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from engine.machine import device, model_files
from engine.messages.errors import InputError
from engine.reading import readers
from engine.reading.models import vllm_support, weights
from tests.conftest import SPEC
from tests.expected import refused
from tests.pretended_cuda import pretended_cuda

MIB = 2**20


@pytest.fixture
def installed(monkeypatch):
    """As if vLLM were installed, on a machine without a GPU."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find("json" if name == "vllm" else name)
    )
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)


def specify(name="bundled", **settings):
    return readers.specify(
        name, augmentation="in-prompt", task="short-answer", engine="vllm", **settings
    )


def test_without_vllm_the_driver_says_how_to_install_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name)
    )
    with refused("engine.missing"):
        specify()


def test_encoder_decoder_readers_are_refused(tiny_t5, installed):
    with refused("engine.architecture"):
        specify(str(tiny_t5))


def test_more_choices_than_vllm_weighs_are_refused_before_anything_starts(installed, tmp_path):
    prompt = tmp_path / "prompt.txt"
    for count in (128, 129):
        words = ", ".join(f"a{i}" for i in range(count))
        prompt.write_text(f"---\nchoices: [{words}]\n---\n{{passages}} Q: {{query}}")
        if count == 128:
            assert len(specify(prompt=str(prompt))[0].choices) == 128
    with refused("engine.choices"):
        specify(prompt=str(prompt))


def test_the_engine_is_part_of_a_reads_key(installed):
    on_vllm, prompt = specify(dtype="float32")
    assert on_vllm.engine == "vllm"
    other = replace(on_vllm, engine="transformers")
    assert on_vllm.fingerprint != other.fingerprint
    assert prompt.prefix == on_vllm.shared_prefix


def test_a_budget_without_room_for_a_cache_is_refused_with_the_least(installed):
    parameters = model_files.parameters(weights.resolve("bundled").path)
    with refused("vllm.memory") as caught:
        specify(dtype="float32", memory=1000 * MIB)
    least = int(str(caught.value).split("at least ")[1].removesuffix("MiB")) * MIB
    specify(dtype="float32", memory=least)
    room = vllm_support.cache_memory(replace(SPEC, parameters=parameters, memory=least))
    assert vllm_support.LEAST_CACHE <= room < vllm_support.LEAST_CACHE + 2 * MIB
    with pytest.raises(InputError):
        specify(dtype="float32", memory=least - 2 * MIB)


def test_a_cache_takes_the_memory_that_weights_and_process_leave():
    # 0.9 * 4096 - 1280 - 2 * 100 = 2206.4 MiB
    room = vllm_support.cache_memory(replace(SPEC, quantised_bytes=200 * MIB, memory=4096 * MIB))
    assert room == int(2206.4 * MIB)
    # the default of a reader of 7e9 parameters: 0.9 * (1.2 * 14e9 + 2 GiB) - 1280 MiB - 14e9
    room = vllm_support.cache_memory(replace(SPEC, quantised_bytes=14 * 10**9))
    assert room == pytest.approx(0.9 * (1.2 * 14e9 + 2**31) - 1280 * MIB - 14e9, abs=1)


def test_on_a_gpu_without_a_compiler_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    monkeypatch.setattr(device, "lacking_compiler", lambda: "no compiler")
    with refused("machine.compiler"):
        readers.load(replace(SPEC, engine="vllm", path="/nowhere"))


def test_what_comes_before_vllm_loads_nothing_heavy():
    code = (
        "import sys; from engine.reading import readers; from engine.reading.models import vllm_support;"
        "vllm_support.set_environment();"
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def quantised(bundled_spec, tmp_path):
    """A checkpoint of the bundled reader's kind with 8 MiB of weights in FP8, as its headers say."""
    folder = tmp_path / "quantised"
    shutil.copytree(bundled_spec.path, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = {name: torch.zeros(4 * MIB, dtype=torch.float8_e4m3fn) for name in ("a", "b")}
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_budget_of_quantised_weights_is_judged_by_their_bytes(installed, quantised, dtype):
    spec, _ = specify(str(quantised), dtype=dtype, memory=8 * MIB, gpu=True)
    assert spec.weight_bytes == 8 * MIB
    with refused("settings.memory"):
        specify(str(quantised), dtype=dtype, memory=8 * MIB - 1, gpu=True)
    # Beside the process and a cache, in nine tenths: (1280 + 64 + 8) / 0.9 = 1502.2
    specify(str(quantised), dtype=dtype, memory=1503 * MIB, gpu=False)
    with refused("vllm.memory"):
        specify(str(quantised), dtype=dtype, memory=1502 * MIB, gpu=False)


def test_a_budget_is_judged_by_where_is_read_and_not_by_this_machine(installed, monkeypatch):
    weights_alone = 2 * specify(dtype="bfloat16")[0].parameters
    specify(dtype="bfloat16", memory=weights_alone, gpu=True)
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    with refused("vllm.memory"):
        specify(dtype="bfloat16", memory=weights_alone, gpu=False)


def test_weights_that_need_a_package_are_refused_without_it(installed, quantised, monkeypatch):
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantised / "config.json").write_text(json.dumps(config))
    find, there = importlib.util.find_spec, None
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: there if name == "bitsandbytes" else find(name)
    )
    with refused("vllm.quantised"):
        specify(str(quantised))
    there = find("json")
    specify(str(quantised))


class ScriptedEngine:
    """vLLM as a reader knows it: answers every prompt with its last token, and with given probabilities."""

    model_config = SimpleNamespace(max_model_len=2048)

    def __init__(self, options):
        self.options, self.requests, self.waiting = options, {}, []

    def add_request(self, request, prompt, sampling):
        assert request not in self.requests
        self.requests[request] = sampling
        self.waiting.append((request, prompt["prompt_token_ids"], sampling))

    def has_unfinished_requests(self):
        return bool(self.waiting)

    def step(self):
        request, tokens, sampling = self.waiting.pop()
        # 0.2 for the token of the lowest number, then 0.05 for each.
        shares = [math.log(0.2), *[math.log(0.05)] * 3]
        asked = zip(sampling.logprob_token_ids or (), shares, strict=False)
        logprobs = [{token: SimpleNamespace(logprob=share) for token, share in asked}]
        completion = SimpleNamespace(
            token_ids=tokens[-1:] * sampling.max_tokens, logprobs=logprobs, stop_reason=None
        )
        yield SimpleNamespace(
            request_id=request, outputs=[completion], finished=True, num_cached_tokens=0
        )


@pytest.fixture
def vllm(monkeypatch):
    """The module of the reader on vLLM, which is not there, and the engines that it starts."""
    started = []
    fake = ModuleType("vllm")
    fake.EngineArgs = lambda **options: options
    fake.SamplingParams = SimpleNamespace
    fake.RequestOutput = object

    def start(options, usage_context):
        engine = ScriptedEngine(options)
        started.append(weakref.ref(engine))
        return engine

    fake.LLMEngine = SimpleNamespace(from_engine_args=start)
    usage, platforms = ModuleType("vllm.usage.usage_lib"), ModuleType("vllm.platforms")
    usage.UsageContext = SimpleNamespace(LLM_CLASS="llm")
    platforms.current_platform = SimpleNamespace(get_device_total_memory=lambda number: 40 * 2**30)
    groups = ModuleType("vllm.distributed")
    groups.cleanup_dist_env_and_memory = lambda: started.append("cleaned")
    for module in (fake, ModuleType("vllm.usage"), usage, platforms, groups):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = "engine.reading.models.vllm_reader"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name), started
    sys.modules.pop(name, None)


@pytest.fixture
def asked_of_vllm(vllm):
    """The options with which vLLM is started for a reader on a device."""
    module, _ = vllm
    return lambda spec, on: module._start(spec, torch.device(on)).options


@pytest.fixture
def on_vllm(bundled_spec):
    return replace(bundled_spec, engine="vllm", max_new_tokens=2)


@pytest.mark.parametrize("others", [0, 0.05, 0.09, 0.11, 0.3, 0.8])
@pytest.mark.parametrize("memory", [0, 12 * 2**30])
def test_vllm_asks_for_less_than_others_leave_of_a_gpu(asked_of_vllm, others, memory):
    """vLLM 0.32 refuses where its share is more than is free once it has set itself up (``request_memory``)."""
    total = 23_034_200_064
    spec = replace(SPEC, engine="vllm", memory=memory)
    with pretended_cuda(memory=total, others=int(others * total)):
        share = asked_of_vllm(spec, "cuda")["gpu_memory_utilization"]
    free = total - int(others * total)
    assert math.ceil(total * share) <= free - 500 * MIB
    # A tenth that is free is enough.
    assert share == pytest.approx(min(memory / total or 0.9, (free - 512 * MIB) / total), rel=1e-9)


def test_readers_of_one_model_share_vllm_and_ask_each_in_its_own_way(vllm, on_vllm):
    module, started = vllm
    reader = module.VllmReader(on_vllm)
    judge = module.VllmReader(replace(on_vllm, choices=(" no", " yes"), stop=()))
    abstaining = module.VllmReader(replace(on_vllm, choices=(" no",), max_new_tokens=1))
    assert len(started) == 1
    assert started[0]().options["logprobs_mode"] == "raw_logprobs"
    (written,), (judged,), (declined,) = (
        one.read([["What is tea?"]]) for one in (reader, judge, abstaining)
    )
    assert (written.output, written.output_tokens, written.confidence) == ("??", 2, None)
    # Two choices are weighed among themselves, 0.2 / (0.2 + 0.05) or 0.05 / 0.25 by which token comes
    # first; a single one among all tokens.
    tokens = dict(zip((" no", " yes"), judge._first, strict=True))
    first = min(tokens, key=tokens.__getitem__)
    assert judged.output == first.strip()
    assert judged.confidence == pytest.approx(0.8 if first == " no" else 0.2)
    assert (declined.output, declined.confidence) == ("", pytest.approx(0.2))
    asked = [*started[0]().requests.values()]
    assert [one.max_tokens for one in asked] == [2, 1, 1]
    assert [one.stop for one in asked] == [[*on_vllm.stop], [], [*on_vllm.stop]]
    assert [len(one.logprob_token_ids or ()) for one in asked] == [0, 2, 1]


def test_vllm_goes_with_the_last_reader_of_its_model(vllm, on_vllm):
    module, started = vllm
    reader, judge = module.VllmReader(on_vllm), module.VllmReader(replace(on_vllm, stop=("x",)))
    del reader
    gc.collect()
    assert started[0]() is not None
    assert judge.read([["What is tea?"]])[0].failure is None
    other = module.VllmReader(replace(on_vllm, memory=4 * 2**30))
    assert len(started) == 2
    del judge
    gc.collect()
    assert started[0]() is None
    again = module.VllmReader(on_vllm)
    assert len(started) == 3
    assert again._engine is not other._engine


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([AssertionError("Error in memory profiling. Initial free memory 3 GiB")] * 3, None),
        ([AssertionError("Error in memory profiling. Initial free memory 3 GiB")] * 4, "profiling"),
        ([AssertionError("heads do not divide")], "heads do not divide"),
    ],
)
def test_vllm_starts_again_where_others_freed_memory_while_it_measured(
    vllm, errors, raised, monkeypatch
):
    """vLLM 0.32 asserts that no other process on its GPU gives memory back meanwhile."""
    module, started = vllm
    start, left = module.LLMEngine.from_engine_args, list(errors)

    def failing(*args, **options):
        if left:
            raise left.pop()
        return start(*args, **options)

    monkeypatch.setattr(module.LLMEngine, "from_engine_args", failing)
    spec = replace(SPEC, engine="vllm")
    if raised:
        with pytest.raises(AssertionError, match=raised):
            module._start(spec, torch.device("cpu"))
        assert started == ["cleaned"] * (len(errors) - 1)
    else:
        assert module._start(spec, torch.device("cpu")).requests == {}
        assert started[:-1] == ["cleaned"] * 3


def test_several_gpus_hold_a_reader_together(asked_of_vllm):
    one = replace(SPEC, engine="vllm")
    with pretended_cuda(memory=10 * 2**30):
        assert asked_of_vllm(one, "cuda")["gpu_memory_utilization"] == pytest.approx(0.9)
        options = asked_of_vllm(replace(one, memory=2 * 2**30), "cuda")
    assert options["gpu_memory_utilization"] == pytest.approx(0.2)
    assert "tensor_parallel_size" not in options
    options = asked_of_vllm(replace(one, gpus=4), "cuda")
    assert (options["tensor_parallel_size"], options["distributed_executor_backend"]) == (4, "mp")
    assert options["gpu_memory_utilization"] == 0.9
    # What the user gives is the actor's, of which each GPU has a part.
    options = asked_of_vllm(replace(one, gpus=4, memory=80 * 2**30), "cuda")
    assert options["gpu_memory_utilization"] == pytest.approx(0.5)


def test_a_process_for_several_gpus_touches_none_of_them(asked_of_vllm, monkeypatch):
    from engine.reading.models import vllm_reader

    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    with pretended_cuda() as gpu:
        assert vllm_reader._prepare(replace(SPEC, gpus=2)).type == "cuda"
        assert gpu.peak == 0
    assert not torch.cuda.is_initialized()
