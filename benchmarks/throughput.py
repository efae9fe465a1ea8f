"""Reads per second of the decoder-only reader: against its peers, its floor, its memory, its pipeline.

    python -m benchmarks.throughput [--data DIR] [--reads 256] [--batch 16] [--threads 2]
        [--vllm PYTHON] [--pipeline-reads 2000] [--memory 1.5GiB,5GiB] [--json FILE]

All sides read the same prompts (single passages as BM25 lists them, query after query) with the same
weights, precision and threads, in turn. The peers: ``generate`` in batches of a fixed size in the
order of arrival, padded, stopped at the end of the line, which is what one writes first; and vLLM
with prefix caching (``--vllm`` names an interpreter that has it; ``make vllm`` makes one). Equality
first: in fp32 the outputs must be ``generate``'s; in bf16 the share that differs is printed, between
the sides, and for the engine between one read at a time and all together.

The engine is timed twice: one reader with all threads, and as many readers as threads with one each,
in separate processes, which is how the pipeline uses a machine without a GPU.

Floor: 2 operations for each weight of the layers and each prompt token that is not shared, at the rate
of the layers' matrix products, measured in the same run. Expectation: half of it and more; what is above
it is attention, the element-wise operations, and one pass of the weights for each token written.

``--pipeline-reads`` compares the Ray Data pipeline, one actor with all threads, with the same units in
a loop in this process: start-up is reported apart. ``--memory`` reads under each budget, each in a
separate process, and reports the peak. ``--data`` is a directory with ``queries.jsonl`` and
``corpus.jsonl`` as the engine reads them; without it, the demo's questions and passages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks._bundled import bundled_corpus
from benchmarks._harness import Line, Timing, in_fresh_process, in_turn, make_parser, write_report
from engine import tables
from engine.machine import cluster, pool
from engine.machine.device import Dtype
from engine.machine.pool import PoolSettings
from engine.reading import readers
from engine.reading.executors import Backend, input_sizes, unit_tokens
from engine.reading.plan import Unit, cut_units, longest_first, missing_reads, wanted_reads
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import specify
from engine.reading.stream import Host, Ready, ShardPlan, UnitDone, UnitSizes
from engine.retrieval.bm25 import build_index, search
from engine.sources.bundled import questions
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from jobs._options import parse_bytes

Read = Callable[[list[str]], list[str]]
DEPTH = 10  # passages of a query that are read
# Reads whose outputs must be equal in fp32, and those that warm up a side.
_SAMPLE, _WARM = 24, 4
GENERATE, ENGINE, ACTORS, VLLM = "transformers generate", "engine", "engine, apart", "vLLM"


def planned_reads(data: Path | None, count: int, spec: ReaderSpec, prompt: Any) -> pl.DataFrame:
    """The first ``count`` distinct reads of single passages, as ``plan.wanted_reads`` gives them."""
    if data is None:
        corpus = bundled_corpus()
        queries = read_queries(questions("short-answer"))
    else:
        corpus = read_corpus(data / "corpus.jsonl")
        queries = read_queries(data / "queries.jsonl")
    needed = queries.head(-(-count // DEPTH) + 10)
    with tempfile.TemporaryDirectory() as folder:
        build_index(corpus, folder)
        run = search(folder, needed, k=DEPTH)
    lists = run.select("query_id", pl.concat_list("doc_id").alias("doc_ids"))
    wanted = wanted_reads(lists, queries, corpus, prompt=prompt, fingerprint=spec.fingerprint)
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


def engine(spec: ReaderSpec) -> tuple[Read, Any]:
    reader = readers.load(spec)
    return lambda prompts: [r.output for r in reader.read([[p] for p in prompts])], reader


@contextlib.contextmanager
def engine_apart(spec: ReaderSpec, processes: int) -> Iterator[Read]:
    """Readers of one thread each that share the prompts, every ``processes``-th to the same one."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        arguments = (replace(spec, threads=1),)
        pools = [
            stack.enter_context(context.Pool(1, _load_reader, arguments)) for _ in range(processes)
        ]

        def read(prompts: list[str]) -> list[str]:
            parts = [prompts[i::processes] for i in range(processes)]
            asked = [
                pool.apply_async(_read_here, (part,))
                for pool, part in zip(pools, parts, strict=True)
            ]
            outputs = [""] * len(prompts)
            for i, answer in enumerate(asked):
                outputs[i::processes] = answer.get()
            return outputs

        yield read


_reader: Read | None = None  # of a process of ``engine_apart``


def _load_reader(spec: ReaderSpec) -> None:
    global _reader
    _reader, _ = engine(spec)


def _read_here(prompts: list[str]) -> list[str]:
    assert _reader is not None
    return _reader(prompts)


def vllm(
    python: str,
    spec: ReaderSpec,
    prompts: list[str],
    rounds: int,
    *,
    peer: str = "_vllm_peer",
    **more: Any,
) -> dict[str, Any]:
    """What ``benchmarks._vllm_peer`` measures, in an interpreter that has vLLM; or another peer, with other settings."""
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


