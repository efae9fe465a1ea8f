"""What the reads of each kind cost, as a table."""

import json
import re
from pathlib import Path

from rich.console import Console

from engine.evaluation.settings import Settings
from engine.labels import from_function
from engine.reading.costs import SINGLE, WHOLE, KindCosts, ReadingCosts
from engine.report import grids
from engine.report.findings import Findings
from engine.report.summary import configuration, jsonable
from tests.expected import as_expected

ERAG = ("erag", "reader")


def asked(*, roles=(), **options):
    """An evaluation under these settings, in which nothing is said of what these further roles cost."""
    described = {role: {"fingerprint": "f", "reading": {}} for role in roles}
    settings = configuration(Settings.of(**options), "pool", {})
    return Findings(
        {"configuration": settings, "means": [], "reading": {}, **described}, Path(), None
    )


def test_settings_with_paths_go_into_the_summary():
    """A batch whose answers have all been taken ends by writing it."""
    settings = jsonable(configuration(Settings.of(batch_in=Path("a.jsonl")), "pool", {}))
    assert json.loads(json.dumps(settings))["batch_in"] == "a.jsonl"


def kind(**given):
    usual = {
        "wanted": 100,
        "done": 100,
        "prompt_tokens": 10_000,
        "computed_tokens": 8_000,
        "padded_tokens": 8_000,
        "output_tokens": 300,
        "reader_seconds": 50.0,
        "seconds": 25.0,
    }
    return KindCosts(**usual | given)


def shown(roles):
    table = grids.compared_costs(asked(annotators=("erag",)), roles)
    if table is None:
        return None
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table)
    return [re.split(r"  +", line.strip()) for line in captured.get().splitlines()]


def both(**of_whole):
    return ReadingCosts(kinds={SINGLE: kind(), WHOLE: kind(**{"reader_seconds": 20.0} | of_whole)})


def test_end_to_end_stands_beside_single_passages_with_the_ratio():
    head, single, whole = shown({"reader": both()})
    as_expected(head)
    assert single == [
        "erag: single passages", "100", "0", "10,000", "20%", "300", "50.0", "25.0", "1.00",
    ]  # fmt: skip
    as_expected(whole[0])
    assert whole[-1] == "0.40"


def test_reads_from_the_store_make_no_ratio():
    """A ratio of times is of nothing where one side had a part of its reads done already."""
    rows = shown({"reader": both(reused=1)})
    assert rows[0][-1] == "LLM time vs. erag"
    assert rows[2][-1] != "0.40"
    assert (
        "LLM time vs. erag"
        not in shown({"reader": ReadingCosts(kinds={SINGLE: kind(reused=1), WHOLE: kind()})})[0]
    )


def test_padding_and_split_times_are_told_where_there_are_any():
    rows = shown({"reader": both(padded_tokens=10_000, split_seconds=3.0)})
    as_expected(rows[0])
    assert rows[2][5] == "20%"
    assert "~20.0" in rows[2]
    assert not any(value.startswith("~") for value in rows[1])


def test_other_roles_are_named():
    rows = shown(
        {"reader": both(), "judge": ReadingCosts(kinds={SINGLE: kind(reader_seconds=5.0)})}
    )
    assert rows[3][0] == "judge: single passages"
    assert rows[3][-1] == "0.10"


def test_one_kind_alone_and_reads_that_were_all_stored_need_no_table():
    assert shown({"reader": ReadingCosts(kinds={SINGLE: kind()})}) is None
    stored = {"wanted": 100, "reused": 100}
    kinds = {SINGLE: KindCosts(**stored), WHOLE: KindCosts(**stored)}
    assert shown({"reader": ReadingCosts(kinds=kinds)}) is None


def test_whose_labels_are_the_readers_own_follows_from_the_settings():
    assert grids.labelling(asked(annotators=("containment", "erag"))) == ERAG
    other = asked(annotators=("erag",), erag_reader="another", roles=["erag_reader"])
    assert grids.labelling(other) == ("erag", "erag")
    mine = from_function("mine", lambda query, answers, passage: 1.0)
    assert grids.labelling(asked(annotators=("containment", mine))) is None
