"""Labels from reads of single passages by an LLM: eRAG's, log-probabilities, gains, utilities, and a judge's labels.

eRAG (Salemi & Zamani, SIGIR 2024, equation 1): G_q[d] = E_M(M(q, {d}), y).

For a query q, a passage d and reference answers y, where p is the reader's probability of a text behind its
prompt, teacher-forced:

- ``likelihood``: max over y of p(y | q, d) ** (1 / |y|), the probability by token, in [0, 1] (REPLUG, Shi et al.,
  NAACL 2024, and Atlas, Izacard et al., JMLR 2023, weigh passages by p(y | q, d));
- ``dig``: max over y of p(y | q, d), less max over y of p(y | q), in [-1, 1] (document information gain, Wang et
  al., EMNLP 2025, arXiv 2509.12765; without their smoothing of p over windows and their weights of the first tokens);
- ``pmi``: (log p(q | d) - log p(q)) / |q|, in nats by token (Liu et al., NAACL 2025, arXiv 2411.07773);
- ``perplexity``: one over the perplexity of the reader's own answer a from d, p(a | q, d) ** (1 / |a|), in (0, 1].

A read that failed counts as a probability of 0; with ``pmi`` its passage has label 0.

``gain`` is E_M(M(q, {d}), y) - E_M(M(q, {}), y), in [-1, 1]: 0 if the reader knew the answer anyway, below 0 if the
passage spoils it. The harm rate is the share of passages that turn a right answer wrong, among the passages of queries
that the reader answers right without any. An answer is right if its score is 1/2 or more.

``utility`` is UDCG's (Trappolini et al., arXiv 2510.21440): how much a passage helps, minus how much it distracts. A
passage that helps is worth +1, any other -1/3, each times the probability that the reader answers from it at all, one
minus that of declining (the distracting effect of Amiraz et al., arXiv 2505.06914). So a passage without the answer
costs the more, the more surely the reader takes an answer from it. The weights, and the mean over a list that
``engine.ranking.scores`` takes, are the authors' (github.com/GiovanniTRA/UDCG).

``judge``: an LLM judges whether a passage is relevant (after Thomas et al., SIGIR 2024).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import polars as pl

from engine import tables
from engine.labels import annotator
from engine.labels.annotator import AnnotatorResult, EvaluationSettings, Material, Role, Scale
from engine.messages.checked import CheckedSettings
from engine.messages.notes import Note
from engine.messages.wording import with_interval
from engine.reading.prompting.prompts import ABSTAIN, JUDGE, QUESTION, read_template, styles
from engine.scoring.metrics import Metric, get_metric, score_outputs
from engine.statistics.bounded import mean_interval
from engine.statistics.comparison import Clusters, numbered
from engine.tables import CONFIDENCE, DOC_ID, KNOWN, LABEL, METRIC, OUTPUT, QUERY_ID, VALUE

NAME = "erag"
_ANOTHER_READER = Role("erag", "the reader for eRAG", "erag_reader", is_readers=True)


@dataclass(frozen=True, kw_only=True)
class Options(CheckedSettings):
    """Options of the annotator ``erag``.

    Attributes:
        erag_reader: Another model for single passages, named like a reader, for eRAG's labels and for
            utilities: can a cheaper one stand in for the reader?
    """

    erag_reader: str | None = None


def trace_erag(
    labels: pl.DataFrame, reads: pl.DataFrame, queries: pl.DataFrame, metric: str | Metric
) -> pl.DataFrame:
    """Traces of eRAG's labels: the read, its output, the metric, and the answer that gave the label.

    ``answer`` is the first answer whose value under the metric is the label. It is null if the label is 0, or if a
    user's metric scored several answers, since it need not be a maximum.

    Args:
        labels: eRAG's labels, in the order of ``reads``.
    """
    function = get_metric(metric)
    answers: dict[str, list[str]] = dict(queries.select(QUERY_ID, tables.ANSWERS).iter_rows())

    @functools.cache
    def answer(query_id: str, output: str, label: float) -> str | None:
        if label <= 0 or (function.own and len(answers[query_id]) > 1):
            return None
        # The metric is a maximum over answers, so a single answer gives the label.
        return next((text for text in answers[query_id] if function(output, [text]) == label), None)

    rows = zip(labels[QUERY_ID], reads[OUTPUT], labels[LABEL], strict=True)
    matches = pl.Series(tables.ANSWER, [answer(*row) for row in rows], dtype=pl.String)
    named = pl.lit(function.name).alias(METRIC)
    return annotator.complete(
        labels.with_columns(reads[tables.READ_KEY], reads[OUTPUT], named, matches)
    )


def asks(settings: EvaluationSettings) -> annotator.Ask:
    """The reads of eRAG: by the reader, or another model in its place, of each passage."""
    ask, other = annotator.ask_reader(settings.reader), settings.options(Options).erag_reader
    if other is None:
        return ask
    return replace(ask, role=_ANOTHER_READER, model=other, augmentation=None)


def _label(material: Material) -> AnnotatorResult:
    queries, metric = material.queries, material.settings.reader.metric
    # The output of a failed read is empty, which scores 0.
    scored = score_outputs(material.reads, queries, metric)
    labels = annotator.labels_of(NAME, scored, pl.col(VALUE))
    return AnnotatorResult(labels, trace_erag(labels, material.reads, queries, metric))


def _scale(settings: EvaluationSettings) -> Scale:
    if not get_metric(settings.reader.metric).graded:
        return Scale()
    return Scale(graded=f"eRAG's graded labels under {settings.reader.metric_name}")


ANNOTATOR = annotator.Annotator(
    name=NAME,
    meaning="the reader's score on the passage alone",
    label=_label,
    options=Options,
    role=_ANOTHER_READER,
    asks=asks,
    scale=_scale,
    is_the_readers=True,
    needs_answers=True,
)


_ANSWERS = Role("score", "the reader that scores answers", "score", is_readers=True)
_QUESTIONS = Role("question", "the reader that scores questions", "question", is_readers=True)
_OWN = Role("own", "the reader that weighs its answers", "own_answers", is_readers=True)

_BY_TOKEN = pl.col(CONFIDENCE).fill_null(0.0)
_WHOLE = _BY_TOKEN.pow(pl.col(tables.OUTPUT_TOKENS))
# Finite, despite underflow.
_LOG = pl.col(CONFIDENCE).clip(lower_bound=1e-300).log()
CLOSED = "closed"
# The gain: a passage's value less the value without passages.
GAINED = pl.col(VALUE) - pl.col(CLOSED)


def best(reads: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """The read with the largest ``value`` for each query and passage (or none), in the order of the reads."""
    passage = pl.col(tables.DOC_IDS).list.first().fill_null("")
    named, pair = reads.with_columns(passage.alias(DOC_ID), value.alias(VALUE)), [QUERY_ID, DOC_ID]
    most = pl.col(VALUE).max().over(pair)
    highest = named.filter((pl.col(VALUE) == most) | most.is_null())
    return highest.unique(pair, keep="first", maintain_order=True)


def with_closed(reads: pl.DataFrame) -> pl.DataFrame:
    """Reads with a passage, with the query's ``value`` without passages as ``closed``."""
    none = pl.col(tables.DOC_IDS).list.len() == 0
    known = reads.filter(none).select(QUERY_ID, pl.col(VALUE).alias(CLOSED))
    return reads.filter(~none).join(known, on=QUERY_ID, how="left", maintain_order="left")


