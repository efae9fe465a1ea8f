"""Another name of ``engine``: the import name that matches the installed distribution.

``from erag_engine import evaluate`` is ``from engine import evaluate``, and its submodules are
the modules of ``engine`` themselves, not copies (``import erag_engine.tables``). pyproject.toml installs this folder
beside ``engine`` and ``jobs``.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

# The command begins here: few imports run before it handles Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# The modules of this folder itself.
_OWN = {"own", "__main__"}


def __getattr__(name: str) -> Any:
    from .own import engine

    return getattr(engine(), name)


def __dir__() -> list[str]:
    from .own import engine

    return dir(engine())


class _Modules:
    """Find ``erag_engine.x`` as ``engine.x``, which is imported once."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        above, _, below = name.partition(".")
        return ModuleSpec(name, self) if above == __name__ and below not in _OWN else None

    def create_module(self, spec: ModuleSpec) -> None:
        """None, for an empty module, which the real one replaces."""

    def exec_module(self, module: ModuleType) -> None:
        from .own import engine

        below = module.__name__.removeprefix(__name__)
        sys.modules[module.__name__] = engine(below)


# First among the finders: others would find copies of subpackages in the folder of ``engine``.
sys.meta_path.insert(0, _Modules())
