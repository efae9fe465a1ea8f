"""The decoder-only reader against transformers' own generate.

What the bundled model is needed for is tested with it, in fp32; the rest with a small random model of
the same family and with the same tokenizer.
"""

import functools
import json
import random
from dataclasses import replace
from string import ascii_letters
from threading import Thread

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks._single import default_prompt
from engine.reading.local import Local
from engine.reading.models.causal import CausalReader
from engine.reading.models.decoding import padded_length
from engine.reading.models.tokenizing import DOES_NOT_FIT, PromptRead
from engine.reading.plan import Unit
from tests.conftest import needs_steady_bf16

PASSAGES = [
    ("Aruba", "Aruba lies in the southern Caribbean Sea. Its capital is Oranjestad."),
    ("Apollo 8", "Apollo 8 was launched on December 21, 1968, with Borman, Lovell and Anders."),
    ("Aardvark", "The aardvark " + "digs for ants and termites at night " * 12),
]
# Of the random models, of the bundled one's 49,152 tokens.
VOCABULARY = 8192
QUESTIONS = ["what is the capital of aruba", "when was apollo 8 launched", "who eats ants"]


@pytest.fixture(scope="module")
def prompts():
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    texts = [prompt.render(q, [p]) for q, p in zip(QUESTIONS, PASSAGES, strict=True)]
    texts.append(prompt.render(QUESTIONS[0], PASSAGES))  # an end-to-end read of three passages
    texts.append(prompt.render(QUESTIONS[1], []))
    return texts


def generate(spec, prompts):
    """What transformers' generate gives, one prompt at a time, cut at the line's end."""
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    texts = []
    for (prompt,) in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        length = ids["input_ids"].shape[1]

        # Its own stop strings look through the vocabulary first, once for every prompt.
        def ended(written, _, length=length):
            return torch.tensor(["\n" in tokenizer.decode(written[0, length:])])

        out = model.generate(
            **ids, max_new_tokens=spec.max_new_tokens, do_sample=False, pad_token_id=0,
            stopping_criteria=[ended],
        )  # fmt: skip
        text = tokenizer.decode(out[0, length:], skip_special_tokens=True)
        texts.append(text.split("\n")[0].strip())
    return texts


@pytest.fixture(scope="module")
def spec(bundled_spec, tmp_path_factory):
    """A random model of the bundled one's family whose outputs depend on the prompt."""
    directory = tmp_path_factory.mktemp("llama")
    save_random_model("llama", bundled_spec, directory)
    return replace(bundled_spec, path=str(directory))


@pytest.fixture(scope="module")
def generated(spec, prompts):
    texts = generate(spec, prompts)
    assert len(set(texts)) == len(texts)
    return texts


def test_outputs_equal_generate_in_one_batch_and_alone(bundled_spec, prompts):
    # Two of the short ones; random models read them all, and each alone.
    prompts = [prompts[0], prompts[4]]
    generated = generate(bundled_spec, prompts)
    reader = CausalReader(bundled_spec)
    batched = reader.read(prompts)
    assert [r.output for r in batched] == generated
    assert reader.read(prompts[:1])[0].output == generated[0]
    assert not any(r.truncated or r.failure for r in batched)
    assert any("Oranjestad" in text for text in generated)  # the model does answer


def test_outputs_do_not_depend_on_the_shared_prefix_the_budget_or_the_kernel(
    spec, prompts, generated
):
    for changed in (
        replace(spec, shared_prefix=""),
        replace(spec, shared_prefix="Something else."),
        replace(spec, memory=1),  # one read a batch
        replace(spec, fused_attention=True),
    ):
        assert [r.output for r in CausalReader(changed).read(prompts)] == generated


def test_a_prompt_beyond_the_caches_gives_the_same_wherever_it_is_cut(spec):
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    text = " ".join(f"{word} {i}" for i in range(90) for word in ("oboe", "Aruba", "piano"))
    assert 1100 < len(tokenizer.encode(text)) < 2000
    spec = replace(spec, shared_prefix="", stop=())
    whole = CausalReader(spec).read([[text]])[0].output
    assert whole == generate(spec, [[text]])[0]
    # Its prompt is cut after every 64 tokens.
    assert CausalReader(replace(spec, memory=1)).read([[text]])[0].output == whole