def _label_scored(name: str, value: pl.Expr, closed: bool, material: Material) -> AnnotatorResult:
    valued, label = best(material.reads, value), pl.col(VALUE)
    if closed:
        valued, label = with_closed(valued), GAINED
    labels = annotator.labels_of(name, valued, label.fill_null(0.0))
    return AnnotatorResult(labels, trace_judge(labels, valued))


def _asks_scores(role: Role, closed: bool, settings: EvaluationSettings) -> annotator.Ask:
    ask = replace(
        asks(settings),
        role=role,
        value=lambda reads, queries: reads.select(_BY_TOKEN)[CONFIDENCE],
        scores="own" if role == _OWN else "target",
        closed=closed,
    )
    if role != _QUESTIONS:
        return ask
    style = ask.prompt if ask.prompt in styles(QUESTION) else None
    return replace(ask, task=QUESTION, prompt=style, augmentation="in-prompt")


_MEANINGS = {
    "likelihood": "probability by token of the likeliest reference answer",
    "dig": "gain in a reference answer's probability by the passage",
    "pmi": "above 0 if the passage makes the query likelier",
    "perplexity": "the reader's certainty of its answer, 1 / perplexity",
}


def _annotator(
    name: str, value: pl.Expr, graded: str, role: Role, *, closed: bool = False
) -> annotator.Annotator:
    scale = Scale(graded, utilities=not graded)
    return annotator.Annotator(
        name=name,
        meaning=_MEANINGS[name],
        label=partial(_label_scored, name, value, closed),
        uses_options_of=(NAME,),
        needs_answers=role == _ANSWERS,
        role=role,
        asks=partial(_asks_scores, role, closed),
        scale=lambda settings: scale,
    )


