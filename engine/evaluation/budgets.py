"""Lists at a budget of tokens: the lengths of their passages, what of them the reader is given, and what notes say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

import polars as pl

from engine.evaluation.inputs import EvaluationInputs, cut_inputs
from engine.evaluation.settings import Settings
from engine.messages.notes import Note, count_note
from engine.reading.lengths import has_tokenizer, passage_tokens
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, TEXT, TITLE, TOKENS, N

# Inputs whose passages were counted, for as long as they are in use: every job asks for the lists that it reads.
_COUNTED: WeakKeyDictionary[EvaluationInputs, dict[tuple[str, int], EvaluationInputs]]
_COUNTED = WeakKeyDictionary()


def cut_for(inputs: EvaluationInputs, settings: Settings) -> EvaluationInputs:
    """The inputs at the cutoff of the settings; with ``tokens`` of passages in their runs where a budget counts them."""
    cut = cut_inputs(inputs, settings.ranking.k)
    if not budgets_of(settings) or TOKENS in cut.runs.columns:
        return cut
    made, key = _COUNTED.setdefault(inputs, {}), (settings.reader.reader, settings.ranking.k)
    if key not in made:
        passages = cut.corpus.select(TITLE, TEXT).iter_rows()
        tokens = pl.Series(TOKENS, passage_tokens(settings.reader, passages), pl.Int64)
        lengths = cut.corpus.select(DOC_ID).with_columns(tokens)
        runs = cut.runs.join(lengths, on=DOC_ID, how="left", maintain_order="left")
        made[key] = replace(cut, runs=runs)
    return made[key]


def budgets_of(settings: Settings) -> list[int]:
    """The budgets of tokens that measures, or lists that are read whole, have."""
    found = {measure.tokens for measure in settings.resolved.measures if measure.tokens}
    if settings.reader.end_to_end and settings.reader.list_tokens:
        found.add(settings.reader.list_tokens)
    return sorted(found)


def given_together(runs: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """The rows of the run table that the reader of whole lists is given, best first."""
    in_order = runs.sort(RUN, QUERY_ID, RANK)
    if (budget := settings.reader.list_tokens) is not None:
        return in_order.filter(pl.col(TOKENS).cum_sum().over(RUN, QUERY_ID) <= budget)
    return in_order.filter(pl.col(RANK) <= (settings.reader.end_to_end_k or settings.ranking.k))


def budget_notes(inputs: EvaluationInputs, settings: Settings) -> Iterator[Note]:
    """Lists that a budget does not fit: their first passage is too long, or ``k`` ends them before it is filled."""
    k, reader = settings.ranking.k, settings.reader
    for budget in budgets_of(settings):
        lists = inputs.runs.group_by(RUN, QUERY_ID, maintain_order=True).agg(
            pl.col(TOKENS).sort_by(RANK).first().alias("first"), pl.col(TOKENS).sum(), pl.len().alias(N)
        )  # fmt: skip
        for run in inputs.run_names:
            of_run, about = lists.filter(pl.col(RUN) == run), (f"{run} at {budget} tokens",)
            yield count_note(
                "nothing_in_budget",
                of_run.filter(pl.col("first") > budget).height,
                "[list|lists] of {} [begins with a passage that is|begin with passages that are] longer: nothing of "
                "[it|them] is within the budget",
                about=about,
            )
            yield count_note(
                "budget_not_filled",
                of_run.filter(pl.col(TOKENS) <= budget, pl.col(N) == k).height,
                f"[list|lists] of {{}} [ends|end] at `k` {k}, and the budget may hold more: use a larger `k`",
                about=about,
            )
    estimated = bool(budgets_of(settings)) and not has_tokenizer(reader)
    text = f"tokens of passages are a quarter of their characters, since {reader.reader} has no tokenizer here"
    yield Note("estimated_tokens", int(estimated), text)
