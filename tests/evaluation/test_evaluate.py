"""The evaluation against values computed by hand, with a scripted reader; how few files and records lie on its way."""

import ast
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import polars as pl
import pytest
import pytrec_eval

from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.settings import Settings
from engine.messages.errors import ReadError
from engine.reading.backends import Backend, NamedExecutor
from engine.reading.costs import UnitResult
from engine.reading.protocol import ReadOutput
from engine.sources.io.locations import entries
from engine.tables import END_TO_END, difference_of
from tests.conftest import STATS, ScriptedReader, make_run
from tests.expected import as_expected, refused
from tests.tables import QUERIES, RUN, amount, inputs, label_rows, say_last, with_qrels
from tests.unknown import UNKNOWN_NAME

UNJUDGED = "queries_without_judgments"  # a note


def run_evaluation(tmp_path, settings, runs=RUN, answer=say_last, queries=QUERIES):
    reader = ScriptedReader(answer)
    executor = NamedExecutor("scripted", reader)
    result = evaluate(inputs(runs, queries), settings, store=tmp_path, executor=executor)
    return result, reader


def without_results(result):
    notes = [note for note in result.notes if note.code == "queries_without_results"]
    return {note.about[0]: note.amount for note in notes}


def test_erag_labels_measures_and_end_to_end_by_hand(tmp_path):
    settings = Settings.of(
        k=3,
        end_to_end_k=2,
        measures="P@3 R@3 F1@3 AP RR DCG@3 nDCG@3 Success@1",
        annotators=("erag", "containment", "provenance"),
        resamples=100,
        dtype="float32",
    )
    result, reader = run_evaluation(tmp_path, settings)
    labels = {(a, q, d): v for q, d, a, v in label_rows(result.labels)}
    # G_q[d] = EM(reader(q, {d}), y): d1 says Ann, d2 says Bo, d3 says Cy
    erag = {(q, d): v for (a, q, d), v in labels.items() if a == "erag"}
    assert erag == {
        ("q1", "d4"): 0, ("q1", "d1"): 1, ("q1", "d2"): 0,
        ("q2", "d2"): 1, ("q2", "d3"): 0,
        ("q3", "d2"): 0, ("q3", "d3"): 1,
    }  # fmt: skip
    assert {k: v for k, v in labels.items() if k[0] == "containment"} == {
        ("containment", q, d): v for (q, d), v in erag.items()
    }
    # gold articles: A1 for q1 (d4 and d1), A2 for q2 (d2), none for q3
    relevant = {(q, d) for (a, q, d), v in labels.items() if a == "provenance" and v}
    assert relevant == {("q1", "d4"), ("q1", "d1"), ("q2", "d2")}
    scores = {(m, q): v for _, a, m, q, v in result.query_scores.iter_rows() if a == "erag"}
    second = 1 / math.log2(3)  # discount of rank 2
    assert scores == pytest.approx(
        {
            ("P@3", "q1"): 1 / 3, ("P@3", "q2"): 1 / 3, ("P@3", "q3"): 1 / 3,
            ("R@3", "q1"): 1, ("R@3", "q2"): 1, ("R@3", "q3"): 1,
            ("F1@3", "q1"): 1 / 2, ("F1@3", "q2"): 1 / 2, ("F1@3", "q3"): 1 / 2,
            ("AP", "q1"): 1 / 2, ("AP", "q2"): 1, ("AP", "q3"): 1 / 2,
            ("RR", "q1"): 1 / 2, ("RR", "q2"): 1, ("RR", "q3"): 1 / 2,
            ("DCG@3", "q1"): second, ("DCG@3", "q2"): 1, ("DCG@3", "q3"): second,
            ("nDCG@3", "q1"): second, ("nDCG@3", "q2"): 1, ("nDCG@3", "q3"): second,
            ("Success@1", "q1"): 0, ("Success@1", "q2"): 1, ("Success@1", "q3"): 0,
        },
        abs=1e-12,
    )  # fmt: skip
    # end to end: two passages, the best one last, next to the question
    assert result.downstream.select("query_id", "k", "output", "value").rows() == [
        ("q1", 2, "nothing", 0.0),
        ("q2", 2, "Bo", 1.0),
        ("q3", 2, "Bo", 0.0),
    ]
    # Success@1 is (0, 1, 0) and so is the end-to-end score
    cell = result.statistics.correlations.filter(
        (pl.col("annotator") == "erag") & (pl.col("measure") == "Success@1")
    ).to_dicts()[0]
    assert (cell["tau"], cell["rho"], cell["n"], cell["k"]) == (
        pytest.approx(1), pytest.approx(1), 3, 2
    )  # fmt: skip
    # q2 and q3 have the same text: their reads are the same, their labels are not
    assert (result.readings["reader"].costs.wanted, len(reader.asked)) == (3 + 2 + 2, 7)
    assert result.reads.height == 7 + 3


