import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.machine.batching import (
    Allowance,
    MemoryCost,
    cut_batches,
    is_out_of_memory,
    run_halving,
)
from tests.expected import as_expected

ROOT = Path(__file__).parent.parent.parent
COST = MemoryCost(per_row=10, per_token=2, per_pair=0.1)


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(50, 5000), st.integers(1, 1000))
def test_batches_hold_every_read_once_within_memory_and_tokens(lengths, memory, max_tokens):
    batches = cut_batches(lengths, cost=COST, memory=memory, max_tokens=max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)
    for batch, length in zip(batches, longest, strict=True):
        if len(batch) > 1:  # one read alone may exceed the budget: it is tried all the same
            assert COST.of(len(batch), length) <= memory
            assert len(batch) * length <= max_tokens


def test_out_of_memory_halves_and_isolates_what_cannot_fit():
    calls, halvings = [], []

    def forward(batch):
        calls.append(len(batch))
        if sum(batch) > 10:
            raise torch.OutOfMemoryError("CUDA")
        return [value * 2 for value in batch]

    got = run_halving(
        [4, 11, 3, 2, 5], forward, lambda value, why: (value, why), lambda: halvings.append(1)
    )
    isolated, why = got.pop(1)
    assert (isolated, got) == (11, [8, 6, 4, 10])
    as_expected(why)
    assert calls == [5, 2, 1, 1, 3]
    assert len(halvings) == 2


def test_a_true_allocation_failure_of_the_cpu_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_other_errors_are_passed_on():
    def forward(batch):
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        run_halving([1, 2], forward, lambda v, why: v, lambda: None)


def test_an_allowance_is_halved_recovers_and_tries_again_ever_more_rarely():
    allowance = Allowance(800)
    assert not allowance.went_well()
    allowance.ran_out()
    assert allowance.bytes == 400
    # by hand: patience was 2, and is 4 after the first failure
    assert [allowance.went_well() for _ in range(4)] == [False, False, False, True]
    assert allowance.bytes == 800
    assert not allowance.went_well()
    allowance.ran_out()
    allowance.ran_out()
    assert allowance.bytes == 200
    assert [allowance.went_well() for _ in range(16)] == [False] * 15 + [True]
    assert allowance.bytes == 400
    allowance.ran_out(least=300)
    assert allowance.bytes == 300
    allowance.ran_out(least=10_000)
    assert allowance.bytes == 800  # no more than the whole


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets a limit of glibc's")
def test_large_buffers_are_given_back_when_freed_whatever_was_freed_before():
    code = """
import sys
from engine.machine import batching
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
if sys.argv[1:]:
    batching.give_back_large_buffers()
before, pairs = resident(), []
large = bytearray(2**24)
del large
for _ in range(200):
    large = bytearray(2**19)
    large[::4096] = b"a" * 128  # each of its pages
    pairs.append((large, bytearray(2**12)))
del large
pairs = [small for _, small in pairs]
print(resident() - before)
"""
    how = {"capture_output": True, "text": True, "check": True, "cwd": ROOT}
    freed, back = (
        int(subprocess.run([sys.executable, "-c", code, *more], **how).stdout)
        for more in ((), ("back",))
    )
    assert back < 20 < 80 < freed
