"""The efficiency benchmark: its grid, predictions, fits, tables and page; and a stopped run, among the slow tests."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest

from benchmarks.efficiency import own, page, predict
from benchmarks.efficiency import run as efficiency
from benchmarks.efficiency.changes import FIRST, SECOND, Way, listed, ways
from benchmarks.efficiency.fit import Point, crossing, fit, slope_at_the_end, times_of
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
from benchmarks.efficiency.results import Results
from benchmarks.efficiency.table import markdown
from engine.reading.models import t5_attention
from tests.expected import as_expected

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


def test_unfused_attention_over_a_list_needs_what_the_paper_reports():
    # 50 passages of 512 tokens: 8 heads x 25,820^2 scores of 4 bytes are 21.3 GB, held a few times.
    cell = replace(CELL, way="generate-eager", k=50, length=512)
    scores = 8 * (20 + 50 * 516) ** 2 * 4
    assert scores == pytest.approx(21.3e9, rel=0.01)
    assert 2 * scores < predict.peak(cell, HERE) < 5 * scores
    # Fusion-in-Decoder needs a hundredth of the scores, since each passage attends to itself alone.
    fused = predict.reads_of(replace(cell, augmentation="fid"), "end-to-end")
    assert 8 * fused.texts * fused.tokens**2 < scores / 4 / 45


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


def test_exponents_are_those_of_a_power_law():
    points = [Point(k, d, 3.0 * k**2 * d**1.5) for k in (1, 5, 10) for d in (50, 100)]
    assert fit(points)[:2] == pytest.approx((2, 1.5))
    assert slope_at_the_end(points) == pytest.approx(2)


def test_where_methods_cross_is_told_from_the_ratios():
    assert crossing([(1, 0.5), (5, 0.9), (10, 1.2)]) == "from k between 5 and 10 on"
    assert crossing([(1, 1.5), (5, 0.9), (10, 1.2)]) == "from k between 5 and 10 on"
    assert crossing([(5, 1.1), (1, 1.2)]) == "at every k from 1 on"
    assert crossing([(1, 0.5), (5, 1.0)]) == "at no k up to 5"
    assert crossing([(1, 1.5), (5, 0.9)]).startswith("not at k = 5, ")
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
    # 3.0 / 1.5 and 3.3 / 1.5: a median of 2.1; 300 MiB by 100 and by 10.
    row = "| t5-small | in-prompt | engine | 10 | 100 | 5 | 3.150 | 1.500 | **2.10** | 2.00–2.20 | 2 | 2.10 |"
    assert row in text
    assert "| t5-small | in-prompt | engine | 10 | 100 | 5 | 300 | 100 | 3.0 | 10 | 30.0 |" in text
    # Of the list of 20 passages no peak is known.
    assert "**4.00** | 4.00–4.00 | 2 | 4.00 |" in text
    assert "| t5-small | in-prompt | engine | 20 | 100 | 5 | · | · | · | 10 | · |" in text
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


def test_the_page_begins_with_the_papers_four_rows_beside_ours(tmp_path):
    page.write(filled(tmp_path), {}, tmp_path / "r")
    text = (tmp_path / "r.html").read_text()
    first = text[text.index("<table") : text.index("</table>")]
    cells = re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", first)
    # Nearest to the paper's 50 passages: the list of 20, whose peak is unknown.
    assert cells[:3] == [
        "",
        "paper: T5\N{NON-BREAKING HYPHEN}small, k = 50",
        "engine, answers of 5",
    ]
    assert cells[3:6] == ["time, end-to-end ÷ eRAG", "1.232 to 3.252, mean 2.468", "4.00"]
    assert cells[7::3] == ["46 to 75 GB", "7 to 15", "30 to 48"]
    assert {file.name for file in tmp_path.glob("*.svg")} == {"r-time.svg", "r-memory.svg"}


@pytest.fixture
def own_model(tiny_t5):
    [name] = own.add_models(str(tiny_t5))
    yield name
    del SHAPES[name]


def test_a_model_of_ones_own_is_measured_at_any_k_and_length(own_model, tiny_t5, tmp_path):
    from benchmarks.efficiency import cell, models

    shape = SHAPES[own_model]
    assert own_model.startswith(f"{tiny_t5.name}@")
    assert (shape.hidden, shape.inner, shape.feed_forward, shape.layers) == (32, 32, 64, 2)
    assert shape.parameters == shape.counted > 100 * 32  # the embeddings, and more
    cells = full_grid([FIRST], models=[own_model], k=[7], lengths=[30])
    asked = efficiency.chosen(cells, models=own_model, k="7", lengths="30", kinds="time")
    assert {(c.augmentation, c.way) for c in asked} == set(product(("in-prompt", "fid"), WAYS))
    # All ways of reading give the same outputs.
    (tmp_path / models.ARTICLES).write_text(models.articles(0))
    check = quick_grid([FIRST], models=[own_model])[0]
    subject = models.make_subject(own_model, check.augmentation, tmp_path, HERE)
    assert cell.measure(check, HERE, subject, tmp_path)["reads"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_in_one_line_what_it_keeps(number, tiny_t5, tmp_path):
    options = ["--models", tiny_t5, "--k", "2,3", "--lengths", "20", "--json", tmp_path / "r.json"]
    command = [sys.executable, "-m", "benchmarks.efficiency", "--quick", *map(str, options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert ": done" in process.stdout.readline()
        os.killpg(process.pid, number)  # as a terminal and a scheduler send it
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert said.count("\n") == 1
    assert f"{tmp_path / 'r.json'} keeps the cells that are done" in said
    assert json.loads((tmp_path / "r.json").read_text())["cells"]
    assert (tmp_path / "r.html").exists()


def test_the_engine_stands_beside_the_faster_way_of_generate_by_the_least_of_the_rounds(tmp_path):
    results = filled(tmp_path)
    results.add(replace(CELL, way="generate-sdpa"), done([2.5, 2.4], [3.5, 3.6]))
    # Other answers are another place, with one way alone.
    results.add(replace(CELL, way="generate-sdpa", answer_tokens=64), done([1.0], [1.0]))
    text = "\n".join(markdown(results, {}))
    place = "| t5-small | in-prompt | 10 | 100 | 5 |"
    assert f"{place} end-to-end | 3.000 | 2.000 | generate-eager | **1.50** |" in text
    assert f"{place} erag | 1.500 | 3.500 | generate-sdpa | 0.43 |" in text
    assert text.count("| generate-sdpa | 0.43 |") == 1
    assert "| t5-small | in-prompt | 10 | 100 | 64 |" not in text


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
    "arguments",
    [
        "--hours 0",
        "--threads 0",
        "--dtype int8",
        "--models t5",
        "--k 5,0",
        "--quick --models bundled --k 3 --lengths 5000 --memory 99GiB",
        "--memory lots",
    ],
)
def test_bad_options_are_refused_in_one_line(arguments, tmp_path):
    with pytest.raises(SystemExit) as caught:
        efficiency.main([*arguments.split(), "--json", str(tmp_path / "r.json")])
    as_expected(str(caught.value))


def test_predictions_know_how_many_scores_an_encoder_computes_at_once():
    assert predict.SCORES == t5_attention.SCORES
