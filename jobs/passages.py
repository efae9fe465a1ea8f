"""``erag passages``: cut sources of articles into passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.errors import InputError
from engine.sources.io.files import require_output
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.cut import ArticleId
from engine.sources.passages.splitting import Cutting
from engine.sources.passages.write import write_passages
from engine.wording import counted
from jobs._command import ConfigFile, run_command

# Names that no one means a directory by.
_OTHER_FILES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".gz", ".bz2")


def passages(
    source: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    *,
    out: Path,
    words: int | None = None,
    characters: int | None = None,
    overlap: int | None = None,
    article_id: ArticleId | None = None,
    skip_bad: int = 0,
    workers: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Cut articles into passages and write them as a corpus.

    Parameters
    ----------
    source
        Articles: MediaWiki dumps, KILT's knowledge source, JSONL, Parquet, BEIR or SQuAD
        (docs/formats.md), packed or not; files, directories, or addresses like s3://….
    out
        The corpus to write: a .parquet file, or a new directory for shards of a million passages.
    words
        Words per passage at most; 100 by default.
    characters
        Cut recursively into so many characters at most instead.
    overlap
        Characters that a passage may share with the one before it; 20 by default.
    article_id
        What identifies an article in provenance: its title or its page id. By default what the source
        says: KILT's are page ids, all others titles.
    skip_bad
        Leave out up to so many bad records, and count them.
    workers
        Processes; by default as many as there are CPUs.
    """
    for option, number, least in (("--skip-bad", skip_bad, 0), ("--workers", workers, 1)):
        if number is not None and number < least:
            raise InputError(None, None, f"{option} is {number}", f"use {least} or more")
    cutting = _cutting(words, characters, overlap)
    if out.suffix in _OTHER_FILES:
        raise InputError(
            out,
            None,
            "a corpus is written as Parquet",
            "give a name that ends in .parquet, or a directory",
        )
    require_output(out, directory=out.suffix != ".parquet")
    skip = SkipBad(skip_bad)
    done = write_passages(
        source, out, cutting=cutting, article_id=article_id, workers=workers, skip_bad=skip
    )
    files = f" ({done.files} files)" if done.files > 1 else ""
    print(
        f"{counted(done.passages, 'passage[|s]')} of {counted(done.articles, 'article[|s]')} -> {out}{files}"
    )
    if done.empty:
        print(f"{counted(done.empty, 'article[|s]')} without text left out")
    if skip.count:
        print(skip.described())


def _cutting(words: int | None, characters: int | None, overlap: int | None) -> Cutting:
    if words is not None and characters is not None:
        raise InputError(None, None, "--words and --characters", "use one of them")
    if overlap is not None and characters is None:
        raise InputError(None, None, "--overlap without --characters", "use both")
    return Cutting(
        words=Cutting.words if words is None else words,
        characters=characters,
        overlap=Cutting.overlap if overlap is None else overlap,
    )


if __name__ == "__main__":
    run_command(passages)
