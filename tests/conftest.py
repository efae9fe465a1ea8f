"""Shared fixtures: small tables, a tiny reader, one Ray for the session."""

from __future__ import annotations

import atexit
import gc
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.expected")  # before it is imported

from tests import expected, kept_reader

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "50000")  # as readers.load does; tests share machines
# ranx is compiled for more than a minute in a new environment; interpreted, it computes the same.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
# Every call of Lucene starts a JVM; it ends before what a server's would compile is any use.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Two threads that wait for each other on a busy machine can take minutes for what takes one a second;
# what must not depend on their number is tested with two among the slow tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share what their controller made
    # Converted models and the default store of this session; never the developer's own.
    cache = Path(tempfile.mkdtemp(prefix="erag-test-cache-"))
    os.environ["ERAG_CACHE"] = str(cache)
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    kept_reader.lend(cache)
    atexit.register(kept_reader.keep, cache)  # before the cache is removed: the last one goes first

# Writes of stores wait for the disk, thousands of times in a session, and no test cuts the power. Processes
# that tests start still wait.
os.fsync = lambda descriptor: None

import polars as pl
from hypothesis import settings

from engine import tables
from engine.machine import device
from engine.reading.costs import UnitResult
from engine.reading.plan import INPUTS, Unit
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.sources.articles.read import Article
from tests.retrieval.lucene_double import without_java  # noqa: F401 (a fixture)
from tests.s3_server import s3  # noqa: F401 (a fixture)

# An example that takes more than 0.2 s is a sign of a busy machine, not of a fault. Each session draws
# examples of its own: what thirty of them miss, the next sessions find.
settings.register_profile("tests", parent=settings(), deadline=None, max_examples=30)
settings.load_profile("tests")

# A reader that is nowhere, for what does not read.
SPEC = ReaderSpec(
    weights="w",
    architecture="causal",
    dtype="float32",
    max_new_tokens=4,
    stop=(),
    max_input_tokens=0,
    path="/nowhere",
    parameters=1,
    name="test",
)
# The counters of a reader that computes nothing.
STATS = dict.fromkeys(("padded_tokens", "prompt_tokens", "memory_halvings", "peak_memory"), 0)

# A library that is not installed, as Python and as the engine's messages name it.
_LACKING = re.compile(r"No module named '([\w.]+)'|pip install 'erag-engine\[(\w+)\]'")

# Where tests run in several processes, a module's tests stay together, and so do those of a group here,
# by how their ids begin: one process starts Ray, one converts the bundled reader, one parses the bundled
# articles. The first group that fits is taken. Groups come first, then modules that take long, then the rest:
# so that all processes end at about the same time.
GROUPS = {
    "ray": (
        "tests/evaluation/test_read.py",
        "tests/machine/test_cluster.py",
        "tests/machine/test_nodes.py",
        "tests/reading/test_ledger.py",
        "tests/reading/test_stream_on_ray.py",
        "tests/retrieval/test_dense.py",
        "tests/retrieval/test_search_on_ray.py",
        "tests/retrieval/test_distribute.py",
        "tests/faults/test_kills.py",
        "tests/jobs/test_commands.py::test_two_runs_on_ray",
        "tests/jobs/test_commands.py::test_actors_that_can_never_be_hosted",
        "tests/jobs/test_plan.py::test_on_ray",
        "tests/training/test_on_ray.py",
        "tests/test_gpu_first.py::test_actors",
    ),
    "bundled reader": (
        "tests/reading/remote/test_bundled.py",
        "tests/reading/models/test_causal.py",
        "tests/reading/models/test_weights.py",
        "tests/reading/test_readers.py",
        "tests/jobs/test_commands.py",
        "tests/jobs/test_demo.py",
    ),
    "bundled articles": (
        "tests/test_bundled_reader.py",
        "tests/test_gpu_first.py::test_outputs_of_the_bundled",
        "tests/test_gpu_first.py::test_the_bundled_reader",
        "tests/retrieval/test_bm25.py",
        "tests/test_demo_questions.py",
    ),
}
LONG = (
    "tests/evaluation/test_evaluate",
    "tests/inputs/test_partition.py",
    "tests/jobs/test_train.py",
    "tests/reading/models/",
    "tests/report/page/",
    "tests/test_gpu_first.py",
    "tests/training/",
)


