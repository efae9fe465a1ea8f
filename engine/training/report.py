"""The report of a training: ``training.json``, the lines that are printed at its end, and a page with its curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.messages.notes import Note, count_note
from engine.messages.wording import counted
from engine.report.layout import Answer, Grid, sentence
from engine.report.page.plotting import COLOURS, FAINT, INK, MARKERS, Drawing, add_legend
from engine.report.page.render import Page, Part, write_single
from engine.report.summary import Origin, audit_of, jsonable, versions
from engine.training.checkpoints import Progress
from engine.training.inputs import TrainingInputs
from engine.training.settings import Recipe
from engine.training.start import Start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "training.html"
# Maximum of points of the smoothed curve.
_POINTS = 60
_PACKAGES = ("torch", "transformers", "tokenizers", "ray", "polars", "numpy")


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A finished training; ``settings``: its settings by name, but for the recipe's."""

    inputs: TrainingInputs
    start: Start
    recipe: Recipe
    metric: str
    progress: Progress
    settings: Mapping[str, Any]
    origin: Origin

    @property
    def notes(self) -> list[Note]:
        """Notes on omitted queries, cut texts and shortages."""
        cuts, spec = self.progress.cuts, self.start.spec
        longest = f"{n} tokens" if (n := spec.max_input_tokens) else "the reader's longest input"
        to = f"to the {spec.max_new_tokens} tokens that the prompt lets the reader write"
        halvings = sum(int(worker["halvings"]) for worker in self.progress.at_once)
        short = "[time|times] memory ran out, and the micro-batch was halved"
        inputs = f"of {cuts.inputs:,} inputs [was|were] cut to {longest}"
        targets = f"of {cuts.targets:,} answers [was|were] cut {to}"
        return [
            *self.inputs.notes,
            count_note("cut_inputs", cuts.cut_inputs, inputs),
            count_note("cut_targets", cuts.cut_targets, targets),
            count_note("memory_halvings", halvings, short),
        ]


def content(trained: TrainingResult, parameters: int) -> dict[str, Any]:
    """The content of ``training.json``."""
    progress, spec, prompt = trained.progress, trained.start.spec, trained.start.prompt
    steps = trained.recipe.steps(trained.inputs.train.queries.height)
    dev = trained.inputs.dev
    summary = {
        "configuration": {
            **trained.settings,
            "reader": spec.name,
            "augmentation": "fid" if prompt.fused else "in-prompt",
            "prompt": prompt.template.name,
            "metric": trained.metric,
            "memory": spec.memory or None,
            **asdict(trained.recipe),
            "precision": progress.precision,
        },
        "start": {
            "name": spec.name,
            "from_scratch": trained.start.from_scratch,
            "weights_sha256": spec.weights,
            "prompt_sha256": prompt.digest,
            "max_input_tokens": spec.max_input_tokens,
            "max_new_tokens": spec.max_new_tokens,
            "parameters": parameters,
        },
        "counts": {
            "queries": trained.inputs.train.queries.height,
            "dev_queries": 0 if dev is None else dev.queries.height,
            "steps": progress.step,
            "planned_steps": steps,
            **asdict(progress.cuts),
            **{note.code: note.amount for note in trained.notes},
        },
        "notes": [note.text for note in trained.notes if note.is_shown],
        "ended": progress.ended,
        "best": {"step": progress.best, "value": progress.best_value},
        "evaluations": [asdict(evaluation) for evaluation in progress.evaluations],
        "losses": progress.losses,
        "rates": [trained.recipe.rate(step, steps) for step in range(1, progress.step + 1)],
        "seconds": progress.seconds,
        "starts": progress.starts,
        "peak_memory": progress.peak_memory,
        "at_once": progress.at_once,
        "versions": versions(_PACKAGES),
        "audit": audit_of(trained.origin, {}),
    }
    return dict(jsonable(summary))


