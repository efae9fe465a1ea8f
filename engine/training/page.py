"""The page of ``erag train``: how the loss fell and the metric rose, and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.report.layout import Grid
from engine.report.page.content import Answer, Part, sentence
from engine.report.page.plain import Page, write_single
from engine.report.page.plotting import COLOURS, FAINT, INK, MARKERS, Drawing, add_legend
from engine.training import report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "training.html"
# Points of the smoothed curve that a picture has room for.
_POINTS = 60


def write_training_page(summary: Mapping[str, Any], folder: Path) -> None:
    """Write ``training.html`` into a folder, in one file.

    Raises:
        WriteError: the disk is full, or the place cannot be written.
    """
    headline, *reasons = report.lines({**summary, "notes": []})
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    facts = [
        ("start", summary["start"]["name"] + ", from scratch" * summary["start"]["from_scratch"]),
        ("parameters", f"{summary['start']['parameters']:,}"),
        ("versions", versions),
    ]
    parts = [Part("loss", "Loss", "Training loss", pictures=("loss",))]
    drawings = [_losses(summary)]
    if summary["evaluations"]:
        drawings.append(_evaluations(summary))
        grids = (_grid(summary),)
        title = "On the development queries"
        parts.append(Part("dev", "Evaluations", title, grids=grids, pictures=("evaluations",)))
    page = Page(
        title="Training of a reader: erag-engine",
        answer=Answer(sentence(headline), [sentence(reason) for reason in reasons], facts),
        parts=parts,
        drawings=drawings,
        notes=[sentence(note) for note in summary["notes"]],
        settings=summary["configuration"],
    )
    write_single(page, folder / PAGE)


def smoothed(losses: Sequence[float]) -> tuple[list[float], list[float]]:
    """The means of losses over stretches of steps of one length: the middle step of each, and its mean."""
    length = max(1, -(-len(losses) // _POINTS))
    stretches = [losses[begin : begin + length] for begin in range(0, len(losses), length)]
    middles = [place * length + (len(stretch) + 1) / 2 for place, stretch in enumerate(stretches)]
    return middles, [sum(stretch) / len(stretch) for stretch in stretches]


def _losses(summary: Mapping[str, Any]) -> Drawing:
    losses = summary["losses"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        middles, means = smoothed(losses)
        axes.plot(range(1, len(losses) + 1), losses, color=FAINT, label="each step")
        axes.plot(middles, means, color=COLOURS[0], label="mean")
        axes.set(xlabel="step", ylabel="cross entropy per token", ylim=(0, None))
        add_legend(figure, axes, 2)

    length = max(1, -(-len(losses) // _POINTS))
    mean = f"; “mean” is over every {length} steps" if length > 1 else ""
    caption = f"Cross entropy of the answers' tokens, in nats, with dropout as in training{mean}."
    return Drawing("loss", "The loss of each step", caption, 3.2, draw)


def _evaluations(summary: Mapping[str, Any]) -> Drawing:
    metric, best = summary["configuration"]["metric"], summary["best"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        steps = [one["step"] for one in summary["evaluations"]]
        values = [one["value"] for one in summary["evaluations"]]
        axes.plot(steps, values, color=COLOURS[1], marker=MARKERS[1], markersize=4.5)
        axes.axvline(best["step"], color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="step", ylabel=metric, ylim=(0, None))

    caption = (
        f"{metric} of the engine's own reader, after each of these steps, on "
        f"{summary['counts']['dev_queries']:,} queries. Dotted: the step whose model is kept."
    )
    return Drawing("evaluations", "The metric on the development queries", caption, 3.0, draw)


def _grid(summary: Mapping[str, Any]) -> Grid:
    losses = summary["losses"]
    rows, before = [], 0
    for one in summary["evaluations"]:
        since = losses[before : one["step"]]
        mean = f"{sum(since) / len(since):.4f}" if since else ""
        kept = "kept" * (one["step"] == summary["best"]["step"])
        rows.append([f"{one['step']:,}", f"{one['tokens']:,}", f"{one['value']:.4f}", mean, kept])
        before = one["step"]
    return Grid(
        "evaluations",
        "Loss: mean over the steps since the previous evaluation. Tokens: the encoder's input tokens up to that step.",
        ["step", "tokens", summary["configuration"]["metric"], "loss", ""],
        rows,
    )
