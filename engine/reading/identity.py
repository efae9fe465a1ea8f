"""The origin of stored reads: records of the model, or of a function's code, that made them.

A folder of the store has a record for each model and code that made its reads (``about-DIGEST.json``), and marks of
rereads (``reread-NUMBER-…``). A record is named by its content and never changes, so any number of jobs may write it.
A reread starts a new generation of reads, with its own keys and folder. Reads that the generation lacks come from
earlier generations, and are stored under its keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from engine import tables
from engine.machine.functions import code_of
from engine.machine.remote.limits import limits_of
from engine.messages.errors import InputError
from engine.messages.wording import listed, quoted
from engine.reading import store
from engine.reading.plan import INPUTS, read_key
from engine.reading.protocol import ReaderSpec
from engine.reading.store import SUFFIX
from engine.sources.io.digests import digest
from engine.sources.io.folders import Folder
from engine.tables import READ_KEY

_ABOUT, _REREAD, _ENDED = "about-", "reread-", "ended"
# Suffix that some servers add to the name of a model: the date, or the number, of a version.
_VERSION = re.compile(r"[-@:](\d{4}-\d\d-\d\d|\d{3,8})$")


def keep(folder: Folder, record: str) -> None:
    """Keep a record (JSON) in a folder of the store; an existing record stays."""
    folder.write(_name(record.encode()), record.encode())


def _name(content: bytes) -> str:
    return f"{_ABOUT}{digest(content)[:16]}.json"


def _sound_records(folder: Folder, names: Sequence[str]) -> list[dict[str, str]]:
    files = folder.read_each(name for name in names if name.startswith(_ABOUT))
    return [json.loads(content) for name, content in files if content and name == _name(content)]


def records_of(spec: ReaderSpec) -> set[str]:
    """Records of the makers of a reader's reads: from its specification, and from answers since."""
    api = None if spec.executor else spec.api
    seen = limits_of(api.settings).seen[api.model].copy() if api else ()
    return {spec.about, *(_record(who=who, server=server) for who, server in seen)} - {""}


def code_of_function(spec: ReaderSpec) -> str:
    """The digest of a reading function's source; empty if no function reads, or its source is unknown."""
    known: dict[str, str] = json.loads(spec.about or "{}")
    return known.get("who", "") if "file" in known else ""


def _record(**known: str) -> str:
    return json.dumps(known, sort_keys=True)


def with_origin(
    spec: ReaderSpec,
    place: Folder,
    function: Callable[..., Any] | None,
    *,
    begun: str,
    reread: bool,
) -> ReaderSpec:
    """The reader with the origin of its stored reads; an InputError if they are of another model, or of other code.

    ``begun`` identifies the evaluation, so that a stopped reread resumes; empty if none begins.
    """
    if not spec.is_kept:
        return spec
    base = place / spec.fingerprint
    marks = [name.split("-")[1:] for name in base.names() if name.startswith(_REREAD)]
    latest = max((int(number) for number, _ in marks), default=0)
    if reread:
        # A stopped reread resumes.
        latest += [str(latest), begun] not in marks or [str(latest), _ENDED] in marks
        if begun:
            base.write(f"{_REREAD}{latest}-{begun}", b"")
    now: dict[str, str] = {}  # stays empty for weights, which the fingerprint identifies
    if function is not None:
        now = code_of(function)._asdict()
    elif spec.api is not None:
        now = {"who": spec.api.named, "server": spec.api.server, "said": spec.api.trial_answer}
    spec = replace(spec, renewals=latest, about=_record(**now) if now else "")
    return spec if reread else _compared(spec, place, now)


def end_reread(spec: ReaderSpec, place: Folder) -> None:
    """Mark a reread as ended: the next one begins a new generation."""
    if spec.is_kept:
        base = place / replace(spec, renewals=0).fingerprint
        base.write(f"{_REREAD}{spec.renewals}-{_ENDED}", b"")


