"""Parquet files: damaged ones are refused in one line, and no process ends; parts are fetched alone."""

import io
import json
import random
import struct
from string import ascii_letters

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from engine.messages.errors import InputError
from engine.sources.io.parquet import open_parquet, read_parquet
from tests.expected import refused

QUERIES = pl.DataFrame(
    {
        "query_id": [f"q{i}" for i in range(12)],
        "query": [f"who wrote é {i}" for i in range(12)],
        "answers": [["a", "b é"][: i % 3] for i in range(12)],
    }
)


def arrow_file(path, **options):
    pq.write_table(pa.Table.from_pylist(QUERIES.to_dicts()), path, **options)


def polars_file(path, **options):
    QUERIES.write_parquet(path, **options)


WRITERS = [
    (polars_file, {}),
    (polars_file, {"compression": "uncompressed"}),
    (arrow_file, {"compression": "snappy"}),
    (arrow_file, {"use_dictionary": False, "compression": "none"}),
    (arrow_file, {"write_page_checksum": True, "data_page_version": "2.0"}),
    (arrow_file, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
]


def survives(path):
    """Whether a file is read, or refused with its name."""
    try:
        read_parquet(path).rows()
    except InputError as error:
        refused = error
    else:
        return True
    assert str(refused).startswith(f"{path}: ")
    return False


def flipped(content, places, bits):
    for place, bit in zip(places, bits, strict=True):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        yield bytes(changed)


@pytest.mark.parametrize(("write", "options"), WRITERS)
def test_files_of_every_kind_are_read_as_polars_reads_them(tmp_path, write, options):
    write(path := tmp_path / "q.parquet", **options)
    assert read_parquet(path).equals(QUERIES)
    assert read_parquet(path, ["query", "other"]).equals(QUERIES.select("query"))
    with open_parquet(path) as table:
        batches = list(table.batches(5, ["query_id"]))
    assert [b.height for b in batches] == [5, 5, 2]
    assert pl.concat(batches).equals(QUERIES.select("query_id"))


@pytest.mark.parametrize(("write", "options"), WRITERS)
def test_flipped_bits_are_refused_or_read_and_end_no_process(tmp_path, capfd, write, options):
    write(path := tmp_path / "q.parquet", **options)
    content, draw = path.read_bytes(), random.Random(7)
    places = draw.sample(range(len(content)), 60)
    for changed in flipped(content, places, draw.choices(range(8), k=60)):
        path.write_bytes(changed)
        survives(path)
    assert capfd.readouterr().err == ""  # a panic would say so, even where it is caught


def test_files_cut_anywhere_are_refused(tmp_path):
    polars_file(path := tmp_path / "q.parquet")
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        assert not survives(path)


def test_a_page_that_does_not_fit_its_checksum_is_refused(tmp_path):
    arrow_file(path := tmp_path / "q.parquet", compression="none", use_dictionary=False,
               write_page_checksum=True)  # fmt: skip
    content = path.read_bytes()
    assert content.count(b"who wrote \xc3\xa9 7") == 1
    path.write_bytes(content.replace(b"who wrote \xc3\xa9 7", b"who wrote \xc3\xa9 8"))
    with refused("files.parquet"):
        read_parquet(path)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    table = pa.table({"query_id": pa.array([b"\xff\xfe"]).cast(pa.binary())})
    column = pa.Array.from_buffers(pa.string(), 1, table["query_id"].chunk(0).buffers())
    pq.write_table(pa.table({"query_id": column}), path := tmp_path / "q.parquet")
    with refused("files.parquet"):
        read_parquet(path)


def test_metadata_that_is_not_utf8_is_passed_over(tmp_path):
    table = pa.table({"query_id": ["a"]}).replace_schema_metadata({b"\xff": b"\xfe"})
    pq.write_table(table, path := tmp_path / "q.parquet")
    assert read_parquet(path)["query_id"].to_list() == ["a"]


def test_a_schema_nested_too_deep_is_refused(tmp_path):
    """Thrift's compact protocol by hand: a schema of 10,000 groups, each within the one before."""
    group = b"\x35\x02\x18\x01s\x15\x02\x00"  # repetition optional, name "s", one child
    leaf = b"\x15\x0c\x25\x02\x18\x01x\x00"  # type BYTE_ARRAY, repetition optional, name "x"
    elements = b"\xfc\x91\x4e" + group * 10_000 + leaf  # a list of 10,001 structs
    footer = b"\x15\x02\x19" + elements + b"\x16\x00\x19\x0c\x00"
    path = tmp_path / "q.parquet"
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
    with refused("files.parquet"):
        read_parquet(path)


def test_types_that_other_libraries_write_become_texts_and_numbers(tmp_path):
    table = pa.table(
        {
            "query_id": pa.array(["a", "b"]).dictionary_encode(),
            "numbers": pa.array([3, 4]).dictionary_encode(),
            "large": pa.array(["x", None], pa.large_string()),
            "view": pa.array(["x", "y"], pa.string_view()),
        }
    )
    pq.write_table(table, path := tmp_path / "q.parquet")
    read = read_parquet(path).with_columns(pl.col("query_id").cast(pl.String))
    assert json.loads(read.write_json()) == [
        {"query_id": "a", "numbers": 3, "large": "x", "view": "x"},
        {"query_id": "b", "numbers": 4, "large": None, "view": "y"},
    ]


def test_of_an_address_only_the_columns_that_are_asked_for_are_fetched():
    memory = io.BytesIO()
    rng = random.Random(0)
    texts = ["".join(rng.choices(ascii_letters, k=500)) for _ in range(2000)]
    frame = pl.DataFrame({"key": range(2000), "text": texts})
    frame.write_parquet(memory)
    content = memory.getvalue()
    fetched = []

    class File(AbstractBufferedFile):
        def _fetch_range(self, start, end):
            fetched.append(end - start)
            return content[start:end]

    class System(AbstractFileSystem):
        def info(self, path, **_):
            return {"name": path, "size": len(content), "type": "file"}

        def _open(self, path, mode="rb", **more):
            return File(self, path, mode, **more)

    fsspec.register_implementation("counting", System, clobber=True)
    assert read_parquet("counting://x", ["key"])["key"].to_list() == list(range(2000))
    assert sum(fetched) < len(content) / 5
    assert read_parquet("counting://x").equals(frame)
