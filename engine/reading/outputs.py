"""Notes on readers, the costs of their reads, and their outputs: empty outputs, equal outputs, near misses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import polars as pl

from engine import tables
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, listed, quoted
from engine.reading.answers import INCOMPLETE
from engine.reading.costs import ReadingCosts
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.protocol import UNNAMED, ReaderSpec
from engine.scoring.metrics import Metric, match, score_outputs
from engine.scoring.normalize import without_marks
from engine.tables import ANSWERS, FAILURE, OUTPUT, OUTPUT_TOKENS, QUERY_ID, READ_KEY, VALUE, N

# Commonest outputs to keep per shard, and to show of all shards in the summary.
_KEPT, SHOWN = 100, 10
# A note on equal outputs of more than half of the reads needs at least so many equal outputs.
_ALIKES = 3
# Codes of notes that point to details in outputs.
ALIKE, WORDY, MARKED, CHOSEN = "alike_outputs", "wordy_outputs", "marked_outputs", "mass_of_choices"
OF_OUTPUTS = (ALIKE, WORDY, CUT := "cut_outputs", MARKED)
_CUT_SHARE = 0.05  # a note on cut outputs needs more than this share of a role's outputs
# Metrics of whole outputs: notes suggest ``match`` if outputs contain an answer.
_OF_WHOLE_OUTPUTS = ("em", "em-char", "accuracy")


@dataclass(frozen=True)
class OutputCounts:
    """Counts of the outputs that readers wrote, without failed reads; mappings are by role, but for ``commonest``."""

    reads: int = 0  # distinct ones
    empty: int = 0  # reads with an empty output
    replaced: int = 0  # reads whose output contains U+FFFD, in place of invalid Unicode
    # Distinct (query, output) pairs of queries with answers; end-to-end outputs if whole lists were read.
    scored: int = 0
    right: int = 0  # scored pairs with a value above 0
    holding: int = 0  # scored pairs whose output contains an answer as whole words
    # Scored pairs with a higher value but for quotation marks, dashes, width or invisible characters.
    marked: int = 0
    # Outputs with the number of reads, the commonest first; not all outputs.
    commonest: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)  # reads with a written output
    cut: Mapping[str, int] = field(default_factory=dict)  # written ones cut at the limit of tokens
    # The number of reads per mass (``ReadOutput``), in two digits.
    masses: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def count_outputs(
    read: Mapping[str, tuple[ReaderSpec, pl.DataFrame]],
    downstream: pl.DataFrame | None,
    queries: pl.DataFrame,
    metric: Metric,
) -> OutputCounts:
    """Count the outputs of some queries' reads, by role; ``downstream``: the values of whole lists, if read."""
    masses = {
        role: dict(Counter(f"{m:.2g}" for m in reads.unique(READ_KEY)[tables.MASS].drop_nulls()))
        for role, (spec, reads) in read.items()
        if len(spec.choices) > 1
    }
    written = {
        role: reads.filter(pl.col(FAILURE).is_null())
        .unique(READ_KEY)
        .with_columns(_is_cut(spec.most_new_tokens).alias(CUT))
        for role, (spec, reads) in read.items()
        if not (spec.choices or spec.scores == "target")
    }
    if not written:
        return OutputCounts(masses=masses)
    reads = pl.concat(written.values()).unique(READ_KEY)
    known = queries.filter(pl.col(ANSWERS).list.len() > 0)
    if downstream is None:
        alone = reads.select(QUERY_ID, OUTPUT).unique().join(known, on=QUERY_ID, how="semi")
        # A user's own metric is not called just for these counts.
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
        written={role: outputs.height for role, outputs in written.items()},
        cut={role: int(outputs[CUT].sum()) for role, outputs in written.items()},
        masses=masses,
    )


