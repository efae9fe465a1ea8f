"""Shared parts of all commands: running a command, its help with examples, and exits after errors."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions

from engine.messages import errors
from engine.messages.errors import InputError, masked
from engine.messages.gone import GONE
from engine.sources.io.files import no_room
from engine.sources.io.locations import forget_pipes
from jobs import _options, _terminal
from jobs._options import option, with_options_of
from jobs._signals import StoppedError, stoppable
from jobs._terminal import Verbosity, discard, set_verbosity, tell, verbosity

BAD_INPUT, _AT_BOUND = 2, 4
# Options of other programs that no command has, with our names for the same thing.
HABITS = {
    "--model": "--reader",
    "--llm": "--reader",
    "--questions": "--queries",
    "--dataset": "--queries",
    "--documents": "--corpus",
    "--metrics": "--metric",
    "--top-k": "--k",
    "--output": "--out",
    "--output-dir": "--out",
    "--api-base": "--base-url",
    "--cache": "--store",
}
# The command line in progress, without credentials; None if Python called a command's function.
_COMMAND: ContextVar[str | None] = ContextVar("command", default=None)
# Whether a command that has set its verbosity is running.
_VERBOSITY_SET: ContextVar[bool] = ContextVar("verbosity set", default=False)

ConfigFile = Annotated[
    Path | None,
    Parameter(
        name="--config",
        help="YAML file with any of these options (end-to-end-k: 5). Variables (ERAG_END_TO_END_K=5) win over it, "
        "and the command line over both.",
    ),
]

_OUTPUT = Group("Output", sort_key=10)
# Options of every command on its verbosity; the last one is of commands that have results in JSON.
_SPEECH = [
    option(names[0][2:], Annotated[bool, Parameter(name=names, negative=())], _OUTPUT, text, False)
    for names, text in (
        (("--quiet", "-q"), "Print only errors and warnings (and JSON with --json)."),
        (
            ("--verbose", "-v"),
            "Print also which options come from a file or the environment, and tracebacks.",
        ),
        (("--json",), "Print the results as JSON, and nothing else, to standard output."),
    )
]


def with_verbosity(command: Callable[..., None], *, as_json: bool = False) -> Callable[..., None]:
    """A command with the verbosity options of all commands (see ``jobs._terminal``)."""
    signature = inspect.signature(command)
    named = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in named if p.default is not p.empty}

    @functools.wraps(command)
    def with_speech(
        *args: Any, quiet: bool = False, verbose: bool = False, json: bool = False, **options: Any
    ) -> None:
        if quiet and verbose:
            raise InputError("`quiet` and `verbose`", "use one of them", "settings.verbosity")
        if _VERBOSITY_SET.get():  # another command calls this one, and has set its verbosity
            command(*args, **(defaults | options))
            return
        results = not (quiet or json)
        set_verbosity(Verbosity(results=results, progress=not quiet, details=verbose, as_json=json))
        token = _VERBOSITY_SET.set(True)
        try:
            with _terminal.with_steps(), _terminal.json_alone() if json else nullcontext():
                command(*args, **(defaults | options))
        finally:
            _VERBOSITY_SET.reset(token)

    more = _SPEECH if as_json else _SPEECH[:-1]
    parameters = [*signature.parameters.values(), *more]
    with_speech.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_speech.__annotations__ = command.__annotations__ | {p.name: p.annotation for p in more}
    return with_speech


def run_app(app: App, arguments: Sequence[str] | None = None) -> None:
    """Run an app and exit.

    The status is 0 on success, 2 for bad input, 4 at a bound, 130 after Ctrl-C, 143 after SIGTERM, and 1 for
    other failures; unless it is 0, a line on standard error states the reason.
    """
    _terminal.open_streams()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    full_help = HELP_ALL in tokens[: _end_of_options(tokens)]
    if full_help:
        tokens = ["--help" if token == HELP_ALL else token for token in tokens]
    in_full = IN_FULL.set(full_help)
    typed = shlex.join([*app.name[0].split(), *map(masked, tokens)])
    command = _COMMAND.set(typed.encode(errors="replace").decode())  # results hold it in UTF-8
    before = app.config
    # Commands need nothing from a model hub, and libraries may not query it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")  # see engine.reading.readers.load
    try:
        app.config = [
            _options.from_environment,
            *_options.options_from(_config_of(tokens)),
            _options.check_numbers,
            _options.tell_origins,
        ]
        app.suppress_keyboard_interrupt = False  # cyclopts would end without a message
        with stoppable():
            app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
            sys.stdout.flush()
            if verbosity().as_json and arguments is None:
                sys.stdout = sys.stderr  # Ray's processes may print until the end
    except InputError as error:
        _fail(with_options_of(app, str(error)), BAD_INPUT)
    except CycloptsError as error:
        _fail(_habit(tokens) or _missing(error) or error, BAD_INPUT)
    except errors.LaterError as later:
        tell(with_options_of(app, str(later)))
    except errors.BoundError as bound:
        text = "; ".join([str(bound).partition(";")[0], *bound.__notes__])
        _fail(f"{with_options_of(app, text)}: {typed}", _AT_BOUND)
    except (errors.ReadError, errors.EncodeError, errors.WriteError) as error:
        _fail(with_options_of(app, str(error)), 1)
    except StoppedError as stop:
        if stop.is_logged:
            sys.exit(stop.status)
        _fail(stop, stop.status)
    except BrokenPipeError:
        # The reader of our output went away (head, less): no message could reach it.
        discard(sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        _fail_for_output()
        if room := no_room(error):
            problem, remedy = room
            _fail(f"{problem} ({error}); {remedy}, and run the same command again", 1)
        if verbosity().details:
            tell(masked("".join(traceback.format_exception(error))))
        _fail(unforeseen(error), 1)
    finally:
        set_verbosity(Verbosity())
        forget_pipes()
        IN_FULL.reset(in_full)
        app.config = before  # a file of options is valid for one call
        _COMMAND.reset(command)


def _habit(tokens: Sequence[str]) -> str | None:
    """Our name for an option of another program, and the replacement of a name that is gone."""
    names = [token.partition("=")[0] for token in tokens[: _end_of_options(tokens)]]
    if tokens and (instead := GONE.get(("command", tokens[0]))):
        return f"the command {tokens[0]} is gone: {instead}"
    for name in names:
        if instead := GONE.get(("option", _options.field_of(name))):
            return f"{name} is gone: {instead}"
    return next((f"Unknown option: {n}; use {HABITS[n]}" for n in names if n in HABITS), None)


def _missing(error: CycloptsError) -> str | None:
    """The name of an argument that is missing; cyclopts has one text for that and for an option without its value."""
    if not isinstance(error, MissingArgumentError) or error.keyword or not error.argument:
        return None
    if "Did you mean" in str(error):
        return None
    return f"{error.argument.name} is missing; give it (--help shows examples)"


def _end_of_options(tokens: Sequence[str]) -> int:
    return list(tokens).index("--") if "--" in tokens else len(tokens)


def command_line() -> str | None:
    """The current command line, without credentials; None if Python called a command's function."""
    return _COMMAND.get()


