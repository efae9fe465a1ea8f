import itertools
import statistics
from dataclasses import replace
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._single import default_prompt
from engine import tables
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.reading import plan as plans
from engine.reading.plan import ReadPlan, longest_first, missing_reads, read_key, requested_reads
from tests.conftest import SPEC
from tests.tables import framed

QUERIES = framed([("1", "who", ["A"], []), ("2", "who", ["B"], [])], tables.QUERIES)
CORPUS = framed([("x", "T", "text x", "T"), ("y", "U", "text y", "U")], tables.CORPUS)
PROMPT = default_prompt("short-answer", "causal", "in-prompt")


def wanted(*rows, fingerprint="f"):
    lists = framed(rows, {"query_id": pl.String, "doc_ids": pl.List(pl.String)})
    return requested_reads(lists, QUERIES, CORPUS, prompt=PROMPT, fingerprint=fingerprint)


def test_queries_with_equal_text_share_the_read_and_stay_two_rows():
    frame = wanted(("1", ["x"]), ("2", ["x"]), ("1", ["y"]))
    assert frame["query_id"].to_list() == ["1", "2", "1"]
    assert frame["read_key"][0] == frame["read_key"][1] != frame["read_key"][2]
    assert missing_reads(frame, frame.clear()).height == 2


def test_keys_depend_on_reader_text_and_order_alone():
    key = wanted(("1", ["x", "y"]))["read_key"][0]
    assert key == wanted(("2", ["x", "y"]))["read_key"][0]
    assert key != wanted(("1", ["y", "x"]))["read_key"][0]
    assert key != wanted(("1", ["x", "y"]), fingerprint="g")["read_key"][0]
    # two inputs are not the one input of their texts joined
    assert read_key("f", ["a", "b"]) != read_key("f", ["ab"])
    assert read_key("f", ['a", "b']) != read_key("f", ["a", "b"])


def test_stored_reads_are_not_planned():
    frame = wanted(("1", ["x"]), ("1", ["y"]))
    assert missing_reads(frame, frame.head(1))["doc_ids"].to_list() == [["y"]]


def cut_units(plan, size, least=plans._LEAST, actors=1, behind=0):
    whole = ReadPlan(reads=plan, wanted=0, first=size, sharing=actors, behind=behind)
    with patch.object(plans, "_LEAST", least):
        return list(whole.units())


def alike(count, size=1):
    """A plan of so many reads of one size."""
    return longest_first(single_reads({f"{i:04}": size for i in range(count)}), SPEC)


def single_reads(sizes):
    """Reads of a text each, by their keys, of so many tokens."""
    texts = [[key.ljust(4 * size)] for key, size in sizes.items()]
    return pl.DataFrame(
        {"read_key": list(sizes), "query_id": ["q"] * len(sizes), "inputs": texts},
        schema_overrides={"read_key": pl.String, "inputs": pl.List(pl.String)},
    )


def test_reads_that_share_inputs_are_neighbours_in_one_unit():
    rows = [("a1", "q1", ["a"]), ("b1", "q2", ["b"]), ("a2", "q1", ["c"])]
    rows += [("b2", "q2", ["b", "d"]), ("a3", "q1", ["a", "c"]), ("c1", "q3", ["e"])]
    sizes = {"a1": 5, "b1": 2, "a2": 4, "b2": 6, "a3": 9, "c1": 30}
    rows = [
        (key, query, [*more, text.ljust(4 * sizes[key] - len(more))])
        for key, query, (*more, text) in rows
    ]
    missing = pl.DataFrame(rows, schema=["read_key", "query_id", "inputs"], orient="row")
    plan = longest_first(missing, SPEC)
    # by query: q3 30, q1 18, q2 8; within a query the longest first
    assert plan["read_key"].to_list() == ["c1", "a3", "a1", "a2", "b2", "b1"]
    assert [(u.offset, u.length) for u in cut_units(plan, 10)] == [(0, 1), (1, 3), (4, 2)]
    assert [(u.offset, u.length) for u in cut_units(plan, 26)] == [(0, 1), (1, 5)]


def test_units_that_actors_share_become_smaller_towards_the_end():
    lengths = [unit.length for unit in cut_units(alike(320), 16, actors=4, least=1)]
    assert sum(lengths) == 320
    assert lengths == sorted(lengths, reverse=True)
    # From 16 * 16 reads left on each unit is a sixteenth of what is left, and no less than 2.
    assert lengths[:6] == [16, 16, 16, 16, 16, 15]
    assert lengths[-1] <= lengths[-2] == 2
    # With four actors of equal speed the last ones differ by the smallest unit, and not by the largest.
    ready = [0] * 4
    for length in lengths:
        ready.sort()
        ready[0] += length
    assert max(ready) - min(ready) <= 2


def test_units_become_smaller_over_all_that_is_left_and_not_over_the_last_plan_alone():
    plan = alike(96)
    # Of 352, 256 and 96 reads left, each actor has 88, 64 and 24, of which a unit is a quarter at most.
    by_what_is_behind = {256: [16] * 6, 160: [16, 15, 14], 0: [6, 5, 5]}
    for behind, lengths in by_what_is_behind.items():
        units = cut_units(plan, 16, actors=4, behind=behind, least=1)
        assert [unit.length for unit in units][: len(lengths)] == lengths
        assert sum(unit.length for unit in units) == 96


