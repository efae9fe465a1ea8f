"""Write an evaluation into a folder: tables, exports and ``summary.json``, all together; never over another's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from engine.evaluation.conclude import Evaluation
from engine.evaluation.jobs import WITHOUT_EFFECT
from engine.evaluation.kept import delivered, shard_tables
from engine.evaluation.settings import Settings
from engine.evaluation.study import Condition, Study
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.report import header, label_kit, study_report, summary, traces
from engine.report.findings import STUDY, Findings
from engine.report.heartbeat import PROGRESS
from engine.report.page_files import BESIDE, PAGE, page_files
from engine.report.summary import REPEATED, SHARDS, STATISTICS, SUMMARY, Origin, conditions_of
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Outputs, replaced_together
from engine.sources.runs.export import exported_files, scored_labels, write_exports
from engine.tables import EVALUATED_QUERIES, RANK

# The summary in the words of the caller: commands name fields as options.
Reworded = Callable[[dict[str, Any]], dict[str, Any]]
_Summarized = Callable[[Evaluation], dict[str, Any]]

CONDITIONS = "conditions"
EXPORTED = "exported"
_LABELS = "labels.parquet"
_OF_READS = ("labels", "reads", "traces")
_OF_QUERIES = ("query_scores", "downstream")
_QUERIES = "evaluated_queries"
_CLUSTERS = "clusters"
# Settings under which an evaluation stays the same: they change no label and no score, only how these are
# analysed, or nothing.
_SAME = frozenset(WITHOUT_EFFECT) - {"engine", "base_url", "endpoint"}


def outputs(out: Location, settings: Settings) -> Outputs:
    """Files and folders that an evaluation under these settings writes or clears, under ``out`` and elsewhere."""
    folder = folder_at(out)
    folders = [CONDITIONS, EXPORTED, SHARDS, BESIDE, *_in_parts(settings)]
    files = [folder.place(name) for name in (*_names(settings), PROGRESS)]
    elsewhere = filter(None, [settings.api.batch_out])
    return Outputs([*files, *elsewhere], [folder.place(name) for name in folders])


def refuse_another(
    out: Location,
    conditions: Mapping[Condition, Settings],
    sha256: Mapping[str, str] | None = None,
    *,
    runs: int = 0,
) -> None:
    """Refuse to write into a folder with another evaluation: of other settings, or of other inputs, if these are known.

    The same evaluation may be repeated, also with other statistics. Names of readers and functions are compared, not
    their content. ``sha256``: digests of its inputs under the first condition, by name; ``runs``: their number.

    Raises:
        InputError: the folder holds another evaluation, or the summary of something else; it cannot be read.
    """
    folder = folder_at(out)
    try:
        content = json.loads(folder.read(SUMMARY))
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError:
        content = None
    if other := "; ".join(_differences(content, conditions, sha256, runs)):
        problem = f"holds another evaluation ({other})"
        remedy = "give another folder, or `overwrite` to replace it"
        raise InputError(problem, remedy, "results.occupied", path=folder.shown())


def _differences(
    there: Any,
    conditions: Mapping[Condition, Settings],
    sha256: Mapping[str, str] | None,
    runs: int,
) -> Iterator[str]:
    known = there.get("configuration") if isinstance(there, dict) else None
    if not isinstance(known, dict) or "means" not in there:
        yield f"{SUMMARY} there is not that of an evaluation"
        return
    first, settings = next(iter(conditions.items()))
    relevant = settings.relevant(runs) if runs else None
    here = summary.jsonable(summary.configuration(settings, relevant or "list", {}))
    for name, value in here.items():
        if name in _SAME or name not in known or (name == "relevant" and relevant is None):
            continue
        if name == "failed_reads" and {known[name], value} == {None, "error"}:
            continue  # neither allows many failed reads; without any, they have the same effect
        if known[name] != value:
            yield f"`{name}` {_shown(known[name])} there, {_shown(value)} here"
    varied = {Condition(c["reader"], c["augmentation"], c["k"]) for c in conditions_of(there)}
    if (varied or {first}) != conditions.keys() and (varied or len(conditions) > 1):
        yield "a study of other conditions" if varied else "no study there"
    if sha256 is not None:
        yield from _other_inputs(there, sha256)


def _other_inputs(there: Mapping[str, Any], sha256: Mapping[str, str]) -> Iterator[str]:
    known = (there.get("audit") or {}).get("tables_sha256", {})
    if (SHARDS in known) != (SHARDS in sha256):
        yield f"in shards {'there' if SHARDS in known else 'here'} alone"
        return
    for name in sorted({*known, *sha256}):
        if known.get(name) != sha256.get(name):
            names = f" ({header.names_of_runs(there)} there)" if name == "runs" else ""
            yield f"other {'inputs' if name == SHARDS else name}{names}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def write_results(
    result: Evaluation,
    files: dict[str, Any],
    out: Location,
    study: Study | None = None,
    origin: Origin | None = None,
    *,
    reworded: Reworded = lambda content: content,
) -> Findings:
    """Write every table and ``summary.json`` under ``out``, replacing an earlier evaluation's all together.

    ``result`` is the first evaluation of a ``study``; the others are written beside it. An earlier page is removed with
    its tables; the caller makes the new page (``page.remake``).

    Raises:
        WriteError: the disk is full, or the place cannot be written; at a path, an earlier evaluation is whole.
        InputError: the address cannot be read.
    """

    def earlier() -> Iterator[str]:
        evaluations = [result] if study is None else list(study.evaluations.values())
        parts = [evaluation.parts for evaluation in evaluations]
        # Shards of functions with unknown code cannot be resumed.
        own = [shards.name for shards in parts if shards and shards.is_lasting]
        return _earlier(folder_at(out), result.settings, own)

    def summarized(evaluation: Evaluation) -> dict[str, Any]:
        return reworded(summary.summarize(evaluation, files, origin))

    with replaced_together(out, earlier, last=SUMMARY) as directory:
        return _write(result, summarized, directory, study)


def _names(settings: Settings) -> list[str]:
    # The files that identify an earlier evaluation are last, so that it is still recognized if half removed.
    whole = (*_OF_QUERIES, _QUERIES, _CLUSTERS, *STATISTICS, *STUDY, *traces.TABLES)
    names = (*_in_parts(settings), *(f"{name}.parquet" for name in whole))
    return [*(name for name in names if name != _LABELS), REPEATED, PAGE, _LABELS, SUMMARY]


def _in_parts(settings: Settings) -> list[str]:
    return [f"{name}.parquet" for name in dict.fromkeys((*_OF_READS, *_further(settings)))]


def _further(settings: Settings) -> list[str]:
    annotators = (*ANNOTATORS.values(), *settings.resolved.listed)
    return [table.name for annotator in annotators for table in annotator.further_tables]


def _earlier(folder: Folder, settings: Settings, shards: Sequence[str]) -> Iterator[str]:
    """Names of files that an earlier evaluation wrote, without the user's files and the new evaluation's ``shards``."""
    yield from (f"{EXPORTED}/{name}" for name in exported_files(folder / EXPORTED))
    yield from page_files(folder)
    folders = folder.folders()

    def in_parts(table: str) -> Iterator[str]:
        if table in folders:
            yield from (f"{table}/{name}" for name in delivered(folder / table))

    for table in _in_parts(settings):
        if table != _LABELS:
            yield from in_parts(table)
    yield from (f"{SHARDS}/{name}" for name in shard_tables(folder / SHARDS, other_than=shards))
    conditions = folder / CONDITIONS
    for name in conditions.folders():
        old = conditions / name
        # Earlier versions kept labels of evaluations in shards elsewhere.
        names = {*old.sizes(), *old.folders()}
        if SUMMARY in names and names & {_LABELS, "query_scores.parquet"}:
            earlier = _earlier(old, settings, [])
            yield from (f"{CONDITIONS}/{name}/{file}" for file in earlier)
    *others, labels, summary_file = _names(settings)
    yield from others
    yield from in_parts(_LABELS)
    yield from (labels, summary_file)


def _write(
    result: Evaluation, summarized: _Summarized, out: Path, study: Study | None = None
) -> Findings:
    parts, shards = result.parts, result.shards
    for name in _OF_QUERIES if parts else (*_OF_READS, *_OF_QUERIES):
        write_parquet(getattr(result, name), out / f"{name}.parquet")
    if parts:
        for name in parts.tables:
            parts.deliver(name, shards.shards, out / f"{name}.parquet")
    queries = shards.queries(EVALUATED_QUERIES).select(list(EVALUATED_QUERIES))
    write_parquet(queries, out / f"{_QUERIES}.parquet")
    _write_unless_empty(result.clusters, out, _CLUSTERS)
    for name in (*_further(result.settings), *traces.TABLES):
        _write_unless_empty(result.further_table(name), out, name)
    for name in STATISTICS:
        write_parquet(getattr(result.statistics, name), out / f"{name}.parquet")
    runs = (shards.read(shard.number, passages=False).runs for shard in shards.shards)
    labels = parts.table("labels", shards.shards) if parts else [result.labels]
    content = summarized(result)
    metadata = label_kit.sections(content, queries, result.query_scores)
    write_exports(
        scored_labels(labels, result.query_scores),
        (rows.filter(pl.col(RANK) <= result.settings.ranking.k) for rows in runs),
        out / EXPORTED,
        runs_in_order=shards.runs,
        describe=partial(label_kit.texts, metadata),
    )
    conditions: list[Findings] = []
    if study is not None:
        content["study"], conditions = _write_study(study, summarized, out)
    content = summary.with_digests(content, out)
    write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", out / SUMMARY)
    return Findings.of(result, content, study, conditions)


def _write_unless_empty(frame: pl.DataFrame, folder: Path, name: str) -> None:
    if not frame.is_empty():  # else not requested
        write_parquet(frame, folder / f"{name}.parquet")


def _write_study(
    study: Study, summarized: _Summarized, out: Path
) -> tuple[dict[str, Any], list[Findings]]:
    names = study_report.directory_names(list(study.evaluations))
    main, *others = study.evaluations
    places = {main: "."} | {c: f"{CONDITIONS}/{names[c]}" for c in others}
    written = [_write(study.evaluations[c], summarized, out / places[c]) for c in others]
    for name in STUDY:
        _write_unless_empty(getattr(study, name), out, name)
    return summary.jsonable(study_report.summarize_study(study, places)), written
