"""Recorded outputs in place of reads of whole lists."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import engine
from engine import read_traces
from engine.report.findings import read_findings
from engine.sources.traces.read import named_file, read_outputs
from tests.commands import erag
from tests.expected import refused

CAPITALS = {
    "Aruba": "Oranjestad", "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana", "Spain": "Madrid",
    "Italy": "Rome", "Oman": "Muscat", "Fiji": "Suva", "Iran": "Tehran", "Iraq": "Baghdad",
}  # fmt: skip
QUERIES = {
    f"q{i}": {"query": f"capital of {land}?", "answers": [city]}
    for i, (land, city) in enumerate(CAPITALS.items())
}
PASSAGES = {f"d{i}": f"{city} rules {land}" for i, (land, city) in enumerate(CAPITALS.items())}
RUNS = {
    "near": {f"q{i}": [f"d{i}", f"d{(i + 1) % 10}"] for i in range(10)},
    "far": {f"q{i}": [f"d{(i + 2) % 10}", f"d{i if i % 3 else (i + 4) % 10}"] for i in range(10)},
}


class Reading:
    """A reader that says the city of the land asked for, and counts its prompts."""

    def __init__(self):
        self.prompts = 0

    def __call__(self, prompts):
        self.prompts += len(prompts)
        lands = [prompt.rsplit("capital of ", 1)[1].split("?")[0] for prompt in prompts]
        return [
            CAPITALS[land] if f"rules {land}" in prompt else "nowhere"
            for land, prompt in zip(lands, prompts, strict=True)
        ]


def evaluate(tmp_path, reader=None, **options):
    given = {"k": 2, "measures": "nDCG@2 P@1", "progress": False, "store": tmp_path / "store"}
    return engine.evaluate(QUERIES, PASSAGES, RUNS, reader=reader or Reading(), **given | options)


def test_recorded_outputs_give_the_figures_of_read_ones_and_cost_no_reads(tmp_path):
    read, recorded = Reading(), Reading()
    whole = evaluate(tmp_path, read)
    again = evaluate(
        tmp_path, recorded, outputs=whole.table("downstream").select("run", "query_id", "output")
    )
    assert 0 < recorded.prompts < read.prompts
    assert recorded.prompts == whole.labels.height
    for name in ("downstream", "query_scores", "correlations", "run_pairs", "by_place", "unseen"):
        assert_frame_equal(again.table(name), whole.table(name))
    assert again.summary["configuration"]["end_to_end"] == "recorded"
    assert again.summary["verdict"]["best"] == whole.summary["verdict"]["best"]


def test_no_reader_is_needed_if_no_label_needs_one(tmp_path):
    reader = Reading()
    outputs = {run: dict.fromkeys(QUERIES, "Lima") for run in RUNS}
    result = evaluate(tmp_path, reader, outputs=outputs, annotators="containment")
    assert not reader.prompts
    assert [row["value"] for row in result.summary["end_to_end"]] == [0.1, 0.1]


def test_a_query_goes_by_its_text_and_one_run_needs_no_name(tmp_path):
    outputs = {query["query"]: query["answers"][0] for query in QUERIES.values()}
    given = {"k": 2, "measures": "P@1", "progress": False, "store": tmp_path / "store"}
    result = engine.evaluate(
        QUERIES, PASSAGES, RUNS["far"], reader=Reading(), outputs=outputs, **given
    )
    assert [row["value"] for row in result.summary["end_to_end"]] == [1]


def test_lists_and_outputs_without_each_other_are_noted(tmp_path):
    outputs = {run: {f"q{i}": "Lima" for i in range(8)} for run in RUNS}
    outputs["near"]["unknown"] = "Lima"
    runs = {**RUNS, "near": {query: own for query, own in RUNS["near"].items() if query != "q0"}}
    given = {"k": 2, "measures": "P@1", "progress": False, "store": tmp_path / "store"}
    result = engine.evaluate(QUERIES, PASSAGES, runs, reader=Reading(), outputs=outputs, **given)
    notes = {
        (code, *note["about"]): note["amount"]
        for code, own in result.summary["notes"].items()
        for note in own
    }
    assert notes["unanswered_lists", "near"] == notes["unanswered_lists", "far"] == 2
    assert notes["unlisted_outputs", "near"] == 1
    assert notes["outputs_of_others",] == 1
    assert {row["run"]: row["n"] for row in result.summary["end_to_end"]} == {"near": 8, "far": 8}


@pytest.mark.parametrize(
    ("code", "outputs", "options"),
    [
        ("outputs.run", {"near": {"q0": "x"}}, {}),
        ("outputs.run", {"near": {"q0": "x"}, "far": {"q0": "x"}, "third": {"q0": "x"}}, {}),
        ("outputs.run", {"q0": "x"}, {}),
        ("inputs.strangers", {"near": {"z": "x"}, "far": {"z": "x"}}, {}),
        ("outputs.text", {"near": {"q0": None}, "far": {"q0": "x"}}, {}),
        ("outputs.run", {}, {}),
        (
            "outputs.twice",
            [{"run": run, "query_id": "q0", "output": "x"} for run in ("near", "far", "near")],
            {},
        ),
        ("runs.queryless", [{"run": "near", "output": "x"}], {}),
        ("settings.outputs", {"near": {"q0": "x"}, "far": {"q0": "x"}}, {"end_to_end": False}),
        ("settings.listless", {"near": {"q0": "x"}, "far": {"q0": "x"}}, {"lists": 0.5}),
    ],
)
def test_unusable_outputs_are_refused(tmp_path, code, outputs, options):
    reader = Reading()
    with refused(code):
        evaluate(tmp_path, reader, outputs=outputs, **options)
    assert not reader.prompts


def test_numbers_of_queries_are_no_ids_of_outputs(tmp_path):
    queries = [*QUERIES.values()]
    given = {"k": 2, "measures": "P@1", "progress": False, "store": tmp_path / "store"}
    with refused("queries.unidentified"):
        engine.evaluate(
            queries,
            PASSAGES,
            {"1": ["d0"]},
            reader=Reading(),
            outputs={"1": "x", "z9": "y"},
            **given,
        )


def test_files_name_their_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"query_id": f"q{i}", "output": "" if i % 2 else "Rome"} for i in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pl.DataFrame(rows).with_columns(run=pl.lit("far")).write_parquet("b.parquet")
    (tmp_path / "c=d.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    table = read_outputs(["near=a.jsonl", "b.parquet"])
    assert table.select("query_id", "output").rows() == [tuple(row.values()) for row in rows] * 2
    assert table["run"].to_list() == ["near"] * 4 + ["far"] * 4
    assert named_file("c=d.jsonl") == ("", "c=d.jsonl")  # a file of this name
    assert read_outputs(["c=d.jsonl"])["run"].to_list() == [""] * 4
    (tmp_path / "a.jsonl").write_text(
        '{"query_id": 1, "output": "x"}\n{"query_id": 1, "output": 2}\n'
    )
    with refused("outputs.text", path="a.jsonl", line=2):
        read_outputs(["a.jsonl"])


def test_shards_keep_recorded_outputs(tmp_path):
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"id": key, **query}) + "\n" for key, query in QUERIES.items())
    )
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in PASSAGES.items())
    )
    files = ["--queries", tmp_path / "queries.jsonl", "--corpus", tmp_path / "corpus.jsonl"]
    for run, lists in RUNS.items():
        (tmp_path / f"{run}.json").write_text(json.dumps(lists))
        outputs = [{"query_id": f"q{i}", "output": [*CAPITALS.values()][i]} for i in range(9)]
        (tmp_path / f"{run}.out").write_text("".join(json.dumps(row) + "\n" for row in outputs))
    files += ["--run", *(tmp_path / f"{run}.json" for run in RUNS)]
    files += ["--outputs", *(f"{run}={tmp_path / run}.out" for run in RUNS)]
    files += ["--annotators", "containment", "--k", 2, "--measures", "P@1 nDCG@2"]
    found = {}
    for name, more in (("whole", ()), ("shards", ("--shard-pairs", 6))):
        erag("evaluate", *files, *more, "--out", tmp_path / name)
        found[name] = read_findings(tmp_path / name, None)
    for table in ("downstream", "query_scores", "correlations"):
        whole, cut = (found[name].table(table) for name in ("whole", "shards"))
        assert_frame_equal(cut, whole, check_row_order=False)
    assert found["shards"].summary["counts"]["queries"] == 10
    assert found["whole"].summary["configuration"]["outputs"] == [
        str(tmp_path / f"{run}.out") for run in RUNS
    ]


def test_a_comparison_says_that_one_side_was_recorded(tmp_path):
    read = evaluate(tmp_path)
    outputs = read.table("downstream").select("run", "query_id", "output")
    for name, result in (("read", read), ("recorded", evaluate(tmp_path, outputs=outputs))):
        result.save(tmp_path / name)
    compared = engine.compare(tmp_path / "read", tmp_path / "recorded")
    assert [one for one in compared.unlike if one.startswith("end_to_end")]
    assert {row["difference"] for row in compared.pairs} == {0.0}


def test_an_output_with_and_without_the_name_of_its_run_is_refused(tmp_path):
    outputs = [
        {"query_id": "q0", "output": "x"},
        {"run": "near", "query_id": "q0", "output": "y"},
    ]
    with refused("outputs.twice"):
        engine.evaluate(
            QUERIES, PASSAGES, {"near": RUNS["near"]}, reader=Reading(), outputs=outputs, k=2,
            progress=False, store=tmp_path / "store",
        )  # fmt: skip


def test_traces_without_answers_are_read(tmp_path):
    outputs = read_traces([{"query_id": "q0", "step": 1, "passages": ["d0"]}]).outputs
    reader = Reading()
    result = evaluate(tmp_path, reader, outputs=outputs)
    assert result.summary["configuration"]["end_to_end"] is True
    assert reader.prompts > result.labels.height
