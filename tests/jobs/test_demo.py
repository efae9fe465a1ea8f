"""How many questions the demo takes: 64, or fewer where reads are slow; and its Fusion-in-Decoder reader."""

import json
import socket

import polars as pl
import pytest

from engine import tables
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.reading.backends import NamedExecutor
from engine.reading.costs import ReadingCosts, UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.protocol import ReadOutput
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries
from jobs import _evaluating, demo
from tests.commands import erag
from tests.conftest import make_run
from tests.expected import as_expected, refused


def costs(rate, *, start=15.0, actors=2, done=132):
    """Of twelve questions, read at a rate in all, by actors that took some seconds to start."""
    return ReadingCosts(
        wanted=132,
        done=done,
        seconds=start + done / rate,
        reader_seconds=actors * done / rate,
        workers={f"actor {i}": 0 for i in range(actors)},
    )


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        # 240 s less 60 so far, 15 of start and 25 afterwards leave 140 s: 572 further reads for 64
        # questions need 4.09 a second; 396 for 48 need 2.83; 220 for 32 1.57; 132 for 24 0.94
        (1000, 64),
        (4.1, 64),
        (4.0, 48),
        (2.9, 48),
        (2.8, 32),
        (1.6, 32),
        (1.5, 24),
        (0.9, 16),
        (0.1, 16),
    ],
)
@pytest.mark.parametrize("actors", [1, 2, 16])
def test_slow_reads_leave_fewer_questions(rate, expected, actors):
    assert demo.share_within(costs(rate, actors=actors), elapsed=60).questions == expected


def test_what_was_spent_before_counts():
    # 2.6 a second: 185 s are for 481 further reads, 48 questions; 75 s for 195, which are 24
    assert demo.share_within(costs(2.6, start=0), elapsed=30).questions == 48
    assert demo.share_within(costs(2.6, start=60), elapsed=80).questions == 24
    assert demo.share_within(costs(2.6), elapsed=500).questions == 16
    # Where everything is in the store nothing is left out.
    assert demo.share_within(ReadingCosts(wanted=704, reused=704), elapsed=100).questions == 64


def test_a_machine_that_is_too_slow_for_the_least_is_told_how_long_it_takes():
    # 60 s so far, 15 of start, 25 afterwards; 16 questions are 176 reads, of which 132 are done
    slow = costs(0.2)
    share = demo.share_within(slow, elapsed=60)
    assert share == (16, pytest.approx(60 + 15 + 25 + 44 / 0.2))
    as_expected(demo._why_fewer(slow, share))


@pytest.fixture
def listed(tmp_path):
    """Files of the demo's questions with ten passages each, the same for all."""
    corpus = pl.DataFrame(
        [(f"d{i}", f"title {i}", f"text {i}", "a") for i in range(10)],
        schema=tables.CORPUS,
        orient="row",
    )
    corpus.write_parquet(tmp_path / "c.parquet")
    ids = read_queries(questions("short-answer"))["query_id"][:64]
    run = make_run([(q, f"d{i}", i + 1) for q in ids for i in range(10)])
    run.write_parquet(tmp_path / "r.parquet")
    return InputFiles(
        queries=questions("short-answer"),
        corpus=tmp_path / "c.parquet",
        run=(tmp_path / "r.parquet",),
    )


def test_the_timed_reads_are_the_first_and_are_not_done_again(listed, tiny_t5, tmp_path):
    settings = demo.SETTINGS["short-answer"].but(reader=str(tiny_t5), actors=0)
    asked = []

    def reading(plan, units, spec):
        for unit in units:
            asked.extend(plan["query_id"].slice(unit.offset, unit.length))
            stats = {"padded_tokens": 0, "prompt_tokens": 0, "memory_halvings": 0, "peak_memory": 0}
            outputs = [ReadOutput("Aruba", 5, 1, False)] * unit.length
            yield UnitResult(unit, outputs, "w", unit.length / 2.5, stats)

    reading = NamedExecutor("slow", reading)
    first = demo.time_reads(listed, settings, store=tmp_path / "s", executor=reading)
    ids = read_queries(questions("short-answer"))["query_id"].to_list()
    assert set(asked) == set(ids[:12])
    assert (first.wanted, first.done) == (132, 132)
    assert demo._rate(first) == pytest.approx(2.5)
    # what is stored cannot be timed: the next questions are, as many again
    second = demo.time_reads(listed, settings, store=tmp_path / "s", executor=reading)
    assert (second.reused, second.done) == (132, 132)
    assert set(asked) == set(ids[:24])
    while (last := demo.time_reads(listed, settings, store=tmp_path / "s", executor=reading)).done:
        pass
    assert last.reused == 704
    assert len(asked) == 704


