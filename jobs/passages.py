"""``erag passages``: cut a source of articles into passages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.errors import InputError
from engine.sources.files import require_output, write_parquet
from engine.sources.passages import passages as cut_passages
from engine.sources.passages import read_source
from jobs._command import ConfigFile, run_command


def passages(
    source: Path,
    *,
    out: Path,
    words: int = 100,
    article_id: Literal["title", "page"] = "title",
    config: ConfigFile = None,
) -> None:
    """Cut articles into passages and write them as a corpus.

    Parameters
    ----------
    source
        A MediaWiki dump (.xml or .xml.bz2), or JSONL articles with id, title and text.
    out
        The corpus to write (.parquet).
    words
        Words per passage at most.
    article_id
        What identifies an article in provenance: its title or its page id.
    """
    if words < 1:
        raise InputError(None, None, f"--words is {words}", "use 1 or more")
    if out.suffix != ".parquet":
        raise InputError(
            out, None, "a corpus is written as Parquet", "give a name that ends in .parquet"
        )
    require_output(out, directory=False)
    corpus = cut_passages(read_source(source), words=words, article_id=article_id)
    if corpus.is_empty():
        raise InputError(source, None, "holds no article with text", "give another source")
    write_parquet(corpus, out)
    print(f"{corpus.height} passages of {corpus['article_id'].n_unique()} articles -> {out}")


if __name__ == "__main__":
    run_command(passages)
