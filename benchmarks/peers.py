"""The engine beside other ways to read the same prompts with the same model: reads a second, and memory.

    python -m benchmarks.peers [--data DIR] [--reads 120] [--rounds 3] [--clock processor] [--vllm PYTHON]
        [--json FILE]

Single passages as BM25 lists them, as eRAG labels them. Every side is a process of its own with the bundled
reader in the same precision and with the same threads, and all read in turn. ``--clock processor`` measures
CPU time, which other work on the machine changes less:

- the engine's reader;
- ``generate`` of transformers on one prompt at a time, the obvious first version;
- on batches of 16 prompts in the order of arrival, padded (left out for 16 prompts or fewer);
- on batches of 16 prompts that were sorted by length, the longest first, as evaluation harnesses do;
- the eRAG package's ``eval`` with a generator of the first kind, its metrics included, if the package is
  installed;
- vLLM, if ``--vllm`` names an interpreter that has it (``make vllm`` makes one). Its rounds follow all
  other rounds, since it takes minutes to start.

Answers first: in fp32 all sides must give the same answers to a sample of the prompts. Memory is the rise of the
peak of the process (for vLLM: of all its processes) above its memory with the model loaded. vLLM reserves its cache
of keys and values while it loads; only memory that it then writes for the first time is counted.

lm-evaluation-harness is left out. It reads with ``generate`` in batches sorted by length, as the fourth side does, and
would bring two dozen packages.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from benchmarks._bundled import read_data
from benchmarks._harness import Line, Timing, in_turn, make_parser, write_report
from engine import tables
from engine.machine import device
from engine.reading.plan import missing_reads, requested_reads
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import load, specify
from engine.retrieval.bm25 import build_index, search

Read = Callable[[list[str]], list[str]]
ENGINE, ALONE, ARRIVAL, SORTED, PACKAGE, VLLM = (
    "engine",
    "generate, one at a time",
    "generate, batches of 16",
    "generate, sorted batches of 16",
    "eRAG package, one at a time",
    "vLLM",
)
DEPTH = 10  # passages of a query that are read
_BATCH = 16
# Prompts on which all sides must agree.
_SAMPLE = 4


def planned_reads(data: Path | None, count: int, spec: ReaderSpec, prompt: Any) -> pl.DataFrame:
    """The first ``count`` distinct reads of single passages, as ``plan.requested_reads`` gives them."""
    corpus, queries = read_data(data)
    needed = queries.head(-(-count // DEPTH) + 10)
    with tempfile.TemporaryDirectory() as folder:
        build_index(corpus, folder)
        run = search(folder, needed, k=DEPTH)
    lists = run.select("query_id", pl.concat_list("doc_id").alias("doc_ids"))
    wanted = requested_reads(lists, queries, corpus, prompt=prompt, fingerprint=spec.fingerprint)
    reads = missing_reads(wanted, tables.empty(tables.READS)).head(count)
    if reads.height < count:
        raise SystemExit(f"the data has {reads.height} reads; use --reads {reads.height} or fewer")
    return reads


def generate(spec: ReaderSpec, batch: int) -> Read:
    """Batched ``generate`` with left padding and a stop at the line's end."""
    tokenizer = AutoTokenizer.from_pretrained(
        spec.path, padding_side="left", trust_remote_code=False
    )
    model = AutoModelForCausalLM.from_pretrained(
        spec.path, dtype=getattr(torch, spec.dtype), trust_remote_code=False
    ).eval()
    if torch.cuda.is_available():
        model = model.to("cuda")

    def read(prompts: list[str]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(prompts), batch):
            part = prompts[start : start + batch]
            ids = tokenizer(part, return_tensors="pt", padding=True).to(model.device)
            out = model.generate(
                **ids,
                max_new_tokens=spec.max_new_tokens,
                do_sample=False,
                stop_strings=["\n"],
                tokenizer=tokenizer,
                pad_token_id=tokenizer.pad_token_id,
            )
            answers = tokenizer.batch_decode(
                out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True
            )
            texts += [text.split("\n")[0].strip() for text in answers]
        return texts

    return read


