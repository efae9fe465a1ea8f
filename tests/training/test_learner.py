"""The model in training: its loss, its outputs, and how it gets on with little memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from engine.reading import readers
from engine.reading.models import weights
from engine.reading.models.conversion import CROSS_BIAS
from engine.reading.plan import INPUTS, requested_reads
from engine.training.examples import Example
from engine.training.learner import Learner, load_learner, save
from engine.training.start import specify_start
from engine.training.trainer import read
from tests.expected import refused
from tests.reading.models import t5_family
from tests.training.facts import RECIPE, facts, save_start

SOURCE = torch.Generator().manual_seed(2)


def tokens(count):
    return tuple(torch.randint(3, 22, (count,), generator=SOURCE).tolist())


# Queries of one to three inputs, none as long as another.
EXAMPLES = [
    Example(tuple(tokens(3 + 2 * i + 3 * j) for j in range(1 + i % 3)), (*tokens(1 + i % 4), 1))
    for i in range(7)
]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = save_start(tmp_path_factory.mktemp("start"), weights=True)
    return specify_start(str(directory), augmentation="fid")


def load(start, precision="float32"):
    return load_learner(start, RECIPE, torch.device("cpu"), precision)


@pytest.fixture
def learner(start):
    return load(start)[0]


def gradients(learner, examples):
    loss = learner.accumulate(examples, 0, may_checkpoint=True)
    found = {name: p.grad.clone() for name, p in learner.model.named_parameters()}
    learner.model.zero_grad()
    return loss, found


def assert_alike(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


def by_hand(learner, example):
    """The cross entropy of one query by transformers' own forward pass, its inputs without any padding."""
    model = learner.model
    states = torch.cat([model.encoder(torch.tensor([one]))[0] for one in example.inputs], dim=1)
    out = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        labels=torch.tensor([example.target]),
        use_cache=False,
    )
    return float(out.loss.detach()) * len(example.target)


def test_the_loss_is_that_of_each_query_alone(learner):
    expected = [by_hand(learner, example) for example in EXAMPLES]
    loss, _ = gradients(learner, EXAMPLES)
    assert loss == pytest.approx(sum(expected), rel=1e-5)
    assert len(set(expected)) == len(expected)


def test_gradients_depend_neither_on_micro_batches_nor_on_checkpointing(learner):
    _, whole = gradients(learner, EXAMPLES)
    assert max(float(one.abs().max()) for one in whole.values()) > 0.1
    learner.tokens = 1
    assert len(learner.cut(EXAMPLES)) == len(EXAMPLES)
    _, alone = gradients(learner, EXAMPLES)
    assert_alike(alone, whole)
    learner.tokens = 40
    learner._set_checkpointing(True)
    assert learner.model.is_gradient_checkpointing
    _, anew = gradients(learner, EXAMPLES)
    assert_alike(anew, whole)


def inputs_of(start, count=12):
    made = facts(count, 5)
    return requested_reads(
        made.lists, made.queries, made.corpus, prompt=start.prompt, fingerprint="f"
    )[INPUTS].to_list()


def answers_of(directory, inputs):
    """As any reader that is given as a directory."""
    spec, _ = readers.specify(
        str(directory), augmentation="fid", task="short-answer", dtype="float32"
    )
    return [output.output for output in readers.load(spec).read(inputs)]


def greedy(learner, tokenizer, texts, most):
    """The model in memory, one query at a time, by transformers' own generation."""
    model = learner.model.eval()
    with torch.inference_mode():
        states = [
            model.encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state
            for text in texts
        ]
        written = model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=torch.cat(states, dim=1)),
            max_new_tokens=most,
            do_sample=False,
            num_beams=1,
        )
    model.train()
    return tokenizer.decode(written[0], skip_special_tokens=True)


def test_the_reader_answers_as_the_model_in_memory_does(start, learner, tmp_path):
    for parameter in learner.model.parameters():
        # No longer what it was loaded as; larger weights make a random model give many answers.
        parameter.data *= 3
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=SOURCE)
    start = replace(start, spec=replace(start.spec, dtype="float32"))
    inputs = inputs_of(start)
    tokenizer = AutoTokenizer.from_pretrained(start.spec.path)
    expected = [greedy(learner, tokenizer, texts, start.spec.max_new_tokens) for texts in inputs]
    assert len(set(expected)) > 3
    assert [output.output for output in read(learner, start, inputs)] == expected
    save(learner.model, Path(start.spec.path), tmp_path / "model")
    assert answers_of(tmp_path / "model", inputs) == expected


def test_a_position_bias_of_cross_attention_is_learned_and_read(tiny_t5, tmp_path):
    plain = t5_family.make("t5", tmp_path / "plain", tiny_t5, factor=2.0)
    t5_family.rewrite_config(plain, dropout_rate=0.0)
    bias = 5 * torch.randn((32, 4), generator=SOURCE)
    state = t5_family.state_of(plain) | {CROSS_BIAS: bias}
    original = t5_family.make_original(plain, tmp_path / "original", state=state)
    t5_family.add_tokenizer(original, tiny_t5)
    start = specify_start(str(original), augmentation="fid")
    start = replace(start, spec=replace(start.spec, dtype="float32"))
    learner, _ = load(start)
    parameters = dict(learner.model.named_parameters())
    (name,) = (name for name in parameters if name.endswith(CROSS_BIAS.split(".", 1)[1]))
    # The first input is longer than the target, so that padding would change nothing, and then shorter.
    short = Example(((5, 6), tokens(9)), (*tokens(6), 1))
    expected = [by_hand(learner, example) for example in [*EXAMPLES, short]]
    loss, found = gradients(learner, [*EXAMPLES, short])
    assert loss == pytest.approx(sum(expected), rel=1e-5)
    assert float(found[name].abs().max()) > 0
    parameters[name].data *= -1
    inputs = [["w1 w2 w3", "w4 w5"], ["w6 w7 w8 w9"]]
    answers = [output.output for output in read(learner, start, inputs)]
    save(learner.model, Path(start.spec.path), tmp_path / "model")
    assert weights.resolve(str(tmp_path / "model")).architecture == "encoder-decoder"
    assert answers_of(tmp_path / "model", inputs) == answers


