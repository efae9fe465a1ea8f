"""Samples of evaluations in shards, against the evaluations themselves."""

import pytest

from engine.inputs.files import InputFiles
from engine.report.planning.planner import take_sample
from engine.sources.io.files import write_parquet
from engine.sources.queries.buckets import buckets_of
from engine.sources.runs.read import write_run
from engine.tables import DOC_ID, QUERY, QUERY_ID, RUN
from tests.expected import refused
from tests.report.planning.test_planner import wide

QUERIES, K = 600, 8


@pytest.fixture
def files(tmp_path):
    whole = wide(queries=QUERIES, k=K)
    write_parquet(whole.queries, tmp_path / "queries.parquet")
    write_parquet(whole.corpus, tmp_path / "corpus.parquet")
    paths = []
    for name in ("run0", "run1"):
        paths.append(tmp_path / f"{name}.trec")
        write_run(whole.runs.filter(run=name), paths[-1])
    return InputFiles(
        queries=tmp_path / "queries.parquet", corpus=tmp_path / "corpus.parquet", run=tuple(paths)
    )


def test_a_sample_is_small_of_ranges_far_apart_and_scales_to_the_whole(files):
    sample = take_sample(files, k=K, pairs=1000)
    pairs = sample.inputs.runs.select(QUERY_ID, DOC_ID).n_unique()
    # Two runs whose lists overlap by half.
    every = wide(queries=QUERIES, k=K).runs.select(QUERY_ID, DOC_ID).n_unique()
    assert 100 <= pairs <= 500
    assert sample.queries == QUERIES
    assert round(pairs * sample.pairs) == every
    assert round(sample.inputs.queries.height * sample.lists) == QUERIES
    assert set(sample.inputs.corpus[DOC_ID]) == set(sample.inputs.runs[DOC_ID])
    # It is of whole ranges, far apart.
    spans = [span for span, _ in sample.spans]
    assert len(spans) == 16
    assert spans == sorted(spans)
    assert spans[-1][0] - spans[0][0] > 40_000
    ids = [query_id for _, of_span in sample.spans for query_id in of_span]
    assert sorted(ids) == sorted(sample.inputs.queries[QUERY_ID])
    table = wide(queries=QUERIES, k=K).queries
    for (low, high), of_span in sample.spans:
        buckets = buckets_of(table[QUERY])
        inside = {
            query_id
            for query_id, bucket in zip(table[QUERY_ID], buckets, strict=True)
            if low <= bucket < high
        }
        assert of_span == inside


def test_a_small_evaluation_is_its_own_sample(files):
    sample = take_sample(files, k=K, pairs=10**6)
    assert (sample.pairs, sample.lists) == (1, 1)
    expected = wide(queries=QUERIES, k=K).runs
    assert sample.inputs.runs.height == expected.height
    limited = take_sample(
        InputFiles(queries=files.queries, corpus=files.corpus, run=files.run, limit=20),
        k=K,
        pairs=10**6,
    )
    assert sorted(limited.inputs.queries[QUERY_ID]) == sorted(f"q{i}" for i in range(20))
    assert limited.inputs.runs[RUN].n_unique() == 2


def test_faults_are_those_of_the_files_that_were_given(files, tmp_path):
    lines = (tmp_path / "run1.trec").read_text().replace(" d1", " lost")
    (tmp_path / "run1.trec").write_text(lines)
    with refused("inputs.passage"):
        take_sample(files, k=K, pairs=10**6)
