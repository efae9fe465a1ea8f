"""The tables that flow through the engine: their columns and types, in one place.

Every stage takes and returns Polars frames with these columns. Frames are checked where data enters
(``conform``). Column names are spelled here; stages use these constants.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import polars as pl

from engine.messages.errors import InputError

Schema = dict[str, pl.DataType]

DOC_ID = "doc_id"
TITLE = "title"
TEXT = "text"
ARTICLE_ID = "article_id"
QUERY_ID = "query_id"
QUERY = "query"
ANSWER = "answer"
ANSWERS = "answers"
PROVENANCE = "provenance"
RANK = "rank"
STATED_RANK = "stated_rank"  # orders nothing: TREC text's rank column, or the place by rising scores of a list
SCORE = "score"
RUN = "run"
READ_KEY = "read_key"
DOC_IDS = "doc_ids"
OUTPUT = "output"
PROMPT_TOKENS = "prompt_tokens"
OUTPUT_TOKENS = "output_tokens"
TRUNCATED = "truncated"
CONFIDENCE = "confidence"
THOUGHT = "thought"
SECONDS = "seconds"
ENDED = "ended"
MASS = "mass"
FAILURE = "failure"
ANNOTATOR = "annotator"
LABEL = "label"
DOCUMENT_LABEL = "document_label"
WORD_LABEL = "word_label"
KNOWN = "known"
PASSAGES = "passages"
HARMED = "harmed"
METRIC = "metric"
TOKENS = "tokens"
# In judgments: documents are texts. In traces: the label of such a text was assigned to another passage.
LARGEST = "largest"  # the largest label of the whole file, if only part of its judgments are kept
BY_TEXT = "by_text"
CARRIED = "carried"
SHOWN = "shown"
BEST = "best"
CRITERION = "criterion"
STRATUM = "stratum"
DRAWN = "drawn"
OF = "of"
TIMES_SHOWN = "times_shown"
TIMES_CHOSEN = "times_chosen"
MEASURE = "measure"
VALUE = "value"
K = "k"
STEP = "step"
SEARCH = "search"
N = "n"
NOTE = "note"
ORDER = "order"
METHOD = "method"
READER = "reader"
AUGMENTATION = "augmentation"
DATA_SET = "data_set"
LABELS_BY = "labels_by"
FIGURE = "figure"
PLACE = "place"
LABELS_BY_B = "labels_by_b"
SOURCE = "source"
CLUSTER = "cluster"
SIMILARITY = "similarity"
STEPS_TAKEN = "steps"
NEW = "new"
NEW_LABEL = "new_label"
LABELLED = "labelled"
FIRST_USEFUL = "first_useful"
WITHOUT_USEFUL = "without_useful"
USEFUL = "useful"
NOT_AGAIN = "not_again"
UNCOVERED = "uncovered"
USER_QUERIES = "user_queries"
EVALUATION_QUERIES = "evaluation_queries"
EXAMPLES = "examples"
EXAMPLE_SIMILARITIES = "example_similarities"
NEAREST_ID = "nearest_query_id"
NEAREST = "nearest_query"
NEAREST_SIMILARITY = "nearest_similarity"
# The second side of a comparison.
RUN_B = "run_b"
ANNOTATOR_B = "annotator_b"
MEASURE_B = "measure_b"
# Statistics. The functions below name columns about a statistic: ``low_of(TAU)`` is "tau_low".
TAU = "tau"
RHO = "rho"
DIFFERENCE = "difference"
END_TO_END = "end_to_end"
SOFT_ACCURACY = "soft_pairwise_accuracy"
AUC = "auc"
TAU_MIN = "tau_min"
TAU_MAX = "tau_max"
TAU_REACHED = "tau_reached"
PROBABILITY = "probability"
LOW = "low"
HIGH = "high"
P = "p"
P_HOLM = "p_holm"
PAIRS = "adjusted_for_pairs"
END_TO_END_N = "end_to_end_n"
RUNS_COMPARED = "runs"


# The columns of a statistic, by its name. P_HOLM: a p-value corrected for the other comparisons (Holm).
low_of, high_of, difference_of = (f"{{}}_{name}".format for name in (LOW, HIGH, DIFFERENCE))
p_of, p_holm_of = (f"{{}}_{name}".format for name in (P, P_HOLM))


def _texts(*names: str) -> Schema:
    return dict.fromkeys(names, pl.String())


def _integers(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Int64())


def _floats(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Float64())


def _booleans(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Boolean())


def _with_interval(statistic: str) -> Schema:
    return _floats(statistic, low_of(statistic), high_of(statistic))


# The article is the document a passage was cut from; provenance is judged at this level.
CORPUS: Schema = _texts(DOC_ID, TITLE, TEXT, ARTICLE_ID)
QUERIES: Schema = {
    **_texts(QUERY_ID, QUERY),
    ANSWERS: pl.List(pl.String()),
    PROVENANCE: pl.List(pl.String()),  # article ids; may be empty
}
# Queries of an evaluation, stored beside its scores, with which later evaluations are paired.
EVALUATED_QUERIES: Schema = _texts(QUERY_ID, QUERY) | {ANSWERS: pl.List(pl.String())}
CLUSTERS: Schema = {QUERY_ID: pl.String(), CLUSTER: pl.Int64()}  # numbered from 0
RUNS: Schema = {
    **_texts(QUERY_ID, DOC_ID),
    RANK: pl.Int64(),  # 1 is best
    SCORE: pl.Float64(),
    RUN: pl.String(),  # the system's name
}
READS: Schema = {
    **_texts(READ_KEY, QUERY_ID),
    DOC_IDS: pl.List(pl.String()),
    OUTPUT: pl.String(),
    **_integers(PROMPT_TOKENS, OUTPUT_TOKENS),
    TRUNCATED: pl.Boolean(),
    # Probability of the first answer if the reader chose between given answers, geometric mean by token if it
    # scored a text (``output_tokens * log(confidence)`` is the sum of its log-probabilities); else null.
    CONFIDENCE: pl.Float64(),
    THOUGHT: pl.String(),  # text before the answer, of readers that think; else null
    SECONDS: pl.Float64(),  # of the call, if it was a request of its own; else null
    ENDED: pl.String(),  # reason why the output ended (``protocol.Ended``); null if unknown
    MASS: pl.Float64(),  # of readers that choose: probability of all choices among all tokens; else null
}
LABELS: Schema = {
    **_texts(QUERY_ID, DOC_ID, ANNOTATOR),
    # In [0, 1], except for grades (qrels), utilities in [-1/3, 1], gains in [-1, 1], and pmi (any number).
    LABEL: pl.Float64(),
}
QRELS: Schema = {QUERY_ID: pl.String(), DOC_ID: pl.String(), LABEL: pl.Float64()}
TRACES: Schema = {
    # Evidence of a label; null in columns that do not apply to its annotator.
    **_texts(QUERY_ID, DOC_ID, ANNOTATOR),
    LABEL: pl.Float64(),
    **_texts(READ_KEY, OUTPUT, METRIC),
    ANSWER: pl.String(),  # the answer that the output matched, or that the passage holds
    ARTICLE_ID: pl.String(),  # the gold article that the passage is of
    # The probability that a judge gave to relevance, that a reader declines (utilities), or by token of a text.
    CONFIDENCE: pl.Float64(),
}
HARM_OUTCOMES: Schema = {
    QUERY_ID: pl.String(),
    KNOWN: pl.Boolean(),  # whether the reader answers right without any passage
    PASSAGES: pl.Int64(),
    HARMED: pl.Int64(),  # passages from which it answers wrong; 0 if it does so without any
}
HARM: Schema = {
    N: pl.Int64(),  # queries
    KNOWN: pl.Int64(),  # queries answered right without any passage
    PASSAGES: pl.Int64(),  # listed for these
    HARMED: pl.Int64(),  # passages that turn the answer wrong
    **_floats(VALUE, LOW, HIGH),  # the harm rate, harmed / passages; NaN without passages
}
DUAL_LABELS: Schema = _texts(QUERY_ID, DOC_ID) | _booleans(DOCUMENT_LABEL, WORD_LABEL)
DUAL_EVENTS: Schema = {
    RUN: pl.String(),
    K: pl.Int64(),
    QUERY_ID: pl.String(),
    # Whether some passage within the cutoff has the label; null if the run lists nothing for the query.
    **_booleans(DOCUMENT_LABEL, WORD_LABEL),
}
DUAL: Schema = {
    RUN: pl.String(),
    K: pl.Int64(),  # any passage within this cutoff counts
    N: pl.Int64(),
    PROBABILITY: pl.String(),
    **_floats(VALUE, LOW, HIGH),  # NaN if the condition never occurs
    NOTE: pl.String(),
}
PREFERENCES: Schema = {
    # Passages shown side by side, and the ones that a person found best: several if equally good, or none. If the runs
    # behind passages or answers are known: a row for each pair of runs and criterion; all but one show nothing.
    QUERY_ID: pl.String(),
    **dict.fromkeys((SHOWN, BEST), pl.List(pl.String())),
    **_texts(CRITERION, RUN, RUN_B),
    VALUE: pl.Float64(),  # 1 if run is preferred, -1 if run_b is, 0 for neither
    # Labels' preference for run over run_b, less its mean over queries on which runs differ; probability of the draw.
    **_floats(LABEL, PROBABILITY),
    DRAWN: pl.String(),  # all strata and their sizes, as JSON
}
PREFERRED: Schema = {
    **_texts(CRITERION, RUN, RUN_B),
    N: pl.Int64(),  # queries judged
    OF: pl.Int64(),  # queries behind the figure
    # The share that prefers run, less the share that prefers run_b.
    **_floats(DIFFERENCE, LOW, HIGH),
    PAIRS: pl.Int64(),
}
PREFERENCE_LABELS: Schema = {
    **_texts(QUERY_ID, DOC_ID),
    **_integers(TIMES_SHOWN, TIMES_CHOSEN),
    LABEL: pl.Float64(),
}
QUERY_SCORES: Schema = _texts(RUN, ANNOTATOR, MEASURE, QUERY_ID) | _floats(VALUE)
# Measures that are undefined on the labels of an annotator, with the reason.
UNDEFINED: Schema = _texts(ANNOTATOR, MEASURE, NOTE)
OUTPUTS: Schema = _texts(RUN, QUERY_ID, OUTPUT)
STEPS: Schema = {
    **_texts(RUN, QUERY_ID),
    STEP: pl.Int64(),  # of an agent's search for the query, from 1
    SEARCH: pl.String(),  # its text
    DOC_IDS: pl.List(pl.String()),  # ranked
}
DOWNSTREAM: Schema = {
    **_texts(RUN, QUERY_ID),
    K: pl.Int64(),  # most passages in a read
    OUTPUT: pl.String(),
    VALUE: pl.Float64(),
}
CORRELATIONS: Schema = {
    **_texts(RUN, ANNOTATOR, MEASURE),
    **_integers(K, N),
    **_with_interval(TAU),
    **_with_interval(RHO),
    # How the intervals were computed: percentile, studentized or inverted; empty without intervals.
    METHOD: pl.String(),
    # Tau under the two margins (``correlation.Margins``).
    **_floats(AUC, TAU_MIN, TAU_MAX, TAU_REACHED),
    # Why a correlation is undefined (NaN), or has no interval or a weak one; empty otherwise.
    NOTE: pl.String(),
    # Whether tau is the highest of this run's and annotator's measures: the first of equal ones.
    BEST: pl.Boolean(),
}
COMPARISONS: Schema = {
    # The correlation of (run, annotator) less that of (run_b, annotator_b), on the same queries.
    **_texts(RUN, ANNOTATOR, RUN_B, ANNOTATOR_B),
    # The same measure, except in comparisons of utilities, which have another.
    **_texts(MEASURE, MEASURE_B),
    **_integers(K, N),
    **_floats(difference_of(TAU), low_of(TAU), high_of(TAU), p_of(TAU), p_holm_of(TAU)),
    **_floats(difference_of(RHO), low_of(RHO), high_of(RHO), p_of(RHO), p_holm_of(RHO)),
    # Origin of the interval: "studentized", "permutation" or "inverted" (the p-value then from
    # permutations); empty without a p-value.
    **_texts(METHOD, NOTE),
}
# Correlations of a study under each condition.
CONDITIONS: Schema = _texts(READER, AUGMENTATION) | CORRELATIONS
# Correlations of several data sets, each under its conditions; differences of the first annotator to its rivals by the
# primary measure, corrected over all data sets.
DATA_SETS: Schema = _texts(DATA_SET) | CONDITIONS
DATA_SET_COMPARISONS: Schema = _texts(DATA_SET, READER, AUGMENTATION) | COMPARISONS
# eRAG's labels by one reader, correlated with the end-to-end score of ``reader``.
READERS: Schema = {
    **_texts(READER, AUGMENTATION, LABELS_BY),
    **{name: kind for name, kind in CORRELATIONS.items() if name != ANNOTATOR},
}
# The correlation of the reader's own labels less another reader's, on the same queries.
READER_COMPARISONS: Schema = _texts(READER, AUGMENTATION, LABELS_BY, LABELS_BY_B) | {
    name: kind for name, kind in COMPARISONS.items() if name not in (ANNOTATOR, ANNOTATOR_B, RUN_B)
}
SYSTEMS: Schema = {
    # Order of the runs by a measure, against the end-to-end score.
    **_texts(ANNOTATOR, MEASURE),
    **_integers(K, RUNS_COMPARED, N),
    # Mean over the pairs of runs of 1 less the distance of their two one-sided p-values.
    SOFT_ACCURACY: pl.Float64(),
}
RUN_PAIRS: Schema = {
    **_texts(ANNOTATOR, MEASURE),
    K: pl.Int64(),  # null, and the end-to-end columns NaN, if no list was read whole
    **_texts(RUN, RUN_B),
    N: pl.Int64(),
    # Pairs of runs that intervals and p-values are adjusted for.
    PAIRS: pl.Int64(),
    # Means of run less means of run_b.
    **_with_interval(DIFFERENCE),
    p_of(DIFFERENCE): pl.Float64(),
    **_floats(difference_of(END_TO_END), low_of(END_TO_END), high_of(END_TO_END), p_of(END_TO_END)),
    # Queries of the end-to-end differences: queries that all runs have, even if the measure lacks some.
    END_TO_END_N: pl.Int64(),
}
# The reader's own labels (eRAG's) of a list that is read whole, in list order; null for missing labels.
LABEL_LISTS: Schema = _texts(RUN, QUERY_ID) | {LABEL: pl.List(pl.Float64())}
# Shares of lists whose score these labels miss, and the correlation of the label at each place with list scores.
UNSEEN: Schema = {FIGURE if name == PROBABILITY else name: kind for name, kind in DUAL.items()}
BY_PLACE: Schema = {
    **(_texts(RUN) | _integers(K, PLACE, N)),
    **(_floats(LABEL) | _with_interval(RHO)),
    **_texts(METHOD, NOTE),
}
# Behind these columns, one for each measure of the step's list.
TRACE_STEPS: Schema = {
    **STEPS,
    ANNOTATOR: pl.String(),
    # New: in no earlier step. Useful: among the new ones. Not again: useful, and in no other step.
    **_integers(PASSAGES, NEW, LABELLED, USEFUL, NOT_AGAIN),
    **_floats(LABEL, NEW_LABEL),  # means of all and of new passages; null without labelled ones
    FIRST_USEFUL: pl.Boolean(),  # whether it is the first step with a useful passage
}
TRACE_QUESTIONS: Schema = {
    **_texts(RUN, QUERY_ID, ANNOTATOR),
    **_integers(STEPS_TAKEN, PASSAGES, FIRST_USEFUL, USEFUL, NOT_AGAIN),
    SCORE: pl.Float64(),  # of the answer; null without one
}
TRACE_RUNS: Schema = _texts(RUN, ANNOTATOR, FIGURE) | _integers(N) | _floats(VALUE, LOW, HIGH)
# Loss: the mean score from whole lists, less that without the step.
TRACE_CREDIT: Schema = {
    **_texts(RUN),
    **_integers(STEP, "questions", "right_before", "turned_wrong"),
    **_floats("loss", LOW, HIGH),
}
COVERAGE: Schema = {
    # Clusters of user and evaluation queries. Similarities are cosines.
    CLUSTER: pl.Int64(),  # from 1, the cluster with the most user queries first
    **_integers(USER_QUERIES, EVALUATION_QUERIES),
    # Probability of so few evaluation queries in it by chance; corrected over all clusters.
    **_floats(P, P_HOLM),
    UNCOVERED: pl.Float64(),  # mean of its user queries; NaN without any
    SIMILARITY: pl.Float64(),  # mean of its user queries to its centroid; NaN without any
    EXAMPLES: pl.List(pl.String()),  # the user queries nearest to its centroid
    EXAMPLE_SIMILARITIES: pl.List(pl.Float64()),
    # The evaluation query nearest to its centroid, in any cluster.
    **_texts(NEAREST_ID, NEAREST),
    NEAREST_SIMILARITY: pl.Float64(),
}
ASSIGNMENTS: Schema = {
    SOURCE: pl.String(),  # evaluation or user
    **_texts(QUERY_ID, QUERY),
    CLUSTER: pl.Int64(),
    SIMILARITY: pl.Float64(),  # to the cluster's centroid
    # Share of the starts of k-means that leave its cluster without an evaluation query.
    UNCOVERED: pl.Float64(),
}


# Columns that earlier results and stores lack.
_ADDED = frozenset({THOUGHT, SECONDS, ENDED, MASS})
_NULLABLE = frozenset({CONFIDENCE, BEST}) | _ADDED


def empty(schema: Schema) -> pl.DataFrame:
    """A table with the columns of ``schema`` and no rows."""
    return pl.DataFrame(schema=schema)


def with_added(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """A table of an earlier version, with later columns of ``schema`` added as null."""
    added = [name for name in schema if name in _ADDED and name not in frame.columns]
    return frame.with_columns(pl.lit(None, schema[name]).alias(name) for name in added)


def conform(
    frame: pl.DataFrame, schema: Schema, path: str | Path, *, first_row: int = 0
) -> pl.DataFrame:
    """Select and cast the columns of ``schema`` in a table, or in a part of one that begins at ``first_row``.

    Other columns are dropped. An InputError names a column that is missing, has another type, or holds nulls.
    """
    frame = with_added(frame, schema)
    if missing := [name for name in schema if name not in frame.columns]:
        problem = f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        remedy = f"a table of this kind has the columns {', '.join(schema)}"
        raise InputError(problem, remedy, "table.column", path=path)
    # Ids in floats would become 1.0, and missing ids the text "NaN".
    if floats := [n for n in schema if schema[n] == pl.String() and frame.schema[n].is_float()]:
        problem = f"{floats[0]} holds floating-point numbers"
        raise InputError(problem, "write texts", "table.floats", path=path)
    for name, kind in schema.items():
        actual = frame.schema[name]
        if actual != pl.Null and actual.is_nested() != kind.is_nested():
            raise InputError(f"{name} holds {actual}", f"write {kind}", "table.type", path=path)
    try:
        frame = frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
    except pl.exceptions.PolarsError as error:
        problem = f"a column has the wrong type ({error})"
        remedy = f"use {', '.join(f'{name} {kind}' for name, kind in schema.items())}"
        raise InputError(problem, remedy, "table.type", path=path) from None
    for name in schema:
        if name not in _NULLABLE and frame[name].null_count():
            row = first_row + (frame[name].is_null().arg_max() or 0)
            problem = f"row {row} has no {name}"
            raise InputError(problem, "fill it in, or leave it out", "table.null", path=path)
    return frame


def give_back_freed_memory() -> None:
    """Return freed memory of thread heaps to the system: the next threads may not reuse it."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
