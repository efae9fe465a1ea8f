"""Commands as a user runs them, in this process."""

import re

import polars as pl

from jobs import cli
from jobs._command import run_app

# The labels of containment alone: no reader is asked.
CONTAINMENT = ("--annotators", "containment", "--no-end-to-end")


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


def scores_of(out):
    """The scores of each query that an evaluation wrote into this folder."""
    return pl.read_parquet(out / "query_scores.parquet")


def options_in(text):
    """The options that a text names."""
    return {*re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