def _is_cut(limit: int) -> pl.Expr:
    # If the end is not recorded: output of fewer bytes than tokens was cut at a stop string, not at the limit.
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
    """Merge the counts of parts; only outputs among the commonest of some part count as commonest."""
    total, commonest, written, cut = (Counter[str]() for _ in range(4))
    mappings = {"commonest": commonest, "written": written, "cut": cut}
    masses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        total.update({name: value for name, value in vars(part).items() if isinstance(value, int)})
        for name, counter in mappings.items():
            counter.update(getattr(part, name))
        for role, own in part.masses.items():
            masses[role].update(own)
    ordered = sorted(commonest.items(), key=lambda item: (-item[1], item[0]))
    return OutputCounts(
        **total,
        commonest=dict(ordered[:_KEPT]),
        written=dict(written),
        cut=dict(cut),
        masses={role: dict(own) for role, own in masses.items()},
    )


def output_notes(outputs: OutputCounts, metric: str) -> Iterator[Note]:
    """Notes on the reader and the metric, from the outputs of all reads."""
    what = "output[|s] [is|are] empty and [scores|score] 0"
    yield count_note("empty_outputs", outputs.empty, what)
    for role, masses in outputs.masses.items():
        reads = sum(masses.values())
        half = median(map(float, Counter(masses).elements())) if reads else 0
        text = f"the choices of {role} have {half:.0%} of a first token's probability (median)"
        yield Note(CHOSEN, reads, text, (role,))
    output, most = next(iter(outputs.commonest.items()), ("", 0))
    answer = quoted(output) if output else "nothing"
    text = f"the reader answered {answer} in {most:,} of {outputs.reads:,} calls"
    yield Note(ALIKE, most if most >= _ALIKES and 2 * most > outputs.reads else 0, text)
    what = f"output[|s] [holds|hold] {INCOMPLETE} in the place of what is not valid Unicode"
    yield count_note("replaced_characters", outputs.replaced, what)
    wordy = metric in _OF_WHOLE_OUTPUTS and not outputs.right
    yield Note(
        WORDY,
        outputs.holding if wordy and 2 * outputs.holding > outputs.scored else 0,
        f"{metric} is 0 for all outputs, though {outputs.holding:,} of {outputs.scored:,} contain an answer: "
        "`metric` match counts them as right",
    )
    what = "output[|s] would match but for quotation marks, dashes, width or invisible characters"
    yield count_note(MARKED, outputs.marked, what)


def cut_notes(
    outputs: OutputCounts, readers: Mapping[str, tuple[ReaderSpec, str]]
) -> Iterator[Note]:
    """Notes on outputs cut at the limit of tokens; ``readers``: specification and title, by role."""
    for role, written in outputs.written.items():
        spec, title = readers[role]
        cut = outputs.cut.get(role, 0)
        most = f"{spec.max_new_tokens:,}" + f", and {spec.room:,} for a thought" * bool(spec.room)
        needed = (spec.api and spec.api.cut) or 0
        why = "more are needed" if needed <= spec.max_new_tokens else f"the trial took {needed:,}"
        yield Note(
            CUT,
            cut if cut > _CUT_SHARE * written else 0,
            f"{cut:,} of {written:,} outputs{f' of {title}' * bool(title)} were cut at max_new_tokens ({most}): "
            f"{why}; raise it in the `prompt`",
            (role,),
        )


STORED = "stored_reads"


