"""TREC's AutoJudge: a judge that makes qrels and a leaderboard of responses and the passages that they cite."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.python.evaluate import evaluate
from engine.sources.runs.export import grade
from engine.tables import ANSWERS, DOC_ID, QUERY, QUERY_ID, RANK, TEXT

try:
    import autojudge_base as base
except ModuleNotFoundError as error:
    problem = f"a judge of AutoJudge needs {error.name}, which is not installed"
    raise InputError(problem, "pip install autojudge-base", "package.missing") from error

_TOPIC = "topic"
# Arguments of judges on which labels do not depend.
_UNUSED = {"corpus", "description", "filebase", "outdir", "scale"}


class Judge:
    """Grade responses, named by the MD5 of their texts, and the passages that they cite, by labels.

    Args:
        **settings: arguments of ``engine.evaluate``, such as ``annotators`` (``erag``), ``reader`` (AutoJudge's LLM) and
            ``answers`` (without these, labels are means over the questions of nuggets); and ``scale``, as in
            ``Result.qrels``, needed if labels are not whole numbers. Those of a workflow come first.
    """

    nugget_banks_type = base.NuggetBanks

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def create_nuggets(self, *, nugget_banks: Any = None, **unused: Any) -> Any:
        """The nuggets as they are."""
        return nugget_banks

    def create_qrels(
        self, rag_responses: Any, rag_topics: Any, llm_config: Any, nugget_banks: Any = None, **settings: Any
    ) -> base.Qrels:  # fmt: skip
        """The grades; an InputError if a text is missing, or a label is not a whole number and there is no scale."""
        given = self.settings | settings
        options = {name: given[name] for name in given.keys() - _UNUSED}
        if llm_config is not None and "reader" not in options:
            options |= {"reader": f"openai:{llm_config.model}", "base_url": llm_config.base_url}
        nuggets = None if options.get("answers") else nugget_banks
        queries = {key: row for one in rag_topics for key, row in _queries(one, nuggets)}
        texts = {row[_TOPIC]: dict[str, str]() for row in queries.values()}
        for report in (one for one in rag_responses if one.metadata.topic_id in texts):
            texts[report.metadata.topic_id] |= _documents(report)
        run = [  # a single one: comparing a hundred takes longer than labelling
            {QUERY_ID: key, DOC_ID: name, TEXT: text, RANK: rank}
            for key, row in queries.items()
            for rank, (name, text) in enumerate(texts[row[_TOPIC]].items(), 1)
        ]
        most = max(map(len, texts.values()), default=1)
        result = evaluate(queries, None, run, k=most, end_to_end=False, **options)
        labels: dict[Any, list[float]] = {}
        for key, found in result.qrels().items():
            for name, label in found.items():
                labels.setdefault((queries[key][_TOPIC], name), []).append(label)
        grades = {of: grade(fmean(own), given.get("scale", 0)) for of, own in labels.items()}
        return base.Qrels([base.QrelRow(*of, own) for of, own in grades.items()])

    def judge(
        self, rag_responses: Any, rag_topics: Any, llm_config: Any, nugget_banks: Any = None, qrels: Any = None,
        **more: Any,
    ) -> base.Leaderboard:  # fmt: skip
        """The label of each response, RESPONSE, and the mean label of the passages that it cites, CITED (0 without)."""
        topics = [one.request_id for one in rag_topics]
        reports = [one for one in rag_responses if one.metadata.topic_id in topics]
        qrels = qrels or self.create_qrels(reports, rag_topics, llm_config, nugget_banks, **more)
        scale = (self.settings | more).get("scale") or 1
        labels = {(row.topic_id, row.doc_id): row.grade / scale for row in qrels.rows}
        measures = base.MeasureSpec("RESPONSE"), base.MeasureSpec("CITED")
        builder = base.LeaderboardBuilder(base.LeaderboardSpec(measures))
        for report in reports:
            run, topic = report.metadata.run_id, report.metadata.topic_id
            own, *rest = (labels.get((topic, name), 0) for name in _documents(report))
            builder.add(run_id=run, topic_id=topic, RESPONSE=own, CITED=fmean(rest or [0]))
        return builder.build(topics, on_missing="fix_aggregate")


def _queries(topic: Any, nuggets: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The questions of a topic's nuggets that have answers, with ids; without any, its title."""
    name = topic.request_id
    bank = getattr(nuggets.banks.get(name), "nugget_bank", None) if nuggets else None
    asked = [one for one in (bank or {}).values() if one.answers]
    for number, one in enumerate(asked):
        answers = [own.answer for own in one.answers.values()]
        yield f"{name}/{number}", {QUERY: one.question, ANSWERS: answers, _TOPIC: name}
    if not asked:
        yield name, {QUERY: topic.title, _TOPIC: name}


def _documents(report: Any) -> dict[str, str]:
    """The texts of a response and of the passages that it cites, by their names."""
    text, held = report.get_report_text(), report.documents or {}
    cited = [name for one in report.get_sentences_with_citations() for name in one.citations or ()]
    for name in (name for name in cited if name not in held):
        problem = f"the response cites {quoted(name)}, and its `documents` lack it"
        raise InputError(problem, "add the text", "autojudge.text", path=report.metadata.run_id)
    return {base.doc_id_md5(text): text} | {name: held[name].get_text() for name in cited}
