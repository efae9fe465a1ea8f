"""Find a user's functions in files, and send them to other processes by value."""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import name_of, reason_of

_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]*)", re.DOTALL)
_FORM = "name a function as in FILE.py:function"
# What is installed is found on every machine; so is the engine itself.
_INSTALLED = tuple(
    Path(path) for name, path in sysconfig.get_paths().items() if name not in ("scripts", "data")
)
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_OWN = frozenset({"engine", "jobs", "__main__"})
# What is pickled may hold further functions, which are pickled within.
_PICKLING = threading.RLock()


def is_named(text: str) -> bool:
    """Whether a setting names a function in a file, as in ``FILE.py:function``."""
    return _NAMED.fullmatch(text) is not None


def load_named(text: str) -> Callable[..., Any]:
    """The function that ``FILE.py:function`` names; the file is run for it, once.

    What stands beside the file can be imported by it, as by a script.

    Raises:
        InputError: there is no such file or function, or the file raises an error.
    """
    named = _NAMED.fullmatch(text)
    if named is None:
        raise InputError(f"{text!r} names no function", _FORM)
    path, name = Path(named["file"]), named["name"]
    if not path.is_file():
        raise InputError("no such file", _FORM, path=path)
    module = _module_of(path)
    found = getattr(module, name, None) if name else None
    if found is None:
        listed = ", ".join(_functions(module)) or "none"
        raise InputError(f"has no function {name!r}", f"name one that it has: {listed}", path=path)
    if not callable(found):
        raise InputError(f"{name} is not a function", _FORM, path=path)
    return found


@dataclass(frozen=True, eq=False)
class ByValue:
    """A function that reaches other processes with its code and that of the user's modules that it uses.

    Pickles hold the names of functions; another machine of a cluster has none of the user's files to find
    them in.
    """

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def require_sendable(self) -> None:
        """Refuse a function that cannot be sent, before anything else is done."""
        _dumped(self.function)

    def __reduce__(self) -> tuple[Callable[[bytes], ByValue], tuple[bytes]]:
        return _restored, (_dumped(self.function),)


def by_value(
    make: Callable[..., Any], *arguments: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """For ``__reduce__``: a call that makes an object elsewhere, with the functions of the user's in it by value."""
    return _made, (make, _dumped(arguments))


def _made(make: Callable[..., Any], content: bytes) -> Any:
    from ray import cloudpickle

    return make(*cloudpickle.loads(content))


def _restored(content: bytes) -> ByValue:
    from ray import cloudpickle

    return ByValue(cloudpickle.loads(content))


def _dumped(value: Any) -> bytes:
    from ray import cloudpickle

    with _PICKLING:  # what is registered is registered for the whole process
        from ray.cloudpickle import list_registry_pickle_by_value

        known = list_registry_pickle_by_value()
        modules = [module for module in users_modules() if module.__name__ not in known]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(value)
        except Exception as error:
            name = f"the function {name_of(value)}" if callable(value) else "a function of yours"
            raise InputError(
                f"{name} cannot be sent to other processes ({reason_of(error)})",
                "make what it holds when it is first called, or use `actors` 0",
            ) from None
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def users_modules() -> Iterator[ModuleType]:
    """The modules of this process that are files of the user's, and not installed."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not file or module.__name__ != name:
            continue
        path = Path(file)
        if path.suffix == ".py" and name.split(".")[0] not in _OWN and is_users(path):
            yield module


def is_users(path: Path) -> bool:
    """Whether a file is the user's, and not installed."""
    installed = any(path.is_relative_to(folder) for folder in _INSTALLED)
    return not installed and not _PACKAGES.intersection(path.parts)


def _module_of(path: Path) -> ModuleType:
    """The module that a file is, run for the first function of it and after each change."""
    place = path.resolve()
    content = place.read_bytes()
    name = f"erag_functions_{sha256(str(place).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None:
        raise InputError("cannot be loaded", "give a file of Python code", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Behind everything else: what is installed is not hidden by a file of the same name.
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    try:
        # Not by its loader, which takes what it compiled before where a change has kept size and second.
        exec(compile(content, str(place), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_in(place, error)
        reason = reason_of(error.with_traceback(None))
        raise InputError(
            f"cannot be loaded ({reason})", "correct it", path=path, line=line
        ) from None
    return module


def _line_in(path: Path, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and getattr(value, "__module__", None) == module.__name__
        and not name.startswith("_")
    ]
