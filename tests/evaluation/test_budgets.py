"""Lists at a budget of tokens, in measures and in what the reader is given, by hand."""

import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.reading.backends import NamedExecutor
from engine.reading.lengths import passage_tokens
from engine.reading.reader_settings import ReaderSettings
from tests.conftest import ScriptedReader
from tests.tables import amount, inputs, say_last


def answer(prompt):
    return say_last(prompt) if "Passage: " in prompt else "no idea"


def run_evaluation(tmp_path, **options):
    # A model behind an API, whose tokenizer is elsewhere: "A1 says nothing" (d4) has 15 characters, so 4 tokens, and
    # all other passages have 10 or 11, so 3.
    settings = Settings.of(
        k=3, reader="openai:model", base_url="http://127.0.0.1:9/v1", resamples=0, **options
    )
    executor = NamedExecutor("scripted", ScriptedReader(answer))
    return evaluate(inputs(), settings, store=tmp_path, executor=executor)


def test_the_reader_gets_the_passages_that_the_measures_count(tmp_path):
    result = run_evaluation(tmp_path, end_to_end_k="7tok", measures="P@7tok Success@3tok")
    lists = result.reads.filter(pl.col("doc_ids").list.len() != 1)
    # q1 lists d4, d1 and d2 (4 + 3 + 3), q2 and q3 d2 and d3 (3 + 3).
    assert set(lists.select("query_id", "doc_ids").explode("doc_ids").rows()) == {
        ("q1", "d4"), ("q1", "d1"), ("q2", "d2"), ("q2", "d3"), ("q3", "d2"), ("q3", "d3")
    }  # fmt: skip
    scores = {(m, q): v for _, _, m, q, v in result.query_scores.iter_rows()}
    # Useful are d1 for q1, d2 for q2, d3 for q3; of q1 not even d4 fits into 3 tokens.
    assert scores == pytest.approx(
        {("P@7tok", q): 3 / 7 for q in ("q1", "q2", "q3")}
        | {("Success@3tok", "q1"): 0, ("Success@3tok", "q2"): 1, ("Success@3tok", "q3"): 0}
    )
    assert result.downstream["k"].unique().to_list() == [3]
    notes = {note.code: note.text for note in result.notes if note.is_shown}
    assert (
        "1 list of sys at 3 tokens begins with a passage that is longer"
        in notes["nothing_in_budget"]
    )
    assert "openai:model has no tokenizer here" in notes["estimated_tokens"]


def test_lists_that_end_before_the_budget_is_filled_are_counted(tmp_path):
    result = run_evaluation(tmp_path, measures="Success@99tok", end_to_end=False)
    # q2 and q3 list two passages, and would list no more at a larger k.
    assert amount(result, "budget_not_filled") == 1
    assert amount(run_evaluation(tmp_path, measures="Success@3"), "estimated_tokens") == 0


def test_a_list_without_a_passage_that_fits_is_read_without_passages_and_stays(tmp_path):
    result = run_evaluation(tmp_path, end_to_end_k="3tok", measures="Success@3tok", missing="skip")
    assert (
        set(result.downstream["query_id"])
        == set(result.query_scores["query_id"])
        == {"q1", "q2", "q3"}
    )
    assert result.reads.filter(pl.col("doc_ids").list.len() == 0)["query_id"].to_list() == ["q1"]


def test_tokens_are_those_of_the_readers_tokenizer():
    from transformers import AutoTokenizer

    from engine.sources.bundled import fid_reader_directory

    tokenizer = AutoTokenizer.from_pretrained(fid_reader_directory())
    texts = [("Aruba", "The capital of  Aruba\nis Oranjestad."), ("", "An abacus."), ("", "")]
    shown = ["Aruba The capital of Aruba is Oranjestad.", "An abacus.", ""]
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in shown]
    assert passage_tokens(ReaderSettings(reader="bundled-fid"), texts) == expected
    assert expected[0] > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_to_end_k": "0tok"}, "`end_to_end_k` is '0tok'; give a number of passages, or a budget"),
        ({"end_to_end_k": "12"}, "`end_to_end_k` is '12'; give a number of passages, or a budget"),
        ({"measures": "P@9tok", "lazy": True}, "`lazy` with a measure at a budget of tokens"),
        ({"measures": "F1@9tok"}, "F1 has no cutoff in tokens"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Settings.of(**options)
