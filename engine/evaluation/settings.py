"""The settings of an evaluation, and the conflicts between its parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import polars as pl

from engine.inputs.files import EvaluationInputs, cut_inputs, with_tokens
from engine.labels import registry
from engine.labels.annotator import Annotator, Scale
from engine.labels.registry import ANNOTATORS, LabelSettings, needed_by, option_classes, resolve
from engine.machine.remote.api_settings import ApiSettings, is_api
from engine.messages.checked import CheckedSettings, Positive
from engine.messages.errors import InputError
from engine.messages.gone import GONE
from engine.messages.notes import Note
from engine.messages.wording import meant
from engine.ranking.kinds.base import Measure
from engine.ranking.measures import UTILITY_KIND
from engine.ranking.scores import ALL_JUDGMENTS, RankingSettings, Relevant
from engine.reading.protocol import Augmentation
from engine.reading.reader_settings import ReaderSettings, RunningSettings
from engine.statistics.correlation import Bootstrap
from engine.tables import QUERY_ID, RANK, RUN, TOKENS

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class Settings(CheckedSettings):
    """Settings of an evaluation, in parts. Each part checks itself; conflicts between parts are checked here.

    Attributes:
        reader: the LLM that reads, and the metric of its outputs.
        labels: the annotators and their options.
        ranking: cutoff, measures, and the definition of relevance.
        bootstrap: the method of intervals.
        running: memory, processes, and the handling of failed reads.
        api: the server of readers behind an API, and bounds on requests.

    Raises:
        InputError: a value out of range, or settings that exclude each other.
    """

    reader: ReaderSettings = field(default_factory=ReaderSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    ranking: RankingSettings = field(default_factory=RankingSettings)
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    running: RunningSettings = field(default_factory=RunningSettings)
    api: ApiSettings = field(default_factory=ApiSettings)

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings from the fields of all parts and of annotators' options: ``Settings.of(k=5, metric="f1")``.

        Raises:
            TypeError: an unknown field.
            InputError: as for the class.
        """
        return cls().but(**values)

    def but(self, **values: Any) -> Settings:
        """The same settings with other values of some fields, whichever part they belong to."""
        left = dict(values)

        def changed(part: Any) -> Any:
            names = {entry.name for entry in fields(part)} & left.keys()
            return replace(part, **{name: left.pop(name) for name in names}) if names else part

        annotators = left.pop("annotators", self.labels.annotators)
        labels = replace(self.labels, annotators=annotators)
        classes = option_classes(labels.listed())
        labels = replace(labels, options=tuple(changed(labels.of(kind)) for kind in classes))
        parts = {name: changed(getattr(self, name)) for name in _PARTS}
        for name in left:
            if instead := GONE.get(("option", name)):
                raise TypeError(f"the setting {name} is gone: {instead}")
        if left:
            hint = "; " + "".join(meant(name, self.flat()) for name in left)
            raise TypeError(f"no setting is called {', '.join(left)}{hint.rstrip('; ')}")
        return replace(self, labels=labels, **parts)

    @property
    def in_rounds(self) -> str:
        """The setting that has reads done in rounds, if any."""
        bootstrap = self.bootstrap
        values = {"lazy": self.running.lazy, "until": bootstrap.until, "width": bootstrap.width}
        return next((name for name, value in values.items() if value), "")

    @property
    def draws_queries(self) -> bool:
        """Whether queries, or lists, are read in rounds, until scores show that they suffice."""
        return bool(self.bootstrap.until or self.bootstrap.width)

    def flat(self) -> dict[str, Any]:
        """All fields of all parts by name, as arguments of ``but``; without the user's functions."""
        values: dict[str, Any] = {
            **_values(self.reader, leave_out=("functions",)),
            "metric": self.reader.metric_name,
            **asdict(self.ranking),
            **{name: getattr(self.bootstrap, name) for name in BOOTSTRAP_FIELDS},
            **asdict(self.running),
            **asdict(self.api),
            "annotators": self.labels.names(),
        }
        for kind in option_classes(self.labels.listed()):
            values |= asdict(self.options(kind))
        return values

    def options(self, kind: type[Options]) -> Options:
        """An annotator's options, by their class."""
        return self.labels.of(kind)

    @cached_property
    def resolved(self) -> registry.Resolution:
        """Annotators, measures and requests that the settings resolve to."""
        return resolve(self, self.labels.listed())

    def __getstate__(self) -> dict[str, Any]:
        # The fields alone: the cached resolution holds functions.
        return _values(self)

    def needs_answers(self) -> bool:
        """Whether queries must have answers: outputs of whole lists are scored, or an annotator needs them."""
        return any([self.reader.end_to_end, *(a.needs_answers for a in self.resolved.annotators)])

    @property
    def scores_answers(self) -> bool:
        """Whether outputs are compared with reference answers."""
        return any([self.reader.end_to_end, *(a.is_the_readers for a in self.resolved.annotators)])

    def input_needs(self) -> dict[str, Any]:
        """Requirements on inputs, as fields of ``InputFiles``."""
        usual = Settings()
        return {
            "need_answers": self.needs_answers(),
            "need_provenance": any(a.needs_provenance for a in self.resolved.annotators),
            "cluster": self.bootstrap.cluster,
            "without_answers": tuple(
                known.name
                for known in ANNOTATORS.values()
                if not any(needed.needs_answers for needed in needed_by(known, usual))
            ),
        }

    @property
    def has_functions(self) -> bool:
        """Whether a metric or an annotator is a user's function, whose figures may change unnoticed."""
        return self.reader.scored_by.own or any(
            annotator.name not in ANNOTATORS for annotator in self.resolved.annotators
        )

    def relevant(
        self, runs: int, annotator: Annotator | None = None, measure: Measure | None = None
    ) -> Relevant:
        """The definition of relevance for a number of runs: for an annotator, or for all annotators together."""
        if self.ranking.relevant is not None:
            return self.ranking.relevant
        if measure is not None and measure.tokens:
            annotator = None  # passages that no run lists have no length
        listed = self.resolved.listed if annotator is None else [annotator]
        if all(own.judges_everything for own in listed):
            return ALL_JUDGMENTS
        return "pool" if runs > 1 else "list"

    def scores_lists_alone(self, runs: int) -> bool:
        """Whether, with this number of runs, no score by labels depends on passages that other runs list."""
        alone = all(measure.of_one_list for measure in self.resolved.measures)
        return alone or self.relevant(runs) == "list"

    @property
    def longest_list(self) -> int:
        """The most passages of a whole list that the reader receives."""
        most = self.reader.end_to_end_k
        return most if isinstance(most, int) else self.ranking.k

    @property
    def is_given(self) -> pl.Expr:
        """Whether the reader of whole lists receives a row of a run table, which is sorted by rank."""
        if (budget := self.reader.list_tokens) is not None:
            return pl.col(TOKENS).cum_sum().over(RUN, QUERY_ID) <= budget
        return pl.col(RANK) <= self.longest_list

    @property
    def budgets(self) -> list[int]:
        """Token budgets of measures and of whole lists."""
        whole = self.reader.list_tokens if self.reader.end_to_end else None
        known = {whole, *(measure.tokens for measure in self.resolved.measures)}
        return sorted(budget for budget in known if budget)

    def notes_on(self, inputs: EvaluationInputs) -> Iterator[Note]:
        """Notes on lists that budgets of tokens do not fit; ``inputs``: as of ``cut_for``."""
        from engine.reading.lengths import budget_notes  # here, so that help is quick

        k, reader = self.ranking.k, self.reader
        yield from budget_notes(inputs.runs, inputs.run_names, self.budgets, k, reader)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_names(self)
        _check_cutoffs(self)
        _check_tasks(self)
        _check_options(self)
        _check_reads(self)
        _check_relevant(self)
        _check_measures(self)
        _check_lazy(self)
        _check_until(self)
        _check_lists(self)


