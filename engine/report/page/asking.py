"""The page of ``erag ask``: people compare outputs of runs, on queries drawn from strata that labels form."""

from __future__ import annotations

import hashlib
from math import ceil
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.files import EvaluationInputs
from engine.messages.errors import InputError
from engine.messages.wording import listed
from engine.report.findings import Findings
from engine.report.page.render import as_it_is, rendered, require_page, source
from engine.sources.io.files import write_text
from engine.statistics.arrays import Floats, Mask
from engine.tables import ANNOTATOR, DOC_ID, OUTPUT, PROBABILITY, QUERY_ID, RUN, STRATUM, VALUE

_ALIKE, _DISPUTED = " and ", ", disputed"
# Part of the tasks drawn from all queries alike; and relative odds of queries on which labels disagree
# (``benchmarks.intervals``).
_RANDOM, _ODDS = 1 / 3, 1.25
_OF_OTHERS = "give the runs that were evaluated, or leave `results` out"


def write_ask_page(
    inputs: EvaluationInputs, findings: Findings | None, path: Path, *, tasks: int, seed: int
) -> str:
    """Write a page on which people choose the better run, for queries that tell runs apart; return the counts in words.

    The labels of an evaluation decide the tasks, and its answers are compared. If it has no answers, people
    compare each run's first passage that another run lacks; without labels all queries are alike.

    Raises:
        InputError: no query tells the runs apart, or findings are of other lists.
    """
    require_page()
    names, rng, queries = inputs.run_names, np.random.default_rng(seed), inputs.queries
    compares_answers = findings is not None and bool(findings.wholes)
    in_all_runs = pl.len().over(QUERY_ID, DOC_ID) == len(names)
    runs = inputs.runs.with_columns(in_all_runs.alias("common"))
    ranked = runs.sort(tables.RANK) if compares_answers else runs.sort("common", tables.RANK)
    # ``output`` is a run's answer, or the id of its passage.
    ids = pl.col(DOC_ID) if compares_answers else pl.col(DOC_ID).head(1)
    by_run = ranked.group_by(QUERY_ID, RUN, maintain_order=True)
    sides = by_run.agg(ids, pl.col(DOC_ID).first().alias(OUTPUT), pl.col("common").first())
    if findings is not None:
        if compares_answers and findings.summary.get("shards"):
            problem = "was made in shards, which keep no answers of the reader"
            remedy = "leave `results` out: passages are compared then"
            raise InputError(problem, remedy, "results.shards", path=findings.folder)
        known = findings.table("evaluated_queries")
        queries = queries.join(known, on=[QUERY_ID, tables.QUERY], how="semi")
        if compares_answers:
            sides = _with_answers(sides.join(queries, on=QUERY_ID, how="semi"), findings, inputs.k)
    sides = sides.join(queries, on=QUERY_ID, how="semi").sort(QUERY_ID, RUN)
    whole = sides.filter(pl.len().over(QUERY_ID) == len(names))
    differing = whole.filter(pl.col(OUTPUT).n_unique().over(QUERY_ID) > 1)
    if not compares_answers:  # a passage that all runs list distinguishes none
        differing = differing.filter(~pl.col("common").any().over(QUERY_ID))
    if differing.is_empty():
        problem = (
            f"no query has other {'answers' if compares_answers else 'passages'} by {listed(names)}"
        )
        raise InputError(problem, "give runs that differ, and results of these", "results.queries")
    strata, compared = _strata(differing, findings), whole[QUERY_ID].n_unique()
    sizes = dict(strata[STRATUM].value_counts().sort(STRATUM).iter_rows())
    drawn = draw_tasks(strata, tasks, rng).join(queries, on=QUERY_ID, maintain_order="left")
    sides = differing.join(drawn, on=QUERY_ID, how="semi", maintain_order="left")
    named = pl.col(DOC_ID).is_in(sides[DOC_ID].explode().implode())
    columns = QUERY_ID, tables.QUERY, STRATUM, "random", PROBABILITY, "labels"
    data = {
        "of_answers": compares_answers,
        "design": {"strata": sizes, "queries": compared},
        "tasks": drawn.select(columns).to_dicts(),
        "sides": sides[rng.permutation(sides.height)].to_dicts(),
        "passages": inputs.corpus.filter(named).to_dicts(),
    }
    # The key of exactly these tasks: a browser keeps judgments by it, and runs no script without it.
    key = hashlib.sha256(str(data).encode("utf-8", "surrogatepass")).hexdigest()
    texts = {"data": data, "key": key, "script": as_it_is(source("asking.js"))}
    write_text(rendered("asking.html.j2", (), single_file=True, settings={}, **texts), path)
    differ = f"{strata.height} of {compared} queries tell the runs apart"
    left_out = f" ({inputs.queries.height - compared} without a result of every run are left out)"
    return differ + left_out * (inputs.queries.height > compared) + f"; tasks: {drawn.height}"