def read_notes(
    read: Sequence[tuple[ReaderSpec, ReadingCosts]], *, truncated: int, skips: bool
) -> Iterator[Note]:
    """Notes on readers, and on the costs of their reads.

    ``truncated``: reads whose input was cut; ``skips``: whether figures leave out queries of failed reads.
    """
    specs, costs = [spec for spec, _ in read], [reading for _, reading in read]

    def summed(code: str, what: str, cost: str) -> Note:
        return count_note(code, sum(getattr(reading, cost) for reading in costs), what)

    effect = "[counts|count] as 0"
    if skips:
        effect = "[its query is|their queries are] left out of the figures that need [it|them]"
    yield summed("failed_reads", f"LLM call[|s] failed and {effect}", "failed")
    what = "[prompt was|prompts were] cut to the reader's longest input"
    yield count_note("truncated_reads", truncated, what)
    what = "[batch was|batches were] halved because memory ran out"
    yield summed("memory_halvings", what, "memory_halvings")
    what = "LLM call[ was|s were] made one at a time: in a batch, this reader answers short prompts differently"
    yield summed("lone_reads", what, "alone")
    yield damaged_files(costs)
    yield _not_applied(specs)
    yield _own_executor(specs)
    yield _behind_api(specs)
    yield from _own_readers(specs)
    what = "answer[|s] came without a count of tokens: [its|their] price is unknown, "
    what += "and bounds count the tokens reserved for [it|them]"
    yield summed("unreported_answers", what, "unreported_answers")
    for spec, reading in read:
        what = f"cached LLM call[|s] of {{}} [was|were] made {listed(spec.doubts)}; "
        what += "`reread` makes [it|them] again"
        amount, name = reading.reused if spec.doubts else 0, spec.executor or spec.name
        yield count_note(STORED, amount, what, about=(name,))
    what = "answer[|s] named another model, or another fingerprint of the server, than the first"
    yield summed("changed_servers", what, "changed_servers")


def damaged_files(costs: Iterable[ReadingCosts]) -> Note:
    """A note on damaged files of the read store, with their new places."""
    paths = tuple(dict.fromkeys(path for reading in costs for path in reading.damaged_files))
    first = f", {paths[0]}{' first' if len(paths) > 1 else ''}" if paths else ""
    what = f"damaged [file|files] of the read store [was|were] set aside and not used{first}"
    return count_note("damaged_store_files", len(paths), what, about=paths)


def not_as_trained(readers: Iterable[tuple[ReaderSpec, str]]) -> Note:
    """A note if the bundled reader gets its passages in another way than in its training."""
    kinds = {augmentation for spec, augmentation in readers if spec.name == BUNDLED_FID}
    text = f"{BUNDLED_FID} was trained to read as Fusion-in-Decoder, and read prompts: give `augmentation` fid"
    return Note("reader_not_as_trained", int("in-prompt" in kinds), text)


def _not_applied(all_specs: Sequence[ReaderSpec]) -> Note:
    specs = [spec for spec in all_specs if spec.writes]
    names = {spec.name: ", ".join(spec.not_applied) for spec in specs if spec.not_applied}
    listing = "; ".join(f"{settings} of {name}" for name, settings in names.items())
    text = f"generation_config.json has settings that are not applied, and would change outputs: {listing}"
    return Note("settings_not_applied", len(names), text, tuple(names))


def _own_executor(all_specs: Sequence[ReaderSpec]) -> Note:
    specs = [spec for spec in all_specs if spec.executor]
    names = tuple(dict.fromkeys(spec.executor for spec in specs))
    readers = ", ".join(dict.fromkeys(spec.name for spec in specs))
    unkept = ", and are not cached" if UNNAMED in names else ""
    text = f"LLM calls were made by {', '.join(names)}, not by {readers}{unkept}"
    return Note("own_executor", len(names), text, names)


def _behind_api(all_specs: Sequence[ReaderSpec]) -> Note:
    specs = [spec for spec in all_specs if spec.api]
    names = tuple(dict.fromkeys(spec.name for spec in specs if not spec.executor))
    text = (
        f"{', '.join(names)} {agreeing(len(names), '[is|are]')} behind an API, which may answer a prompt differently "
        "each time; erag repeat counts how many outputs change"
    )
    return Note("not_reproducible", len(names), text, names)


def _own_readers(all_specs: Sequence[ReaderSpec]) -> Iterator[Note]:
    specs = [spec for spec in all_specs if not spec.executor]
    readers = [spec.function.reader for spec in specs if spec.function]
    effects = {
        True: "its outputs are cached by its version; give a new version whenever they may change",
        False: "it has no version, so its outputs are not cached",
    }
    for is_kept, effect in effects.items():
        names = tuple(dict.fromkeys(reader.name for reader in readers if reader.is_kept == is_kept))
        text = f"the reader {', '.join(names)} is a function: {effect}"
        yield Note("own_readers", len(names), text, names)
