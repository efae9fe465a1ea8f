"""Data sets by name: ``irds:ID`` of ir_datasets, and ``hf:NAME[:CONFIG[:SPLIT]]`` of the Hugging Face cache.

Both are read from this machine alone: nothing is downloaded, even if the libraries would do so. Records have the fields
of the data set; queries, passages and judgments go by the names of ``engine.sources.fields``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from engine.messages.errors import InputError
from engine.messages.extras import command, missing
from engine.sources.fields import QUERY_FIELDS, TEXT_FIELDS
from engine.sources.io.locations import HF, IRDS

Kind = Literal["queries", "passages", "judgments"]
# The names in ir_datasets.
_NAMES: dict[Kind, str] = {"queries": "queries", "passages": "docs", "judgments": "qrels"}


def records_of(place: str | Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """Yield the queries, passages or judgments of a data set.

    A Hugging Face data set with several configurations or splits is named with these; a split holds one kind of rows.
    An InputError says that the library is not installed, or that the data set is not on this machine.
    """
    name = str(place)
    if name.startswith(IRDS):
        return _irds_records(name, name.removeprefix(IRDS), kind)
    return iter(_hugging_face_rows(name))


def identity_of(place: str | Path) -> str:
    """64 hexadecimal digits that change when a Hugging Face data set does; ir_datasets names versions itself."""
    name = str(place)
    if name.startswith(IRDS):
        _require("ir_datasets", name)
        state = importlib.metadata.version("ir_datasets")
    else:
        state = str(_hugging_face_rows(name)._fingerprint)
    return hashlib.sha256(f"{name} {state}".encode()).hexdigest()


def _require(library: str, place: str) -> None:
    if missing("datasets", library):
        problem = f"needs {library}, which is not installed"
        raise InputError(problem, command("datasets"), "package.missing", path=place)


class _WouldDownload(BaseException):
    """Stands in for the network in ir_datasets, which would report an Exception, and try elsewhere."""


def _irds_records(place: str, name: str, kind: Kind) -> Iterator[dict[str, Any]]:
    _require("ir_datasets", place)
    from unittest import mock  # loads asyncio

    import ir_datasets
    from ir_datasets.util import download

    theirs = _NAMES[kind]
    remedy = f"fetch it first: ir_datasets export {name} {theirs} > /dev/null"
    fault = partial(InputError, path=place)
    try:
        with contextlib.ExitStack() as patched:
            for way in ("RequestsDownload", "GoogleDriveDownload", "GoogleCloudBucketStream"):
                network = getattr(download, way)
                refused = mock.patch.object(network, "stream", side_effect=_WouldDownload)
                patched.enter_context(refused)
            data_set = ir_datasets.load(name)
            if not getattr(data_set, f"has_{theirs}")():
                raise fault(f"has no {kind}", "give another data set", "dataset.part")
            for record in getattr(data_set, f"{theirs}_iter")():
                yield _named(record, kind)
    except KeyError:
        problem = "ir_datasets knows no such data set"
        raise fault(problem, "see ir_datasets list", "dataset.unknown") from None
    except _WouldDownload:
        raise fault("is not on this machine", remedy, "dataset.absent") from None
    except (OSError, ValueError) as error:
        raise fault(f"cannot be read ({_reason(error)})", remedy, "dataset.unreadable") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _named(record: Any, kind: Kind) -> dict[str, Any]:
    """A record of ir_datasets, with a text joined from its parts if it has none; tuples become lists."""
    fields = {n: list(v) if isinstance(v, tuple) else v for n, v in record._asdict().items()}
    texts = {"queries": QUERY_FIELDS, "passages": TEXT_FIELDS, "judgments": ()}[kind]
    if texts and not any(isinstance(fields.get(text), str) for text in texts):
        fields["text"] = record.default_text()
    return fields


def _hugging_face_rows(place: str) -> Any:
    _require("datasets", place)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from unittest import mock

    import datasets
    import huggingface_hub

    name, _, rest = place.removeprefix(HF).partition(":")
    config, _, split = rest.partition(":")
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        with (
            mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True),
            mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        ):
            data_set = datasets.load_dataset(_snapshot(name) or name, config or None)
    except Exception as error:  # any error of the library for a missing file
        problem = f"cannot be loaded from the cache ({_reason(error)})"
        fetch = f"fetch it first, with datasets.load_dataset({name!r})"
        remedy = f"{fetch}, or name the configuration, as in hf:{name}:CONFIG:SPLIT"
        raise InputError(problem, remedy, "dataset.unreadable", path=place) from None
    if not isinstance(data_set, Mapping):
        return data_set
    if split in data_set:
        return data_set[split]
    if split or len(data_set) > 1:
        problem = f"has no split {split!r}" if split else "has several splits"
        names = [*map(str, data_set)]
        remedy = f"give one of them, {', '.join(names)}, as in hf:{name}:{config}:{names[0]}"
        raise InputError(problem, remedy, "dataset.split", path=place)
    return next(iter(data_set.values()))


def _snapshot(name: str) -> str | None:
    """The directory of a data set that was fetched from the hub as files, if any."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(name, repo_type="dataset", local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
        return None
