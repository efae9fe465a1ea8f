"""Plans of shards: how large their units are."""

import pytest

from engine.evaluation.shard_plans import unit_sizes
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("actors", [1, 2, 64, 1000])
@pytest.mark.parametrize("total", [0, 1, 999, 10**5, 10**7, 10**10])
def test_every_actor_has_eight_units_and_no_first_one_is_large(total, actors, gpu):
    sizes = unit_sizes(total, actors=actors, gpu=gpu)
    assert 1 <= sizes.least <= sizes.first <= sizes.most
    assert sizes.most == 1 or sizes.most * 8 * actors <= total
    assert sizes.first <= (GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS)


def test_a_large_evaluation_begins_with_a_batch_of_a_processor_and_half_of_one_of_a_gpu():
    assert unit_sizes(10**10, actors=64, gpu=False).first == CPU_BATCH_TOKENS
    assert unit_sizes(10**10, actors=64, gpu=True).first == GPU_BATCH_TOKENS // 2
