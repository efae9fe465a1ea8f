"""Every interval that is printed or written lies in the range of its statistic, and holds its estimate."""

import math
import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from engine.evaluation.settings import Settings
from engine.labels.dual import dual_probabilities
from engine.report import printed
from engine.statistics.runs import mean_interval
from engine.statistics.table import analyse
from tests.report.made import made_findings, sentences
from tests.statistics.made_scores import read_whole, scored

# Of tables: each statistic, the name of its bounds, and its range.
WRITTEN = {
    "correlations": (("tau", "tau", 1), ("rho", "rho", 1)),
    "comparisons": (("tau_difference", "tau", 2), ("rho_difference", "rho", 2)),
    "run_pairs": (("difference", "difference", 1), ("end_to_end_difference", "end_to_end", 1)),
}
# Scores of queries: right or wrong, graded and mostly 0, any; and what they are in a second run.
SCORES = [
    lambda rng, n: rng.integers(0, 2, n).astype(float),
    lambda rng, n: (rng.random(n) < 0.1).astype(float),
    lambda rng, n: np.where(rng.random(n) < 0.9, 0.0, rng.random(n).round(2)),
    lambda rng, n: rng.random(n).round(1),
    lambda rng, n: np.ones(n),
]


def holds(value, low, high, most, least=None):
    if math.isnan(low) and math.isnan(high):
        return True
    least = -most if least is None else least
    return least <= low <= value + 1e-12 and value - 1e-12 <= high <= most


@pytest.mark.parametrize("seed", range(12))
def test_intervals_lie_in_their_ranges_and_hold_their_estimates(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.choice([2, 3, 8, 15, 25, 60]))
    kinds = [SCORES[int(kind)] for kind in rng.integers(0, len(SCORES), 3)]
    whole, labels, others = (
        {run: kind(rng, n) for run in ("s", "t", "u")} for kind in kinds
    )  # fmt: skip
    if seed % 3 == 0:
        whole["t"] = whole["s"]
    options = Settings.of(annotators=("erag", "containment"), resamples=100, measures="P@3", k=3)
    query_scores = scored([("erag", "P@3", labels), ("containment", "P@3", others)])
    clusters = {f"q{i:03}": i // 3 for i in range(n)} if seed % 4 == 3 else None
    found = analyse(query_scores, read_whole(whole), options.bootstrap, clusters=clusters)
    for name, statistics in WRITTEN.items():
        for row in getattr(found, name).iter_rows(named=True):
            for value, bounds, most in statistics:
                low, high = row[f"{bounds}_low"], row[f"{bounds}_high"]
                assert holds(row[value], low, high, most), (name, value, row)
    for lead in (*found.choice.leads, *(opinion.lead for opinion in found.choice.opinions)):
        assert holds(lead.difference, lead.low, lead.high, 1)
    for values in whole.values():
        mean = mean_interval(pl.Series(values), 0.95)
        assert holds(mean.value, mean.low, mean.high, 1, least=0)
    document, word = (rng.random((2, n)) < 0.2)  # fmt: skip
    for share in dual_probabilities(document, word, options.bootstrap):
        assert holds(share.value, share.low, share.high, 1, least=0)
    evaluation = SimpleNamespace(
        statistics=found,
        downstream=read_whole(whole),
        relevant="pool",
        queries=n,
        settings=options,
        notes=[],
    )
    shown = made_findings(query_scores, evaluation.downstream, found, options, queries=n)
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        console.print(*printed.full_tables(shown), *sentences(evaluation))
    text = captured.get()
    # "value [low, high]": a bound that is out of order, or 0 with a sign, would mislead
    for value, low, high in re.findall(r"([-+.0-9]+) \[([-+.0-9]+), ([-+.0-9]+)\]", text):
        assert float(low) <= float(value) <= float(high)
    assert not re.search(r"-0\.0+(?!\d)", text)
    assert "0 tests" not in text
