"""The page of ``erag ask``: people compare what runs give, on queries drawn from strata that labels make."""

from __future__ import annotations

import hashlib
from math import ceil
from pathlib import Path

import numpy as np
import polars as pl

from engine.evaluation.inputs import EvaluationInputs
from engine.messages.errors import InputError
from engine.messages.wording import listed
from engine.report.findings import Findings
from engine.report.page.render import as_it_is, rendered, require_page, source
from engine.sources.io.files import write_text
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    LABEL,
    OUTPUT,
    QUERY,
    QUERY_ID,
    RANK,
    RUN,
    STRATUM,
    VALUE,
)

_ALIKE, _DISPUTED = " and ", ", disputed"
# Part of the tasks that is drawn from all queries alike; of the others, how much sooner than where all labels prefer one
# run those are drawn where labels disagree, or see no difference (``benchmarks.ask`` has other odds).
_RANDOM, _ODDS = 1 / 3, {_DISPUTED: 1.25, _ALIKE: 0.9}


def write_ask_page(
    inputs: EvaluationInputs, findings: Findings | None, path: Path, *, tasks: int, seed: int
) -> str:
    """Write a page that asks people which run is better, on queries that tell the runs apart; and say how many.

    Args:
        inputs: queries, and two or three runs.
        findings: an evaluation of these, whose labels decide what is asked, and whose answers are compared. Without
            answers that is of each run the first passage that another lacks; without labels all queries are alike.
        path: of the page.
        tasks: how many queries at most.
        seed: of what is drawn, and of the order of sides.

    Raises:
        InputError, WriteError: as ``write_plain``; or no query tells the runs apart.
    """
    require_page()
    names, rng, queries = inputs.run_names, np.random.default_rng(seed), inputs.queries
    of_answers = findings is not None and bool(findings.wholes)
    of_all = pl.len().over(QUERY_ID, DOC_ID) == len(names)
    runs = inputs.runs.with_columns(of_all.alias("common"))
    ranked = runs.sort(RANK) if of_answers else runs.sort("common", RANK)
    # ``output`` is what a run gives: an answer, or the id of a passage.
    ids = pl.col(DOC_ID) if of_answers else pl.col(DOC_ID).head(1)
    by_run = ranked.group_by(QUERY_ID, RUN, maintain_order=True)
    given = by_run.agg(ids, pl.col(DOC_ID).first().alias(OUTPUT), pl.col("common").first())
    if findings is not None:
        if of_answers and findings.summary.get("shards"):
            problem = "was made in shards, which keep no answers of the reader"
            raise InputError(
                problem, "leave `results` out: passages are compared then", path=findings.folder
            )
        known = findings.table("evaluated_queries")
        queries = queries.join(known, on=[QUERY_ID, QUERY], how="semi")
        if of_answers:
            answers = findings.downstream.select(QUERY_ID, RUN, pl.col(OUTPUT).str.strip_chars())
            given = given.drop(OUTPUT).join(answers, on=[QUERY_ID, RUN])
    given = given.join(queries, on=QUERY_ID, how="semi").sort(QUERY_ID, RUN)
    whole = given.filter(pl.len().over(QUERY_ID) == len(names))
    differing = whole.filter(pl.col(OUTPUT).n_unique().over(QUERY_ID) > 1)
    if not of_answers:  # a passage that all list is not the work of one
        differing = differing.filter(~pl.col("common").any().over(QUERY_ID))
    if differing.is_empty():
        problem = f"no query has other {'answers' if of_answers else 'passages'} by {listed(names)}"
        raise InputError(problem, "give runs that differ, and results of these")
    strata, compared = _strata(differing, findings), whole[QUERY_ID].n_unique()
    sizes = dict(strata[STRATUM].value_counts().sort(STRATUM).iter_rows())
    drawn = draw_tasks(strata, tasks, rng).join(queries, on=QUERY_ID, maintain_order="left")
    sides = differing.join(drawn, on=QUERY_ID, how="semi", maintain_order="left")
    named = pl.col(DOC_ID).is_in(sides[DOC_ID].explode().implode())
    data = {
        "of_answers": of_answers,
        "design": {"strata": sizes, "queries": compared},
        "tasks": drawn.select(QUERY_ID, QUERY, STRATUM, "random").to_dicts(),
        "sides": sides[rng.permutation(sides.height)].to_dicts(),
        "passages": inputs.corpus.filter(named).to_dicts(),
    }
    # Of these tasks and no other: a browser keeps judgments by it, and runs no script without it.
    key = hashlib.sha256(str(data).encode("utf-8", "surrogatepass")).hexdigest()
    texts = {"data": data, "key": key, "script": as_it_is(source("asking.js"))}
    write_text(rendered("asking.html.j2", (), single_file=True, settings={}, **texts), path)
    differ = f"{strata.height} of {compared} queries tell the runs apart"
    left_out = f" ({inputs.queries.height - compared} without a result of every run are left out)"
    return differ + left_out * (inputs.queries.height > compared) + f"; tasks: {drawn.height}"


