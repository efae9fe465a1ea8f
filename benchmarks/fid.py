"""Fusion-in-Decoder and eRAG's single reads on one encoder pass, against transformers' ``generate``.

    python -m benchmarks.fid [--queries 3] [--passages 50] [--answer-tokens 5,16] [--threads 2]
                             [--data DIR] [--json FILE]

No T5 checkpoint comes with the engine, so the model has the shape of T5-small with random weights,
and a tokenizer trained on the passages; both are made in a temporary directory. Such a model never
ends an answer, so every answer has as many tokens as ``--answer-tokens`` says: 5 is about what short
answers have, 16 is the most that they may have. Passages are the demo's, or with ``--data`` those of a
directory with ``queries.jsonl`` and ``corpus.jsonl`` in KILT format.

Timed in turn, in one process: the fused read of every query alone (end-to-end evaluation), the single
reads alone (eRAG), both in one call, and the fused reads by ``generate`` on the encodings of each
query's passages as one padded batch. Equality first: in fp32 all outputs must be ``generate``'s.

Floor and expectation: every input token has to go through the encoder and the decoder's
cross-attention projections once, 2 operations for each of their weights; at the rate of the matrix
products of the feed-forward layer, measured in the same run, that is the least that a fused read can
take. What it takes above it: attention, norms, one weight pass for every token that is decoded. The
single reads decode k answers more but encode nothing, so both together should take no more than 1.25
times the fused reads alone, and at most 1 / 1.6 of both apart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from benchmarks._bundled import bundled_corpus
from benchmarks._harness import Line, in_turn, make_parser, write_report
from benchmarks._single import default_prompt
from engine.machine import model_files
from engine.machine.device import best_dtype
from engine.reading.models.encoder_decoder import CPU_CHUNK_TOKENS, EncoderDecoderReader
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import FID_INPUT_TOKENS
from engine.sources.bundled import questions
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries

Read = list[str]
SMALL = {"d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 2048, "num_layers": 6}
VOCABULARY = 32128


def make_inputs(queries: int, count: int, data: Path | None) -> list[Read]:
    """The inputs of a fused read for each of the first queries, passages in turn from the corpus."""
    corpus = read_corpus(data / "corpus.jsonl") if data else bundled_corpus()
    texts = read_queries(data / "queries.jsonl" if data else questions("short-answer"))["query"]
    prompt = default_prompt("short-answer", "encoder-decoder", "fid")
    rows = corpus.select("title", "text").rows()
    return [
        prompt.render(texts[i], [rows[(i * count + j) % len(rows)] for j in range(count)])
        for i in range(queries)
    ]


def make_model(
    directory: Path, texts: list[str], vocabulary: int, shape: Mapping[str, int] = SMALL
) -> None:
    """A random model of T5-small's shape, or another, and a tokenizer trained on texts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The model has more tokens than the passages give; without a text they would all read alike.
    pieces = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    least = min(score for _, score in pieces) - 100
    pieces += [(f"\u2581\u27e8{i}\u27e9", least) for i in range(len(pieces), VOCABULARY)]
    tokenizer.model = models.Unigram(pieces, unk_id=2)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)
    torch.manual_seed(0)
    # Weights of usual size make a random model say one thing to everything; these do not.
    config = T5Config(
        vocab_size=VOCABULARY, decoder_start_token_id=0, initializer_factor=2.0, **shape
    )
    T5ForConditionalGeneration(config).save_pretrained(directory)


