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
        settings = self.settings | settings
        options = {name: settings[name] for name in settings.keys() - _UNUSED}
        if llm_config is not None and "reader" not in options:
            options |= {"reader": f"openai:{llm_config.model}", "base_url": llm_config.base_url}
        nuggets = None if options.get("answers") else nugget_banks
        queries = {key: row for topic in rag_topics for key, row in _queries(topic, nuggets)}
        texts = {row[_TOPIC]: dict[str, str]() for row in queries.values()}
        for report in rag_responses:
            if (topic := report.metadata.topic_id) in texts:
                texts[topic] |= _documents(report)
        run = [  # a single one: comparing a hundred takes longer than labelling
            {QUERY_ID: key, DOC_ID: name, TEXT: text, RANK: rank}
            for key, row in queries.items()
            for rank, (name, text) in enumerate(texts[row[_TOPIC]].items(), 1)
        ]
        most = max(map(len, texts.values()), default=1)
        result = evaluate(queries, None, run, k=most, end_to_end=False, **options)
        labels: dict[Any, list[float]] = {}
        for key, by_name in result.qrels().items():
            for name, label in by_name.items():
                labels.setdefault((queries[key][_TOPIC], name), []).append(label)
        scale = settings.get("scale", 0)
        grades = ((*pair, grade(fmean(own), scale)) for pair, own in labels.items())
        return base.Qrels([base.QrelRow(*row) for row in grades])

    def judge(
        self, rag_responses: Any, rag_topics: Any, llm_config: Any, nugget_banks: Any = None, qrels: Any = None,
        **more: Any,
    ) -> base.Leaderboard:  # fmt: skip
        """The label of each response, RESPONSE, and the mean label of the passages that it cites, CITED (0 without)."""
        topics = [topic.request_id for topic in rag_topics]
        reports = [report for report in rag_responses if report.metadata.topic_id in topics]
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
    answered = [nugget for nugget in (bank or {}).values() if nugget.answers]
    for number, nugget in enumerate(answered):
        answers = [own.answer for own in nugget.answers.values()]
        yield f"{name}/{number}", {QUERY: nugget.question, ANSWERS: answers, _TOPIC: name}
    if not answered:
        yield name, {QUERY: topic.title, _TOPIC: name}


def _documents(report: Any) -> dict[str, str]:
    """The texts of a response and of the passages that it cites, by their names."""
    text, documents = report.get_report_text(), report.documents or {}
    sentences = report.get_sentences_with_citations()
    cited = [name for sentence in sentences for name in sentence.citations or ()]
    if lacking := [name for name in cited if name not in documents]:
        problem = f"the response cites {quoted(lacking[0])}, and its `documents` lack it"
        raise InputError(problem, "add the text", "autojudge.text", path=report.metadata.run_id)
    return {base.doc_id_md5(text): text} | {name: documents[name].get_text() for name in cited}