@pytest.fixture
def quick(monkeypatch):
    """The demo without index, search and reads: what it timed, and the questions it evaluates."""
    corpus = pl.DataFrame([("d0", "t", "text", "a")], schema=tables.CORPUS, orient="row")
    timed, evaluated = [], []

    def time_reads(files, settings, *, store):
        timed.append(pl.read_parquet(files.run[0])["query_id"].n_unique())
        return costs(1.5)  # 32 fit, with 53 s to spare for a test that must wait

    def evaluate(request):
        inputs = read_inputs(request.files, k=demo.K)
        evaluated.append((inputs.queries.height, inputs.runs["query_id"].n_unique(), inputs.notes))

    monkeypatch.setattr(demo, "wikipedia_dump", lambda: None)
    monkeypatch.setattr(demo, "read_source", lambda source: None)
    monkeypatch.setattr(demo, "passages", lambda articles: corpus)
    monkeypatch.setattr(demo, "build_index", lambda *options: None)
    monkeypatch.setattr(
        demo,
        "search",
        lambda index, queries, k: make_run([(q, "d0", 1) for q in queries["query_id"]]),
    )
    monkeypatch.setattr(demo, "time_reads", time_reads)
    monkeypatch.setattr(demo, "evaluate_and_report", evaluate)
    return timed, evaluated


def test_a_slow_machine_reads_fewer_questions_says_so_once_and_keeps_to_it(
    quick, monkeypatch, tmp_path, capsys
):
    timed, evaluated = quick
    monkeypatch.setattr(demo, "best_dtype", lambda: "float32")
    assert erag("demo", "--out", str(tmp_path)) == 0
    assert [done[:2] for done in evaluated] == [(32, 32)]
    assert {note.code for note in evaluated[0][2] if note.is_shown} <= {"queries_share_articles"}
    as_expected([line for line in capsys.readouterr().out.splitlines() if "slow" in line])
    # the second run evaluates the same questions, however fast reads are then
    assert erag("demo", "--out", str(tmp_path)) == 0
    assert [done[:2] for done in evaluated] == [(32, 32)] * 2
    assert timed == [64]
    assert "slow" not in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nothing_is_timed_where_16_bits_are_fast(quick, monkeypatch, tmp_path, capsys, dtype):
    timed, evaluated = quick
    monkeypatch.setattr(demo, "best_dtype", lambda: dtype)
    assert erag("demo", "--out", str(tmp_path)) == 0
    assert [done[:2] for done in evaluated] == [(64, 64)]
    assert timed == []
    assert "slow" not in capsys.readouterr().out


def test_all_questions_are_read_wherever_they_are_asked_for(quick, monkeypatch, tmp_path):
    timed, evaluated = quick
    monkeypatch.setattr(demo, "best_dtype", lambda: "float32")
    assert erag("demo", "--all", "--out", str(tmp_path)) == 0
    assert erag("demo", "--task", "claims", "--out", str(tmp_path)) == 0
    assert [done[:2] for done in evaluated] == [(110, 110), (42, 42)]
    assert timed == []


def test_the_demo_writes_its_results(quick, monkeypatch, tmp_path):
    def evaluate(request):
        (settings,) = request.conditions.values()
        settings = settings.but(reader="none", functions=(none,), dtype=None)
        conditions = dict.fromkeys(request.conditions, settings)
        _evaluating.evaluate_and_report(request._replace(conditions=conditions))

    none = ReaderFunction(lambda prompts: ["none"] * len(prompts), "none", "1")
    monkeypatch.setattr(demo, "best_dtype", lambda: "bfloat16")
    monkeypatch.setattr(demo, "evaluate_and_report", evaluate)
    assert erag("demo", "--actors", 0, "--out", tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["end_to_end"][0]["value"], summary["end_to_end"][0]["n"]) == (0.0, 64)


@pytest.mark.slow
def test_the_fusion_in_decoder_reader_reads_the_demo_offline(monkeypatch, tmp_path, capsys):
    def refuse(connection, address):
        raise OSError(f"asked {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(demo, "best_dtype", lambda: "bfloat16")  # all questions, however slow
    assert erag("demo", "--augmentation", "fid", "--actors", 0, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    as_expected(next(line for line in said.splitlines() if "retrieved: " in line))
    summary = json.loads((tmp_path / "summary.json").read_text())
    asked = summary["configuration"]
    assert (asked["reader"], asked["augmentation"]) == ("bundled-fid", "fid")
    (end_to_end,) = summary["end_to_end"]
    assert 0.1 < end_to_end["value"] < 0.4
    labels = pl.read_parquet(tmp_path / "labels.parquet").filter(annotator="erag")
    assert labels.height == 640
    assert labels["label"].sum() > 20


def test_the_fusion_in_decoder_reader_gets_whole_lists_of_short_answers_only():
    settings = demo.settings_for("short-answer", "fid")
    assert (settings.reader.reader, settings.reader.augmentation) == ("bundled-fid", "fid")
    assert settings.reader.end_to_end_k in (None, demo.K)
    with refused("settings.fid"):
        demo.settings_for("claims", "fid")
    for task, usual in demo.SETTINGS.items():
        assert demo.settings_for(task, "in-prompt") == usual
