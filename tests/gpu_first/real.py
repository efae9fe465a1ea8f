"""Stage real: the bundled Fusion-in-Decoder reader, whose weights travel in the tree, reads questions of the demo.

``real.json`` has its outputs in fp32 on a CPU, written by ``python -m tests.gpu_first.real``; ``make test`` makes them
anew and compares. The articles have a licence of their own: the reads are made where these are installed, and carried
to where they are not (``tests.gpu_first.pieces``).
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.machine.device import Dtype
from engine.messages.errors import InputError
from engine.reading import readers
from engine.reading.prompting.prompts import Prompt
from engine.reading.protocol import ReaderSpec
from engine.scoring.metrics import exact_match
from engine.sources.articles.read import Article
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.queries.read import read_queries
from engine.tables import ANSWERS, QUERY, TEXT, TITLE
from tests.gpu_first import models
from tests.gpu_first.bare import within
from tests.gpu_first.checks import Check, NotRun, alike
from tests.gpu_first.scale import GIB, Scale

EXPECTED = Path(__file__).with_name("real.json")
CARRIED = "demo-reads.json"
# Questions of which the three best passages are read alone, and those of which the ten best are read together.
ALONE, FUSED, K = 82, 10, 10
# Tiny, one read of so many is done.
_EVERY = 32
# Of outputs: as many are the CPU's in fp32 at least. On a CPU 254 of 256 are in bf16, and all in fp16.
_LEAST = {"bfloat16": 0.9, "float16": 0.9}


def specified(dtype: Dtype, memory: int = 0) -> tuple[ReaderSpec, Prompt]:
    """The reader as an evaluation specifies it."""
    return readers.specify(
        "bundled-fid", augmentation="fid", task="short-answer", dtype=dtype, memory=memory
    )


def made(articles: Iterable[Article] | None = None) -> models.Reads:
    """256 reads of the demo's questions: of 82 the three best passages alone, of ten the ten best together.

    Passages are ordered by the words that they share with the question, weighted by how rare these are.

    Args:
        articles: the bundled ones, where they are read already.

    Raises:
        InputError: the articles are not installed.
    """
    from engine.sources.articles.read import read_source
    from engine.sources.passages.cut import passages

    corpus = passages(articles or read_source(wikipedia_dump())).select(TITLE, TEXT).rows()
    words = [set(re.findall(r"\w+", f"{title} {text}".lower())) for title, text in corpus]
    rare = Counter(word for some in words for word in some)
    _, prompt = specified("float32")
    best: list[list[str]] = []
    for question in read_queries(questions("short-answer"))[QUERY][:ALONE]:
        asked = set(re.findall(r"\w+", question.lower()))
        scores = [
            sum(math.log(len(words) / rare[w]) for w in sorted(asked & some)) for some in words
        ]
        order = sorted(range(len(corpus)), key=lambda place: (-scores[place], place))[:K]
        best.append(prompt.render(question, [corpus[place] for place in order]))
    return [[read[rank]] for rank in range(3) for read in best] + best[:FUSED]


@functools.cache
def reads() -> models.Reads:
    """The reads as they were carried here, else made.

    Raises:
        NotRun: they are neither.
    """
    for folder in sys.path:
        if (carried := Path(folder) / CARRIED).is_file():
            found: models.Reads = json.loads(carried.read_text(encoding="utf-8"))
            return found
    try:
        return made()
    except InputError as error:
        raise NotRun(f"{CARRIED} was not carried here, and {error}") from None


def right(outputs: Sequence[str]) -> float:
    """Exact match with the questions' answers."""
    answers = read_queries(questions("short-answer"))[ANSWERS][:ALONE].to_list()
    asked = [*answers * 3, *answers[:FUSED]]
    asked = asked[:: len(asked) // len(outputs)]
    scores = [exact_match(one, right) for one, right in zip(outputs, asked, strict=True)]
    return round(sum(scores) / len(scores), 4)


def in_precision(dtype: Dtype, scale: Scale, figures: dict[str, Any], memory: int = 0) -> str:
    """Outputs beside the CPU's in fp32, how many answers are right, reads/s, and the peak."""
    every = 1 if scale.gpu else _EVERY
    kept = json.loads(EXPECTED.read_text(encoding="utf-8"))[::every]
    some = reads()[::every]
    spec, _ = specified(dtype, memory)
    models.free_all()
    reader: Any = readers.load(spec)
    outputs = models.written(reader.read(some))
    figures["reads_a_second"] = round(models.timed(reader.read, some, warm=0), 1)
    figures |= {"exact_match": right(outputs), "exact_match_on_cpu": right(kept)}
    within(memory, figures, reader)
    del reader
    models.free_all()
    gaps = partial(models.gaps, replace(spec, dtype="float32"), some)
    figures["alike"] = alike(outputs, kept, gaps=gaps, share=_LEAST.get(dtype, 1.0))
    return (
        f"{figures['alike']}; exact match {figures['exact_match']}, on the CPU {figures['exact_match_on_cpu']}; "
        f"{figures['reads_a_second']} reads/s; {figures['reserved_mib']} MiB reserved"
    )


CHECKS: dict[str, Check] = {
    "bundled-fid in fp32, as on the CPU": partial(in_precision, "float32"),
    "bundled-fid in bf16": partial(in_precision, "bfloat16"),
    "bundled-fid in fp16": partial(in_precision, "float16"),
    "bundled-fid in fp32, --memory 1GiB": partial(in_precision, "float32", memory=GIB),
}


if __name__ == "__main__":
    with models.on_the_cpu():
        kept = models.written(readers.load(specified("float32")[0]).read(made()))
    EXPECTED.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