def test_graded_labels_by_hand(tmp_path):
    # token F1 of "the big Ann" against "Ann": precision 1/2, recall 1 -> 2/3
    expected = {"P@3": (2 / 3) / 3, "Success@3": 2 / 3, "nDCG@3": 1 / math.log2(3)}
    expected |= {"AP(rel=0.5)@3": 1 / 2, "RR(rel=0.9)@3": 0}
    settings = Settings.of(k=3, metric="f1", measures=" ".join(expected), resamples=0)
    result, _ = run_evaluation(
        tmp_path, settings, answer=lambda p: say_last(p).replace("Ann", "big Ann")
    )
    q1 = {m: v for _, _, m, q, v in result.query_scores.iter_rows() if q == "q1"}
    assert q1 == pytest.approx(expected)


def test_a_second_run_another_k_or_metric_costs_only_new_reads(tmp_path):
    settings = Settings.of(k=2, resamples=0)
    run_evaluation(tmp_path, settings)
    _, again = run_evaluation(tmp_path, settings)
    assert again.asked == []
    _, other_metric = run_evaluation(tmp_path, Settings.of(k=2, resamples=0, metric="match"))
    assert other_metric.asked == []
    swapped = make_run([("q1", "d3", 1), ("q1", "d1", 2)], "t")
    both = pl.concat([RUN, swapped])
    result, fresh = run_evaluation(tmp_path, settings, runs=both.filter(pl.col("rank") <= 2))
    # new: d3 for q1 alone; the list (d3, d1) of q1; reads without passages for q2 and q3, one text
    assert len(fresh.asked) == 3
    assert result.relevant == "pool"
    assert without_results(result) == {"sys": 0, "t": 2}


def test_queries_without_results_score_zero_on_every_measure_and_stay(tmp_path):
    result, _ = run_evaluation(
        tmp_path,
        Settings.of(k=2, resamples=0),
        runs=make_run([("q1", "d1", 1)]),
        answer=lambda prompt: "Bo" if "same question" in prompt else "Ann",
    )
    scores, end_to_end = result.means, result.end_to_end
    assert scores["n"].unique().to_list() == [3]
    assert result.query_scores.filter(pl.col("query_id") != "q1")["value"].sum() == 0
    # the reader without passages is still a system: its answer counts
    assert end_to_end["value"].to_list() == [pytest.approx(2 / 3)]
    assert without_results(result) == {"sys": 2}


def test_without_end_to_end_only_single_passages_are_read(tmp_path):
    result, reader = run_evaluation(tmp_path, Settings.of(k=3, end_to_end=False))
    assert len(reader.asked) == 3 + 2  # q2 and q3 ask the same
    assert result.downstream.is_empty()
    assert result.statistics.correlations.is_empty()


