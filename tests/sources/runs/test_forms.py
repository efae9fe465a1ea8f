"""Runs as records, and runs that carry the texts of their passages."""

import hashlib
import json

import polars as pl
import pytest

from engine.sources.runs import scan
from engine.sources.runs.read import id_of, read_run, read_runs_with_texts, read_texted_runs
from engine.sources.runs.scan import layout_of, lists_at_least, scan_run
from tests.expected import refused

ANN, BO = "Ann did it.", "Bo did it."


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def listed(run):
    return run.select("query_id", "doc_id", "rank").rows()


def both(text="text"):
    """The two passages, with their texts under a name."""
    return [{"id": "a", text: ANN}, {"id": "b", text: BO}]


ROW_A, ROW_B = ({"query_id": "1", **passage} for passage in both())
# The same two lists as others write them; "1" stands for the query, which some name by its text.
FORMS = {
    "ours": [{"query_id": "1", "results": both()}],
    "DPR's": [{"question": "1", "answers": ["x"], "ctxs": both()}],
    "ids alone": [{"query_id": 1, "results": ["a", "b"]}],
    "LangChain's": [{"query": "1", "documents": both("page_content")}],
    "Haystack's": [{"query": "1", "documents": both("content")}],
    "rows with ranks": [ROW_B | {"rank": 7}, ROW_A | {"rank": 2}],
    "rows with scores": [ROW_B | {"score": "0.25"}, ROW_A | {"score": "4"}],  # DPR's are texts
    "rows in their order": [ROW_A, ROW_B],
}


@pytest.mark.parametrize("name", FORMS)
def test_records_of_other_projects_mean_the_same_in_every_layout(tmp_path, name):
    records = FORMS[name]
    lines(tmp_path / "r.jsonl", *records)
    (tmp_path / "r.json").write_text(json.dumps(records, indent=1))
    pl.DataFrame(records).write_parquet(tmp_path / "r.parquet")
    for file in ("r.jsonl", "r.json", "r.parquet"):
        (found,) = read_texted_runs([tmp_path / file])
        assert listed(found.rows) == [("1", "a", 1), ("1", "b", 2)], file
        assert found.rows["run"].unique().to_list() == ["r"]
        assert found.rows["score"].is_sorted(descending=True)
        texts = dict(found.texts.select("doc_id", "text").rows())
        assert texts == ({} if name == "ids alone" else {"a": ANN, "b": BO}), file
        assert not layout_of(tmp_path / file).has_lines
        assert lists_at_least([tmp_path / file], 2, k=9)
        assert not lists_at_least([tmp_path / file], 3, k=9)
        (batch,) = scan_run(tmp_path / file)
        assert batch.texts.equals(found.texts)


def test_a_dictionary_may_hold_passages(tmp_path):
    items = [{"id": "a", "text": ANN}, {"text": BO, "title": "T"}]
    (tmp_path / "r.json").write_text(json.dumps({"1": items, "2": items[:1]}, indent=1))
    assert listed(read_run(tmp_path / "r.json")) == [("1", "a", 1), ("1", BO, 2), ("2", "a", 1)]
    # Scores, and ids in lists, are what they were.
    for content in ({"1": {"a": 1.0}}, {"1": ["a", "b"]}, {"id": {"a": 1}}, {"query": ["a", "b"]}):
        (tmp_path / "r.json").write_text(json.dumps(content))
        (batch,) = scan_run(tmp_path / "r.json")
        assert batch.rows["rank"].null_count() == batch.rows.height > 0, content


def test_a_dictionary_of_scores_is_parsed_once(tmp_path, monkeypatch):
    (tmp_path / "r.json").write_text(json.dumps({'a "key"': {"a": 1.0}}, indent=1))
    read, parsed = scan.records.read_json_document, []
    monkeypatch.setattr(scan.records, "read_json_document", lambda *a: parsed.append(a) or read(*a))
    assert listed(read_run(tmp_path / "r.json")) == [('a "key"', "a", 1)]
    assert len(parsed) == 1


def test_the_order_of_a_list_counts_and_its_scores_are_kept_where_they_fall(tmp_path):
    for scores, expected in (
        ([3, 2], [3.0, 2.0]),
        ([0.1, 0.9], [2.0, 1.0]),
        ([3, None], [2.0, 1.0]),
    ):
        items = [{"id": d, "score": s} for d, s in zip("ab", scores, strict=True)]
        run = read_run(lines(tmp_path / "r.jsonl", {"query_id": "1", "results": items}))
        assert listed(run) == [("1", "a", 1), ("1", "b", 2)]
        assert run["score"].to_list() == expected


def test_the_texts_of_runs_are_a_corpus(tmp_path):
    passage = {"id": "a", "text": ANN}
    one = lines(
        tmp_path / "one.jsonl",
        {"query_id": "1", "results": [passage | {"title": "A"}, {"text": BO}, "It is 5."]},
        {"query_id": "2", "results": ["It is 5.", {"id": "c"}]},
    )
    two = tmp_path / "two.json"
    items = [{"id": "c", "text": "C.", "wikipedia_id": 9}, passage, {"text": BO, "title": "B"}]
    two.write_text(json.dumps({"1": items}))
    runs, corpus, _ = read_runs_with_texts([one, two])
    bo, five = (hashlib.sha256(t.encode()).hexdigest()[:16] for t in (BO, "It is 5."))
    assert id_of(BO) == bo
    # A title of one run is that of the passage in the other; without an article or a title, the id.
    assert corpus.rows() == [
        ("a", "A", ANN, "A"),
        (bo, "B", BO, "B"),
        (five, "", "It is 5.", five),
        ("c", "", "C.", "9"),
    ]
    assert listed(runs.filter(pl.col("run") == "one")) == [
        ("1", "a", 1), ("1", bo, 2), ("1", five, 3), ("2", five, 1), ("2", "c", 2),
    ]  # fmt: skip
    assert listed(runs.filter(pl.col("run") == "two")) == [
        ("1", "c", 1),
        ("1", "a", 2),
        ("1", bo, 3),
    ]


def test_two_texts_of_one_passage_are_refused_with_both_places(tmp_path):
    one = lines(
        tmp_path / "one.jsonl",
        {"query_id": "1", "results": [{"id": "b", "text": BO}]},
        {"query_id": "2", "results": [{"id": "a", "text": ANN}]},
    )
    two = lines(tmp_path / "two.jsonl", {"query_id": "7", "results": [{"id": "a", "text": BO}]})
    with refused("runs.conflict", path=two, line=1):
        read_runs_with_texts([one, two])
    # In Parquet there are no lines: the queries tell.
    table = tmp_path / "p.parquet"
    pl.DataFrame({"query_id": ["8"], "doc_id": ["a"], "text": [BO]}).write_parquet(table)
    with refused("runs.conflict", path=table):
        read_runs_with_texts([one, table])


def test_records_name_their_system_or_go_by_their_file(tmp_path):
    rows = [
        {"query_id": "1", "id": "a", "run": "dense"},
        {"query_id": "2", "id": "a", "run": "dense"},
    ]
    assert read_run(lines(tmp_path / "r.jsonl", *rows))["run"].unique().to_list() == ["dense"]
    rows[1]["run"] = "bm25"
    with refused("runs.several"):
        read_run(lines(tmp_path / "r.jsonl", *rows))
