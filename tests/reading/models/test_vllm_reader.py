"""Readers on vLLM answer as CausalReader does. Needs vLLM (make vllm), so these are no part of make test."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._single import default_prompt
from engine.machine.batching import MORE_MEMORY
from engine.machine.pool import PoolSettings, decide
from engine.reading import readers
from engine.reading.local import Local
from engine.reading.models.causal import CausalReader
from engine.reading.models.tokenizing import DOES_NOT_FIT
from engine.reading.plan import INPUTS, PlansInMemory, ReadPlan
from engine.reading.stream_on_ray import OnRay
from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.passages.cut import passages
from engine.sources.queries.read import read_queries
from tests.expected import refused
from tests.reading.models import tiny_models

MIB = 2**20
ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.slow,
    # Once it was installed, that it cannot be found is a fault.
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None
        and not Path(sys.prefix, ".installed-vllm").exists(),
        reason="vLLM is not installed (make vllm)",
    ),
]


@pytest.fixture(scope="module")
def spec(bundled_spec):
    return replace(bundled_spec, engine="vllm")


@pytest.fixture(scope="module")
def inputs():
    """Prompts of demo questions, half of them in two pieces."""
    corpus = passages(read_source(wikipedia_dump()))
    queries = read_queries(questions("short-answer"))["query"].to_list()
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    rows = corpus.select("title", "text").rows()[:: corpus.height // 24][:24]
    prompts = [prompt.render(q, [row])[0] for q, row in zip(queries, rows, strict=False)]
    return [[text[:500], text[500:]] if i % 2 else [text] for i, text in enumerate(prompts)]


@pytest.fixture(scope="module")
def expected(bundled_spec, inputs):
    return CausalReader(bundled_spec).read([["".join(pieces)] for pieces in inputs])


@pytest.fixture(scope="module")
def load(spec):
    """Loads readers, and holds them: a reader that goes takes vLLM's global groups with it."""
    held = []

    def loaded(cache=128 * MIB, **changes):
        # 1280 MiB is counted for the process and 513 MiB are the weights in fp32.
        budget = int((1280 * MIB + 513 * MIB + cache) / 0.9)
        held.append(readers.load(replace(spec, memory=budget, **changes)))
        return held[-1]

    return loaded


@pytest.fixture(scope="module")
def reader(load):
    return load()


def test_outputs_equal_those_of_transformers(reader, inputs, expected):
    got = reader.read(inputs)
    assert got == expected
    assert len({output.output for output in got}) > 12  # it does answer
    assert any(output.output_tokens < 16 for output in got)  # stops and ends were met
    assert [reader.read([one])[0] for one in inputs[:3]] == expected[:3]


def test_what_prompts_share_is_computed_once(load, inputs, expected):
    fresh = load(cache=129 * MIB)  # another budget is another engine, whose cache is empty
    fresh.read(inputs[:1])
    before = fresh.stats.padded_tokens
    assert before == expected[0].prompt_tokens
    fresh.read(inputs[1:])
    computed = fresh.stats.padded_tokens - before
    whole = sum(output.prompt_tokens for output in expected[1:])
    # the instruction and examples, in whole blocks
    assert whole - computed >= 23 * 96
    assert fresh.stats.prompt_tokens == fresh.stats.padded_tokens
    assert fresh.stats.peak_memory > 2**20


def test_stop_strings_end_an_output_within_a_token(load, bundled_spec, inputs):
    settings = {"stop": ("e", "\n"), "max_new_tokens": 8}
    got = load(**settings).read(inputs)
    assert got == CausalReader(replace(bundled_spec, **settings)).read(
        [["".join(pieces)] for pieces in inputs]
    )
    assert not any("e" in output.output for output in got)
    assert any(output.output for output in got)


def test_long_prompts_are_cut_alike(load, bundled_spec, inputs):
    limit = 200
    got = load(max_input_tokens=limit).read(inputs)
    reference = CausalReader(replace(bundled_spec, max_input_tokens=limit))
    # what stands in a piece before the last is kept, so the pieces have to be the same
    assert got == [reference.read([pieces])[0] for pieces in inputs]
    assert any(o.truncated and o.prompt_tokens == limit for o in got)
    nothing = load(max_input_tokens=5).read(inputs[:2])
    assert all(DOES_NOT_FIT in o.failure and o.output == "" for o in nothing)


