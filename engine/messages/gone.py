"""List names of earlier versions that are gone, each with its replacement.

Every door asks this one table: the command line, files of options, variables, Python. Add a row in the change that
removes a name.
"""

from __future__ import annotations

from typing import Literal

# (kind, name): the replacement, as the end of "… is gone: ". Options are named by field, Python names in full. An option
# may be gone from one command only: look up the names that the command does not know.
GONE: dict[tuple[Literal["command", "option", "annotator", "name"], str], str] = {
    ("command", "conformance"): "ir_measures QRELS RUN MEASURES, also on the files in exported/",
    ("option", "edits"): "write a second run with the edits",
    ("option", "dry_run"): "erag plan, with the same options, counts the LLM calls",
    ("option", "interval"): "intervals of resamples are percentile ones",
    ("option", "probe_reads"): "use pace, the results of an earlier evaluation",
    ("option", "certify"): "erag repeat DIR repeats LLM calls of the results there",
    ("annotator", "grogu"): "use pmi, dig or likelihood: the threshold of its paper is not public",
    ("name", "engine.conformance"): "use ir_measures, also on the files in exported/",
}
