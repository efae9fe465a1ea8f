"""What a pretended GPU cannot show, on a real one: ``make test-gpu`` prints a report to paste into docs.

Each check runs in a process of its own, so that none inherits the memory or the settings of another; the
CPU's outputs come from a process that sees no GPU. What takes several GPUs is not run on one. Where there is
no GPU, nothing is checked, and that is said. The exit status is 1 where a check fails.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from engine.machine import device
from engine.machine.device import Dtype
from engine.reading import readers
from engine.reading.prompting.prompts import default_prompt
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.retrieval import encode, flat
from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import EncoderOptions, locate
from engine.retrieval.encoders import specify as specify_encoder
from engine.retrieval.index_shards import Block

Reads = list[list[str]]
MIB = 2**20
# Vectors of the same text may differ by as much; their products are exact again (``flat.exact``).
_VECTORS = 1e-4


class NotRun(Exception):  # noqa: N818 (it is no error)
    """Why a check is not run here."""


class Row(NamedTuple):
    """A check: what it is about, what became of it, and what it measured."""

    what: str
    outcome: str
    told: str


def bundled(**changes: Any) -> ReaderSpec:
    """The bundled decoder-only reader, in fp32 unless the changes say otherwise."""
    options = {"dtype": "float32", "engine": "transformers"} | changes
    spec, _ = readers.specify("bundled", augmentation="in-prompt", task="short-answer", **options)
    return spec


def random_llama(folder: Path, dtype: Dtype, gpus: int) -> ReaderSpec:
    """A small random decoder-only reader on vLLM, whose heads two GPUs can share."""
    from tests.reading.models import tiny_models

    tiny_models.save_llama(folder, bundled().path)
    spec, _ = readers.specify(
        str(folder), augmentation="in-prompt", task="short-answer", dtype=dtype, engine="vllm"
    )
    return replace(spec, gpus=gpus)


def random_t5(folder: Path) -> ReaderSpec:
    """A small random T5 that reads by Fusion-in-Decoder."""
    from tests.reading.models import tiny_models

    tiny_models.save_tokenizer(folder)
    tiny_models.save_model("t5", folder)
    spec, _ = readers.specify(str(folder), augmentation="fid", task="short-answer", dtype="float32")
    return spec


def prompts(count: int) -> Reads:
    """Questions with a passage each, of lengths between 1 and 12 sentences."""
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    sentence = "The capital of the {}th island is Port {}, which lies on its coast. "
    return [
        prompt.render(
            f"what is the capital of the {i}th island",
            [(f"Island {i}", "".join(sentence.format(i, i + j) for j in range(1 + i % 12)))],
        )
        for i in range(count)
    ]


def lists(count: int) -> Reads:
    """Fused reads of three inputs each, and each input alone."""
    inputs = [" ".join(f"w{(7 * i + 3 * j) % 97}" for j in range(3 + i % 20)) for i in range(count)]
    fused = [inputs[i : i + 3] for i in range(0, count - 2, 3)]
    return [*fused, *([one] for one in inputs)]


def outputs(spec: ReaderSpec, reads: Reads) -> list[str]:
    """What a reader writes on this process' device."""
    return written(readers.load(spec).read(reads))


def written(done: list[ReadOutput]) -> list[str]:
    """The outputs of reads.

    Raises:
        AssertionError: some failed, which would be alike wherever they are read.
    """
    failures = [read.failure for read in done if read.failure is not None]
    assert not failures, f"{len(failures)} reads failed: {failures[0]}"
    return [read.output for read in done]


def shortage(spec: ReaderSpec, reads: Reads) -> tuple[list[str], int]:
    """Outputs where the GPU has half of the memory that the reads took before; and how often a batch was halved."""
    import torch

    reader = readers.load(spec)
    reader.read(reads[:1])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()  # loading may have taken more
    reader.read(reads)
    taken = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    mine = device.gpu_share(spec) * total - torch.cuda.memory_reserved()
    left = min(free, mine) - taken / 2
    filler = torch.empty(max(0, int(left)), dtype=torch.uint8, device="cuda")
    found = written(reader.read(reads))
    del filler
    return found, int(reader.stats.memory_halvings)


def vectors(texts: list[str]) -> Any:
    return Encoder(specify_encoder(EncoderOptions(dtype="float32"))).encode(texts)


