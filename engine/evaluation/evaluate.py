"""Evaluate: check the inputs, plan, read and score every shard, then conclude over all shards.

Inputs that fit in memory are a single shard, held in this process. For larger inputs the driver holds counts, and at
the end scores by query; prompts, outputs and labels pass through workers' memory, some shards at a time, and through
files. Finished shards are kept: a stopped evaluation resumes there. A study evaluates each shard under several
settings and does each read once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation import score
from engine.evaluation.conclude import Evaluation, conclude, largest_scores, refuse_unjudged
from engine.evaluation.jobs import (
    Context,
    Job,
    Run,
    digest_of,
    digest_of_shards,
    is_lasting,
    specify_jobs,
    tell_engines,
)
from engine.evaluation.kept import UNKEPT, ShardFolder
from engine.evaluation.plan import with_share
from engine.evaluation.read import JobReads, Readers, read_and_score, refuse_many
from engine.evaluation.score import ShardScores, label, merge, pairs_to_label, split_measures
from engine.evaluation.settings import Settings, leave_out, refuse_unfit
from engine.inputs.files import NO_INPUTS, OUTPUTS, EvaluationInputs, cut_inputs, shares_much
from engine.inputs.shards import FirstQueries, InMemoryInputs, InputShards
from engine.labels.annotator import AnnotatorResult, PartialCorpusError
from engine.machine.remote.limits import forget
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, listed, quoted
from engine.ranking.scores import largest_label, lists_nothing, score_runs, without_results
from engine.reading.backends import Progress
from engine.reading.costs import ReadingCosts
from engine.reading.identity import end_reread
from engine.reading.local import Executor
from engine.scoring.metrics import METRICS, Metric, get_metric
from engine.sources.io.folders import Folder, folder_in_memory
from engine.sources.io.locations import Location
from engine.sources.io.outputs import sole_writer
from engine.sources.io.parallel import mapped
from engine.sources.queries.read import line_of
from engine.tables import ANSWERS, CLUSTER, LABEL, QUERY_ID

_SHOWN = 10


def evaluate(
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Location,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> Evaluation:
    """Evaluate runs: label their passages, score them, and compare with the end-to-end score.

    Args:
        inputs: read at the ``k`` of the settings or larger.
        store, on_progress, on_event, executor: as in ``Context``.

    Raises:
        InputError: the inputs were read at a smaller ``k``, an annotator lacks its needs, or a label is out of range.
        ReadError: reads failed, and ``failed_reads`` is ``error``, or is not set and more than 5% failed.
    """
    context = Context(store=store, on_progress=on_progress, on_event=on_event, executor=executor)
    refuse_unfit([settings])
    (evaluation,), _ = evaluate_shards(InMemoryInputs(inputs), [settings], context)
    return evaluation


def evaluate_shards(
    shards: InputShards,
    conditions: Sequence[Settings],
    context: Context,
    folder: Folder | None = None,
) -> tuple[list[Evaluation], list[Job]]:
    """Evaluate shards under some settings; each needed read is done once.

    Args:
        shards: the inputs, cut at the largest ``k`` of the settings or larger.
        folder: for labels, traces and reads, in subfolders (``Evaluation.parts``), in place of the returned
            evaluations. None to hold everything in memory.

    Returns:
        The evaluations, one per settings, and the jobs of all settings with their costs.

    Raises:
        InputError: as ``evaluate``; another process runs the same evaluation of inputs in a folder. Labels made from
            texts or by reading are refused when their shard is scored, all else before the first shard is read.
        ReadError: reads failed, and ``failed_reads`` is ``error``, or is not set and more than 5% failed.
    """
    start = time.perf_counter()
    forget()
    in_rounds = conditions[0].draws_queries
    with contextlib.ExitStack() as stack:
        place = folder or stack.enter_context(folder_in_memory())
        run = _run_for(shards, conditions, context, place, is_held=folder is None)
        readers = Readers(run.jobs, context, keeps=in_rounds)
        with _at_work(run):
            unfinished, damaged = _unfinished(run)
            noted: tuple[Note, ...] = ()
            if left := [s.number for s in shards.shards if in_rounds or s.number in unfinished]:
                for settings in run.conditions:
                    if in_rounds or len(shards.shards) > 1:
                        refuse_partial_corpus(shards.runs, settings)
                    check(shards, settings)
                tell_engines(run.jobs, conditions[0], context.on_event)
                run, noted = _read(run, left, readers, in_rounds=in_rounds)
            refuse_many(run, readers.reads)
        evaluations = [
            replace(
                _concluded(run, condition, readers.reads),
                settings=settings,
                sha256=_digests(run, shards, settings),
                seconds=time.perf_counter() - start,
            )
            for condition, settings in enumerate(conditions)
        ]
    notes = (*damaged, *noted)
    evaluations = [replace(each, notes=(*notes, *each.notes)) for each in evaluations]
    return evaluations, [replace(reads.job, costs=reads.costs) for reads in readers.reads]


def _run_for(
    shards: InputShards,
    conditions: Sequence[Settings],
    context: Context,
    folder: Folder,
    *,
    is_held: bool,
) -> Run:
    if any(settings.bootstrap.lists for settings in conditions):
        query_ids = shards.queries()[QUERY_ID]
        conditions = [with_share(settings, query_ids) for settings in conditions]
    begun = digest_of(shards, conditions[0], ())
    how = context.executor, context.on_event, context.place, begun
    # Jobs of equal identity are one job: each read is done once.
    known: dict[tuple[object, ...], Job] = {}
    roles: list[dict[str, Job]] = []
    parts: list[ShardFolder] = []
    for settings in conditions:
        jobs = specify_jobs(settings.resolved.roles, settings, *how)
        roles.append({j.ask.role.name: known.setdefault(j.identity, j) for j in jobs})
        further = [table for a in settings.resolved.listed for table in a.further_tables]
        needed = (table.name for table in further if is_held or table.conclusion is not None)
        own = list(roles[-1].values())
        at, names = folder / digest_of(shards, settings, own), [table.name for table in further]
        lasting = is_lasting(settings, own)
        parts.append(ShardFolder(at, tuple(names), tuple(needed), lasting, is_held))
    return Run(
        shards=shards,
        conditions=tuple(conditions),
        roles=tuple(roles),
        jobs=tuple(known.values()),
        parts=tuple(parts),
        store=context.place,
        unkept=parts[0].folder / UNKEPT,
        is_held=is_held,
    )


@contextlib.contextmanager
def _at_work(run: Run) -> Iterator[None]:
    """Lock these evaluations, since two processes would share plans; remove plans and unkept reads at the end."""
    with contextlib.ExitStack() as locks:
        for folder in {parts.folder.at for parts in run.parts if not run.is_held}:
            locks.enter_context(sole_writer(folder))
        try:
            yield
            run.parts[0].clear_plans()
            for job in run.jobs if run.conditions[0].running.reread else ():
                end_reread(job.spec, run.store)
        finally:
            for job in run.jobs:
                if not job.spec.is_kept:
                    outputs = run.unkept / job.spec.fingerprint
                    outputs.delete(outputs.names())


def _unfinished(run: Run) -> tuple[set[int], tuple[Note, ...]]:
    left = [shard for parts in run.parts for shard in parts.unfinished(run.shards.shards).items()]
    damaged = len({number for number, was_scored in left if was_scored})
    what = "shard[|s] [was|were] no longer whole, and scored again: check the disk"
    note = (count_note("damaged_shards", damaged, what),) if damaged else ()
    return {number for number, _ in left}, note


def _read(
    run: Run, left: Sequence[int], readers: Readers, *, in_rounds: bool
) -> tuple[Run, tuple[Note, ...]]:
    """Read and score shards: all queries, or queries that a chooser names in rounds; the run as read, and notes."""
    if not in_rounds:
        read_and_score(run, left, readers)
        return run, ()
    from engine.adaptive.queries import Round, to_width, until_decided

    settings, shards, bootstrap = run.conditions[0], run.shards, run.conditions[0].bootstrap
    queries, runs = shards.queries(), shards.runs
    if not bootstrap.until:
        rounds = to_width(queries, runs, bootstrap)
    else:
        if CLUSTER in queries.columns and not bootstrap.cluster:
            queries = queries if shares_much(queries[CLUSTER]) else queries.drop(CLUSTER)
        rounds = until_decided(
            queries,
            runs,
            bootstrap,
            run.store,
            annotator=settings.resolved.listed[0].name,
            largest=largest_scores(settings, shards),
            alone=settings.scores_lists_alone(len(runs)),
            end_to_end=bool(settings.reader.end_to_end),
        )

    def part_of(named: Round) -> Run:
        if named.last is None:
            share = None if named.lists == queries.height else named.lists
            drawn = with_share(settings.but(lists=share, width=None), queries[QUERY_ID])
            return replace(run, conditions=(drawn,))
        first = FirstQueries(named.order, named.last, named.stopped, named.labels)
        return replace(run, shards=shards.first(first))

    part = part_of(next(rounds))
    while True:
        read_and_score(part, left, readers)
        scored = [part.parts[0].scores(shard) for shard in part.shards.shards]
        downstream = pl.concat([scores.downstream for scores in scored])
        try:
            named = rounds.send((downstream, pl.concat([shard.query_scores for shard in scored])))
        except StopIteration as end:
            return part, end.value
        part = part_of(named)


def _concluded(run: Run, condition: int, all_reads: Sequence[JobReads]) -> Evaluation:
    shards, settings, parts = run.shards, run.conditions[condition], run.parts[condition]
    scores = [parts.scores(shard) for shard in shards.shards]
    for reads in all_reads:
        # Another study may have scored shards: they have the counts of a condition's own jobs only.
        if not reads.is_totalled and reads.job in run.roles[condition].values():
            reads.total(shard.job_reads[reads.job.key] for shard in scores)
    readings = {
        role: replace(job, costs=_costs(run, role, all_reads[run.jobs.index(job)], scores))
        for role, job in run.roles[condition].items()
    }
    passages, notes = shards.within(settings.ranking.k)
    scored = merge(scores, settings, runs=shards.runs, passages=passages)
    scored = replace(scored, notes=(*notes, *scored.notes))
    scores.clear()  # the statistics need the merged scores alone
    tables.give_back_freed_memory()
    evaluation = conclude(scored, readings, settings, shards)
    if run.is_held:
        return replace(evaluation, inputs=run.read(0)[condition])
    return replace(evaluation, parts=parts)


def _costs(run: Run, role: str, reads: JobReads, scores: Sequence[ShardScores]) -> ReadingCosts:
    """The costs of a role under a condition; a study's conditions share reads, which all count as reused or failed."""
    if len(run.conditions) == 1:
        return reads.costs
    counts = [shard.role_reads[role] for shard in scores]
    total, failed = sum(sum(kinds.values()) for kinds, _ in counts), sum(lost for _, lost in counts)
    return ReadingCosts(wanted=total, reused=total - failed, failed=failed)