def vllm(
    python: str,
    spec: ReaderSpec,
    prompts: list[str],
    rounds: int,
    *,
    peer: str = "_vllm_peer",
    **more: Any,
) -> dict[str, Any]:
    """Figures of ``benchmarks._vllm_peer``, from an interpreter that has vLLM; or of another peer, with other settings."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "in.json"), Path(folder, "out.json")
        settings = {"model": spec.path, "prompts": prompts, "dtype": spec.dtype, "rounds": rounds}
        settings |= {"threads": spec.threads, "max_tokens": spec.max_new_tokens, **more}
        asked.write_text(json.dumps(settings), encoding="utf-8")
        command = [python, "-m", f"benchmarks.{peer}", str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{peer} failed: {done.stderr[-2000:]}")
        measured: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        return measured


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=3, quick={"reads": 4, "rounds": 1, "threads": 1})
    parser.add_argument("--data", type=Path, help="with queries.jsonl and corpus.jsonl")
    parser.add_argument("--reads", type=int, default=120)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--vllm", help="an interpreter that has vLLM")
    arguments = parser.parse_args(options)
    if arguments.vllm and arguments.clock == "processor":
        parser.error("--clock processor cannot time vLLM; leave it out")
    spec, prompt = specify(
        "bundled", augmentation="in-prompt", task="short-answer", dtype=arguments.dtype
    )
    spec = replace(spec, threads=arguments.threads)
    reads = planned_reads(arguments.data, arguments.reads, spec, prompt)
    prompts = ["".join(pieces) for pieces in reads["inputs"].to_list()]
    names = [ENGINE, ALONE, SORTED]
    if len(prompts) > _BATCH:  # else both have the same single batch
        names.insert(2, ARRIVAL)
    names += [PACKAGE] if importlib.util.find_spec("erag") else []
    if PACKAGE not in names:
        print("the eRAG package is not installed, and left out")
    timings, memory = measure(names, spec, prompts, arguments)
    if arguments.vllm:
        peer = vllm(arguments.vllm, spec, prompts, arguments.rounds)
        timings[VLLM] = Timing(peer["seconds"], peer["outputs"])
        memory[VLLM] = peer["memory"]
    show(timings, memory, len(prompts), spec, arguments)
    figures = {
        "dtype": spec.dtype,
        "reads": len(prompts),
        "seconds": {name: timing.seconds for name, timing in timings.items()},
        "memory": memory,
    }
    page = [
        Line(f"reads/s: engine to {name}", str(timing.over(timings[ENGINE])))
        for name, timing in timings.items()
        if name != ENGINE
    ]
    page += [
        Line(f"memory of {name}, beside the model", f"{taken / 2**20:.0f} MiB")
        for name, taken in memory.items()
        if taken is not None
    ]
    write_report(arguments, ("torch", "transformers"), figures, page)


def measure(
    names: Sequence[str], spec: ReaderSpec, prompts: list[str], arguments: argparse.Namespace
) -> tuple[dict[str, Timing], dict[str, int | None]]:
    """Seconds and answers by side, in turn, and the bytes that reading takes beyond the model."""
    pools = {name: _process(name, spec) for name in names}
    try:
        # The setup of a first call is not timed.
        first = {name: pool.apply(_first, (prompts,)) for name, pool in pools.items()}
        exact = replace(spec, dtype="float32")
        given = {name: answers[:_SAMPLE] for name, (_, answers) in first.items()}
        if exact != spec:
            given = {name: _answers(name, exact, prompts[:_SAMPLE]) for name in _checked(names)}
        if arguments.vllm:
            given[VLLM] = vllm(arguments.vllm, exact, prompts[:_SAMPLE], 1)["outputs"]
        refuse_different_answers(given)
        sides = {name: partial(pool.apply, _read, (prompts,)) for name, pool in pools.items()}
        # Each side is a process, and the others wait meanwhile.
        processor = partial(_processor_time, tuple(pools.values()))
        clock = processor if arguments.clock == "processor" else perf_counter
        timings = in_turn(sides, arguments.rounds, clock=clock)
    finally:
        for pool in pools.values():
            pool.terminate()
    return timings, {name: rise for name, (rise, _) in first.items()}


def refuse_different_answers(given: dict[str, list[str]]) -> None:
    """End if a side's answers in fp32 differ from ``generate`` on one prompt at a time."""
    for name, answers in given.items():
        if answers != given[ALONE]:
            raise SystemExit(f"in fp32 the answers of {name!r} are not those of {ALONE!r}")


