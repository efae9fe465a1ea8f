"""From a reader's name and a prompt to its specification."""

import ast
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from transformers import LlamaConfig

from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import InputError
from engine.reading import readers
from engine.reading.models import vllm_support
from engine.reading.protocol import ENGINES, EngineChoice, ReaderEngine
from engine.reading.reader_settings import ReaderAsk, ReaderSettings, RunningSettings
from tests.expected import refused

PASSAGES = [("T", "best"), ("U", "next")]
TURNS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def specify(name, tmp_path, content=None, **options):
    prompt = None
    if content is not None:
        prompt = str(tmp_path / "p.txt")
        (tmp_path / "p.txt").write_text(content)
    options = {"augmentation": "in-prompt", "task": "short-answer", "prompt": prompt} | options
    return readers.specify(str(name), dtype="float32", **options)


@pytest.fixture
def chatting(tiny_t5, tmp_path):
    """Makes the tiny reader a chat model with a given template."""

    def make(template):
        copy = tmp_path / "model"
        shutil.copytree(tiny_t5, copy, dirs_exist_ok=True)
        (copy / "chat_template.jinja").write_text(template)
        return copy

    return make


def test_a_template_decides_what_the_specification_says_of_it(tiny_t5, tmp_path):
    content = "---\nmax_new_tokens: 5\nmax_input_tokens: 900\nstop: ['.']\n---\n{query} {passages}!"
    spec, prompt = specify(tiny_t5, tmp_path, content)
    assert (spec.max_new_tokens, spec.max_input_tokens, spec.stop) == (5, 900, (".",))
    assert (spec.choices, spec.special_tokens, spec.shared_prefix) == ((), True, "")
    assert len(prompt.render("q", PASSAGES)) == 1
    fused, prompt = specify(tiny_t5, tmp_path, "{query}: {passages}", augmentation="fid")
    assert fused.max_input_tokens == readers.FID_INPUT_TOKENS
    assert prompt.render("q", PASSAGES) == ["q: Passage: T. best", "q: Passage: U. next"]
    chosen, _ = specify(tiny_t5, tmp_path, '---\nchoices: [" a", " b"]\n---\n{query} {passages}')
    assert chosen.choices == (" a", " b")


def test_settings_that_decide_the_outputs_are_in_the_reads_key(tiny_t5, tmp_path):
    body = "---\n{query} {passages}"
    fronts = ["", "stop: x\n", "max_new_tokens: 3\n", "max_input_tokens: 99\n"]
    fronts += ["choices: ['a', 'b']\n", "choices: ['b', 'a']\n"]
    prints = {specify(tiny_t5, tmp_path, f"---\n{f}{body}")[0].fingerprint for f in fronts}
    assert len(prints) == len(fronts)


@pytest.mark.parametrize(
    ("dtype", "gpu", "fused"),
    [
        ("bfloat16", False, True),
        ("float32", False, False),  # exact, whatever the kernel
        ("bfloat16", True, False),
    ],
)
def test_with_amx_prompts_go_through_the_flash_kernel_under_keys_of_their_own(
    dtype, gpu, fused, monkeypatch
):
    given = {"augmentation": "in-prompt", "task": "short-answer", "dtype": dtype, "gpu": gpu}
    monkeypatch.setattr(readers.device, "has_amx", lambda: False)
    without, _ = readers.specify("bundled", **given)
    monkeypatch.setattr(readers.device, "has_amx", lambda: True)
    spec, _ = readers.specify("bundled", **given)
    assert spec.fused_attention is fused
    assert (spec.fingerprint != without.fingerprint) is fused
    # Neither vLLM nor an executor reads otherwise for it.
    assert replace(spec, engine="vllm").fingerprint == replace(without, engine="vllm").fingerprint
    named = replace(spec, executor="mine"), replace(without, executor="mine")
    assert named[0].fingerprint == named[1].fingerprint


def test_engines_that_users_choose_are_those_of_the_table_and_their_code_is_there():
    assert get_args(EngineChoice) == ("auto", *(name for name, row in ENGINES.items() if row.help))
    root = Path(readers.__file__).parent
    for row in ENGINES.values():
        hooks = row.stored_bytes, row.refuse_gpus, row.refuse_memory, row.prepare
        for place in filter(None, [*row.readers.values(), *hooks]):
            module, name = place.split(":")
            code = ast.parse((root / f"{module.replace('.', '/')}.py").read_text())
            assert name in {getattr(node, "name", None) for node in code.body}, place
        assert bool(row.modules) == bool(row.install)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"readers": {"encoder-decoder": ""}}, "decoder-only, Mine runs encoder-decoder readers; use"),
        ({"choices": 1}, "2 choices for reader 'bundled', and Mine weighs 1 at most; give fewer"),
        ({"choices": 0}, "2 choices for reader 'bundled', and Mine weighs 0 at most; use `engine`"),
        ({"modules": ("nowhere",), "install": "run x"}, "`engine` is mine, but Mine is not installed; run x, or use"),
        ({"scores": ("own",)}, "the reader bundled runs on Mine and gives no log-probabilities"),
    ],
)  # fmt: skip
def test_what_the_table_says_that_an_engine_cannot_do_is_refused(row, words, monkeypatch, tmp_path):
    engine = ReaderEngine(**{"title": "Mine", "readers": {"causal": ""}} | row)
    monkeypatch.setitem(ENGINES, "mine", engine)
    (tmp_path / "p.txt").write_text('---\nchoices: [" a", " b"]\n---\n{query} {passages}')
    prompt = str(tmp_path / "p.txt") if "choices" in row else None
    ask = ReaderAsk(model="bundled", task="short-answer", prompt=prompt, scores="target")
    settings = ReaderSettings(dtype="float32")
    object.__setattr__(settings, "engine", "mine")
    with pytest.raises(InputError) as caught:
        readers.specify_asked(
            ask, settings, RunningSettings(), ApiSettings(), lambda line: None, reads=True
        )
    assert words in str(caught.value)


