import ast
import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.inputs.files import cut_inputs
from tests.conftest import ScriptedReader
from tests.expected import refused
from tests.tables import amount, inputs, read_files, say_last

ROOT = Path(__file__).parents[2]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path):
    asked = ({"id": i, "input": "who", "output": [{"answer": "Ann"}]} for i in "12")
    queries = write(tmp_path / "q.jsonl", asked)
    corpus = write(tmp_path / "c.jsonl", ({"id": "a", "text": "x"}, {"id": "b", "text": " "}))
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 a 1 3 s\n1 Q0 b 2 2 s\n1 Q0 c 3 1 s\n9 Q0 z 1 1 s\n")
    return queries, corpus, run


def test_only_what_the_cutoff_needs_is_kept(files):
    inputs = read_files(files[0], files[1], [files[2]], k=2)
    assert inputs.runs["doc_id"].to_list() == ["a", "b"]
    assert inputs.corpus["doc_id"].to_list() == ["a", "b"]
    assert (amount(inputs, "ignored_queries"), amount(inputs, "empty_passages")) == (1, 1)


def test_a_document_that_the_corpus_lacks_is_named_with_its_line(files):
    with refused("inputs.passage", path=files[2], line=3):
        read_files(files[0], files[1], [files[2]], k=3)


def test_a_run_for_other_queries_is_refused(files, tmp_path):
    other = tmp_path / "other.trec"
    other.write_text("9 Q0 a 1 1 t\n")
    with refused("inputs.unrelated"):
        read_files(files[0], files[1], [files[2], other], k=2)


def test_a_limit_counts_queries_and_never_drops_a_run_quietly(files, tmp_path):
    late = tmp_path / "late.trec"
    late.write_text("2 Q0 a 1 1 late\n")
    assert read_files(files[0], files[1], [files[2], late], k=2).queries.height == 2
    inputs = read_files(files[0], files[1], [files[2]], k=1, limit=1)
    assert inputs.queries["query_id"].to_list() == ["1"]
    assert inputs.corpus["doc_id"].to_list() == ["a"]
    # Query 9 is in no file; query 2 was left out on request.
    assert amount(inputs, "ignored_queries") == 1
    with refused("inputs.unrelated"):
        read_files(files[0], files[1], [files[2], late], k=2, limit=1)


def test_runs_of_the_erag_package_go_by_texts(tmp_path):
    queries = tmp_path / "q.csv"
    queries.write_text("id,query,answers\n1,who is it,Ann\n2,who is it,Ann\n3,where,here\n")
    texts = {"a": "It is Ann.", "b": "It is here.", "c": "It is Ann.", "d": "word"}
    corpus = write(tmp_path / "c.jsonl", ({"id": i, "text": t} for i, t in texts.items()))
    lists = {"who is it": ["It is here.", "It is Ann.", "d"], "where": [], "x": ["d"]}
    run = write(tmp_path / "mine.json", [lists])
    inputs = read_files(queries, corpus, [run], k=2)
    # Two queries have the text, both get the list; of two passages with one text the first is meant.
    assert inputs.runs.select("query_id", "doc_id", "rank", "score", "run").rows() == [
        (query, *row, "mine") for query in "12" for row in (("b", 1, 3.0), ("a", 2, 2.0))
    ]
    assert sorted(inputs.corpus["doc_id"]) == ["a", "b"]
    assert (amount(inputs, "ignored_queries"), inputs.cut_runs) == (1, ("mine",))
    write(run, [{"where": ["It is nowhere."]}])
    said = "inputs.passage"
    with refused(said):
        read_files(queries, corpus, [run], k=2)


def test_what_was_left_out_is_counted(files):
    queries, corpus, run = files
    with corpus.open("a") as stream:
        stream.write('{"id": \n')
    with refused("json.broken"):
        read_files(queries, corpus, [run], k=2)
    assert amount(read_files(queries, corpus, [run], k=2, skip_bad=1), "skipped_records") == 1


