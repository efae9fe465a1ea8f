"""What a disk changes in files that are kept: it is noticed when they are taken up, and gives no other figures."""

import shutil
from dataclasses import replace

import pytest

from tests.commands import erag
from tests.evaluation.in_shards import (
    Scripted,
    assert_same,
    in_shards,
    scripted,
    settings,
    the_whole,
)
from tests.report.page import results

__all__ = ["scripted"]  # a fixture


def flipped(place):
    def flip(content):
        at = int(place * (len(content) - 1))
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    return flip


def edited(content):
    """A digit is another one, as in a file that an editor wrote; of other files, a byte in the middle."""
    places = [at for at, byte in enumerate(content) if byte in b"2345678"]
    at = places[len(places) // 2] if places else len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGES = {
    "flipped": flipped(0.6),
    "flipped at the end": flipped(0.97),
    "emptied": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "edited": edited,
}


def files_in(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An evaluation with its page."""
    out = results.write_results(tmp_path_factory.mktemp("page"))
    assert erag("report", out, "--no-passages") == 0
    return out


def evaluate(folder):
    """The evaluation in shards, and how many reads were asked for."""
    before = len(Scripted.asked)
    found = in_shards(folder, settings(), 144, inputs="shards/inputs")
    return found, len(Scripted.asked) - before


def damages(evaluation):
    return {note.code for note in evaluation.notes if "damaged" in note.code and note.is_shown}


@pytest.mark.parametrize("damage", [*DAMAGES, "removed"])
def test_any_damaged_file_of_finished_shards_is_made_again_with_a_note(tmp_path, damage):
    """Of each table and manifest, of the inputs and of the index of passages; nothing is read again."""
    whole = the_whole(tmp_path, settings(), store="held")
    _, asked = evaluate(tmp_path)
    assert asked > 100
    names = {}  # one of each kind of file: shards have the same
    for name in files_in(tmp_path / "shards"):
        names.setdefault((name.parent, name.suffix), name)
    assert len(names) >= 13
    for name in names.values():
        path = tmp_path / "shards" / name
        content = path.read_bytes()
        path.unlink()
        # Inputs and manifests that are not there are as those that were never made.
        is_silent = damage == "removed" and not {"inputs", "manifests"}.isdisjoint(name.parts)
        if damage != "removed":
            path.write_bytes(DAMAGES[damage](content))
        again, asked = evaluate(tmp_path)
        assert asked == 0, name
        noted = damages(again)
        # The manifest of the passages is not needed where the shards' has what it says.
        if is_silent or (name.parent.name == "passages" and name.suffix == ".json"):
            assert not noted
        else:
            assert noted == {f"damaged_{'inputs' if 'inputs' in name.parts else 'shards'}"}, name
        clean = replace(again, notes=[n for n in again.notes if n.code not in noted])
        assert_same(whole, clean, tmp_path / "shards", costs=("wanted", "failed"))
    again, _ = evaluate(tmp_path)
    assert not damages(again)


@pytest.mark.parametrize("command", ["compare", "gate", "report"])
def test_any_damaged_file_of_results_is_one_line_or_changes_nothing(
    folder, tmp_path, capsys, command
):
    copied = tmp_path / "out"
    shutil.copytree(folder, copied)
    page = {"--no-passages"} if command == "report" else ()

    def run():
        asked = {
            "compare": ("compare", folder, copied, "--json"),
            "gate": (
                "gate",
                "--baseline",
                folder,
                "--candidate",
                copied,
                "--margin",
                0.2,
                "--allow",
                "reader",
                "--json",
            ),
            "report": ("report", copied, *page),
        }[command]
        return erag(*asked), capsys.readouterr()

    expected = run()
    assert expected[0] == 0
    read = {"compare": 3, "gate": 3, "report": 6}[command]
    refused = set()
    shown = (copied / "report.html").read_bytes()
    for name in [path for path in files_in(copied) if path.suffix in (".json", ".parquet")]:
        if name.parent.name:
            continue
        before = (copied / name).read_bytes()
        for damage in ("flipped", "edited", "cut", "gone")[-2 * (command != "compare") :]:
            if damage == "gone":
                (copied / name).unlink()
            else:
                (copied / name).write_bytes(DAMAGES[damage](before))
            status, said = run()
            if status:
                refused.add(name)
                (line,) = said.err.strip().splitlines()
                assert (status, str(name) in line) == (2, True), (name, damage, line)
                assert "unforeseen" not in line
            else:
                assert said.out == expected[1].out, (name, damage)
                assert (copied / "report.html").read_bytes() == shown, (name, damage)
            (copied / name).write_bytes(before)
    assert len(refused) >= read, refused