@pytest.mark.parametrize("kind", ["flan-t5", "mt5", "umt5"])
def test_the_whole_family_is_learned(kind, tiny_t5, tmp_path):
    directory = t5_family.make(kind, tmp_path / kind, tiny_t5, factor=1.0)
    t5_family.rewrite_config(directory, dropout_rate=0.0)
    start = specify_start(str(directory), augmentation="fid")
    start = replace(start, spec=replace(start.spec, dtype="float32"))
    learner, tokenizer = load(start)
    loss, found = gradients(learner, EXAMPLES)
    expected = sum(by_hand(learner, example) for example in EXAMPLES)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert all(float(one.abs().max()) > 0 for one in found.values())
    # What is saved has all weights, those of an output layer of its own, too.
    inputs = [["w1 w2 w3", "w4 w5"], ["w6 w7 w8 w9"]]
    expected_outputs = [greedy(learner, tokenizer, texts, 16) for texts in inputs]
    assert [output.output for output in read(learner, start, inputs)] == expected_outputs


def test_a_shortage_of_memory_halves_the_micro_batch_and_keeps_the_batch(learner, monkeypatch):
    loss, whole = gradients(learner, EXAMPLES)
    forward = learner.model.encoder.forward
    tried = []

    def short_of_memory(*given, **named):
        rows = named["input_ids"].shape[0]
        tried.append(rows)
        states = forward(*given, **named)
        if rows > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return states

    monkeypatch.setattr(learner.model.encoder, "forward", short_of_memory)
    other, halved = gradients(learner, EXAMPLES)
    assert other == pytest.approx(loss, rel=1e-5)
    assert_alike(halved, whole)
    assert learner.at_once["halvings"] >= 1
    assert tried[0] > 4
    # It begins smaller from then on.
    tried.clear()
    gradients(learner, EXAMPLES)
    assert max(tried) <= 4


def test_a_query_that_does_not_fit_alone_is_checkpointed_and_then_refused(learner, monkeypatch):
    forward = learner.model.encoder.forward

    def short_of_memory(*given, **named):
        if not learner.model.is_gradient_checkpointing or impossible:
            raise MemoryError
        return forward(*given, **named)

    monkeypatch.setattr(learner.model.encoder, "forward", short_of_memory)
    impossible = False
    with refused("training.memory"):
        learner.accumulate(EXAMPLES, 0, may_checkpoint=False)
    learner.accumulate(EXAMPLES, 0, may_checkpoint=True)
    assert learner.at_once["checkpointing"]
    learner.model.zero_grad()
    impossible = True
    with refused("training.memory"):
        learner.accumulate(EXAMPLES, 0, may_checkpoint=True)
    assert all(p.grad is None for p in learner.model.parameters())


def test_a_reader_that_memory_cannot_hold_in_training_is_refused(start, monkeypatch):
    def short_of_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Learner, "fit_into", short_of_memory)
    with refused("training.size"):
        load(start)


def test_other_errors_are_passed_on(learner, monkeypatch):
    def broken(**_):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(learner.model.encoder, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        learner.accumulate(EXAMPLES, 0, may_checkpoint=True)


def test_what_goes_through_at_once_is_counted_with_all_padding(learner):
    # Many short inputs beside few long ones, and many beside one: both make more padding than either has alone.
    long = [Example((tokens(200),), (3, 1)) for _ in range(4)]
    many = [Example(tuple(tokens(10) for _ in range(40)), (3, 1)) for _ in range(3)]
    examples = [*long, *many]
    learner.tokens = 1000
    seen = []
    learner.model.encoder.register_forward_pre_hook(
        lambda _, given, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    learner.model.register_forward_pre_hook(
        lambda _, given, named: seen.append(named["attention_mask"].numel()), with_kwargs=True
    )
    learner.accumulate(examples, 0, may_checkpoint=True)
    assert max(seen) <= 1000
    assert len(seen) == 2 * len(learner.cut(examples)) < 2 * len(examples)
    assert sorted(i for batch in learner.cut(examples) for i in batch) == list(range(7))


def test_memory_decides_how_much_goes_through_at_once(learner):
    query = Example(((5,) * 250,) * 3, (5,) * 17)
    learner.fit_into(2.0**40, query, None)
    assert learner.at_once == {"tokens": 2048, "checkpointing": False, "halvings": 0}
    learner.fit_into(1.0, query, None)
    assert learner.at_once == {"tokens": 1, "checkpointing": True, "halvings": 0}
    learner.fit_into(1.0, query, False)
    assert not learner.at_once["checkpointing"]
    assert all(p.grad is None for p in learner.model.parameters())


def test_bfloat16_is_used_in_the_forward_pass_alone(start, learner):
    half, _ = load(start, "bfloat16")
    loss, found = gradients(half, EXAMPLES)
    exact, _ = gradients(learner, EXAMPLES)
    assert loss != exact
    assert loss == pytest.approx(exact, rel=0.02)
    assert {one.dtype for one in found.values()} == {torch.float32}
    assert {one.dtype for one in half.model.parameters()} == {torch.float32}