def _digests(run: Run, shards: InputShards, settings: Settings) -> dict[str, str]:
    """Digests of inputs that the evaluation does not hold: of the shards, or of the inputs before they were cut."""
    if not run.is_held:
        return {"shards": digest_of_shards(shards)}
    if run.shards is shards:
        return {}
    return cut_inputs(shards.read(0), settings.ranking.k).sha256


def check(shards: InputShards, settings: Settings) -> None:
    """Refuse inputs and settings that cannot be evaluated.

    Raises:
        InputError: an annotator lacks its needs, the metric cannot score a query's answers, no query is judged,
            a measure has no meaning on given labels (the error names one label as an example), or a run lists
            nothing for a query and ``missing`` is ``error``.
    """
    if settings.bootstrap.until and len(shards.runs) < 2:
        problem = "`until` with one run, which has no rival"
        raise InputError(problem, "give others, or leave it out", "settings.until")
    queries, resolved = shards.queries(), settings.resolved
    refuse_lacking_tables(settings, shards.tables)
    if (settings.reader.end_to_end == "recorded") != (OUTPUTS in shards.tables):
        problem = "`outputs` need `end_to_end`, and `end_to_end` as recorded needs `outputs`"
        raise InputError(problem, "give both, or neither", "settings.outputs")
    _refuse_queries(shards, queries, settings)
    from_files = [
        own
        for own in resolved.listed
        if own.needs_input and own.name not in resolved.asks and not own.rests_on(settings)
    ]
    # Findings on labels made from a file alone, by annotator; examples are fractional labels.
    judged = {annotator.name: 0 for annotator in from_files}
    exceeding, examples = set[str](), dict[str, pl.DataFrame]()
    counts_missing = settings.ranking.missing == "error"
    lacking: dict[str, list[str]] = {run: [] for run in shards.runs}

    def read(number: int) -> EvaluationInputs:
        return cut_inputs(shards.read(number, passages=False), settings.ranking.k)

    looked_at = range(len(shards.shards)) if from_files or counts_missing else ()
    for inputs in mapped(read, looked_at):
        if counts_missing:
            query_ids = inputs.queries[QUERY_ID].to_list()
            for run, missing in without_results(inputs.runs, query_ids, names=shards.runs):
                lacking[run] += missing
        for annotator in from_files:
            labelled = label(annotator, inputs, settings, pairs_to_label(inputs), {})
            judged[name := annotator.name] += inputs.queries.height - len(labelled.unjudged)
            judged[name] += sum(of.height for of in labelled.tables.values())
            counted = labelled.labels.filter(pl.col(LABEL) >= 0)
            if largest_label(counted[LABEL]) > 1:
                exceeding.add(name)
            example = counted.filter(pl.col(LABEL) != pl.col(LABEL).round()).head(1)
            if example.height:
                examples.setdefault(name, example)
    for run, missing in lacking.items():
        if missing:
            in_order = queries[QUERY_ID].filter(queries[QUERY_ID].is_in(missing))
            raise lists_nothing(run, len(missing), in_order[0])
    for name in judged:
        if name in examples and name in exceeding:
            score.refuse_without_threshold(name, examples[name], settings.resolved.measures)
        split_measures(name, settings, real_valued=name in examples, exceeding=name in exceeding)
    refuse_unjudged(judged)
    # Refuses measures that the definition of relevance gives no meaning.
    score_runs(
        tables.empty({**tables.RUNS, tables.TOKENS: pl.Int64()}),
        tables.empty(tables.LABELS),
        [],
        [measure for measure in settings.resolved.measures if measure.labels != "utilities"],
        relevant=settings.relevant(len(shards.runs)),
    )


