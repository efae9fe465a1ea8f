"""A double of Lucene: a search engine in this process, for what does not depend on how passages are ranked."""

import polars as pl
import pytest

from engine import tables
from engine.retrieval import lucene
from engine.tables import DOC_ID, QUERY, QUERY_ID

_FILE = "_0.passages"  # as Lucene names files
_STOP_WORDS = frozenset(["a", "be", "is", "not", "of", "or", "the", "to", "what", "who"])


def _words(text):
    return set(text.lower().replace(".", " ").split()) - _STOP_WORDS


def index(batches, directory, language, *, threads):
    pl.concat(batch.select(DOC_ID, lucene.CONTENTS) for batch in batches).write_parquet(
        directory / _FILE
    )


def search(queries, directory, *, k, name, **_):
    """Passages by how many words of the query they have, those with none left out."""
    passages = [(d, _words(text)) for d, text in pl.read_parquet(directory / _FILE).iter_rows()]
    rows = []
    for query_id, query in queries.select(QUERY_ID, QUERY).iter_rows():
        common = [(len(_words(query) & words), doc_id) for doc_id, words in passages]
        hits = sorted((-count, doc_id) for count, doc_id in common if count)[:k]
        rows += [(query_id, d, i, -float(n), name) for i, (n, d) in enumerate(hits, 1)]
    return pl.DataFrame(rows, schema=tables.RUNS, orient="row")


@pytest.fixture
def without_java(monkeypatch):
    """BM25 by the double: each call of Lucene starts a JVM."""
    monkeypatch.setattr(lucene, "index", index)
    monkeypatch.setattr(lucene, "search_lucene", search)