def _compared(spec: ReaderSpec, place: Folder, now: Mapping[str, str]) -> ReaderSpec:
    """The reader with earlier fingerprints of its reads, and with doubts about stored reads."""
    earlier, doubts, makers = list[str](), list[str](), list[dict[str, str]]()
    generations = [replace(spec, renewals=number) for number in range(spec.renewals, -1, -1)]
    what = "model" if spec.api is not None and not spec.executor else "code"
    for known in generations:
        folder = place / known.fingerprint
        names = folder.names()
        records = _sound_records(folder, names)
        is_former = known.api is not None and known.api.former is not None
        if is_former and records:
            continue  # with records, the reads are of the server without a path
        makers += records
        if known.renewals == 0 and spec.api and not is_former:
            host, fingerprints = spec.api.settings.host, {own.fingerprint for own in generations}
            for server in {"", spec.api.server, *(maker.get("server", "") for maker in makers)}:
                former = replace(known, api=replace(spec.api, former=(host, server)))
                generations += [former] if former.fingerprint not in fingerprints else []
        if not any(name.endswith(SUFFIX) for name in names):
            continue
        if other := _other(spec, now, records):
            if known is generations[0]:
                raise other
            continue  # superseded by a reread
        if known is not generations[0]:
            earlier.append(known.fingerprint)
        if now and not records:
            doubts = [f"before the engine recorded which {what} makes them"]
    return replace(spec, earlier=tuple(earlier), doubts=(*doubts, *_doubts(spec, now, makers)))


def _doubts(
    spec: ReaderSpec, now: Mapping[str, str], makers: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    whos, servers, replies = (
        {maker[key] for maker in makers if maker.get(key)} for key in ("who", "server", "said")
    )
    if now and not spec.api and not (now["who"] and whos) and makers:
        yield "by code whose source cannot be compared"
    if spec.api and len(whos - {spec.api.model}) > 1:
        yield f"by the models {listed(sorted(whos))}"
    if now.get("said") and replies and now["said"] not in replies:
        yield "by a model that answered the trial differently"
    if len(servers := servers | {now.get("server", "")} - {""}) > 1:
        yield f"under {len(servers)} fingerprints of the server ({', '.join(sorted(servers))})"


def _other(
    spec: ReaderSpec, now: Mapping[str, str], records: Sequence[Mapping[str, str]]
) -> InputError | None:
    """The error for stored reads of another model or other code than the present reader's; None if they match."""
    known = {record["who"]: record for record in records if record["who"]}
    who, model = now.get("who", ""), spec.api.model if spec.api else ""
    if not who or not known or who in known:
        return None
    # A server does not always report the version of a model.
    if who == model and model in {_VERSION.sub("", name) for name in known}:
        return None
    if model == _VERSION.sub("", who) and known.keys() == {model}:
        return None
    maker, anew = next(iter(known.values())), "make LLM calls again with `reread`"
    if spec.api and not spec.executor:
        problem = f"{spec.api.settings.host} answers as {quoted(who)}, and answered as "
        problem += f"{quoted(maker['who'])} where the store has LLM calls of {spec.name}"
        return InputError(problem, f"give the name of the other model, or {anew}", "reader.changed")
    files = f"({maker['file']}, now {now['file']})"
    problem = f"the store has LLM calls by other code of {spec.executor or spec.name} {files}"
    return InputError(problem, f"give this one another version, or {anew}", "store.reader")


def earlier_reads(spec: ReaderSpec, place: Folder, requested: pl.DataFrame) -> pl.DataFrame:
    """Requested reads (the reads table) that the store has only under earlier keys, with their present keys."""
    reads = tables.empty(tables.READS)
    if not spec.earlier:
        return reads
    own = store.find(store.listing(place, spec.fingerprint), requested[READ_KEY]).reads[READ_KEY]
    for fingerprint in spec.earlier:
        left = requested.filter(~pl.col(READ_KEY).is_in([*own, *reads[READ_KEY]]))
        rows = left.unique(READ_KEY).select(READ_KEY, INPUTS).iter_rows()
        keys = {read_key(fingerprint, inputs): key for key, inputs in rows}
        sought = pl.Series(READ_KEY, list(keys), pl.String)
        stored = store.find(store.listing(place, fingerprint), sought).reads
        renamed = pl.col(READ_KEY).replace_strict(keys, return_dtype=pl.String)
        reads = pl.concat([reads, stored.with_columns(renamed) if keys else stored])
    return reads
