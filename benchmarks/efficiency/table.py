"""The results of ``benchmarks.efficiency`` in Markdown, with the paper's figures beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median

from benchmarks._harness import Line, Ratio
from benchmarks.efficiency.fit import (
    beside_generate,
    crossing,
    fastest,
    fit,
    kind_of,
    measured,
    peaks_by_place,
    ratio,
    seconds_by_place,
    slope_at_the_end,
)
from benchmarks.efficiency.grid import METHODS, PAPER_K, PAPER_LENGTH, Cell
from benchmarks.efficiency.results import Results
from engine.report.layout import Grid

# Salemi & Zamani 2024, Table 2: T5-small with 50 passages, over KILT's datasets, on a GPU.
_PAPERS = "paper: T5-small, k = 50"
BESIDE_PAPER = "The paper's figures beside ours"
_DIVIDED = "end-to-end ÷ eRAG"
_TIME, _QUERY = f"time, {_DIVIDED}", "memory of a query, list ÷ its k passages in a batch"
PAPER = {
    _TIME: "1.232 to 3.252, mean 2.468",
    "peak memory, end-to-end": "46 to 75 GB",
    _QUERY: "7 to 15",
    "memory of a document, list ÷ one passage": "30 to 48",
}
_UNKNOWN = "·"
# Columns with the place of a figure, without the way.
_PLACE = ("model", "augmentation", "k", "passage tokens", "answer tokens")
# Highest allowed ratio of the engine's time to ``generate``'s.
_SLOWER = 1.05
Left = Mapping[Cell, str]


def grids(results: Results) -> list[Grid]:
    """All tables; double asterisks mark cells that are bold in Markdown."""
    times = [cell for cell, *_ in measured(results)]
    kinds = list(dict.fromkeys(map(kind_of, times)))
    return [
        *_beside_paper(results),
        _times(results),
        _memory(results),
        _fastest(results),
        _beside_generate(results, times),
        _exponents(results, kinds),
        _crossings(results),
        _savings(results),
    ]


def markdown(results: Results, left: Left) -> list[str]:
    """All tables, as lines.

    Args:
        left: cells left out, with the reason.
    """
    lines = [*results.described(), ""]
    for grid in grids(results):
        before = f"{BESIDE_PAPER}: " if grid.name.startswith("paper") else ""
        lines += [f"### {before}{grid.title}", ""]
        lines += [grid.caption, ""] if grid.caption else []
        lines += [*_rows(grid.head, grid.rows), ""]
    reasons = [f"- {text}" for text in grouped(left_out(results, left))]
    return [*lines, "### Left out", "", *(reasons or ["Nothing."])]


def ratios(results: Results) -> list[Line]:
    """The ratios at the largest number of passages by model, augmentation and way, for the page of all
    benchmarks.
    """
    largest = {
        kind_of(one[0]): one
        for one in sorted(measured(results), key=lambda one: (one[0].k, one[0].length))
    }
    lines: list[Line] = []
    for cell, times, peaks in largest.values():
        own = times.ratios
        of_time = str(Ratio(median(own), min(own), max(own)))
        what = f"{cell.model}, {cell.augmentation}, {cell.way}, k = {cell.k}, answers of {cell.answer_tokens}"
        lines.append(Line(f"{what}: {_TIME}", of_time, PAPER[_TIME]))
        by_list = ratio(peaks.end_to_end, peaks.batch)
        lines.append(Line("  memory of a query", _number(by_list, 1), PAPER[_QUERY]))
    return lines


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _number(value: float | None, digits: int = 2) -> str:
    return _UNKNOWN if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _mebibytes(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value / 2**20:.0f}"


def _beside_paper(results: Results) -> Iterator[Grid]:
    """The paper's figures beside our figures by model and augmentation, nearest to the paper's setting."""
    of_models = groupby(measured(results), lambda one: (one[0].model, one[0].augmentation))
    for number, ((model, how), group) in enumerate(of_models, 1):
        found = list(group)
        cells = (cell for cell, *_ in found)
        near = max(cells, key=lambda one: (one.k == PAPER_K, one.k, one.length == PAPER_LENGTH))
        columns = [
            (
                f"{cell.way}, answers of {cell.answer_tokens}",
                _number(times.ratio),
                _UNKNOWN if peaks.end_to_end is None else f"{peaks.end_to_end / 1e9:.2f} GB",
                _number(ratio(peaks.end_to_end, peaks.batch), 1),
                _number(ratio(peaks.end_to_end, peaks.passage), 1),
            )
            for cell, times, peaks in found
            if (cell.k, cell.length) == (near.k, near.length)
        ]
        rows = list(zip(["", *PAPER], [_PAPERS, *PAPER.values()], *columns, strict=True))
        caption = "Time: above 1 eRAG is faster. Memory: peaks above the loaded model."
        title = f"{model}, {how}, k = {near.k}, passages of {near.length} tokens"
        yield Grid(f"paper-{number}", caption, rows[0], rows[1:], title=title)


def _times(results: Results) -> Grid:
    caption = (
        "Seconds a query. End-to-end ÷ eRAG: the median of the ratios of pairs of rounds, with their range and number "
        "(a pair of rounds that takes long is the only one). CPU ratio: the same of the time of all threads, which "
        "other work on the machine disturbs less."
    )
    head = [*_PLACE[:2], "way", *_PLACE[2:], "end-to-end s", "eRAG s", _DIVIDED]
    head += ["range", "rounds", "CPU ratio"]
    rows = [
        [
            *_named(cell, way=True),
            _number(times.end_to_end, 3),
            _number(times.erag, 3),
            f"**{times.ratio:.2f}**",
            f"{min(times.ratios):.2f}–{max(times.ratios):.2f}",
            str(len(times.ratios)),
            _number(times.cpu_ratio),
        ]
        for cell, times, _ in measured(results)
    ]
    return Grid("time", caption, head, rows, names=3, title="Time")


def _memory(results: Results) -> Grid:
    caption = (
        "MiB above the loaded model. Memory of a query: the list in one read against its k passages in one batch; of "
        "a document: the list against one passage."
    )
    head = [*_PLACE[:2], "way", *_PLACE[2:], "list MiB", "k passages MiB", "list ÷ k passages"]
    head += ["1 passage MiB", "list ÷ 1 passage"]
    rows = [
        [
            *_named(cell, way=True),
            _mebibytes(peaks.end_to_end),
            _mebibytes(peaks.batch),
            _number(ratio(peaks.end_to_end, peaks.batch), 1),
            _mebibytes(peaks.passage),
            _number(ratio(peaks.end_to_end, peaks.passage), 1),
        ]
        for cell, _, peaks in measured(results)
        if any(peaks)
    ]
    return Grid("memory", caption, head, rows, names=3, title="Peak memory")


def _fastest(results: Results) -> Grid:
    caption = "Seconds a query where several ways were measured: neither method is held back by how it is read."
    head = [*_PLACE, "end-to-end s", "by", "eRAG s", "by", _DIVIDED]
    rows = [
        [
            *_named(place),
            *[_number(own.end_to_end[1], 3), own.end_to_end[0]],
            *[_number(own.erag[1], 3), own.erag[0]],
            f"**{_number(ratio(own.end_to_end[1], own.erag[1]))}**",
        ]
        for place, own in fastest(results).items()
    ]
    title = "Each method by its fastest way"
    return Grid("fastest", caption, head, rows, names=2, title=title)


def _beside_generate(results: Results, times: Sequence[Cell]) -> Grid:
    caption = (
        "Seconds a query of the processor, the least of the rounds, by the engine and by the faster of "
        "generate's ways that were measured; above 1 the engine is the slower one (in bold by more than 5%). Each way "
        "in a process of its own."
    )
    head = [*_PLACE, "method", "engine s", "generate s", "by", "engine ÷ generate"]
    rows = []
    for place, methods in beside_generate(results, times).items():
        for method, own in methods.items():
            figure = _number(own.ratio)
            figure = f"**{figure}**" if own.ratio > _SLOWER else figure
            seconds = [_number(own.engine, 3), _number(own.generate, 3)]
            rows.append([*_named(place), method, *seconds, own.way, figure])
    return Grid("beside", caption, head, rows, names=2, title="The engine against generate")


def _named(place: Cell, *, way: bool = False) -> list[str]:
    """The place of cells, under the headings of ``_PLACE``; with their ``way`` as the third."""
    numbers = (place.k, place.length, place.answer_tokens)
    return [place.model, place.augmentation, *[place.way] * way, *map(str, numbers)]


def _exponents(results: Results, kinds: Sequence[Cell]) -> Grid:
    caption = (
        "Of k and of the passages' length d, fitted to all cells of a row; the paper has "
        "O(l k² d²) for end-to-end evaluation and O(l k d²) for eRAG. In brackets the exponent of k "
        "between the two largest k: what small cells cost whatever they read lowers the fit. Memory: of "
        "one read or batch, so that eRAG's is that of k passages together."
    )
    head = ["model", "augmentation", "way", "answer tokens", "method"]
    head += ["time: k", "d", "cells", "memory: k", "d"]
    rows = []
    for kind in kinds:
        for method in METHODS:
            points = seconds_by_place(results, kind, method)
            part = "end_to_end" if method == "end-to-end" else "batch"
            peaks = peaks_by_place(results, kind, part)
            time, memory = fit(points), fit(peaks)
            rows.append(
                [
                    *[kind.model, kind.augmentation, kind.way, str(kind.answer_tokens), method],
                    f"{_number(time.k)} ({_number(slope_at_the_end(points))})",
                    _number(time.length),
                    str(time.points),
                    f"{_number(memory.k)} ({_number(slope_at_the_end(peaks))})",
                    _number(memory.length),
                ]
            )
    rows.append(["paper", "", "", "", "end-to-end", "2", "2", "", "", ""])
    rows.append(["paper", "", "", "", "erag", "1", "2", "", "", ""])
    return Grid("exponents", caption, head, rows, names=5, title="Exponents")


def _crossings(results: Results) -> Grid:
    along_k: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    along_length: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for cell, own, _ in measured(results):
        kind = (cell.model, cell.augmentation, cell.way, str(cell.answer_tokens))
        along_k.setdefault((*kind, f"{cell.length} tokens"), []).append((cell.k, own.ratio))
        along_length.setdefault((*kind, f"k = {cell.k}"), []).append((cell.length, own.ratio))
    head = ["model", "augmentation", "way", "answer tokens", "at", "measured"]
    head += ["end-to-end is slower"]
    rows = [
        [*key, ", ".join(str(one) for one, _ in sorted(ratios)), crossing(ratios, along)]
        for along, found in (("k", along_k), ("length", along_length))
        for key, ratios in found.items()
        if along == "k" or len(ratios) > 1
    ]
    title = "Where end-to-end evaluation takes longer than eRAG"
    return Grid("crossings", "", head, rows, names=4, title=title)


def _savings(results: Results) -> Grid:
    caption = (
        "Both methods on the same lists: the reader's seconds (medians; of all its threads on a CPU), and reads "
        "and tokens, of an evaluation with sharing (Fusion-in-Decoder: one encoder pass; in-prompt: shared "
        "beginnings) and with a store of the first retriever's reads, against neither."
    )
    head = ["model", "augmentation", "evaluation", "with", "seconds", "saved"]
    head += ["reads", "tokens read", "written"]
    rows = []
    for cell in results.outcomes:
        figures = results.figures(cell)
        if cell.kind != "saving" or not figures:
            continue
        base: float | None = None
        for name, side in figures["sides"].items():
            seconds = median(side["seconds"])
            base = seconds if base is None else base
            rows.append(
                [
                    *[cell.model, cell.augmentation, cell.change, name],
                    *[_number(seconds), f"{1 - seconds / base:.0%}"],
                    str(side["reads"]),
                    *[f"{side['tokens']:,}", f"{side['written']:,}"],
                ]
            )
    return Grid("savings", caption, head, rows, names=4, title="What the engine saves")


def left_out(results: Results, left: Left) -> dict[Cell, str]:
    """The cells without figures, with the reason: cells in ``left``, stopped cells, and failed cells."""
    reasons = dict(left)
    for cell, outcome in results.outcomes.items():
        if outcome["status"] == "stopped":
            reasons[cell] = f"stopped after {outcome['limit']:.0f} s"
        elif outcome["status"] == "failed":
            reasons[cell] = f"failed: {outcome['why']}"
    return reasons


def grouped(reasons: Left) -> Iterator[str]:
    """Cells left out with reasons, in few lines: one for a kind of cell, a length and a reason."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for cell, why in reasons.items():
        name = " ".join(filter(None, [cell.kind, cell.model, cell.augmentation, cell.way]))
        detail = f" {cell.method}" * bool(cell.method) + f" {cell.change}" * bool(cell.change)
        tokens = f"{cell.length} tokens, answers of {cell.answer_tokens}"
        groups.setdefault((name + detail, tokens, why), []).append(cell.k)
    for (name, tokens, why), ks in groups.items():
        listed = ", ".join(str(k) for k in sorted(set(ks)))
        yield f"{name}, {tokens}, k = {listed}: {why}"
