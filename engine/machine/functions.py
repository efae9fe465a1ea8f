"""A user's functions: found in files, sent to processes by value, and identified by code within a name and version."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
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
from typing import Any, NamedTuple

from engine.messages.errors import InputError
from engine.messages.wording import name_of, reason_of

_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]*)", re.DOTALL)
_FORM = "name a function as in FILE.py:function"
# Installed packages are on every machine; so is the engine itself.
_INSTALLED = tuple(
    Path(path) for name, path in sysconfig.get_paths().items() if name not in ("scripts", "data")
)
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_OWN = frozenset({"engine", "jobs", "__main__"})
# A pickled object may hold further functions, which are pickled within.
_PICKLING = threading.RLock()


def is_named(text: str) -> bool:
    """Whether a setting names a function in a file, as in ``FILE.py:function``."""
    return _NAMED.fullmatch(text) is not None


def load_named(text: str) -> Callable[..., Any]:
    """The function of ``FILE.py:function``, else an InputError; its file runs once, and may import its neighbours."""
    named = _NAMED.fullmatch(text)
    if named is None:
        raise InputError(f"{text!r} names no function", _FORM, "function.nameless")
    path, name = Path(named["file"]), named["name"]
    if not path.is_file():
        raise InputError("no such file", _FORM, "files.missing", path=path)
    module = _module_of(path)
    function = getattr(module, name, None) if name else None
    if function is None:
        listed = ", ".join(_functions(module)) or "none"
        problem = f"has no function {name!r}"
        raise InputError(problem, f"name one that it has: {listed}", "function.missing", path=path)
    if not callable(function):
        raise InputError(f"{name} is not a function", _FORM, "function.uncallable", path=path)
    return function


@dataclass(frozen=True, eq=False)
class ByValue:
    """A function that reaches other processes with its code and the code of the user's modules that it uses: pickles
    hold names of functions, and other machines of a cluster lack the user's files.
    """

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def require_sendable(self) -> None:
        """Refuse a function that cannot be sent, before any work."""
        _dumped(self.function)

    def __reduce__(self) -> tuple[Callable[[bytes], ByValue], tuple[bytes]]:
        return _restore, (_dumped(self.function),)


def by_value(
    make: Callable[..., Any], *arguments: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """For ``__reduce__``: a call that makes an object elsewhere, with the user's functions in it by value."""
    return _remake, (make, _dumped(arguments))


def _remake(make: Callable[..., Any], content: bytes) -> Any:
    from ray import cloudpickle

    return make(*cloudpickle.loads(content))


def _restore(content: bytes) -> ByValue:
    from ray import cloudpickle

    return ByValue(cloudpickle.loads(content))


