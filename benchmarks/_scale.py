"""How a dense index grows: synthetic articles, streamed as passages through a tiny encoder into flat search."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from engine.retrieval import dense, index_shards
from engine.retrieval.encoders import EncoderOptions, specify
from engine.sources.articles.article import Article
from engine.sources.passages.cut import passages
from engine.sources.passages.splitting import Cutting
from engine.tables import DOC_ID, QUERY, QUERY_ID, TEXT

_WORDS = 200
_PASSAGE_WORDS = 12
_BATCH = 20_000
_QUERIES = 100
_DEPTH = 10


def measure(sizes: list[int]) -> Iterator[dict[str, float]]:
    """A row for each number of passages, each in a separate process: the peak is the process's.

    Columns: ``passages``, ``corpus_bytes`` (of the texts), ``index_bytes`` (on disk), ``peak_bytes``
    (resident), and ``build_seconds`` and ``search_seconds`` of CPU time, which other work on the machine
    changes less than the time on the wall.
    """
    with tempfile.TemporaryDirectory(prefix="erag-scale-") as folder:
        encoder = save_tiny_encoder(Path(folder, "encoder"))
        context = multiprocessing.get_context("spawn")
        for size in sizes:
            with context.Pool(1) as pool:
                yield pool.apply(_one, (size, str(encoder), str(Path(folder, str(size)))))


def _one(size: int, encoder: str, directory: str) -> dict[str, float]:
    spec = specify(EncoderOptions(encoder, preset="mean", dtype="float32"), threads=1)
    in_process = dense.IndexOptions(actors=0)
    # What the first build of a process imports and sets up is not a cost of its passages.
    dense.build_index(lambda: synthetic(index_shards.SHARD), f"{directory}-warm", spec, in_process)
    start = time.process_time()
    dense.build_index(lambda: synthetic(size), directory, spec, in_process)
    built = time.process_time()
    queries = next(synthetic(_QUERIES, seed=1)).select(
        pl.col(DOC_ID).alias(QUERY_ID), pl.col(TEXT).alias(QUERY)
    )
    run = dense.search(directory, queries, dense.SearchOptions(k=_DEPTH, threads=1))
    searched = time.process_time()
    assert run.height == _QUERIES * _DEPTH
    texts = sum(int(batch[TEXT].str.len_bytes().sum()) for batch in synthetic(size))
    return {
        "passages": size,
        "corpus_bytes": texts,
        "index_bytes": sum(f.stat().st_size for f in Path(directory).rglob("*") if f.is_file()),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "build_seconds": built - start,
        "search_seconds": searched - built,
    }


def synthetic(size: int, *, seed: int = 0) -> Iterator[pl.DataFrame]:
    """Batches of the corpus table: ``size`` passages of 12 random words, cut from articles of ten."""
    vocabulary = np.array([f"w{i}" for i in range(_WORDS)])
    cutting = Cutting(words=_PASSAGE_WORDS)
    for start in range(0, size, _BATCH):
        count = min(_BATCH, size - start)
        draw = np.random.default_rng([seed, start])
        words = vocabulary[draw.integers(_WORDS, size=(count, _PASSAGE_WORDS))].reshape(-1)
        length = 10 * _PASSAGE_WORDS
        texts = [" ".join(words[at : at + length]) for at in range(0, len(words), length)]
        yield passages(
            (Article(f"{start}-{i}", "", text) for i, text in enumerate(texts)), cutting=cutting
        )


def save_tiny_encoder(directory: Path) -> Path:
    """A randomly initialised BERT of one layer and 64 dimensions with a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(_WORDS))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    torch.manual_seed(7)
    config: Any = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
