"""Lists on the command line: commas, spaces and repeated options mean the same, everywhere."""

import pytest

from jobs import cli
from jobs._options import items_of, parts_of
from tests.commands import CONTAINMENT, evaluate, scores_of
from tests.expected import as_expected
from tests.unknown import UNKNOWN_NAME

WAYS = {
    "commas": lambda name, items: [name, ",".join(items)],
    "commas and spaces": lambda name, items: [name, ", ".join(items)],
    "one text with spaces": lambda name, items: [name, " ".join(items)],
    "several words": lambda name, items: [name, *items],
    "repeated": lambda name, items: [part for item in items for part in (name, item)],
}


def bound(*tokens):
    _, known, _ = cli.app.parse_args(list(tokens), print_error=False, exit_on_error=False)
    return known.arguments


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("option", "items"),
    [
        ("annotators", ["erag", "containment"]),
        ("measures", ["P@10", "nDCG(dcg='exp-log2')@5", "AP(rel=0.5)@10"]),
        ("augmentation", ["in-prompt", "fid"]),
        ("k-sweep", ["5", "10"]),
    ],
)
def test_names_in_a_list(way, option, items):
    given = WAYS[way](f"--{option}", items)
    known = bound("evaluate", "--queries", "q", "--run", "r", "--out", "o", *given)
    assert known[option.replace("-", "_")] == tuple(items)


@pytest.mark.parametrize("way", ["commas", "commas and spaces", "several words", "repeated"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("evaluate --queries q --out o", "run"),
        ("evaluate --queries q --out o --run r", "reader"),
        ("fuse --out o", "run"),
        ("retrieve --queries q --out o", "index"),
        ("retrieve --queries q --out o --index i", "name"),
    ],
)
def test_paths_and_models_in_a_list(way, command, option):
    known = bound(*command.split(), *WAYS[way](f"--{option}", ["one", "two"]))
    found = known.get(option) or getattr(known.get("output"), option)
    assert list(map(str, found)) == ["one", "two"]


def test_sources_of_passages_in_a_list():
    assert bound("passages", "a.jsonl,b.jsonl", "c.jsonl", "--out", "o")["source"] == [
        "a.jsonl", "b.jsonl", "c.jsonl",
    ]  # fmt: skip


def test_a_file_whose_name_has_a_comma_is_one_file(tmp_path):
    (tmp_path / "a,b.trec").write_text("")
    assert parts_of([f"{tmp_path}/a,b.trec", "c,d"]) == [f"{tmp_path}/a,b.trec", "c", "d"]
    assert items_of("P@1, AP(rel=1)@2\tRR") == ("P@1", "AP(rel=1)@2", "RR")


def test_lists_of_a_file_of_options(files, tmp_path, capsys):
    for text in (
        "annotators: containment, provenance\n",
        "annotators: [containment, provenance]\n",
    ):
        config = tmp_path / "options.yaml"
        config.write_text(text + "measures: [P@1, RR]\nend-to-end: false\nk: 2\n")
        assert evaluate(files, "--config", config) == 0, capsys.readouterr().err
        table = scores_of(files["out"])
        assert set(table["annotator"]) == {"containment", "provenance"}
        assert set(table["measure"]) == {"P@1", "RR"}


@pytest.mark.parametrize(
    "options",
    [
        ("--annotators", "contanment"),
        ("--annotators", "eRAG"),
        ("--metric", "F1"),
        ("--metric", "exact_match"),
        ("--metric", "ROUGE_L"),
        ("--measures", "nDGC@10"),
        ("--measures", "recip_rnk"),
        ("--measures", "MRR RR"),
        ("--measures", f"{UNKNOWN_NAME}@3"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(files, capsys, options):
    assert evaluate(files, *CONTAINMENT[2:], *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)