LIKELIHOOD = _annotator("likelihood", _BY_TOKEN, "likelihoods of answers", _ANSWERS)
DIG = _annotator("dig", _WHOLE, "document information gains", _ANSWERS, closed=True)
PMI = _annotator("pmi", _LOG, "", _QUESTIONS, closed=True)
PERPLEXITY = _annotator("perplexity", _BY_TOKEN, "inverse perplexities", _OWN)


GAIN = "gain"


def _label_gain(material: Material) -> AnnotatorResult:
    queries, metric = material.queries, material.settings.reader.metric
    scored = score_outputs(material.reads, queries, metric)
    both = with_closed(scored).with_columns(pl.col(tables.DOC_IDS).list.first().alias(DOC_ID))
    labels = annotator.labels_of(GAIN, both, GAINED.fill_null(0.0))
    scores = annotator.labels_of(NAME, both, pl.col(VALUE))
    traces = trace_erag(scores, both, queries, metric)
    gains = traces.with_columns(pl.lit(GAIN).alias(tables.ANNOTATOR), labels[LABEL])
    known = pl.col(CLOSED) >= HELPS
    outcomes = both.group_by(QUERY_ID, maintain_order=True).agg(
        known.first().alias(KNOWN),
        pl.len().cast(pl.Int64).alias(tables.PASSAGES),
        (known & (pl.col(VALUE) < HELPS)).sum().cast(pl.Int64).alias(tables.HARMED),
    )
    return AnnotatorResult(labels, gains, {_HARM.name: outcomes})


def _conclude(
    outcomes: pl.DataFrame, settings: EvaluationSettings, clusters: Clusters
) -> pl.DataFrame:
    known = outcomes.filter(KNOWN).sort(QUERY_ID)
    sizes, harmed = known[tables.PASSAGES].to_numpy(), known[tables.HARMED].to_numpy()
    rate = low = high = float("nan")
    if known.height:
        rate = float(harmed.sum() / sizes.sum())
        if settings.bootstrap.resamples:
            # Passages of a query are not independent: each query is a cluster, or in one.
            codes = numbered(known[QUERY_ID], clusters)
            places = np.arange(known.height) if codes is None else codes
            spoilt = np.concatenate([np.arange(n) < h for n, h in zip(sizes, harmed, strict=True)])
            level, scores = settings.bootstrap.confidence, spoilt.astype(np.float64)
            low, high = mean_interval(scores, level, np.repeat(places, sizes))
    row = (outcomes.height, known.height, int(sizes.sum()), int(harmed.sum()), rate, low, high)
    return pl.DataFrame([row], schema=tables.HARM, orient="row")


def display_harm(harm: pl.DataFrame, level: str) -> annotator.Display:
    """The harm rate for printing; ``level`` as in ``dual.display``."""
    ((n, known, passages, harmed, *rate),) = harm.iter_rows()
    shown = with_interval(*rate) if known else "undefined"
    return annotator.Display(
        "Harm: passages that turn an answer wrong that is right without any",
        ["queries answered right without a passage"],
        ["their passages", "that turn it wrong", f"harm rate{level}"],
        [([f"{known} of {n}"], [str(passages), str(harmed), shown])],
    )


_HARM = annotator.FurtherTable(
    name="harm",
    schema=tables.HARM,
    in_summary=True,
    conclusion=annotator.Conclusion(tables.HARM_OUTCOMES, _conclude),
    display=display_harm,
)