def searched(where: Literal["CPU", "GPU", "actors"], vectors: int = 60_000) -> pl.DataFrame:
    """The neighbours of random vectors, a few of which are equal."""
    draw = np.random.default_rng(0)
    made = draw.standard_normal((vectors, 384)).astype(np.float32)
    made[:100] = made[100]
    ids = pl.Series([f"d{i}" for i in range(len(made))])
    blocks = [Block(ids.slice(at, 8000), made[at : at + 8000]) for at in range(0, len(made), 8000)]
    queries = draw.standard_normal((200, 384)).astype(np.float32)

    def refuse(line: str) -> None:
        raise AssertionError(line)  # the CPU did the work of the GPU

    if where != "actors":
        searcher = flat.on_gpu if where == "GPU" else None
        return flat.search_flat(blocks, queries, k=50, searcher=searcher, on_event=refuse)
    from engine.retrieval import search_on_ray

    spec = locate(specify_encoder(EncoderOptions()))
    pool = search_on_ray.pool_for(spec, len(blocks), blocks[0].vectors.nbytes)
    assert pool is not None, "Ray has fewer than two GPUs"
    actors = search_on_ray.SearchOnRay(pool, spec, len(blocks))
    return flat.search_flat(blocks, queries, k=50, searcher=actors, on_event=refuse)


def query_vectors(texts: list[str], on_actors: bool) -> Any:
    """Vectors of queries, made in this process or on an actor for each GPU."""
    spec = locate(specify_encoder(EncoderOptions(dtype="float32")))
    if not on_actors:
        return encode.queries(texts, spec)
    from engine.retrieval import search_on_ray

    pool = search_on_ray.pool_for(spec, len(texts), 0)
    assert pool is not None, "Ray has fewer than two GPUs"
    return search_on_ray.SearchOnRay(pool, spec, len(texts)).queries(texts)


def reads_a_second(spec: ReaderSpec, reads: Reads) -> float:
    reader = readers.load(spec)
    reader.read(reads[:4])
    start = time.perf_counter()
    reader.read(reads)
    return len(reads) / (time.perf_counter() - start)


