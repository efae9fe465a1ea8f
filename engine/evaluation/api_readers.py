"""Check that readers behind an API and the settings of an evaluation fit together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from engine.evaluation.settings import Settings
from engine.machine.remote.api_settings import is_api
from engine.machine.remote.limits import forget
from engine.messages.errors import InputError


def begin(conditions: Collection[Settings]) -> None:
    """An evaluation, or a study, begins: of its bounds nothing is used."""
    refuse_unfit(conditions)
    forget()


def refuse_unfit(conditions: Iterable[Settings]) -> None:
    """Refuse settings of servers where none is asked, and of models and machines where servers or functions read."""
    settings = list(conditions)
    models = dict.fromkeys(model for condition in settings for model in models_of(condition))
    servers = [model for model in models if is_api(model)]
    for name in settings[0].api.changed() if settings and not servers else ():
        if name in ("max_cost", "max_hours", "price_per_hour"):  # of all readers
            continue
        raise InputError(
            f"`{name}` without a reader behind an API",
            "name one, as in `reader` openai:MODEL, or leave it out",
        )
    if settings and settings[0].running.failed_reads in ("zero", "skip"):
        for name in ("batch_out", "batch_in"):
            if getattr(settings[0].api, name):
                raise InputError(
                    f"`failed_reads` {settings[0].running.failed_reads} with `{name}`, whose missing answers would count",
                    "leave it out until all answers are there",
                )
    name = next((one.in_rounds for one in settings if one.in_rounds), "")
    if name and settings[0].api.is_batch:
        raise InputError(
            f"`{name}` with `batch_out` or `batch_in`: each round would be a file",
            "leave one of them out",
        )
    if settings and settings[0].running.certify and settings[0].api.is_batch:
        raise InputError(
            "`certify` with `batch_out` or `batch_in`, whose answers would be compared with themselves",
            "leave `certify` out until all answers are stored",
        )
    functions = [
        model for model in models if any(condition.reader.own(model) for condition in settings)
    ]
    if servers and len(servers) == len(models):
        for name, remedy in _given(settings[0], machines=True):
            raise InputError(f"`{name}` with {servers[0]}, which a server runs", remedy)
    if functions and len(servers) + len(functions) == len(models):
        for name, remedy in _given(settings[0], machines=False):
            raise InputError(f"`{name}` with {functions[0]}, a function", remedy)


def models_of(settings: Settings) -> Iterator[str]:
    """The models that are asked for reads, in whatever role."""
    if settings.reader.end_to_end:
        yield settings.reader.reader
    for ask in settings.resolved.asks.values():
        yield ask.model


def _given(settings: Settings, *, machines: bool) -> Iterator[tuple[str, str]]:
    """The settings that were given and concern models with weights, or ``machines`` with actors too; what to do."""
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
