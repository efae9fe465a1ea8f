"""Notes on readers, and on what their reads cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, listed
from engine.reading.costs import ReadingCosts
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.protocol import UNNAMED, ReaderSpec

STORED = "stored_reads"


def read_notes(
    read: Sequence[tuple[ReaderSpec, ReadingCosts]], *, truncated: int, skips: bool
) -> Iterator[Note]:
    """Notes on readers, and on what their reads cost.

    Args:
        truncated: reads whose input was cut.
        skips: whether queries of failed reads are left out of figures.
    """
    specs, costs = [spec for spec, _ in read], [of_one for _, of_one in read]

    def summed(code: str, what: str, cost: str) -> Note:
        return count_note(code, sum(getattr(of_one, cost) for of_one in costs), what)

    consequence = (
        "and the figures that need [it|them] go without [its query|their queries]"
        if skips
        else "and [counts|count] as 0"
    )
    yield summed("failed_reads", f"LLM call[|s] failed {consequence}", "failed")
    yield count_note(
        "truncated_reads", truncated, "[prompt was|prompts were] cut to the reader's longest input"
    )
    what = "[batch was|batches were] halved because memory ran out"
    yield summed("memory_halvings", what, "memory_halvings")
    what = "read[ was| were] done one at a time: this reader gives other answers to shorter texts in a batch"
    yield summed("lone_reads", what, "alone")
    yield damaged_files(costs)
    yield _not_applied(specs)
    yield _own_executor(specs)
    yield _behind_api(specs)
    yield from _own_readers(specs)
    what = "answer[|s] came without a count of tokens: [its|their] price is not known, "
    what += "and bounds count what was reserved for [it|them]"
    yield summed("unreported_answers", what, "unreported_answers")
    for spec, of_one in read:
        made = f"of {{}} [was|were] made {listed(spec.doubts)}; `reread` makes [it|them] anew"
        amount, name = of_one.reused if spec.doubts else 0, spec.executor or spec.name
        yield count_note(STORED, amount, f"stored LLM call[|s] {made}", about=(name,))
    what = (
        "answer[|s] named another model, or another fingerprint of the server, than the first one"
    )
    yield summed("changed_servers", what, "changed_servers")


def damaged_files(costs: Iterable[ReadingCosts]) -> Note:
    """Which files of the read store were damaged, and where they are now."""
    paths = tuple(dict.fromkeys(path for of_one in costs for path in of_one.damaged_files))
    first = f", {paths[0]}{' first' if len(paths) > 1 else ''}" if paths else ""
    what = f"damaged [file|files] of the read store [was|were] set aside and not used{first}"
    return count_note("damaged_store_files", len(paths), what, about=paths)


def not_as_trained(readers: Iterable[tuple[ReaderSpec, str]]) -> Note:
    """Whether the bundled reader is given its passages otherwise than it was trained to read them."""
    kinds = {augmentation for spec, augmentation in readers if spec.name == BUNDLED_FID}
    return Note(
        "reader_not_as_trained",
        int("in-prompt" in kinds),
        f"{BUNDLED_FID} was trained to read as Fusion-in-Decoder, and read prompts: give `augmentation` fid",
    )


def _not_applied(all_specs: Sequence[ReaderSpec]) -> Note:
    specs = [spec for spec in all_specs if spec.writes]
    names = {spec.name: ", ".join(spec.not_applied) for spec in specs if spec.not_applied}
    told = "; ".join(f"{settings} of {name}" for name, settings in names.items())
    text = f"generation_config.json has settings that are not applied, and would change outputs: {told}"
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
        f"{', '.join(names)} {agreeing(len(names), '[answers|answer]')} behind an API: LLM calls are not "
        "reproducible; erag repeat measures how many come out otherwise"
    )
    return Note("not_reproducible", len(names), text, names)


def _own_readers(all_specs: Sequence[ReaderSpec]) -> Iterator[Note]:
    specs = [spec for spec in all_specs if not spec.executor]
    readers = [spec.function.reader for spec in specs if spec.function]
    for kept, consequence in (
        (True, "what its outputs depend on is not known here, beyond its version"),
        (False, "it has no version, so its outputs are not cached"),
    ):
        names = tuple(dict.fromkeys(reader.name for reader in readers if reader.is_kept == kept))
        text = f"the reader {', '.join(names)} is a function: {consequence}"
        yield Note("own_readers", len(names), text, names)
