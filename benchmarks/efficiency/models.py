"""The models of ``benchmarks.efficiency`` and their texts.

T5-small- and T5-base-shaped models have random weights: their outputs mean nothing, but they cost as much as
real weights of the same size. Their tokenizer is trained on the bundled articles. The other models, the bundled
readers and the user's own, are used unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

from benchmarks.efficiency.grid import SHAPES, Cell, Conditions, Shape
from engine.messages.errors import InputError
from engine.reading.prompting.prompts import Prompt
from engine.reading.protocol import Augmentation, Reader, ReaderSpec
from engine.reading.readers import specify
from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.queries.read import read_queries

ARTICLES = "articles.txt"  # in the folder that cells get
# Characters of the bundled articles: enough for the grid's largest cell, 40,000 tokens for each of two queries;
# and characters per token, if the user's cells are larger.
_CHARACTERS, _OF_A_TOKEN = 800_000, 6
# Characters of the tokenizers' training text, and size of their vocabulary.
_TRAINED_ON, _VOCABULARY = 400_000, 8000
TOKENS = 32128  # of the models
# Encoder-decoder readers cut inputs at 512 tokens, and at 250 in Fusion-in-Decoder. Here nothing is cut.
_UNCUT = 10**6
_PER_TOKEN = 12  # characters of text per token to take: more than tokens have


class Subject(NamedTuple):
    """A model with an augmentation: the model and prompt that a cell's process loads.

    The cell sets the length of answers.
    """

    spec: ReaderSpec
    prompt: Prompt


class Sample(NamedTuple):
    """The texts of the two methods for the same queries: whole lists, and their single passages."""

    lists: list[list[str]]
    singles: list[list[str]]


def articles(tokens: int) -> str:
    """The text of the bundled articles, one line each, up to some length: longer for cells of more ``tokens``."""
    least = max(_CHARACTERS, _OF_A_TOKEN * tokens)
    texts: list[str] = []
    for article in read_source(wikipedia_dump()):
        texts.append(" ".join(article.text.split()))
        if sum(map(len, texts)) > least:
            break
    return "\n".join(texts)


def make_subject(
    name: str, augmentation: Augmentation, folder: Path, conditions: Conditions
) -> Subject:
    """A model of the grid, made in ``folder`` (which has ``ARTICLES``) unless it exists."""
    logging.disable_progress_bar()
    shape = SHAPES[name]
    path = shape.path or name
    if not shape.reads:
        directory = folder / name
        if not directory.exists():
            text = (folder / ARTICLES).read_text(encoding="utf-8")[:_TRAINED_ON]
            make_model(directory, text.split("\n"), _VOCABULARY, shape)
        path = str(directory)
    spec, prompt = as_evaluated(path, augmentation, conditions)
    spec = replace(
        spec,
        name=name,
        stop=(),  # answers of all ways have the same length
        max_input_tokens=_UNCUT if shape.architecture == "encoder-decoder" else 0,
    )
    return Subject(spec, prompt)


def make_model(directory: Path, texts: list[str], vocabulary: int, shape: Shape) -> None:
    """A random model of a shape, and a tokenizer trained on texts."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The model has more tokens than the texts yield; without texts of their own, the rest would all decode alike.
    pieces = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    least = min(score for _, score in pieces) - 100
    pieces += [(f"\u2581\u27e8{i}\u27e9", least) for i in range(len(pieces), TOKENS)]
    tokenizer.model = models.Unigram(pieces, unk_id=2)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(directory)
    torch.manual_seed(0)
    # Weights of the usual scale give a random model the same output for all inputs; these do not.
    config = T5Config(
        vocab_size=TOKENS, decoder_start_token_id=0, initializer_factor=2.0, **_sizes(shape)
    )
    T5ForConditionalGeneration(config).save_pretrained(directory)


def as_evaluated(name: str, augmentation: Augmentation, conditions: Conditions) -> Subject:
    """A trained reader, with the answer length of an evaluation."""
    spec, prompt = specify(
        name, augmentation=augmentation, task="short-answer", dtype=conditions.dtype
    )
    spec = replace(spec, threads=conditions.threads, memory=conditions.memory)
    return Subject(spec, prompt)


def _sizes(shape: Shape) -> dict[str, int]:
    return {
        "d_model": shape.hidden,
        "d_kv": shape.inner // shape.heads,
        "num_heads": shape.heads,
        "d_ff": shape.feed_forward,
        "num_layers": shape.layers,
    }


def load(spec: ReaderSpec) -> Reader:
    """The engine's reader, without ``readers.load``'s check of the model's digest."""
    reader: CausalReader | EncoderDecoderReader
    if spec.architecture == "causal":
        from engine.reading.models.causal import CausalReader

        reader = CausalReader(spec)
    else:
        from engine.reading.models.encoder_decoder import EncoderDecoderReader

        reader = EncoderDecoderReader(spec)
    reader.prepare()
    return reader


def sample(cell: Cell, subject: Subject, folder: Path, tokenizer: Any, queries: int) -> Sample:
    """Lists of ``k`` passages of ``length`` tokens each, all different, for the first queries.

    Raises:
        InputError: the bundled articles or questions are too few.
    """
    asked = read_queries(questions("short-answer"))["query"].to_list()[:queries]
    text = (folder / ARTICLES).read_text(encoding="utf-8")
    texts = passages(text, cell.length, queries * cell.k, tokenizer)
    if len(texts) < queries * cell.k or len(asked) < queries:
        raise InputError(
            f"the bundled data has no {queries} lists of {cell.k} passages of {cell.length} tokens",
            "give smaller `k` or `lengths`",
            "replay.lists",
        )
    render: Callable[..., list[str]] = subject.prompt.render
    lists, singles = [], []
    for i, query in enumerate(asked):
        own = [("", passage) for passage in texts[i * cell.k : (i + 1) * cell.k]]
        lists.append(render(query, own))
        singles += [render(query, [passage]) for passage in own]
    return Sample(lists, singles)


def passages(text: str, length: int, count: int, tokenizer: Any) -> list[str]:
    """The first passages of ``length`` tokens of a text; fewer than ``count`` if it is too short."""
    some = text[: count * length * _PER_TOKEN]
    tokens: list[int] = tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
    whole = min(count, len(tokens) // length)
    return [tokenizer.decode(tokens[i * length : (i + 1) * length]) for i in range(whole)]
