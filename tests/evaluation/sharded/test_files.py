import hashlib
from dataclasses import replace

import polars as pl
import pytest

from engine.errors import InputError
from engine.evaluation.sharded import files
from engine.evaluation.sharded.files import ShardContent, from_bytes, to_bytes
from tests.tables import QUERIES, RUN, judgments

CONTENT = ShardContent(
    queries=QUERIES,
    runs=RUN,
    tables={
        "qrels": judgments(("q1", "d1", 1.0)),
        "preferences": pl.DataFrame(
            {"query_id": ["q1", "q2"], "shown": [["d1", "d2"], []], "best": ["d1", None]}
        ),
    },
    cut_runs=("s",),
    unmatchable=("q3",),
)


def test_what_is_written_is_read_again():
    content = from_bytes(to_bytes(CONTENT), "place")
    assert content.queries.equals(CONTENT.queries)
    assert content.runs.equals(CONTENT.runs)
    assert list(content.tables) == list(CONTENT.tables)
    for name, table in CONTENT.tables.items():
        assert content.tables[name].equals(table)
        assert content.tables[name].schema == table.schema
    assert (content.cut_runs, content.unmatchable) == (("s",), ("q3",))
    assert content.hexdigest("a") == CONTENT.hexdigest("a")
    assert to_bytes(CONTENT) == to_bytes(CONTENT)


def with_answers(*answers):
    lists = pl.Series("answers", answers, dtype=pl.List(pl.String))
    return replace(CONTENT, queries=QUERIES.with_columns(lists))


def test_whatever_differs_has_another_digest():
    qrels = {"qrels": CONTENT.tables["qrels"]}
    others = [
        with_answers(["Ann", "Bo"], [], ["Cy"]),
        with_answers(["Ann"], ["Bo"], ["Cy"]),
        with_answers(["AnnBo"], [], ["Cy"]),
        with_answers(["Ann"], ["Bo", "Cy"], []),
        with_answers(["Ann", ""], ["Bo"], ["Cy"]),
        replace(CONTENT, runs=RUN.reverse()),
        replace(CONTENT, runs=RUN.with_columns(pl.col("rank") + 1)),
        replace(CONTENT, runs=RUN.with_columns(pl.col("score") + 1e-9)),
        replace(CONTENT, tables=qrels),
        replace(CONTENT, tables={"other": CONTENT.tables["qrels"]}),
        replace(CONTENT, tables=CONTENT.tables | {"qrels": judgments(("q1", "d1", 2.0))}),
        replace(CONTENT, cut_runs=()),
        replace(CONTENT, unmatchable=()),
    ]
    digests = [content.hexdigest() for content in others]
    digests += [CONTENT.hexdigest("a", "b"), CONTENT.hexdigest("ab"), CONTENT.hexdigest("a")]
    assert len(set(digests)) == len(digests)
    # The first answers of QUERIES are those of the second of these.
    assert CONTENT.hexdigest() == others[1].hexdigest()


def test_chunks_of_a_table_do_not_count():
    chunked = pl.concat([RUN.head(2), RUN.slice(2)], rechunk=False)
    assert replace(CONTENT, runs=chunked).hexdigest() == CONTENT.hexdigest()


def column_bytes(texts):
    """What a digest takes of a column of texts: type, nulls, lengths of 4 bytes, characters."""
    encoded = [(text or "").encode() for text in texts]
    nulls = bytes(text is None for text in texts)
    lengths = b"".join(len(one).to_bytes(4, "little") for one in encoded)
    return f"String:{len(texts)}:".encode() + nulls + lengths + b"".join(encoded)


# Digests name what was evaluated: those of earlier versions have to be found again.
@pytest.mark.parametrize(
    "texts", [[], ["", "漢字", "a text that is longer than twelve bytes"], [None, "a", None, ""], [None]]
)  # fmt: skip
def test_the_digest_of_texts_is_that_of_their_lengths_and_characters(texts):
    total = hashlib.sha256()
    column = pl.Series(["before", *texts, "after"], dtype=pl.String).slice(1, len(texts))
    files._update(total, column)
    assert total.digest() == hashlib.sha256(column_bytes(texts)).digest()


@pytest.mark.parametrize("end", [0, 10, -1])
def test_a_part_of_a_file_is_refused(end):
    with pytest.raises(InputError, match="place: a damaged shard"):
        from_bytes(to_bytes(CONTENT)[:end], "place")
