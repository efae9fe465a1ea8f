"""Reads per second of the decoder-only reader against transformers' own ``generate``.

    python -m benchmarks.reading [--reads 96] [--batch 16] [--threads 2] [--json FILE]

Both read the same prompts (demo questions with one passage each) with the same weights, precision
and threads in one process, in turn. The peer is what one writes first: batches of a fixed size in
the order of arrival, padded, stopped at the end of the line. Equality first: in fp32 the outputs
must be the same; in bf16 the share that differs is printed.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.reading.causal import CausalReader
from engine.reading.prompts import default_prompt
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import specify
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.passages import passages, read_source
from engine.sources.queries import read_queries


def make_prompts(count: int) -> list[str]:
    """Prompts of demo questions, each with one passage; passages taken over the whole corpus."""
    corpus = passages(read_source(wikipedia_dump()))
    queries = read_queries(questions("short-answer"))["query"].to_list()
    prompt = default_prompt("short-answer", "causal", "in-prompt")
    step = corpus.height // count
    rows = corpus.select("title", "text").rows()
    return [prompt.render(queries[i % len(queries)], [rows[i * step]])[0] for i in range(count)]


def peer(spec: ReaderSpec, batch: int) -> Callable[[list[str]], list[str]]:
    """Batched ``generate`` with left padding and a stop at the line's end."""
    tokenizer = AutoTokenizer.from_pretrained(spec.path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(spec.path, dtype=getattr(torch, spec.dtype)).eval()

    def read(prompts: list[str]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(prompts), batch):
            ids = tokenizer(prompts[start : start + batch], return_tensors="pt", padding=True)
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


def ours(spec: ReaderSpec) -> Callable[[list[str]], list[str]]:
    reader = CausalReader(spec)
    return lambda prompts: [r.output for r in reader.read([[prompt] for prompt in prompts])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reads", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16, help="of the peer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="each is timed so often, in turn")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    prompts = make_prompts(arguments.reads)
    spec, _ = specify("bundled", augmentation="in-prompt", task="short-answer")
    exact = replace(spec, dtype="float32", threads=arguments.threads)
    sample = prompts[:24]
    if ours(exact)(sample) != peer(exact, arguments.batch)(sample):
        raise SystemExit("outputs differ from generate's in fp32")

    spec = replace(spec, threads=arguments.threads)
    sides = {"transformers generate": peer(spec, arguments.batch), "engine": ours(spec)}
    best = dict.fromkeys(sides, float("inf"))
    outputs: dict[str, list[str]] = {}
    for read in sides.values():
        read(prompts[:4])
    for _ in range(arguments.rounds):
        for name, read in sides.items():
            start = time.perf_counter()
            outputs[name] = read(prompts)
            best[name] = min(best[name], time.perf_counter() - start)
    differing = sum(a != b for a, b in zip(*outputs.values(), strict=True)) / len(prompts)

    base = best["transformers generate"]
    print(f"{'':24}{'reads/s':>8}{'ratio':>7}   ({spec.dtype}, {arguments.threads} threads)")
    for name, seconds in best.items():
        print(f"{name:24}{len(prompts) / seconds:8.2f}{base / seconds:7.2f}")
    print(f"outputs equal in fp32 on {len(sample)} reads; in {spec.dtype} {differing:.1%} differ")
    if arguments.json:
        report: dict[str, Any] = {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "machine": platform.processor() or platform.machine(),
            "options": {k: str(v) for k, v in vars(arguments).items()},
            "dtype": spec.dtype,
            "reads_per_second": {n: len(prompts) / s for n, s in best.items()},
            "ratio": base / best["engine"],
            "differing": differing,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
