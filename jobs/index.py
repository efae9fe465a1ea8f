"""``erag index``: make a corpus searchable."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from engine.retrieval.bm25 import build_index
from engine.sources.corpus import read_corpus
from engine.sources.files import require_output
from jobs._command import ConfigFile, run_app

app = App(name="index", help="Build an index of a corpus.")


@app.command
def bm25(*, corpus: Path, out: Path, config: ConfigFile = None) -> None:
    """Index a corpus for BM25 with Lucene.

    Parameters
    ----------
    corpus
        The passages: Parquet, or JSONL with doc_id, title and text.
    out
        Directory of the index; an index that stands there is replaced.
    """
    require_output(out, directory=True)
    index = build_index(read_corpus(corpus), out)
    print(f"{index.passages} passages indexed -> {out}")


if __name__ == "__main__":
    run_app(app)
