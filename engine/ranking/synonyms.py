"""Ranking measures under the names that other tools give them: trec_eval, ranx, BEIR, papers.

Only exact synonyms: what ranx calls ``hits`` is a count, and is none. Case does not matter.
"""

from __future__ import annotations

import re

_PARTS = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9_-]*?)(?:\((?P<options>[^()]*)\))?(?:[@_](?P<cutoff>\d+(?:tok)?))?"
)
# As trec_eval (recip_rank, map_cut_10, ndcg_cut_10, P_10, recall_10, success_10), ranx (hit_rate, r-precision,
# ndcg_burges), BEIR (NDCG@10, Recall@10) and papers (MRR@10, Precision@10) write them.
_NAMES = {
    "P": "p prec precision",
    "R": "r recall",
    "F1": "f1",
    "AP": "ap map map_cut",
    "RR": "rr mrr recip_rank reciprocal_rank",
    "DCG": "dcg",
    "nDCG": "ndcg ndcg_cut",
    "nDCG(dcg='exp-log2')": "ndcg_burges",
    "Success": "success hit hit_rate hitrate",
    "Rprec": "rprec r-precision r_precision",
    "Judged": "judged",
    "UDCG": "udcg",
}
# The kinds by all their names, in lower case.
SYNONYMS = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def usual_name(text: str) -> str:
    """A measure's name as ir_measures writes it, from another tool's; the text itself where none is known.

    ``ndcg_cut_10`` is ``nDCG@10``, ``MRR`` is ``RR``, ``Recall(rel=2)@5`` is ``R(rel=2)@5``.
    """
    match = _PARTS.fullmatch(text.strip())
    kind = None if match is None else SYNONYMS.get(match["kind"].lower())
    if match is None or kind is None or ("(" in kind and match["options"]):
        return text
    options = f"({match['options']})" if match["options"] else ""
    return f"{kind}{options}" + (f"@{match['cutoff']}" if match["cutoff"] else "")
