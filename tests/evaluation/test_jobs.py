"""Jobs: what readers and the judge are asked, which engine reads, and what an observer hears of it."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest

from engine.evaluation import read
from engine.evaluation.evaluate import evaluate
from engine.evaluation.jobs import specify_jobs, tell_engines
from engine.evaluation.score import reads_of
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.machine import device, pool
from engine.machine.pool import PoolSettings
from engine.machine.survey import reading_dtype
from engine.messages import extras
from engine.messages.errors import ReadError
from engine.reading import readers
from engine.reading.backends import NamedExecutor, backend_for
from engine.reading.costs import UnitResult
from engine.reading.local import Local
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.report.printed import full_lines
from engine.report.summary import summarize
from tests.commands import evaluate as run_command
from tests.conftest import STATS, ScriptedReader
from tests.expected import as_expected, refused
from tests.tables import amount, findings_of, inputs, say_last

# Of what a passage says, by the judge.
PROBABILITIES = {"says Ann": 0.9, "says Bo": 0.5, "says Cy": 0.51, "says nothing": 0.0}
# For each query its passages in the order of the run: q1 d4 d1 d2; q2 and q3 d2 d3.
JUDGED = {
    ("q1", "d4"): 0.0, ("q1", "d1"): 0.9, ("q1", "d2"): 0.5,
    ("q2", "d2"): 0.5, ("q2", "d3"): 0.51, ("q3", "d2"): 0.5, ("q3", "d3"): 0.51,
}  # fmt: skip


class JudgingReader:
    """An executor that answers as ``say_last`` does, and chooses where there are choices."""

    def __init__(self, fails=lambda text: False):
        self.fails = fails
        self.asked = []  # (whether a choice, the pieces)

    def __call__(self, plan, units, spec):
        for unit in units:
            rows = plan["inputs"].slice(unit.offset, unit.length).to_list()
            self.asked += [(bool(spec.choices), pieces) for pieces in rows]
            outputs = [self.answer("".join(pieces), spec.choices) for pieces in rows]
            yield UnitResult(unit, outputs, "w", 0.0, STATS)

    def answer(self, text, choices):
        if not choices:
            return ReadOutput(say_last(text), 1, 1, False)
        if self.fails(text):
            return ReadOutput("", 0, 0, False, "boom")
        (found,) = [p for said, p in PROBABILITIES.items() if said in text]
        return ReadOutput(choices[int(found <= 0.5)].strip(), 1, 0, False, None, found)


def judge(tmp_path, reader=None, **options):
    options = {"k": 3, "resamples": 0, "measures": "P@3", "annotators": ("judge",)} | options
    settings = Settings.of(**options)
    reader = reader or JudgingReader()
    executor = NamedExecutor("judging", reader)
    return evaluate(inputs(), settings, store=tmp_path, executor=executor), reader, settings


def labels_of(result, annotator="judge"):
    own = result.labels.filter(annotator=annotator)
    return {(q, d): v for q, d, v in own.select("query_id", "doc_id", "label").iter_rows()}


def test_judges_read_each_passage_once_and_label_it_by_the_first_choice(tmp_path):
    result, reader, _ = judge(tmp_path, end_to_end=False)
    assert labels_of(result) == {pair: float(p > 0.5) for pair, p in JUDGED.items()}
    # q2 and q3 have the same text: 3 + 2 distinct reads, no others, each of a query and a passage
    assert len(reader.asked) == 5
    for choosing, (first, second) in reader.asked:
        assert choosing
        assert first.endswith(("Query: first question\n", "Query: same question\n"))
        assert second.startswith("Passage: ")
        assert second.endswith("\nRelevant:")
    assert result.readings["judge"].spec.choices == (" Yes", " No")
    assert (result.readings["judge"].costs.wanted, result.readings["judge"].costs.done) == (5, 5)
    assert "reader" not in result.readings
    assert result.reads["confidence"].to_list() == [*JUDGED.values()]
    # P@3 of q1: d1 of three; of q2 and q3: d3
    assert result.means["value"].to_list() == [pytest.approx(1 / 3)]


def test_graded_labels_are_the_probabilities(tmp_path):
    result, _, settings = judge(tmp_path, judge_labels="graded", end_to_end=False)
    assert labels_of(result) == JUDGED
    values = result.query_scores["value"].to_list()
    assert values == pytest.approx([1.4 / 3, 1.01 / 3, 1.01 / 3])
    as_expected([(n.code, n.amount, n.text) for n in result.notes if n.is_shown])
    default = Settings.of(annotators=("judge",), judge_labels="graded")
    assert [str(m) for m in default.resolved.measures] == ["nDCG@10", "P@10", "Success@10"]
    with refused("settings.measure"):
        Settings.of(annotators=("judge",), judge_labels="graded", measures="AP@5")


@pytest.mark.parametrize("gpu", [True, False])
def test_what_amx_changes_depends_on_where_reads_run_and_not_on_the_budget(gpu, monkeypatch):
    monkeypatch.setattr(device, "has_amx", lambda: True)
    monkeypatch.setattr(device, "machine_has_gpu", lambda: gpu)
    given = {"reader": "bundled", "dtype": "bfloat16", "engine": "transformers"}
    specs = []
    for memory in (0, 8 * 2**30):
        settings = Settings.of(**given, memory=memory)
        specs += [job.spec for job in specify_jobs(settings.resolved.roles, settings)]
    assert [spec.fused_attention for spec in specs] == [not gpu] * len(specs)
    assert len({spec.fingerprint for spec in specs}) == len(specs) / 2


def test_judge_and_reader_are_asked_apart_and_add_up_in_the_progress(tmp_path):
    told = []
    settings = Settings.of(k=3, resamples=100, measures="P@3", annotators=("erag", "judge"))
    result = evaluate(
        inputs(), settings, store=tmp_path, executor=NamedExecutor("judging", JudgingReader()),
        on_progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    alone, _, _ = judge(tmp_path / "judge", end_to_end=False)
    assert labels_of(result) == labels_of(alone)
    assert labels_of(result, "erag")["q1", "d1"] == 1
    # q2 and q3 ask the same of the same: 3 + 2 passages alone, 1 + 1 whole lists
    assert (result.readings["reader"].costs.wanted, result.readings["judge"].costs.wanted) == (7, 5)
    assert told[0] == (0, 12)
    assert told[-1] == (12, 12)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {12}
    assert result.readings["reader"].spec.fingerprint != result.readings["judge"].spec.fingerprint
    assert result.reads.height == 7 + 3 + 7
    assert set(result.statistics.correlations["annotator"]) == {"erag", "judge"}
    shown = full_lines(findings_of(result))
    assert any("judge: 5 distinct" in line for line in shown)
    again = JudgingReader()
    judge(tmp_path, again, annotators=("erag", "judge"), judge_labels="graded")
    assert again.asked == []  # another kind of label costs nothing


def test_another_prompt_and_another_model_may_judge(tiny_t5, tmp_path):
    prompt = tmp_path / "judge.txt"
    prompt.write_text("---\nchoices: ['useful', 'useless']\n---\n{passages}Is it? {query}")
    result, reader, settings = judge(
        tmp_path / "s", judge=str(tiny_t5), judge_prompt=str(prompt), annotators=("erag", "judge")
    )
    judged = [pieces for choosing, pieces in reader.asked if choosing]
    assert ["Passage: A1. says Ann\nIs it? first question"] in judged
    assert result.readings["reader"].spec.name == "bundled"
    assert (result.readings["judge"].spec.name, result.readings["judge"].spec.architecture) == (
        str(tiny_t5), "encoder-decoder"
    )  # fmt: skip
    written = json.loads(json.dumps(summarize(result, {})))
    assert written["judge"]["name"] == str(tiny_t5)
    assert written["judge"]["prompt"] == str(prompt)
    assert written["judge"]["prompt_sha256"] == result.readings["judge"].prompt.digest
    assert written["judge"]["choices"] == ["useful", "useless"]
    assert written["judge"]["labels"] == "binary"
    assert written["judge"]["reading"]["done"] == 5
    assert written["reader"]["executor"] == written["judge"]["executor"] == "judging"
    assert written["reader"]["prompt"] == "completion"
    assert written["reader"]["prompt_sha256"] == result.readings["reader"].prompt.digest
    assert written["configuration"]["judge_prompt"] == str(prompt)


def test_a_reader_may_choose_its_answer_too(tmp_path):
    prompt = tmp_path / "p.txt"
    prompt.write_text("---\nchoices: [' Ann', ' Bo']\n---\n{passages}Q: {query}\nA:")
    settings = Settings.of(k=1, resamples=0, measures="P@1", prompt=str(prompt), end_to_end=False)
    one = inputs(runs=inputs().runs.filter((pl.col("rank") == 1) & (pl.col("query_id") == "q2")))
    result = evaluate(one, settings, store=tmp_path, executor=JudgingReader())
    # q2's first passage says Bo, at 0.5: the second choice
    assert result.reads.select("output", "confidence").rows() == [("Bo", 0.5)]
    assert result.labels["label"].to_list() == [1.0]


def test_failed_judgments_are_an_error_or_count_as_zero_or_leave_their_query_out(tmp_path):
    def reader():
        return JudgingReader(fails=lambda text: "says Ann" in text)

    both = ("judge", "containment")
    with pytest.raises(ReadError) as caught:
        judge(tmp_path, reader(), annotators=both)
    as_expected(str(caught.value))
    result, again, _ = judge(tmp_path, reader(), annotators=both, failed_reads="zero")
    assert len([1 for choosing, _ in again.asked if choosing]) == 1  # the others were kept
    assert labels_of(result)["q1", "d1"] == 0
    assert result.readings["judge"].costs.failed == 1
    assert amount(result, "skipped_queries") == 0
    result, _, settings = judge(tmp_path, reader(), annotators=both, failed_reads="skip")
    scored = {(a, q) for _, a, _, q, _ in result.query_scores.iter_rows()}
    assert scored == {("judge", "q2"), ("judge", "q3")} | {
        ("containment", f"q{i}") for i in (1, 2, 3)
    }
    assert amount(result, "skipped_queries") == 1
    assert result.downstream["query_id"].to_list() == ["q1", "q2", "q3"]
    lines = full_lines(findings_of(result))
    assert any(line.startswith("note: 1 LLM call failed") for line in lines)


def test_a_reader_that_writes_where_it_was_to_choose_is_an_error_and_no_label(tmp_path):
    with pytest.raises(ReadError) as caught:
        judge(tmp_path, ScriptedReader(lambda text: "Yes"), end_to_end=False)
    as_expected(str(caught.value))


def test_what_cannot_judge_is_refused_before_any_read(tmp_path):
    reader = JudgingReader()
    with refused("model.unknown"):
        judge(tmp_path, reader, annotators=("erag", "judge"), judge="none/such")
    (tmp_path / "p.txt").write_text("{query} {passages}")
    with refused("prompt.choices"):
        judge(tmp_path, reader, judge_prompt=str(tmp_path / "p.txt"))
    assert reader.asked == []


def test_a_read_that_was_never_asked_for_is_an_error(tmp_path):
    result, _, _ = judge(tmp_path, end_to_end=False)
    reads = result.reads
    known = reads.select("query_id", "doc_ids")
    assert reads_of(reads, known[::-1])["query_id"].to_list() == known["query_id"].to_list()[::-1]
    unknown = known.head(1).with_columns(doc_ids=pl.Series([["d9"]]))
    with pytest.raises(ValueError) as caught:
        reads_of(reads, unknown)
    as_expected(str(caught.value))


def test_what_another_program_read_is_never_taken_for_the_readers(tmp_path):
    settings = Settings.of(k=3, resamples=0, measures="P@3", annotators=("erag",))
    shout = ScriptedReader(lambda text: say_last(text).upper())
    specs = {}
    for name, executor in (("own", shout), ("named", NamedExecutor("shouting 2", shout))):
        result = evaluate(inputs(), settings, store=tmp_path, executor=executor)
        specs[name] = result.readings["reader"].spec
        assert result.readings["reader"].costs.done == 7
    # the store has the reads of the one that has a name, and not under the reader's
    (folder,) = tmp_path.iterdir()
    assert folder.name == specs["named"].fingerprint
    readers_own = replace(specs["own"], executor="").fingerprint
    assert len({readers_own, *(spec.fingerprint for spec in specs.values())}) == 3

    def programmed(_, local, **__):
        local.executor = ScriptedReader(say_last)
        return local

    with patch.object(read, "backend_for", programmed):
        result = evaluate(inputs(), settings, store=tmp_path)
    assert (result.readings["reader"].costs.reused, result.readings["reader"].costs.done) == (0, 7)
    assert result.downstream["output"].to_list() == ["nothing", "Bo", "Bo"]
    assert result.readings["reader"].spec.fingerprint == readers_own
    assert summarize(result, {})["reader"]["executor"] is None
    assert amount(result, "own_executor") == 0


def test_the_fusion_in_decoder_reader_is_not_given_prompts_without_a_note(tmp_path):
    common = {"k": 3, "resamples": 0, "measures": "P@3", "annotators": ("erag",)}
    for augmentation, expected in (("in-prompt", 1), ("fid", 0)):
        settings = Settings.of(**common, reader="bundled-fid", augmentation=augmentation)
        executor = ScriptedReader(lambda text: "nothing")
        result = evaluate(inputs(), settings, store=tmp_path, executor=executor)
        assert amount(result, "reader_not_as_trained") == expected


def test_the_prompt_to_decline_follows_the_style_of_a_chat():
    settings = Settings.of(annotators=("utility",), prompt="chat", helpful="containment")
    jobs = {job.ask.role.name: job for job in specify_jobs(settings.resolved.roles, settings)}
    assert jobs["abstain"].prompt.template.name == "chat"
    assert jobs["abstain"].spec.choices == ("NO-RESPONSE",)


def test_a_study_keeps_the_reads_of_executors_apart_too(tmp_path):
    conditions = vary(Settings.of(k=3, resamples=0, measures="P@3"), Sweep(k_sweep=(1, 3)))
    first, second = ScriptedReader(say_last), ScriptedReader(say_last)
    study(inputs(), conditions, store=tmp_path, executor=NamedExecutor("one", first))
    study(inputs(), conditions, store=tmp_path, executor=NamedExecutor("two", second))
    assert len(first.asked) == len(second.asked) > 0
    assert len(list(tmp_path.iterdir())) == 2


def test_the_example_of_the_guide_runs(tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs/reference/stages.md").read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", guide, re.S) if "NamedExecutor" in c)
    monkeypatch.chdir(tmp_path)
    settings = Settings.of(k=3, resamples=0, measures="P@3")
    names = {"answer": say_last, "inputs": inputs(), "settings": settings}
    names |= {"evaluate": evaluate, "Path": Path}
    exec(compile(code, "stages.md", "exec"), names)
    assert names["evaluation"].downstream["output"].to_list() == ["nothing", "Bo", "Bo"]
    assert len(list(Path("store").iterdir())) == 1


def local_of(jobs):
    return Local([job.spec for job in jobs], [None] * len(jobs))


@pytest.fixture
def gpu_with_vllm(monkeypatch):
    """A machine that says it has a GPU and vLLM; neither is ever used."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: find("json" if name == "vllm" else name, *a)
    )
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def specified(executor=None, **options):
    settings = Settings.of(dtype="float32", **options)
    return specify_jobs(settings.resolved.roles, settings, executor)


