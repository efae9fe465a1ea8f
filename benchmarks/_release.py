"""Stored cells of Table 1 for others: labels, runs and scores with metadata, in folders that need no engine.

A cell's folder is that of exported labels (``engine.sources.runs.export``) with ``scores.parquet`` beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.messages.errors import InputError
from engine.report import label_kit, summary
from engine.sources.io.digests import file_sha256
from engine.sources.io.files import write_parquet, write_text
from engine.sources.runs.export import METADATA, scored_labels, write_exports
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, RUN, SCORE

MOST_BYTES = 20_000_000
LABELS, SCORES, READS = "labels.parquet", "scores.parquet", "reads.parquet"
# Parts of the metadata of an evaluation that stored cells lack.
_LACKING = (
    "version of the engine and of libraries", "digest of the reader's weights", "prompt", "decoding",
    "fingerprints of the corpus and of the questions", "reads",
)  # fmt: skip
_WITHOUT_IDS = (
    "ids of documents, so labels stand by rank and there are neither judgments nor runs",
)
_README = """\
# Cells of Table 1

{count} cells, each a task of 300 questions with a reader. Figures: docs/findings.md of erag-engine. A cell has labels
and runs (`README.md` in its folder), and `scores.parquet`: measures of every query by annotator, and as annotator
`{end_to_end}` the score of the whole list. Cells below `cutoffs` are of one run with lists of 50. Ids of their
documents were not kept, so they have labels by rank and scores of the first `k` passages of a list, but no runs.

{read}

## Score them again

With ir_measures, pandas and SciPy. nDCG is the same for labels times 100,000, which are whole numbers, as its tools need
them:

```python
import ir_measures
import pandas
from scipy.stats import kendalltau

cell, run, annotator = "trivia-bundled-fid", "bm25", "erag"
labels = pandas.read_parquet(f"{{cell}}/labels.parquet").query("annotator == @annotator")
qrels = labels.assign(relevance=(labels.label * 100_000).round().astype(int))
ranked = ir_measures.read_trec_run(f"{{cell}}/runs/{{run}}.trec")
values = ir_measures.iter_calc([ir_measures.nDCG @ 5], qrels, ranked)
measured = {{one.query_id: one.value for one in values}}
scores = pandas.read_parquet(f"{{cell}}/scores.parquet").query("run == @run")
whole = scores[scores.annotator == "{end_to_end}"].set_index("query_id")["value"]
print(kendalltau([measured[query] for query in whole.index], whole).statistic)
```
"""


def stored(folder: Path) -> Iterator[Path]:
    """The JSON files of stored cells, also in folders inside."""
    for path in sorted(folder.rglob("*.json")):
        if beside(path, "labels").exists():
            yield path


def beside(path: Path, part: str) -> Path:
    """The table of a stored cell: ``labels`` or ``scores``."""
    return path.with_name(f"{path.stem}-{part}.parquet")


def export_stored(path: Path, out: Path) -> None:
    """Write a stored cell into a folder."""
    kept = json.loads(path.read_text())
    ranked, scores = (pl.read_parquet(beside(path, part)) for part in ("labels", "scores"))
    has_ids = DOC_ID in ranked.columns  # cells of cutoffs have none
    annotators = [one for one in ranked.columns if one not in (RUN, QUERY_ID, RANK, DOC_ID)]
    labels = ranked.unpivot(
        annotators,
        index=[QUERY_ID, DOC_ID if has_ids else RANK],
        variable_name=ANNOTATOR,
        value_name=LABEL,
    )
    labels = labels.unique(maintain_order=True).drop_nulls()
    queries = ranked.select(QUERY_ID).unique(maintain_order=True)
    metadata = {
        "research goal": {"evaluation": {"reported measures": measures_in(scores)}},
        "implementation": {"source": {"lang": "python", "name": "erag-engine"}},
        "method": {
            "automatic": True,
            **{name: kept[name] for name in ("task", "metric", "augmentation", "k", "undefined")},
            "readers": {"reader": {"name": kept["reader"], "fingerprint": kept["fingerprint"]}},
        },
        "data": {
            "test collection": {"name": kept["task"], "queries": kept["queries"]},
            "queries without scores": label_kit.without_scores(queries, labels),
            "not kept": [*_LACKING, *(() if has_ids else _WITHOUT_IDS)],
        },
    }
    if has_ids:
        runs = ranked.with_columns((-pl.col(RANK)).cast(pl.Float64).alias(SCORE))
        _write(
            out,
            labels.select(list(tables.LABELS)),
            runs.select(list(tables.RUNS)),
            scores,
            metadata,
        )
        return
    for name, table in ((LABELS, labels), (SCORES, scores)):
        write_parquet(table, out / name)
    sha256 = {name: {"sha256": file_sha256(out / name)} for name in (LABELS, SCORES)}
    write_text(label_kit.texts(metadata, sha256)[METADATA], out / METADATA)


def measures_in(scores: pl.DataFrame) -> list[str]:
    """Names of the measures in a table of scores; none in one of cutoffs."""
    return [*dict.fromkeys(scores.get_column(tables.MEASURE, default=pl.Series([])))]


def export_evaluated(done: Evaluation, scores: pl.DataFrame, out: Path) -> None:
    """Write a cell that was just read into a folder, with its reads and the whole metadata."""
    content = summary.summarize(done, {})
    metadata = label_kit.sections(content, done.inputs.queries, done.query_scores)
    _write(out, done.labels, done.inputs.runs, scores, metadata)
    write_parquet(done.reads, out / READS)


def _write(
    out: Path,
    labels: pl.DataFrame,
    runs: pl.DataFrame,
    scores: pl.DataFrame,
    metadata: Mapping[str, Any],
) -> None:
    describe = partial(label_kit.texts, metadata)
    scored = scores.filter(pl.col(ANNOTATOR).is_in(labels[ANNOTATOR].unique().implode()))
    write_exports(scored_labels([labels], scored), [runs], out, describe=describe)
    write_parquet(scores, out / SCORES)


def explain(out: Path, count: int, read: str, end_to_end: str) -> None:
    """Write the page of all cells, and check their size.

    Args:
        read: sentences on the cell that was read anew.
        end_to_end: the name that stands for an annotator beside scores of whole lists.

    Raises:
        InputError: the folder is larger than 20 MB.
    """
    text = _README.format(count=count, read=read, end_to_end=end_to_end)
    write_text(text, out / "README.md")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    if size > MOST_BYTES:
        problem = f"holds {size:,} bytes, more than {MOST_BYTES:,}"
        raise InputError(problem, "use a new folder", "release.size", path=out)