def test_log_probabilities_equal_those_of_transformers(load, bundled_spec, inputs):
    """Not run where this was written, for want of vLLM."""
    import math

    targets = [
        [*pieces, f" {word}"] for pieces in inputs[:4] for word in ("Paris", "the year 1968")
    ]
    for scores, asked in (("target", targets), ("own", inputs[:4])):
        got = load(scores=scores).read(asked)
        expected = CausalReader(replace(bundled_spec, scores=scores)).read(asked)
        assert [replace(one, confidence=None) for one in got] == [
            replace(one, confidence=None) for one in expected
        ]
        for one, other in zip(got, expected, strict=True):
            assert math.log(one.confidence) == pytest.approx(math.log(other.confidence), abs=1e-4)


def test_readers_of_one_model_share_an_engine(reader, load):
    others = [load(stop=("e",)), load(choices=(" yes", " no")), load(choices=(" The",))]
    assert {id(other._engine) for other in others} == {id(reader._engine)}


def test_one_of_the_choices_is_chosen_and_the_first_ones_share_is_given(load, spec, inputs):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    choices = (" yes", " no", " The")
    chosen = load(choices=choices).read(inputs[:6])
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    first = [tokenizer.encode(choice, add_special_tokens=False)[0] for choice in choices]
    for pieces, output in zip(inputs[:6], chosen, strict=True):
        ids = tokenizer("".join(pieces), return_tensors="pt")
        with torch.inference_mode():
            shares = model(**ids).logits[0, -1, first].softmax(-1)
        assert output.output == choices[int(shares.argmax())].strip()
        assert output.confidence == pytest.approx(float(shares[0]), rel=1e-3)
        assert output.output_tokens == 0


def test_the_probability_of_a_single_choice_is_taken_among_all_tokens(load, spec, inputs):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen = load(choices=(" The",)).read(inputs[:4])
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    first = tokenizer.encode(" The", add_special_tokens=False)[0]
    for pieces, output in zip(inputs[:4], chosen, strict=True):
        ids = tokenizer("".join(pieces), return_tensors="pt")
        with torch.inference_mode():
            share = float(model(**ids).logits[0, -1].softmax(-1)[first])
        assert output.confidence == pytest.approx(share, rel=1e-3)
        assert output.output == ("The" if share > 0.5 else "")


def test_after_an_error_the_engine_holds_no_requests(reader, inputs, expected, monkeypatch):
    step = reader._engine.step

    def fail():
        step()
        raise RuntimeError("a kernel failed")

    with monkeypatch.context() as patch:
        patch.setattr(reader._engine, "step", fail)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            reader.read(inputs)
    assert not reader._engine.has_unfinished_requests()
    assert reader.read(inputs[:4]) == expected[:4]


def test_memory_bounds_the_cache_and_longer_prompts_fail_with_a_reason(load, spec, inputs):
    with refused("vllm.memory", text=False):
        readers.load(replace(spec, memory=2**30))
    # 46080 bytes a token in fp32
    tight = load(cache=65 * MIB)
    assert 1400 < tight._longest < 1500
    long = ["", "".join(inputs[0]) * 8]
    short, failed = tight.read([inputs[0], long])
    assert short.failure is None
    assert MORE_MEMORY in failed.failure
    assert not failed.truncated


@pytest.mark.usefixtures("ray_session")
def test_an_actor_on_ray_gives_the_same(spec, inputs, expected):
    import polars as pl

    names = [str(place) for place in range(len(inputs))]
    plan = pl.DataFrame({
        "read_key": names, "query_id": names, "doc_ids": [[]] * len(names),
        INPUTS: inputs, "size": 1, "group": names,
    })  # fmt: skip
    made = PlansInMemory([ReadPlan(reads=plan, wanted=plan.height, first=8)])
    pool = decide(PoolSettings(actors=1), 2**30)
    done = list(OnRay(Local([spec], [None]), pool).read(made))
    assert all(unit.stats["peak_memory"] > 2**20 for unit in done)
    outputs = {
        key: text for unit in done for key, text in unit.reads[["read_key", "output"]].rows()
    }
    assert [outputs[name] for name in names] == [one.output for one in expected]