def counted(reader, monkeypatch):
    """The sizes of the batches that the reader answers from now on."""
    rows = []
    inner = reader._model.passes
    monkeypatch.setattr(
        reader._model, "passes", lambda asked: rows.append(len(asked)) or inner(asked)
    )
    return rows


def watched(reader, monkeypatch):
    """Of each pass of the reader from now on, tokens of prompts and tokens that answers go on with."""
    passes = []
    inner = reader._model._forward

    def forward(of):
        writing = sum(span.writing for span in of.spans)
        passes.append((sum(span.tokens for span in of.spans) - writing, writing))
        return inner(of)

    monkeypatch.setattr(reader._model, "_forward", forward)
    return passes


def answered(model, asked):
    """The answers that one batch begins."""
    answers = []

    def passes():
        answers.extend((yield from model.passes(asked)))

    for _ in passes():
        pass
    return answers


def test_answers_go_on_beside_prompts_that_are_still_to_be_read(
    spec, prompts, generated, monkeypatch
):
    # Chunks are of 64 tokens: in one batch, and in batches of which some leave answers to the next.
    for tokens in (0, 700):
        reader = CausalReader(replace(spec, batch_tokens=tokens))
        reader._model._most = 64
        rows, passes = counted(reader, monkeypatch), watched(reader, monkeypatch)
        assert [r.output for r in reader.read(prompts)] == generated
        assert (len(rows) > 1) == (tokens > 0)
        assert sum(prompt > 0 and writing > 0 for prompt, writing in passes) >= 2
        assert reader._model._cache is None  # others may have the memory


