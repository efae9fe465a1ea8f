"""Readers on a pretended GPU: outputs as on the CPU, few launches, copies and synchronisations, in their memory."""

import functools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from benchmarks._single import default_prompt
from engine.machine import device
from engine.reading import readers
from engine.reading.models.causal import CausalReader
from engine.reading.models.conversion import CROSS_BIAS
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.models.padded import PaddedModel
from engine.reading.models.t5 import T5
from tests.pretended_cuda import pretended_cuda
from tests.reading.models import t5_family, tiny_models
from tests.reading.models.test_causal import save_random_model

GIB = 2**30
LAYERS = 2  # of the random models
PROMPT = default_prompt("short-answer", "causal", "in-prompt")


def prompts(count, words=7):
    """Prompts of ``count`` questions with a passage each, of different lengths."""
    return [
        PROMPT.render(f"what is {i}", [(f"T{i}", f"word {i} is here " * (1 + i % words))])
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def causal(bundled_spec, tmp_path_factory):
    """Specifications of random models: of a family that a CPU packs, of one that it pads, and with a window."""
    specs = {}
    for family in ("llama", "gpt2", "mistral"):
        folder = tmp_path_factory.mktemp(family)
        save_random_model(family, bundled_spec, folder)
        specs[family] = replace(bundled_spec, path=str(folder), max_new_tokens=12)
    return specs


@pytest.fixture(scope="module")
def fid(bundled_spec, tmp_path_factory):
    """The specification of a random T5."""
    folder = tmp_path_factory.mktemp("t5")
    tiny_models.save_tokenizer(folder)
    tiny_models.save_model("t5", folder)
    return replace(
        bundled_spec, path=str(folder), architecture="encoder-decoder", stop=(),
        max_input_tokens=64, max_new_tokens=12, shared_prefix="", special_tokens=True,
    )  # fmt: skip


def lists(count):
    """Fused reads of three inputs each, and each input alone."""
    inputs = [
        " ".join(f"w{(7 * i + 3 * j + i * j) % 97}" for j in range(3 + i % 20))
        for i in range(count)
    ]
    fused = [inputs[i : i + 3] for i in range(0, count - 2, 3)]
    return [*fused, *([one] for one in inputs)]


class JobSizes:
    """Forward passes of a class's method, on the way through."""

    def __init__(self, monkeypatch, owner, name):
        self.calls = 0
        through = getattr(owner, name)

        @functools.wraps(through)  # readers look whose method a tokenizer's is
        def count(*args, **kwargs):
            self.calls += 1
            return through(*args, **kwargs)

        monkeypatch.setattr(owner, name, count)


def mixed(count):
    """Short prompts, and three of some 300 words more."""
    return [*prompts(count), *([text + " and more" * 300] for (text,) in prompts(3))]


def on_gpu(load, reads, passes, **options):
    """Outputs on a pretended GPU, and what the device and ``passes`` counted meanwhile."""
    with pretended_cuda(**options) as gpu:
        reader = load()
        reader.prepare()
        gpu.reset()
        passes.calls = 0
        outputs = reader.read(reads)
        assert reader.stats.memory_halvings == 0
    return outputs, gpu


def own_and_transformers(gpu):
    """Copies and synchronisations by who makes them: ours are in modules of their own, below PaddedModel."""
    own, theirs = Counter(), Counter()
    for (kind, site), count in gpu.sites.items():
        ours = site.split(":")[0].endswith(("decoding.py", "transfer.py"))
        (own if ours else theirs)[kind] += count
    return own, theirs


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_padded_readers_wait_and_copy_once_beyond_transformers(causal, family, monkeypatch):
    spec = replace(causal[family], stop=("e",))  # so that reads end throughout
    passes = JobSizes(monkeypatch, PaddedModel, "_logits")
    reads = prompts(12)
    expected = CausalReader(spec).read(reads)
    assert len({output.output_tokens for output in expected}) > 3
    outputs, gpu = on_gpu(lambda: CausalReader(spec), reads, passes)
    assert [o.output for o in outputs] == [o.output for o in expected]
    own, theirs = own_and_transformers(gpu)
    head = int(family != "mistral")  # one with a window shares none
    assert own["synchronisation"] == passes.calls - head
    assert own["copy"] == passes.calls
    # transformers looks at the mask in a step, unless a window tells it not to; for a head, which has none, at
    # the tokens; and each layer with a window copies its size once.
    assert theirs["synchronisation"] <= head * passes.calls
    assert theirs["copy"] <= (1 if head else LAYERS)


@pytest.mark.parametrize("stop", [(), ("7",)])
def test_fusion_in_decoder_waits_once_a_step_and_copies_once_a_pass(fid, stop, monkeypatch):
    """With a stop string reads end throughout, and leave their rows when they are many."""
    spec = replace(fid, stop=stop)
    steps, encoded = (JobSizes(monkeypatch, T5, name) for name in ("step", "encode"))
    launches = []
    for count in (6, 48):
        reads = lists(count)
        expected = EncoderDecoderReader(spec).read(reads)
        assert len({o.output_tokens for o in expected}) > 3 or not stop
        with pretended_cuda() as gpu:
            reader = EncoderDecoderReader(spec)
            reader.prepare()
            through = reader._decode

            decoding = []

            def decode(*args, gpu=gpu, through=through, decoding=decoding):
                before = gpu.launches
                outputs = through(*args)
                decoding.append(gpu.launches - before)
                return outputs

            monkeypatch.setattr(reader, "_decode", decode)
            gpu.reset()
            steps.calls = encoded.calls = 0
            outputs = reader.read(reads)
            assert reader.stats.memory_halvings == 0
        assert [o.output for o in outputs] == [o.output for o in expected]
        assert len({o.output for o in outputs}) > 3
        assert gpu.synchronisations == steps.calls
        assert gpu.copies == steps.calls + encoded.calls
        launches.append(sum(decoding) / steps.calls)
    assert launches[1] <= 1.1 * launches[0]


def check_memory(load, spec, reads, passes, machine):
    """Outputs as on the CPU where the precision is its own, nothing halved, and the peak within the budget."""
    alike = spec.dtype == "float32"
    expected = load(replace(spec, memory=0)).read(reads) if alike else []
    outputs, gpu = on_gpu(lambda: load(spec), reads, passes, **machine)
    if alike:
        assert [o.output for o in outputs] == [o.output for o in expected]
    assert {output.failure for output in outputs} == {None}
    room = min(spec.memory or machine["memory"], machine["memory"] - machine.get("others", 0))
    assert gpu.peak <= room


@pytest.mark.parametrize(
    ("machine", "memory", "dtype"),
    [
        ({"memory": 16 * GIB, "bf16": False}, 16 * 2**20, "float16"),
        ({"memory": 8 * GIB}, 32 * 2**20, "float32"),
        ({"memory": 8 * GIB, "others": 8 * GIB - 32 * 2**20}, 0, "float32"),
    ],
)
def test_batches_of_mixed_lengths_stay_in_their_memory(
    causal, fid, machine, memory, dtype, monkeypatch
):
    passes = JobSizes(monkeypatch, PaddedModel, "_logits")
    spec = replace(causal["llama"], memory=memory, max_new_tokens=4, dtype=dtype)
    check_memory(CausalReader, spec, mixed(30), passes, machine)
    assert (
        passes.calls > spec.max_new_tokens + 1
    )  # beginning and steps of one batch: there were several
    passes = JobSizes(monkeypatch, T5, "step")
    spec = replace(fid, memory=memory, dtype=dtype)
    check_memory(EncoderDecoderReader, spec, lists(60), passes, machine)
    assert passes.calls > spec.max_new_tokens + 1


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_padded_batches_of_mixed_lengths_stay_in_their_memory(causal, family, monkeypatch):
    passes = JobSizes(monkeypatch, PaddedModel, "_logits")
    spec = replace(causal[family], memory=24 * 2**20, max_new_tokens=4)
    check_memory(CausalReader, spec, mixed(16), passes, {"memory": 8 * GIB})
    assert passes.calls > spec.max_new_tokens + 1


@pytest.mark.parametrize("kind", ["flan-t5", pytest.param("umt5", marks=pytest.mark.slow)])
def test_other_kinds_of_t5_give_the_outputs_of_the_cpu(fid, kind, tmp_path, monkeypatch):
    """An output layer of its own and gates, or a bias in every layer."""
    tiny_models.save_tokenizer(tmp_path)
    tiny_models.save_model(kind, tmp_path)
    check_as_on_the_cpu(replace(fid, path=str(tmp_path)), lists(12), monkeypatch)


def test_a_bias_in_cross_attention_gives_the_outputs_of_the_cpu(tiny_t5, tmp_path, monkeypatch):
    """A checkpoint of Fusion-in-Decoder's own code."""
    plain = t5_family.make("t5", tmp_path / "plain", tiny_t5, factor=2.0)
    bias = 50 * torch.randn((32, 4), generator=torch.Generator().manual_seed(3))
    state = t5_family.state_of(plain) | {CROSS_BIAS: bias}
    t5_family.make_original(plain, tmp_path / "fid", state=state)
    spec, _ = readers.specify(
        str(t5_family.add_tokenizer(tmp_path / "fid", tiny_t5)),
        augmentation="fid", task="short-answer", dtype="float32",
    )  # fmt: skip
    check_as_on_the_cpu(spec, lists(12), monkeypatch)


def check_as_on_the_cpu(spec, reads, monkeypatch):
    """Outputs, and the waits and copies of T5."""
    steps, encoded = (JobSizes(monkeypatch, T5, name) for name in ("step", "encode"))
    expected = EncoderDecoderReader(spec).read(reads)
    encoded.calls = 0
    outputs, gpu = on_gpu(lambda: EncoderDecoderReader(spec), reads, steps)
    assert outputs == expected
    assert len({output.output for output in outputs}) > 3
    assert gpu.synchronisations == steps.calls
    # Passes to measure what tokens take come before the device counts.
    assert steps.calls < gpu.copies <= steps.calls + encoded.calls


def test_a_choice_takes_one_wait(causal, fid, monkeypatch, any_mass):
    """As a judge's."""
    words = {CausalReader: (" yes", " no"), EncoderDecoderReader: ("w1", "w2")}
    for load, spec, reads, owner, name in (
        (CausalReader, replace(causal["llama"], shared_prefix=""), prompts(20), PaddedModel, "_logits"),
        (EncoderDecoderReader, fid, lists(20), T5, "step"),
    ):  # fmt: skip
        passes = JobSizes(monkeypatch, owner, name)
        spec = replace(spec, choices=words[load], stop=())
        expected = load(spec).read(reads)
        outputs, gpu = on_gpu(lambda load=load, spec=spec: load(spec), reads, passes)
        assert [o.output for o in outputs] == [o.output for o in expected]
        shares = [output.confidence for output in expected]
        assert [o.confidence for o in outputs] == pytest.approx(shares, abs=1e-4)
        assert len(set(shares)) > 3
        own, _ = own_and_transformers(gpu)
        assert own["synchronisation"] == passes.calls == 1


def test_where_a_gpu_has_no_bf16_arithmetic_fp16_is_taken(monkeypatch):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    for bf16, expected in ((True, "bfloat16"), (False, "float16")):
        with pretended_cuda(bf16=bf16):
            assert device.best_dtype() == expected


def test_a_shortage_halves_batches_and_is_forgotten(causal, monkeypatch):
    """Others take memory after the reader was loaded; later they give it back."""
    reads = prompts(16)
    expected = CausalReader(causal["llama"]).read(reads)
    with pretended_cuda(memory=GIB) as gpu:
        reader = CausalReader(causal["llama"])
        reader.prepare()
        gpu.others = gpu.total - gpu.allocated - 2**20
        outputs = reader.read(reads)
        assert [o.output for o in outputs] == [o.output for o in expected]
        assert reader.stats.memory_halvings > 0
        gpu.others = 0
        whole = reader._allowance.bytes
        for _ in range(5):
            reader.read(reads[:1])
        assert reader._allowance.bytes > whole
        halvings = reader.stats.memory_halvings
        assert [o.output for o in reader.read(reads)] == [o.output for o in expected]
        assert reader.stats.memory_halvings == halvings


def test_weights_are_on_the_device_when_a_reader_is_loaded(causal):
    with pretended_cuda(memory=GIB) as gpu:
        reader = CausalReader(causal["llama"])
        weights = sum(p.numel() * p.element_size() for p in reader._model._model.parameters())
        assert weights <= gpu.allocated
        assert all(p.device == torch.device("cuda", 0) for p in reader._model._model.parameters())


def test_what_cuda_refuses_is_refused():
    with pretended_cuda(memory=2**20) as gpu:
        there = torch.ones(4, device="cuda")
        assert (there.device, there.is_cuda) == (torch.device("cuda", 0), True)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(4)
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(2**20, device="cuda")
        gpu.reset()
        assert (there * 2).tolist() == [2.0] * 4
        assert (gpu.launches, gpu.copies, gpu.synchronisations) == (1, 0, 1)
        assert there[torch.tensor([0, 1])].sum().item() == 2.0
        assert (gpu.copies, gpu.synchronisations) == (1, 2)
        before = gpu.allocated
        more = torch.empty(1000, device="cuda")
        assert gpu.allocated == before + 4000
        del more
        assert gpu.allocated == before
