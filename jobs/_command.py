"""What every command shares: running it, reading its options from YAML, and how errors end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import App, ArgumentCollection, CycloptsError, Parameter
from cyclopts.config import Yaml

from engine.errors import EncodeError, InputError, ReadError
from engine.masking import masked
from engine.sources.io.locations import require_file
from jobs._options import fields_of, with_options
from jobs._terminal import tell

BAD_INPUT = 2
# The command line that is run, without credentials; None where Python called a command's function.
_COMMAND: ContextVar[str | None] = ContextVar("command", default=None)

ConfigFile = Annotated[
    Path | None,
    Parameter(
        name="--config",
        help="YAML file with any of these options (end-to-end-k: 5); the command line wins over it.",
    ),
]


class _Options(Yaml):
    """Options of a file, for whatever command is run.

    cyclopts has a form for this, which leaves out options that are named like a command: ``index`` and
    ``fuse`` of ``erag retrieve``. So they are given as if they stood under the command's name.
    """

    _commands: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        options: dict[str, Any] = super().config
        for command in reversed(self._commands):
            options = {command: options}
        return options

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        self._commands = commands
        super().__call__(app, commands, arguments)


def run_app(app: App, arguments: Sequence[str] | None = None) -> None:
    """Run an app and exit: 0 done, 2 bad input (one line on standard error), 1 anything else."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    command = _COMMAND.set(shlex.join([*app.name[0].split(), *map(masked, tokens)]))
    # Nothing a command needs comes from the network, and nothing may be asked there.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")  # see engine.reading.readers.load
    try:
        app.config = _options_from(_config_of(tokens))
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except InputError as error:
        _fail(with_options(str(error), fields_of(app)), BAD_INPUT)
    except CycloptsError as error:
        _fail(error, BAD_INPUT)
    except (ReadError, EncodeError) as error:
        _fail(with_options(str(error), fields_of(app)), 1)
    except KeyboardInterrupt:
        _fail("interrupted; what was done is kept, and not done again", 1)
    except BrokenPipeError:
        # The reader of our output went away (head, less): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        _COMMAND.reset(command)


def command_line() -> str | None:
    """The command line that is run, as it was given but for credentials, which are masked; None where
    Python called a command's function.
    """
    return _COMMAND.get()


def run_command(command: Callable[..., Any]) -> None:
    """Run one job as a program of its own: ``python -m jobs.retrieve …``."""
    app = App(name=f"python -m jobs.{command.__name__}")
    app.default(command)
    run_app(app)


def _config_of(tokens: Sequence[str]) -> Path | None:
    for position, token in enumerate(tokens):
        if token == "--":
            return None
        if token == "--config" and position + 1 < len(tokens):
            return Path(tokens[position + 1])
        if token.startswith("--config="):
            return Path(token.removeprefix("--config="))
    return None


def _options_from(path: Path | None) -> list[Yaml]:
    if path is None:
        return []
    require_file(path, "a YAML file of options")
    try:
        options = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or "not UTF-8 text"
        raise InputError(
            path,
            mark.line + 1 if mark else None,
            f"broken YAML ({reason})",
            'write "option: value"',
        ) from None
    if options is not None and not isinstance(options, dict):
        raise InputError(path, None, "holds no options", 'write "option: value", one a line')
    return [_Options(str(path), must_exist=True)]


def _fail(error: object, status: int) -> None:
    # Words of the command line, and of other libraries, may be addresses too.
    tell(f"erag: {masked(' '.join(str(error).split()))}")
    sys.exit(status)