def _checked(names: Sequence[str]) -> list[str]:
    """The sides whose answers need a check: the package reads with the reference reader itself."""
    return [name for name in names if name != PACKAGE]


def _answers(name: str, spec: ReaderSpec, prompts: list[str]) -> list[str]:
    """A side's answers, from a process of its own."""
    with _process(name, spec) as pool:
        answers: list[str] = pool.apply(_read, (prompts,))
        return answers


def _process(name: str, spec: ReaderSpec) -> Pool:
    """A side in a process of its own, forked from a server that has imported the sides' modules and run nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.peers", "engine.reading.models.causal"])
    return context.Pool(1, _load, (name, spec))


def _processor_time(pools: Sequence[Pool]) -> float:
    """CPU seconds of the sides so far, in all."""
    return sum(pool.apply(process_time) for pool in pools)


_side: Read | None = None  # of a process of ``_process``


def _load(name: str, spec: ReaderSpec) -> None:
    global _side
    logging.disable_progress_bar()
    torch.set_num_threads(spec.threads)
    _side = _sides()[name](spec)


def _read(prompts: list[str]) -> list[str]:
    assert _side is not None
    return _side(prompts)


def _first(prompts: list[str]) -> tuple[int | None, list[str]]:
    """Bytes of memory for a process's first reads, and their answers."""
    answers: list[str] = []

    def run() -> None:
        answers[:] = _read(prompts)

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return device.peak_above(torch.device(kind), run), answers


def _sides() -> dict[str, Callable[[ReaderSpec], Read]]:
    return {
        ENGINE: _engine,
        ALONE: lambda spec: generate(spec, 1),
        ARRIVAL: lambda spec: generate(spec, _BATCH),
        SORTED: lambda spec: _sorted(generate(spec, _BATCH)),
        PACKAGE: lambda spec: _package(generate(spec, 1)),
    }


def _engine(spec: ReaderSpec) -> Read:
    reader = load(spec)
    return lambda prompts: [r.output for r in reader.read([[p] for p in prompts])]


def _sorted(read: Read) -> Read:
    def read_sorted(prompts: list[str]) -> list[str]:
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        outputs = dict(zip(order, read([prompts[i] for i in order]), strict=True))
        return [outputs[i] for i in range(len(prompts))]

    return read_sorted


def _package(read: Read) -> Read:
    """The package's ``eval`` on lists of ready prompts, in the place of passages.

    The references are invented: its metrics take the same time for any match.
    """
    from erag import eval as evaluate

    def read_by_package(prompts: list[str]) -> list[str]:
        lists = {str(i): prompts[i : i + DEPTH] for i in range(0, len(prompts), DEPTH)}
        outputs: dict[str, str] = {}

        def generator(asked: dict[str, list[str]]) -> dict[str, str]:
            given = dict(zip(asked, read([listed[0] for listed in asked.values()]), strict=True))
            outputs.update({asked[name][0]: output for name, output in given.items()})
            return given

        def metric(given: dict[str, str], expected: Any) -> dict[str, int]:
            return {name: int(output in expected[name]) for name, output in given.items()}

        evaluate(lists, {name: ["yes"] for name in lists}, generator, metric, {"P_5", "recip_rank"})
        return [outputs[prompt] for prompt in prompts]

    return read_by_package


def show(
    timings: dict[str, Timing],
    memory: dict[str, int | None],
    reads: int,
    spec: ReaderSpec,
    arguments: argparse.Namespace,
) -> None:
    print(
        f"{reads} reads of single passages, {spec.dtype}, {arguments.threads} threads, {arguments.clock} clock, medians "
        f"of {arguments.rounds} rounds; equal answers in fp32 to {min(reads, _SAMPLE)} prompts"
    )
    print(f"{'':34}{'reads/s':>9}{'engine is':>24}{'memory':>12}{'as ' + ENGINE:>12}")
    for name, timing in timings.items():
        taken = memory.get(name)
        differ = sum(a != b for a, b in zip(timing.result, timings[ENGINE].result, strict=True))
        print(
            f"{name:34}{reads / median(timing.seconds):9.2f}"
            f"{'' if name == ENGINE else str(timing.over(timings[ENGINE])):>24}"
            f"{'' if taken is None else f'{taken / 2**20:.0f} MiB':>12}"
            f"{'' if name == ENGINE else f'{1 - differ / reads:.0%}':>12}"
        )


if __name__ == "__main__":
    main()
