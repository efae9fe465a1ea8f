"""Credentials of addresses, wherever they could be shown."""

import pickle
import time
from pathlib import Path

import pytest

from engine.messages.errors import InputError, masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://key:secret@bucket/a/b.jsonl", "s3://***@bucket/a/b.jsonl"),
        ("s3:/key:secret@bucket/a", "s3:/***@bucket/a"),  # as Path folds it
        ("s3://key:se/cr+et=@bucket/a", "s3://***@bucket/a"),
        ("s3://key:p@ss@bucket/a", "s3://***@bucket/a"),
        ("https://token@host:8080/a", "https://***@host:8080/a"),
        ("filecache::s3://key:secret@bucket/a", "filecache::s3://***@bucket/a"),
        ("--run=s3://key:secret@bucket/a", "--run=s3://***@bucket/a"),
        ("https://host/a?X-Amz-Signature=abc&b=c", "https://host/a?***"),
        ("https://host/a#access_token=abc", "https://host/a?***"),
        ("s3://bucket/user@home/a", "s3://bucket/user@home/a"),
        ("gs://bucket/a.jsonl.gz", "gs://bucket/a.jsonl.gz"),
        ("/home/user@host/a?b=c", "/home/user@host/a?b=c"),
        ("nDCG(dcg='exp-log2')@5", "nDCG(dcg='exp-log2')@5"),
    ],
)
def test_credentials_of_addresses_are_masked(text, expected):
    assert masked(text) == expected
    assert masked(expected) == expected


def test_an_error_shows_no_credentials_wherever_they_are_in_it():
    signed = "https://host/a.jsonl?X-Amz-Signature=abc"
    error = InputError(
        "refused by s3://key:secret@bucket/x", f"check {signed}", path=signed, line=17
    )
    assert str(error) == (
        "https://host/a.jsonl?***:17: refused by s3://***@bucket/x; check https://host/a.jsonl?***"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path) == (str(error), "https://host/a.jsonl?***")
    assert InputError("a", "b", path=Path("s3:/key:secret@bucket/x")).path == Path(
        "s3:/***@bucket/x"
    )


@pytest.mark.parametrize("piece", ["x", "a:/b:c", "s3://", "?#", ":/x/", "@:/a:", "a.b+c-"])
def test_a_megabyte_is_masked_at_once(piece):
    # Quadratic, each took minutes.
    text = "s3://x/@" + piece * (10**6 // len(piece))
    start = time.process_time()
    masked(text)
    assert time.process_time() - start < 5
