"""What is evaluated and how: the settings behind the command line's options, and what they exclude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.errors import InputError
from engine.labels import containment, dual, erag, judge, preference, provenance, qrels, utility
from engine.labels.dual import DualWords
from engine.labels.judge import JudgeLabels
from engine.labels.preference import PreferenceLabels
from engine.labels.utility import HELPFUL, Helpful
from engine.machine.device import Dtype
from engine.ranking.measures import UTILITY_KIND, Measure, parse_measures, why_undefined
from engine.ranking.scores import Missing, Relevant
from engine.reading.prompting.template import ABSTAIN, Task, read_template
from engine.reading.protocol import Augmentation, Engine
from engine.scoring.metrics import get_metric
from engine.statistics.correlation import Bootstrap
from engine.statistics.intervals import IntervalMethod

ANNOTATORS = (
    erag.NAME,
    *containment.NAMES,
    provenance.NAME,
    dual.NAME,
    judge.NAME,
    qrels.NAME,
    preference.NAME,
    utility.NAME,
)
# Annotators that look for answers in passages, and tasks whose answers stand in none.
_SEARCHING = (*containment.NAMES, dual.NAME)
_NOT_SEARCHABLE = {
    "claims": "its answers are verdicts, which a passage need not contain to decide the claim",
    "dialogue": "its answers are whole utterances, which a passage need not contain to inform them",
}
# Metrics whose values lie between 0 and 1, so that eRAG's labels are graded.
_GRADED_METRICS = frozenset({"f1", "rouge-l", "rouge-l-kilt"})


@dataclass(frozen=True)
class Settings:
    """What is evaluated and how; the command line's options are these.

    Attributes:
        reader: ``bundled``, a ``.gguf`` file, a directory, or a Hugging Face id in the local cache.
        augmentation: how the reader gets its passages.
        task: what it is asked to do; chooses the prompt.
        prompt: a prompt template's file, or the name of one that comes with the engine; None for the
            usual one of the task and the kind of model.
        metric: the downstream metric.
        k: cutoff of the runs: so many passages are labelled.
        end_to_end_k: passages that the end-to-end reader is given; None means ``k``.
        measures: ranking measures, separated by spaces; empty means the usual ones at ``k``.
        annotators: who labels.
        judge: the model that the annotator ``judge`` asks, named as ``reader`` is; None for the reader.
        judge_prompt: what it is asked, named as ``prompt`` is; None for the usual one.
        judge_labels: 1 or 0, or the probability of relevance.
        erag_reader: the model that eRAG's labels (and utilities) come from, named as ``reader`` is;
            None for the reader of whole lists.
        helpful: whose labels say which passages help, for utilities.
        abstain_prompt: what lets the reader decline, for utilities; named as ``prompt`` is. None for
            the one of the same style as ``prompt``, or the usual one.
        dual_words: how the annotator ``dual`` looks for answers (see ``engine.labels.dual``).
        preference_labels: what becomes of human preferences (see ``engine.labels.preference``).
        relevant: what counts as judged (see ``engine.ranking.scores``); None means ``qrels`` where
            these alone label, else ``pool`` for several runs and ``list`` for one.
        missing: what becomes of queries that a run lists nothing for (``engine.ranking.scores``);
            ``skip`` leaves them out of the run's end-to-end score too.
        end_to_end: whether to read whole lists too and correlate with the result.
        engine: the library that runs the reader.
        dtype: precision of the reader; None for the fastest here.
        memory: bytes per actor; 0 for the default.
        actors: None for as many as there is room for, 0 to read in this process.
        failed_reads: whether a read that could not be done is an error, counts as 0, or takes its
            query out: of eRAG's scores if a single passage failed, of a run's end-to-end score if its
            list did.
        certify: reads that are repeated in other batches, to see whether outputs depend on batching
            (``engine.reading.certify``).
        resamples, interval, confidence, seed: of the bootstrap (``engine.statistics.intervals``); the
            seed also draws the repeated reads.
    """

    reader: str = "bundled"
    augmentation: Augmentation = "in-prompt"
    task: Task = "short-answer"
    prompt: str | None = None
    metric: str = "em"
    k: int = 10
    end_to_end_k: int | None = None
    measures: str = ""
    annotators: tuple[str, ...] = (erag.NAME,)
    judge: str | None = None
    judge_prompt: str | None = None
    judge_labels: JudgeLabels = "binary"
    erag_reader: str | None = None
    helpful: Helpful = "erag"
    abstain_prompt: str | None = None
    dual_words: DualWords = "tokens"
    preference_labels: PreferenceLabels = "share"
    relevant: Relevant | None = None
    missing: Missing = "zero"
    end_to_end: bool = True
    engine: Engine = "transformers"
    dtype: Dtype | None = None
    memory: int = 0
    actors: int | None = None
    failed_reads: Literal["error", "zero", "skip"] = "error"
    certify: int = 0
    resamples: int = 10_000
    interval: IntervalMethod = "percentile"
    confidence: float = 0.95
    seed: int = 0

    def parsed_measures(self) -> tuple[Measure, ...]:
        """The measures named, or the usual ones: those that some annotator's labels have."""
        others = set(self.annotators) - {utility.NAME}
        kinds = ["P", "nDCG", "Success"] if others else []
        if others - set(self.graded_annotators()):
            kinds = ["P", "nDCG", "AP", "RR", "R", "Success"]
        if utility.NAME in self.annotators:
            kinds.append(UTILITY_KIND)
        return parse_measures(self.measures or " ".join(f"{kind}@{self.k}" for kind in kinds))

    def why_undefined(self, measure: Measure, annotator: str, *, real_valued: bool = False) -> str:
        """Why a measure has no meaning on an annotator's labels; empty where it has one.

        Args:
            real_valued: whether some label lies between whole numbers, where that is known.
        """
        graded = self.graded_annotators().get(
            annotator, "real-valued labels" if real_valued else ""
        )
        return why_undefined(measure, utilities=annotator == utility.NAME, graded=graded)

    def reads_alone(self) -> bool:
        """Whether passages are read one at a time, for eRAG's labels or for what these are used for."""
        return erag.NAME in self.annotators or (
            utility.NAME in self.annotators and self.helpful == erag.NAME
        )

    def graded_annotators(self) -> dict[str, str]:
        """The annotators whose labels can lie between 0 and 1, and what makes them so."""
        graded: dict[str, str] = {}
        if self.metric in _GRADED_METRICS:
            graded[erag.NAME] = f"eRAG's graded labels under {self.metric}"
        if self.judge_labels == "graded":
            graded[judge.NAME] = "the judge's graded labels"
        graded[preference.NAME] = "the shares and probabilities that preferences give"
        return {name: why for name, why in graded.items() if name in self.annotators}

    def judged(self, runs: int, *, alone: bool = True) -> Relevant:
        """What counts as judged with so many runs.

        Args:
            alone: whether nobody but ``annotators`` labels.
        """
        if self.relevant is not None:
            return self.relevant
        if alone and self.annotators == (qrels.NAME,):
            return "qrels"
        return "pool" if runs > 1 else "list"

    def bootstrap(self) -> Bootstrap:
        return Bootstrap(self.resamples, self.interval, self.confidence, self.seed)