def _strata(given: pl.DataFrame, findings: Findings | None) -> pl.DataFrame:
    """Which run the first label prefers on each query, and whether others do: of answers, scores of them and of lists."""
    queries = given.select(QUERY_ID).unique().sort(QUERY_ID)
    if findings is None:
        return queries.with_columns(pl.lit("all").alias(STRATUM))
    if findings.wholes:
        scored = {"": findings.downstream}
        scored |= {one[0]: findings.scores(*one) for one in findings.primary_measures.items()}
        each = (of.with_columns(pl.lit(name).alias(ANNOTATOR)) for name, of in scored.items())
        scores = pl.concat(of.select(QUERY_ID, RUN, ANNOTATOR, VALUE) for of in each)
        scores = scores.join(given, on=[QUERY_ID, RUN], how="semi", maintain_order="left")
    else:
        labels = findings.table("labels").rename({DOC_ID: OUTPUT, LABEL: VALUE})
        scores = labels.join(given, on=[QUERY_ID, OUTPUT], maintain_order="left")
    best = pl.col(RUN).filter(pl.col(VALUE) == pl.col(VALUE).max()).sort()
    is_disputed = pl.when(pl.col(STRATUM).n_unique() > 1)
    votes = (
        scores.drop_nulls(VALUE)
        .group_by(QUERY_ID, ANNOTATOR, maintain_order=True)
        .agg(best.alias(STRATUM), pl.len())
        .filter(pl.col("len") == given[RUN].n_unique())
        .with_columns(pl.col(STRATUM).list.join(_ALIKE))
        .group_by(QUERY_ID)
        .agg(pl.col(STRATUM).first() + is_disputed.then(pl.lit(_DISPUTED)).otherwise(pl.lit("")))
    )
    voted = queries.join(votes, on=QUERY_ID, how="left", maintain_order="left")
    return voted.with_columns(pl.col(STRATUM).fill_null("without labels"))


def draw_tasks(strata: pl.DataFrame, tasks: int, rng: np.random.Generator) -> pl.DataFrame:
    """Tasks in a random order. Of a stratum all queries are as likely, however many of it are drawn."""
    tasks, turn = min(tasks, strata.height), pl.Series(rng.exponential(size=strata.height))
    is_random = turn.rank() <= ceil(_RANDOM * tasks)
    odds = [next((_ODDS[sign] for sign in _ODDS if sign in name), 1.0) for name in strata[STRATUM]]
    # The random ones; and by turn, which comes sooner with higher odds (Efraimidis & Spirakis 2006).
    order = strata.with_columns(is_random.alias("random")).sort(~is_random, turn / pl.Series(odds))
    return order.head(tasks)[rng.permutation(tasks)]
