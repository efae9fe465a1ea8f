"""Check which reference answers the downstream metric can score."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.scoring.metrics import get_metric
from engine.sources.io.locations import Location
from engine.sources.queries.read import line_of
from engine.tables import ANSWERS, QUERY_ID


def refuse_unscorable(inputs: EvaluationInputs, settings: Settings) -> None:
    """Refuse a query none of whose answers the metric can score: every output would score 0."""
    for query_id, answers in _queries_with(inputs, settings, any):
        metric = get_metric(settings.reader.metric)
        path, line = query_place(inputs, query_id)
        raise InputError(
            f"the metric {metric.name} cannot score the answers of query {query_id!r} ({answers[0]!r})",
            f"write answers with {metric.needs}, or use another `metric`",
            path=path,
            line=line,
        )


def note_unscorable(inputs: EvaluationInputs, settings: Settings) -> Note:
    """How many queries have, beside others, an answer that the metric cannot score."""
    return count_note(
        "unscorable_answers",
        sum(1 for _ in _queries_with(inputs, settings, all)),
        f"[query has|queries have] an answer that {settings.reader.metric_name} cannot score, and that no "
        "output matches",
    )


def query_place(inputs: EvaluationInputs, query_id: str) -> tuple[Location | None, int | None]:
    """File and line of a query, to word an error; None where they are not known."""
    file = inputs.queries_file
    return file, None if file is None else line_of(file, query_id)


def _queries_with(
    inputs: EvaluationInputs, settings: Settings, fine: Callable[[Iterator[object]], bool]
) -> Iterator[tuple[str, list[str]]]:
    """Id and answers of the queries whose answers are not ``fine``, given which can be scored."""
    annotators = settings.resolved.annotators
    if not (settings.reader.end_to_end or any(one.is_the_readers for one in annotators)):
        return  # no output is scored
    can_score = get_metric(settings.reader.metric).can_score
    for query_id, answers in inputs.queries.select(QUERY_ID, ANSWERS).iter_rows():
        if answers and not fine(map(can_score, answers)):
            yield query_id, answers
