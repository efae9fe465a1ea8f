"""The certificate of an evaluation: how its reads came out when repeated, and what was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from engine.labels.annotator import Role
from engine.reading.certify import Certificate
from engine.wording import counted


def content(certificate: Certificate, versions: Mapping[str, str | None]) -> dict[str, Any]:
    """The certificate as ``summary.json`` holds it, with the versions of the libraries at work."""
    return {**asdict(certificate), "versions": dict(versions)}


def line(certificate: Certificate, role: Role) -> str:
    """The certificate in a line: what was repeated, and how much of it changed."""
    failed = f", {certificate.failed} failed" if certificate.failed else ""
    return (
        f"certificate{f' of {role.title}' if role.title else ''}: "
        f"{counted(certificate.repeated, 'read[|s]')} repeated{failed}, "
        f"{counted(certificate.changed_outputs, 'output[|s]')} and "
        f"{counted(certificate.changed_labels, 'label[|s]')} changed"
        f"{'' if certificate.reproducible else ' (a server or a function may answer otherwise each time)'}"
    )