def test_the_last_units_of_a_small_plan_are_no_smaller_than_is_worth_an_answers_steps():
    # 132 reads, as in a dozen of the demo's questions, for two actors: units of 16 parts of the whole.
    plan = alike(132, 214)
    size = 132 * 214 // 16
    lengths = [unit.length for unit in cut_units(plan, size, actors=2)]
    # Eight reads in at most 1,765 tokens; with 60 left an eighth of these, and from 37 on four in 1,024.
    assert lengths == [8] * 9 + [7, 6, 5, 5] + [4] * 9 + [1]
    assert len(cut_units(plan, size, actors=2, least=1)) == 36
    # Where even the largest are smaller, none is made larger.
    assert max(unit.length for unit in cut_units(plan, 500, actors=2)) == 2


def test_a_slow_actor_among_fast_ones_holds_the_others_up_less_with_smaller_last_units():
    plan = alike(6400)

    def ends(units):
        """When all is done, by three actors and one that takes ten times as long."""
        ready = [(0, 1), (0, 1), (0, 1), (0, 10)]
        for unit in units:
            ready.sort()
            when, pace = ready[0]
            ready[0] = when + pace * unit.length, pace
        return max(when for when, _ in ready)

    # How much later than the best possible all is done, over sizes, since with one it is chance.
    best = 6400 / (3 + 1 / 10)
    late = {
        actors: statistics.mean(
            ends(cut_units(plan, size, actors=actors, least=1)) - best
            for size in range(150, 250, 5)
        )
        for actors in (1, 4)
    }
    assert late[4] < late[1] / 2


def test_reads_that_begin_with_the_same_passage_form_groups_of_limited_size():
    passages = {name: f"Examples. {name} " * 40 for name in "ab"}
    rows = [
        (f"{n:02}{p}", f"q{n}", [passages[p] + f"question {n}"]) for n in range(40) for p in "ab"
    ]
    missing = pl.DataFrame(rows, schema=["read_key", "query_id", "inputs"], orient="row")
    plan = longest_first(missing, replace(SPEC, shared_prefix="Examples. "))
    own = [key[-1] for key in plan["read_key"]]
    sizes = [len(list(run)) for _, run in itertools.groupby(own)]
    assert sum(sizes) == 80
    assert min(sizes) >= 8  # 40 of a passage are 16, 16 and 8; neighbours may be of the same one
    assert plan.group_by("group").len()["len"].max() == 16
    assert max(unit.length for unit in cut_units(plan, 1)) == 16


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100))
def test_units_cover_the_plan_in_order_longest_first(sizes, limit):
    plan = longest_first(single_reads({f"{i:03}": size for i, size in enumerate(sizes)}), SPEC)
    assert plan["size"].to_list() == sorted(sizes, reverse=True)
    units = cut_units(plan, limit)
    assert [u.number for u in units] == list(range(len(units)))
    position = 0
    for unit in units:
        assert unit.offset == position
        assert unit.length >= 1
        total = plan["size"].slice(unit.offset, unit.length).sum()
        assert total <= limit or unit.length == 1
        position += unit.length
    assert position == len(sizes)


def test_the_order_of_the_plan_does_not_depend_on_the_order_asked():
    frame = single_reads({"b": 5, "a": 5, "c": 9})
    one = longest_first(frame, SPEC)["read_key"].to_list()
    other = longest_first(frame.reverse(), SPEC)["read_key"].to_list()
    assert one == other == ["c", "a", "b"]


@pytest.mark.parametrize("augmentation", ["fid", "in-prompt"])
def test_prompts_hold_query_and_passages(augmentation):
    passages = [("T1", "best\ntext"), ("T2", "other text")]
    causal = default_prompt("short-answer", "causal", "in-prompt").render("who?", passages)
    assert len(causal) == 1
    assert causal[0].endswith(
        "Passage: T2. other text\nPassage: T1. best text\nQuestion: who?\nAnswer:"
    )
    t5 = default_prompt("short-answer", "encoder-decoder", augmentation).render("who?", passages)
    if augmentation == "fid":
        assert t5 == [
            "question: who? title: T1 context: best text",
            "question: who? title: T2 context: other text",
        ]
    else:
        assert t5 == ["question: who? title: T1 context: best text title: T2 context: other text"]


def test_a_single_passage_is_the_same_read_for_fid_and_for_its_eRAG_label():
    fid = default_prompt("short-answer", "encoder-decoder", "fid")
    assert fid.render("q", [("T", "x")]) == fid.render("q", [("T", "x"), ("U", "y")])[:1]


def test_text_with_braces_is_not_a_field():
    (text,) = PROMPT.render("what is {x}", [("{title}", "a {query} b")])
    assert text.endswith("Passage: {title}. a {query} b\nQuestion: what is {x}\nAnswer:")


def test_passages_without_a_title_leave_no_trace_of_one():
    (text,) = PROMPT.render("q", [("", "just text")])
    assert "Passage: just text\n" in text
    t5 = default_prompt("short-answer", "encoder-decoder", "fid")
    assert t5.render("q", [(" ", "just text")]) == ["question: q context: just text"]


EMPTY = ReadPlan(reads=pl.DataFrame(), wanted=0)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("actors", [1, 2, 64, 1000])
@pytest.mark.parametrize("total", [0, 1, 999, 10**5, 10**7, 10**10])
def test_every_actor_has_eight_units_and_no_first_one_is_large(total, actors, gpu):
    sizes = EMPTY.sized(total, actors=actors, gpu=gpu)
    assert 1 <= sizes.least <= sizes.first <= sizes.most
    assert sizes.most == 1 or sizes.most * 8 * actors <= total
    assert sizes.first <= (GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS)


def test_a_large_evaluation_begins_with_a_batch_of_a_processor_and_half_of_one_of_a_gpu():
    assert EMPTY.sized(10**10, actors=64, gpu=False).first == CPU_BATCH_TOKENS
    assert EMPTY.sized(10**10, actors=64, gpu=True).first == GPU_BATCH_TOKENS // 2
