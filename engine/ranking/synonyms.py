"""Ranking measures under the names that other tools give them: trec_eval, ranx, BEIR, papers.

Only exact synonyms: what ranx calls ``hits`` is a count, and is none. Case does not matter.
"""

from __future__ import annotations

import re

_NAME = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9_-]*?)(?:\((?P<options>[^()]*)\))?(?:[@_](?P<cutoff>\d+(?:tok)?))?"
)
# As trec_eval (recip_rank, map_cut_10, ndcg_cut_10, P_10, recall_10, success_10), ranx (hit_rate, r-precision,
# ndcg_burges), BEIR (NDCG@10, Recall@10) and papers (MRR@10, Precision@10) write them.
_KINDS = {
    "p": "P",
    "prec": "P",
    "precision": "P",
    "r": "R",
    "recall": "R",
    "f1": "F1",
    "ap": "AP",
    "map": "AP",
    "map_cut": "AP",
    "rr": "RR",
    "mrr": "RR",
    "recip_rank": "RR",
    "reciprocal_rank": "RR",
    "dcg": "DCG",
    "ndcg": "nDCG",
    "ndcg_cut": "nDCG",
    "ndcg_burges": "nDCG(dcg='exp-log2')",
    "success": "Success",
    "hit": "Success",
    "hit_rate": "Success",
    "hitrate": "Success",
    "rprec": "Rprec",
    "r-precision": "Rprec",
    "r_precision": "Rprec",
    "judged": "Judged",
    "udcg": "UDCG",
}


def usual_name(text: str) -> str:
    """A measure's name as ir_measures writes it, from another tool's; the text itself where none is known.

    ``ndcg_cut_10`` is ``nDCG@10``, ``MRR`` is ``RR``, ``Recall(rel=2)@5`` is ``R(rel=2)@5``.
    """
    match = _NAME.fullmatch(text.strip())
    kind = None if match is None else _KINDS.get(match["kind"].lower())
    if match is None or kind is None or ("(" in kind and match["options"]):
        return text
    options = f"({match['options']})" if match["options"] else ""
    return f"{kind}{options}" + (f"@{match['cutoff']}" if match["cutoff"] else "")


def known_names() -> list[str]:
    """All names of kinds, in lower case, for whoever looks for the one that was meant."""
    return list(_KINDS)