def test_without_erag_and_end_to_end_nothing_is_read(tmp_path):
    settings = Settings.of(k=3, end_to_end=False, annotators=("containment",), reader="none/such")
    result, reader = run_evaluation(tmp_path, settings)
    assert reader.asked == []
    assert not result.readings


def failing_where(fails):
    """An executor whose reads fail where ``fails`` says so of their text."""

    def execute(plan, units, spec):
        for unit in units:
            rows = plan["inputs"].slice(unit.offset, unit.length).to_list()
            outputs = [
                ReadOutput("", 0, 0, False, "boom")
                if fails(text)
                else ReadOutput(say_last(text), 1, 1, False)
                for (text,) in rows
            ]
            yield UnitResult(unit, outputs, "w", 0.0, STATS)

    return execute


def test_failed_reads_are_an_error_or_count_as_zero(tmp_path):
    unnamed = failing_where(
        lambda text: "says Ann" in text and "says Bo" not in text and "nothing" not in text
    )
    failing, asked = NamedExecutor("failing", unnamed), Settings.of(k=3, resamples=0)
    for executor in (unnamed, failing):
        with pytest.raises(ReadError) as caught:
            evaluate(inputs(), asked, store=tmp_path, executor=executor)
        as_expected(str(caught.value))
    result = evaluate(inputs(), asked.but(failed_reads="zero"), store=tmp_path, executor=failing)
    costs = result.readings["reader"].costs
    assert (costs.failed, costs.reused) == (1, 6)  # the first attempt kept what succeeded
    labels = {(q, d): v for q, d, _, v in label_rows(result.labels)}
    assert labels["q1", "d1"] == 0
    # Or its query is left out of eRAG's scores, and stays in what else was computed.
    two = {"annotators": ("erag", "containment"), "measures": "P@3"}
    skipping = asked.but(failed_reads="skip", **two)
    result = evaluate(inputs(), skipping, store=tmp_path, executor=failing)
    scored = {(a, q) for _, a, _, q, _ in result.query_scores.iter_rows()}
    assert scored == {("erag", "q2"), ("erag", "q3")} | {
        ("containment", f"q{i}") for i in (1, 2, 3)
    }
    assert result.downstream["query_id"].to_list() == ["q1", "q2", "q3"]
    assert result.means["n"].to_list() == [2, 3]
    assert amount(result, "skipped_queries") == 1
    correlated = result.statistics.correlations
    assert dict(correlated.select("annotator", "n").iter_rows()) == {"erag": 2, "containment": 3}
    (compared,) = result.statistics.comparisons.to_dicts()
    assert compared["n"] == 2  # on the queries that both have


def test_a_failed_list_leaves_its_query_out_of_the_end_to_end_score(tmp_path):
    failing = failing_where(lambda text: text.count("says") == 3)
    settings = Settings.of(k=3, resamples=0, failed_reads="skip", measures="P@3")
    result = evaluate(inputs(), settings, store=tmp_path, executor=failing)
    assert result.downstream["query_id"].to_list() == ["q2", "q3"]
    assert result.query_scores["query_id"].to_list() == ["q1", "q2", "q3"]
    assert result.end_to_end["n"].to_list() == [2]


def test_queries_without_results_are_skipped_or_refused_before_any_read(tmp_path):
    run = RUN.filter(pl.col("query_id") != "q3")
    settings = Settings.of(k=3, resamples=0, missing="skip", measures="P@3")
    result, reader = run_evaluation(tmp_path, settings, runs=run)
    assert result.query_scores["query_id"].to_list() == ["q1", "q2"]
    assert result.downstream["query_id"].to_list() == ["q1", "q2"]
    assert [table["n"].to_list() for table in (result.means, result.end_to_end)] == [[2], [2]]
    assert all("says" in prompt for prompt in reader.asked)  # nobody was asked without passages
    nobody, refusing = ScriptedReader(say_last), Settings.of(k=3, missing="error")
    with refused("runs.unlisted"):
        evaluate(inputs(run), refusing, store=tmp_path / "new", executor=nobody)
    assert nobody.asked == []


