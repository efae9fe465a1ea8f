"""``engine.evaluate``: an evaluation from a Python user's objects or files."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards, refuse_lacking_tables
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings, refuse_unfit
from engine.inputs.partition import partition, shard_pairs
from engine.inputs.shards import InMemoryInputs
from engine.labels.annotator import Annotator
from engine.labels.registry import LabelSettings, input_tables
from engine.machine.model_files import cache_directory
from engine.machine.pool import beside_ray
from engine.messages.checked import Positive, fitted
from engine.messages.errors import InputError
from engine.python import parts
from engine.python.input_forms import UserInputs, inputs_of, recorded_outputs
from engine.python.options import EvaluateOptions
from engine.python.result import Result
from engine.ranking.scores import RankingSettings
from engine.reading.backends import Progress
from engine.reading.function import ReaderChoice, ReaderFunction
from engine.reading.reader_settings import ReaderSettings
from engine.report.summary import SHARDS, name_files
from engine.sources.io.files import temporary_directory
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location

# Logger for events on a cluster.
_LOG = logging.getLogger("engine")
_IGNORES = "ignore_identical_ids"


def evaluate(
    queries: Any,
    passages: Any,
    runs: Any,
    *,
    reader: ReaderChoice = ReaderSettings.reader,
    metric: parts.MetricChoice = ReaderSettings.metric,
    annotators: parts.AnnotatorChoice | Sequence[parts.AnnotatorChoice] = LabelSettings.annotators,
    k: int = RankingSettings.k,
    **options: Unpack[EvaluateOptions],
) -> Result:
    """Evaluate runs with the LLM that reads them, as ``erag evaluate`` does.

    Every listed passage is labelled, the runs are scored with ranking measures, and these are correlated, query by
    query, with the score of the reader on the whole list. Files too large for memory are cut into shards, in the folder
    ``shards`` of the read store, which keeps their labels, traces and reads; if a function labels or scores, they stay
    for as long as the result exists.

    >>> def reader(prompts):
    ...     return ["Oranjestad" if "is Oranjestad" in prompt else "" for prompt in prompts]
    >>> result = evaluate(
    ...     {"what is the capital of Aruba": ["Oranjestad"]},
    ...     {"d1": "The capital of Aruba is Oranjestad.", "d2": "An abacus is a tool."},
    ...     {"what is the capital of Aruba": ["d2", "d1"]},
    ...     reader=reader, measures="P@2", k=2, progress=False, store="reads",
    ... )  # fmt: skip
    >>> result.labels.select("doc_id", "label").sort("doc_id").rows()
    [('d1', 1.0), ('d2', 0.0)]
    >>> result.scores.select("measure", "value").rows()
    [('P@2', 0.5)]

    Args:
        queries: with their answers: a file of any layout; a Polars or pandas frame, a list of dictionaries or a Hugging
            Face dataset with the fields of JSONL (``query``, ``answers``, and perhaps ``query_id`` and ``provenance``);
            ``{query_id: {"query": …, "answers": […]}}``; ``{query: [answer, …]}``; or ``{query_id: query}`` with the
            option ``answers``.
        passages: a file; a frame, a list of dictionaries or a dataset with ``doc_id``, ``text`` and perhaps ``title``
            and ``article_id``; ``{doc_id: text}`` or ``{doc_id: {"title": …, "text": …}}``; None if the runs carry the
            texts; several files, of which run files name theirs (``"mine.trec@words-100"``).
        runs: one run or several: files; frames with ``query_id``, ``doc_id`` and ``rank`` or ``score`` (and ``run``,
            the name of the system); ``{query_id: {doc_id: score}}``; ``{query_id: [doc_id, …]}``, the best first;
            without ``passages``, ``{query_id: [text, …]}`` or frames and lists with ``text``; retrievers, called once
            for each query. Several as a list or ``{name: run}``. Queries go by id or text.
        reader: the LLM: a name as for ``erag evaluate``; a function from a list of prompts to a list of texts; or
            ``engine.Reader``, which gives a function a name and a version that identify its stored reads. A function is
            called in this process unless the option ``actors`` is set.
        metric: the downstream metric: a name, or a function of an output and its reference answers with values in
            [0, 1].
        annotators: the sources of labels: names, functions from a query, its answers, and a passage's title and text to
            a number in [0, 1], and annotators made with ``engine.labels.from_function``.
        k: passages per query at most.
        **options: ``answers`` (``{query_id: [answer, …]}``), ``outputs`` (recorded answers: files, rows,
            ``{run: {query_id: text}}``), ``limit`` (the first queries alone), ``store`` (the folder or address of the read store), ``progress`` (False shows none), ``qrels`` and ``preferences`` (a file,
            ``{query_id: {doc_id: label}}`` or a table), and all of ``engine.python.options``.

    Raises:
        InputError: an unusable argument, in one line.
        ReadError: reads failed, and ``failed_reads`` is ``error``, or unset and more than 5% did.
        TypeError: an unknown option.
    """
    left: dict[str, Any] = {"reader": reader, **options}
    shown = fitted("progress", left.pop("progress", True), bool)
    store = fitted("store", left.pop("store", None), Location | None) or cache_directory() / "reads"
    inputs = UserInputs(
        queries,
        passages,
        runs,
        answers=left.pop("answers", None),
        outputs=recorded_outputs(left.pop("outputs", None)),
        ignore_identical_ids=fitted(_IGNORES, left.pop(_IGNORES, False), bool),
        limit=fitted("limit", left.pop("limit", None), Positive | None),
        tables={n: table for n in input_tables() if (table := left.pop(n, None)) is not None},
    )
    settings = _settings(left, metric, annotators, k, recorded=bool(inputs.outputs))
    refuse_lacking_tables(settings, inputs.tables)
    _refuse_unused(settings, inputs.tables)
    named = name_files(inputs.files(settings))
    with progress(shown=shown) as on_progress:
        context = Context(store=store, on_progress=on_progress, on_event=_LOG.info)
        return Result.of(_evaluated(inputs, settings, context), named)


def _evaluated(inputs: UserInputs, settings: Settings, context: Context) -> Evaluation:
    """The evaluation of inputs in memory, or cut into a folder of the store if they are files too large for that."""
    refuse_unfit([settings])
    files = inputs.files(settings)
    k, requested = settings.ranking.k, settings.running.shard_pairs
    if files is None and requested:
        problem = f"`shard_pairs` {requested} with tables in memory, which are held already"
        raise InputError(problem, "give files, or leave it out", "python.tables")
    pairs = shard_pairs(files, requested, k=k) if files is not None else 0
    if files is None or not pairs:
        in_memory = InMemoryInputs(inputs_of(inputs, settings))
        (evaluation,), _ = evaluate_shards(in_memory, [settings], context)
        return evaluation
    folder = folder_at(context.store) / SHARDS
    cut = partial(partition, files, folder / "inputs", k=k, pairs_per_shard=pairs)
    shards = beside_ray(cut, settings.running.pool())
    with contextlib.ExitStack() as last:
        are_kept = all(own.is_kept for own in settings.reader.functions)
        unknown = settings.has_functions or not are_kept
        # The next evaluation removes a killed process's files there.
        if unknown and isinstance(folder.at, Path):
            folder = folder_at(last.enter_context(temporary_directory(folder.at / "once")))
        (evaluation,), _ = evaluate_shards(shards, [settings], context, folder)
        if unknown and evaluation.parts and not isinstance(folder.at, Path):
            last.callback(evaluation.parts.remove)
        # The result may read tables of passages as long as it exists.
        weakref.finalize(evaluation, last.pop_all().close)
    return evaluation


def _settings(
    options: dict[str, Any], metric: parts.MetricChoice, annotators: Any, k: int, *, recorded: bool
) -> Settings:
    if recorded and options.get("end_to_end", True) is True:
        options["end_to_end"] = "recorded"
    if isinstance(annotators, str | Annotator) or callable(annotators):
        annotators = (annotators,)
    # Functions in options other than metrics and annotators are models.
    functions = {
        name: reader
        for name, value in options.items()
        if (name in parts.MODELS or callable(value))
        and isinstance(reader := parts.reader_of(value), ReaderFunction)
    }
    if isinstance(annotators, list | tuple):
        annotators = [parts.annotator_of(annotator) for annotator in annotators]
    named = options | {name: reader.name for name, reader in functions.items()}
    settings = Settings.of(k=k, metric=parts.metric_of(metric), annotators=annotators, **named)
    called = replace(settings.reader, functions=tuple(dict.fromkeys(functions.values())))
    return replace(settings, reader=called)


def _refuse_unused(settings: Settings, tables: Mapping[str, Any]) -> None:
    in_use = {a.needs_input.name for a in settings.resolved.annotators if a.needs_input}
    if unused := [name for name in tables if name not in in_use]:
        problem = f"`{unused[0]}` without an annotator that needs it"
        raise InputError(problem, "add one to `annotators`, or leave it out", "settings.annotator")


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Progress]:
    """A function that receives the numbers of reads done and requested, and shows them."""
    notebook = sys.modules.get("IPython") if shown else None
    shell = notebook.get_ipython() if notebook else None
    if shown and type(shell).__name__ == "ZMQInteractiveShell":
        yield _NotebookLine(importlib.import_module("IPython.display").display)
    elif shown and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading", total=None)
            yield lambda count, total: bar.update(task, completed=count, total=total)
    else:
        yield lambda count, total: None


class _NotebookLine:
    """A line of a notebook's output, which is replaced as reads are done."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def __call__(self, count: int, total: int) -> None:
        self._count, self._total = count, total
        if self._handle is None:
            self._handle = self._display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return f"reading: {self._count}/{self._total} LLM calls"

    def _repr_html_(self) -> str:
        return f'<progress value="{self._count}" max="{self._total}"></progress> {self!r}'
