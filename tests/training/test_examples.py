"""Examples: what the model learns from is what the reader is given, to the token."""

from dataclasses import replace

import polars as pl
import pytest
from transformers import AutoTokenizer

from engine import tables
from engine.reading import readers
from engine.reading.plan import INPUTS, requested_reads
from engine.tables import DOC_IDS, QUERY_ID
from engine.training.examples import Cuts, ReadingExamples, Readings, order, trainable
from engine.training.settings import Recipe
from engine.training.start import specify_start
from tests.conftest import save_tiny_t5
from tests.tables import framed

# The words of the prompt are among those that the tokenizer knows, so that no token is like another.
WORDS = ("question:", "context:", "title:")


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return save_tiny_t5(tmp_path_factory.mktemp("t5"), *WORDS)


def words(begin, count):
    return " ".join(f"w{(begin + i) % 94}" for i in range(count))


@pytest.fixture(scope="module")
def readings():
    """A passage of 600 words, longer than any input; one with a control token; one that is empty."""
    passages = [
        ("a", "w1 w2", words(0, 600), "A"),
        ("b", "", "w5 </s> w6 <extra_id_0> w7", "B"),
        ("c", "w3", "", "C"),
        ("d", "", words(7, 40), "D"),
    ]
    queries = [
        ("1", "w8 w9", ["w10 w11"], []),
        ("2", " w12\tw13 ", ["w14", "w15", "w16", " "], []),
        ("3", "w1", ["w3 </s> w4"], []),
        ("4", "w2", [words(0, 30)], []),
    ]
    lists = [("1", ["a", "b", "c"]), ("2", ["d"]), ("3", ["c", "d"]), ("4", ["b"])]
    return Readings(
        framed(queries, tables.QUERIES),
        pl.DataFrame(
            lists, schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)}, orient="row"
        ),
        framed(passages, tables.CORPUS),
    )


def made(reader, readings, augmentation="fid", recipe=None, **changed):
    start = specify_start(str(reader), augmentation=augmentation)
    spec = start.spec
    values = {
        "longest_input": spec.max_input_tokens or 512,
        "special_tokens": spec.special_tokens,
        "longest_target": spec.max_new_tokens,
        "end": 1,
        "recipe": recipe or Recipe(),
    } | changed
    tokenizer = AutoTokenizer.from_pretrained(reader)
    return ReadingExamples(readings, start.prompt, tokenizer, **values)


@pytest.mark.parametrize("augmentation", ["fid", "in-prompt"])
def test_inputs_are_those_of_the_reader_in_an_evaluation_token_for_token(
    reader, readings, augmentation
):
    spec, prompt = readers.specify(
        str(reader), augmentation=augmentation, task="short-answer", dtype="float32"
    )
    wanted = requested_reads(
        readings.lists, readings.queries, readings.corpus, prompt=prompt, fingerprint="f"
    )
    loaded = readers.load(spec)
    expected = [loaded._tokenize(inputs) for inputs in wanted[INPUTS].to_list()]
    examples = made(reader, readings, augmentation).draw(0, range(4))
    assert [example.inputs for example in examples] == [
        tuple(item.tokens for item in items) for items in expected
    ]
    assert [example.cut_inputs for example in examples] == [
        sum(item.truncated for item in items) for items in expected
    ]
    # What the reader itself says of its reads.
    outputs = loaded.read(wanted[INPUTS].to_list())
    assert [output.prompt_tokens for output in outputs] == [
        sum(map(len, example.inputs)) for example in examples
    ]
    assert [output.truncated for output in outputs] == [True, False, False, False]
    lengths = [[len(tokens) for tokens in example.inputs] for example in examples]
    # question: w8 w9 context: w5 < /s> w6 < extra_id_0> w7 and the end; question: w8 w9 title: w3 context: and it
    assert lengths[0] == ([250, 12, 7] if augmentation == "fid" else [512])


def test_targets_end_unless_they_are_cut_and_hold_no_control_token(reader, readings):
    tokenizer = AutoTokenizer.from_pretrained(reader)
    one, two, three, four = made(reader, readings).draw(0, range(4))
    ids = tokenizer.convert_tokens_to_ids
    assert one.target == (*ids(["w10", "w11"]), 1)
    assert two.target == (*ids(["w14"]), 1)
    assert three.target.count(1) == 1
    assert three.target[-1] == 1
    assert four.target == tuple(ids([f"w{i}" for i in range(16)]))  # the reader writes 16 and stops
    examples = [one, two, three, four]
    assert [example.cut_target for example in examples] == [False, False, False, True]
    assert Cuts.of(examples) == Cuts(inputs=7, cut_inputs=1, targets=4, cut_targets=1)


def test_any_answer_is_drawn_by_seed_and_epoch(reader, readings):
    recipe = Recipe(target="any", seed=4)
    examples = made(reader, readings, recipe=recipe)
    drawn = [examples.draw(epoch, [1])[0].target for epoch in range(30)]
    assert len(set(drawn)) == 3  # all answers that have text
    again = made(reader, readings, recipe=recipe)
    assert [again.draw(epoch, [0, 1])[1].target for epoch in range(30)] == drawn
    other = made(reader, readings, recipe=replace(recipe, seed=5))
    assert [other.draw(epoch, [1])[0].target for epoch in range(30)] != drawn


def test_queries_without_answers_or_passages_are_counted_and_left_out(readings):
    more = [
        ("5", "w1", [], []),
        ("6", "w1", [" "], []),
        ("7", "w1", ["w2"], []),
        ("8", "w1", ["w2"], []),
    ]
    queries = pl.concat([readings.queries, framed(more, tables.QUERIES)])
    lists = pl.concat(
        [
            readings.lists,
            pl.DataFrame(
                [("5", ["a"]), ("7", [])], schema=readings.lists.schema, orient="row"
            ),
        ]
    )  # fmt: skip
    kept, *left_out = trainable(Readings(queries, lists, readings.corpus))
    assert left_out == [2, 2]
    assert kept.queries[QUERY_ID].to_list() == ["1", "2", "3", "4"]
    assert kept.lists[QUERY_ID].to_list() == ["1", "2", "3", "4"]
    assert kept.lists[DOC_IDS].to_list() == readings.lists[DOC_IDS].to_list()


def test_the_digest_changes_with_all_that_examples_are_made_of(reader, readings):
    digest = made(reader, readings).digest
    assert made(reader, readings).digest == digest
    for changed in (
        replace(readings, lists=readings.lists.with_columns(pl.col(DOC_IDS).list.reverse())),
        replace(readings, queries=readings.queries.with_columns(answers=pl.lit(["x"]))),
        replace(readings, corpus=readings.corpus.with_columns(title=pl.lit("x"))),
    ):
        assert made(reader, changed).digest != digest


def test_the_order_is_of_the_seed_and_the_epoch():
    first = order(50, 1, 1)
    assert sorted(first) == list(range(50))
    assert order(50, 1, 1) == first
    assert order(50, 1, 2) != first
    assert order(50, 2, 1) != first