def check(settings: Settings, own: Sequence[str] = ()) -> None:
    """Refuse settings that cannot work, before anything is read.

    Args:
        own: names of annotators beside those of the settings.

    Raises:
        InputError: an unknown name, a value out of range, a prompt template that cannot be used, or
            choices that exclude each other.
    """
    get_metric(settings.metric)
    for name in settings.annotators:
        if name not in ANNOTATORS:
            raise InputError(
                None, None, f"unknown annotator {name!r}", f"use {', '.join(ANNOTATORS)}"
            )
    if not settings.annotators:
        raise InputError(None, None, "no annotators", f"use some of {', '.join(ANNOTATORS)}")
    for option, value, least in (
        ("--k", settings.k, 1),
        ("--end-to-end-k", settings.end_to_end_k, 1),
        ("--actors", settings.actors, 0),
        ("--certify", settings.certify, 0),
    ):
        if value is not None and value < least:
            raise InputError(None, None, f"{option} is {value}", f"use {least} or more")
    reading = {erag.NAME, judge.NAME, utility.NAME}
    read = settings.end_to_end or not reading.isdisjoint(settings.annotators)
    if settings.certify and not read:
        raise InputError(
            None,
            None,
            "--certify repeats reads, and nothing is read",
            "use --end-to-end or the annotators erag, judge or utility, or leave --certify out",
        )
    measures = settings.parsed_measures()
    for measure in measures:
        if measure.cutoff is not None and measure.cutoff > settings.k:
            raise InputError(
                None,
                None,
                f"{measure} looks further than --k {settings.k}",
                f"use --k {measure.cutoff}, or a smaller cutoff",
            )
    settings.bootstrap()  # refuses what it cannot take
    if (settings.end_to_end_k or 0) > settings.k:
        raise InputError(
            None,
            None,
            f"--end-to-end-k {settings.end_to_end_k} exceeds --k {settings.k}",
            "the reader of the whole list gets at most the passages that are labelled",
        )
    searching = {*settings.annotators}
    if utility.NAME in settings.annotators:
        searching.add(settings.helpful)
    for name in _SEARCHING:
        if name in searching and settings.task in _NOT_SEARCHABLE:
            raise InputError(
                None,
                None,
                f"{name} has no meaning for the task {settings.task}: "
                f"{_NOT_SEARCHABLE[settings.task]}",
                f"leave {name} out"
                + (" of --annotators" if name in settings.annotators else " of --helpful"),
            )
    if judge.NAME not in settings.annotators:
        for option, given in (
            ("--judge", settings.judge is not None),
            ("--judge-prompt", settings.judge_prompt is not None),
            ("--judge-labels graded", settings.judge_labels == "graded"),
        ):
            if given:
                raise InputError(
                    None, None, f"{option} without the annotator judge", "add judge to --annotators"
                )
    if dual.NAME not in settings.annotators and settings.dual_words != "tokens":
        raise InputError(
            None,
            None,
            f"--dual-words {settings.dual_words} without the annotator dual",
            "add dual to --annotators",
        )
    if preference.NAME not in settings.annotators and settings.preference_labels != "share":
        raise InputError(
            None,
            None,
            f"--preference-labels {settings.preference_labels} without the annotator preference",
            "add preference to --annotators",
        )
    _check_utility(settings)
    if settings.erag_reader is not None and {erag.NAME, utility.NAME}.isdisjoint(
        settings.annotators
    ):
        raise InputError(
            None,
            None,
            "--erag-reader without the annotators erag and utility",
            "add erag to --annotators",
        )
    if not settings.end_to_end and not settings.reads_alone():
        for option, given in (
            ("--prompt", settings.prompt is not None),
            ("--augmentation fid", settings.augmentation == "fid"),
        ):
            if given:
                raise InputError(
                    None,
                    None,
                    f"{option}, but the reader is asked for nothing",
                    "use --end-to-end or the annotator erag, or leave it out",
                )
    if settings.prompt is not None:
        read_template(settings.prompt, settings.task)
    if settings.judge_prompt is not None:
        read_template(settings.judge_prompt, judge.NAME)
    if settings.relevant == "qrels" and (others := set(settings.annotators) - {qrels.NAME}):
        raise InputError(
            None,
            None,
            f"--relevant qrels does not fit {', '.join(sorted(others))}, "
            "who judge listed passages only",
            "use --annotators qrels, or --relevant pool",
        )
    if settings.relevant == "list" and any(measure.kind == "Judged" for measure in measures):
        raise InputError(
            None,
            None,
            "Judged is 1 by definition under --relevant list",
            "use --relevant pool, or leave Judged out",
        )
    _check_measures(settings, measures, own)