def cut_for(
    inputs: EvaluationInputs, conditions: Iterable[Settings]
) -> tuple[EvaluationInputs, ...]:
    """The inputs by settings: cut at their ``k``, with ``tokens`` if they have budgets; a reader counts tokens once."""
    from engine.reading.lengths import passage_tokens  # here, so that help is quick

    counted: dict[str, EvaluationInputs] = {}
    cut = []
    for settings in conditions:
        whole, reader = inputs, settings.reader
        if settings.budgets or reader.list_tokens:
            if reader.reader not in counted:
                counted[reader.reader] = with_tokens(inputs, partial(passage_tokens, reader))
            whole = counted[reader.reader]
        cut.append(cut_inputs(whole, settings.ranking.k))
    return tuple(cut)


# Options of the bootstrap; the number of threads changes no figure and is not one.
BOOTSTRAP_FIELDS = tuple(entry.name for entry in fields(Bootstrap) if entry.name != "threads")
# Parts whose fields ``Settings.of`` takes by name.
_PARTS = ("reader", "ranking", "bootstrap", "running", "api")
_WRITTEN = (
    "labels", "query_scores", "downstream", "reads", "traces",
    "correlations", "comparisons", "systems", "run_pairs", "unseen", "by_place",
)  # fmt: skip


def _values(part: Any, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    names = [entry.name for entry in fields(part) if entry.name not in leave_out]
    return {name: getattr(part, name) for name in names}


def _check_names(settings: Settings) -> None:
    annotators = {a.name: a for a in (*ANNOTATORS.values(), *settings.labels.listed())}.values()
    owners = [*(getattr(settings, part) for part in _PARTS)]
    classes = [*map(type, owners), *option_classes(settings.labels.listed())]
    options = [entry.name for kind in classes for entry in fields(kind)]
    files = {a.needs_input.name for a in annotators if a.needs_input}
    written = [table.name for a in annotators for table in a.further_tables]
    for names in ([*options, *files, "annotators"], [*_WRITTEN, *written]):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two things of an evaluation are called {twice[0]!r}")


def _check_cutoffs(settings: Settings) -> None:
    end_to_end_k, k = settings.reader.end_to_end_k, settings.ranking.k
    if isinstance(end_to_end_k, int) and end_to_end_k > k:
        problem = f"`end_to_end_k` {end_to_end_k} exceeds `k` {k}"
        remedy = "the reader of the whole list gets at most the passages that are labelled"
        raise InputError(problem, remedy, "settings.cutoff")


def _check_tasks(settings: Settings) -> None:
    task = settings.reader.task
    for annotator, needed in settings.resolved.needed:
        if reason := needed.unfit_tasks.get(task):
            raise InputError(
                f"{needed.name if annotator.rests_by else annotator.name} has no meaning for the "
                f"task {task}: {reason}",
                leave_out(annotator, needed.name),
                "settings.task",
            )


def leave_out(annotator: Annotator, name: str) -> str:
    """The remedy that leaves out the annotator ``name``, which ``annotator`` is or rests on."""
    if name != annotator.name and annotator.rests_by:
        return f"leave {name} out of `{annotator.rests_by}`"
    return f"leave {annotator.name} out of `annotators`"


def _check_options(settings: Settings) -> None:
    in_use = settings.resolved.annotators
    names = {name for used in in_use for name in (used.name, *used.uses_options_of)}
    for annotator in ANNOTATORS.values():
        if annotator.options is None or annotator.name in names:
            continue
        every = ANNOTATORS.values()
        named = (a.name for a in every if annotator.name in (a.name, *a.uses_options_of))
        users = " or ".join(named)
        for option, value in registry.changed_options(settings.options(annotator.options)).items():
            problem = f"`{option}` {value} without the annotator {users}"
            raise InputError(problem, f"add {users} to `annotators`", "settings.annotator")


def _check_reads(settings: Settings) -> None:
    reader, asks = settings.reader, settings.resolved.asks
    if reader.end_to_end is True or any(ask.task == reader.task for ask in asks.values()):
        return
    asking = " or ".join(name for name, known in ANNOTATORS.items() if known.is_the_readers)
    for option, is_set in (
        ("`prompt`", reader.prompt is not None),
        ("`augmentation` fid", reader.augmentation == "fid"),
    ):
        if is_set:
            problem = f"{option}, but the reader is not asked for anything"
            remedy = f"use `end_to_end` or the annotator {asking}, or leave it out"
            raise InputError(problem, remedy, "settings.unread")


def _check_relevant(settings: Settings) -> None:
    others = sorted(a.name for a in settings.resolved.listed if not a.judges_everything)
    if settings.ranking.relevant == ALL_JUDGMENTS and others:
        problem = f"`relevant` {ALL_JUDGMENTS} does not fit {', '.join(others)}, who judge listed passages only"
        remedy = "leave it out: all judgments count by default, of those who judge others too"
        raise InputError(problem, remedy, "settings.relevant")


def _check_measures(settings: Settings) -> None:
    resolved = settings.resolved
    reasons = {name: resolved.reasons(name) for name in resolved.scales}
    plain = [name for name, scale in resolved.scales.items() if not scale.utilities]
    for place, measure in enumerate(resolved.measures):
        if all(whys[place] for whys in reasons.values()):
            # Name other labels first: utilities always have another measure, others only lack a threshold.
            named = plain[0] if plain else resolved.listed[0].name
            problem = f"{measure} is {reasons[named][place]}"
            raise InputError(problem, "leave it out, or use others", "settings.measure")
    for name, scale in resolved.scales.items():
        refuse_without_measure(name, scale, reasons[name])


def _check_lazy(settings: Settings) -> None:
    if not settings.running.lazy:
        return
    resolved = settings.resolved
    if any(measure.tokens for measure in resolved.measures):
        problem = "`lazy` with a measure at a budget of tokens"
        raise InputError(problem, "leave one of them out", "settings.lazy")
    if not resolved.asks:
        raise InputError("`lazy`, but no annotator reads passages", "leave it out", "settings.lazy")
    if not settings.ranking.measures:
        problem = "`lazy` without `measures`: the usual ones need every label"
        remedy = 'name those to be exact, as in `measures` "RR@10 Success@10"'
        raise InputError(problem, remedy, "settings.lazy")
    roles = [ask.role.name for ask in resolved.asks.values()]
    for annotator, needed in resolved.needed:
        ask = resolved.asks.get(needed.name)
        scale = resolved.scales.get(needed.name)
        shares = ask is not None and roles.count(ask.role.name) > 1
        whole = shares or scale is None or scale.utilities or (ask and (ask.scores or ask.closed))
        if ask is not None and (needed != annotator or whole):
            problem = f"`lazy` with {annotator.name}, which needs the labels of all passages"
            raise InputError(problem, "leave one of them out", "settings.lazy")


def _check_until(settings: Settings) -> None:
    if not settings.bootstrap.until:
        return
    if not settings.reader.end_to_end and settings.ranking.relevant == "list":
        problem = "`until` with `relevant` list, which does not compare runs"
        raise InputError(problem, "use pool", "settings.until")
    for annotator in settings.resolved.listed:
        if any(table.conclusion for table in annotator.further_tables):
            problem = f"`until` with {annotator.name}, whose intervals are of all queries"
            raise InputError(problem, "leave one out", "settings.until")


def _check_lists(settings: Settings) -> None:
    if settings.bootstrap.samples and settings.reader.end_to_end is not True:
        name = "lists" if settings.bootstrap.lists else "width"
        problem, remedy = f"`{name}` without reads of whole lists", "leave it out"
        remedy += ", or use `end_to_end`" * (not settings.reader.end_to_end)
        raise InputError(problem, remedy, "settings.listless")


def refuse_without_measure(annotator: str, scale: Scale, reasons: Sequence[str]) -> None:
    """Refuse an annotator that no measure fits, for the reasons of ``Resolution.reasons``."""
    if all(reasons):
        fitting = UTILITY_KIND if scale.utilities else "P, nDCG or Success"
        problem = (
            f"every measure is undefined on the labels of {annotator} (the first is {reasons[0]})"
        )
        raise InputError(problem, f"add {fitting}", "measure.undefined")


@dataclass(frozen=True, kw_only=True)
class Sweep(CheckedSettings):
    """The varied settings of a study.

    Attributes:
        readers: LLMs to compare; none for that of the settings.
        augmentations: ways to give a reader its passages; none for that of the settings.
        k_sweep: Several cutoffs, as in 5,10,20,50: correlations against k. Lists of each k are read whole.

    Raises:
        InputError: a value occurs twice (a reader's directory in any spelling), or a cutoff is below 1.
    """

    readers: tuple[str, ...] = ()
    augmentations: tuple[Augmentation, ...] = ()
    k_sweep: tuple[Positive, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, values in (
            ("reader", [os.path.normpath(name) for name in self.readers]),
            ("augmentation", self.augmentations),
            ("k_sweep", self.k_sweep),
        ):
            if len(set(values)) < len(values):
                problem = f"`{option}` has a value twice"
                raise InputError(problem, "give each once", "settings.repeated")


def refuse_unfit(conditions: Iterable[Settings]) -> None:
    """Refuse settings of servers if no server reads, and of models and machines if only servers or functions read."""
    settings = list(conditions)
    models = dict.fromkeys(model for condition in settings for model in models_of(condition))
    servers = [model for model in models if is_api(model)]
    for name in settings[0].api.changed() if settings and not servers else ():
        if name in ("max_cost", "max_hours", "price_per_hour"):  # for all readers
            continue
        problem = f"`{name}` without a reader behind an API"
        remedy = "name one, as in `reader` openai:MODEL, or leave it out"
        raise InputError(problem, remedy, "settings.server")
    if settings and settings[0].running.failed_reads in ("zero", "skip"):
        for name in ("batch_out", "batch_in"):
            if getattr(settings[0].api, name):
                policy = f"`failed_reads` {settings[0].running.failed_reads}"
                problem = f"{policy} with `{name}`, whose missing answers would count"
                remedy = "leave it out until all answers are there"
                raise InputError(problem, remedy, "settings.failures")
    name = next((condition.in_rounds for condition in settings if condition.in_rounds), "")
    if name and settings[0].api.is_batch:
        problem = f"`{name}` with `batch_out` or `batch_in`: each round would be a file"
        raise InputError(problem, "leave one of them out", "settings.batch")
    functions = [model for model in models if any(c.reader.own(model) for c in settings)]
    if servers and len(servers) == len(models):
        for name, remedy in _of_weights(settings[0], machines=True):
            problem = f"`{name}` with {servers[0]}, which a server runs"
            raise InputError(problem, remedy, "settings.served")
    if functions and len(servers) + len(functions) == len(models):
        for name, remedy in _of_weights(settings[0], machines=False):
            problem = f"`{name}` with {functions[0]}, a function"
            raise InputError(problem, remedy, "settings.function")


def models_of(settings: Settings) -> Iterator[str]:
    """The models that read, in any role."""
    if settings.reader.end_to_end is True:
        yield settings.reader.reader
    for ask in settings.resolved.asks.values():
        yield ask.model


def _of_weights(settings: Settings, *, machines: bool) -> Iterator[tuple[str, str]]:
    """Non-default settings that need models with weights, or with ``machines`` also actors; each with a remedy."""
    reader, running = settings.reader, settings.running
    chosen = {
        "dtype": reader.dtype is not None,
        "engine": reader.engine != "auto",
        "trust_remote_code": reader.trust_remote_code,
        "memory": running.memory != 0,
    }
    if machines:
        names = ("gpus_per_actor", "cpus_per_actor", "accelerator_type")
        chosen |= {name: getattr(running, name) is not None for name in names}
    yield from ((name, "leave it out") for name, is_given in chosen.items() if is_given)
    if machines and running.actors is not None and running.pool().bounds() != (0, 0):
        yield "actors", "use `concurrency`: this process makes all requests"
