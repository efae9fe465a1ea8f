"""Check which reference answers the downstream metric can score."""

from __future__ import annotations

import polars as pl

from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, listed, quoted
from engine.scoring.metrics import METRICS, Metric, get_metric
from engine.sources.io.locations import Location
from engine.sources.queries.read import line_of
from engine.tables import ANSWERS, QUERY_ID

_SHOWN = 10


def refuse_unscorable(inputs: EvaluationInputs, settings: Settings) -> None:
    """Refuse a query none of whose answers the metric can score: every output would score 0."""
    if _is_scored(settings):
        refuse_answers(get_metric(settings.reader.metric), inputs.queries, inputs.queries_file)


def refuse_answers(metric: Metric, queries: pl.DataFrame, path: Location | None) -> None:
    """Refuse all queries of a file none of whose answers a metric can score, with the metrics that can score every query."""
    answered = queries.select(QUERY_ID, ANSWERS).filter(pl.col(ANSWERS).list.len() > 0)
    if lost := [row for row in answered.iter_rows() if not any(map(metric.can_score, row[1]))]:
        shown = [f"{query_id!r} ({quoted(answers[0])})" for query_id, answers in lost[:_SHOWN]]
        shown += [f"{len(lost) - _SHOWN} more"] * (len(lost) > _SHOWN)
        whose = f"{agreeing(len(lost), f'[query|{len(lost)} queries:]')} {listed(shown)}"
        every = answered[ANSWERS].to_list()
        able = [m.name for m in METRICS.values() if all(any(map(m.can_score, a)) for a in every)]
        instead = f"use a `metric` that can: {', '.join(able)}" if able else "leave the query out"
        raise InputError(
            f"the metric {metric.name} cannot score the answers of {whose}",
            f"write answers with {metric.needs}, or {instead}",
            path=path,
            line=None if path is None else line_of(path, lost[0][0]),
        )


def note_unscorable(inputs: EvaluationInputs, settings: Settings) -> Note:
    """How many queries have, beside others, an answer that the metric cannot score."""
    can_score = get_metric(settings.reader.metric).can_score
    every = inputs.queries[ANSWERS].to_list() if _is_scored(settings) else []
    return count_note(
        "unscorable_answers",
        sum(not all(map(can_score, answers)) for answers in every),
        f"[query has|queries have] an answer that {settings.reader.metric_name} cannot score, and that no "
        "output matches",
    )


def query_place(inputs: EvaluationInputs, query_id: str) -> tuple[Location | None, int | None]:
    """File and line of a query, to word an error; None where they are not known."""
    file = inputs.queries_file
    return file, None if file is None else line_of(file, query_id)


def _is_scored(settings: Settings) -> bool:
    annotators = settings.resolved.annotators
    return settings.reader.end_to_end or any(one.is_the_readers for one in annotators)