BY_QRELS = Settings.of(k=3, end_to_end=False, annotators=("qrels",))


def test_judgments_are_an_annotator_and_count_beyond_the_lists(tmp_path):
    # q1 lists d4, d1, d2; d3 is relevant and not listed; d2 was pooled and not judged
    given = with_qrels(("q1", "d1", 2.0), ("q1", "d3", 1.0), ("q1", "d2", -1.0), ("q2", "d2", 1.0))
    settings = BY_QRELS.but(measures="R@3 AP nDCG@3 Judged@3 P(rel=2)@3")
    result = evaluate(given, settings, store=tmp_path)
    assert result.relevant == "qrels"  # what judgments mean where they stand alone
    values = {(m, q): v for _, _, m, q, v in result.query_scores.iter_rows()}
    assert values["R@3", "q1"] == 1 / 2
    assert values["AP", "q1"] == (1 / 2) / 2
    best = 2 + 1 / math.log2(3)
    assert values["nDCG@3", "q1"] == pytest.approx(2 / math.log2(3) / best, abs=1e-12)
    assert values["Judged@3", "q1"] == pytest.approx(1 / 3)
    assert values["P(rel=2)@3", "q1"] == pytest.approx(1 / 3)
    assert values["AP", "q2"] == 1
    # nobody judged q3: a score of 0 would say that nothing was relevant
    assert {query for _, query in values} == {"q1", "q2"}
    assert amount(result, UNJUDGED) == 1
    # over the query's own list the unlisted passage is not missed
    own = evaluate(given, settings.but(relevant="list", measures="R@3"), store=tmp_path)
    assert own.query_scores.filter(query_id="q1")["value"].to_list() == [1.0]


def test_means_of_judgments_are_those_of_trec_eval_without_labels_below_0(tmp_path):
    # q1 was judged and has nothing relevant: it counts. q2 has labels below 0 only, q3 none: neither does.
    rows = [("q1", "d1", 0.0), ("q2", "d2", -1.0), ("q3", "d3", 1.0)]
    settings = BY_QRELS.but(measures="AP P@3 nDCG@3 RR")
    for kept in (rows, rows[:1]):
        result = evaluate(with_qrels(*kept), settings, store=tmp_path)
        judged = {}
        for query, document, label in kept:
            if label >= 0:  # trec_eval can hang on queries with others only, else counts them as 0
                judged.setdefault(query, {})[document] = int(label)
        listed = {}
        for query, document, rank in RUN.select("query_id", "doc_id", "rank").iter_rows():
            listed.setdefault(query, {})[document] = -float(rank)
        assert amount(result, "queries_judged_below_0") == len(kept) // 3
        names = {"AP": "map", "P@3": "P_3", "nDCG@3": "ndcg_cut_3", "RR": "recip_rank"}
        found = pytrec_eval.RelevanceEvaluator(judged, {*names.values()}).evaluate(listed)
        for measure, mean, n in result.means.select("measure", "value", "n").iter_rows():
            theirs = [values[names[measure]] for values in found.values()]
            assert (mean, n) == (pytest.approx(sum(theirs) / len(theirs)), len(theirs))
    with refused("qrels.unjudged"):
        evaluate(with_qrels(rows[1]), settings, store=tmp_path)


def test_equal_scores_that_move_a_mean_are_noted_with_both_values(tmp_path):
    # Ranks count here: d1 before d2. trec_eval's order puts d2, which answers nothing, first.
    runs = make_run([("q1", "d1", 1), ("q1", "d2", 2), ("q2", "d2", 1), ("q3", "d3", 1)])
    runs = runs.with_columns(score=1.0)
    asked = Settings.of(k=2, annotators=("erag", "containment"), measures="P@1 P@2", resamples=100)
    result, _ = run_evaluation(tmp_path, asked, runs)
    as_expected([note.text for note in result.notes if note.code == "tied_scores"])
    assert amount(run_evaluation(tmp_path, Settings.of(k=2, measures="P@1"))[0], "tied_scores") == 0


