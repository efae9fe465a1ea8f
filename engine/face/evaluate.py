"""``engine.evaluate``: an evaluation of whatever a Python user has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.evaluation import evaluate as evaluating
from engine.evaluation.inputs import InputFiles, input_tables
from engine.evaluation.prepare import refuse_lacking_tables
from engine.evaluation.settings import Settings
from engine.face.inputs import Given, inputs_of
from engine.face.progress import event, progress
from engine.face.result import Result
from engine.labels import Annotator, from_function
from engine.labels.settings import LabelSettings
from engine.machine.functions import name_of
from engine.machine.model_files import cache_directory
from engine.masking import masked
from engine.ranking.settings import RankingSettings
from engine.reading.function import Answers, ReaderFunction, reader_function
from engine.reading.settings import ReaderSettings
from engine.scoring.metrics import Metric
from engine.scoring.own import metric_from_function
from engine.sources.io.locations import locate

ReaderChoice = str | ReaderFunction | Answers
MetricChoice = str | Metric | Callable[[str, list[str]], float]
AnnotatorChoice = str | Annotator | Callable[[str, list[str], str, str], float]


def evaluate(
    queries: Any,
    passages: Any,
    runs: Any,
    *,
    reader: ReaderChoice = ReaderSettings.reader,
    metric: MetricChoice = ReaderSettings.metric,
    annotators: AnnotatorChoice | Sequence[AnnotatorChoice] = LabelSettings.annotators,
    k: int = RankingSettings.k,
    **options: Any,
) -> Result:
    """Evaluate runs with the LLM that reads them, as ``erag evaluate`` does.

    An evaluation is held whole, whatever its size; very large ones are for the command. Every listed passage
    is labelled, the runs are scored with ranking measures, and these are correlated,
    query by query, with the score of the reader that is given the whole list.

    Args:
        queries: with their answers: a file of any layout; a Polars or pandas frame, a list of dictionaries or
            a Hugging Face dataset with the fields of JSONL (``query``, ``answers``, and perhaps ``query_id``
            and ``provenance``); ``{query_id: {"query": …, "answers": […]}}``; ``{query: [answer, …]}``; or
            ``{query_id: query}`` with the option ``answers``.
        passages: a file; a frame, a list of dictionaries or a dataset with ``doc_id``, ``text`` and perhaps
            ``title`` and ``article_id``; ``{doc_id: text}`` or ``{doc_id: {"title": …, "text": …}}``; None
            where the runs carry the texts.
        runs: one run or several: files; frames with ``query_id``, ``doc_id`` and ``rank`` or ``score`` (and
            ``run``, the name of the system); ``{query_id: {doc_id: score}}``; ``{query_id: [doc_id, …]}``,
            the best first; without ``passages``, ``{query_id: [text, …]}`` or frames and lists with ``text``.
            Several as a list or, with names, as ``{name: run}``. Queries may be named by id or by text.
        reader: the LLM: a name as for ``erag evaluate``; a function from a list of prompts to a list of
            texts; or ``engine.Reader``, which gives a function a name and a version, under which its reads are
            stored. A function is called in this process unless the option ``actors`` is given.
        metric: the downstream metric: a name, or a function from an output and its reference answers to a
            number in [0, 1].
        annotators: who labels: names, functions from a query, its answers, and a passage's title and text to a
            number in [0, 1], and annotators made with ``engine.labels.from_function``.
        k: passages per query at most.
        **options: ``answers`` (``{query_id: [answer, …]}``), ``limit`` (the first queries alone), ``store``
            (the folder or address of the read store), ``progress`` (False shows none), what annotators need
            (``qrels``, ``preferences``: a file, ``{query_id: {doc_id: label}}`` or a table), and every setting
            of ``engine.evaluation.settings`` (``measures``, ``end_to_end``, ``actors``, ``prompt`` …).

    Raises:
        InputError: something that was given cannot be used, in one line.
        ReadError: reads failed and ``failed_reads`` is ``error``.
        TypeError: an unknown option.
    """
    shown = bool(options.pop("progress", True))
    store = options.pop("store", None) or cache_directory() / "reads"
    known = input_tables()
    given = Given(
        queries,
        passages,
        runs,
        answers=options.pop("answers", None),
        limit=options.pop("limit", None),
        tables={name: options.pop(name) for name in known if options.get(name) is not None},
    )
    settings = _settings(reader, metric, annotators, k, options)
    _refuse_shards(settings)
    refuse_lacking_tables(settings, given.tables)
    _refuse_unused(settings, given)
    inputs = inputs_of(given, settings)
    with progress(shown=shown) as on_progress:
        evaluation = evaluating.evaluate(
            inputs, settings, store=store, on_progress=on_progress, on_event=event
        )
    return Result.of(evaluation, _named(given.files()))


def _refuse_shards(settings: Settings) -> None:
    """Refuse what only the command does."""
    if settings.running.shard_pairs:
        raise InputError(
            f"`shard_pairs` {settings.running.shard_pairs} from Python, which holds an evaluation whole",
            "use the command erag evaluate, and `Result.load`",
        )


def _settings(
    reader: ReaderChoice,
    metric: MetricChoice,
    annotators: AnnotatorChoice | Sequence[AnnotatorChoice],
    k: int,
    options: dict[str, Any],
) -> Settings:
    listed = [annotators] if isinstance(annotators, str | Annotator) else annotators
    listed = [listed] if callable(listed) else listed
    # What is a function, of all that is not a metric or an annotator, is a model.
    models = {"reader": reader, **options}
    functions = {
        name: reader_function(value)
        for name, value in models.items()
        if isinstance(value, ReaderFunction) or callable(value)
    }
    settings = Settings.of(
        k=k,
        metric=metric if isinstance(metric, str | Metric) else metric_from_function(metric),
        annotators=tuple(map(_annotator, listed)),
        **models | {name: one.name for name, one in functions.items()},
    )
    return replace(
        settings,
        reader=replace(settings.reader, functions=tuple(dict.fromkeys(functions.values()))),
    )


def _annotator(given: AnnotatorChoice) -> str | Annotator:
    if isinstance(given, str | Annotator):
        return given
    return from_function(name_of(given), given)


def _refuse_unused(settings: Settings, given: Given) -> None:
    """Refuse a table that no annotator needs."""
    in_use = {one.needs_input.name for one in settings.annotators_in_use() if one.needs_input}
    for name in given.tables:
        if name not in in_use:
            raise InputError(
                f"`{name}` without an annotator that needs it",
                "add one to `annotators`, or leave it out",
            )


def _named(files: InputFiles | None) -> dict[str, Any]:
    """Where inputs come from, as ``summary.json`` has it; None for tables in memory."""

    def place(path: str | Path | None) -> str | None:
        return None if path is None else masked(str(locate(path)))

    return {
        "queries": place(files.queries if files else None),
        "corpus": place(files.corpus if files else None),
        "runs": [place(path) for path in files.run] if files else [],
        **{name: place(files.tables.get(name) if files else None) for name in input_tables()},
        "edits": None,
        "answers": place(files.answers if files else None),
    }
