"""PyTerrier's ``pt.erag``, by an entry point: labels and end-to-end scores in results, and labels as qrels."""

from __future__ import annotations

from typing import Any

from engine.messages.errors import InputError
from engine.tables import DOC_ID, LABEL, QUERY_ID, VALUE

try:
    import ir_measures
    import pandas as pd
    import pyterrier as pt
except ModuleNotFoundError as error:
    problem = f"labels in PyTerrier need {error.name}, which is not installed"
    raise InputError(problem, "pip install pyterrier", "package.missing") from error

_LABELS, _SCORES = ["qid", "docno", LABEL], ["qid", "downstream"]

# A measure of experiments: the mean of the column that ``Labels`` adds with ``end_to_end=True``.
downstream = ir_measures.define_byquery(
    lambda qrels, run: run["downstream"].iloc[0], "downstream", False, run_inputs=[QUERY_ID, "downstream"]
)  # fmt: skip


class Labels(pt.Transformer):
    """Add labels to results as ``label``; with ``end_to_end=True``, the reader's score on each list as ``downstream``.

    Results need ``qid``, ``query``, ``docno`` and ``text``. All are labelled: ``bm25 % 10 >> labels`` reads ten a query.

    Args:
        answers: reference answers, ``{qid: [answer, …]}`` or a file of them.
        labels: existing labels, added instead (else NaN): a frame with ``qid``, ``docno`` and ``label``.
        **options: further arguments of ``engine.evaluate``, such as ``reader``, ``annotators`` and ``metric``.
    """

    def __init__(self, answers: Any = None, *, labels: Any = None, **options: Any) -> None:
        self.labels, self.options = labels, {"answers": answers, "end_to_end": False} | options

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The results with these columns."""
        texts = ["query", "text"] if self.labels is None else []
        pt.validate.columns(inp, includes=[*_LABELS[:2], *texts])
        results = inp.drop(columns=[LABEL, "downstream"], errors="ignore")
        for table in self._evaluated(results) if self.labels is None else [self.labels[_LABELS]]:
            results = results.merge(table, "left", on=[*table.columns[:-1]])
        return results

    def _evaluated(self, results: pd.DataFrame) -> list[pd.DataFrame]:
        from engine.python.evaluate import evaluate  # not when PyTerrier starts

        tables = 1 + bool(self.options["end_to_end"])
        if results.empty:  # PyTerrier asks in this way for the names of columns
            return [pd.DataFrame(columns=names) for names in (_LABELS, _SCORES)][:tables]
        rows = results.sort_values("rank", kind="stable") if "rank" in results else results
        rows = rows[rows.columns.intersection(["qid", "docno", "title", "text"])]
        rows = rows.assign(rank=rows.groupby("qid").cumcount() + 1)
        queries = dict(zip(results["qid"], results["query"], strict=True))
        result = evaluate(queries, None, {"run": rows}, k=int(rows["rank"].max()), **self.options)
        labels = [(q, d, value) for q, own in result.qrels().items() for d, value in own.items()]
        scores = result.table("downstream").select(qid=QUERY_ID, downstream=VALUE).to_pandas()
        return [pd.DataFrame(labels, columns=_LABELS), scores][:tables]


def qrels(*labels: Any, annotator: str = "erag", scale: int = 0) -> pd.DataFrame:
    """Labels as qrels of ``pt.Experiment``, which are whole numbers: of results with ``label``, and of ``Result.labels``.

    With a scale, labels are multiplied by it and rounded down; without, an InputError refuses those that are not whole.
    """
    from engine.sources.runs.export import grade

    frames = []
    for frame in labels:
        if not isinstance(frame, pd.DataFrame):
            frame = frame.filter(annotator=annotator).to_pandas()
        frames.append(frame.rename(columns={QUERY_ID: "qid", DOC_ID: "docno"})[_LABELS])
    frame = pd.concat(frames).dropna().drop_duplicates(_LABELS[:2], ignore_index=True)
    return frame.assign(label=[grade(label, scale) for label in frame[LABEL]])
