"""Evaluations of other days, readers, prompts or corpora, paired by the queries that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from engine import tables
from engine.evaluation.jobs import WITHOUT_EFFECT
from engine.inputs.files import ARTICLE, shares_much
from engine.messages.checked import fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted, listed
from engine.reading.protocol import UNNAMED
from engine.report.findings import Findings, read_findings
from engine.report.study_report import short_names
from engine.report.summary import METRIC_CODE, SUMMARY
from engine.report.verdict import sentences_on
from engine.statistics.comparison import Clusters, clusters_of
from engine.statistics.correlation import Bootstrap
from engine.statistics.leads import NonInferiority, non_inferiority
from engine.statistics.runs import RunScores, comparer, unit
from engine.statistics.single_labels import SUCCESS
from engine.statistics.table import choose
from engine.tables import ANSWERS, EVALUATED_QUERIES, OUTPUT, QUERY, QUERY_ID, RUN, RUN_B, VALUE

Same = Literal["queries", "corpus", "metric", "reader"]
SAME = get_args(Same)
# Treat queries as independent, in place of the name of a cluster.
_NONE = "none"
_CODE = "reader (code)"
_AGAIN = " (again)"
# Ways in which queries of several evaluations are not the same, each among the queries that pass those before it.
_UNLIKE = (
    "[query is|queries are] not in all folders and [is|are] left out",
    "[query has|queries have] a different text and [is|are] left out",
    "shared [query has|queries have] different reference answers",
)
_FIGURES = ("mean", "mean_b", "difference", "low", "high", "p")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """Runs of several results folders, by their end-to-end scores on the queries that the folders share.

    ``pairs``: ``run`` (``FOLDER:RUN``) of the first folder and ``run_b`` elsewhere, of the same name or alone in their
    folders: means, and the second's ``difference`` with an interval adjusted for all pairs of runs.
    """

    pairs: Rows
    flipped: Rows  # queries that one run of a pair answers (0.5 or more), and the other not
    differing: Rows  # settings, data and versions that are not the same in all folders
    verdict: list[str]  # sentences; none without a common scale of scores
    notes: list[str]  # queries left out, and other notes that qualify the figures
    scores: RunScores
    evaluations: Mapping[str, Findings]
    left_out: list[str]  # reasons for leaving out some of the folders within a place
    unlike: list[str]  # reasons why evaluations, or the runs of a pair, have different queries
    names: Mapping[str, str]  # of every ``FOLDER:RUN``, its run or folder alone, if that is enough

    @property
    def remarks(self) -> list[str]:
        """The notes as lines; changes of queries or reference answers become warnings."""
        return [f"{'warning' if note in self.unlike else 'note'}: {note}" for note in self.notes]

    def gate(self, margin: float, allow: Sequence[str] = ()) -> list[NonInferiority]:
        """For every pair, test whether the second run's mean is below the first's by more than a margin in (0, 1).

        Raises:
            InputError: other things differ, or may differ; a baseline has no partner; a folder
                was left out.
        """
        if self.left_out:
            raise InputError("; ".join(self.left_out), "name one results folder", "results.differ")
        allow = fitted("allow", allow, tuple[Same, ...])
        if not 0 < margin < 1:
            problem = f"`margin` is {margin:g}"
            raise InputError(problem, "give a number between 0 and 1", "settings.margin")
        if unlike := [name for name in self._unlike() if name not in allow]:
            why = f" ({'; '.join(self.unlike)})" if self.unlike and SAME[0] in unlike else ""
            problem = f"{listed(list(self.evaluations))} may differ in {listed(unlike)}{why}"
            remedy = f"evaluate both alike, or `allow` {','.join(unlike)}"
            raise InputError(problem, remedy, "results.differ")
        paired = {row[name] for row in self.pairs for name in (RUN, RUN_B)}
        first = next(iter(self.evaluations))
        others = [run for run in self.scores.runs if run not in paired]
        if alone := [run for run in others if run.startswith(f"{first}:")]:
            problem = f"{alone[0]} has no run to compare with"
            raise InputError(problem, "name a run of each, as FOLDER:RUN", "results.partner")
        of, family, clusters = self.scores.of, len(self.pairs), self.scores.clusters
        differences = [of(row[RUN_B]) - of(row[RUN]) for row in self.pairs]
        return [non_inferiority(d, margin, family=family, clusters=clusters) for d in differences]

    def _unlike(self) -> list[str]:
        unlike, several = {SAME[0]} if self.unlike else set(), self.evaluations.values()
        if len({findings.folder.resolve() for findings in several}) > 1:
            facts = [_facts(findings) for findings in several]
            unlike |= {name for name in SAME if not set.intersection(*(of[name] for of in facts))}
            # Earlier versions stored no code of a function; its version is compared instead.
            codes = [code for of in facts if (code := of[_CODE])]
            ends = {findings.configuration.get("end_to_end") for findings in several}
            if len(ends) > 1 or (codes and not set.intersection(*codes)):
                unlike.add("reader")
        return [name for name in SAME if name in unlike]


def compare(
    *places: str | Path, cluster: str | None = None, allow: Sequence[str] = ()
) -> Comparison:
    """Compare runs of several results folders with the runs of the first folder, query by query.

    Args:
        places: folders that ``erag evaluate`` or ``Result.save`` wrote, or single runs in such folders, as ``FOLDER:RUN``;
            or a folder that holds such folders.
        cluster: Column to cluster queries by: article, or a column that one of the evaluations clustered by; none
            for independent queries. By default as the evaluations did, else by article if many share one.
        allow: answers, for a verdict over queries whose reference answers are not the same in all evaluations.

    Raises:
        InputError: a place holds no such run, or no end-to-end scores; no query is shared; there is one run; the
            clusters are unknown.
    """
    allow = fitted("allow", allow, tuple[Literal["answers"], ...])
    read: dict[str, Findings] = {}
    each: list[tuple[str, str]] = []
    left_out: list[str] = []
    for inner in map(_folders_in, map(Path, places)):
        for path, run in map(_place, map(str, inner)):
            try:
                findings = read.get(path) or read_findings(Path(path), None)
                names_of_runs = _runs(findings, run)
                while any((path, name) in each for name in names_of_runs):  # to pair with itself
                    path += _AGAIN
                each += [(path, name) for name in names_of_runs]
                read[path] = findings
            except InputError as error:
                if len(inner) == 1:
                    raise
                left_out.append(str(error))
    folders = short_names(list(read))
    evaluations = {folders[path]: findings for path, findings in read.items()}
    runs = [(folders[path], run) for path, run in each]
    if len(runs) < 2:
        problem = "; ".join(["there are fewer than two runs", *left_out])
        raise InputError(problem, "give another folder, or another FOLDER:RUN", "results.folders")
    queries, unlike, is_changed = _shared(list(evaluations.values()))
    silent = list(_no_verdict(evaluations.values(), is_changed and "answers" not in allow))
    notes = [*unlike, *silent]
    scored = pl.concat(
        evaluations[name].downstream.filter(run=run).with_columns(run=pl.lit(f"{name}:{run}"))
        for name, run in runs
    ).join(queries, on=QUERY_ID, maintain_order="left")
    clusters, on_clusters = _clusters(list(evaluations.values()), queries, cluster)
    notes += on_clusters
    # Intervals of paired differences take no resamples, for any settings of the evaluations.
    first = next(iter(evaluations.values()))
    bootstrap = Bootstrap(confidence=first.confidence)
    compared = comparer(bootstrap, unit, clusters)
    scores = compared(scored, None, None)
    if scores is None:
        problem = "no query has a score in all runs"
        raise InputError(problem, "compare runs of the same queries", "results.scores")
    if unscored := queries.height - scores.values.shape[1]:
        notes.append(counted(unscored, "shared [query has|queries have] no score in some run"))
    pairs: Rows = []
    for run, run_b in _pairs(runs):
        figures = scores.mean(run), scores.mean(run_b), *scores.difference(run_b, run)
        pairs.append({RUN: run, RUN_B: run_b} | dict(zip(_FIGURES, figures, strict=True)))
    unlike += [*_lost(pairs, scored), *_other_rules(evaluations.values())]
    paired = {row[name] for row in pairs for name in (RUN, RUN_B)}
    notes += [f"{name} has no run to compare with" for name in scores.runs if name not in paired]
    names, flipped, differing = _short_names(runs), _flipped(pairs, scored), _differing(evaluations)
    called = scored.with_columns(pl.col(RUN).replace(names))
    named = replace(scores, runs=tuple(names[run] for run in scores.runs))
    choice = choose(called, named, called, tables.empty(tables.RUN_PAIRS), compared, bootstrap)
    verdict = sentences_on(choice, first.metric, bootstrap) if choice and not silent else []
    notes += [f"left out: {why}" for why in left_out]
    return Comparison(
        pairs, flipped, differing, verdict, notes, scores, evaluations, left_out, unlike, names
    )


def _short_names(runs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Short names by ``FOLDER:RUN``: the run if there is one folder, the folder if each has one run of the same name."""
    folders, own = ({run[place] for run in runs} for place in (0, 1))
    part = slice(1, 2) if len(folders) == 1 else slice(0, 1) if len(own) == 1 else slice(2)
    return {":".join(run): ":".join(run[part]) for run in runs}


