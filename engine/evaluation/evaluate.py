"""Evaluate: plan, read, prepare and score every shard, then conclude over all of them.

Inputs that fit are a single shard, held in this process. Of others the driver holds counts, and in the end the
scores by query; prompts, outputs and labels pass through workers' memory, some shards at a time, and through
files. A shard that is done stays done: an evaluation that was stopped goes on where it was. A study is the same
with several settings a shard, so that each read is done once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.evaluation.api_readers import begin
from engine.evaluation.assess import Evaluation, conclude
from engine.evaluation.check import check, refuse_partial_corpus
from engine.evaluation.context import Context
from engine.evaluation.digest import inputs_sha256
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.parts import UNKEPT, Done, InFolder, InMemory
from engine.evaluation.passes import Pass, read_and_score, refuse_many, without_reads
from engine.evaluation.prepare import prepare, with_share
from engine.evaluation.read_jobs import Job, Reading, asks_of, specify_jobs, tell_engines
from engine.evaluation.repeatability import check_repeatability
from engine.evaluation.rounds import read_to_width, read_until_decided
from engine.evaluation.score import merge, names_of_concluded
from engine.evaluation.settings import Settings
from engine.evaluation.shards import Held, InputShards
from engine.evaluation.workload import Workload, digest_of, digest_of_shards, is_lasting
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.reading.costs import ReadingCosts
from engine.reading.executors import Executor, Progress
from engine.reading.identity import end_reread
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location
from engine.sources.io.outputs import sole_writer
from engine.tables import QUERY_ID


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
        inputs: read at the ``k`` of the settings or at a larger one.
        store, on_progress, on_event, executor: as in ``Context``.

    Raises:
        InputError: the inputs were read at a smaller ``k``, an annotator lacks what it needs, or a label
            is out of range.
        ReadError: reads failed, and ``failed_reads`` is ``error``, or nothing and more than 5% did.
    """
    context = Context(store=store, on_progress=on_progress, on_event=on_event, executor=executor)
    (evaluation,) = evaluate_shards(Held(inputs), [settings], context).evaluations
    return evaluation


class Evaluated(NamedTuple):
    """Evaluations of the same inputs under several settings; what was read for all together, and what that cost."""

    evaluations: tuple[Evaluation, ...]
    readings: tuple[Reading, ...]


def evaluate_shards(
    shards: InputShards,
    conditions: Sequence[Settings],
    context: Context,
    folder: Folder | None = None,
) -> Evaluated:
    """Evaluate shards under some settings; each read that any of them needs is done once.

    Args:
        shards: the inputs, cut at the largest ``k`` of the settings or at a larger one.
        folder: for the tables of passages, which the evaluations that are returned lack then: they are in
            folders inside (``Evaluation.parts``). None to hold everything in memory.

    Raises:
        InputError: as ``evaluate``; of labels made from texts or by reading of inputs in a folder, when the
            shard that it is about is scored; another process is at the same evaluation of inputs in a folder.
        ReadError: reads failed, and ``failed_reads`` is ``error``, or nothing and more than 5% did.
    """
    start = time.perf_counter()
    begin(conditions)
    until = conditions[0].bootstrap.until
    in_rounds = until or conditions[0].bootstrap.width
    if until and len(shards.runs) < 2:
        raise InputError("`until` with one run, which has no rival", "give others, or leave it out")
    drawn = conditions
    if any(settings.bootstrap.lists for settings in conditions):
        query_ids = shards.queries()[QUERY_ID]
        drawn = [with_share(settings, query_ids) for settings in conditions]
    work = _work_for(shards, drawn, context, folder)
    passes = tuple(map(Pass, work.jobs))
    again: tuple[Note, ...] = ()
    noted: tuple[Note, ...] = ()
    whole_sha256: dict[str, str] = {}
    with _at_work(work):
        found = [one for parts in work.parts for one in parts.unfinished(shards.shards).items()]
        if damaged := len({number for number, was_scored in found if was_scored}):
            what = "shard[|s] [was|were] no longer whole, and scored again: check the disk"
            again = (count_note("damaged_shards", damaged, what),)
        unfinished = {number for number, _ in found}
        if left := [s.number for s in shards.shards if in_rounds or s.number in unfinished]:
            for settings in drawn:
                if in_rounds or len(shards.shards) > 1:
                    refuse_partial_corpus(shards.runs, settings)
                check(shards, settings)
            if folder is None:
                prepared = tuple(prepare(shards.read(0), settings) for settings in drawn)
                work = replace(work, prepared=prepared)
            tell_engines(work.jobs, conditions[0], context.on_event)
            if until and work.prepared:
                whole_sha256 = inputs_sha256(work.prepared[0].inputs)
            if in_rounds:
                read_some = read_until_decided if until else read_to_width
                work, noted = read_some(work, passes, context)
            else:
                read_and_score(work, left, passes, context)
        refuse_many(work, passes)
        for job in work.jobs if conditions[0].running.reread else ():
            end_reread(job.spec, work.store)
        certificates = check_repeatability(work, passes, context.executor)
    concluded = (_concluded(work, condition, passes) for condition in range(len(conditions)))
    evaluations = (
        replace(
            evaluation,
            settings=conditions[condition],
            certificates=certificates[condition],
            notes=(*again, *noted, *evaluation.notes),
            sha256=evaluation.sha256 or whole_sha256,
            seconds=time.perf_counter() - start,
        )
        for condition, evaluation in enumerate(concluded)
    )
    return Evaluated(tuple(evaluations), tuple(without_reads(one.job, one.costs) for one in passes))