def test_inputs_know_their_cutoff_and_refuse_a_larger_one(files):
    inputs = read_files(files[0], files[1], [files[2]], k=2)
    assert inputs.k == 2
    assert cut_inputs(inputs, 2) is inputs
    smaller = cut_inputs(inputs, 1)
    assert (smaller.k, smaller.runs["doc_id"].to_list(), smaller.cut_runs) == (1, ["a"], ("s",))
    assert smaller.corpus["doc_id"].to_list() == ["a"]
    assert amount(smaller, "empty_passages") == 0  # that of b was beyond
    with refused("inputs.cutoff"):
        cut_inputs(inputs, 3)


def test_tables_that_were_never_cut_fit_any_cutoff(files):
    never = replace(read_files(files[0], files[1], [files[2]], k=2), k=None, cut_runs=())
    longer = cut_inputs(never, 7)
    assert (longer.k, longer.cut_runs) == (7, ())
    assert longer.runs.equals(never.runs)
    assert cut_inputs(never, 1).cut_runs == ("s",)


def test_inputs_of_a_smaller_cutoff_are_refused_before_any_read(tmp_path):
    reader = ScriptedReader(say_last)
    short = cut_inputs(inputs(), 2)
    settings = Settings.of(k=3, measures="P@3", resamples=0)
    with refused("inputs.cutoff"):
        evaluate(short, settings, store=tmp_path, executor=reader)
    with refused("inputs.cutoff"):
        study(short, vary(settings, Sweep(k_sweep=(1, 3))), store=tmp_path, executor=reader)
    assert reader.asked == []


def test_inputs_of_a_larger_cutoff_are_cut_at_that_of_the_settings(tmp_path):
    settings = Settings.of(
        k=2, measures="P@2 AP R", annotators=("erag", "containment"), resamples=0
    )
    found = [
        evaluate(given, settings, store=tmp_path / name, executor=ScriptedReader(say_last))
        for name, given in (("long", inputs()), ("cut", cut_inputs(inputs(), 2)))
    ]
    # q1 lists d4, d1 | d2: AP over the first two alone, and d2 is neither read nor labelled
    labelled = found[0].labels.filter(query_id="q1", annotator="erag")["doc_id"]
    assert labelled.to_list() == ["d4", "d1"]
    for name in ("labels", "query_scores", "reads"):
        assert getattr(found[0], name).equals(getattr(found[1], name)), name


def test_only_shards_read_the_files_of_an_evaluation():
    """What fits is read and checked by the shards alone; what was cut was checked by the same functions."""
    callers = {
        str(path.relative_to(ROOT))
        for folder in ("engine", "jobs")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and "read_inputs" in ast.unparse(node.func).split(".")
    }
    asking = "jobs/ask.py"  # which evaluates nothing
    assert callers == {"engine/inputs/shards.py", asking}


def test_a_passage_that_a_list_has_by_its_id_and_by_its_text_is_refused(files, tmp_path):
    run = tmp_path / "both.json"
    run.write_text(json.dumps({"1": ["a", "it is b"], "2": ["b", "it is b"]}))
    files[1].write_text('{"id": "a", "text": "x"}\n{"id": "b", "text": "it is b"}\n')
    with refused("inputs.duplicate", path=run):
        read_files(files[0], files[1], [run], k=2)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("of_output", ["NFC", "NFD"])
def test_texts_that_are_the_same_to_the_eye_match(files, tmp_path, form, of_output):
    """In whatever form the question, its answer, the passage and the reader's output are written."""

    def written(form, text):
        return unicodedata.normalize(form, text)

    answers = [{"answer": written(form, "Café")}]
    write(files[0], [{"id": "1", "input": written(form, "서울?"), "output": answers}])
    write(files[1], [{"id": "a", "text": written(form, "Das Café Zürich")}])
    files[2].write_text("1 Q0 a 1 3 s\n")
    given = read_files(files[0], files[1], [files[2]], k=1)
    assert given.queries["query"].to_list() == ["서울?"]
    for metric in ("em", "f1"):
        annotators = ("erag", "containment", "containment-substring")
        settings = Settings.of(k=1, metric=metric, annotators=annotators, resamples=0)
        reader = ScriptedReader(lambda text: written(of_output, "Café"))
        result = evaluate(given, settings, store=tmp_path / metric, executor=reader)
        assert result.labels["label"].to_list() == [1.0, 1.0, 1.0]
        assert result.end_to_end["value"].to_list() == [1.0]
