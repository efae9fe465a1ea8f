"""Commands as a user runs them, in this process."""

from jobs import cli
from jobs._command import run_app


def erag(*arguments):
    """Run a command in this process; its exit status."""
    try:
        run_app(cli.app, [str(a) for a in arguments])
    except SystemExit as stop:
        return stop.code or 0
    return 0


def evaluate(files, *more):
    """Run ``erag evaluate`` on these files; its exit status."""
    options = [part for name, value in files.items() for part in (f"--{name}", value)]
    return erag("evaluate", *options, *more)