def _folders_in(place: Path) -> list[Path]:
    inner = sorted(summary.parent for summary in place.glob(f"*/{SUMMARY}"))
    return [place] if (place / SUMMARY).is_file() or not inner else inner


def _place(text: str) -> tuple[str, str | None]:
    ends = [at for at, letter in enumerate(text) if letter == ":" and Path(text[:at]).is_dir()]
    if not ends or Path(text).is_dir():
        return text, None
    return text[: ends[0]], text[ends[0] + 1 :]


def _runs(findings: Findings, run: str | None) -> list[str]:
    path = findings.folder
    if findings.configuration.get("until"):
        problem = "stopped as soon as its runs differed significantly, and intervals here do not allow for that"
        raise InputError(problem, "evaluate without `until`", "results.stopped", path=path)
    if findings.table("evaluated_queries").is_empty():
        problem = "lacks evaluated_queries.parquet: an earlier version wrote it"
        remedy = "evaluate again; LLM calls are cached"
        raise InputError(problem, remedy, "results.version", path=path)
    known = [name for name in findings.wholes if run in (None, name)]
    if not known:
        problem = f"has no end-to-end scores of {run or 'any run'}"
        remedy = f"it has {', '.join(findings.wholes) or 'none: evaluate with `end_to_end`'}"
        raise InputError(problem, remedy, "results.scoreless", path=path)
    if lost := [name for name in known if name not in findings.downstream[RUN]]:
        path, problem = path / "downstream.parquet", f"has no scores of {lost[0]}"
        raise InputError(problem, "evaluate again", "results.incomplete", path=path)
    return known


