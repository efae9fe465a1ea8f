"""The efficiency benchmark: its grid, predictions, fits and tables; and its smallest case, among the slow tests."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.efficiency import __main__ as efficiency
from benchmarks.efficiency import models, page, plots, predict, process, savings
from benchmarks.efficiency.changes import CHANGES, FIRST, METRIC, SECOND, Way, listed, ways
from benchmarks.efficiency.fit import (
    Point,
    crossing,
    fastest,
    fit,
    peaks_of,
    slope_at_the_end,
    times_of,
)
from benchmarks.efficiency.grid import (
    KS,
    LENGTHS,
    SHAPES,
    TIMED,
    WAYS,
    Cell,
    Conditions,
    full_grid,
    memory_cells,
    quick_grid,
)
from benchmarks.efficiency.results import Results, differences
from benchmarks.efficiency.table import grouped, markdown
from engine.messages.errors import InputError
from engine.reading.models import t5_attention, weights

GIB = 2**30
HERE = Conditions(dtype="float32", threads=1, memory=8 * GIB, tokens=1000, rounds=2)
CELL = Cell(kind="time", model="t5-small", augmentation="in-prompt", k=10, length=100)


def done(end_to_end, erag, queries=1):
    seconds = {"end-to-end": end_to_end, "erag": erag}
    figures = {"queries": queries, "seconds": seconds, "cpu_seconds": seconds}
    return {"status": "done", "wall": 9.0, "figures": figures}


def peak_of(*peaks):
    return {"status": "done", "wall": 3.0, "figures": {"peaks": [*peaks]}}


def test_the_grid_has_every_cell_once_and_the_papers_setting_first():
    cells = full_grid([FIRST])
    assert len(cells) == len(set(cells))
    places = {(c.k, c.length) for c in cells if c.kind == "time" and c.model == "t5-base"}
    assert places == {(k, length) for k in KS for length in LENGTHS}
    first_time = next(c for c in cells if c.kind == "time")
    assert (first_time.model, first_time.k, first_time.length) == ("t5-small", 50, 200)
    # All models, ways and lengths of answers in the paper's setting stand before any other place.
    times = [c for c in cells if c.kind == "time"]
    paper = [c for c in times if c.k == 50 and (c.length == 200 or c.model == "bundled")][:30]
    assert times[:30] == paper
    assert [c.answer_tokens for c in paper] == [5] * 15 + [64] * 15
    assert {c.way for c in paper} == set(WAYS)
    assert {c.model for c in paper} == set(TIMED)
    # No decoder-only model does Fusion-in-Decoder.
    assert not [c for c in cells if c.model == "bundled" and c.augmentation == "fid"]
    # Each time has its peaks.
    assert {one for c in times for one in memory_cells(c).values()} == {
        c for c in cells if c.kind == "memory"
    }


def test_a_passage_alone_is_one_cell_whatever_the_list():
    one = memory_cells(CELL)["passage"]
    other = memory_cells(replace(CELL, k=50, augmentation="fid"))["passage"]
    assert one == other
    assert one.batch == 1
    assert memory_cells(CELL)["k passages"].batch == 10
    assert memory_cells(CELL)["list"].method == "end-to-end"


def test_the_quick_grid_is_small_and_has_every_kind():
    cells = quick_grid([FIRST])
    assert {c.kind for c in cells} == {"check", "time", "memory", "saving"}
    assert len(cells) == len(set(cells)) < 15
    assert efficiency.chosen(cells) == cells


def test_a_part_of_the_grid_keeps_the_peaks_of_its_times():
    place = {"models": "t5-small", "k": "5", "lengths": "100"}
    cells = efficiency.chosen(full_grid([FIRST]), **place)
    times = [cell for cell in cells if cell.kind == "time"]
    assert {(c.model, c.k, c.length) for c in times} == {("t5-small", 5, 100)}
    assert len(times) == 12  # two augmentations, three ways, two lengths of answers
    peaks = {one for cell in times for one in memory_cells(cell).values()}
    assert peaks == {cell for cell in cells if cell.kind == "memory"}
    assert {cell.kind for cell in cells} == {"check", "time", "memory"}
    whole = full_grid([FIRST])
    savings_alone = efficiency.chosen(
        whole, models="bundled", ks=None, lengths=None, kinds="saving"
    )
    assert [(cell.kind, cell.model) for cell in savings_alone] == [("saving", "bundled")]
    some = efficiency.chosen(
        whole, **place, tokens="64", ways="engine", augmentations="fid", kinds="check,time"
    )
    assert [(cell.kind, cell.k, cell.answer_tokens) for cell in some] == [
        ("check", 3, 64),
        ("time", 5, 64),
    ]
    assert efficiency.chosen(whole) == whole


def test_reads_of_a_list_are_one_text_or_one_for_each_passage():
    whole = predict.reads_of(CELL, "end-to-end")
    # The question, ten passages with what marks them, and an answer of five tokens.
    assert whole == (1, 20 + 10 * (100 + 4), 5)
    fused = predict.reads_of(replace(CELL, augmentation="fid"), "end-to-end")
    assert fused == (10, 20 + 104, 5)
    assert predict.reads_of(replace(CELL, answer_tokens=64), "erag") == (1, 124, 64)


def test_unfused_attention_over_a_list_needs_what_the_paper_reports():
    # 50 passages of 512 tokens: 8 heads x 25,820^2 scores of 4 bytes are 21.3 GB, held a few times.
    cell = replace(CELL, way="generate-eager", k=50, length=512)
    scores = 8 * (20 + 50 * 516) ** 2 * 4
    assert scores == pytest.approx(21.3e9, rel=0.01)
    assert 2 * scores < predict.peak(cell, HERE) < 5 * scores
    # Fusion-in-Decoder needs a hundredth of the scores, since each passage attends to itself alone.
    fused = predict.reads_of(replace(cell, augmentation="fid"), "end-to-end")
    assert 8 * fused.texts * fused.tokens**2 < scores / 4 / 45


def test_predicted_peaks_grow_with_reads_length_and_precision():
    for way in WAYS:
        for model in SHAPES:
            shape, reads = SHAPES[model], predict.Reads(1, 500)
            one = predict.batch_bytes(shape, way, reads, 1, 2)
            assert predict.batch_bytes(shape, way, reads, 8, 2) > one
            assert predict.batch_bytes(shape, way, predict.Reads(1, 1000), 1, 2) > one
            assert predict.batch_bytes(shape, way, reads, 1, 4) > one
            assert predict.batch_bytes(shape, way, reads._replace(written=64), 1, 2) >= one


def test_cells_beyond_the_memory_or_the_positions_are_not_run():
    small = replace(HERE, memory=4 * GIB)
    assert efficiency.left_out(CELL, small) == ""
    large = replace(CELL, way="generate-eager", k=100, length=200)
    assert efficiency.left_out(large, small).startswith("needs ")
    assert efficiency.left_out(large, small).endswith(" GiB")
    bundled = Cell(kind="time", model="bundled", augmentation="in-prompt", k=100, length=200)
    assert "positions, the model has 8,192" in efficiency.left_out(bundled, small)
    single = memory_cells(bundled)["passage"]
    assert efficiency.left_out(single, small) == ""


def test_predicted_seconds_follow_the_cells_that_are_done():
    other = replace(CELL, k=20)
    pace = predict.Pace({}, HERE)
    before = pace.seconds(other)
    assert before == predict.work(other, HERE)
    pace.add(CELL, 3 * predict.work(CELL, HERE))
    assert pace.seconds(other) == pytest.approx(3 * before)
    # A way's own cells count more than others'.
    plain = replace(CELL, way="generate-sdpa")
    pace.add(plain, predict.work(plain, HERE))
    assert pace.seconds(other) == pytest.approx(3 * before)
    # And those with answers as long, where there are any.
    long = replace(CELL, answer_tokens=64)
    assert pace.seconds(long) == pytest.approx(3 * predict.work(long, HERE))
    pace.add(long, 5 * predict.work(long, HERE))
    assert pace.seconds(long) == pytest.approx(5 * predict.work(long, HERE))
    assert pace.seconds(other) == pytest.approx(3 * before)


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 3), (8.0, 2), (15.0, 1), (25.0, 1)], ids=str)
def test_long_rounds_are_fewer_and_a_first_one_that_is_very_long_counts(
    seconds, rounds, monkeypatch
):
    from benchmarks.efficiency import cell

    now, calls = [0.0], []
    monkeypatch.setattr(cell, "in_turn", partial(cell.in_turn, clock=lambda: now[0]))

    def read(name):
        calls.append(name)
        now[0] += seconds

    timings = cell.timed(
        {name: partial(read, name) for name in ("erag", "end-to-end")}, 3, enough=40
    )
    assert [timing.seconds for timing in timings.values()] == [[seconds] * rounds] * 2
    # The one that warms up is not among them, but for the longest.
    assert len(calls) == 2 * (rounds + (2 * seconds <= 40))


def test_exponents_are_those_of_a_power_law():
    points = [Point(k, d, 3.0 * k**2 * d**1.5) for k in (1, 5, 10) for d in (50, 100)]
    assert fit(points)[:2] == pytest.approx((2, 1.5))
    assert slope_at_the_end(points) == pytest.approx(2)


def test_exponents_of_what_was_not_varied_are_unknown():
    one_length = fit([Point(k, 50, float(k)) for k in (1, 5, 10)])
    assert one_length.k == pytest.approx(1)
    assert math.isnan(one_length.length)
    assert math.isnan(fit([Point(1, 50, 2.0)]).k)
    assert fit([]).points == 0
    # k and d that change together cannot be told apart.
    together = fit([Point(k, 10.0 * k, float(k)) for k in (1, 5, 10)])
    assert math.isnan(together.k)
    assert math.isnan(together.length)
    assert math.isnan(slope_at_the_end([Point(1, 50, 2.0)]))


def test_the_slope_at_the_end_is_that_of_the_largest_lists():
    # A fixed cost of 1 hides the square until k is large: 1 + k^2 / 100.
    points = [Point(k, 50, 1 + k**2 / 100) for k in (1, 5, 50, 100)]
    assert fit(points).k < 1.2
    assert slope_at_the_end(points) == pytest.approx(math.log(101 / 26) / math.log(2))


def test_where_methods_cross_is_told_from_the_ratios():
    assert crossing([(1, 0.5), (5, 0.9), (10, 1.2)]) == "from k between 5 and 10 on"
    assert crossing([(1, 1.5), (5, 0.9), (10, 1.2)]) == "from k between 5 and 10 on"
    assert crossing([(5, 1.1), (1, 1.2)]) == "at every k from 1 on"
    assert crossing([(1, 0.5), (5, 1.0)]) == "at no k up to 5"
    assert crossing([(1, 1.5), (5, 0.9)]) == "not at k = 5, the largest"
    assert crossing([]) == "not measured"
    along = crossing([(50, 0.5), (100, 0.9), (200, 1.2)], "length")
    assert along == "from length between 100 and 200 on"


def test_ratios_are_taken_pair_by_pair():
    times = times_of(done([2.0, 4.0, 9.0], [1.0, 4.0, 3.0], queries=2)["figures"])
    assert times.ratios == (2, 1, 3)
    assert times.ratio == 2
    assert times.cpu_ratio == pytest.approx(4 / 3)
    assert (times.end_to_end, times.erag) == (2.0, 1.5)  # medians of 4 and 3 for two queries


def test_results_are_gone_on_from(tmp_path):
    path = tmp_path / "r.json"
    results = Results(path, HERE)
    assert not results.settled(CELL, limit=60)
    results.add(CELL, done([2.0], [1.0]))
    late = replace(CELL, k=20)
    results.add(late, {"status": "stopped", "limit": 60, "wall": 60.1})
    broken = replace(CELL, k=50)
    results.add(broken, {"status": "failed", "why": "killed", "wall": 1.0})
    again = Results(path, HERE)
    assert again.outcomes == results.outcomes
    assert again.settled(CELL, limit=600)
    assert again.settled(late, limit=60)
    assert not again.settled(late, limit=61)
    assert not again.settled(broken, limit=60)
    assert again.walls() == {CELL: 9.0}


def test_results_of_other_circumstances_are_refused(tmp_path):
    path = tmp_path / "r.json"
    Results(path, HERE).add(CELL, done([2.0], [1.0]))
    with pytest.raises(
        InputError, match=r"conditions.threads: 1 then, 2 now\); give another `json`"
    ):
        Results(path, replace(HERE, threads=2))
    path.write_text('{"dates": []}')
    with pytest.raises(InputError, match="not results of this benchmark"):
        Results(path, HERE)
    assert differences({"a": {"x": 1}}, {"a": {"x": 1}}) == []


def side(seconds, *, reads, tokens):
    return {"seconds": seconds, "reads": reads, "tokens": tokens, "written": 55}


def filled(tmp_path):
    results = Results(tmp_path / "r.json", HERE)
    results.add(CELL, done([3.0, 3.3], [1.5, 1.5]))
    results.add(replace(CELL, way="generate-eager"), done([2.0, 2.0], [4.0, 4.0]))
    results.add(replace(CELL, k=20), done([12.0, 12.0], [3.0, 3.0]))
    cells = memory_cells(CELL)
    results.add(cells["list"], peak_of(300 * 2**20, 200 * 2**20))
    results.add(cells["k passages"], peak_of(100 * 2**20))
    results.add(cells["passage"], peak_of(10 * 2**20))
    sides = {
        "none": side([4.0, 4.0], reads=11, tokens=1000),
        "sharing": side([3.0, 3.0], reads=11, tokens=600),
    }
    saving = replace(CELL, kind="saving", change=FIRST)
    results.add(saving, {"status": "done", "wall": 1.0, "figures": {"sides": sides}})
    results.add(replace(CELL, k=100), {"status": "stopped", "limit": 60, "wall": 60.0})
    return results


def test_the_table_has_ratios_beside_the_papers(tmp_path):
    text = "\n".join(markdown(filled(tmp_path), {replace(CELL, k=50): "needs 9.9 GiB"}))
    assert "| paper: T5-small |" in text
    for figure in ("1.232 to 3.252, mean 2.468", "7 to 15", "30 to 48"):
        assert figure in text
    # 3.0 / 1.5 and 3.3 / 1.5: a median of 2.1; 300 MiB by 100 and by 10.
    row = "| t5-small | in-prompt | engine | 10 | 100 | 5 | 3.150 | 1.500 | **2.10** (2.00 to 2.20; 2) | 2.10 "
    assert row + "| 300 | 100 | 3.0 | 10 | 30.0 |" in text
    # Of the list of 20 passages no peak is known.
    assert "**4.00** (4.00 to 4.00; 2) | 4.00 | · | · | · | 10 | · |" in text
    saved = "| t5-small | in-prompt | first retriever | sharing | 3.00 | 25% | 11 | 600 | 55 |"
    assert saved in text
    assert "engine, 100 tokens, answers of 5, k = 50: needs 9.9 GiB" in text
    assert "k = 100: stopped after 60 s" in text
    assert (
        "| t5-small | in-prompt | engine | 5 | 100 tokens | 10, 20 | at every k from 10 on |"
        in text
    )
    # k from 10 to 20: end-to-end from 3.15 to 12, log2 of 3.81.
    assert "| t5-small | in-prompt | engine | 5 | end-to-end | 1.93 (1.93) | · | 2 |" in text


def test_each_method_is_compared_by_its_fastest_way(tmp_path):
    results = filled(tmp_path)
    found = fastest(results, [CELL, replace(CELL, way="generate-eager"), replace(CELL, k=20)])
    assert found == {CELL: (("generate-eager", 2.0), ("engine", 1.5))}


def test_the_engine_stands_beside_the_faster_way_of_generate_by_the_least_of_the_rounds(tmp_path):
    results = filled(tmp_path)
    results.add(replace(CELL, way="generate-sdpa"), done([2.5, 2.4], [3.5, 3.6]))
    # Other answers are another place, with one way alone.
    results.add(replace(CELL, way="generate-sdpa", answer_tokens=64), done([1.0], [1.0]))
    text = "\n".join(markdown(results, {}))
    row = "3.000 | 2.000 | generate-eager | **1.50** | 1.500 | 3.500 | generate-sdpa | 0.43 |"
    assert f"| t5-small | in-prompt | 10 | 100 | 5 | {row}" in text
    assert text.count("| generate-sdpa | 0.43 |") == 1
    assert "| t5-small | in-prompt | 10 | 100 | 64 |" not in text


def test_a_first_peak_counts_where_later_ones_find_tables_made(tmp_path):
    assert peaks_of(filled(tmp_path), CELL).end_to_end == 300 * 2**20


def test_what_was_left_out_is_told_in_few_lines():
    cells = {replace(CELL, k=k): "no time left" for k in (50, 5, 20)}
    assert list(grouped(cells)) == [
        "time t5-small in-prompt engine, 100 tokens, answers of 5, k = 5, 20, 50: no time left"
    ]


def test_the_page_has_the_tables_and_both_plots(tmp_path):
    results = filled(tmp_path)
    files = {name: tmp_path / name for name in ("page", "time", "memory")}
    page.write(results, {replace(CELL, k=50): "needs 9.9 GiB"}, **files)
    for name, label in (("time", "seconds a query"), ("memory", "MiB above the loaded model")):
        assert "<svg" in files[name].read_text()
        assert label in files[name].read_text()
        # Powers of ten would be written as formulas, which are not drawn.
        assert "mathdefault" not in files[name].read_text()
    text = files["page"].read_text()
    # k = 10 on the engine and without a fused kernel, k = 20.
    assert "takes 0.50 to 4.00 times as long as eRAG" in text
    assert "It is slower in 2 of 3 cells." in text
    assert "t5-small, in-prompt, answers of 5: 4.00 at k = 20." in text
    assert "2.10 (2.00 to 2.20; 2)" in text
    assert "**" not in text.partition("<body>")[2]
    assert "needs 9.9 GiB" in text
    assert text.count("<svg") == 2


def test_a_page_without_figures_says_so(tmp_path):
    files = {name: tmp_path / name for name in ("page", "time", "memory")}
    page.write(Results(tmp_path / "r.json", HERE), {CELL: "no time left"}, **files)
    assert "No time was measured yet." in files["page"].read_text()
    assert not files["time"].exists()


def test_lines_of_a_plot_have_one_length_of_passages():
    lines = [("a", [Point(10, 50, 2.0), Point(1, 50, 1.0), Point(5, 100, 9.0)]), ("b", [])]
    assert plots.at(lines, 50) == [("a", [Point(1, 50, 1.0), Point(10, 50, 2.0)])]


def test_lists_of_a_change_differ_from_the_first_as_it_says():
    first = set(listed(FIRST, 10))
    assert len(first) == 10
    assert len(first & set(listed("second retriever", 10))) == 5
    assert len(first & set(listed("swapped passage", 10))) == 9
    assert listed("second metric", 10) == listed(FIRST, 10)


def test_an_evaluation_is_done_in_every_way_that_differs():
    assert ways(FIRST) == [Way(False, False), Way(True, False)]  # nothing is stored before it
    assert len(set(ways(SECOND))) == 4
    names = [way.name for way in ways(SECOND)]
    assert (names[0], names[-1]) == ("none", "sharing and store")
    assert Way(False, True).name == "store"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hours", "0"], "`hours` is 0; use more than 0"),
        (["--threads", "0"], "`threads` is 0; use 1 or more"),
        (["--dtype", "int8"], "`dtype` is int8; use one of bfloat16, float16, float32"),
        (
            ["--models", "t5"],
            "`models` names 't5'; use some of bundled, bundled-fid, t5-base, t5-small",
        ),
        (["--k", "5,7"], "`k` names '7'; use some of 1, 5, 10, 20, 50, 100"),
        (["--memory", "lots"], "'lots' is not a size; write it like 1.5GiB or 800MB"),
    ],
)
def test_bad_options_are_refused_in_one_line(arguments, message, tmp_path):
    with pytest.raises(SystemExit) as refused:
        efficiency.main([*arguments, "--json", str(tmp_path / "r.json")])
    assert str(refused.value) == message


def test_the_plan_runs_nothing(tmp_path, capsys):
    path = tmp_path / "r.json"
    assert efficiency.main(["--plan", "--json", str(path), "--memory", "4GiB"]) == 0
    printed = capsys.readouterr().out
    assert "cells to run, about" in printed
    assert (
        "time t5-small in-prompt generate-eager, 400 tokens, answers of 5, k = 100: needs "
        in printed
    )
    assert not path.exists()


@pytest.mark.slow
def test_sizes_are_those_of_the_bundled_readers():
    fused = json.loads((weights.resolve("bundled-fid").path / "config.json").read_text())
    own = SHAPES["bundled-fid"]
    assert own.inner == fused["num_heads"] * fused["d_kv"]
    assert (own.hidden, own.feed_forward) == (fused["d_model"], fused["d_ff"])
    assert (own.layers, own.heads) == (fused["num_layers"], fused["num_heads"])
    assert own.vocabulary == fused["vocab_size"]

    path = weights.resolve("bundled").path
    config = json.loads((path / "config.json").read_text())
    shape = SHAPES["bundled"]
    head = config["hidden_size"] // config["num_attention_heads"]
    assert shape.hidden == config["hidden_size"]
    assert shape.inner == config["num_attention_heads"] * head
    assert shape.key_inner == config["num_key_value_heads"] * head
    assert shape.feed_forward == config["intermediate_size"]
    assert shape.layers == config["num_hidden_layers"]
    assert shape.heads == config["num_attention_heads"]
    assert shape.vocabulary == config["vocab_size"]
    assert shape.positions == config["max_position_embeddings"]


@pytest.mark.slow
def test_the_quick_grid_is_measured_saved_and_not_measured_again(tmp_path, capsys):
    path = tmp_path / "quick.json"
    arguments = ["--quick", "--json", str(path), "--threads", "1"]
    assert efficiency.main(arguments) == 0
    cells = quick_grid(CHANGES)
    assert f"{len(cells)} of {len(cells)} cells done" in capsys.readouterr().out
    table = path.with_suffix(".md").read_text()
    assert "Nothing." in table.split("### Left out")[1]
    stored = path.read_bytes()
    assert efficiency.main(arguments) == 0
    assert path.read_bytes() == stored
    assert path.with_suffix(".md").read_text() == table

    conditions = efficiency.conditions_of(
        dtype=None, threads=1, memory=None, quick=True, rounds=None
    )
    results = Results(path, conditions)
    item = predict.item_bytes(conditions.dtype)
    for cell in cells:
        figures = results.figures(cell)
        if cell.kind == "time":  # both methods read the same passages, to answers as long
            whole, single = (figures["tokens"][method] for method in ("end-to-end", "erag"))
            assert single >= whole
            # Random models now and then write a token that stands for no text, which does not count.
            answers = {"end-to-end": figures["queries"], "erag": figures["queries"] * cell.k}
            for method, count in answers.items():
                written = figures["output_tokens"][method] / (cell.answer_tokens * count)
                assert 0.6 < written <= 1
        if cell.kind == "memory" and cell.k > 1:
            reads = predict.reads_of(cell, cell.method)
            expected = predict.batch_bytes(SHAPES[cell.model], cell.way, reads, cell.batch, item)
            assert expected / 2 < max(figures["peaks"]) < expected * 2
        if cell.kind == "saving":  # one encoder pass for lists and passages
            sides = figures["sides"]
            assert 2 * sides["sharing"]["tokens"] == sides["none"]["tokens"]


@pytest.mark.slow
def test_a_cell_that_fails_or_takes_too_long_says_so_and_ends(tmp_path):
    process.start_server()
    broken = process.run(CELL, HERE, None, tmp_path, limit=60)
    assert broken["status"] == "failed"
    assert broken["why"].startswith("AttributeError: ")
    # Its first act is to load a model, which takes longer.
    stopped = process.run(CELL, HERE, None, tmp_path, limit=0.001)
    assert (stopped["status"], stopped["limit"]) == ("stopped", 0.001)


@pytest.mark.slow
def test_savings_of_a_reader_that_reads_are_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(predict._QUERIES_OF_READERS, "bundled-fid", 2)
    cell = Cell(kind="saving", model="bundled-fid", augmentation="fid", k=4, length=100)
    subject = models.make_subject("bundled-fid", "fid", tmp_path, HERE)
    sides = {
        change: savings.measure(replace(cell, change=change), HERE, subject, tmp_path)["sides"]
        for change in (FIRST, SECOND, METRIC)
    }
    # Two queries of four passages, and their lists.
    first = sides[FIRST]
    assert {side["reads"] for side in first.values()} == {10}
    assert first["sharing"]["tokens"] < first["none"]["tokens"]
    # Half of the passages are the first retriever's, and no list.
    second = sides[SECOND]
    assert second["none"]["reads"] == second["sharing"]["reads"] == 10
    assert second["store"]["reads"] == second["sharing and store"]["reads"] == 6
    # Stored reads answer for any metric.
    metric = sides[METRIC]
    assert metric["store"]["reads"] == metric["sharing and store"]["reads"] == 0


def test_predictions_know_how_many_scores_an_encoder_computes_at_once():
    assert predict.SCORES == t5_attention.SCORES