def _dumped(value: Any) -> bytes:
    from ray import cloudpickle

    with _PICKLING:  # the registry is global to the process
        known = cloudpickle.list_registry_pickle_by_value()
        modules = [module for module in users_modules() if module.__name__ not in known]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(value)
        except Exception as error:
            name = f"the function {name_of(value)}" if callable(value) else "a function of yours"
            problem = f"{name} cannot be sent to other processes ({reason_of(error)})"
            remedy = "make what it holds when it is first called, or use `actors` 0"
            raise InputError(problem, remedy, "function.unpicklable") from None
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def users_modules() -> Iterator[ModuleType]:
    """The user's modules in this process: from files, and not installed."""
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
    """A file's module, run for its first function and after each change."""
    place = path.resolve()
    content = place.read_bytes()
    name = f"erag_functions_{sha256(str(place).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None:
        remedy = "give a file of Python code"
        raise InputError("cannot be loaded", remedy, "function.unloadable", path=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Last on the path: a file hides no installed package of its name.
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    try:
        # Bypasses the loader, whose cache ignores changes of equal size within the same second.
        exec(compile(content, str(place), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_in(place, error)
        fault = functools.partial(InputError, path=path, line=line)
        problem = f"cannot be loaded ({reason_of(error.with_traceback(None))})"
        raise fault(problem, "correct it", "function.unloadable") from None
    return module


def _line_in(path: Path, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def _functions(module: ModuleType) -> list[str]:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = (name for name, v in public.items() if getattr(v, "__module__", "") == module.__name__)
    return [name for name in own if callable(public[name])]


_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Code(NamedTuple):
    """A digest of a function's source and its file; both empty without a source."""

    who: str
    file: str


def code_of(function: Callable[..., Any]) -> Code:
    """The code of a function, or of a callable object, without comments, docstrings and layout.

    It includes the definition, and top-level statements of the user's files: statements that made the object, and
    statements that bind names which these use, also in imported modules.
    """
    objects: list[Any] = [function.function if isinstance(function, ByValue) else function]
    waiting: list[tuple[ast.AST, ast.Module]] = []
    file = ""
    for value in objects:
        objects += [part for part in _inside(value) if not any(part is known for known in objects)]
        kind = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
        try:
            lines, first = inspect.findsource(kind)
            place = inspect.getsourcefile(kind) or ""
            tree = ast.parse("".join(lines))
        except (OSError, TypeError, SyntaxError):
            continue
        if not is_users(Path(place)):
            continue
        file = file or place
        module = vars(sys.modules.get(kind.__module__, sys))
        names = {name for name, item in module.items() if any(item is known for known in objects)}
        waiting += _binding(names, tree)
        definitions = (node for node in ast.walk(tree) if isinstance(node, (*_DEFINED, ast.Lambda)))
        waiting += [(node, tree) for node in definitions if _first(node) == first + 1]
    if not waiting:
        return Code("", "")
    forms: set[str] = set()
    while waiting:
        node, tree = waiting.pop()
        if (form := json.dumps(_form(node))) not in forms:
            forms.add(form)
            parts = list(ast.walk(node))
            waiting += _binding({part.id for part in parts if isinstance(part, ast.Name)}, tree)
            waiting += [pair for part in parts for pair in _imported(part)]
    return Code(hashlib.sha256(json.dumps(sorted(forms)).encode()).hexdigest()[:32], file)


def _inside(value: Any) -> list[Any]:
    """The callables in an object: in a partial or a method, wrapped ones, functions that it closes over."""
    if isinstance(value, functools.partial):
        return [value.func]
    if inspect.ismethod(value):
        return [value.__self__]
    contents = [getattr(value, "__wrapped__", None)]
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the closure's cell is empty yet
            contents.append(cell.cell_contents)
    return [content for content in contents if callable(content)]


def _imported(node: ast.AST) -> list[tuple[ast.stmt, ast.Module]]:
    """The statements of the user's modules that bind the names of an import, with their files."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    statements: list[tuple[ast.stmt, ast.Module]] = []
    base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    for module in users_modules():
        names = {alias.name for alias in node.names}
        if not base or not f".{module.__name__}".endswith(f".{base}"):
            # A whole module counts with all its statements.
            wholes = tuple("." + f"{base}.{name}".strip(".") for name in names)
            if not f".{module.__name__}".endswith(wholes):
                continue
            names = {"*"}
        statements += _binding(names, ast.parse(inspect.getsource(module)))
    return statements


def _binding(names: set[str], tree: ast.Module) -> list[tuple[ast.stmt, ast.Module]]:
    """The statements of a file that bind any of these names, or all for ``*``, with the file."""
    return [(s, tree) for s in tree.body if "*" in names or not names.isdisjoint(_bound(s))]


def _first(statement: Any) -> int:
    return min(part.lineno for part in (statement, *getattr(statement, "decorator_list", ())))


def _bound(node: ast.AST) -> set[str]:
    if isinstance(node, _DEFINED):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    return set[str]().union(*map(_bound, ast.iter_child_nodes(node)))


def _form(node: Any) -> Any:
    """A statement without comments, docstrings and layout, alike in all versions of Python."""
    if isinstance(node, list):
        forms = [_form(part) for part in node]
        texts = [bool(form) and form[0] == "Expr" and form[1][1][0] == "Constant" for form in forms]
        return [form for form, is_text in zip(forms, texts, strict=True) if not is_text]
    if not isinstance(node, ast.AST):
        return None if node is None else repr(node)
    left_out = ("ctx", "kind", "type_comment")
    fields = ((name, _form(part)) for name, part in ast.iter_fields(node) if name not in left_out)
    return [type(node).__name__, *([name, form] for name, form in fields if form not in (None, []))]
