"""The encoder on a pretended GPU."""

from dataclasses import replace

import numpy as np

from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import EncoderOptions, specify
from tests.pretended_cuda import pretended_cuda

TEXTS = [f"passage {i} of a few words " + "and more " * (i % 9) for i in range(24)]


def test_vectors_are_those_of_the_cpu_with_one_copy_and_one_wait_a_batch(monkeypatch):
    spec = replace(specify(EncoderOptions(dtype="float32")), batch_tokens=96)
    expected = Encoder(spec).encode(TEXTS)
    with pretended_cuda() as gpu:
        encoder = Encoder(spec)
        forward, batches = encoder._forward, []
        monkeypatch.setattr(encoder, "_forward", lambda ids: batches.append(1) or forward(ids))
        gpu.reset()
        vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert len(batches) > 2
    waits = {site: n for (kind, site), n in gpu.sites.items() if kind == "synchronisation"}
    assert gpu.copies == len(batches)
    # One for the vectors. transformers looks at the mask of a padded batch.
    assert gpu.synchronisations == sum(waits.values()) <= 2 * len(batches)
    assert min(waits.values()) == len(batches)