def test_what_nobody_judged_is_in_no_correlation(tmp_path):
    given = with_qrels(("q1", "d1", 1.0), ("q2", "d2", 1.0))
    settings = Settings.of(k=3, resamples=100, annotators=("erag", "qrels"), measures="P@3")
    result = evaluate(given, settings, store=tmp_path, executor=ScriptedReader(say_last))
    cells = result.statistics.correlations.select("annotator", "n").rows()
    assert cells == [("erag", 3), ("qrels", 2)]
    assert result.statistics.comparisons["n"].to_list() == [2]
    as_expected([n.text for n in result.notes if n.code == UNJUDGED])


def test_judgments_are_needed_where_they_are_asked_for(tmp_path):
    with refused("settings.table"):
        evaluate(inputs(), BY_QRELS, store=tmp_path)


def test_labels_that_the_measures_do_not_fit_are_refused_before_any_read(tmp_path):
    reader = ScriptedReader(say_last)
    settings = Settings.of(k=3, annotators=("erag", "qrels"), measures="AP@3")
    said = "measure.undefined"
    with refused(said):
        evaluate(with_qrels(("q1", "d1", 0.5)), settings, store=tmp_path, executor=reader)
    # one run and no --relevant: judged is the own list
    with refused("measure.trivial"):
        evaluate(inputs(), Settings.of(k=3, measures="Judged@1"), store=tmp_path, executor=reader)
    assert reader.asked == []


def test_tables_follow_the_order_of_the_annotators(tmp_path):
    settings = Settings.of(k=3, resamples=100, annotators=("provenance", "erag"), measures="P@3")
    result, _ = run_evaluation(tmp_path, settings)
    assert result.means["annotator"].to_list() == ["provenance", "erag"]


def test_two_runs_are_compared_and_ordered(tmp_path):
    other = make_run([("q1", "d1", 1), ("q2", "d2", 1), ("q3", "d3", 1)], "other")
    settings = Settings.of(k=3, resamples=100, measures="P@1 Judged@1", end_to_end_k=1)
    result, _ = run_evaluation(tmp_path, settings, runs=pl.concat([RUN, other]))
    # P@1 is the label of the first passage, which is what the reader is given: sys 1/3, other 1
    found = result.statistics
    (system,) = found.systems.filter(measure="P@1").to_dicts()
    assert system["runs"] == 2
    (pair,) = found.run_pairs.filter(measure="P@1").to_dicts()
    assert pair["difference"] == pair[difference_of(END_TO_END)] == pytest.approx(1 / 3 - 1)
    assert set(found.comparisons["run_b"]) == {"other"}