def refuse_partial_corpus(runs: tuple[str, ...], settings: Settings) -> None:
    """Refuse annotators that need the whole corpus, if queries are labelled in parts: try each on an empty part."""
    part = replace(NO_INPUTS, names=runs, is_whole=False)
    nothing = AnnotatorResult(tables.empty(tables.LABELS), tables.empty(tables.TRACES))
    rests_on = {annotator.name: nothing for annotator in settings.resolved.annotators}
    for annotator in settings.resolved.annotators:
        try:
            label(annotator, part, settings, pairs_to_label(part), rests_on)
        except PartialCorpusError:
            raise
        except Exception:
            continue  # it needs queries: labelling shows whether it needs the whole corpus


def refuse_lacking_tables(settings: Settings, names: Collection[str]) -> None:
    """Refuse annotators whose file is not among the tables of these names."""
    for annotator, needed in settings.resolved.needed:
        table = needed.needs_input
        if table is not None and table.name not in names:
            problem = f"the annotator {needed.name} without `{table.name}`"
            remedy = f"give `{table.name}` FILE, or {leave_out(annotator, needed.name)}"
            raise InputError(problem, remedy, "settings.table")


def _refuse_queries(shards: InputShards, queries: pl.DataFrame, settings: Settings) -> None:
    if settings.bootstrap.cluster and tables.CLUSTER not in queries.columns:
        problem = "`cluster`, but the inputs were read without"
        raise InputError(problem, "give it to `read_inputs` too", "settings.cluster")
    lacking = not int(queries[tables.PROVENANCE].list.len().sum())
    for annotator, needed in settings.resolved.needed:
        if not needed.needs_provenance or not (lacking or shards.unmatchable):
            continue
        remedy = leave_out(annotator, needed.name)
        if lacking:
            raise InputError("no query has provenance", remedy, "queries.provenance")
        query_id, path = shards.unmatchable[0], shards.queries_file
        problem = f"the gold articles of query {query_id!r} have a title and no id"
        problem += ", and no listed passage has a title"
        remedy = f'add "wikipedia_id" to them, or titles to the corpus, or {remedy}'
        line = None if path is None else line_of(path, query_id)
        raise InputError(problem, remedy, "queries.titles", path=path, line=line)
    if settings.scores_answers:  # else every output of a query would score 0
        refuse_answers(get_metric(settings.reader.metric), queries, shards.queries_file)


def refuse_answers(metric: Metric, queries: pl.DataFrame, path: Location | None) -> None:
    """Refuse queries without an answer that the metric can score; the error names metrics that score all queries."""
    answered = queries.select(QUERY_ID, ANSWERS).filter(pl.col(ANSWERS).list.len() > 0)
    if lost := [row for row in answered.iter_rows() if not any(map(metric.can_score, row[1]))]:
        shown = [f"{query_id!r} ({quoted(answers[0])})" for query_id, answers in lost[:_SHOWN]]
        shown += [f"{len(lost) - _SHOWN} more"] * (len(lost) > _SHOWN)
        whose = f"{agreeing(len(lost), f'[query|{len(lost)} queries:]')} {listed(shown)}"
        every = answered[ANSWERS].to_list()
        able = [m.name for m in METRICS.values() if all(any(map(m.can_score, a)) for a in every)]
        instead = f"use a `metric` that can: {', '.join(able)}" if able else "leave the query out"
        problem = f"the metric {metric.name} cannot score the answers of {whose}"
        remedy = f"write answers with {metric.needs}, or {instead}"
        line = None if path is None else line_of(path, lost[0][0])
        raise InputError(problem, remedy, "metric.answers", path=path, line=line)