def lines(summary: Mapping[str, Any]) -> Iterable[str]:
    """The lines printed at the end, from the content of ``training.json``."""
    counts, best = summary["counts"], summary["best"]
    per_epoch = max(1, -(-counts["queries"] // summary["configuration"]["batch"]))
    of = f" of {counts['planned_steps']:,}" * (counts["steps"] < counts["planned_steps"])
    yield (
        f"{counted(counts['steps'], f'[step|steps]{of}')} ({counts['steps'] / per_epoch:.1f} epochs of "
        f"{counted(counts['queries'], '[query|queries]')}) in {summary['seconds']:.0f} s; {summary['ended']}"
    )
    losses = summary["losses"]
    some = max(1, min(per_epoch, len(losses) // 4))
    first, last = sum(losses[:some]) / some, sum(losses[-some:]) / some
    yield f"loss per token: {first:.3f} over the first {counted(some, '[step|steps]')}, {last:.3f} over the last"
    if best["value"] is not None:
        metric, before = summary["configuration"]["metric"], summary["evaluations"][0]["value"]
        yield (
            f"{metric} on {counted(counts['dev_queries'], 'development [query|queries]')}: {before:.4f} at the start, "
            f"{best['value']:.4f} at step {best['step']}, whose model is kept"
        )
    else:
        yield "no development queries: the model of the last step is kept"
    at_once = summary["at_once"][0]
    anew = ", activations recomputed" if at_once["checkpointing"] else ""
    yield (
        f"peak memory {summary['peak_memory'] / 2**20:,.0f} MiB per worker; up to {at_once['tokens']:,} tokens at "
        f"once{anew}"
    )
    yield from (f"note: {note}" for note in summary["notes"])


def write_training_page(summary: Mapping[str, Any], folder: Path) -> None:
    """Write ``training.html``, with its pictures inside, into a folder; a WriteError if the place cannot be written."""
    headline, *reasons = lines({**summary, "notes": []})
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    start = summary["start"]
    facts = [
        ("start", start["name"] + ", from scratch" * start["from_scratch"]),
        ("parameters", f"{start['parameters']:,}"),
        ("versions", versions),
    ]
    parts = [Part("loss", "Loss", "Training loss", pictures=("loss",))]
    drawings = [_losses(summary)]
    if summary["evaluations"]:
        drawings.append(_evaluations(summary))
        title, shown = "On the development queries", ("evaluations",)
        parts.append(Part("dev", "Evaluations", title, grids=(_grid(summary),), pictures=shown))
    page = Page(
        title="Training of a reader: erag-engine",
        answer=Answer(sentence(headline), [sentence(reason) for reason in reasons], facts),
        parts=parts,
        drawings=drawings,
        notes=[sentence(note) for note in summary["notes"]],
        settings=summary["configuration"],
    )
    write_single(page, folder / PAGE)


def _losses(summary: Mapping[str, Any]) -> Drawing:
    losses = summary["losses"]
    # Means over windows of equal length.
    length = max(1, -(-len(losses) // _POINTS))
    windows = [losses[begin : begin + length] for begin in range(0, len(losses), length)]
    middles = [place * length + (len(window) + 1) / 2 for place, window in enumerate(windows)]
    means = [sum(window) / len(window) for window in windows]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(range(1, len(losses) + 1), losses, color=FAINT, label="each step")
        axes.plot(middles, means, color=COLOURS[0], label="mean")
        axes.set(xlabel="step", ylabel="cross entropy per token", ylim=(0, None))
        add_legend(figure, axes, 2)

    mean = f"; “mean” is over every {length} steps" if length > 1 else ""
    caption = f"Cross entropy of the answers' tokens, in nats, with dropout as in training{mean}."
    return Drawing("loss", "The loss of each step", caption, 3.2, draw)


def _evaluations(summary: Mapping[str, Any]) -> Drawing:
    metric, best = summary["configuration"]["metric"], summary["best"]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        evaluations = summary["evaluations"]
        steps, values = zip(*((each["step"], each["value"]) for each in evaluations), strict=True)
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
    for evaluation in summary["evaluations"]:
        step = evaluation["step"]
        since = losses[before:step]
        mean = f"{sum(since) / len(since):.4f}" if since else ""
        mark = "kept" * (step == summary["best"]["step"])
        figures = [f"{evaluation['tokens']:,}", f"{evaluation['value']:.4f}", mean]
        rows.append([f"{step:,}", *figures, mark])
        before = step
    caption = "Loss: mean over the steps since the previous evaluation. Tokens: the encoder's input tokens up to that step."
    head = ["step", "tokens", summary["configuration"]["metric"], "loss", ""]
    return Grid("evaluations", caption, head, rows)
