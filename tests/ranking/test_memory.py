"""Scoring streams over blocks of queries: what it adds to its input is bounded."""

import subprocess
import sys

import pytest

# In a process of its own: the peak of this one has other causes. Five million labels, shuffled.
SCRIPT = """
import numpy as np, polars as pl
from pathlib import Path
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

queries, depth = 100_000, 50
rows, ranks = np.divmod(np.arange(queries * depth), depth)
ids = pl.Series([f"query-{i:07}" for i in range(queries)])
documents = pl.Series([f"document-{i:07}" for i in range(depth)])
runs = pl.DataFrame({"query_id": ids.gather(rows), "doc_id": documents.gather(ranks)}).with_columns(
    pl.Series("rank", ranks + 1), pl.lit("run").alias("run")
)
labels = runs.select("query_id", "doc_id").with_columns(
    pl.lit("a").alias("annotator"), pl.Series("label", (rows + ranks) % 7 == 0).cast(pl.Float64)
)
labels = labels.sample(fraction=1, shuffle=True, seed=1)
size = runs.estimated_size() + labels.estimated_size()
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = status("VmRSS")
found = score_runs(
    runs, labels, ids.to_list(), parse_measures("P@10 AP nDCG@10 RR Success@5 R"), relevant="pool"
)
assert found.height == 6 * queries
print((status("VmHWM") - before) / size)
"""


@pytest.mark.slow
def test_scoring_five_million_labels_adds_less_than_twice_the_input():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 2  # with the input itself: three times
