"""A refusal is compared by its code, its path, its line and its words."""

import os
from collections import defaultdict
from contextlib import nullcontext

import pytest

from engine.messages.errors import InputError
from tests import expected

WRONG = {"problem": "wrong", "remedy": "mend it", "code": "room.word", "path": "f", "line": 3}
OTHER = [{"code": "room.other"}, {"path": "g"}, {"line": 4}, {"remedy": "mend them"}]


@pytest.mark.parametrize("other", [{}, *OTHER])
def test_another_code_place_or_text_is_a_failure(other, monkeypatch):
    module, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("::")
    monkeypatch.setattr(expected, "_writes", False)
    monkeypatch.setattr(expected, "_seen", defaultdict(list))
    known = {module: {test: ["f:3: wrong; mend it"]}}
    monkeypatch.setitem(expected._known, expected._file(module), known)
    if "path" in other or "line" in other:  # also where the words are as expected
        monkeypatch.setattr(expected, "as_expected", lambda text: None)
    outcome = pytest.raises(AssertionError) if other else nullcontext()
    with outcome, expected.refused("room.word", path="f", line=3):
        raise InputError(**WRONG | other)
