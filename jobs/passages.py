"""``erag passages``: cut sources of articles into passages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.messages.checked import Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.sources.io.folders import folder_at, require_file_output, require_output
from engine.sources.io.outputs import Inputs, Outputs, delivered, refuse_overlap
from engine.sources.io.records import SkipBad
from engine.sources.passages.cut import ArticleId, CutSettings
from engine.sources.passages.write import write_passages
from jobs._command import ConfigFile, run_command, with_verbosity
from jobs._options import Texts
from jobs._terminal import say

# Suffixes of files, in place of a directory.
_OTHER_FILES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".gz", ".bz2")


@with_verbosity
def passages(
    source: Texts,
    *,
    out: Path,
    cutting: Annotated[CutSettings, Parameter(name="*")] = CutSettings(),  # noqa: B008 - it is frozen
    article_id: ArticleId | None = None,
    skip_bad: int = 0,
    workers: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Cut articles into passages and write them as a corpus.

    Args:
        source: Articles: MediaWiki dumps, KILT's knowledge source, JSONL, Parquet, BEIR or SQuAD, compressed or
            not; files, directories, or addresses like s3://….
        out: The corpus to write: a .parquet file, or a new directory for shards of a million passages.
        article_id: Identifier of an article in provenance: its title or its page id. By default the source decides:
            page ids for KILT, titles for all others.
        skip_bad: Bad records to tolerate; they are left out and counted.
        workers: Processes; by default one per CPU.
    """
    fitted("skip_bad", skip_bad, Natural)
    fitted("workers", workers, Positive | None)
    if out.suffix in _OTHER_FILES:
        remedy = "give a name that ends in .parquet, or a directory"
        raise InputError("a corpus is written as Parquet", remedy, "files.parquet", path=out)
    if out.suffix == ".parquet":
        require_file_output(out)
    else:
        require_output(out, directory=True)
    refuse_overlap(Inputs({"source": source, "config": config}, {}), Outputs([out]))
    skip = SkipBad(skip_bad)
    with delivered(out) as place:
        written = write_passages(
            source, place, cutting=cutting, article_id=article_id, workers=workers, skip_bad=skip
        )
    files = f" ({written.files} files)" if written.files > 1 else ""
    say(
        f"{counted(written.passages, 'passage[|s]')} of "
        f"{counted(written.articles, 'article[|s]')} -> {folder_at(out).shown()}{files}"
    )
    if written.empty:
        say(f"{counted(written.empty, 'article[|s]')} without text left out")
    if skip.count:
        say(skip.described())


if __name__ == "__main__":
    run_command(passages)