def _with_answers(sides: pl.DataFrame, findings: Findings, k: int | None) -> pl.DataFrame:
    answers = findings.downstream.select(QUERY_ID, RUN, pl.col(OUTPUT).str.strip_chars())
    answered = sides.drop(OUTPUT).join(answers, on=[QUERY_ID, RUN])
    depth = findings.configuration.get("end_to_end_k")
    if isinstance(depth, int):  # not a budget of tokens, which may allow longer lists
        head = pl.col(DOC_ID).list.head(min(depth, k or depth))
        read = findings.table("reads").select(QUERY_ID, pl.col(tables.DOC_IDS).alias(DOC_ID))
        lists, keys = answered.drop_nulls(OUTPUT).with_columns(head), [QUERY_ID, DOC_ID]
        other = lists.join(read.with_columns(head), on=keys, how="anti")[RUN].unique().sort()
        if other.len():
            problem = f"has answers from other lists of {listed(other.to_list())}"
            raise InputError(problem, _OF_OTHERS, "results.lists", path=findings.folder)
    return answered


def _strata(sides: pl.DataFrame, findings: Findings | None) -> pl.DataFrame:
    """The run that the first label prefers on each query, and whether others differ; answers are labelled by list scores.

    ``labels``: each run's share of the labels' preferences, less its mean; the first counts as much as all others.
    """
    queries, names = sides.select(QUERY_ID).unique().sort(QUERY_ID), sides[RUN].unique().sort()
    if findings is None:
        even = pl.struct(pl.lit(0.0).alias(name) for name in names)
        return queries.with_columns(pl.lit("all").alias(STRATUM), labels=even)
    if findings.wholes:
        by_name = {"": findings.downstream}
        by_name |= {a: findings.scores(a, m) for a, m in findings.primary_measures.items()}
        scores = pl.concat(
            own.select(QUERY_ID, RUN, pl.lit(name).alias(ANNOTATOR), VALUE)
            for name, own in by_name.items()
        ).join(sides, on=[QUERY_ID, RUN], how="semi", maintain_order="left")
    else:
        labels = findings.table("labels").rename({DOC_ID: OUTPUT, tables.LABEL: VALUE})
        scores = labels.join(sides, on=[QUERY_ID, OUTPUT], maintain_order="left")
    scores = scores.drop_nulls(VALUE)
    if scores.is_empty():
        problem = "has no labels of what these runs list"
        raise InputError(problem, _OF_OTHERS, "results.unlabelled", path=findings.folder)
    best = pl.col(RUN).filter(pl.col(VALUE) == pl.col(VALUE).max()).sort()
    is_disputed = pl.when(pl.col(STRATUM).n_unique() > 1)
    # Mean of the first label and the mean of the others.
    votes = [pl.col(STRATUM).list.contains(name) / pl.col(STRATUM).list.len() for name in names]
    shares = [(own.first() + own.slice(1).mean().fill_null(own.first())) / 2 for own in votes]
    first = pl.col(STRATUM).first().list.join(_ALIKE)
    strata = (
        scores.group_by(QUERY_ID, ANNOTATOR, maintain_order=True)
        .agg(best.alias(STRATUM), pl.len())
        .filter(pl.col("len") == len(names))
        .group_by(QUERY_ID)
        .agg(
            first + is_disputed.then(pl.lit(_DISPUTED)).otherwise(pl.lit("")),
            pl.concat_list(shares).alias("labels"),
        )
    )
    # Sparse labels, such as qrels, may cover no query's shown passages in full.
    voted = queries.join(strata, on=QUERY_ID, how="left", maintain_order="left")
    shares = [pl.col("labels").list.get(place).alias(name) for place, name in enumerate(names)]
    centred = pl.struct((share - share.mean()).fill_null(0.0) for share in shares)
    return voted.select(QUERY_ID, pl.col(STRATUM).fill_null("without labels"), labels=centred)


def draw_tasks(strata: pl.DataFrame, tasks: int, rng: np.random.Generator) -> pl.DataFrame:
    """Tasks in random order, with a ``probability`` each, and a ``random`` part drawn from all queries alike.

    All strata have their share, or more if labels disagree, as exactly as whole numbers allow.
    """
    strata = strata[rng.permutation(strata.height)].sort(STRATUM, maintain_order=True)
    tasks, is_disputed = min(tasks, strata.height), strata[STRATUM].str.ends_with(_DISPUTED)
    odds = np.where(is_disputed, _ODDS, 1.0)
    chances = np.minimum(1.0, tasks * odds / odds.sum())
    # If all disputed queries are drawn, the others have the rest.
    chances[odds == 1] = (tasks - chances[odds > 1].sum()) / max(1, (odds == 1).sum())
    drawn = strata.with_columns(pl.Series(PROBABILITY, chances)).filter(_drawn(chances, rng))
    alike = 1 / drawn[PROBABILITY].to_numpy()
    is_random = _drawn(alike * ceil(_RANDOM * tasks) / alike.sum(), rng)
    return drawn.with_columns(pl.Series("random", is_random))[rng.permutation(drawn.height)]


def _drawn(chances: Floats, rng: np.random.Generator) -> Mask:
    """Draw each by its probability, and from neighbours as many as their probabilities add up to (Madow 1949)."""
    sums = (chances.cumsum() + rng.random()).round(9)
    return np.diff(np.floor(sums), prepend=0.0) > 0
