"""The label bench on a made-up set: what a cell holds, what is said of it, and that cells are taken as they are."""

import json
import math

import numpy as np
import polars as pl
import pytest
import scipy.stats

from benchmarks import _label_cells as cells_of
from benchmarks import label_bench
from benchmarks._label_cells import CELLS, Cell, Way, joined, lacking, make_cell, part_of, read_cell
from engine import tables
from engine.inputs.files import EvaluationInputs
from engine.statistics.correlation import Bootstrap
from tests.conftest import ScriptedReader, make_run

COUNT, K = 24, 3


def reader(prompt):
    """Answers from the passage that stands next to the question, if that says anything."""
    return prompt.rsplit("says ", 1)[-1].split("\n")[0] if "says " in prompt else ""


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    queries, passages, ranks = [], [], []
    for one in range(COUNT):
        queries.append((f"q{one:02}", f"question {one}", ["yes"], [f"a{one}"]))
        for place in range(1, K + 1):
            says = "yes" if rng.random() < 0.5 else "no"
            passages.append((f"d{one}-{place}", "", f"It says {says}", f"a{one}"))
            ranks.append((f"q{one:02}", f"d{one}-{place}", place))
    run = make_run(ranks, "bm25")
    turned = make_run([(q, d, K + 1 - place) for q, d, place in ranks], "reversed")
    return EvaluationInputs(
        queries=pl.DataFrame(queries, tables.QUERIES, orient="row"),
        corpus=pl.DataFrame(passages, tables.CORPUS, orient="row"),
        runs=pl.concat([run, turned]), tables={}, cut_runs=(),
    )  # fmt: skip


def make(inputs, labels, folder):
    return make_cell(
        "made", inputs, Way("bundled", dtype="float32"), labels, store=folder, k=K,
        executor=ScriptedReader(reader),
    )  # fmt: skip


@pytest.fixture(scope="module")
def cell(inputs, tmp_path_factory):
    labels = ("erag", "containment", "provenance", "none")
    return make(inputs, labels, tmp_path_factory.mktemp("reads"))


def test_a_cell_has_every_label_and_the_scores_of_both_orders(cell):
    assert cell.table.columns == ["query_id", "place", "bm25", "list", "list_reversed", "erag", "containment", "provenance"]  # fmt: skip
    assert cell.labels == ["erag", "containment", "provenance", "bm25"]
    # This reader reads what stands last in the prompt: the first of the list, the last of the reversed list.
    _, labels, y = cell.values("erag")
    assert labels.shape == (COUNT, K)
    assert (labels[:, 0] == y).all()
    _, turned, reversed_scores = cell.values("erag", turned=True)
    assert (turned == labels[:, ::-1]).all()
    assert (turned[:, 0] == reversed_scores).all()
    assert cell.about["prices"]["erag"]["reads"] == K
    assert cell.about["prices"]["containment"] == {"reads": 0, "tokens": 0}


def test_figures_are_those_of_scipy_and_of_the_definitions(cell):
    rows = {row["label"]: row for row in label_bench.figures_of(cell, Bootstrap(resamples=200))}
    _, labels, y = cell.values("erag")
    x = labels @ (1 / np.log2([2, 3, 4]))
    erag = rows["erag"]
    assert erag["tau"] == pytest.approx(scipy.stats.kendalltau(x, y).statistic)
    assert erag["rho"] == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert erag["max_tau"] == pytest.approx(scipy.stats.kendalltau(labels.max(axis=1), y).statistic)
    assert erag["worth"] == pytest.approx(1 / (1 - erag["rho"] ** 2))
    assert erag["worth_low"] <= erag["worth"] <= erag["worth_high"]
    assert erag["share"] == pytest.approx(erag["tau"])  # the first label decides: the ceiling is 1
    assert math.isnan(rows["provenance"]["tau"])
    assert "every query" in rows["provenance"]["note"]
    few = Cell(cell.table.filter(pl.col("query_id") < "q08"), cell.about)
    assert math.isnan(label_bench.figures_of(few, Bootstrap(resamples=0))[0]["share"])
    orders = label_bench.orders_of(cell, Bootstrap(resamples=200))
    assert orders["ceiling"] == pytest.approx(1)
    assert np.argmax(orders["by_place"]) == np.argmax(orders["by_place_reversed"]) == 0
    (crossed,) = label_bench.matrix([cell], Bootstrap(resamples=0))
    assert crossed["tau"] == pytest.approx(erag["tau"])