def group_of(nodeid: str) -> str:
    """The group of a test, or its module."""
    fitting = (name for name, ids in GROUPS.items() if nodeid.startswith(ids))
    return next(fitting, nodeid.split("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(GROUPS)

    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        if group in GROUPS:
            return order.index(group)
        return len(order) + (not item.nodeid.startswith(LONG))

    items.sort(key=rank)
    # What is imported by now stays: the collector, which runs with every read that is halved, passes it over.
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--light",
        action="store_true",
        help="skip tests whose libraries make check does not install",
    )
    parser.addoption("--write-texts", action="store_true", help="write tests/texts anew")


def pytest_configure(config: pytest.Config) -> None:
    expected.start(writes=config.getoption("--write-texts"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield
    expected.end()


def pytest_sessionfinish() -> None:
    expected.finish()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """With --light, skip a test module that imports a library which is not installed."""
    report = yield
    return _light(collector.config, report)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With --light, skip a test that comes to a library which is not installed."""
    report = yield
    return _light(item.config, report)


def _light(config: pytest.Config, report: Any) -> Any:
    lacking = _LACKING.search(str(report.longrepr)) if report.failed else None
    if config.getoption("--light") and lacking:
        report.outcome = "skipped"
        report.longrepr = ("", 0, f"Skipped: needs {lacking[1] or lacking[2]}")
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send groups to processes; --dist loadgroup of pytest-xdist 3.8 does not under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Scheduling(config, log)


# That bf16 outputs do not depend on the batch is claimed where the processor has AVX512-BF16 and no AMX.
# ONEDNN_MAX_CPU_ISA=AVX512_CORE, which the engine follows too, makes any machine one that has neither, and
# AVX512_CORE_BF16 one with AMX into one without.
needs_steady_bf16 = pytest.mark.skipif(
    not device.bf16_rows_are_steady(),
    reason="without AVX512-BF16, or with AMX, a bf16 product can depend on its number of rows",
)


@pytest.fixture
def any_mass(monkeypatch):
    """Have choices count that the reader hardly means, as random models do not mean theirs."""
    monkeypatch.setattr("engine.reading.answers.LEAST_MASS", 0.0)


@pytest.fixture(autouse=True)
def _without_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes a second to draw, and hundreds of tests evaluate something: those marked ``pages`` draw it."""
    if request.node.get_closest_marker("pages") is not None:
        return
    monkeypatch.setattr("engine.report.page.remake.make_page", lambda *_, **__: None)
    if "jobs.train" in sys.modules:
        monkeypatch.setattr(sys.modules["jobs.train"], "write_training_page", lambda *_, **__: None)


def make_run(rows: Sequence[tuple[str, str, int]], name: str = "sys") -> pl.DataFrame:
    """A run table from (query, document, rank)."""
    return pl.DataFrame(
        [(q, d, r, float(100 - r), name) for q, d, r in rows], schema=tables.RUNS, orient="row"
    )


def planned(texts: Sequence[str]) -> pl.DataFrame:
    """A plan of reads, each of one text and a group of its own."""
    return pl.DataFrame(
        {
            "read_key": texts,
            "query_id": texts,
            "doc_ids": [[text] for text in texts],
            "inputs": [[text] for text in texts],
            "size": 1,
            "group": range(len(texts)),
        }
    )


def framed(rows: Sequence[Any], columns: tables.Schema | Sequence[str]) -> pl.DataFrame:
    """A table of rows; the last columns may be left out, and are null."""
    schema = columns if isinstance(columns, dict) else dict.fromkeys(columns)
    given = list(schema.items())[: len(rows[0]) if rows else None]
    table = pl.DataFrame(rows, schema=dict(given), orient="row")
    more = [(name, kind) for name, kind in schema.items() if name not in dict(given)]
    return table.with_columns(pl.lit(None, kind).alias(name) for name, kind in more)


def make_labels(rows: Sequence[tuple[str, str, float]], annotator: str = "a") -> pl.DataFrame:
    """A labels table from (query, document, label)."""
    return framed([(q, d, annotator, v) for q, d, v in rows], tables.LABELS)


class ScriptedReader:
    """An executor that answers from a function of the input text and counts what it is asked.

    It is interrupted before the unit after the first that makes it asked more than ``most``.
    """

    def __init__(self, answer: Callable[[str], str], most: float = math.inf) -> None:
        self.answer, self.most = answer, most
        self.asked: list[str] = []

    def __call__(
        self, plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
    ) -> Iterator[UnitResult]:
        for unit in units:
            if len(self.asked) > self.most:
                raise KeyboardInterrupt
            outputs = []
            for inputs in plan[INPUTS].slice(unit.offset, unit.length).to_list():
                text = "\n".join(inputs)
                self.asked.append(text)
                outputs.append(ReadOutput(self.answer(text), len(text.split()), 1, False))
            yield UnitResult(unit, outputs, "scripted", 0.0, STATS | {"peak_memory": 2**20})


@pytest.fixture(scope="session")
def bundled_spec() -> ReaderSpec:
    """The bundled reader in fp32, where outputs do not depend on batches."""
    from engine.reading.readers import specify

    spec, _ = specify("bundled", augmentation="in-prompt", task="short-answer", dtype="float32")
    return spec


@pytest.fixture(scope="session")
def bundled_articles() -> list[Article]:
    """The bundled articles: parsing them takes seconds."""
    from engine.sources.articles.read import read_source
    from engine.sources.bundled import wikipedia_dump

    return list(read_source(wikipedia_dump()))


@pytest.fixture(scope="session")
def bundled_corpus(bundled_articles: list[Article]) -> pl.DataFrame:
    """The passages of the bundled articles."""
    from engine.sources.passages.cut import passages

    return passages(bundled_articles)


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised T5 of two layers, with a word-level tokenizer, saved as a directory."""
    return save_tiny_t5(tmp_path_factory.mktemp("tiny-t5"))


def save_tiny_t5(directory: Path, *further: str) -> Path:
    """Save the model of ``tiny_t5``; it knows further words, in the place of some of its own."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    own = (f"w{i}" for i in range(97 - len(further)))
    words = ["<pad>", "</s>", "<unk>", *own, *further]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(7)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            initializer_factor=3.0,
        )
    )
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests that need one."""
    from engine.machine import cluster

    cluster.start_ray()
    yield
    cluster.stop_ray()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two queries, three passages and a run, small enough for the bundled reader."""
    queries = tmp_path / "q.jsonl"
    rows = [
        ("1", "what is the capital of aruba", "Oranjestad"),
        ("2", "who wrote animal farm", "George Orwell"),
    ]
    queries.write_text(
        "".join(
            json.dumps({"id": i, "input": q, "output": [{"answer": a}, {"provenance": [{"wikipedia_id": t}]}]}) + "\n"
            for (i, q, a), t in zip(rows, ("Aruba", "Animal Farm"), strict=True)
        )
    )  # fmt: skip
    corpus = tmp_path / "c.jsonl"
    passages = [
        {"id": "a", "title": "Aruba", "text": "The capital of Aruba is Oranjestad."},
        {"id": "b", "title": "Animal Farm", "text": "Animal Farm is a novella by George Orwell."},
        {"id": "c", "title": "Abacus", "text": "The abacus is a calculating tool."},
    ]
    corpus.write_text("".join(json.dumps(p) + "\n" for p in passages))
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 a 1 2 mine\n1 Q0 c 2 1 mine\n2 Q0 c 1 2 mine\n2 Q0 b 2 1 mine\n")
    return {"queries": queries, "corpus": corpus, "run": run, "out": tmp_path / "out"}
