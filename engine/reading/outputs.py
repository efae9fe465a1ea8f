"""Count what readers answered: empty outputs, outputs that are always the same, near misses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import polars as pl

from engine import tables
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.reading.models.stops import INCOMPLETE
from engine.reading.protocol import ReaderSpec
from engine.scoring.metrics import Metric, match, score_outputs
from engine.scoring.normalize import without_marks
from engine.tables import ANSWERS, FAILURE, OUTPUT, OUTPUT_TOKENS, QUERY_ID, READ_KEY, VALUE, N

# Outputs that are kept of a shard by how often they occur, and of all of them in the summary.
_KEPT, SHOWN = 100, 10
# So many reads must have the same output before a note says that more than half have it.
_ALIKES = 3
# Codes of notes that say what to look at.
ALIKE, WORDY, MARKED, CHOSEN = "alike_outputs", "wordy_outputs", "marked_outputs", "mass_of_choices"
OF_OUTPUTS = (ALIKE, WORDY, CUT := "cut_outputs", MARKED)
# The share of a role's outputs that must be cut at the limit before a note says so.
_CUT_SHARE = 0.05
# Metrics of whole outputs, in whose place ``match`` takes those that hold an answer.
_OF_WHOLE_OUTPUTS = ("em", "em-char", "accuracy")


@dataclass(frozen=True)
class OutputCounts:
    """The outputs of reads in which a reader wrote, those that failed left out.

    Attributes:
        reads: how many, each counted once.
        empty: of them without any text.
        replaced: of them with characters in the place of what is not valid Unicode.
        scored: distinct outputs of a query, of whole lists where these were read, and as many as have an answer.
        right: of them with a value above 0.
        holding: of them that hold an answer as whole words.
        marked: of them that would have a higher value but for quotation marks, dashes, width or invisible characters.
        commonest: outputs with the number of reads, the commonest first; not all of them.
        written, cut: by role, the reads in which it wrote, and of these how many were cut at the limit of tokens.
        masses: by the role that chose, how many reads have a mass (``ReadOutput``), in two digits.
    """

    reads: int = 0
    empty: int = 0
    replaced: int = 0
    scored: int = 0
    right: int = 0
    holding: int = 0
    marked: int = 0
    commonest: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    masses: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def count_outputs(
    read: Mapping[str, tuple[ReaderSpec, pl.DataFrame]],
    downstream: pl.DataFrame,
    queries: pl.DataFrame,
    metric: Metric,
) -> OutputCounts:
    """The outputs of the reads of some queries, which are given by role, with the reader.

    ``downstream`` has no rows where no lists were read whole.
    """
    masses = {
        role: dict(Counter(f"{m:.2g}" for m in reads.unique(READ_KEY)[tables.MASS].drop_nulls()))
        for role, (spec, reads) in read.items()
        if len(spec.choices) > 1
    }
    of_roles = {
        role: reads.filter(pl.col(FAILURE).is_null())
        .unique(READ_KEY)
        .with_columns(_is_cut(spec.most_new_tokens).alias(CUT))
        for role, (spec, reads) in read.items()
        if not (spec.choices or spec.scores == "target")
    }
    if not of_roles:
        return OutputCounts(masses=masses)
    reads = pl.concat(of_roles.values()).unique(READ_KEY)
    known = queries.filter(pl.col(ANSWERS).list.len() > 0)
    if downstream.is_empty():
        alone = reads.select(QUERY_ID, OUTPUT).unique().join(known, on=QUERY_ID, how="semi")
        # A function of the user's is not called for this.
        downstream = score_outputs(alone.clear() if metric.own else alone, queries, metric)
    scored = downstream.select(QUERY_ID, OUTPUT, VALUE).unique()
    scored = scored.join(known, on=QUERY_ID, how="semi")
    answers = dict(queries.select(QUERY_ID, ANSWERS).iter_rows())
    holding = marked = 0
    for query_id, output, value in scored.iter_rows():
        holding += bool(match(output, answers[query_id]))
        marked += not metric.own and _would_match(output, answers[query_id], metric, value)
    counted = reads[OUTPUT].value_counts(name=N).sort(N, OUTPUT, descending=[True, False])
    return OutputCounts(
        reads=reads.height,
        empty=int((reads[OUTPUT] == "").sum()),
        replaced=int(reads[OUTPUT].str.contains(INCOMPLETE, literal=True).sum()),
        scored=scored.height,
        right=int((scored[VALUE] > 0).sum()),
        holding=holding,
        marked=marked,
        commonest=dict(counted.head(_KEPT).iter_rows()),
        written={role: of_role.height for role, of_role in of_roles.items()},
        cut={role: int(of_role[CUT].sum()) for role, of_role in of_roles.items()},
        masses=masses,
    )


def _is_cut(limit: int) -> pl.Expr:
    # Where reads do not say what ended them, by its tokens: a text that a string ended is kept up to that alone.
    size = pl.col(OUTPUT).str.len_bytes() + pl.col(tables.THOUGHT).str.len_bytes().fill_null(0)
    reached = (pl.col(OUTPUT_TOKENS) >= limit) & (size >= pl.col(OUTPUT_TOKENS))
    return (pl.col(tables.ENDED) == "length").fill_null(reached)


def _would_match(output: str, answers: list[str], metric: Metric, value: float) -> bool:
    texts = (output, *answers)
    if all(map(str.isascii, texts)):
        return False
    plain, *others = map(without_marks, texts)
    return (plain, *others) != texts and metric(plain, others) > value


def merge_outputs(parts: Iterable[OutputCounts]) -> OutputCounts:
    """The outputs of all queries, from those of parts; of the commonest those that are so in some part."""
    total, commonest, written, cut = (Counter[str]() for _ in range(4))
    mappings = {"commonest": commonest, "written": written, "cut": cut}
    masses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        total.update({name: value for name, value in vars(part).items() if isinstance(value, int)})
        for name, counter in mappings.items():
            counter.update(getattr(part, name))
        for role, own in part.masses.items():
            masses[role].update(own)
    ordered = sorted(commonest.items(), key=lambda one: (-one[1], one[0]))
    return OutputCounts(
        **total,
        commonest=dict(ordered[:_KEPT]),
        written=dict(written),
        cut=dict(cut),
        masses={role: dict(own) for role, own in masses.items()},
    )


def output_notes(outputs: OutputCounts, metric: str) -> Iterator[Note]:
    """What the outputs of all reads say of the reader and the metric."""
    yield count_note(
        "empty_outputs", outputs.empty, "output[|s] of reads [is|are] empty, and [scores|score] 0"
    )
    for role, masses in outputs.masses.items():
        reads = sum(masses.values())
        half = (
            median(float(mass) for mass, times in masses.items() for _ in range(times))
            if reads
            else 0
        )
        text = f"the choices of {role} have {half:.0%} of a first token's probability (median)"
        yield Note(CHOSEN, reads, text, (role,))
    text, most = next(iter(outputs.commonest.items()), ("", 0))
    said = quoted(text) if text else "empty"
    alike = most >= _ALIKES and 2 * most > outputs.reads
    yield Note(
        ALIKE,
        most if alike else 0,
        f"more than half of the outputs are {said} ({most:,} of {outputs.reads:,})",
    )
    yield count_note(
        "replaced_characters",
        outputs.replaced,
        f"output[|s] [holds|hold] {INCOMPLETE} in the place of what is not valid Unicode",
    )
    wordy = metric in _OF_WHOLE_OUTPUTS and not outputs.right
    yield Note(
        WORDY,
        outputs.holding if wordy and 2 * outputs.holding > outputs.scored else 0,
        f"{metric} is 0 for all outputs, and an answer stands in {outputs.holding:,} of {outputs.scored:,}: "
        "`metric` match counts these",
    )
    yield count_note(
        MARKED,
        outputs.marked,
        "output[|s] would match but for quotation marks, dashes, width or invisible characters",
    )


def cut_notes(
    outputs: OutputCounts, readers: Mapping[str, tuple[ReaderSpec, str]]
) -> Iterator[Note]:
    """Whose outputs end where the reader had no more tokens; readers come by role, with a title in sentences."""
    for role, written in outputs.written.items():
        spec, title = readers[role]
        cut = outputs.cut.get(role, 0)
        most = f"{spec.max_new_tokens:,}" + f", and {spec.room:,} for a thought" * bool(spec.room)
        needed = (spec.api and spec.api.cut) or 0
        enough = (
            "more are needed" if needed <= spec.max_new_tokens else f"the trial took {needed:,}"
        )
        yield Note(
            CUT,
            cut if cut > _CUT_SHARE * written else 0,
            f"{cut:,} of {written:,} outputs{f' of {title}' * bool(title)} were cut at max_new_tokens ({most}): "
            f"{enough}; raise it in the `prompt`",
            (role,),
        )