# In a process of its own: vLLM's groups are global, and the readers above hold theirs.
TOGETHER = """
import json, sys
from dataclasses import replace
from engine.reading import readers

if __name__ == "__main__":
    path, gpus, reads = json.load(sys.stdin)
    spec, _ = readers.specify(
        path, augmentation="in-prompt", task="short-answer", dtype="float32", engine="vllm"
    )
    spec = replace(spec, gpus=gpus, threads=1)
    reader = readers.load(spec)
    judge = readers.load(replace(spec, choices=(" yes", " no")))
    assert judge._engine is reader._engine
    judged = [output.confidence for output in judge.read(reads)]
    print(json.dumps([[output.output for output in reader.read(reads)], judged]))
"""


def test_two_processes_that_hold_a_reader_together_answer_alike(bundled_spec, inputs, tmp_path):
    """Tensor parallelism of two, on vLLM's CPU build: each process has half of the heads."""
    tiny_models.save_llama(tmp_path, bundled_spec.path)
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    done = subprocess.run(
        [sys.executable, script],
        input=json.dumps([str(tmp_path), 2, inputs[:12]]),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    spec, _ = readers.specify(
        str(tmp_path), augmentation="in-prompt", task="short-answer", dtype="float32"
    )
    expected = [output.output for output in CausalReader(spec).read(inputs[:12])]
    judge = CausalReader(replace(spec, choices=(" yes", " no")))
    judged = [output.confidence for output in judge.read(inputs[:12])]
    outputs, confidences = json.loads(done.stdout.splitlines()[-1])
    assert outputs == expected
    assert confidences == pytest.approx(judged, rel=1e-3)
    assert len(set(expected)) == 12


# In a process of its own, too, which counts how often vLLM is started.
ROLES = """
import json, sys
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.machine.pool import PoolSettings
from engine.reading.models import vllm_support
from engine.reading.plan import requested_reads
from benchmarks._reads import get_reads
from tests.tables import inputs

if __name__ == "__main__":
    vllm_support.set_environment()
    import vllm

    starts = []
    start = vllm.LLMEngine.from_engine_args

    def counted(*args, **options):
        starts.append(1)
        return start(*args, **options)

    vllm.LLMEngine.from_engine_args = counted
    directory, memory = sys.argv[1:]
    settings = Settings.of(
        k=2, resamples=0, measures="P@2 UDCG@2", annotators=("erag", "judge", "utility"),
        engine="vllm", dtype="float32", memory=int(memory), actors=0,
    )
    roles = evaluate(inputs(), settings, store=directory + "/together").readings
    told = {"together": len(starts), "reads": {}}
    for name, reading in roles.items():
        given = inputs()
        wanted = requested_reads(
            reading.wanted, given.queries, given.corpus,
            prompt=reading.prompt, fingerprint=reading.spec.fingerprint,
        )
        place = directory + "/" + name
        apart, _ = get_reads(wanted, reading.spec, place, pool=PoolSettings(actors=0))
        told["reads"][name] = [reading.reads.to_dicts(), apart.to_dicts()]
    told["apart"] = len(starts) - told["together"]
    print(json.dumps(told))
"""


def test_the_roles_of_an_evaluation_load_their_model_once_and_read_as_apart(tmp_path):
    script = tmp_path / "roles.py"
    script.write_text(ROLES)
    memory = int((1280 + 513 + 128) * MIB / 0.9)  # as above
    done = subprocess.run(
        [sys.executable, script, str(tmp_path), str(memory)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["together"], told["apart"]) == (1, 3)
    assert told["reads"].keys() == {"reader", "judge", "abstain"}
    for role, (together, apart) in told["reads"].items():
        assert together
        for one, other in zip(together, apart, strict=True):
            confidence, expected = one.pop("confidence"), other.pop("confidence")
            assert (confidence is None) == (expected is None) == (role == "reader")
            if expected is not None:
                assert confidence == pytest.approx(expected, rel=1e-4)
            assert one == other
            assert one["failure"] is None
