"""Dense retrieval against brute force over sentence-transformers' vectors, for any division into shards."""

import itertools
import json
import os
import random
import shutil
from functools import partial

import numpy as np
import polars as pl
import pytest
import ray

from engine import tables
from engine.machine import device
from engine.machine.nodes import Needs
from engine.machine.pool import Pool, PoolSettings, decide
from engine.messages.errors import EncodeError, InputError
from engine.retrieval import dense, distribute, encode, flat, manifest
from engine.retrieval.encoders import EncoderOptions, specify
from engine.sources.articles.read import read_source
from engine.sources.bundled import wikipedia_dump
from engine.sources.passages.cut import passages
from engine.sources.passages.read import scan_corpus, split_corpus
from engine.tables import DOC_ID, QUERY_ID
from tests.expected import as_expected, refused
from tests.retrieval import search_actors
from tests.retrieval.tiny_encoder import WORDS, configure, save_tiny_encoder

K = 7


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("tiny-encoder"))


@pytest.fixture(scope="module")
def spec(tiny):
    return specify(EncoderOptions(str(tiny), dtype="float32"), threads=1)


def search(directory, queries, *, block=None, **options):
    return dense.search(directory, queries, dense.SearchOptions(**options), block=block)


def texts(count, seed, low=1, high=30):
    draw = random.Random(seed)
    return [
        " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(low, high)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def corpus():
    """300 passages, 40 of them the same text: equal scores."""
    written = texts(260, 1) + ["w5 w6 w7"] * 40
    random.Random(3).shuffle(written)
    return pl.DataFrame(
        {
            "doc_id": [f"d{i}" for i in range(len(written))],
            "title": [f"w{i % 3}" if i % 4 else "" for i in range(len(written))],
            "text": written,
            "article_id": ["a"] * len(written),
        },
        schema=tables.CORPUS,
    )


@pytest.fixture(scope="module")
def queries():
    asked = [*texts(12, 2, high=6), "w5 w6 w7"]
    return pl.DataFrame({"query_id": [f"q{i}" for i in range(len(asked))], "query": asked})


def build(corpus, directory, spec, *, step=50, storage="fp32", factory=None, **build_options):
    options = dense.IndexOptions(storage=storage, factory=factory, actors=0)
    return dense.build_index(
        lambda: corpus.iter_slices(step), directory, spec, options, **build_options
    )


@pytest.fixture(scope="module")
def index(corpus, spec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("dense") / "index"
    build(corpus, directory, spec, shard=64)
    return directory


def brute_force(encoder, corpus, queries, k):
    """Lists of (document, score) by a NumPy product over sentence-transformers' vectors."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder), device="cpu")
    passages = [f"{title} {text}" if title else text for _, title, text, _ in corpus.iter_rows()]
    vectors, asked = model.encode(passages), model.encode(queries["query"].to_list())
    scores = asked.astype(np.float64) @ vectors.astype(np.float64).T
    found = {}
    for query_id, row in zip(queries["query_id"], scores, strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i], corpus["doc_id"][i]))
        found[query_id] = [(corpus["doc_id"][i], row[i]) for i in order[:k]]
    return found


def assert_same_but_for_ties(run, reference, corpus, tolerance=1e-6):
    """Rank by rank the same document, or one whose score does not differ from it."""
    for query_id, ours in run.group_by(QUERY_ID, maintain_order=True):
        theirs = reference[query_id[0]]
        assert np.allclose(ours["score"], [score for _, score in theirs], atol=tolerance)
        scores = dict(theirs)
        for (doc_id, score), mine in zip(theirs, ours[DOC_ID], strict=True):
            if mine != doc_id:
                assert abs(scores.get(mine, theirs[-1][1]) - score) <= tolerance


def test_the_same_lists_as_brute_force_over_sentence_transformers(index, tiny, corpus, queries):
    run = search(index, queries, k=K)
    assert run.columns == list(tables.RUNS)
    assert_same_but_for_ties(run, brute_force(tiny, corpus, queries, K), corpus)


def test_the_bundled_encoder_gives_sentence_transformers_vectors(tmp_path):
    from sentence_transformers import SentenceTransformer

    from engine.retrieval.encode import passage_texts
    from engine.retrieval.encoder import Encoder

    bundled = specify(EncoderOptions(dtype="float32"))
    assert bundled.text.max_tokens == 256
    articles = itertools.islice(read_source(wikipedia_dump()), 3)
    written = passage_texts(passages(articles).head(16), bundled.text)
    assert len(written) == 16
    ours = Encoder(bundled).encode([*written, "", "long " * 400])
    theirs = SentenceTransformer(bundled.path, device="cpu").encode([*written, "", "long " * 400])
    assert np.abs(ours - theirs).max() < 1e-6


def test_lists_are_the_same_for_any_size_of_shards_and_blocks(
    index, corpus, queries, spec, tmp_path
):
    """Bit for bit over the same vectors: those from an encoder differ in their last bit with their batch."""
    vector_of = {}
    for block in dense.read_blocks(index, manifest.read(index)):
        vector_of |= dict(zip(block.doc_ids, block.vectors, strict=True))

    def copied(given, count, spec, storage):
        for shard in (shard for part in given for shard in part()):
            vectors = np.stack([vector_of[doc_id] for doc_id in shard.doc_ids])
            yield encode.EncodedShard(shard.key, shard.doc_ids, vectors)

    whole = search(index, queries, k=K)
    for size in (1, 37, 1000):
        build(corpus, tmp_path / "i", spec, step=300, shard=size, executor=copied)
        for block in (1, 90, 1000):
            assert search(tmp_path / "i", queries, k=K, block=block).equals(whole)


def test_equal_scores_are_ordered_by_document_id_and_k_may_exceed_the_corpus(
    index, corpus, queries
):
    """The forty equal passages, with their titles: the best of the last query, in order of ids."""
    best = search(index, queries.tail(1), k=10_000)
    assert best.height == best["rank"].max() == corpus.height
    tied = best.group_by("score", maintain_order=True).agg(DOC_ID)
    assert tied[DOC_ID].list.len().max() > 3
    assert all(ids == sorted(ids) for ids in tied[DOC_ID].to_list())


def recall(run, exact):
    """The share of the passages of exact lists that a run lists for the same queries."""
    return exact.join(run, on=["query_id", DOC_ID], how="semi").height / exact.height


def test_half_precision_takes_half_the_space_and_finds_nearly_the_same(
    index, corpus, queries, spec, tmp_path
):
    build(corpus, tmp_path / "half", spec, shard=64, storage="fp16")
    half = search(tmp_path / "half", queries, k=K)
    assert recall(half, search(index, queries, k=K)) > 0.9
    block = next(dense.read_blocks(tmp_path / "half", manifest.read(tmp_path / "half")))
    assert np.array_equal(block.vectors, block.vectors.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("factory", ["IVF4,Flat", "HNSW16", "PQ8x4"])
def test_approximate_search_by_a_factory_string(factory, corpus, queries, spec, tmp_path):
    build(corpus, tmp_path / "i", spec, shard=64, factory=factory)
    exact = search(tmp_path / "i", queries, k=K)
    found = search(tmp_path / "i", queries, k=K, approximate="")
    assert 0.3 < recall(found, exact) <= 1
    if factory.startswith("IVF"):
        all_cells = search(tmp_path / "i", queries, k=K, approximate="nprobe=4")
        assert np.abs(all_cells["score"] - exact["score"]).max() < 1e-5
        with refused("index.parameters", text=False):  # it has FAISS's words
            search(tmp_path / "i", queries, k=K, approximate="nonsense=4")


def test_factory_strings_are_checked_before_anything_is_encoded(corpus, spec, tmp_path):
    with refused("index.factory", text=False) as unknown:  # these have FAISS's words
        build(corpus, tmp_path / "i", spec, factory="XYZ", executor=never)
    with refused("index.factory", text=False) as untrained:
        build(corpus, tmp_path / "i", spec, factory="IVF500,Flat")
    as_expected([one.value.problem.partition(" (")[0] for one in (unknown, untrained)])


def never(*_):
    raise AssertionError("something was encoded")


class Counting:
    """Encodes in this process, and fails at the shard of a number."""

    def __init__(self, fail_at=None):
        self.fail_at = fail_at
        self.keys = []

    def __call__(self, parts, count, spec, storage):
        for done in encode.execute(parts, count, spec, storage):
            if len(self.keys) == self.fail_at:
                raise EncodeError("killed")
            self.keys.append(done.key)
            yield done


def test_a_killed_build_resumes_and_encodes_no_shard_twice(corpus, queries, spec, tmp_path, index):
    first, second = Counting(fail_at=2), Counting()
    with pytest.raises(EncodeError):
        build(corpus, tmp_path / "i", spec, shard=64, executor=first)
    with refused("index.unfinished"):
        search(tmp_path / "i", queries, k=K)
    build(corpus, tmp_path / "i", spec, shard=64, executor=second)
    assert len(first.keys) == 2
    assert len(second.keys) == 3  # five shards of 64 hold 300 passages
    assert not set(first.keys) & set(second.keys)
    assert search(tmp_path / "i", queries, k=K).equals(search(index, queries, k=K))
    build(corpus, tmp_path / "i", spec, shard=64, executor=never)


def test_a_corpus_that_grew_costs_only_new_shards_and_unused_files_are_removed(
    corpus, spec, tmp_path
):
    build(corpus.head(128), tmp_path / "i", spec, shard=64)
    more = Counting()
    build(corpus.head(200), tmp_path / "i", spec, shard=64, executor=more)
    assert len(more.keys) == 2
    build(corpus.head(64), tmp_path / "i", spec, shard=64, executor=never)
    assert len(list((tmp_path / "i" / "shards").iterdir())) == 1


def test_a_corpus_that_changes_between_the_passes_is_refused(corpus, spec, tmp_path):
    passes = iter([corpus, corpus.reverse()])
    with refused("index.stale"):
        options = dense.IndexOptions(actors=0)
        dense.build_index(lambda: iter([next(passes)]), tmp_path / "i", spec, options, shard=64)
    assert not (tmp_path / "i" / manifest.FILE).exists()


def test_another_encoder_is_refused(corpus, queries, tmp_path, spec, tiny):
    other = save_tiny_encoder(tmp_path / "encoder", seed=8)
    build(corpus, tmp_path / "i", specify(EncoderOptions(str(other), dtype="float32")), shard=64)
    moved = shutil.copytree(other, tmp_path / "moved")
    there = search(tmp_path / "i", queries, k=K, encoder=str(moved))
    assert there.equals(search(tmp_path / "i", queries, k=K))
    with refused("encoder.other"):
        search(tmp_path / "i", queries, k=K, encoder=str(tiny))
    save_tiny_encoder(other, seed=9)
    with refused("encoder.other"):
        search(tmp_path / "i", queries, k=K)


def test_an_index_of_before_cosines_is_refused_and_built_again(corpus, queries, tmp_path):
    encoder = save_tiny_encoder(tmp_path / "encoder", normalize=False)
    build(corpus, tmp_path / "i", specify(EncoderOptions(str(encoder), dtype="float32")))
    configure(encoder, similarity_fn_name="cosine")
    spec = specify(EncoderOptions(str(encoder), dtype="float32"))
    file = tmp_path / "i" / manifest.FILE
    index = json.loads(file.read_text())
    del index["sha256"]
    assert index["settings"]["encoder"].pop("scaled") is False
    index["settings"]["encoder"]["digest"] = spec.digest  # as if the files had said so then
    file.write_text(json.dumps(index))
    with refused("index.similarity"):
        search(tmp_path / "i", queries, k=K)
    build(corpus, tmp_path / "i", spec)
    assert search(tmp_path / "i", queries, k=K)["score"].is_between(-1.00001, 1.00001).all()
    # Whoever asks for inner products has them.
    asked = specify(EncoderOptions(str(encoder), preset="mean", dtype="float32"))
    build(corpus, tmp_path / "i", asked)
    assert not search(tmp_path / "i", queries, k=K)["score"].is_between(-1.00001, 1.00001).all()


def test_an_index_of_one_vector_is_found(corpus, spec, tmp_path):
    alike = corpus.with_columns(pl.lit("").alias("title"), pl.lit("w5").alias("text"))
    for several, expected in ((alike, True), (corpus, False), (corpus.head(1), False)):
        found = build(several, tmp_path / "i", spec, shard=64)
        assert dense.is_constant(tmp_path / "i", found) is expected


@pytest.mark.parametrize(
    ("lengths", "ratio"), [((1, 1, 1), 1), ((1, 0, 40), 40), ((0.5, 2, 1), 4), ((0, 0, 0), 1)]
)
def test_how_much_the_lengths_of_vectors_differ(corpus, spec, tmp_path, lengths, ratio):
    def executor(parts, count, spec, storage):
        for shard, length in zip(parts[0](), lengths, strict=True):
            vectors = np.zeros((1, spec.dimensions), np.float32)
            vectors[0, 1] = -length
            yield encode.EncodedShard(shard.key, shard.doc_ids, vectors)

    found = build(corpus.head(3), tmp_path / "i", spec, shard=1, executor=executor)
    assert dense.length_ratio(tmp_path / "i", found) == pytest.approx(ratio)


@pytest.mark.parametrize("approximate", [None, ""], ids=["exact", "approximate"])
def test_a_query_without_direction_has_no_results(
    corpus, queries, spec, tmp_path, monkeypatch, approximate
):
    build(corpus, tmp_path / "i", spec, factory="Flat")
    before = search(tmp_path / "i", queries, k=K, approximate=approximate)
    given = encode.queries

    def with_zeros(texts, spec):
        vectors = given(texts, spec)
        vectors[1] = 0
        return vectors

    monkeypatch.setattr(encode, "queries", with_zeros)
    found = search(tmp_path / "i", queries, k=K, approximate=approximate)
    assert found.equals(before.filter(pl.col(QUERY_ID) != "q1"))


def test_manifests_describe_an_index(index, corpus, tmp_path):
    found = manifest.read(index)
    assert (found.kind, found.passages) == ("dense", corpus.height)
    assert found.settings["encoder"]["text"]["pooling"] == "mean"
    with refused("index.corpus"):
        manifest.require_corpus(found, "0" * 64, directory=index, corpus="c.parquet")
    manifest.require_corpus(found, found.corpus, directory=index, corpus="c.parquet")
    (tmp_path / manifest.FILE).write_text(json.dumps({"kind": "bm25", "passages": 3}))
    with refused("index.manifest"):
        manifest.read(tmp_path)


def test_a_broken_shard_is_named(corpus, queries, spec, tmp_path):
    build(corpus, tmp_path / "i", spec, shard=64)
    file = sorted((tmp_path / "i" / "shards").iterdir())[0]
    file.write_bytes(file.read_bytes()[:100])
    with refused("index.shard", path=file, text=False):
        search(tmp_path / "i", queries, k=K)


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_no_flipped_bit_of_a_shard_gives_other_vectors(tmp_path, storage):
    (tmp_path / "shards").mkdir()
    vectors = np.random.default_rng(0).standard_normal((9, 8)).astype(encode.TYPES[storage])
    encode.write_shard(tmp_path, encode.EncodedShard("k", [f"d{i}" for i in range(9)], vectors))
    path = encode.shard_path(tmp_path, "k")
    content, refused = path.read_bytes(), 0
    for at in range(0, len(content), 3):
        flipped = content[at] ^ (1 << at % 8)
        path.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
        try:
            block = encode.read_shards(tmp_path, ["k"], storage, 8)
        except InputError:
            refused += 1
        else:
            np.testing.assert_array_equal(block.vectors, vectors.astype(np.float32))
            assert block.doc_ids.to_list() == [f"d{i}" for i in range(9)]
    assert refused > len(content) / 6


def test_a_changed_approximate_index_is_named_and_built_again(corpus, queries, spec, tmp_path):
    def found():
        return search(tmp_path / "i", queries, k=K, approximate="")

    build(corpus, tmp_path / "i", spec, factory="HNSW16")
    expected, (file,) = found(), (tmp_path / "i").glob("*.faiss")
    content = file.read_bytes()
    for damage in (content[:-9], b"", content[:5000] + b"\x01" + content[5001:]):
        file.write_bytes(damage)
        with refused("files.unreadable", path=file, text=False) as caught:
            found()
        as_expected(caught.value.problem)
    file.unlink()
    with refused("index.exact"):
        found()
    file.write_bytes(content[:-9])
    build(corpus, tmp_path / "i", spec, factory="HNSW16", executor=never)
    assert found().equals(expected)
    described = tmp_path / "i" / manifest.FILE
    described.write_text(described.read_text().replace('"passages": 300', '"passages": 200'))
    with refused("index.unreadable"):
        found()


def test_other_files_are_never_overwritten(corpus, spec, tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with refused("index.absent"):
        build(corpus, tmp_path, spec, executor=never)


class DyingActor(distribute.EncoderActor):
    """Dies once, at its first shard, as a process does that the system kills."""

    def __call__(self, batch):
        marker = os.path.join(os.environ["ERAG_CACHE"], "died")
        if not os.path.exists(marker):
            open(marker, "w").close()
            os._exit(9)
        return super().__call__(batch)


def on_ray(actor_class):
    pool = decide(PoolSettings(actors=1), 2**30)
    return partial(distribute.execute, pool=pool, actor_class=actor_class)


@pytest.mark.parametrize("layout", ["frames", "parquet"])
def test_actors_on_ray_give_the_same_index_though_one_dies(
    layout, ray_session, index, corpus, queries, spec, tmp_path, monkeypatch
):
    """Of Parquet, in three files, the driver reads nothing but in its first pass, and actors what is missing."""
    given, driver_reads = encode.Part.__call__, []
    spied = lambda part: driver_reads.append(part) or given(part)  # noqa: E731
    monkeypatch.setattr(encode.Part, "__call__", spied)
    options = {"shard": 64, "executor": on_ray(DyingActor)}
    if layout == "frames":
        made = build(corpus, tmp_path / "i", spec, **options)
    else:
        (tmp_path / "c").mkdir()
        for first in (0, 100, 230):
            rows = corpus.slice(first, {0: 100, 100: 130}.get(first))
            rows.write_parquet(tmp_path / "c" / f"{first:03}.parquet", row_group_size=30)
        (tmp_path / "i" / "shards").mkdir(parents=True)
        (tmp_path / "i" / manifest.UNFINISHED).touch()
        kept = encode.shard_path(tmp_path / "i", manifest.read(index).settings["shards"][1])
        shutil.copy(index / "shards" / kept.name, kept)
        scan, split = partial(scan_corpus, tmp_path / "c"), partial(split_corpus, tmp_path / "c")
        made = dense.build_index(scan, tmp_path / "i", spec, split=split, **options)
    assert bool(driver_reads) == (layout == "frames")
    assert os.path.exists(os.path.join(os.environ["ERAG_CACHE"], "died"))
    assert made == manifest.read(index)
    for name in made.settings["shards"]:
        ours, theirs = (encode.shard_path(folder, name) for folder in (tmp_path / "i", index))
        assert ours.read_bytes() == theirs.read_bytes()


class DeskKiller(distribute.EncoderActor):
    """Kills the desk's process after its first shard; Ray starts it again, empty."""

    def __call__(self, batch):
        encoded = super().__call__(batch)
        marker = os.path.join(os.environ["ERAG_CACHE"], "killed")
        if not os.path.exists(marker):
            open(marker, "w").close()
            ray.kill(self._desk, no_restart=False)
        return encoded


def test_a_lost_desk_loses_no_shard(ray_session, corpus, queries, spec, tmp_path):
    made = build(corpus, tmp_path / "i", spec, shard=32, executor=on_ray(DeskKiller))
    assert made == build(corpus, tmp_path / "undisturbed", spec, shard=32)
    found, expected = (search(tmp_path / name, queries, k=K) for name in ("i", "undisturbed"))
    assert found.equals(expected)


class EncodingActor(search_actors.Actor):
    """As they are, but for the GPU."""

    def encode(self, texts):
        return distribute.SearchActor.encode(self, texts)


@pytest.mark.parametrize(
    "actor",
    [search_actors.Actor, pytest.param(EncodingActor, marks=pytest.mark.slow)],
    ids=["made up", "encoder"],
)
def test_several_gpus_encode_and_search_on_actors_and_find_the_same(
    actor, ray_session, index, queries, spec, monkeypatch
):
    """Three parts of the queries, and five blocks."""
    from engine.retrieval import encoder

    assert spec.dimensions == 32
    for module in (encode, distribute):
        monkeypatch.setattr(module, "SHARD", 5)
    if actor is search_actors.Actor:
        made_up = search_actors.vectors_of
        monkeypatch.setattr(encoder.Encoder, "queries", lambda self, texts: made_up(texts))
    whole = search(index, queries, k=K, block=64)
    asked = []

    def pool_for(spec, parts):
        asked.append(parts)
        return Pool(2, 2, 2, Needs(0.0, 0.0, 0, None))

    monkeypatch.setattr(device, "gpu_count", lambda: 2)
    monkeypatch.setattr(flat, "is_gpu_build", lambda: True)
    monkeypatch.setattr(flat, "gpu_count", lambda: 2)
    monkeypatch.setattr(distribute, "pool_for", pool_for)
    monkeypatch.setattr(distribute, "SearchActor", actor)
    monkeypatch.setattr(encode, "queries", never)
    monkeypatch.setattr(flat, "on_cpu", never)
    assert search(index, queries, k=K, block=64).equals(whole)
    assert asked == [5]


def test_one_piece_of_work_starts_no_actors(index, queries, monkeypatch):
    monkeypatch.setattr(device, "gpu_count", lambda: 2)
    monkeypatch.setattr(distribute, "pool_for", never)
    assert search(index, queries, k=K).height == K * queries.height


@pytest.mark.slow
def test_an_error_in_the_second_pass_over_the_corpus_is_reported(
    ray_session, corpus, spec, tmp_path
):
    passes = iter([None, InputError("broken JSON", "mend it", path="c.jsonl", line=7)])

    def scan():
        problem = next(passes)
        yield corpus.head(64)
        if problem:
            raise problem
        yield corpus.slice(64)

    with pytest.raises(InputError, match="c.jsonl:7: broken JSON"):
        dense.build_index(
            scan, tmp_path / "i", spec, shard=64, executor=on_ray(distribute.EncoderActor)
        )
