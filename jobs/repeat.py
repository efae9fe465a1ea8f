"""``erag repeat``: make some LLM calls of an evaluation again, and count the changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import polars as pl

from engine import tables
from engine.evaluation.jobs import Job, specify_jobs, tell_engines
from engine.evaluation.kept import delivered
from engine.evaluation.score import IDENTITY
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_queries_of, runs_with_texts
from engine.labels.annotator import Role
from engine.machine.remote.api_settings import ADDRESS_VARIABLE
from engine.messages.checked import Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted, listed
from engine.python.parts import metric_of
from engine.reading.plan import REQUESTED, with_outputs
from engine.reading.protocol import EngineChoice
from engine.reading.repetition import repeat_sample
from engine.report.findings import Findings, read_findings
from engine.report.summary import METRIC_CODE, PACKAGES, REPEATED, versions
from engine.sources.io.files import write_text
from engine.sources.io.folders import folder_at
from engine.sources.io.parquet import read_parquet
from engine.sources.passages.read import read_corpus
from engine.tables import DOC_ID, DOC_IDS, ENDED, FAILURE, OUTPUT, OUTPUT_TOKENS, QUERY_ID, READ_KEY
from jobs._command import run_command, with_verbosity
from jobs._evaluation_options import reader_functions
from jobs._options import Words
from jobs._progress import event
from jobs._terminal import say, say_json

# Settings that change no read of a given list, that put requests into files, or that files may not set.
_LEFT_OUT = {"measures", "relevant", "lazy", "until", "lists", "width", "batch_in", "batch_out"}
_LEFT_OUT |= {"trust_remote_code"}
_AGAIN = "give what the evaluation had, or evaluate again"
_UNANSWERED = (pl.col(OUTPUT) == "") & (pl.col(OUTPUT_TOKENS) == 0) & pl.col(ENDED).is_null()


@partial(with_verbosity, as_json=True)
def repeat(
    folder: Path, /, *, reads: int = 64, seed: int | None = None, functions: Words = ()
) -> None:
    """Repeat some LLM calls of an evaluation in other batches, and write repeated.json beside its results.

    Counts the outputs and labels that change. Readers, prompts and files are the evaluation's own; if they have
    changed since, nothing is repeated.

    Args:
        folder: Folder that erag evaluate wrote (its --out); for a study, also a folder in its conditions/.
        reads: LLM calls to repeat for each reader (the judge is a reader).
        seed: Seed of the sample; by default the evaluation's.
        functions: FILE.py:function of readers and a metric that are functions of yours.
    """
    fitted("reads", reads, Positive)
    findings = read_findings(folder, None)
    seed = findings.bootstrap.seed if seed is None else fitted("seed", seed, Natural)
    settings = _settings(findings, functions)
    if not (jobs := dict(_jobs(findings, settings))):
        problem = "no LLM call was made"
        raise InputError(problem, "name an evaluation with some", "repeat.empty", path=folder)
    tell_engines([*jobs.values()], settings, event)
    files, stored = findings.files("name an evaluation of files"), list[pl.DataFrame]()
    queries = read_queries_of(files).table
    candidates = dict.fromkeys(jobs, tables.empty(REQUESTED))
    place = findings.whole("reads")
    # Shards hold queries by a hash of their texts: the first shards with enough reads are a random sample.
    for name in sorted(delivered(folder_at(place))) if place.is_dir() else [""]:
        stored.append(tables.with_added(read_parquet(place / name), tables.READS))
        for role, own in _candidates(jobs, stored[-1], queries, files).items():
            if candidates[role][READ_KEY].n_unique() < reads:
                candidates[role] = pl.concat([candidates[role], own])
        if all(own[READ_KEY].n_unique() >= reads for own in candidates.values()):
            break
    content = {}
    for role, job in jobs.items():
        failed = pl.when(_UNANSWERED & (findings.roles[role].failed > 0)).then(pl.lit("failed"))
        content[role.name] = result = repeat_sample(
            candidates[role],
            with_outputs(candidates[role], pl.concat(stored).with_columns(failed.alias(FAILURE))),
            job.spec,
            size=reads,
            seed=seed,
            score=lambda some, job=job: job.ask.value(some, queries),  # type: ignore[misc]
            pool=settings.running.pool(),
        )
        digests = (findings.summary.get("audit") or {}).get("tables_sha256", {})
        result["sha256"] |= {"prompt": job.prompt.digest, **digests}
        result["versions"] = versions(PACKAGES)
        say(_line(result, role.title))
    write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", folder / REPEATED)
    say_json(content)
    say(f"results -> {folder / REPEATED}")


def _line(result: Mapping[str, Any], title: str) -> str:
    failed = f", {result['failed']} failed" if result["failed"] else ""
    return (
        f"repeatability check{f' of {title}' if title else ''}: "
        f"{counted(result['repeated'], 'LLM call[|s]')} repeated{failed}, "
        f"{counted(result['changed_outputs'], 'output[|s]')} and "
        f"{counted(result['changed_labels'], 'label[|s]')} changed"
        f"{'' if result['reproducible'] else ' (a server or a function may answer differently each time)'}"
    )


def _settings(findings: Findings, functions: Words) -> Settings:
    known, readers = findings.configuration, reader_functions(functions)
    own = {text.rpartition(":")[2]: text for text in functions}
    who = [described for role in findings.roles if (described := findings.summary[role.key])]
    needed = [reader["name"] for reader in who if reader.get("engine") == "function"]
    needed += [findings.metric] * (METRIC_CODE in findings.summary)
    for name in sorted({*needed}.difference(own, (reader.name for reader in readers))):
        problem = f"{name} is a function, which results do not hold"
        remedy = f"add `functions` FILE.py:{name}"
        raise InputError(problem, remedy, "repeat.function", path=findings.folder)
    flat = {name: known[name] for name in (Settings().flat().keys() & known.keys()) - _LEFT_OUT}
    flat["metric"] = metric_of(own.get(findings.metric, findings.metric))
    if "***" in (known.get("base_url") or ""):  # results hold no credentials
        flat["base_url"] = os.environ.get(ADDRESS_VARIABLE, known["base_url"])
    # User-defined annotators are unknown here: a stand-in without reads replaces them.
    flat["annotators"] = known["annotators"] or ["qrels"]
    return Settings.of(functions=readers, **flat)


def _jobs(findings: Findings, settings: Settings) -> Iterator[tuple[Role, Job]]:
    asks = {ask.role: ask for ask in settings.resolved.roles}
    there = (*asks, *(findings.roles.keys() - asks))
    for role in (role for role in there if findings.summary.get(role.key)):
        then, own, who = findings.summary[role.key], settings, role.title or "the reader"
        if role not in asks or then.get("executor"):
            problem = f"LLM calls of {who} were made for an annotator, or by a program, of yours"
            raise InputError(problem, "repeat them there", "repeat.calls", path=findings.folder)
        if then.get("engine") in get_args(EngineChoice):
            own = settings.but(engine=then["engine"], dtype=then["dtype"])
        (job,) = specify_jobs([asks[role]], own, on_event=event)
        # Its reads may have been renewed before.
        specs = (replace(job.spec, renewals=number) for number in range(1000))
        spec = next((spec for spec in specs if spec.fingerprint == then["fingerprint"]), None)
        if spec is None or job.prompt.digest != then["prompt_sha256"]:
            problem = f"{who} is not what it was (weights or version, prompt, settings)"
            raise InputError(problem, _AGAIN, "repeat.impossible", path=findings.folder)
        yield role, replace(job, spec=spec)


def _candidates(
    jobs: Mapping[Role, Job], reads: pl.DataFrame, queries: pl.DataFrame, files: InputFiles
) -> dict[Role, pl.DataFrame]:
    """The reads of each role (``plan.REQUESTED``), with prompts made from the files; an error if the files changed."""
    lists = reads.select(IDENTITY).unique(maintain_order=True)
    lists = lists.join(queries, on=QUERY_ID, how="semi", maintain_order="left")
    if files.corpus is None:
        corpus = runs_with_texts(files)[1]
        assert corpus is not None
    else:
        ids = set(lists[DOC_IDS].explode())
        corpus = read_corpus(files.corpus, ids=ids, skip_bad=files.skip_bad)
    there = set(corpus[DOC_ID])
    lists = lists.filter([there.issuperset(passages) for passages in lists[DOC_IDS]])
    queries = queries.join(lists, on=QUERY_ID, how="semi")
    # Keys of roles that a list was not read in match no read.
    planned = {role: job.requested(lists, queries, corpus) for role, job in jobs.items()}
    others = reads.join(pl.concat(planned.values()), on=READ_KEY, how="anti")
    if others.height:
        new = {role: own.join(reads, on=READ_KEY, how="anti") for role, own in planned.items()}
        whose = [r for r, own in new.items() if own.join(others, on=IDENTITY, how="semi").height]
        who = listed([role.title or "the reader" for role in whose or planned])
        problem = f"queries, answers or passages that {who} read have changed"
        raise InputError(problem, _AGAIN, "repeat.inputs")
    keys = reads[READ_KEY].implode()
    return {role: own.filter(pl.col(READ_KEY).is_in(keys)) for role, own in planned.items()}


if __name__ == "__main__":
    run_command(repeat)
