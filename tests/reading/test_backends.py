"""Reads of one model: each is paid for once, and a killed driver loses nothing that was done."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import polars as pl
import pytest

from benchmarks._reads import Wanted, get_all_reads, get_reads
from engine import tables
from engine.machine.pool import PoolSettings
from engine.machine.watch import PoolTotals
from engine.messages.errors import ReadError
from engine.reading.backends import NamedExecutor
from engine.reading.costs import ReadingCosts, UnitResult, share_costs
from engine.reading.local import Local
from engine.reading.plan import (
    OUTPUT_COLUMNS,
    REQUESTED,
    longest_first,
    output_columns,
    read_key,
    unit_tokens,
)
from engine.reading.protocol import ReadOutput
from engine.sources.io import files
from engine.sources.io.folders import folder_at
from engine.tables import FAILURE
from tests.conftest import SPEC, STATS, ScriptedReader
from tests.expected import as_expected, refused
from tests.reading.stored import load
from tests.reading.test_store import EARLIER
from tests.tables import framed


def wanted(*texts, query="q", spec=SPEC):
    rows = [
        (read_key(spec.fingerprint, [t]), f"{query}{i}", [f"d{i}"], [t])
        for i, t in enumerate(texts)
    ]
    return framed(rows, REQUESTED)


def ask(texts, directory, reader):
    """Get reads that the scripted reader does as if it were the reader of the specification."""
    return get_reads(wanted(*texts), SPEC, directory, pool=PoolSettings(actors=0), executor=reader)


def test_a_read_is_done_once_for_all_jobs(tmp_path):
    reader = ScriptedReader(str.upper)
    found, costs = ask(["a", "bb", "a"], tmp_path, reader)
    assert found["output"].to_list() == ["A", "BB", "A"]
    assert found["query_id"].to_list() == ["q0", "q1", "q2"]
    assert sorted(reader.asked) == ["a", "bb"]
    assert (costs.wanted, costs.reused, costs.done) == (2, 0, 2)
    again, costs = ask(["bb", "ccc", "a"], tmp_path, reader)
    assert again["output"].to_list() == ["BB", "CCC", "A"]
    assert sorted(reader.asked) == ["a", "bb", "ccc"]
    assert (costs.wanted, costs.reused, costs.done) == (3, 2, 1)


# The files of read stores, as they were written from the time of confidences to that of thoughts.
STORED = {
    "read_key": pl.String(),
    "query_id": pl.String(),
    "doc_ids": pl.List(pl.String()),
    "output": pl.String(),
    "prompt_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "truncated": pl.Boolean(),
    "confidence": pl.Float64(),
}


def keep(place, rows):
    (place / SPEC.fingerprint).mkdir()
    framed(rows, STORED).write_parquet(place / SPEC.fingerprint / "0.parquet")


def test_a_store_file_of_an_earlier_version_is_still_used(tmp_path):
    assert SPEC.fingerprint == "cb5d1e964453a136ecf5bf08ef70d5f2"
    key = "a9ac009bb7f8b4841d71d78b552e7421e707b450223d381e2ef7b5f290d594dd"
    rows = [(key, "q0", ["d0"], "A", 7, 1, True, None)]
    keep(tmp_path, rows)
    reader = ScriptedReader(str.upper)
    found, costs = ask(["a", "b"], tmp_path, reader)
    assert reader.asked == ["b"]
    assert (costs.reused, costs.done) == (1, 1)
    assert found.row(0) == (*rows[0], *[None] * (found.width - len(rows[0])))


def test_a_stored_read_without_an_answer_is_done_again_once(tmp_path):
    """From before thoughts had a column: what stood before the first line break."""
    texts = ["", "  ", "<think>", "\n<think>a</think> b", "a <think>", "c", "d"]
    rows = [
        (read_key(SPEC.fingerprint, [f"{at}"]), "q", ["d"], text, 7, 1, False, None)
        for at, text in enumerate(texts)
    ]
    rows[-1] = (*rows[-1][:3], "", *rows[-1][4:7], 0.2)  # a choice of none of the answers
    keep(tmp_path, rows)
    reader = ScriptedReader(lambda text: "")
    names = [f"{at}" for at in range(len(texts))]
    assert ask(names, tmp_path, reader)[1].done == 4
    assert sorted(reader.asked) == ["0", "1", "2", "3"]
    assert ask(names, tmp_path, reader)[1].done == 0


def test_a_stored_read_that_ended_early_is_done_again(tmp_path):
    shutil.copytree(EARLIER, tmp_path / SPEC.fingerprint)
    reader = ScriptedReader(str.upper)
    _, costs = ask([*"abcdef"], tmp_path, reader)
    assert reader.asked == ["f"]
    assert (costs.reused, costs.done) == (5, 1)


def test_store_files_keep_their_columns(tmp_path):
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    (file,) = (tmp_path / SPEC.fingerprint).glob("*.parquet")
    columns = STORED | {"thought": pl.String(), "seconds": pl.Float64()}
    columns |= {"ended": pl.String(), "mass": pl.Float64()}
    assert list(pl.read_parquet_schema(file).items()) == list(columns.items())


def test_the_columns_of_reads_are_the_fields_of_an_output():
    of_request = {name: tables.READS[name] for name in ("read_key", "query_id", "doc_ids")}
    assert of_request | OUTPUT_COLUMNS == tables.READS | {FAILURE: pl.String()}
    outputs = [ReadOutput("a", 2, 1, True, confidence=0.5), ReadOutput.failed("broken")]
    frame = output_columns(outputs)
    assert frame.schema == OUTPUT_COLUMNS
    assert [ReadOutput(**row) for row in frame.to_dicts()] == outputs


def test_another_reader_does_not_share_reads(tmp_path):
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    other = replace(SPEC, dtype="bfloat16")
    assert load(folder_at(tmp_path), other.fingerprint).reads.is_empty()
    assert load(folder_at(tmp_path), SPEC.fingerprint).reads.height == 1
    # what only decides speed does not matter
    fast = replace(SPEC, memory=5, threads=3, path="/x", parameters=7)
    assert fast.fingerprint == SPEC.fingerprint


def test_an_executor_has_a_name():
    with refused("reader.nameless"):
        NamedExecutor(" ", ScriptedReader(str.upper))


def test_failed_reads_are_reported_and_tried_again(tmp_path):
    def fail(plan, units, spec):
        for unit in units:
            outputs = [ReadOutput.failed("too long")] * unit.length
            yield UnitResult(unit, outputs, "w", 0.0, STATS)

    found, costs = ask(["a", "b"], tmp_path, fail)
    assert found["failure"].to_list() == ["too long"] * 2
    assert (costs.done, costs.failed) == (2, 2)
    found, costs = ask(["a", "b"], tmp_path, ScriptedReader(str.upper))
    assert found["failure"].null_count() == 2
    assert costs.done == 2


def test_units_that_vanish_are_an_error(tmp_path):
    with pytest.raises(ReadError) as caught:
        ask(["a", "b"], tmp_path, lambda plan, units, spec: iter(()))
    as_expected(str(caught.value))


JUDGE = replace(SPEC, choices=("yes", "no"))


def ask_both(first, second, directory, reader, specs=(SPEC, JUDGE)):
    """Get the reads of two readers, which the scripted one does; and what was run for whom."""
    runs = []

    class Running(Local):
        def run(self, plan, units):
            runs.append([self.specs[role] for role in dict.fromkeys(unit.reader for unit in units)])
            return reader(plan, units, self.specs[0])

    pairs = zip((first, second), specs, strict=True)
    asked = [Wanted(wanted(*texts, spec=spec), spec) for texts, spec in pairs]
    got = get_all_reads(asked, directory, pool=PoolSettings(actors=0), host=Running)
    return got, runs


def test_readers_of_one_model_are_run_together(tmp_path):
    reader = ScriptedReader(str.upper)
    ((found, costs), (judged, others)), runs = ask_both("ab", "bc", tmp_path, reader)
    assert runs == [[SPEC, JUDGE]]
    assert [*found["output"], *judged["output"]] == ["A", "B", "B", "C"]
    assert (costs.done, others.done) == (2, 2)
    place = folder_at(tmp_path)
    for spec in (SPEC, JUDGE):
        assert load(place, spec.fingerprint).reads.height == 2
    # What one of them has in the store leaves the other's to do.
    ((_, costs), (_, others)), runs = ask_both("ab", "bcd", tmp_path, ScriptedReader(str.upper))
    assert (costs.done, others.done, runs) == (0, 1, [[JUDGE]])


ON_VLLM = replace(SPEC, engine="vllm", stop=("\n",))


@pytest.mark.parametrize(
    "asked",
    [
        {"choices": ("yes", "no")},
        {"choices": ("no",)},
        {"max_new_tokens": 9},
        {"stop": ()},
        {"max_input_tokens": 100, "shared_prefix": "read", "special_tokens": False},
    ],
)
def test_what_is_a_matter_of_a_request_leaves_readers_on_vllm_together(asked):
    other = replace(ON_VLLM, **asked)
    assert other.model == ON_VLLM.model


@pytest.mark.parametrize(
    "decisive",
    [
        {"weights": "others"}, {"dtype": "bfloat16"}, {"path": "/elsewhere"}, {"code": "c"},
        {"memory": 2**30}, {"gpus": 2}, {"threads": 2}, {"engine": "transformers"},
    ],
)  # fmt: skip
def test_what_decides_vllms_engine_separates_readers(decisive):
    other = replace(ON_VLLM, **decisive, choices=("yes", "no"))
    assert other.model != ON_VLLM.model


def test_reads_of_earlier_versions_on_vllm_are_still_found():
    """What readers share has no part in where their reads are: these keys were made before they shared anything."""
    judge = replace(ON_VLLM, choices=("yes", "no"))
    assert ON_VLLM.fingerprint == "4580d4ce76995b8e0997b04c49ecc632"
    assert judge.fingerprint == "b85d4aa2dd0a8a61c22a915c2d1665f0"


def test_reads_that_two_jobs_of_a_reader_ask_for_are_done_once(tmp_path):
    reader = ScriptedReader(str.upper)
    ((first, costs), (second, others)), _ = ask_both("ab", "bc", tmp_path, reader, (SPEC, SPEC))
    assert len(reader.asked) == 3
    assert [*first["output"], *second["output"]] == ["A", "B", "B", "C"]
    assert [(one.wanted, one.reused, one.done) for one in (costs, others)] == [(2, 0, 2), (2, 1, 1)]


def test_readers_share_the_time_of_their_actors_and_tell_once_what_happened():
    costs = [
        ReadingCosts(done=30, reader_seconds=3.0),
        ReadingCosts(done=10, reader_seconds=1.0),
        ReadingCosts(),
    ]
    share_costs(costs, 8.0, PoolTotals(lost_nodes=2))
    assert [one.seconds for one in costs] == [6.0, 2.0, 0.0]
    assert [one.reads_per_second for one in costs] == [5.0, 5.0, 0.0]
    assert [one.lost_nodes for one in costs] == [2, 0, 0]


def test_a_broken_store_file_of_an_earlier_version_is_named(tmp_path):
    ask(["a"], tmp_path, ScriptedReader(str.upper))
    (file,) = (tmp_path / SPEC.fingerprint).glob("*.parquet")
    old = file.rename(file.with_name(f"{file.name[:32]}.parquet"))
    assert load(folder_at(tmp_path), SPEC.fingerprint).reads.height == 1
    old.write_bytes(old.read_bytes()[:50])
    with refused("store.damaged", path=old, text=False):
        ask(["a"], tmp_path, ScriptedReader(str.upper))


def test_a_killed_driver_keeps_every_finished_unit(tmp_path):
    """SIGKILL right after some units: the next run does the rest and nothing twice."""
    script = textwrap.dedent(
        """
        import os, signal, sys
        import engine.reading.plan as reads
        from benchmarks._reads import get_reads
        from engine.machine.pool import PoolSettings
        from pathlib import Path
        from tests.reading.test_backends import SPEC, wanted
        from tests.conftest import ScriptedReader
        reads.unit_tokens = lambda *_, **__: 1  # one read a unit
        scripted = ScriptedReader(str.upper)
        def killed(plan, units, spec):
            for number, result in enumerate(scripted(plan, units, spec)):
                if number == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield result
        get_reads(
            wanted(*"abcdefgh"), SPEC, Path(sys.argv[1]),
            pool=PoolSettings(actors=0), executor=killed,
        )
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=os.getcwd(), capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    # a file that a killed process was writing is not taken for a finished one, and does not stay
    abandoned = tmp_path / SPEC.fingerprint / f".x.{files._machine()}{'0' * 20}.erag.parquet"
    abandoned.write_bytes(b"half")
    reader = ScriptedReader(str.upper)
    found, costs = ask(list("abcdefgh"), tmp_path, reader)
    assert (costs.reused, costs.done, len(reader.asked)) == (3, 5, 5)
    assert found["output"].to_list() == list("ABCDEFGH")
    assert not abandoned.exists()


