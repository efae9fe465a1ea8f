"""Find the C compiler that vLLM needs on a GPU, where Triton builds launchers while a model runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig

from engine.messages.errors import InputError

REMEDY = "install gcc, libc6-dev and Python's headers there, or choose `engine` transformers"


def lacking() -> str:
    """What this machine lacks of a compiler that finds the headers of C and Python; empty for nothing.

    It is looked for as ``triton/runtime/build.py`` of Triton 3.7 does: CC, else gcc, else clang.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler"
    command = [compiler, "-x", "c", "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-"]
    try:
        done = subprocess.run(
            command, input=b"#include <Python.h>\n", capture_output=True, check=False
        )
    except OSError:
        return f"no C compiler {compiler}"
    return "no headers of C or Python (Python.h) for its C compiler" if done.returncode else ""


def require() -> None:
    """Refuse to go on where vLLM could not start on this machine's GPU.

    Raises:
        InputError: there is no C compiler, or it lacks headers.
    """
    if lacks := lacking():
        raise InputError(f"vLLM cannot start: this machine has {lacks}", REMEDY)
