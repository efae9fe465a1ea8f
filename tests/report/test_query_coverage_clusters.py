"""Clusters of directions: planted ones are found, and the same on each run and with any threads."""

import subprocess
import sys

import numpy as np
import pytest

from engine.report.query_coverage import clusterings, nearest_of, unit


def cluster(vectors, count, *, seed):
    return clusterings(vectors, count, seed=seed)[0]


def planted(groups, each, dimensions=32, spread=0.3, seed=5):
    rng = np.random.default_rng(seed)
    middles = unit(rng.normal(size=(groups, dimensions)).astype(np.float32))
    noise = rng.normal(size=(groups, each, dimensions)) / np.sqrt(dimensions)
    return unit((middles[:, None] + spread * noise).reshape(-1, dimensions).astype(np.float32))


def test_planted_groups_are_found_and_similarities_are_cosines():
    vectors = planted(8, 25)
    found = cluster(vectors, 8, seed=0)
    groups = found.cluster.reshape(8, 25)
    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0])) == 8
    assert np.linalg.norm(found.centroids, axis=1) == pytest.approx(1)
    cosines = vectors.astype(np.float64) @ found.centroids.T.astype(np.float64)
    assert found.similarity == pytest.approx(cosines.max(axis=1))
    assert (found.cluster == cosines.argmax(axis=1)).all()


def test_the_clusters_of_the_highest_cosines_come_first():
    vectors = planted(40, 10, spread=2.0)
    found = clusterings(vectors, 9, seed=1)
    sums = [one.similarity.sum() for one in found]
    assert len(sums) == 10
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > sums[-1]
    one = clusterings(vectors, 9, seed=1, starts=1)  # the first starts are the same for any number
    assert any((one[0].centroids == other.centroids).all() for other in found)


def test_clusters_do_not_depend_on_the_length_of_vectors():
    vectors = planted(3, 20)
    scaled = vectors * np.linspace(0.1, 9, 60, dtype=np.float32)[:, None]
    assert (cluster(unit(scaled), 3, seed=0).cluster == cluster(vectors, 3, seed=0).cluster).all()
    assert (unit(np.zeros((2, 4), dtype=np.float32)) == 0).all()


def test_one_cluster_and_as_many_as_vectors(capfd):
    vectors = planted(3, 4)
    assert set(cluster(vectors, 1, seed=0).cluster) == {0}
    all_apart = cluster(vectors, 12, seed=0)
    assert sorted(all_apart.cluster) == list(range(12))
    assert all_apart.similarity == pytest.approx(1)
    assert len(cluster(vectors[:1], 1, seed=0).centroids) == 1
    assert capfd.readouterr() == ("", "")  # FAISS warns of few vectors, which are no fault here


def test_equal_vectors_give_fewer_clusters_and_none_is_empty():
    vectors = np.repeat(planted(1, 2), 5, axis=0)
    for count in (4, 10):
        found = cluster(vectors, count, seed=0)
        assert len(found.centroids) == 2
        assert set(found.cluster) == {0, 1}


def test_the_nearest_vector_is_that_of_the_highest_cosine():
    vectors = planted(5, 8)
    rows, cosines = nearest_of(vectors, planted(5, 8, seed=6))
    expected = planted(5, 8, seed=6).astype(np.float64) @ vectors.T.astype(np.float64)
    assert rows.tolist() == expected.argmax(axis=1).tolist()
    assert cosines == pytest.approx(expected.max(axis=1), abs=1e-6)


_SCRIPT = """
import hashlib
from tests.report.test_query_coverage_clusters import cluster, planted
found = cluster(planted(40, 30, 48, spread=1.5), 33, seed=3)
parts = (found.centroids, found.cluster, found.similarity)
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
"""


def test_clusters_are_identical_for_any_number_of_threads(monkeypatch):
    """Groups that run into each other: k-means decides many close calls."""
    digests = set()
    for threads in ("1", "4"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
        digests.add(subprocess.check_output([sys.executable, "-c", _SCRIPT], text=True))
    assert len(digests) == 1


def test_the_seed_decides_the_clusters_and_faiss_keeps_its_threads():
    import faiss

    vectors = planted(40, 10, spread=2.0)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(before + 1)
    one, again, other = (cluster(vectors, 9, seed=seed) for seed in (1, 1, 2))
    assert faiss.omp_get_max_threads() == before + 1
    faiss.omp_set_num_threads(before)
    assert (one.cluster == again.cluster).all()
    assert (one.centroids == again.centroids).all()
    assert (one.centroids != other.centroids).any()
