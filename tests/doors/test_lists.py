"""What the scores of lists say of their order: cut among equals, and rising with the ranks, at every door."""

import json

import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.inputs.partition import partition
from engine.python.input_forms import UserInputs, inputs_of
from engine.sources.io.folders import folder_at
from engine.sources.runs.read import RISING
from tests.expected import as_expected

K = 3
CUT = "cut_among_ties"
ASKED = Settings.of(k=K, end_to_end=False, annotators=("containment",))
QUERIES = [{"query_id": f"q{n}", "query": f"what is {n}", "answers": ["a"]} for n in range(6)]
PASSAGES = {f"d{n}": f"text {n}" for n in range(9)}


def rows_of(scores, ranks=(1, 2, 3, 4), other=None):
    """Rows of a run whose lists all have these scores; ``other``: those of its last list."""
    return [
        (f"q{n}", f"d{n + place}", rank, score)
        for n in range(6)
        for place, (rank, score) in enumerate(
            zip(ranks, other if other and n == 5 else scores, strict=True)
        )
    ]


def frame(rows):
    return pl.DataFrame(rows, ["query_id", "doc_id", "rank", "score"], orient="row")


def dictionary(rows):
    lists = {}
    for query, doc, _, score in rows:
        lists.setdefault(query, {})[doc] = score
    return lists


def trec(rows, folder):
    # Beyond 32 KB, lines are parsed by the block; short files line by line.
    lines = [f"{query} Q0 {doc} {rank} {score} run\n" for query, doc, rank, score in rows]
    return write(folder / "run.trec", "".join(lines))


def trec_by_the_block(rows, folder):
    strangers = [(f"x{n:04}", doc, rank, -rank) for n in range(400) for _, doc, rank, _ in rows[:4]]
    path = trec([*rows, *strangers], folder)
    assert path.stat().st_size > 1 << 15
    return path


def parquet(rows, folder):
    frame(rows).with_columns(run=pl.lit("run")).write_parquet(folder / "run.parquet")
    return folder / "run.parquet"


def lists(rows, folder):
    records = (
        {"query_id": query, "results": [{"id": doc, "score": score} for doc, score in of.items()]}
        for query, of in dictionary(rows).items()
    )
    return write(folder / "run.jsonl", "\n".join(map(json.dumps, records)))


def write(path, text):
    path.write_text(text)
    return path


RANKED = {
    "TREC": trec,
    "TREC by the block": trec_by_the_block,
    "Parquet": parquet,
    "JSON lines with ranks": lambda rows, folder: write(
        folder / "run.jsonl", frame(rows).write_ndjson()
    ),
    "lists with scores": lists,
    "frame": lambda rows, _: frame(rows),
    "pandas": lambda rows, _: frame(rows).to_pandas(),
    "by name": lambda rows, folder: {"run": trec(rows, folder)},
}
UNRANKED = {
    "frame without ranks": lambda rows, _: frame(rows).drop("rank"),
    "JSON": lambda rows, folder: write(folder / "run.json", json.dumps(dictionary(rows))),
    "dictionary": lambda rows, _: dictionary(rows),
}


def noted(run, folder, *, passages=PASSAGES):
    given = UserInputs(QUERIES, passages, run)
    notes = inputs_of(given, ASKED).notes
    return {note.code: note for note in notes if note.code in (CUT, RISING)}


@pytest.mark.parametrize("door", [*RANKED, *UNRANKED])
@pytest.mark.parametrize(
    ("scores", "other", "amount"),
    [
        ((4, 3, 2, 2), None, 6),
        ((4, 3, 2, 2), (4, 3, 2, 1), 5),
        ((4, 2, 2, 1), None, 0),  # which of them count does not depend on the cut
        ((0, 0, 0, 0), None, 0),  # scores that say nothing
        ((4, 3, 2, 2 - 1e-12), None, 6),  # equal in single precision, in which trec_eval orders
    ],
    ids=str,
)
def test_lists_that_are_cut_among_equal_scores_are_counted(door, scores, other, amount, tmp_path):
    run = {**RANKED, **UNRANKED}[door](rows_of(scores, other=other), tmp_path)
    found = noted(run, tmp_path)
    assert (found[CUT].amount if CUT in found else 0) == amount
    if amount:
        assert str(amount) in found[CUT].text
        if door == "JSON":
            as_expected(found[CUT].text)


@pytest.mark.parametrize("door", RANKED)
@pytest.mark.parametrize(
    ("scores", "other", "amount"),
    [
        ((0.1, 0.2, 0.3, 0.4), None, 6),
        ((0.1, 0.2, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4), 6),
        ((0.1, 0.2, 0.3, 0.4), (4, 3, 2, 1), 5),
        ((4, 3, 2, 1), (4, 2.999, 3, 1), 0),  # ranks that disagree by rounding
        ((4, 3, 2, 1), (0.1, 0.2, 0.3, 0.4), 0),
        ((0, 0, 0, 0), None, 0),
    ],
    ids=str,
)
def test_scores_that_rise_with_ranks_are_counted(door, scores, other, amount, tmp_path):
    found = noted(RANKED[door](rows_of(scores, other=other), tmp_path), tmp_path)
    assert (found[RISING].amount if RISING in found else 0) == amount
    if amount:
        assert str(amount) in found[RISING].text
        if door == "JSON lines with ranks":
            as_expected(found[RISING].text)


@pytest.mark.parametrize("door", UNRANKED)
def test_without_ranks_no_order_is_contradicted(door, tmp_path):
    assert not noted(UNRANKED[door](rows_of((0.1, 0.2, 0.3, 0.4)), tmp_path), tmp_path)


@pytest.mark.parametrize("ranks", [(4, 3, 2, 1), (0, 0, 0, 0), ("a", "b", "c", "d")], ids=str)
def test_the_rank_column_of_a_run_decides_and_not_the_order_of_its_lines(ranks, tmp_path):
    """Lines from the worst to the best, or ranks that say nothing."""
    assert not noted(trec(rows_of((0.1, 0.2, 0.3, 0.4), ranks), tmp_path), tmp_path)
    if ranks[0] == 4:
        assert RISING in noted(trec(rows_of((4, 3, 2, 1), ranks), tmp_path), tmp_path)


@pytest.mark.parametrize("door", [trec, parquet, lists])
def test_inputs_in_shards_are_noted_as_those_of_one_process(door, tmp_path):
    passages = [{"id": doc, "text": text} for doc, text in PASSAGES.items()]
    write(tmp_path / "q.jsonl", "\n".join(map(json.dumps, QUERIES)))
    write(tmp_path / "c.jsonl", "\n".join(map(json.dumps, passages)))
    run = door(rows_of((0.1, 0.2, 0.3, 0.3)), tmp_path)
    given = UserInputs(tmp_path / "q.jsonl", tmp_path / "c.jsonl", run)
    cut = partition(given.files(ASKED), folder_at(tmp_path / "inputs"), k=K, pairs_per_shard=6)
    assert len(cut.shards) > 1
    assert cut.notes == inputs_of(given, ASKED).notes
    assert RISING in {note.code for note in cut.notes}