def peer(spec: ReaderSpec) -> Callable[[list[Read]], list[str]]:
    """Fusion-in-Decoder by ``generate``: a read's inputs are one padded encoder batch."""
    tokenizer = AutoTokenizer.from_pretrained(spec.path, trust_remote_code=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(
        spec.path, dtype=getattr(torch, spec.dtype), trust_remote_code=False
    ).eval()

    @torch.inference_mode()
    def read(reads: list[Read]) -> list[str]:
        texts: list[str] = []
        for inputs in reads:
            batch = tokenizer(
                inputs,
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=spec.max_input_tokens,
            )
            states = model.get_encoder()(**batch).last_hidden_state
            out = model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states.flatten(0, 1)[None]),
                attention_mask=batch["attention_mask"].flatten()[None],
                max_new_tokens=spec.max_new_tokens,
                do_sample=False,
            )
            texts.append(tokenizer.decode(out[0], skip_special_tokens=True).strip())
        return texts

    return read


def ours(spec: ReaderSpec) -> tuple[Callable[[list[Read]], list[str]], EncoderDecoderReader]:
    reader = EncoderDecoderReader(spec)
    return lambda reads: [result.output for result in reader.read(reads)], reader


def product_rate(dtype: torch.dtype, clock: Callable[[], float]) -> float:
    """Operations per second of the feed-forward layer's products, the best of 20."""
    layer = torch.nn.Linear(SMALL["d_model"], SMALL["d_ff"], bias=False, dtype=dtype)
    states = torch.randn(CPU_CHUNK_TOKENS, SMALL["d_model"], dtype=dtype)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(20):
            start = clock()
            layer(states)
            best = min(best, clock() - start)
    return 2 * CPU_CHUNK_TOKENS * layer.weight.numel() / best


def encoder_weights() -> int:
    """Weights that every input token is multiplied with."""
    inner = SMALL["num_heads"] * SMALL["d_kv"]
    attention, feed_forward = 4 * SMALL["d_model"] * inner, 2 * SMALL["d_model"] * SMALL["d_ff"]
    cross = 2 * SMALL["d_model"] * inner
    return SMALL["num_layers"] * (attention + feed_forward + cross)


def main(options: Sequence[str] | None = None) -> None:
    quick = {"queries": 1, "passages": 10, "answer_tokens": "5", "rounds": 1}
    parser = make_parser(__doc__, rounds=3, quick=quick)
    parser.add_argument("--queries", type=int, default=3)
    parser.add_argument("--passages", type=int, default=50, help="of each query")
    parser.add_argument("--answer-tokens", default="5,16")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of the tokenizer")
    # Products in bf16 take minutes where the processor has none.
    dtype = "bfloat16" if best_dtype() == "bfloat16" else "float32"
    parser.add_argument("--dtype", default=dtype, choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: time of all threads together"
    )
    parser.add_argument("--data", type=Path, help="with queries.jsonl and corpus.jsonl")
    arguments = parser.parse_args(options)
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time

    fused = make_inputs(arguments.queries, arguments.passages, arguments.data)
    single = [[text] for inputs in fused for text in inputs]
    together = [read for inputs in fused for read in [inputs, *([text] for text in inputs)]]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_model(directory, [text for inputs in fused for text in inputs], arguments.vocabulary)
        spec = ReaderSpec(
            weights="random",
            architecture="encoder-decoder",
            dtype=arguments.dtype,
            max_new_tokens=16,
            stop=(),
            max_input_tokens=FID_INPUT_TOKENS,
            path=str(directory),
            parameters=model_files.parameters(directory),
            name="random T5-small",
            threads=arguments.threads,
        )
        sample = [inputs[:5] for inputs in fused[:2]]
        sample += [[text] for inputs in sample for text in inputs]
        exact = replace(spec, dtype="float32")
        expected = peer(exact)(sample)
        if ours(exact)[0](sample) != expected:
            raise SystemExit("outputs differ from generate's in fp32")
        print(f"outputs equal in fp32 on {len(sample)} reads, {len(set(expected))} different ones")
        reports = {
            tokens: measure(
                replace(spec, max_new_tokens=tokens),
                fused,
                single,
                together,
                arguments.rounds,
                clock,
            )
            for tokens in map(int, arguments.answer_tokens.split(","))
        }
    rate = product_rate(getattr(torch, arguments.dtype), clock)
    for tokens, report in reports.items():
        show(tokens, report, rate, fused, arguments)
    figures = {"products_per_second": rate, "answer_tokens": reports}
    page = [line for tokens, report in reports.items() for line in _page(tokens, report)]
    write_report(arguments, ("torch", "transformers"), figures, page)