def test_a_cell_gets_the_questions_and_labels_that_it_lacks(cell, inputs, tmp_path):
    first = part_of(inputs, inputs.queries.head(10))
    some = make(first, ("erag", "containment"), tmp_path)
    queries, labels, lists = lacking(some, inputs, ("erag", "containment"))
    assert (queries["query_id"][0], queries.height, labels) == ("q10", 14, ["erag", "containment"])
    assert lists
    rest = make(part_of(inputs, queries), labels, tmp_path)
    longer = joined(some, rest, inputs)
    assert longer.table.equals(cell.table.drop("provenance"))
    queries, labels, lists = lacking(longer, inputs, ("erag", "provenance"))
    assert (queries.height, labels, lists) == (COUNT, ["provenance"], False)
    added = make(part_of(inputs, queries, "bm25"), labels, tmp_path)
    whole = joined(longer, added, inputs)
    assert whole.table.equals(cell.table)
    assert whole.about == cell.about
    assert lacking(whole, inputs, ("erag", "provenance"))[0].is_empty()


@pytest.mark.parametrize(("known", "problem"), [("inputs", "other questions"), ("fingerprint", "another reader")])  # fmt: skip
def test_a_cell_of_other_inputs_or_another_reader_is_not_added_to(cell, inputs, known, problem):
    with pytest.raises(SystemExit, match=f"made, bundled in-prompt: the cell is of {problem}"):
        joined(Cell(cell.table, cell.about | {known: "0"}), cell, inputs)


def test_cells_are_taken_as_they_are_and_every_table_is_printed(cell, tmp_path, capsys):
    cell.write(tmp_path / "made.parquet")
    back = read_cell(tmp_path / "made.parquet")
    assert back.table.equals(cell.table)
    assert back.about == cell.about
    assert label_bench.repeated(cell, back)[0] == 0
    other = Cell(cell.table.with_columns((1 - pl.col("list")).alias("list")), cell.about)
    assert label_bench.repeated(cell, other) == (COUNT * K, COUNT * K * 6)
    report = tmp_path / "report.json"
    options = ["--cells", str(tmp_path), "--resamples", "100", "--json", str(report)]
    assert label_bench.main(options) == 0
    shown = capsys.readouterr().out
    head = "**made**", "| bundled in-prompt | erag | "
    assert all(text in shown for text in (*head, "**Both orders", "**Labels by", "**Useful"))
    assert len(json.loads(report.read_text())["labels"]) == 4


def test_ways_are_named_as_on_the_command_line():
    assert Way.of("bundled-fid:fid:float32") == Way("bundled-fid", "fid", "float32")
    assert Way.of("/models/llm.gguf:bfloat16") == Way("/models/llm.gguf", "in-prompt", "bfloat16")
    assert Way.of("openai:gpt:fid") == Way("openai:gpt:fid")
    assert Way.of("mine.py:answer:float32") == Way("mine.py:answer", "in-prompt", "float32")
    assert Way.of("mine.py:float32:fid:bfloat16") == Way("mine.py:float32", "fid", "bfloat16")
    assert Way.of("my-model:latest") == Way("my-model:latest")


def test_a_function_in_a_file_makes_a_cell_of_the_labels_that_it_can_give(inputs, cell, tmp_path):
    text = (
        "def reads(prompts):\n    return [p.rsplit('says ', 1)[-1].split()[0] for p in prompts]\n"
    )
    (tmp_path / "mine.py").write_text(text + "reads.version = '1'\n")
    way = Way.of(f"{tmp_path / 'mine.py'}:reads")
    own = make_cell("made", inputs, way, label_bench.LABELS, store=tmp_path / "reads", k=K)
    assert set(own.labels) >= {"erag", "gain", "containment", "erag-known"}
    assert not way.lacks & set(own.labels)
    # A chat's prompt has its passages in another order than a text's; single passages have none.
    assert own.table["erag"].equals(cell.table["erag"])


def test_committed_cells_are_small_and_hold_what_their_digests_say():
    cells = sorted(CELLS.glob("*.parquet"))
    assert max(path.stat().st_size for path in cells) <= cells_of.MOST_BYTES
    for path in cells:
        one = read_cell(path)
        assert one.about["table"] == cells_of.digest(one.table), path.name