def engines(executor=None, **options):
    return {job.spec.engine for job in specified(executor, **options)}


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_decoder_only_readers_run_on_vllm_where_a_gpu_has_it(tiny_t5):
    assert engines() == {"vllm"}
    assert engines(engine="transformers") == {"transformers"}
    assert engines(gpus_per_actor=0) == {"transformers"}
    assert engines(reader=str(tiny_t5)) == {"transformers"}
    assert engines(ScriptedReader(str)) == {"transformers"}


@pytest.mark.usefixtures("bundled_spec")
def test_without_a_gpu_our_own_loops_read(monkeypatch):
    monkeypatch.setattr(device, "reads_on_vllm", lambda: False)
    assert engines() == {"transformers"}


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_what_was_chosen_is_told_once_and_has_keys_of_its_own(tiny_t5):
    ours, theirs = specified(engine="transformers"), specified()
    assert not {job.spec.fingerprint for job in ours} & {job.spec.fingerprint for job in theirs}
    told = []
    tell_engines(
        [*theirs, *theirs, *ours, *specified(reader=str(tiny_t5))], Settings.of(), told.append
    )
    as_expected(told)


class Pretended:
    """A reader that answers with the name of its engine."""

    def __init__(self, spec):
        self.stats, self.engine = ReaderStats(), spec.engine

    def read(self, inputs):
        return [ReadOutput(self.engine, 5, 1, False) for _ in inputs]


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_on_a_cpu_that_has_vllm_the_store_decides_and_without_reads_our_own_loops(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    monkeypatch.setattr(readers, "load", Pretended)

    def evaluated(place, **options):
        told = []
        settings = Settings.of(
            k=3, annotators=("erag",), resamples=0, dtype="float32", actors=0, **options
        )
        found = evaluate(inputs(), settings, store=tmp_path / place, on_event=told.append)
        reading = found.readings["reader"]
        as_expected(told)
        return set(found.reads["output"]), reading.costs.done > 0, len(told)

    assert evaluated("empty") == ({"transformers"}, True, 0)
    assert evaluated("vllm", engine="vllm") == ({"vllm"}, True, 1)
    assert evaluated("vllm") == ({"vllm"}, False, 1)
    assert evaluated("vllm", engine="transformers") == ({"transformers"}, True, 0)


@pytest.mark.usefixtures("bundled_spec")
def test_without_ray_this_process_reads_and_says_so_unless_actors_are_asked_for(monkeypatch):
    monkeypatch.setattr(pool, "missing", lambda extra: [extra])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    jobs, told = specified(engine="transformers"), []
    for settings in (PoolSettings(), PoolSettings(actors=0)):
        assert backend_for(settings, local_of(jobs)).on_ray is False
        tell_engines(jobs, Settings.of(actors=settings.actors), told.append)
    as_expected(told)
    assert reading_dtype(PoolSettings()) == device.best_dtype()
    monkeypatch.setattr(extras, "missing", lambda extra, *modules: [extra])
    for settings in (PoolSettings(actors=2), PoolSettings(gpus_per_actor=1)):
        with refused("package.missing"):
            backend_for(settings, local_of(jobs))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with refused("package.missing"):
        backend_for(PoolSettings(), local_of(jobs))


@pytest.mark.usefixtures("gpu_with_vllm", "bundled_spec")
def test_several_gpus_hold_a_reader_on_vllm_and_no_other(tiny_t5):
    assert {job.spec.gpus for job in specified(gpus_per_actor=3)} == {3}
    words = "vllm.heads"
    with refused(words):
        specified(gpus_per_actor=4)
    assert {job.spec.gpus for job in specified(gpus_per_actor=0.5)} == {1}
    for other in ({"engine": "transformers"}, {"reader": str(tiny_t5)}):
        with refused("cluster.idle"):
            specified(gpus_per_actor=4, **other)


READER = """
def read(prompts):
    return [next((word for word in ("Oranjestad", "George Orwell") if word in one), "none") for one in prompts]

read.version = "1"
"""


@pytest.mark.parametrize(
    "options", [(), ("--shard-pairs", 2), ("--lazy", "--measures", "RR@2"), ("--width", 0.5)], ids=lambda one: str(one[:1])
)  # fmt: skip
def test_units_add_up_to_the_costs(files, monkeypatch, options):
    monkeypatch.setattr(
        "engine.report.page.remake.write_page", lambda *_, **__: None
    )  # takes seconds
    (files["out"].parent / "mine.py").write_text(READER)
    usual = ("--k", 2, "--resamples", 100, "--reader", f"{files['out'].parent / 'mine.py'}:read")
    stored = ("--store", files["out"].parent / "store")
    # The reads of one query are in the store then.
    first = {**files, "out": files["out"].parent / "first"}
    assert run_command(first, *usual, *stored, "--limit", 1) == 0
    # And all are, the second time, when shards would not even be looked at.
    for _ in range(1 if "--shard-pairs" in options else 2):
        assert run_command(files, *usual, *stored, *options) == 0
        costs = json.loads((files["out"] / "summary.json").read_text())["reading"]
        record = json.loads((files["out"] / "progress.json").read_text())
        assert record["state"] == "done"
        counts = record["roles"]["reader"]
        counted = [counts[f"calls_{name}"] for name in ("requested", "cached", "new", "failed")]
        assert counted == [costs[name] for name in ("wanted", "reused", "done", "failed")]
        assert record["calls_done"] == costs["wanted"]
        assert record["units_waiting"] == 0
        assert sum(one["actor_calls"] for one in record["actors"].values()) == costs["done"]
