"""The options of ``erag evaluate``: the fields of the settings, and of every annotator's options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Group, Parameter, Token

from engine.evaluation.settings import BOOTSTRAP_FIELDS, Settings, Sweep
from engine.inputs.files import InputFiles
from engine.labels.registry import ANNOTATORS, LabelSettings, input_tables, option_classes
from engine.machine.pool import PoolSettings
from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import InputError
from engine.python.parts import MODELS, annotator_of, metric_of, reader_of
from engine.ranking.scores import RankingSettings
from engine.reading.function import ReaderFunction
from engine.reading.protocol import ENGINES, Augmentation
from engine.reading.reader_settings import ReaderSettings, RunningSettings
from engine.scoring.metrics import METRICS
from engine.statistics.correlation import Bootstrap
from jobs._command import ConfigFile
from jobs._options import Models, Paths, Size, Words, items_of, keyword, option, options_of, take

HELP = "FILE.py:function names a function of yours."
_ENGINES = "; ".join(f"{name}: {engine.help}" for name, engine in ENGINES.items() if engine.help)


def reader_name(name: str) -> str:
    """The name of a reader; a function goes by its own name."""
    return name if isinstance(reader := reader_of(name), str) else reader.name


def reader_functions(names: Iterable[str | None]) -> tuple[ReaderFunction, ...]:
    """The functions among readers, each once."""
    readers = map(reader_of, filter(None, dict.fromkeys(names)))
    return tuple(reader for reader in readers if isinstance(reader, ReaderFunction))


# Options that name a model or a prompt template: an existing folder or file, else a name.
MODEL_FIELDS = ("reader", "erag_reader", "judge", "prompt", "judge_prompt", "abstain_prompt")
# Options that name folders to write into.
_WRITTEN = ("out", "store", "batch_out")
_DATA = (
    "Data sets of a study, in the place of `queries` and `run`: a YAML file of each, with its own values of these "
    "options. Each is evaluated into a folder of its own in `out`, and one table shows all."
)
_TRACES = (
    "Searches and answers of agents, beside `run` or in its place: JSONL or Parquet with query_id, step, search, passages "
    "and output, or spans of OpenInference. RUN=FILE names the run. Several may be given."
)
_LEAVE_OUT = "Credit the steps of traces: the reader answers from lists whole, and without what a single step brought."
_NAMES = ("Inputs", "Reader", "Servers and bounds", "Labels", "Measures", "Statistics", "Running")
INPUTS, READER, API, LABELS, MEASURES, STATISTICS, RUNNING = (
    Group(name, sort_key=place) for place, name in enumerate(_NAMES)
)


def parameters() -> list[inspect.Parameter]:
    """Every option, in the order of the help."""
    known = "; ".join(": ".join(filter(None, (a.name, a.meaning))) for a in ANNOTATORS.values())
    several = ("run", "corpus", "outputs")
    return [
        *options_of(
            InputFiles,
            INPUTS,
            types={**dict.fromkeys(several, Paths), "queries": Path | None, "answers": Path | None},
            defaults={"queries": None, **dict.fromkeys(several, ())},
            leave_out=["tables", "corpora", *Settings().input_needs()],
        ),
        *(option(t.name, Path | None, INPUTS, t.help, None) for t in input_tables().values()),
        option("traces", Paths, INPUTS, _TRACES, ()),
        option("leave_out", Literal["steps"] | None, INPUTS, _LEAVE_OUT, None),
        option("data", Paths, INPUTS, _DATA, ()),
        *_reader_options(),
        *options_of(
            LabelSettings,
            LABELS,
            types={"annotators": Words},
            helps={"annotators": f"What labels passages, one or several. {known}. {HELP}"},
            leave_out=["options"],
        ),
        *(entry for kind in option_classes() for entry in options_of(kind, LABELS)),
        *options_of(
            RankingSettings,
            MEASURES,
            types={"k": int | None, "measures": Words},
            defaults={"k": None, "measures": ()},
        ),
        *options_of(
            Sweep, MEASURES, types={"k_sweep": Words}, leave_out=["readers", "augmentations"]
        ),
        *options_of(Bootstrap, STATISTICS, leave_out=["threads"]),
        option("out", str, RUNNING, "Directory or address (s3://…) for the results."),
        option("overwrite", bool, RUNNING, "Replace another evaluation in `out`.", False),
        option("full", bool, RUNNING, "Print all tables and notes.", False),
        option(
            "store",
            str | None,
            RUNNING,
            "Directory or address of the read store, which caches LLM calls; by default ~/.cache/erag/reads.",
            None,
        ),
        *options_of(
            RunningSettings,
            RUNNING,
            types={
                "memory": Size,
                "actors": Annotated[int | str | None, Parameter(converter=_actors)],
            },
        ),
        *options_of(ApiSettings, API, types={"batch_in": Paths | None}),
        keyword("config", Annotated[ConfigFile, Parameter(group=RUNNING)], None),
    ]


def _reader_options() -> list[inspect.Parameter]:
    return options_of(
        ReaderSettings,
        READER,
        types={
            "reader": Models,
            "augmentation": Words,
            "metric": str,
            "end_to_end": bool,
            "end_to_end_k": Annotated[int | str | None, Parameter(converter=_list_length)],
        },
        defaults={
            "reader": (ReaderSettings.reader,),
            "augmentation": (ReaderSettings.augmentation,),
        },
        helps={"metric": f"Downstream metric: {', '.join(METRICS)}. {HELP}"},
        more_help={
            "reader": f"Several are compared. {HELP}",
            "augmentation": "Both are compared.",
            "engine": f"{_ENGINES}.",
        },
        leave_out=["functions"],
    )


def sweep_of(options: Mapping[str, Any]) -> Sweep:
    known: dict[str, Augmentation] = {name: name for name in get_args(Augmentation)}
    names, cutoffs = items_of(options["augmentation"]), items_of(options["k_sweep"])
    if not names or any(name not in known for name in names):
        problem = f"`augmentation` is {','.join(names)!r}"
        raise InputError(problem, f"use {', '.join(known)}, or several", "settings.augmentation")
    try:
        k_sweep = tuple(map(int, cutoffs))
    except ValueError:
        remedy = "give whole numbers, as in `k_sweep` 5,10,20,50"
        raise InputError(f"`k_sweep` is {','.join(cutoffs)!r}", remedy, "settings.sweep") from None
    readers, augmentations = map(reader_name, options["reader"]), (known[name] for name in names)
    return Sweep(readers=tuple(readers), augmentations=tuple(augmentations), k_sweep=k_sweep)


def settings_of(options: Mapping[str, Any], sweep: Sweep) -> Settings:
    """The settings of the first condition."""
    k = max(sweep.k_sweep, default=RankingSettings.k) if options["k"] is None else options["k"]
    measures = " ".join(items_of(options["measures"]))
    models = {key: options[key] for key in MODELS[1:] if options.get(key)}
    named = {**options, **{key: reader_name(model) for key, model in models.items()}}
    recorded = options["end_to_end"] and options["outputs"]
    return Settings(
        reader=take(
            ReaderSettings,
            options,
            reader=sweep.readers[0],
            augmentation=sweep.augmentations[0],
            metric=metric_of(options["metric"]),
            end_to_end="recorded" if recorded else options["end_to_end"],
            functions=reader_functions([*options["reader"], *models.values()]),
        ),
        labels=LabelSettings(
            annotators=tuple(map(annotator_of, items_of(options["annotators"]))),
            options=tuple(take(kind, named) for kind in option_classes()),
        ),
        ranking=take(RankingSettings, options, measures=measures, k=k),
        bootstrap=Bootstrap(**{name: options[name] for name in BOOTSTRAP_FIELDS}),
        api=take(ApiSettings, options),
        running=take(RunningSettings, options),
    )


def files_of(options: Mapping[str, Any], settings: Settings) -> InputFiles:
    """The input files; a file that no annotator needs, or an annotator without its file, is refused."""
    # Imported here, so that help is quick.
    from engine.evaluation.evaluate import refuse_lacking_tables
    from engine.inputs.read import located

    if lacking := next((name for name in ("queries", "run") if not options[name]), None):
        problem = f"`{lacking}` is missing"
        raise InputError(problem, "give it (--help shows examples)", "settings.missing")
    tables = {name: options[name] for name in input_tables() if options[name] is not None}
    refuse_lacking_tables(settings, tables)
    in_use = {a.needs_input.name for a in settings.resolved.annotators if a.needs_input}
    for name in tables:
        if name not in in_use:
            users = " or ".join(
                a.name for a in ANNOTATORS.values() if a.needs_input and a.needs_input.name == name
            )
            problem = f"`{name}` without the annotator {users}"
            remedy = f"add {users} to `annotators`, or leave `{name}` out"
            raise InputError(problem, remedy, "settings.annotator")
    first, *others = options["corpus"] or [None]
    corpus = options["corpus"] if others else first
    paths = located(corpus, options["run"], tables, input_tables())
    return take(InputFiles, options, **paths, **settings.input_needs())


def given_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """The input files among the options, by field, without names of runs before them."""
    from engine.sources.traces.read import named_file  # here, so that help is quick

    def is_path(value: Any) -> bool:
        values = value if isinstance(value, list | tuple) else [value]
        return any(isinstance(value, Path) for value in values)

    files = {n: value for n, value in options.items() if is_path(value) and n not in _WRITTEN}
    of_runs = files.keys() & {"outputs", "traces"}
    return files | {n: [named_file(path)[1] for path in files[n]] for n in of_runs}


def _actors(kind: type, tokens: tuple[Token, ...]) -> int | str:
    text = tokens[0].value.strip()
    PoolSettings(actors=text)  # refuses text that is neither
    return text if ":" in text else int(text)


def _list_length(kind: type, tokens: tuple[Token, ...]) -> int | str:
    """A number, or a budget of tokens as text; the settings refuse other text."""
    text = tokens[0].value.strip()
    return int(float(text)) if re.fullmatch(r"[0-9]{1,15}(\.0*)?", text) else text