def _page(tokens: int, report: dict[str, Any]) -> list[Line]:
    seconds = report["seconds"]
    apart = seconds["fused"] + seconds["single"]
    answers = f"answers of {tokens} tokens"
    return [
        Line(
            f"{answers}: fused, generate to engine", f"{seconds['generate'] / seconds['fused']:.2f}"
        ),
        Line(
            f"{answers}: two calls to one",
            f"{apart / seconds['together']:.2f}",
            "1.6 and more",
        ),
        Line(
            f"{answers}: single and fused to fused alone",
            f"{seconds['together'] / seconds['fused']:.2f}",
            "1.25 and less",
        ),
    ]


def measure(
    spec: ReaderSpec,
    fused: list[Read],
    single: list[Read],
    together: list[Read],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Seconds of each way, the best of all rounds, and the input tokens of the fused reads."""
    read, reader = ours(spec)
    generate = peer(spec)
    sides: dict[str, Callable[[], list[str]]] = {
        "fused": lambda: read(fused),
        "single": lambda: read(single),
        "together": lambda: read(together),
        "generate": lambda: generate(fused),
    }
    tokens = sum(result.prompt_tokens for result in reader.read(fused))
    timings = in_turn(sides, rounds, clock=clock)
    outputs: dict[str, list[str]] = {name: timing.result for name, timing in timings.items()}
    one_call = dict(zip(map(tuple, together), outputs["together"], strict=True))
    apart = dict(zip(map(tuple, fused + single), outputs["fused"] + outputs["single"], strict=True))
    return {
        "seconds": {name: timing.best for name, timing in timings.items()},
        "tokens": tokens,
        "changed_by_the_call": sum(one_call[key] != apart[key] for key in apart),
        "unlike_generate": sum(
            a != b for a, b in zip(outputs["fused"], outputs["generate"], strict=True)
        ),
    }


def show(
    tokens: int,
    report: dict[str, Any],
    rate: float,
    fused: list[Read],
    arguments: argparse.Namespace,
) -> None:
    seconds, queries = report["seconds"], len(fused)
    reads = queries * (arguments.passages + 1)
    apart = seconds["fused"] + seconds["single"]
    floor = 2 * report["tokens"] * encoder_weights() / rate
    mean = report["tokens"] / (queries * arguments.passages)
    report["floor_seconds"] = floor
    print(
        f"\nanswers of {tokens} tokens: {queries} queries, {arguments.passages} passages each, "
        f"{mean:.0f} tokens a passage ({arguments.dtype}, {arguments.threads} threads)"
    )
    print(f"{'':32}{'s/query':>9}{'reads/s':>9}{'of fused':>9}")
    rows = [
        ("fused, transformers generate", seconds["generate"], queries),
        ("fused (end-to-end)", seconds["fused"], queries),
        ("single (eRAG)", seconds["single"], reads - queries),
        ("both, in two calls", apart, reads),
        ("both, in one call", seconds["together"], reads),
    ]
    for name, taken, count in rows:
        ratio = taken / seconds["fused"]
        print(f"{name:32}{taken / queries:9.3f}{count / taken:9.2f}{ratio:9.2f}")
    print(
        f"one call against two: {apart / seconds['together']:.2f} times as fast; encoder floor "
        f"{floor / queries:.3f} s/query at {rate / 1e9:.0f} GFLOP/s, "
        f"{floor / seconds['fused']:.0%} of the fused read"
    )
    print(
        f"outputs that the call changes: {report['changed_by_the_call']} of {reads}; fused outputs "
        f"unlike generate's in {arguments.dtype}: {report['unlike_generate']} of {queries}"
    )


if __name__ == "__main__":
    main()
