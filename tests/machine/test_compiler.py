"""Whether vLLM would find the C compiler that it needs on a GPU."""

import pytest

from engine.machine import compiler
from engine.messages.errors import InputError


def test_a_compiler_is_found_that_has_headers(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.lacking() == "no C compiler"
    with pytest.raises(
        InputError, match="^vLLM cannot start: this machine has no C compiler; install"
    ):
        compiler.require()
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    assert compiler.lacking() == f"no C compiler {tmp_path / 'cc'}"
    for name, status, told in (
        ("gcc", 1, "no headers of C or Python (Python.h) for its C compiler"),
        ("clang", 0, ""),
    ):
        made = tmp_path / name
        made.write_text(
            f"#!/bin/sh\nread -r line && test \"$line\" = '#include <Python.h>' && exit {status}\n"
        )
        made.chmod(0o700)
        monkeypatch.setenv("CC", str(made))
        assert compiler.lacking() == told
    monkeypatch.delenv("CC")
    assert compiler.lacking()  # gcc goes before clang