def _check_utility(settings: Settings) -> None:
    if settings.helpful not in HELPFUL:
        raise InputError(
            None, None, f"--helpful is {settings.helpful!r}", f"use {', '.join(HELPFUL)}"
        )
    if utility.NAME in settings.annotators:
        if settings.abstain_prompt is not None:
            read_template(settings.abstain_prompt, ABSTAIN)
        return
    for option, given in (
        (f"--helpful {settings.helpful}", settings.helpful != Settings.helpful),
        ("--abstain-prompt", settings.abstain_prompt is not None),
    ):
        if given:
            raise InputError(
                None, None, f"{option} without the annotator utility", "add utility to --annotators"
            )


def _check_measures(settings: Settings, measures: Sequence[Measure], own: Sequence[str]) -> None:
    """Refuse measures that nobody's labels have, and annotators that none of the measures fits."""
    reasons = {
        (name, measure): settings.why_undefined(measure, name)
        for name in (*settings.annotators, *own)
        for measure in measures
    }
    for measure in measures:
        whys = {name: why for (name, asked), why in reasons.items() if asked == measure}
        if all(whys.values()):
            # That utilities have another measure is no news where other labels lack a threshold.
            why = next((why for name, why in whys.items() if name != utility.NAME), None)
            raise InputError(
                None,
                None,
                f"{measure} is {why or whys[utility.NAME]}",
                "leave it out, or use others",
            )
    for name in settings.annotators:
        refuse_without_measure(
            name, [why for (annotator, _), why in reasons.items() if annotator == name]
        )


def refuse_without_measure(annotator: str, reasons: Sequence[str]) -> None:
    """Refuse an annotator that none of the measures fits.

    Args:
        reasons: why each measure has no meaning on its labels; empty for one that has.

    Raises:
        InputError: no measure has.
    """
    if all(reasons):
        fitting = UTILITY_KIND if annotator == utility.NAME else "P, nDCG or Success"
        raise InputError(
            None,
            None,
            f"every measure is undefined on the labels of {annotator} (the first is {reasons[0]})",
            f"add {fitting}",
        )
