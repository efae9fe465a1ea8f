"""Digests notice every change, and what earlier versions wrote has none."""

import json

import pytest

from engine.messages.errors import InputError
from engine.sources.io.kept import (
    digest_at,
    require_whole,
    sealed,
    sealed_json,
    unsealed,
    unsealed_json,
)

MANIFEST = {"a": (1, [0.1, None]), "é": {"3": "x"}, "n": 12345}


def test_a_manifest_is_what_was_written_or_refused():
    content = sealed_json(MANIFEST)
    expected = json.loads(json.dumps(MANIFEST))
    assert unsealed_json(content) == expected
    assert unsealed_json(json.dumps(json.loads(content)).encode()) == expected  # laid out anew
    assert unsealed_json(json.dumps(MANIFEST).encode()) == expected  # an earlier version's
    for at in range(len(content)):
        for bit in range(8):
            flipped = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
            try:
                found = unsealed_json(flipped)
            except ValueError:
                continue
            # The name of the digest may be another: what it is of is as it was.
            assert expected.items() <= found.items()
    for broken in (b"", b"[]", content[:-9]):
        with pytest.raises(ValueError, match="."):
            unsealed_json(broken)


def test_bytes_are_theirs_or_none():
    whole = sealed(b"vector")
    assert unsealed(whole) == b"vector"
    assert unsealed(sealed(b"")) == b""
    others = [whole[:-1], whole + b"0", b"", b"vector", b"Vector" + whole[6:]]
    assert [unsealed(one) for one in others] == [None] * 5


def test_a_file_or_folder_that_is_gone_or_another_is_refused_by_name(tmp_path):
    (tmp_path / "t").mkdir()
    for name in ("a", "b"):
        (tmp_path / "t" / name).write_text(name)
    for place in (tmp_path / "t", tmp_path / "t" / "a"):
        require_whole(place, digest_at(place), "again")
        require_whole(place, None, "again")
    written = digest_at(tmp_path / "t")
    (tmp_path / "t" / "b").write_text("c")
    with pytest.raises(InputError, match="/t: is not what was written: .*; again"):
        require_whole(tmp_path / "t", written, "again")
    with pytest.raises(InputError, match="/u: cannot be read .No such file or directory.; again"):
        require_whole(tmp_path / "u", written, "again")