def test_units_are_small_enough_for_every_actor():
    assert unit_tokens(10**9, actors=2, gpu=False) == 16384
    # What a GPU reads in half a minute at 1,000 tokens a second, and not in minutes.
    assert unit_tokens(10**9, actors=2, gpu=True) == 32768
    # 1,700 reads of 150 tokens on 8 GPUs: at least 8 units each
    assert 1700 * 150 // unit_tokens(1700 * 150, actors=8, gpu=True) >= 64
    assert unit_tokens(3, actors=8, gpu=False) == 1
    # a function is given many prompts, the first time too
    assert unit_tokens(900, actors=1, gpu=True, alone=True) == 32768


def test_sizes_do_not_count_the_shared_prefix():
    spec = replace(SPEC, shared_prefix="p" * 100)
    inputs = [["p" * 100 + "a" * 40], ["p" * 100], ["p" * 100 + "a", "b" * 79]]
    reads = pl.DataFrame({"read_key": [*"abc"], "query_id": [*"abc"], "inputs": inputs})
    assert longest_first(reads, spec).sort("read_key")["size"].to_list() == [10, 1, 20]


def test_a_reader_is_given_one_gpu_at_most(tmp_path):
    said = "cluster.idle"
    with refused(said):
        get_reads(wanted("a"), SPEC, tmp_path, pool=PoolSettings(gpus_per_actor=4))