GAIN_ANNOTATOR = annotator.Annotator(
    name=GAIN,
    meaning="eRAG's label less the score without a passage",
    label=_label_gain,
    uses_options_of=(NAME,),
    role=ANNOTATOR.role,
    asks=lambda settings: replace(asks(settings), closed=True),
    scale=ANNOTATOR.scale,
    needs_answers=True,
    further_tables=(_HARM,),
)


UTILITY = "utility"

# The labels that mark helpful passages: the paper's are human, and stand for "the passage holds the answer".
Helpful = Literal["erag", "containment", "containment-substring", "provenance"]

DISTRACTING = -1 / 3
# Graded labels of at least this much count as helping.
HELPS = 0.5
# Smaller differences between scores over all queries show no intent of the reader.
_SPREAD = 1e-3
_ABSTAIN = Role("abstain", "the reader that may decline", "abstain", is_readers=True)


@dataclass(frozen=True, kw_only=True)
class UtilityOptions(CheckedSettings):
    """Options of the annotator ``utility``; an unusable prompt template is an InputError.

    Attributes:
        helpful: For utility: whose labels say which passages help.
        abstain_prompt: For utility: the prompt that lets the reader decline: 'completion', 'chat', 't5',
            'completion-ko' or 'chat-ko' in Korean, or a file; by default one in the style of the reader's prompt.
    """

    helpful: Helpful = "erag"
    abstain_prompt: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.abstain_prompt is not None:
            read_template(self.abstain_prompt, ABSTAIN)


def weigh(reads: pl.DataFrame) -> pl.Series:
    """The reader's certainty of answering: 1 - P(declines), its ``confidence``, in [0, 1]; 0 for a failed read."""
    return reads.select((1.0 - pl.col(CONFIDENCE).fill_null(1.0)).alias(VALUE))[VALUE]


def label_utility(reads: pl.DataFrame, helpful: pl.DataFrame) -> pl.DataFrame:
    """Labels table, in [-1/3, 1], from single-passage reads that may decline; ``helpful`` labels >= ``HELPS`` help."""
    helps = helpful.select(QUERY_ID, DOC_ID, (pl.col(LABEL) >= HELPS).alias("_helps"))
    passage = pl.col(tables.DOC_IDS).list.first().alias(DOC_ID)
    weighed = reads.select(QUERY_ID, passage, weigh(reads)).join(
        helps, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left"
    )
    sign = pl.when("_helps").then(1.0).otherwise(DISTRACTING)
    return annotator.labels_of(UTILITY, weighed, sign * pl.col(VALUE))


