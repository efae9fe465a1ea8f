"""Which ranking measures are computed, how deep, and over what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from engine.messages.checked import SEVERAL, Checked, Positive
from engine.messages.errors import InputError
from engine.ranking.measures import parse_measures
from engine.ranking.scores import Missing, Relevant

# The value of ``relevant`` that takes recall over all judgments, listed or not.
ALL_JUDGMENTS: Relevant = "qrels"
# What a summary calls the recall base of annotators whose judgments reach beyond the lists.
JUDGED = "relevant_of_qrels"


@dataclass(frozen=True, kw_only=True)
class RankingSettings(Checked):
    """Cutoff, measures, and what counts as judged.

    Attributes:
        k: Passages per query that are labelled; 10, or the largest of ``k_sweep``.
        measures: Ranking measures, named as in ir_measures; by default nDCG, P, AP, RR, R, Success
            at k (nDCG, P, Success where all labels lie between 0 and 1), and UDCG for utilities. The
            first is primary: all annotators are compared by it in the answer, the page and the verdict.
        relevant: The recall base, over which recall and ideal rankings are taken: the query's own list, the pool of all
            runs, or all judgments of the qrels. By default all judgments for labels by qrels; for those of others, who
            judge listed passages alone, pool for several runs and list for one.
        missing: What happens to queries without results in a run: they score 0 (zero), are left out of the
            run's scores, also of its end-to-end score (skip), or are an error.

    Raises:
        InputError: an unknown measure, one that looks beyond the cutoff, or one that ``relevant`` makes
            meaningless.
    """

    k: Positive = 10
    measures: Annotated[str, SEVERAL] = ""
    relevant: Relevant | None = None
    missing: Missing = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        for measure in parse_measures(self.measures) if self.measures else ():
            if measure.cutoff is not None and measure.cutoff > self.k:
                raise InputError(
                    f"{measure} looks further than `k` {self.k}",
                    f"use `k` {measure.cutoff}, or a smaller cutoff",
                )
            if self.relevant == "list" and measure.kind == "Judged":
                raise InputError(
                    "Judged is 1 by definition where `relevant` is list",
                    "use `relevant` pool, or leave Judged out",
                )
