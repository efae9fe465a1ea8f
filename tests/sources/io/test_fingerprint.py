import hashlib

import polars as pl
import pytest

from engine import tables
from engine.sources.io.fingerprint import Fingerprint

ROWS = [("1", "T", "a", "A"), ("2", "", "bé", "B"), ("3", "T", "", "A")]


def digest(*batches):
    found = Fingerprint()
    for rows in batches:
        found.update(pl.DataFrame(rows, schema=tables.CORPUS, orient="row"))
    return found.hexdigest()


def test_the_fingerprint_is_the_sum_of_the_rows_hashes():
    written = [b"1,1,1,1:1:T:a:A", "1,0,3,1:2::bé:B".encode(), b"1,1,0,1:3:T::A"]
    total = sum(int.from_bytes(hashlib.sha256(row).digest(), "little") for row in written)
    assert digest(ROWS) == f"{total % 2**256:064x}"


def test_the_fingerprint_does_not_depend_on_order_or_batches():
    assert digest(ROWS) == digest(ROWS[::-1]) == digest(ROWS[2:], [], ROWS[:1], ROWS[1:2])
    found = Fingerprint()
    found.update(pl.DataFrame(ROWS, schema=tables.CORPUS, orient="row"))
    assert found.passages == 3


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:2],
        ROWS + ROWS[:1],
        [("1", "T", "a", "A"), ("2", "", "bé", "B"), ("3", "T", "", "B")],
        [("1", "Ta", "", "A"), *ROWS[1:]],
        [("1:T", "", "a", "A"), *ROWS[1:]],
        [],
    ],
)
def test_every_difference_changes_the_fingerprint(rows):
    assert digest(rows) != digest(ROWS)