def matmul_rate(spec: ReaderSpec, model: torch.nn.Module) -> float:
    """Operations per second of the products in the model's layers, on 1,024 tokens; best of nine."""
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    states = torch.randn(1024, hidden, dtype=getattr(torch, spec.dtype), device=model.device)
    up = torch.randn(inner, hidden, dtype=states.dtype, device=model.device)
    best = 0.0
    with torch.inference_mode():
        for _ in range(9):
            start = time.perf_counter()
            for _ in range(10):
                torch.nn.functional.linear(states, up)
            if states.is_cuda:
                torch.cuda.synchronize()
            best = max(best, 10 * 2 * states.numel() * inner / (time.perf_counter() - start))
    return best


def layer_weights(model: torch.nn.Module) -> int:
    """Weights that every prompt token is multiplied with: those of the layers' linear maps."""
    linear = [m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    head = model.get_output_embeddings()
    return sum(m.weight.numel() for m in linear if m is not head)


def timed(results: Iterator[UnitDone]) -> tuple[float, float, int]:
    """Seconds until reading began, seconds of reading, and reads: of units as they end."""
    start = time.perf_counter()
    began, reads = start, 0
    for result in results:
        if not reads:
            began = time.perf_counter() - result.seconds
        reads += result.reads
    return began - start, time.perf_counter() - began, reads


def compare_pipeline(spec: ReaderSpec, reads: pl.DataFrame) -> dict[str, dict[str, float]]:
    """The same units in a loop in this process, and through Ray Data on one actor."""
    plan = longest_first(
        reads, input_sizes(spec, reads["inputs"].to_list()), lead=len(spec.shared_prefix)
    )
    units: list[Unit] = cut_units(
        plan, unit_tokens(int(plan["size"].sum()), actors=1, gpu=torch.cuda.is_available())
    )
    sides: dict[str, dict[str, float]] = {}
    cluster.start_ray(int(plan.estimated_size()))
    one = pool.decide(PoolSettings(actors=1), 2**30)
    ready = Ready(ShardPlan(plan, 0, UnitSizes(1, 1, 1), None, cut=tuple(units)))
    for name, backend in (("loop", Backend()), ("pipeline", Backend(pool=one))):
        host = Host([spec], [None], held=True)
        start_up, seconds, done = timed(backend.read([0], [ready], host))
        sides[name] = {"start_up": start_up, "seconds": seconds, "reads": done}
    cluster.stop_ray()
    return sides


def read_within(spec: ReaderSpec, prompts: list[str]) -> dict[str, float]:
    """Reads under the memory of ``spec``, for a separate process: the peak is the process's."""
    read, reader = engine(spec)
    start = time.perf_counter()
    read(prompts)
    seconds = time.perf_counter() - start
    return {
        "reads_per_second": len(prompts) / seconds,
        "peak_memory": reader.stats.peak_memory,
        "memory_halvings": reader.stats.memory_halvings,
    }


def apart(one: list[str], other: list[str]) -> float:
    return sum(a != b for a, b in zip(one, other, strict=True)) / len(one)


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=2, quick={"reads": 4, "rounds": 1, "threads": 1})
    parser.add_argument("--data", type=Path)
    parser.add_argument("--reads", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="of generate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--vllm", help="an interpreter that has vLLM")
    parser.add_argument("--pipeline-reads", type=int, default=0)
    parser.add_argument("--memory", help="budgets, separated by commas")
    arguments = parser.parse_args(options)
    dtype: Dtype | None = arguments.dtype
    torch.set_num_threads(arguments.threads)

    spec, prompt = specify("bundled", augmentation="in-prompt", task="short-answer", dtype=dtype)
    spec = replace(spec, threads=arguments.threads)
    reads = planned_reads(
        arguments.data, max(arguments.reads, arguments.pipeline_reads), spec, prompt
    )
    prompts = ["".join(pieces) for pieces in reads["inputs"].head(arguments.reads).to_list()]
    report, page = compare_readers(spec, prompts, arguments)
    if arguments.memory:
        report["memory"] = read_under_budgets(spec, prompts, arguments.memory.split(","))
    if arguments.pipeline_reads:
        report["pipeline"] = sides = compare_pipeline(spec, reads.head(arguments.pipeline_reads))
        for name, side in sides.items():
            print(
                f"{name}: {side['reads'] / side['seconds']:.2f} reads/s over {side['reads']} reads, "
                f"start-up {side['start_up']:.1f} s"
            )
        slower = sides["pipeline"]["seconds"] / sides["loop"]["seconds"] - 1
        print(f"the pipeline takes {slower:+.1%} of the loop's time")
        page.append(Line("pipeline: time above that of a loop", f"{slower:+.1%}"))
    write_report(arguments, ("torch", "transformers"), report, page)