def run_command(command: Callable[..., Any]) -> None:
    """Run a job as a program of its own: ``python -m jobs.retrieve …``."""
    name = command.__name__
    text, form = epilogue(name), help_of(name)
    app = App(name=f"python -m jobs.{name}", help_epilogue=text, help_formatter=form)
    app.default(command)
    run_app(app)


def _config_of(tokens: Sequence[str]) -> Path | None:
    for position, token in enumerate(tokens[: _end_of_options(tokens)]):
        if token == "--config" and position + 1 < len(tokens):
            return Path(tokens[position + 1])
        if token.startswith("--config="):
            return Path(token.removeprefix("--config="))
    in_environment = os.environ.get(_options.variable("config"))
    return Path(in_environment) if in_environment else None


def _fail_for_output() -> None:
    """Exit if standard output is unwritable; Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout.fileno())
        _fail(f"standard output cannot be written ({error.strerror}); send it elsewhere", 1)


def _fail(error: object, status: int) -> None:
    # Words of the command line, and texts of other libraries, may be addresses too.
    tell(f"erag: {masked(' '.join(str(error).split()))}")
    sys.exit(status)


def unforeseen(error: Exception) -> str:
    """A line on an uncaught error, with the place of a log of its traceback, which only its user can read."""
    trace = masked("".join(traceback.format_exception(error)))
    what = f"{type(error).__name__}: {error}"[:300]
    try:
        number, path = tempfile.mkstemp(prefix="erag-error-", suffix=".log")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(trace)
    except OSError:
        sys.stderr.write(trace)
        return f"an unforeseen error ({what}); the traceback is above: please report it"
    return f"an unforeseen error ({what}); please report it with the traceback in {path}"


# Commands whose help shows only the options in ``SHORT`` unless asked for in full.
LONG = ("evaluate", "plan")
_SHORT = (
    "queries corpus run reader base-url metric end-to-end end-to-end-k concurrency price-in "
    "price-out price-per-hour k measures annotators store out overwrite json config "
    "failed-reads pace finish-in"
)
SHORT = frozenset(f"--{name}" for name in _SHORT.split())
HELP_ALL = "--help-all"
IN_FULL: ContextVar[bool] = ContextVar("in_full", default=False)


class ShortHelp(DefaultFormatter):
    """The help of a command with many options: a few options, unless ``--help-all`` asks for all."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        entries = panel.entries
        if not IN_FULL.get():
            entries = [entry for entry in entries if not SHORT.isdisjoint(entry.positive_names)]
        if entries:
            super().__call__(console, options, panel.copy(entries=entries))


