import json

import pytest

from engine.errors import InputError
from engine.sources.inputs import read_inputs


@pytest.fixture
def files(tmp_path):
    queries = tmp_path / "q.jsonl"
    queries.write_text(
        "".join(
            json.dumps({"id": i, "input": "who", "output": [{"answer": "Ann"}]}) + "\n"
            for i in ("1", "2")
        )
    )
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": d, "text": t}) + "\n" for d, t in (("a", "x"), ("b", " ")))
    )
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 a 1 3 s\n1 Q0 b 2 2 s\n1 Q0 c 3 1 s\n9 Q0 z 1 1 s\n")
    return queries, corpus, run


def test_only_what_the_cutoff_needs_is_kept(files):
    inputs = read_inputs(files[0], files[1], [files[2]], k=2)
    assert inputs.runs["doc_id"].to_list() == ["a", "b"]
    assert inputs.corpus["doc_id"].to_list() == ["a", "b"]
    assert (inputs.ignored_queries, inputs.empty_passages) == (1, 1)


def test_a_document_that_the_corpus_lacks_is_named_with_its_line(files):
    with pytest.raises(InputError) as caught:
        read_inputs(files[0], files[1], [files[2]], k=3)
    assert str(caught.value).startswith(f"{files[2]}:3: document 'c' of query '1'")


def test_a_run_for_other_queries_is_refused(files, tmp_path):
    other = tmp_path / "other.trec"
    other.write_text("9 Q0 a 1 1 t\n")
    with pytest.raises(InputError, match="lists none of the 2 queries"):
        read_inputs(files[0], files[1], [files[2], other], k=2)


def test_a_limit_counts_queries_and_never_drops_a_run_quietly(files, tmp_path):
    late = tmp_path / "late.trec"
    late.write_text("2 Q0 a 1 1 late\n")
    assert read_inputs(files[0], files[1], [files[2], late], k=2).queries.height == 2
    inputs = read_inputs(files[0], files[1], [files[2]], k=1, limit=1)
    assert inputs.queries["query_id"].to_list() == ["1"]
    assert inputs.corpus["doc_id"].to_list() == ["a"]
    assert inputs.ignored_queries == 1  # query 9 is in no file; query 2 was left out on request
    with pytest.raises(InputError, match=r"late\.trec: lists none of the 1 queries"):
        read_inputs(files[0], files[1], [files[2], late], k=2, limit=1)
