"""Names of partitions and of indexes of corpora, which change with what they are made of."""

from __future__ import annotations

import hashlib
import json

from engine.errors import InputError
from engine.evaluation.inputs import InputFiles
from engine.sources.io.identity import identity
from engine.sources.io.locations import Location
from engine.sources.passages.read import scan_corpus


def key_of(files: InputFiles, k: int, pairs_per_shard: int, *, version: int) -> str:
    """The name of a partition: another one for other files or settings.

    Raises:
        InputError, OSError: a file cannot be opened.
    """
    content = {
        "version": version,
        "k": k,
        "pairs_per_shard": pairs_per_shard,
        "limit": files.limit,
        "skip_bad": files.skip_bad,
        "queries": identity(files.queries),
        "answers": None if files.answers is None else identity(files.answers),
        "need_answers": files.need_answers,
        "cluster": files.cluster,
        "corpus": None if files.corpus is None else identity(files.corpus),
        "runs": [identity(path) for path in files.run],
        "edits": None if files.edits is None else identity(files.edits),
        "tables": {name: identity(path) for name, path in files.tables.items()},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def corpus_key(corpus: Location) -> str:
    """The name of the index of a corpus.

    Raises:
        InputError: what is wrong with the corpus.
    """
    try:
        return identity(corpus)[:32]
    except (InputError, OSError):
        for _ in scan_corpus(corpus):  # says what is wrong with it
            pass
        raise