def help_of(command: str) -> ShortHelp | None:
    return ShortHelp() if command in LONG else None


_EXAMPLES = {
    "demo": "erag demo\nerag demo --task claims --out claims-out",
    "passages": r"""
erag passages enwiki-latest-pages-articles.xml.bz2 --out corpus
erag passages articles.jsonl --out corpus.parquet --characters 300
""",
    "index": r"""
erag index bm25 --corpus corpus.parquet --out bm25
erag index dense --corpus corpus.parquet --out dense
""",
    "index bm25": r"""
erag index bm25 --corpus corpus.parquet --out bm25
erag index bm25 --corpus passages.jsonl --out bm25-ko --tokenizer kiwi
""",
    "index dense": r"""
erag index dense --corpus corpus.parquet --out dense
erag index dense --corpus corpus.parquet --out e5 \
    --encoder intfloat/multilingual-e5-base --passage-prefix "passage: "
""",
    "index several": r"""
erag index several --corpus corpus.parquet --out indexes \
    --encoder BAAI/bge-m3 intfloat/multilingual-e5-large=e5
""",
    "retrieve": r"""
erag retrieve --index bm25 --queries questions.jsonl --out bm25.trec --k 10
erag retrieve --index bm25 dense --queries questions.jsonl --fuse rrf \
    --out runs
""",
    "fuse": "erag fuse --run bm25.trec dense.trec --out fused.trec --k 10",
    "plan": r"""
erag plan --queries questions.jsonl --corpus corpus.parquet --run bm25.trec \
    --reader /models/my-llm --pace results --price-per-hour 1.2
""",
    "evaluate": r"""
erag evaluate --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec dense.trec --reader /models/my-llm --k 10 --out results
erag evaluate --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec --out labels --annotators containment --no-end-to-end
erag evaluate --data nq.yaml claims.yaml --reader /models/my-llm --out table
ERAG_READER=/models/my-llm erag evaluate --config options.yaml --out results
""",
    "train": r"""
erag train --reader /models/t5-base --queries train.jsonl --run train.trec \
    --dev-queries dev.jsonl --dev-run dev.trec --corpus corpus.parquet \
    --out fid
erag train --config train.yaml --workers 4 --checkpoints s3://bucket/fid
""",
    "report": "erag report results\nerag report results --single-file",
    "repeat": "erag repeat results",
    "compare": "erag compare results/monday results/tuesday --out compare.html",
    "gate": "erag gate --baseline main --candidate branch --margin 0.02",
    "ask": r"""
erag ask --queries questions.jsonl --corpus corpus.parquet \
    --run bm25.trec dense.trec --results results --out tasks.html
""",
    "coverage": r"""
erag coverage --queries questions.jsonl --user-queries asked.txt \
    --out coverage
""",
    "doctor": "erag doctor",
}


def epilogue(command: str) -> str:
    """The end of a command's help, in Markdown."""
    more = f"`erag {command} --help-all` shows all options.\n\n" if command in LONG else ""
    if command == "evaluate":
        more = f"`erag plan` counts LLM calls, tokens and cost beforehand. {more}"
    if command not in _EXAMPLES:  # the command is of another package
        return more
    return f"{more}Examples:\n\n```\n{_EXAMPLES[command].strip()}\n```\n"