def test_the_same_figures_for_any_order_of_rows(tmp_path):
    settings = Settings.of(k=3, resamples=200, annotators=("erag", "containment"))
    one, _ = run_evaluation(tmp_path / "1", settings)
    other, _ = run_evaluation(
        tmp_path / "2", settings, runs=RUN.sample(fraction=1, shuffle=True, seed=1),
        queries=QUERIES.reverse(),
    )  # fmt: skip
    assert one.statistics.correlations.equals(other.statistics.correlations, null_equal=True)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"annotators": ("erag", "oracle")}, "annotator.unknown"),
        ({"annotators": ()}, "settings.annotators"),
        ({"metric": UNKNOWN_NAME}, "metric.unknown"),
        ({"measures": UNKNOWN_NAME}, "measure.unknown"),
        ({"k": 0}, "settings.value"),
        ({"k": 5, "measures": "P@5 R@20"}, "measure.deep"),
        ({"resamples": 20}, "settings.resamples"),
        ({"relevant": "qrels"}, "settings.relevant"),
        ({"relevant": "list", "measures": "Judged@5"}, "measure.trivial"),
        ({"k": 3, "end_to_end_k": 4}, "settings.cutoff"),
        ({"confidence": 95}, "settings.value"),
        ({"actors": -1}, "cluster.actors"),
        ({"seed": -1}, "settings.value"),
        ({"metric": "f1", "measures": "AP@5"}, "settings.measure"),
        ({"task": "claims", "annotators": ("containment",)}, "settings.task"),
        ({"task": "dialogue", "annotators": ("containment-substring",)}, "settings.task"),
        ({"task": "claims", "annotators": ("dual",)}, "settings.task"),
        ({"annotators": ("preference",), "measures": "AP@5"}, "settings.measure"),
        ({"preference_labels": "bradley-terry"}, "settings.annotator"),
        ({"judge": "m"}, "settings.annotator"),
        ({"judge_prompt": "chat"}, "settings.annotator"),
        ({"judge_labels": "graded"}, "settings.annotator"),
        ({"prompt": "none"}, "files.missing"),
        ({"annotators": ("judge",), "judge_prompt": "none"}, "files.missing"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, code):
    with refused(code):
        Settings.of(**options)


def test_provenance_without_any_hit_is_noted_and_without_any_gold_refused(tmp_path):
    settings = Settings.of(k=3, annotators=("provenance",), end_to_end=False)
    result, _ = run_evaluation(tmp_path, settings)
    assert not amount(result, "no_gold_article_listed")
    foreign = QUERIES.with_columns(pl.lit(["12345"]).alias("provenance"))
    result, _ = run_evaluation(tmp_path, settings, queries=foreign)
    assert amount(result, "no_gold_article_listed")
    none = QUERIES.with_columns(pl.lit([], dtype=pl.List(pl.String)).alias("provenance"))
    with refused("queries.provenance"):
        run_evaluation(tmp_path, settings, queries=none)


def test_default_measures_fit_the_labels():
    whole = [str(measure) for measure in Settings.of().resolved.measures]
    assert whole == ["nDCG@10", "P@10", "AP@10", "RR@10", "R@10", "Success@10"]
    graded = Settings.of(metric="f1")
    assert [str(m) for m in graded.resolved.measures] == ["nDCG@10", "P@10", "Success@10"]


