"""The examples in docstrings of the functions that newcomers meet first."""

import doctest
import importlib

import pytest

MODULES = {
    "engine.scoring.normalize": 2,
    "engine.messages.wording": 3,
    "engine.scoring.metrics": 8,
    "engine.ranking.measures": 2,
    "engine.ranking.scores": 1,
    "engine.statistics.bounded": 2,
    "engine.sources.runs.read": 2,
    "engine.sources.runs.qrels": 2,
    "engine.labels.dual": 1,
    "engine.python.evaluate": 1,
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(tests) >= MODULES[name]  # functions with examples
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said = []
    for test in tests:
        runner.run(test, out=said.append)
    assert not said, "".join(said)
