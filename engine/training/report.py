"""What a training came to: as ``training.json``, and in the lines that are printed at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.messages.notes import Note, count_note
from engine.messages.wording import counted
from engine.report import audit
from engine.report.audit import Origin
from engine.report.summary import jsonable, versions
from engine.training.checkpoints import Progress
from engine.training.inputs import TrainingInputs
from engine.training.settings import Recipe
from engine.training.start import Start

_PACKAGES = ("torch", "transformers", "tokenizers", "ray", "polars", "numpy")


@dataclass(frozen=True, eq=False)
class Trained:
    """A training that has ended, and what it was ``asked`` for: every setting by its name, the recipe's aside."""

    inputs: TrainingInputs
    start: Start
    recipe: Recipe
    metric: str
    progress: Progress
    asked: Mapping[str, Any]
    origin: Origin

    @property
    def notes(self) -> list[Note]:
        """What was left out, cut, or ran short."""
        cuts, progress = self.progress.cuts, self.progress
        longest = self.start.spec.max_input_tokens
        return [
            *self.inputs.notes,
            count_note(
                "cut_inputs",
                cuts.cut_inputs,
                f"of {cuts.inputs:,} inputs [was|were] cut"
                + (f" to {longest} tokens" if longest else " to the reader's longest input"),
            ),
            count_note(
                "cut_targets",
                cuts.cut_targets,
                f"of {cuts.targets:,} answers [was|were] cut to the {self.start.spec.max_new_tokens} tokens that "
                "the prompt lets the reader write",
            ),
            count_note(
                "memory_halvings",
                sum(int(one["halvings"]) for one in progress.at_once),
                "[time|times] memory ran out, and the micro-batch was halved",
            ),
        ]


def content(trained: Trained, parameters: int) -> dict[str, Any]:
    """The content of ``training.json``."""
    progress, spec, prompt = trained.progress, trained.start.spec, trained.start.prompt
    steps = trained.recipe.steps(trained.inputs.train.queries.height)
    dev = trained.inputs.dev
    return dict(
        jsonable(
            {
                "configuration": {
                    **trained.asked,
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
                "evaluations": [asdict(one) for one in progress.evaluations],
                "losses": progress.losses,
                "rates": [trained.recipe.rate(step, steps) for step in range(1, progress.step + 1)],
                "seconds": progress.seconds,
                "starts": progress.starts,
                "peak_memory": progress.peak_memory,
                "at_once": progress.at_once,
                "versions": versions(_PACKAGES),
                "audit": audit.content(trained.origin, {}),
            }
        )
    )


def lines(summary: Mapping[str, Any]) -> Iterable[str]:
    """What is printed at the end, from the content of ``training.json``."""
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