# A newcomer's way from the command to a reader's call: files of the engine and of its commands.
FILES_TO_A_FUNCTION, FILES_TO_A_MODEL = 8, 9
WATCHED = """
import runpy, sys, traceback

def files():
    stack = [frame.filename for frame in traceback.extract_stack()]
    ours = [name for name in stack if name.startswith(({engine!r}, {jobs!r}))]
    return list(dict.fromkeys(ours))

def seen():
    with open({seen!r}, "a") as stream:
        stream.write(repr(files()) + "\\n")

def read(prompts):
    seen()
    return ["none" for _ in prompts]

if __name__ == "__main__":
    from transformers import LlamaForCausalLM

    def forward(*given, forward=LlamaForCausalLM.forward, **named):
        seen()
        return forward(*given, **named)

    LlamaForCausalLM.forward = forward
    runpy.run_module("jobs.evaluate", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("is_model", "most"), [(False, FILES_TO_A_FUNCTION), (True, FILES_TO_A_MODEL)]
)
def test_few_files_lie_between_the_command_and_what_reads(files, tmp_path, is_model, most):
    root, script, seen = Path(__file__).parents[2], tmp_path / "mine.py", tmp_path / "seen"
    places = {name: f"{root / name}/" for name in ("engine", "jobs")}
    script.write_text(WATCHED.format(**places, seen=str(seen)))
    command, reader = ["-m", "jobs.evaluate"], f"{script}:read"
    if is_model:
        from tests.reading.models import tiny_models

        tiny_models.save_tokenizer(tmp_path / "tokenizer")
        tiny_models.save_llama(tmp_path / "llama", str(tmp_path / "tokenizer"))
        command, reader = [str(script)], str(tmp_path / "llama")
    options = [str(part) for name, value in files.items() for part in (f"--{name}", value)]
    options += ["--reader", reader, "--actors", "0", "--k", "2", "--resamples", "0"]
    options += ["--limit", "1", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, *command, *options, *["--dtype", "float32"][: 2 * is_model]],
        capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stacks = [ast.literal_eval(line) for line in seen.read_text().splitlines()]
    assert stacks
    assert all(stack[0].endswith("jobs/evaluate.py") for stack in stacks)
    longest = max(stacks, key=len)
    assert len(longest) <= most, "\n".join(longest)


def in_memory():
    """The folders of held evaluations that are there."""
    return [name for name, _ in entries("memory://", "directory") if name.startswith("erag-")]


def test_the_folder_of_a_held_evaluation_is_gone_after_it_also_where_the_reader_raises(tmp_path):
    there = []

    def answer(text):
        there.append(in_memory())
        return say_last(text)

    def failing(text):
        raise RuntimeError("a reader that raises")

    settings = Settings.of(k=3, resamples=0)
    run_evaluation(tmp_path, settings, answer=answer)
    assert {len(folders) for folders in there} == {1}
    assert in_memory() == []
    with pytest.raises(RuntimeError, match="a reader that raises"):
        run_evaluation(tmp_path / "other", settings, answer=failing)
    assert in_memory() == []


def test_two_held_evaluations_at_once_do_not_see_each_others_folder(tmp_path):
    """The same queries and settings, other answers; both are under way while either reads."""
    both, folders = threading.Barrier(2, timeout=60), []

    def evaluated(said):
        def answer(text):
            if not begun:
                begun.append(both.wait())
                folders.append(set(in_memory()))
                both.wait()
            return said

        begun = []
        asked = Settings.of(k=3, resamples=0, annotators=("erag", "containment"))
        return run_evaluation(tmp_path / said, asked, answer=answer)[0]

    with ThreadPoolExecutor(2) as threads:
        ann, bo = threads.map(evaluated, ["Ann", "Bo"])
    assert [len(names) for names in folders] == [2, 2]
    assert in_memory() == []
    for said, result in (("Ann", ann), ("Bo", bo)):
        assert set(result.reads["output"]) == set(result.downstream["output"]) == {said}
        alone = run_evaluation(
            tmp_path / f"{said} alone", result.settings, answer=lambda _, said=said: said
        )
        assert result.query_scores.equals(alone[0].query_scores)


# The records that an evaluation is made of, between its settings and its figures. It may shrink.
LEAVES = {"Settings", "Evaluation", "ReadingCosts", "Prompt"}
RECORDS = {
    "Ask", "Context", "FunctionSpec", "Job", "KindCosts", "ReadOutput", "ReadPlan",
    "ReaderFunction", "ReaderSpec", "Role", "Unit", "UnitResult",
}  # fmt: skip


def records_of(*functions):
    """Dataclasses and named tuples of the engine, in annotations of functions and in fields of such records."""
    met, apart = {}, ("engine.sources", "engine.machine", "engine.messages")
    left = [kind for function in functions for kind in get_type_hints(function).values()]
    while left:
        kind = left.pop()
        if isinstance(kind, list):  # parameters of a callable
            left += kind
            continue
        left += get_args(kind)
        name, module = getattr(kind, "__name__", ""), getattr(kind, "__module__", "")
        is_record = is_dataclass(kind) or hasattr(kind, "_fields")
        if not isinstance(kind, type) or not is_record or kind in met:
            continue
        if module.startswith("engine.") and not module.startswith(apart) and name not in LEAVES:
            met[kind] = name
            left += get_type_hints(kind).values()
    return set(met.values())


def test_an_evaluation_is_made_of_few_records():
    assert records_of(evaluate_shards, Backend.read) == RECORDS
