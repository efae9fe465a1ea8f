"""The steps of a training: batches in an order that the seed decides, evaluations, checkpoints, an end."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from engine.machine import device
from engine.sources.io.folders import Folder
from engine.training import checkpoints
from engine.training.checkpoints import Evaluation, OnProgress, Progress
from engine.training.examples import Cuts, Example, Examples, order
from engine.training.group import Group
from engine.training.learner import Capacity, Learner, batches, shares
from engine.training.settings import Recipe

# Gives the metric of a model on this worker's share of the development queries: its sum, and over how many.
Measure = Callable[[Learner], tuple[float, int]]


class _Step(NamedTuple):
    """What a worker learns from in a step; steps and epochs are counted from 1."""

    step: int
    epoch: int
    examples: list[Example]


@dataclass
class Training:
    """A training as one of its workers does it.

    Attributes:
        learner: the model, as it started.
        examples: what it learns from.
        recipe: how.
        group: who else takes part.
        folder: where checkpoints are, and go.
        run: a hash of all that decides the curve.
        configuration: what was asked for; each checkpoint has it.
        measure: the metric on the development queries; None where there are none.
        on_progress: told of every step; only the first worker's is.
    """

    learner: Learner
    examples: Examples
    recipe: Recipe
    group: Group
    folder: Folder
    run: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    measure: Measure | None = None
    on_progress: OnProgress = lambda progress, steps: None

    def __post_init__(self) -> None:
        self._steps = self.recipe.steps(len(self.examples))

    def fit(self) -> Progress:
        """Train to the end, from the latest checkpoint on; the model is then that of the best evaluation.

        Without development queries, it is that of the last step.

        Raises:
            InputError: the checkpoints are another training's, or memory ran out with a single query.
            WriteError: a checkpoint cannot be written.
        """
        # All look before anybody writes.
        known = self.group.gather(checkpoints.load_progress(self.folder, self.run))[0]
        progress = known or Progress(self.run, self.learner.precision)
        if not progress.ended:
            checkpoints.restore(self.folder, progress, self.learner)
            if self.group.rank:  # the first counts for all what was cut before
                progress = replace(progress, cuts=Cuts())
            progress = replace(
                progress, starts=progress.starts + 1, configuration=self.configuration
            )
            progress = self._go_on(progress)
        checkpoints.restore_best(self.folder, progress, self.learner)
        return progress

    def _go_on(self, progress: Progress) -> Progress:
        if len(progress.capacity) == self.group.size:
            before = Capacity(**progress.capacity[self.group.rank])
            # What is asked for anew holds; else it goes on as it was, whatever was measured now.
            if before.asked == self.learner.capacity.asked:
                self.learner.restore(before)
            else:
                self.learner.capacity.halvings = before.halvings
        begun = time.monotonic() - progress.seconds
        if not progress.capacity:  # nothing was kept yet
            progress = self._kept(self._evaluated(progress, begun))
        self._tell(progress)
        for step in self._ahead(progress.step):
            progress = self._stepped(progress, step, begun)
            evaluates = self.recipe.evaluates(step.step, len(self.examples))
            if evaluates:
                progress = self._evaluated(progress, begun)
            patience = self.recipe.patience
            if step.step == self._steps:
                progress = replace(progress, ended="all epochs are done")
            elif patience and progress.since_best() >= patience:
                progress = replace(
                    progress, ended=f"no better evaluation among the last {patience}"
                )
            if evaluates or step.step % self.recipe.checkpoint_every == 0:
                progress = self._kept(progress)
            self._tell(progress)
            if progress.ended:
                break
        return progress

    def _ahead(self, done: int) -> Iterator[_Step]:
        """What is left to learn from, made while the step before is under way."""

        def planned() -> Iterator[tuple[int, int, list[int]]]:
            step, size = 0, len(self.examples)
            for epoch in range(1, self.recipe.epochs + 1):
                places = order(size, self.recipe.seed, epoch)
                for batch in batches(places, self.recipe.batch):
                    step += 1
                    if step > done:
                        yield step, epoch, list(shares(batch, self.group))

        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for step, epoch, places in planned():
                drawn = pool.submit(self.examples.draw, epoch - 1, places)
                if waiting is not None:
                    yield _Step(waiting[0], waiting[1], waiting[2].result())
                waiting = step, epoch, drawn
            if waiting is not None:
                yield _Step(waiting[0], waiting[1], waiting[2].result())

    def _stepped(self, progress: Progress, step: _Step, begun: float) -> Progress:
        seed = _seed(self.recipe.seed, step.step, self.group.rank)
        own = self.learner.accumulate(
            step.examples, seed, may_checkpoint=self.recipe.gradient_checkpointing is not False
        )
        learned = self.learner.update(
            own,
            self.group,
            rate=self.recipe.rate(step.step, self._steps),
            clip=self.recipe.clip,
        )
        cuts = progress.cuts.and_of(step.examples) if step.epoch == 1 else progress.cuts
        return replace(
            progress,
            step=step.step,
            # Of the last step of all, whose weights are kept where nothing measures them.
            best=progress.best if self.measure else step.step,
            losses=(*progress.losses, learned.loss),
            tokens=progress.tokens + learned.read,
            cuts=cuts,
            seconds=time.monotonic() - begun,
        )

    def _evaluated(self, progress: Progress, begun: float) -> Progress:
        if self.measure is None:
            return progress
        total, count = map(sum, zip(*self.group.gather(self.measure(self.learner)), strict=True))
        value = total / count
        before = progress.best_value
        return replace(
            progress,
            evaluations=(
                *progress.evaluations,
                Evaluation(progress.step, value, progress.tokens),
            ),
            best=progress.step if before is None or value >= before else progress.best,
            seconds=time.monotonic() - begun,
        )

    def _kept(self, progress: Progress) -> Progress:
        """Write a checkpoint; what each worker knows alone is in it."""
        own = asdict(self.learner.capacity), device.peak_memory(self.learner.device), progress.cuts
        told = self.group.gather(own)
        whole = replace(
            progress,
            capacity=tuple(capacity for capacity, _, _ in told),
            peak_memory=max(progress.peak_memory, *(peak for _, peak, _ in told)),
            cuts=sum((cuts for _, _, cuts in told), Cuts()),
        )
        if self.group.rank == 0:
            checkpoints.save_progress(self.folder, whole, self.learner)
        # Nobody goes on, or looks for it, before it is there.
        self.group.gather(None)
        if whole.ended:
            return whole
        # Each goes on counting its own alone.
        return replace(progress, capacity=whole.capacity, peak_memory=whole.peak_memory)

    def _tell(self, progress: Progress) -> None:
        if self.group.rank == 0:
            self.on_progress(progress, self._steps)


def _seed(*parts: int) -> int:
    """A seed for torch, made of numbers."""
    content = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(content[:6], "big")
