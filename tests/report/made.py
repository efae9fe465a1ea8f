"""What an evaluation would find, from scores that are made so that the figures are known."""

import json
from pathlib import Path

import polars as pl

from engine import tables
from engine.report import verdict
from engine.report.findings import Findings
from engine.report.summary import STATISTICS, configuration

# Queries of the folders that ``write_evaluation`` makes.
ANSWERED = 200


def made_findings(query_scores, downstream, statistics, settings, *, queries):
    """Findings of these scores, with the statistics of them; nothing was read."""

    def means(table, by):
        mean = pl.col("value").mean()
        return table.group_by(by, maintain_order=True).agg(mean, pl.len().alias("n")).to_dicts()

    summary = {
        "configuration": configuration(settings, "pool", {}),
        "counts": {"queries": queries},
        "means": means(query_scores, ["run", "annotator", "measure"]),
        "end_to_end": means(downstream, ["run", "k"]),
        "undefined": [],
        "verdict": None,
        "reading": {},
    }
    held = {name: getattr(statistics, name) for name in STATISTICS}
    return Findings(summary, Path(), None, held)


def sentences(evaluation):
    """The verdict of an evaluation."""
    return verdict.summarize_verdict(evaluation)["sentences"]


def write_evaluation(
    folder, runs, *, texts=None, answers=("a",), reader="f" * 32, cluster=int, **summary
):
    """A folder of results: the scores of each run by query, and what the summary must say.

    Args:
        runs: values by run, one of ``ANSWERED`` for each query; 1 is answered "right", else "wrong".
        texts: of the queries by id; by default of all.
        reader: its fingerprint, or more of it.
        cluster: of each query, by its number; None as in results of earlier versions, which have none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = texts or {f"q{i}": f"question {i}" for i in range(ANSWERED)}
    asked = [(query_id, text, list(answers)) for query_id, text in texts.items()]
    frame = pl.DataFrame(asked, schema=tables.EVALUATED_QUERIES, orient="row")
    frame.write_parquet(folder / "evaluated_queries.parquet")
    if cluster:
        clusters = [(query_id, cluster(number)) for number, query_id in enumerate(texts)]
        frame = pl.DataFrame(clusters, schema=tables.CLUSTERS, orient="row")
        frame.write_parquet(folder / "clusters.parquet")
    rows = [
        (run, query_id, 1, "right" if value >= 0.5 else "wrong", float(value))
        for run, values in runs.items()
        for query_id, value in zip(texts, values, strict=False)
    ]
    scores = pl.DataFrame(rows, schema=tables.DOWNSTREAM, orient="row")
    scores.write_parquet(folder / "downstream.parquet")
    content = {
        "configuration": {"metric": "em", "confidence": 0.95, "annotators": [], "k": 5},
        "means": [],
        "end_to_end": [{"run": run, "k": 1, "value": 0.5, "n": len(texts)} for run in runs],
        "verdict": None,
        "reading": {},
        "notes": {},
        "counts": {"queries": len(texts)},
        "reader": {"prompt_sha256": "9"}
        | (reader if isinstance(reader, dict) else {"fingerprint": reader}),
        "versions": {"polars": "2"},
        "audit": {
            "date": "2026-11-25",
            "files": [{"role": "corpus", "sha256": "c"}],
            "tables_sha256": {"queries": "q"},
        },
    }
    for key, value in summary.items():
        content[key] = content[key] | value if isinstance(content.get(key), dict) else value
    (folder / "summary.json").write_text(json.dumps(content))
    return folder


def values(right, first=0):
    """So many right answers, from a query on."""
    return [1.0 if first <= i < first + right else 0.0 for i in range(ANSWERED)]


def as_earlier(summary):
    """A summary as earlier versions wrote it, and as it is where a user changed the folder: without digests."""
    audit = {key: value for key, value in summary["audit"].items() if key != "results_sha256"}
    return {**summary, "audit": audit}