def generated_a_second(spec: ReaderSpec, reads: Reads) -> float:
    """transformers' ``generate`` in batches of 16, longest first; it stops where our readers do."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec.path, padding_side="left", local_files_only=True)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        spec.path, dtype=getattr(torch, spec.dtype), local_files_only=True, trust_remote_code=False
    ).to("cuda")
    texts = sorted(("".join(read) for read in reads), key=len, reverse=True)

    def run(texts: list[str]) -> None:
        ids = tokenizer(texts, return_tensors="pt", padding=True).to("cuda")
        out = model.generate(
            **ids,
            max_new_tokens=spec.max_new_tokens,
            do_sample=False,
            stop_strings=list(spec.stop) or None,
            tokenizer=tokenizer,
        )
        tokenizer.batch_decode(out)

    run(texts[:4])
    start = time.perf_counter()
    for at in range(0, len(texts), 16):
        run(texts[at : at + 16])
    return len(reads) / (time.perf_counter() - start)


def apart(what: Callable[..., Any], *given: Any, gpu: bool = True) -> Any:
    """The result of a call in a new process, which sees the GPUs or none."""
    hidden = contextlib.nullcontext() if gpu else _without_gpus()
    # Not multiprocessing's own pool: its processes may not start others, as vLLM does on several GPUs, and one
    # that dies is waited for.
    new = multiprocessing.get_context("spawn")
    with hidden, concurrent.futures.ProcessPoolExecutor(1, mp_context=new) as pool:
        return pool.submit(what, *given).result()


@contextlib.contextmanager
def _without_gpus() -> Iterator[None]:
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def as_expected(found: list[str], expected: list[str], *, of: int) -> str:
    """How many outputs are the same, of which all but ``of`` must be.

    Raises:
        AssertionError: more differ.
    """
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    told = f"{same} of {len(expected)} outputs are the same"
    assert same >= len(expected) - of, told
    return told


def decoder_only() -> str:
    spec, reads = bundled(), prompts(32)
    expected = apart(outputs, spec, reads, gpu=False)
    return as_expected(apart(outputs, spec, reads), expected, of=0)


def fusion_in_decoder() -> str:
    with tempfile.TemporaryDirectory() as folder:
        spec, reads = random_t5(Path(folder)), lists(60)
        expected = apart(outputs, spec, reads, gpu=False)
        return as_expected(apart(outputs, spec, reads), expected, of=0)


def lack_of_memory() -> str:
    spec, reads = bundled(), prompts(96)
    expected = apart(outputs, spec, reads)
    found, halvings = apart(shortage, spec, reads)
    assert halvings, "no batch was halved"
    return f"{as_expected(found, expected, of=0)}; batches were halved {halvings} times"


def on_vllm() -> str:
    if importlib.util.find_spec("vllm") is None:
        raise NotRun("vLLM is not installed (make gpu)")
    reads = prompts(32)
    expected = apart(outputs, bundled(), reads)
    # Its kernels add in another order, which near ties show.
    return as_expected(apart(outputs, bundled(engine="vllm"), reads), expected, of=2)


def tensor_parallel(apart: Callable[..., Any] = apart) -> str:
    """Two GPUs hold a reader together: each adds up its half of the heads, and NCCL adds the halves."""
    if importlib.util.find_spec("vllm") is None:
        raise NotRun("vLLM is not installed (make gpu)")
    if len(apart(device.gpu_names)) < 2:
        raise NotRun("one GPU")
    reads = prompts(32)
    # Not in bf16: sums are rounded, a random model's next tokens are near ties, and each start takes long.
    with tempfile.TemporaryDirectory() as folder:
        one, two = (random_llama(Path(folder), "float32", gpus) for gpus in (1, 2))
        expected, found = apart(outputs, one, reads), apart(outputs, two, reads)
    assert len(set(expected)) > len(reads) / 2, "the reader answers everything alike"
    return as_expected(found, expected, of=2)


def dense_encoder() -> str:
    texts = [f"passage {i} of a few words " + "and more " * (i % 40) for i in range(200)]
    there, here = apart(vectors, texts), apart(vectors, texts, gpu=False)
    difference = float(np.abs(there - here).max())
    assert difference <= _VECTORS, f"vectors differ by {difference:.1e}"
    return f"200 vectors differ by {difference:.1e} at most"


def faiss_search() -> str:
    if not apart(flat.gpu_count):
        raise NotRun("this FAISS has no GPU code (make gpu)")
    assert apart(searched, "GPU").equals(apart(searched, "CPU")), "lists or scores differ"
    return "200 lists of 50 among 60,000 vectors are the same"


def search_on_actors() -> str:
    gpus = apart(flat.gpu_count)
    if gpus < 2:
        raise NotRun("one GPU" if gpus else "this FAISS has no GPU code (make gpu)")
    assert apart(searched, "actors").equals(apart(searched, "CPU")), "lists or scores differ"
    texts = [f"query {i} of a few words " + "and more " * (i % 9) for i in range(3000)]
    there, here = apart(query_vectors, texts, True), apart(query_vectors, texts, False)
    assert np.array_equal(there, here), "vectors of queries differ from those of one GPU"
    return f"the same lists, and vectors of 3,000 queries, on {gpus} GPUs"


def throughput() -> str:
    reads = prompts(256)
    spec = bundled(dtype=None)
    ours, theirs = apart(reads_a_second, spec, reads), apart(generated_a_second, spec, reads)
    told = f"{spec.dtype}, reads/s: own loops {ours:.1f}, generate in batches of 16 {theirs:.1f} "
    told += f"({ours / theirs:.2f})"
    if importlib.util.find_spec("vllm") is not None:
        on = apart(reads_a_second, bundled(dtype=None, engine="vllm"), reads)
        told += f", vLLM {on:.1f} ({on / theirs:.2f})"
    return told


CHECKS: dict[str, Callable[[], str]] = {
    "decoder-only reader, fp32, as on the CPU": decoder_only,
    "Fusion-in-Decoder, fp32, as on the CPU": fusion_in_decoder,
    "dense encoder, fp32, as on the CPU": dense_encoder,
    "a lack of memory halves batches": lack_of_memory,
    "vLLM, fp32, as our own loops": on_vllm,
    "vLLM on two GPUs (tensor parallelism), fp32, as on one": tensor_parallel,
    "exact search on a GPU, as on the CPU": faiss_search,
    "queries and search on an actor for each GPU, as in one process": search_on_actors,
    "throughput": throughput,
}


def run(checks: dict[str, Callable[[], str]]) -> Iterator[Row]:
    """Run the checks, whatever becomes of the one before."""
    for what, check in checks.items():
        start = time.perf_counter()
        try:
            told = check()
            outcome = "holds"
        except NotRun as reason:
            outcome, told = "not run", str(reason)
        except Exception as error:  # a check that fails must not hide the others
            outcome, told = "FAILS", f"{type(error).__name__}: {error}".split("\n")[0][:300]
        yield Row(what, outcome, f"{told} ({time.perf_counter() - start:.0f} s)")


def report(gpus: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """The report, in Markdown."""
    yield f"{date.today().isoformat()}, {', '.join(gpus)}, {', '.join(_versions())}"
    yield ""
    yield "| | | |"
    yield "| --- | --- | --- |"
    for row in rows:
        yield f"| {row.what} | {row.outcome} | {row.told.replace('|', '/')} |"


def _versions() -> Iterator[str]:
    yield f"Python {sys.version.split()[0]}"
    for package in ("torch", "transformers", "vllm", "faiss-gpu", "faiss-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            yield f"{package} {version(package)}"


def main(checks: dict[str, Callable[[], str]] = CHECKS, apart: Callable[..., Any] = apart) -> int:
    if not device.machine_has_gpu():
        print("There is no GPU on this machine: nothing was checked.")
        return 0
    if not (gpus := apart(device.gpu_names)):
        print(
            "There is a GPU, but torch cannot use it: install a CUDA build of torch (make gpu, which takes "
            "a CPU build away first) and an NVIDIA driver of version 580 or later."
        )
        return 1
    start = time.perf_counter()
    rows: list[Row] = []
    for line in report(gpus, (rows.append(row) or row for row in run(checks))):
        print(line, flush=True)
    print(f"\nAll of it took {time.perf_counter() - start:.0f} s.")
    return int(any(row.outcome == "FAILS" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