def test_answers_under_way_are_written_on_until_memory_has_room_for_the_next(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(replace(spec, memory=1))  # one read a batch
    rooms = []
    inner = reader._model._advance

    def advance(*given):
        rooms.append(reader._model._cache.layers[0].shape[2])
        inner(*given)

    monkeypatch.setattr(reader._model, "_advance", advance)
    outputs = reader.read(prompts)
    assert [r.output for r in outputs] == generated
    longest = max(r.prompt_tokens for r in outputs)
    assert max(rooms) == padded_length(longest + spec.max_new_tokens)


def test_answers_under_way_outlast_a_later_batch_that_memory_runs_out_in(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(spec)
    model = reader._model
    asked = [PromptRead(read.tokens) for read in reader._reads(prompts)]
    assert len(list(model.batches(asked, memory=10**9, max_tokens=10**6))) == 1
    written = answered(model, asked[:2])
    assert model.is_writing(written)
    inner, passes = model._forward, []

    def forward(of):
        if any(len(one.rows) > 2 for one in passes):  # an answer of the batch has begun
            raise ZeroDivisionError
        passes.append(of)
        return inner(of)

    model._chunk = 64
    with monkeypatch.context() as patch:
        patch.setattr(model, "_forward", forward)
        with pytest.raises(ZeroDivisionError):
            answered(model, asked[4:] + asked[2:4])
    assert model._going == written
    held = model._cache.layers[0].shape[2]
    model.shrink()
    assert model._cache.layers[0].shape[2] == sum(model._rooms()) < held
    written += answered(model, asked[2:])
    model.finish()
    assert not model.is_writing(written)
    assert [answer.text.split("\n")[0].strip() for answer in written] == generated


def test_a_batch_beside_answers_under_way_waits_for_a_quarter_of_the_room(spec, monkeypatch):
    # Without that, each answer that ends would make room for a batch of one text.
    reader = CausalReader(replace(spec, shared_prefix="", stop=()))
    asked = [f"{letter} what is the capital of aruba" for letter in ascii_letters[:30]]
    room = padded_length(len(reader._tokenizer.encode(asked[0])) + spec.max_new_tokens)
    monkeypatch.setattr(reader, "_most_tokens", 8 * room)
    reader._model._most = 64  # answers begin, and end, one after the other
    rows = counted(reader, monkeypatch)
    outputs = [r.output for r in reader.read([[text] for text in asked])]
    assert sum(rows) == len(asked)
    assert min(rows) >= 2
    assert outputs == [CausalReader(reader._spec).read([[text]])[0].output for text in asked]


def test_a_cache_is_kept_no_larger_than_a_later_call_may_have(spec, prompts, generated):
    reader = CausalReader(spec)
    model = reader._model
    asked = [PromptRead(read.tokens) for read in reader._reads(prompts)]
    list(model.batches(asked, memory=10**9, max_tokens=10**6))
    written = answered(model, asked)
    full = model._cache.layers[0].shape[2]
    least = padded_length(max(len(one.tokens) for one in asked) + spec.max_new_tokens)
    for places in model.batches(asked[:1], memory=10**9, max_tokens=least):
        written += answered(model, [asked[place] for place in places])
    assert model._cache.layers[0].shape[2] <= least < full
    model.finish()
    texts = [answer.text.split("\n")[0].strip() for answer in written]
    assert texts == [*generated, generated[0]]


def test_memory_that_runs_out_between_batches_makes_later_calls_smaller(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(spec)
    whole = reader._allowance.bytes

    def step():
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(reader._model, "step", step)
        with pytest.raises(MemoryError):
            reader.read(prompts)
    assert reader.stats.memory_halvings == 1
    assert reader._allowance.bytes == whole / 2
    assert [r.output for r in reader.read(prompts)] == generated


def test_the_call_behind_is_read_while_the_last_answers_are_written(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(spec)
    assert reader.reads_ahead
    reader.read(prompts[:1])  # the head is known
    passes = watched(reader, monkeypatch)
    first, second = reader.start(prompts[:3]), reader.start(prompts[3:])
    assert passes == []
    host, units = Local([spec], [None]), []
    host.readers[0] = reader
    for finish, part in ((first, prompts[:3]), (second, prompts[3:])):
        unit = Unit(len(units), 0, len(part))
        units.append(host.read_unit(unit, part, finish))
    assert [r.output for unit in units for r in unit.outputs] == generated
    # The prompts of both came one behind the other, and no step was for the first call's answers alone.
    prompt = [tokens for tokens, _ in passes]
    assert min(prompt[:2]) > 0
    assert not any(prompt[2:])
    # Each call has its own tokens and time, though it took them in another's.
    assert [unit.computed_tokens for unit in units] == prompt[:2]
    assert all(unit.seconds > 0 for unit in units)
    assert reader.stats.nanoseconds_ahead == 0
    assert not reader._waiting


def test_a_call_that_fails_ahead_of_its_turn_is_read_in_its_turn(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(spec)
    inner = reader._model._forward
    (bad,) = reader._reads(prompts[3:4])
    tried = []

    def forward(of):
        ends = [s.have + s.tokens for s in of.spans if not s.writing]
        if bad.length in ends:
            tried.append(ends)
            raise ArithmeticError("no numbers")
        return inner(of)

    monkeypatch.setattr(reader._model, "_forward", forward)
    first, second = reader.start(prompts[:3]), reader.start(prompts[3:])
    with pytest.raises(ArithmeticError):
        first()
    # Who called reads one by one then, and nothing of the second call is tried meanwhile, nor by a third one.
    assert [reader.read([one])[0].output for one in prompts[:3]] == generated[:3]
    third = reader.start(prompts[:3])
    assert [r.output for r in third()] == generated[:3]
    assert len(tried) == 1
    with pytest.raises(ArithmeticError):
        second()
    assert reader.read(prompts[4:])[0].output == generated[4]


def test_readers_in_two_threads_share_a_model(spec, prompts, generated):
    first, second = CausalReader(spec), CausalReader(spec)
    model = first._model._model
    assert model is second._model._model
    threads, outputs = [], []

    def begin(*_):  # within a pass of the first reader, before the second one's model is set up
        if not threads:
            threads.append(Thread(target=lambda: outputs.extend(second.read(prompts))))
            threads[0].start()
            threads[0].join(0.5)

    handle = model.get_decoder().layers[0].register_forward_pre_hook(begin)
    assert [r.output for r in first.read(prompts)] == generated
    threads[0].join()
    handle.remove()
    assert [r.output for r in outputs] == generated


def test_reads_out_of_turn_leave_the_outputs_as_they_are(spec, prompts, generated):
    reader = CausalReader(spec)
    first, second, third = (reader.start([one]) for one in prompts[:3])
    assert [r.output for r in first()] == generated[:1]
    assert [r.output for r in reader.read(prompts[3:])] == generated[3:]
    assert [r.output for r in third()] == generated[2:3]
    assert [r.output for r in second()] == generated[1:2]
    abandoned = reader.start(prompts)
    del abandoned
    fourth = reader.start(prompts[:1])
    assert [r.output for r in fourth()] == generated[:1]


def test_batches_hold_no_more_tokens_than_the_specification_says(
    spec, prompts, generated, monkeypatch
):
    reader = CausalReader(replace(spec, batch_tokens=1))
    rows = counted(reader, monkeypatch)
    assert [r.output for r in reader.read(prompts)] == generated
    assert rows == [1] * len(prompts)


def test_what_prompts_begin_with_is_computed_once(spec, prompts):
    reader = CausalReader(spec)
    first = sum(output.prompt_tokens for output in reader.read(prompts))
    head = len(reader._head)
    assert head > 80
    # The head once; and two of the prompts begin with the same passage's first words.
    assert first - reader.stats.prompt_tokens >= (len(prompts) - 1) * head
    before = reader.stats.prompt_tokens
    again = sum(output.prompt_tokens for output in reader.read(prompts))
    assert again - (reader.stats.prompt_tokens - before) >= len(prompts) * head


def test_a_passage_that_two_queries_read_is_computed_once(spec):
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    long = ("Aardvark", "The aardvark " + "digs for ants and termites at night " * 12)
    asked = [prompt.render(question, [long]) for question in QUESTIONS]
    alone, together = CausalReader(spec), CausalReader(spec)
    apart = [alone.read([one])[0].output for one in asked]
    assert [output.output for output in together.read(asked)] == apart
    saved = alone.stats.prompt_tokens - together.stats.prompt_tokens
    text = asked[0][0].split("\n\n")[-1].rsplit("Question", 1)[0]
    passage = len(alone._encode([text])[text])
    assert saved >= 2 * (passage - 3)


def test_pieces_are_one_prompt_and_what_precedes_the_last_is_shared(spec, prompts):
    whole = [[text] for (text,) in prompts]
    cut = [[text[: len(text) // 2], text[len(text) // 2 :]] for (text,) in prompts]
    reader = CausalReader(spec)
    assert reader.read(cut) == reader.read(whole)


@needs_steady_bf16
def test_bfloat16_outputs_are_the_same_to_the_bit_however_the_work_is_cut(bundled_spec, any_mass):
    spec = replace(bundled_spec, dtype="bfloat16", choices=(" Yes", " No"))
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    many = [
        prompt.render(question, PASSAGES[i : 2 * i + 1])  # one passage, or two
        for question in QUESTIONS[:2]
        for i in range(2)
    ]
    together = CausalReader(spec).read(many)
    reader = CausalReader(replace(spec, batch_tokens=1))
    # Confidences are sums over all of the model's arithmetic: equal ones leave no doubt.
    assert [reader.read([one])[0].confidence for one in many] == [o.confidence for o in together]
    without = CausalReader(replace(spec, shared_prefix="")).read(many[::-1])
    assert [o.confidence for o in without[::-1]] == [o.confidence for o in together]
    assert len({o.confidence for o in together}) == len(many)


def test_a_choice_is_made_by_the_probabilities_of_first_tokens(spec, prompts, any_mass):
    choosing = replace(spec, choices=(" Yes", " No", " Oranjestad"))
    outputs = CausalReader(choosing).read(prompts)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    firsts = [tokenizer.encode(choice)[0] for choice in choosing.choices]
    for (prompt,), output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        shares = logits[firsts].softmax(-1)
        assert output.confidence == pytest.approx(float(shares[0]), abs=1e-5)
        assert output.output == choosing.choices[int(shares.argmax())].strip()
        assert output.output_tokens == 0


def test_the_probability_of_a_single_choice_is_taken_among_all_tokens(spec, prompts):
    spec = replace(spec, choices=(" Oranjestad",))
    outputs = CausalReader(spec).read(prompts)
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec.path)
    first = tokenizer.encode(spec.choices[0])[0]
    for (prompt,), output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        share = float(logits.softmax(-1)[first])
        assert output.confidence == pytest.approx(share, abs=1e-5)
        assert output.output == ("Oranjestad" if share > 0.5 else "")
    assert len({output.confidence for output in outputs}) == len(prompts)


def test_long_prompts_lose_passages_and_never_the_question(spec, prompts):
    limit = 190
    reader = CausalReader(replace(spec, max_input_tokens=limit))
    fits, cut = reader.read([prompts[0], prompts[2]])
    assert not fits.truncated
    assert cut.truncated
    assert cut.prompt_tokens == limit
    assert cut.failure is None
    (text,) = prompts[2]
    whole = reader._encode([text])[text]
    shared = len(reader._head) - 1
    kept = reader._reads([[text]])[0].tokens
    assert len(kept) == limit
    assert kept[:shared] == whole[:shared]
    assert reader._tokenizer.decode(kept).endswith("\nQuestion: who eats ants\nAnswer:")


def test_a_query_before_the_passages_is_not_cut(spec):
    reader = CausalReader(replace(spec, max_input_tokens=150, tail_marker=""))
    head = spec.shared_prefix + "Question: who eats ants and termites at night\n"
    text = "Passage: " + "digs for ants " * 60
    kept = reader._reads([[head, text]])[0]
    assert kept.truncated
    assert reader._tokenizer.decode(kept.tokens).startswith(head.rstrip())
    (output,) = reader.read([[head, text]])
    assert output.failure is None
    assert output.prompt_tokens == 150


def test_a_prompt_whose_question_does_not_fit_fails(spec, prompts):
    prefix = len(CausalReader(spec)._head)
    limited = CausalReader(replace(spec, max_input_tokens=prefix + 3))
    outputs = limited.read(prompts)
    assert {o.failure for o in outputs} == {DOES_NOT_FIT}
    assert all(o.output == "" for o in outputs)


def test_out_of_memory_ends_in_the_same_outputs(spec, prompts, generated, monkeypatch):
    reader = CausalReader(spec)
    inner = reader._model.passes

    def tight(asked):
        if len(asked) > 2:
            raise torch.OutOfMemoryError
        return inner(asked)

    whole, chunk = reader._allowance.bytes, reader._model._most
    monkeypatch.setattr(reader._model, "passes", tight)
    assert [r.output for r in reader.read(prompts)] == generated
    assert reader.stats.memory_halvings >= 1
    assert reader._allowance.bytes < whole
    assert reader._model._most < chunk
    # once there is room again, batches and chunks grow to what they were
    monkeypatch.setattr(reader._model, "passes", inner)
    for _ in range(64):
        assert [r.output for r in reader.read(prompts[:1])] == generated[:1]
        if (reader._allowance.bytes, reader._model._most) == (whole, chunk):
            break
    assert (reader._allowance.bytes, reader._model._most) == (whole, chunk)


@functools.cache
def small_tokenizer(path):
    """The bundled tokenizer with the first of its tokens and merges only: loading all takes most of a test."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {token: i for token, i in whole["model"]["vocab"].items() if i < VOCABULARY}
    merges = [pair for pair in whole["model"]["merges"] if "".join(pair) in kept]
    whole["model"] |= {"vocab": kept, "merges": merges}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(whole))
    return tokenizer


def tiny_models():
    """Small random models of several families: grouped or not, other position codes, soft caps."""
    from transformers import (
        Gemma2Config,
        Gemma3TextConfig,
        GPT2Config,
        GptOssConfig,
        LlamaConfig,
        MistralConfig,
        Qwen2Config,
    )

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    }
    return {
        "llama": LlamaConfig(**shape),
        "qwen2": Qwen2Config(**shape),
        "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=2048),
        # soft caps and windows that matter at this length
        "gemma2": Gemma2Config(**shape, head_dim=8, sliding_window=64, attn_logit_softcapping=1.0),
        "gemma3_text": Gemma3TextConfig(**shape, head_dim=8, sliding_window=64),
        "gpt_oss": GptOssConfig(**shape, **experts, head_dim=8, sliding_window=64),
        "mistral": MistralConfig(**shape, sliding_window=40),
    }


def save_random_model(family, bundled_spec, directory, **options):
    """A random model and the bundled one's tokenizer, made smaller, as a directory."""
    config = tiny_models()[family]
    for name, value in options.items():
        setattr(config, name, value)
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 2
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():  # larger weights: outputs that depend on the prompt
        weight.data *= 3
    model.save_pretrained(directory)
    small_tokenizer(bundled_spec.path).save_pretrained(directory)
    return model


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2", "mistral"])
def test_other_families_equal_generate(family, bundled_spec, prompts, tmp_path):
    model = save_random_model(family, bundled_spec, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # of the class that the family chooses
    expected = []
    for (prompt,) in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        expected.append(text.strip())
    spec = replace(bundled_spec, path=str(tmp_path), max_new_tokens=6, stop=())
    assert [r.output for r in CausalReader(spec).read(prompts)] == expected
    assert len(set(expected)) > 1


def texts_of_lengths(tokenizer, lengths):
    """Texts of so many tokens each, cut from one of random letters."""
    letters = "".join(random.Random(4).choices("abcdefgh etaoin", k=400))
    found = {}
    for start in range(40):
        for end in range(start, start + 150):
            text = letters[start:end]
            found.setdefault((len(tokenizer.encode(text)), start % 2), text)
    return [found[length, i % 2] for i, length in enumerate(lengths)]


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "gpt_oss", "mistral"])
def test_a_window_that_hides_nothing_of_a_text_leaves_it_packed(family, bundled_spec, tmp_path):
    """24 texts equal generate. Of a window of 20 tokens, 17 are left for a prompt whose answer has four, since the
    fourth looks back on 19."""
    model = save_random_model(family, bundled_spec, tmp_path, sliding_window=20)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = texts_of_lengths(tokenizer, [*range(11, 25), *[16, 17, 18] * 3, 40])
    expected = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=4, do_sample=False)
        text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        expected.append(text.strip())
    spec = replace(bundled_spec, path=str(tmp_path), max_new_tokens=4, stop=())
    spec = replace(spec, shared_prefix="")
    CausalReader(spec).prepare()  # leaves the model that both share as it was
    reader = CausalReader(spec)
    padded, lengths, caches = reader._model._padded.passes, [], []

    def passes(asked):
        lengths.extend(len(text.tokens) for text in asked)
        caches.append(reader._model._cache)
        return padded(asked)

    reader._model._padded.passes = passes
    assert [r.output for r in reader.read([[text] for text in texts])] == expected
    assert not any(caches)  # padded batches may have all of the memory
    assert len(set(expected)) > 12
    assert sorted(lengths) == sorted([*range(18, 25), *[18] * 3, 40])


def test_position_codes_that_follow_from_the_batch_are_read_one_text_at_a_time(
    bundled_spec, prompts, tmp_path, monkeypatch
):
    config = tiny_models()["llama"]
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    small_tokenizer(bundled_spec.path).save_pretrained(tmp_path)
    reader = CausalReader(replace(bundled_spec, path=str(tmp_path)))
    rows = counted(reader, monkeypatch)
    reader.read(prompts)
    assert rows == [1] * len(prompts)


def test_a_model_of_few_positions_is_loaded(bundled_spec, tmp_path):
    """What tokens cost is measured with no more of them than it can read."""
    config = tiny_models()["gpt2"]
    config.n_positions = 256
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 2
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    small_tokenizer(bundled_spec.path).save_pretrained(tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), max_new_tokens=4)
    (output,) = CausalReader(spec).read([["what is the capital of aruba"]])
    assert output.failure is None
