"""Texts that explain exported labels: metadata in the sections of ir_metadata, and the card of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import polars as pl
import yaml

from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS
from engine.report.summary import PROMPT_PARTS
from engine.sources.runs.export import CARD, METADATA
from engine.tables import ANNOTATOR, QUERY_ID, RUN

# Most ids of queries without a score that metadata list for an annotator; their number counts all.
_LISTED = 1000
# Codes of notes that say why queries have no label, or no score.
_REASONS = (
    "failed_reads", "ignored_queries", "queries_without_judgments", "queries_without_preferences",
    "queries_without_provenance", "queries_without_results", "skipped_queries", "unanswerable_queries",
)  # fmt: skip
_IDENTITY = ("weights_sha256", "parameters", "dtype", "engine", "executor", "version")
_CARD = """\
---
configs:
- config_name: labels
  data_files: labels.parquet
  default: true
- config_name: runs
  data_files: runs.parquet
---

# Labels of retrieved passages

A label says how useful a passage is to a query: labels by {annotators}, of the ranked lists of {runs}. Texts of queries
and passages are not here: name their data sets, and a license, before you publish this folder.

- `labels.parquet`: `query_id`, `doc_id`, `annotator`, `label`; `erag_engine.load_labels(FOLDER)` checks and reads it
- `runs.parquet`: `query_id`, `doc_id`, `rank`, `score`, `run`
- `qrels/`, `runs/`: the same for tools of TREC, a file for each annotator and run
- `ir_metadata.yaml`: how they were made, and the SHA-256 of every file
"""


def sections(
    content: Mapping[str, Any], queries: pl.DataFrame, scored: pl.DataFrame
) -> dict[str, Any]:
    """Metadata by section, of an evaluation's summary, evaluated queries, and rows of ``annotator`` and ``query_id``.

    Times, folders and machines are left out. Their users add the section ``actor``.
    """
    settings, counts, audit = content["configuration"], content["counts"], content["audit"]
    libraries = [f"{name} {version}" for name, version in content["versions"].items() if version]
    roles = dict.fromkeys([READER, *(named.role for named in ANNOTATORS.values() if named.role)])
    return {
        "platform": {"software": {"libraries": {"python": libraries}}},
        "research goal": {"evaluation": {"reported measures": settings["measures"]}},
        "implementation": {"source": {"lang": "python", "name": "erag-engine", **audit["code"]}},
        "method": {
            "automatic": True,
            "score ties": "by document id, descending, as in trec_eval",
            "metric": _without_folder(settings["metric"]),
            **{name: settings[name] for name in ("k", "relevant", "augmentation", "task")},
            "readers": {
                role.key: _reader(content[role.key]) for role in roles if content[role.key]
            },
        },
        "data": {
            "test collection": {
                **{name: counts[name] for name in ("queries", "passages")},
                "sha256": audit["tables_sha256"],
            },
            "queries without scores": without_scores(queries, scored),
            "reasons": [n["text"] for code in _REASONS for n in content["notes"].get(code, ())],
        },
    }


def texts(metadata: Mapping[str, Any], files: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Texts of an exported folder, by file name: the metadata with the folder's files, and the card."""
    whole = {**metadata, "data": {**metadata["data"], "files": files}}
    named = ([file[key] for file in files.values() if key in file] for key in (ANNOTATOR, RUN))
    annotators, runs = (", ".join(dict.fromkeys(names)) or "none" for names in named)
    text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
    return {METADATA: text, CARD: _CARD.format(annotators=annotators, runs=runs)}


def _reader(described: Mapping[str, Any]) -> dict[str, Any]:
    """Identity, prompt and decoding of a reader, as the summary describes it."""
    parts, api = described[PROMPT_PARTS], described.get("api") or {}
    decoding = {name: described[name] for name in ("choices", "max_new_tokens", "max_input_tokens")}
    if described.get("reproducible", True) and not described["executor"]:
        decoding["greedy"] = True  # only its author knows how a function or a program decodes
    return {
        "name": _without_folder(described["name"]),
        **{name: described[name] for name in _IDENTITY if described.get(name) is not None},
        "fingerprint": described["fingerprint"],
        **{name: api[name] for name in ("model", "endpoint", "server_fingerprint", "sent") if api},
        "decoding": decoding,
        "prompt": {
            "name": _without_folder(described["prompt"]),
            "sha256": described["prompt_sha256"],
            **{name: _template(parts[name]) for name in ("body", "passage", "untitled")},
            **{name: parts[name] for name in ("head", "tail", "system", "best_last", "fused")},
        },
    }


def _template(text: Mapping[str, Any]) -> str:
    """A text with its fields in braces, as in a file of a prompt."""
    literals = [part.replace("{", "{{").replace("}", "}}") for part in text["literals"]]
    fields = [f"{{{name}}}" for name in text["fields"]]
    return "".join(map("".join, zip(literals, [*fields, ""], strict=True)))


def _without_folder(name: str) -> str:
    """A name without the folder of this machine that it is in; ``organization/model`` stays."""
    path = PurePath(name)
    return path.name if path.is_absolute() or len(path.parts) > 2 or name[:1] in ".~" else name


def without_scores(queries: pl.DataFrame, scored: pl.DataFrame) -> dict[str, Any]:
    """Queries without a score, by annotator: their number, and the ids of the first ones."""
    lacking: dict[str, Any] = {}
    for (name,), own in scored.group_by(ANNOTATOR, maintain_order=True):
        ids = queries.join(own, on=QUERY_ID, how="anti", maintain_order="left")[QUERY_ID]
        if len(ids):
            lacking[str(name)] = {"number": len(ids), "first ids": ids.head(_LISTED).to_list()}
    return lacking
