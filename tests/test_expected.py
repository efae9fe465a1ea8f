"""A refusal is compared by its code, its path, its line and its words; every text that stands for a test comes."""

from collections import defaultdict
from contextlib import nullcontext

import pytest

from engine.messages.errors import InputError
from tests import expected

WRONG = {"problem": "wrong", "remedy": "mend it", "code": "room.word", "path": "f", "line": 3}
OTHER = [{"code": "room.other"}, {"path": "g"}, {"line": 4}, {"remedy": "mend them"}]


@pytest.fixture
def known(monkeypatch):
    """A function: these texts stand for the test."""

    def these(texts):
        patched.setattr(expected, "_writes", False)
        patched.setattr(expected, "_seen", defaultdict(list))
        module, _, test = expected._node().partition("::")
        patched.setitem(expected._known, expected._file(module), {module: {test: texts}})
        return patched

    with monkeypatch.context() as patched:
        yield these


@pytest.mark.parametrize("other", [{}, *OTHER])
def test_another_code_place_or_text_is_a_failure(other, known):
    patched = known(["f:3: wrong; mend it"])
    if "path" in other or "line" in other:  # also where the words are as expected
        patched.setattr(expected, "as_expected", lambda text: None)
    outcome = pytest.raises(AssertionError) if other else nullcontext()
    with outcome, expected.refused("room.word", path="f", line=3):
        raise InputError(**WRONG | other)
    patched.undo()


def test_a_text_that_does_not_come_is_a_failure(known):
    patched = known(["a", "b"])
    expected.as_expected("a")
    expected.as_expected("a")  # in the place of b
    with pytest.raises(AssertionError, match="did not come"):
        expected.end()
    patched.undo()