def _pairs(runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of baseline and candidate runs; within a single folder, its first run and each other."""
    first, *others = ([run for run in runs if run[0] == name] for name in dict(runs))
    pairs = [] if others else [(first[0], run) for run in first[1:]]
    for other in others:
        lone = len(first) == len(other) == 1
        pairs += [(a, b) for a, b in product(first, other) if lone or a[1] == b[1]]
    return [(":".join(a), ":".join(b)) for a, b in pairs]


def _flipped(pairs: Rows, scored: pl.DataFrame) -> Rows:
    joined = pl.DataFrame(pairs, {RUN: pl.String, RUN_B: pl.String}).join(
        scored.select(RUN, QUERY_ID, QUERY, ANSWERS, OUTPUT, VALUE), on=RUN, maintain_order="left"
    )
    other = scored.select(pl.col(RUN).alias(RUN_B), QUERY_ID, OUTPUT, VALUE)
    joined = joined.join(other, on=[RUN_B, QUERY_ID], suffix="_b", maintain_order="left")
    return joined.filter((pl.col(VALUE) >= SUCCESS) != (pl.col(f"{VALUE}_b") >= SUCCESS)).to_dicts()


def _shared(evaluations: Sequence[Findings]) -> tuple[pl.DataFrame, list[str], bool]:
    """The queries that all have under the same id and text, how others differ, and whether answers do."""
    in_order = pl.col(ANSWERS).list.unique().list.sort()
    each = [findings.table("evaluated_queries").with_columns(in_order) for findings in evaluations]
    by_id, same, alike = (
        reduce(lambda a, b: a.join(b, on=keys, how="semi", maintain_order="left"), each)
        for keys in ([QUERY_ID], [QUERY_ID, QUERY], [*EVALUATED_QUERIES])
    )
    heights = pl.concat(each)[QUERY_ID].n_unique(), by_id.height, same.height, alike.height
    amounts = [more - fewer for more, fewer in pairwise(heights)]
    unlike = [counted(n, what) for n, what in zip(amounts, _UNLIKE, strict=True) if n]
    return same, unlike, amounts[-1] > 0


def _lost(pairs: Rows, scored: pl.DataFrame) -> Iterator[str]:
    ids = {run: set(scores[QUERY_ID]) for (run,), scores in scored.group_by([RUN])}
    for run, run_b in ((pair[RUN], pair[RUN_B]) for pair in pairs):
        if lost := len(ids[run] ^ ids[run_b]):
            yield counted(lost, f"[query has|queries have] a score by {run} or {run_b} alone")


def _other_rules(evaluations: Collection[Findings]) -> Iterator[str]:
    for name in ("end_to_end", "failed_reads", "missing"):
        values = {findings.configuration.get(name) for findings in evaluations}
        # Neither None nor "error" allows many failed reads; without any, they have the same effect.
        if len(values) > 1 and not (name == "failed_reads" and values == {None, "error"}):
            yield f"{name} is {listed(sorted(map(str, values)))}"


def _no_verdict(evaluations: Collection[Findings], is_changed: bool) -> Iterator[str]:
    metrics = sorted({findings.metric for findings in evaluations})
    codes = {findings.summary.get(METRIC_CODE) for findings in evaluations} - {None}
    if len(metrics) > 1:
        yield f"scores by {listed(metrics)} have no common scale"
    elif len(codes) > 1:
        yield f"scores by {metrics[0]} have no common scale: its code differs"
    if is_changed:
        yield "no verdict, since reference answers differ (`allow` answers gives one)"


def _clusters(
    evaluations: Sequence[Findings], queries: pl.DataFrame, cluster: str | None
) -> tuple[Clusters, list[str]]:
    columns = [findings.configuration.get("cluster") for findings in evaluations]
    stored: dict[str, pl.DataFrame] = {}
    for by, findings in zip(columns, evaluations, strict=True):
        if findings.clusters.height:  # other folders may number clusters differently
            stored.setdefault(by or ARTICLE, findings.clusters)
    named = cluster if cluster != _NONE else None
    if named and named not in stored:
        problem = f"`cluster` is {named}, by which no evaluation clustered its queries"
        remedy = f"evaluate with `cluster` {named}, or give {' or '.join([*stored, _NONE])}"
        raise InputError(problem, remedy, "results.cluster")
    by = next(filter(None, [named, *columns]), ARTICLE)
    notes, how = [], f"by `cluster` {by}"
    if by not in stored:
        same_text = pl.col(QUERY).rank("dense").cast(pl.Int64).alias(tables.CLUSTER)
        stored[by], how = queries.select(QUERY_ID, same_text), "of a common text"
        notes.append("an earlier version wrote this: which queries share an article is not known")
    shared = stored[by].join(queries, on=QUERY_ID, how="semi")
    codes = shared[tables.CLUSTER]
    if not (is_much := shares_much(codes)) and not any([named, *columns]):
        return None, notes
    text = f"{queries.height} queries are in {codes.n_unique()} clusters {how}"
    if cluster != _NONE:
        text += ", and intervals, p-values and decisions take clusters as independent"
        return clusters_of(shared, by), [*notes, f"{text} (`cluster` {_NONE}: queries)"]
    text += ", but intervals, p-values and decisions assume independent queries"
    return None, [f"{text}, and may be wrong"] if is_much else []


def _differing(evaluations: Mapping[str, Findings]) -> Rows:
    facts = {name: _facts(findings) for name, findings in evaluations.items()}
    rows: Rows = []
    for setting in dict.fromkeys(name for known in facts.values() for name in known):
        values = {name: known.get(setting) or {"not known"} for name, known in facts.items()}
        if not set.intersection(*values.values()):
            rows.append({"setting": setting} | {name: min(of) for name, of in values.items()})
    return rows


def _facts(findings: Findings) -> dict[str, set[str]]:
    summary, settings = findings.summary, findings.configuration
    audit, reader = summary.get("audit") or {}, summary["reader"] or {}
    facts = {name: [value] for name, value in settings.items() if name not in WITHOUT_EFFECT}
    facts |= {"date": [(audit.get("date") or "")[:19]], "prompt": [reader.get("prompt_sha256")]}
    facts |= {f"{of} (version)": [number] for of, number in summary.get("versions", {}).items()}
    # Queries and corpus are compared by their files, or as tables, by the passages that runs list.
    by, metric, code = reader.get("executor"), findings.metric, summary.get(METRIC_CODE)
    is_known = by != UNNAMED if by else reader.get("version", "") is not None
    facts["reader"] = [(by or reader.get("fingerprint")) if is_known else None]
    facts[_CODE] = [reader.get("code_sha256")]
    if summary["reader"] is None:  # recorded answers, and labels without a reader
        facts["reader"] = ["none"]
    if METRIC_CODE in summary:  # the metric is a function
        facts["metric"] = [code and f"{metric} {code}"]
    for name in SAME[:2]:
        files = [file["sha256"] for file in audit.get("files", []) if file["role"] == name]
        known = ",".join(files) if all(files) else None
        facts[name] = [audit.get("tables_sha256", {}).get(name), known]
    return {name: {*map(_words, values)} - {""} for name, values in facts.items()}


def _words(value: object) -> str:
    known = [] if value is None else value
    return ", ".join(map(str, known)) if isinstance(known, list) else str(known)