def trace_judge(labels: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Traces of a judge's labels, in the order of its reads: the read and the probability; null if it failed."""
    return annotator.complete(
        labels.with_columns(reads[tables.READ_KEY], reads[OUTPUT], reads[CONFIDENCE])
    )


def _asks_utility(settings: EvaluationSettings) -> annotator.Ask:
    options, reader = settings.options(UtilityOptions), settings.reader
    style = reader.prompt if reader.prompt in styles(ABSTAIN) else None
    return replace(
        asks(settings),
        role=_ABSTAIN,
        task=ABSTAIN,
        prompt=options.abstain_prompt or style,
        augmentation="in-prompt",
        value=lambda reads, queries: weigh(reads),
        description={"helpful": options.helpful},
    )


def _label_utility(material: Material) -> AnnotatorResult:
    (helpful,), reads = material.rests_on.values(), material.reads
    labels = label_utility(reads, helpful.labels)
    columns, pair = (OUTPUT, METRIC, tables.ANSWER, tables.ARTICLE_ID), [QUERY_ID, DOC_ID]
    traced = labels.with_columns(reads[tables.READ_KEY], reads[CONFIDENCE])
    origins = helpful.traces.select(*pair, *columns)
    traces = traced.join(origins, on=pair, how="left", maintain_order="left")
    return AnnotatorResult(labels, annotator.complete(traces))


def _score_notes(settings: EvaluationSettings, scores: pl.DataFrame) -> Iterator[Note]:
    listed = scores.filter(pl.col(VALUE) > 0)
    if settings.ranking.missing == "zero" and listed.height < scores.height:
        yield Note(
            "utilities_of_empty_lists",
            1,
            "UDCG is 0 where a run lists nothing, and 0.42 or more for any list, so empty lists "
            "dominate its comparison of runs; `missing` skip leaves them out",
        )
    cells = listed.group_by([tables.RUN, tables.MEASURE], maintain_order=True)
    for (run, measure), cell in cells:
        spread = float(cell[VALUE].max() - cell[VALUE].min())  # type: ignore[operator, arg-type]
        if cell.height > 1 and spread < _SPREAD:
            yield Note(
                "utilities_all_alike",
                1,
                f"{measure} of {run} differs by {spread:.1g} over all queries: this reader hardly ever "
                "declines, and correlations are of differences too small to mean anything",
                (str(run),),
            )
    task, prompt = settings.reader.task, settings.options(UtilityOptions).abstain_prompt
    if task != "short-answer" and prompt is None:
        yield Note(
            "abstain_prompt_of_another_task",
            1,
            "the prompt that lets the reader decline asks a question, and the task is "
            f"{task}: `abstain_prompt` FILE asks as the task does",
        )


UTILITY_ANNOTATOR = annotator.Annotator(
    name=UTILITY,
    meaning="above 0 if the passage helps the reader, below if it distracts",
    label=_label_utility,
    options=UtilityOptions,
    uses_options_of=(NAME,),
    rests_on=lambda settings: (settings.options(UtilityOptions).helpful,),
    rests_by="helpful",
    role=_ABSTAIN,
    asks=_asks_utility,
    scale=lambda settings: Scale(utilities=True),
    score_notes=_score_notes,
)


JUDGE_NAME: Literal["judge"] = "judge"

JudgeLabels = Literal["binary", "graded"]
_JUDGE = Role("judge", "the judge", "judge")


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(CheckedSettings):
    """Options of the annotator ``judge``; an unusable prompt template is an InputError.

    Attributes:
        judge: The model that judges relevance, named like a reader; by default the reader itself.
        judge_prompt: Its prompt template: 'completion', 'chat', 't5', 'monot5', 'completion-ko' or 'chat-ko'
            in Korean, or a file.
        judge_labels: Relevant or not (binary), or the probability of relevance (graded).
    """

    judge: str | None = None
    judge_prompt: str | None = None
    judge_labels: JudgeLabels = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge_prompt is not None:
            read_template(self.judge_prompt, JUDGE)


def label_judge(reads: pl.DataFrame, labels: JudgeLabels) -> pl.DataFrame:
    """Labels table from single-passage reads, by the probability of the judge's first choice.

    ``binary``: 1.0 if the probability exceeds 1/2, else 0.0; ``graded``: the probability itself; 0 for a failed read.
    """
    probability = pl.col(CONFIDENCE).fill_null(0.0)
    value = probability if labels == "graded" else (probability > 0.5).cast(pl.Float64)
    return annotator.labels_of(JUDGE_NAME, reads, value)


def _asks_judge(settings: EvaluationSettings) -> annotator.Ask:
    options = settings.options(JudgeOptions)
    return annotator.Ask(
        role=_JUDGE,
        model=options.judge or settings.reader.reader,
        task=JUDGE,
        prompt=options.judge_prompt,
        augmentation="in-prompt",
        value=lambda reads, queries: label_judge(reads, options.judge_labels)[LABEL],
        description={"labels": options.judge_labels},
    )


def _label_judge(material: Material) -> AnnotatorResult:
    labels = label_judge(material.reads, material.settings.options(JudgeOptions).judge_labels)
    return AnnotatorResult(labels, trace_judge(labels, material.reads))


def _scale_judge(settings: EvaluationSettings) -> Scale:
    if settings.options(JudgeOptions).judge_labels != "graded":
        return Scale()
    return Scale(graded="the judge's graded labels")


JUDGE_ANNOTATOR = annotator.Annotator(
    name=JUDGE_NAME,
    meaning="an LLM's relevance judgment, or its probability",
    label=_label_judge,
    options=JudgeOptions,
    role=_JUDGE,
    asks=_asks_judge,
    scale=_scale_judge,
)
