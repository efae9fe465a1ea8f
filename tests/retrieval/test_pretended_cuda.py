"""The encoder on a pretended GPU."""

from dataclasses import replace

import numpy as np

from engine.machine import batching
from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import EncoderOptions, specify
from tests.pretended_cuda import pretended_cuda

TEXTS = [f"passage {i} of a few words " + "and more " * (i % 9) for i in range(24)]


def test_batches_of_mixed_lengths_stay_in_their_memory(monkeypatch):
    """87 MiB are the weights; a tenth is left to the allocator."""
    spec = replace(specify(EncoderOptions(dtype="float32")), memory=112 * 2**20)
    texts = [*TEXTS, *("many more words " * 40 for _ in range(3))]
    expected = Encoder(spec).encode(texts)
    halved, batches = [], []
    monkeypatch.setattr(batching, "free_cached_memory", lambda: halved.append(1))
    with pretended_cuda(memory=8 * 2**30) as gpu:
        encoder = Encoder(spec)
        forward = encoder._forward
        monkeypatch.setattr(
            encoder,
            "_forward",
            lambda ids, left_out: batches.append(len(ids)) or forward(ids, left_out),
        )
        gpu.reset()
        vectors = encoder.encode(texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert len(batches) > 1
    assert sum(batches) == len(texts)
    assert not halved
    assert gpu.peak <= spec.memory


def test_vectors_are_those_of_the_cpu_with_one_copy_and_one_wait_a_batch(monkeypatch):
    spec = replace(specify(EncoderOptions(dtype="float32")), batch_tokens=96)
    expected = Encoder(spec).encode(TEXTS)
    with pretended_cuda() as gpu:
        encoder = Encoder(spec)
        forward, batches = encoder._forward, []
        monkeypatch.setattr(
            encoder, "_forward", lambda *given: batches.append(1) or forward(*given)
        )
        gpu.reset()
        vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert len(batches) > 2
    waits = {site: n for (kind, site), n in gpu.sites.items() if kind == "synchronisation"}
    assert gpu.copies == len(batches)
    # One for the vectors. transformers looks at the mask of a padded batch.
    assert gpu.synchronisations == sum(waits.values()) <= 2 * len(batches)
    assert min(waits.values()) == len(batches)