def test_weights_that_an_engine_uses_as_they_are_stored_are_what_a_budget_is_held_against(
    monkeypatch,
):
    stored = ReaderEngine(title="", readers={"causal": ""}, stored_bytes="models.vllm_support:len")
    monkeypatch.setitem(ENGINES, "mine", stored)
    monkeypatch.setattr(vllm_support, "len", lambda model: 3 * 2**30, raising=False)
    with pytest.raises(InputError, match="2048 MiB cannot hold the reader in float32"):
        readers.specify(
            "bundled", augmentation="in-prompt", task="short-answer", dtype="float32", memory=2**31, engine="mine"
        )  # fmt: skip


def test_the_least_budget_of_bf16_has_room_for_a_matrix_that_is_ordered(monkeypatch):
    given = {"augmentation": "in-prompt", "task": "short-answer", "memory": 2**31}
    monkeypatch.setattr(readers.model_files, "ordering_bytes", lambda path: 2**33)
    readers.specify("bundled", dtype="float32", **given)
    with refused("settings.memory"):
        readers.specify("bundled", dtype="bfloat16", **given)


def test_encoder_decoder_readers_read_listed_passages_of_any_template(tiny_t5, tmp_path):
    """The passages reach the model: other passages, another answer (random weights, fixed seed)."""
    content = '---\npassage: "w1 {text} "\nmax_new_tokens: 6\n---\n{passages}w2 {query}'
    for augmentation in ("in-prompt", "fid"):
        spec, prompt = specify(tiny_t5, tmp_path, content, augmentation=augmentation)
        texts = [["w5 w6 w7", "w8"], ["w8", "w50 w51 w52"], ["w90", "w91"]]
        inputs = [prompt.render("w3 w4", [("", text) for text in pair]) for pair in texts]
        assert {len(texts) for texts in inputs} == {1 if augmentation == "in-prompt" else 2}
        outputs = readers.load(spec).read(inputs)
        assert [o.failure for o in outputs] == [None] * 3
        assert len({o.output for o in outputs}) > 1
        assert outputs[0].prompt_tokens == sum(len(t.split()) + 1 for t in inputs[0])


def test_a_chat_is_the_models_own_template_around_the_rendered_text(chatting, tmp_path):
    model = chatting(TURNS)
    spec, prompt = specify(model, tmp_path, "---\nchat: true\n---\nRead.\n{passages}Q: {query}\n")
    assert not spec.special_tokens  # the template writes them
    assert prompt.render("{{ 1 }} {query}", PASSAGES[:1]) == [
        "<user>Read.\nPassage: T. best\nQ: {{ 1 }} {query}</><assistant>"
    ]
    content = '---\nchat: true\nsystem: "Be {brief}."\n---\n{passages}Q: {query}'
    _, prompt = specify(model, tmp_path, content)
    assert prompt.head == "<system>Be {brief}.</><user>"


def test_a_shipped_chat_fits_the_bundled_model(tmp_path):
    spec, prompt = specify("bundled", tmp_path, prompt="chat")
    (text,) = prompt.render("who?", PASSAGES)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith(
        "Passage: U. next\nPassage: T. best\n\nQuestion: who?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.startswith(spec.shared_prefix)
    assert spec.shared_prefix.endswith("not a sentence.\n\n")
    assert spec.tail_marker in text


def test_chat_prompts_do_not_depend_on_the_date_and_turn_thinking_off(chatting, tmp_path):
    model = chatting(
        "{{ strftime_now('%Y') }}{{ messages[0]['content'] }}"
        "{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}"
    )
    _, prompt = specify(model, tmp_path, "---\nchat: true\n---\n{passages}Q: {query}")
    assert (prompt.head, prompt.tail) == ("2024", "<no>")


@pytest.mark.parametrize(
    ("template", "system"),
    [
        ("", ""),
        ("hello", ""),
        ("{{ messages[0]['content'] * 2 }}", ""),
        ("{{ raise_exception('no system') }}", "system: s\n"),
        ("{% for %}", ""),
    ],
)
def test_models_that_cannot_chat_are_refused(chatting, tiny_t5, tmp_path, template, system):
    model = chatting(template) if template else tiny_t5
    with refused("model.template" if template else "model.templateless", path=model):
        specify(model, tmp_path, f"---\nchat: true\n{system}---\n{{passages}}Q: {{query}}")


def test_inputs_longer_than_the_models_positions_are_refused(chatting, tmp_path):
    model = chatting(TURNS)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    content = "---\nmax_new_tokens: 8\nmax_input_tokens: {}\n---\n{{query}} {{passages}}"
    assert specify(model, tmp_path, content.format(120))[0].max_input_tokens == 120
    with refused("prompt.length"):
        specify(model, tmp_path, content.format(121))


def test_a_specification_holds_the_size_of_the_model(tiny_t5, tmp_path):
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(tiny_t5)
    spec, _ = specify(tiny_t5, tmp_path)
    assert spec.parameters == sum(weights.numel() for weights in model.parameters())


def test_quantised_weights_are_refused_where_our_own_loops_would_read_them(tiny_t5, tmp_path):
    shutil.copytree(tiny_t5, tmp_path / "model")
    path = tmp_path / "model/config.json"
    decoder = LlamaConfig(architectures=["LlamaForCausalLM"]).to_dict()
    quantised = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    for changed in ({}, decoder):
        path.write_text(json.dumps(json.loads(path.read_text()) | quantised | changed))
        with refused("model.quantised"):
            specify(path.parent, tmp_path)