def compare_readers(
    spec: ReaderSpec, prompts: list[str], arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[Line]]:
    """Equality in fp32, then the sides in turn, their shares of the floor, and what outputs differ."""
    exact, sample = replace(spec, dtype="float32"), prompts[:_SAMPLE]
    if exact != spec:
        refuse_different(engine(exact)[0](sample), generate(exact, arguments.batch)(sample))

    timings, computed = time_readers(spec, prompts, arguments)
    best = {name: timing.best for name, timing in timings.items()}
    outputs: dict[str, list[str]] = {name: timing.result for name, timing in timings.items()}
    model = AutoModelForCausalLM.from_pretrained(
        spec.path, dtype=getattr(torch, spec.dtype), trust_remote_code=False
    )
    if torch.cuda.is_available():
        model = model.to("cuda")
    rate = matmul_rate(spec, model)
    floor = computed * 2 * layer_weights(model) / rate
    alone, _ = engine(replace(spec, batch_tokens=1))
    batched = apart(outputs[ENGINE], alone(prompts))

    base = best[GENERATE]
    print(f"{'':24}{'reads/s':>8}{'ratio':>7}   ({spec.dtype}, {arguments.threads} threads)")
    for name, seconds in best.items():
        print(f"{name:24}{len(prompts) / seconds:8.2f}{base / seconds:7.2f}")
    print(
        f"floor: {computed / len(prompts):.0f} tokens a read at {rate / 1e9:.0f} GFLOP/s, "
        f"{len(prompts) / floor:.2f} reads/s; of it the engine reaches "
        + ", ".join(f"{floor / best[name]:.0%} ({name})" for name in best if "engine" in name)
    )
    print(f"outputs equal in fp32 on {len(sample)} reads; in {spec.dtype} differ:")
    print(f"  engine, one read at a time against all together: {batched:.1%}")
    for name in outputs:
        if name != ENGINE:
            print(f"  engine against {name}: {apart(outputs[ENGINE], outputs[name]):.1%}")
    reached = max(floor / seconds for name, seconds in best.items() if "engine" in name)
    page = [
        Line(f"reads/s: {name} to {GENERATE}", str(timings[GENERATE].over(timings[name])))
        for name in (ENGINE, ACTORS)
        if name in timings
    ]
    if VLLM in best:
        page.append(Line(f"reads/s: {ENGINE} to {VLLM}", f"{best[VLLM] / best[ENGINE]:.2f}"))
    page.append(Line("speed of the engine, of its floor", f"{reached:.0%}", "50% and more"))
    figures = {
        "dtype": spec.dtype,
        "reads_per_second": {name: len(prompts) / seconds for name, seconds in best.items()},
        "matmul_flops": rate,
        "share_of_floor": {name: floor / seconds for name, seconds in best.items()},
        "differing_batch_of_one": batched,
    }
    return figures, page


def refuse_different(ours: list[str], theirs: list[str]) -> None:
    """End the benchmark where the engine's outputs in fp32 are not those of ``generate``."""
    if ours != theirs:
        raise SystemExit("outputs differ from generate's in fp32")


def time_readers(
    spec: ReaderSpec, prompts: list[str], arguments: argparse.Namespace
) -> tuple[dict[str, Timing], float]:
    """Seconds and outputs of each side, and the prompt tokens that the engine computes."""
    ours, reader = engine(spec)
    sides: dict[str, Read] = {GENERATE: generate(spec, arguments.batch), ENGINE: ours}
    with contextlib.ExitStack() as stack:
        if arguments.threads > 1 and not torch.cuda.is_available():
            sides[ACTORS] = stack.enter_context(engine_apart(spec, arguments.threads))
        # In fp32 what warms up is what must be equal.
        is_exact = spec.dtype == "float32"
        warm = prompts[: _SAMPLE if is_exact else _WARM]
        first = {name: read(warm) for name, read in sides.items()}
        if is_exact:
            refuse_different(first[ENGINE], first[GENERATE])
        before = reader.stats.prompt_tokens
        calls = {name: partial(read, prompts) for name, read in sides.items()}
        timings = in_turn(calls, arguments.rounds)
        computed = (reader.stats.prompt_tokens - before) / arguments.rounds
        if arguments.vllm:
            peer = vllm(arguments.vllm, spec, prompts, arguments.rounds)
            # Once more, should the machine have changed meanwhile.
            for name, timing in in_turn(calls, 1).items():
                timings[name].seconds.extend(timing.seconds)
            timings[VLLM] = Timing(peer["seconds"], peer["outputs"])
    return timings, computed


def read_under_budgets(
    spec: ReaderSpec, prompts: list[str], budgets: list[str]
) -> dict[str, dict[str, float]]:
    """The same reads under each memory budget, each in its own process."""
    measured: dict[str, dict[str, float]] = {}
    for budget in budgets:
        within = replace(spec, memory=parse_bytes(budget))
        measured[budget] = row = in_fresh_process(read_within, within, prompts)
        print(
            f"--memory {budget}: {row['reads_per_second']:.2f} reads/s, "
            f"peak {row['peak_memory'] / 2**30:.2f} GiB, {row['memory_halvings']} halvings"
        )
    return measured


if __name__ == "__main__":
    main()
