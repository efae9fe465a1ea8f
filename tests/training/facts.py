"""A made-up task that a tiny reader learns: which passage is about what is asked, and what it says."""

import json
import random
from pathlib import Path

import polars as pl

from engine import tables
from engine.tables import DOC_IDS, QUERY_ID
from engine.training.examples import Readings
from engine.training.settings import Recipe

NAMES = [f"n{i}" for i in range(8)]
VALUES = [f"v{i}" for i in range(8)]
# What Fusion-in-Decoder's prompt has beside the data.
FRAME = ["question:", "context:", "title:"]
RECIPE = Recipe(
    k=3, batch=32, learning_rate=3e-3, epochs=6, weight_decay=0.0, precision="float32", seed=1
)


def save_start(directory: Path, *, weights: bool = False, dropout: float = 0.0) -> Path:
    """A tokenizer of words, and the configuration of a T5 of 2 layers with width 64; with weights, if asked."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    words = ["<pad>", "</s>", "<unk>", *FRAME, *NAMES, *VALUES]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)
    config = T5Config(
        vocab_size=len(words),
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=dropout,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        initializer_factor=1.0,
    )
    config.architectures = ["T5ForConditionalGeneration"]
    config.save_pretrained(directory)
    if weights:
        import torch

        torch.manual_seed(3)
        T5ForConditionalGeneration(config).save_pretrained(directory)
    return directory


def facts(count: int, seed: int, passages: int = 3) -> Readings:
    """Queries that name something, with passages of which one says its value, in any place."""
    source = random.Random(seed)
    queries, lists, corpus = [], [], []
    for number in range(count):
        names = source.sample(NAMES, passages)
        values = [source.choice(VALUES) for _ in names]
        right = source.randrange(passages)
        doc_ids = [f"{seed}-{number}-{place}" for place in range(passages)]
        corpus += [
            (doc_id, "", f"{name} {value}", doc_id)
            for doc_id, name, value in zip(doc_ids, names, values, strict=True)
        ]
        # No query is like another, as of real ones; the tokenizer knows the name alone.
        query = f"{names[right]} {seed}-{number}"
        queries.append((f"{seed}-{number}", query, [values[right]], []))
        lists.append((f"{seed}-{number}", doc_ids))
    return Readings(
        pl.DataFrame(queries, schema=tables.QUERIES, orient="row"),
        pl.DataFrame(
            lists, schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)}, orient="row"
        ),
        pl.DataFrame(corpus, schema=tables.CORPUS, orient="row"),
    )


def write_files(readings: Readings, folder: Path, name: str) -> dict[str, Path]:
    """The files of a command: queries, run and corpus."""
    paths = {kind: folder / f"{name}.{kind}" for kind in ("queries", "run", "corpus")}
    with paths["queries"].open("w") as queries:
        for query_id, query, answers, _ in readings.queries.iter_rows():
            output = [{"answer": answer} for answer in answers]
            queries.write(json.dumps({"id": query_id, "input": query, "output": output}) + "\n")
    with paths["run"].open("w") as run:
        for query_id, doc_ids in readings.lists.iter_rows():
            for rank, doc_id in enumerate(doc_ids, 1):
                run.write(f"{query_id} Q0 {doc_id} {rank} {10 - rank} facts\n")
    paths["corpus"] = paths["corpus"].with_suffix(".jsonl")
    with paths["corpus"].open("w") as corpus:
        for doc_id, title, text, _ in readings.corpus.iter_rows():
            corpus.write(json.dumps({"id": doc_id, "title": title, "text": text}) + "\n")
    return paths
