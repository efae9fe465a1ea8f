"""The pace of earlier evaluations, from summaries whose figures are known."""

import json

import fsspec
import pytest

from engine.messages.errors import InputError
from engine.planning.pace import pace_of, read_pace

# 30 calls on single passages of 100 tokens each in 60 s, by two actors that took 40 s with their start.
COSTS = {
    "done": 30,
    "seconds": 40.0,
    "reader_seconds": 60.0,
    "workers": {"a": 5, "b": 7},
    "kinds": {"single": {"done": 30, "prompt_tokens": 3000, "reader_seconds": 60.0}},
}
SUMMARY = {"configuration": {}, "reader": {"name": "r"}, "reading": COSTS}


def test_the_start_of_an_actor_is_when_it_did_not_read():
    ((role, pace),) = pace_of(SUMMARY).roles
    assert role == "reader"
    assert (pace.actors, pace.start) == (2, 10.0)


def test_a_study_has_a_pace_for_each_of_its_readers():
    rows = [
        {"reader": name, "augmentation": "fid", "role": "reader", **COSTS} for name in ("a", "b")
    ]
    found = pace_of(SUMMARY | {"reading": {}, "study": {"costs": rows}})
    assert [pace.reader["name"] for _, pace in found.roles] == ["a", "b"]


@pytest.mark.parametrize("place", ["{}", "{}/summary.json"])
@pytest.mark.parametrize("at", ["folder", "address"])
def test_results_are_named_by_folder_or_summary_here_or_at_an_address(tmp_path, place, at):
    folder = str(tmp_path) if at == "folder" else "memory://of-a-pace"
    with fsspec.open(f"{folder}/summary.json", "w") as file:
        json.dump(SUMMARY, file)
    assert read_pace(place.format(folder)).actors == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("{}", "is not the summary of an evaluation"),
        (json.dumps(SUMMARY | {"reading": {"reused": 3}}), "has no time of LLM calls"),
    ],
)
def test_what_tells_no_pace_is_refused(tmp_path, content, words):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(InputError, match=rf"summary\.json: {words}") as error:
        read_pace(tmp_path)
    assert error.value.remedy == "name the results of an evaluation that made LLM calls of its own"
