import pickle
import sys

import pytest

from engine.machine.functions import ByValue, is_named, load_named
from tests.expected import refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a user's; what is imported from it is forgotten."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("texts", "are_some"),
    [
        (["a.py:f", "/x y/a.b.py:f", "a.py:"], True),
        (["a.py", "openai:gpt", "em", "C:/models/a.py/weights"], False),
    ],
)
def test_what_names_a_function_in_a_file(texts, are_some):
    assert [is_named(text) for text in texts] == [are_some] * len(texts)


def test_a_function_is_found_in_a_file_that_imports_its_neighbour(folder):
    (folder / "neighbour_of_mine.py").write_text("WORD = 'near'\n")
    (folder / "mine.py").write_text(
        "from neighbour_of_mine import WORD\ndef f(x):\n    return WORD + x\n"
    )
    assert load_named(f"{folder / 'mine.py'}:f")("by") == "nearby"


def test_a_file_is_run_once_and_again_when_it_changed(folder):
    mine = folder / "mine.py"
    mine.write_text(f"open({str(folder / 'log')!r}, 'a').write('run ')\ndef f():\n    return 1\n")
    assert [load_named(f"{mine}:f")() for _ in range(3)] == [1, 1, 1]
    mine.write_text(mine.read_text().replace("return 1", "return 2"))
    assert load_named(f"{mine}:f")() == 2
    assert (folder / "log").read_text() == "run run "


@pytest.mark.parametrize(
    ("content", "name", "code", "line"),
    [
        (None, "f", "files.missing", None),
        ("def g(): pass\ndef _h(): pass\n", "f", "function.missing", None),
        ("import os\n", "", "function.missing", None),
        ("f = 3\n", "f", "function.uncallable", None),
        ("import math\n\nimport no_such_module_at_all\n", "f", "function.unloadable", 3),
        ("def f(:\n", "f", "function.unloadable", 1),
        ("import sys\nsys.exit('done')\n", "f", "function.unloadable", 2),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_a_line(folder, content, name, code, line):
    if content is not None:
        (folder / "mine.py").write_text(content)
    with refused(code, line=line):
        load_named(f"{folder / 'mine.py'}:{name}")


def test_a_function_travels_with_the_modules_of_the_user_that_it_uses(folder):
    (folder / "counts_of_mine.py").write_text(
        "class Box:\n    size = 3\ndef add(x):\n    return x + Box().size\n"
    )
    (folder / "mine.py").write_text(
        "import counts_of_mine\nimport math\ndef f(x):\n    return math.floor(counts_of_mine.add(x))\n"
    )
    content = pickle.dumps(ByValue(load_named(f"{folder / 'mine.py'}:f")))
    for name in [n for n in sys.modules if n.startswith("erag_functions_") or "of_mine" in n]:
        del sys.modules[name]
    for file in folder.glob("*.py"):
        file.unlink()
    sys.path.remove(str(folder))
    assert pickle.loads(content)(4.5) == 7
    # Nothing stays registered: what is imported is pickled by name as ever.
    from ray.cloudpickle import list_registry_pickle_by_value

    assert not list_registry_pickle_by_value()


def test_a_function_that_holds_what_belongs_to_this_process_is_refused():
    import threading

    lock = threading.Lock()

    def guarded(prompts):
        with lock:
            return prompts

    for sent in (pickle.dumps, ByValue.require_sendable):
        with refused("function.unpicklable"):
            sent(ByValue(guarded))
