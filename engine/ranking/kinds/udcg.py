"""The measure of utilities."""

from __future__ import annotations

from engine.ranking.kinds.base import Floats, Lists, Measure, Names


class UDCG(Measure):
    """UDCG@k: the sigmoid of the mean utility of the first k; of tables, in ``engine.ranking.scores.score_utility``."""

    kind = "UDCG"
    references = Names(ir_measures=False)
    labels = "utilities"
    has_budget = False

    def value(self, of: Lists) -> Floats:
        raise NotImplementedError("scores.score_utility takes utilities from tables")