def _work_for(
    shards: InputShards, conditions: Sequence[Settings], context: Context, folder: Folder | None
) -> Workload:
    how = context.executor, context.on_event, context.place, digest_of(shards, conditions[0], ())
    # Jobs of equal identity are one job: each read is asked once.
    known: dict[tuple[object, ...], Job] = {}
    roles = tuple(
        {
            job.ask.role.name: known.setdefault(job.identity, job)
            for job in specify_jobs(asks_of(settings), settings, *how)
        }
        for settings in conditions
    )
    names = [
        digest_of(shards, settings, list(of_condition.values()))
        for settings, of_condition in zip(conditions, roles, strict=True)
    ]
    parts = tuple(
        InMemory()
        if folder is None
        else InFolder(
            folder / name,
            tuple(table.name for one in settings.resolved.listed for table in one.further_tables),
            tuple(names_of_concluded(settings)),
            is_lasting(settings, of_condition.values()),
        )
        for settings, name, of_condition in zip(conditions, names, roles, strict=True)
    )
    unkept = None if folder is None else folder / names[0] / UNKEPT
    jobs = tuple(known.values())
    return Workload(shards, tuple(conditions), roles, jobs, parts, context.place, unkept)


@contextlib.contextmanager
def _at_work(work: Workload) -> Iterator[None]:
    """Be the only one at these evaluations, which would share plans; remove these, and unkept reads, at the end."""
    with contextlib.ExitStack() as held:
        for folder in {parts.folder.at for parts in work.parts if isinstance(parts, InFolder)}:
            held.enter_context(sole_writer(folder))
        try:
            yield
            work.parts[0].clear_plans()
        finally:
            for job in work.jobs:
                if work.unkept is not None and not job.spec.is_kept:
                    outputs = work.unkept / job.spec.fingerprint
                    outputs.delete(outputs.names())


def _concluded(work: Workload, condition: int, passes: Sequence[Pass]) -> Evaluation:
    shards, settings = work.shards, work.conditions[condition]
    done = [work.parts[condition].done(shard) for shard in shards.shards]
    for pass_ in passes:
        # Shards may have been scored by another study: of a condition that the job belongs to they know it.
        if not pass_.is_totalled and pass_.job in work.roles[condition].values():
            pass_.total(shard.of_jobs[pass_.job.key] for shard in done)
    readings = {
        role: _reading(work, role, job, passes, done) for role, job in work.roles[condition].items()
    }
    if work.prepared:
        ((scored, *_),) = done
    else:
        within = shards.within(settings.ranking.k)
        scored = merge(
            [shard.scored for shard in done], settings, runs=shards.runs, passages=within.passages
        )
        scored = replace(scored, notes=(*within.notes, *scored.notes))
    done.clear()  # the scores are held once while statistics are made of them
    evaluation = conclude(scored, readings, settings, shards)
    parts = work.parts[condition]
    if isinstance(parts, InFolder):
        return replace(evaluation, parts=parts, sha256={"shards": digest_of_shards(shards)})
    return replace(evaluation, inputs=work.prepared[condition].inputs)


def _reading(
    work: Workload, role: str, job: Job, passes: Sequence[Pass], done: Sequence[Done]
) -> Reading:
    """What a role read under a condition, and what that cost; with the reads where these are in memory."""
    reading = done[0].readings.get(role) or without_reads(job, ReadingCosts())
    if len(work.conditions) == 1:
        return replace(reading, costs=passes[work.jobs.index(job)].costs)
    wanted = sum(sum(shard.reads[role].wanted.values()) for shard in done)
    failed = sum(shard.reads[role].failed for shard in done)
    costs = ReadingCosts(wanted=wanted, reused=wanted - failed, failed=failed)
    return replace(reading, costs=costs)
