"""Products with prepacked weights against torch's own, and which layers have them."""

import pytest
import torch

from engine.machine import device, prepacked

CPU = torch.device("cpu")


def model(dtype, bias):
    torch.manual_seed(7)
    layers = {
        "words": torch.nn.Embedding(70, 96),
        "inner": torch.nn.Sequential(torch.nn.Linear(96, 65, bias), torch.nn.Linear(65, 96, bias)),
        "head": torch.nn.Linear(96, 70, bias=False),
    }
    layers["head"].weight = layers["words"].weight
    return torch.nn.ModuleDict(layers).to(dtype).requires_grad_(False)


@pytest.mark.skipif(not device.has_bf16_arithmetic(), reason="nothing is prepacked in bf16")
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_bf16_are_the_same_to_the_bit(bias):
    plain, packed = model(torch.bfloat16, bias)["inner"], model(torch.bfloat16, bias)
    prepacked.prepack(packed)
    states = torch.randn(300, 96, dtype=torch.bfloat16)
    for rows in (1, 2, 6, 33, 256, 300):
        assert torch.equal(packed["inner"](states[:rows]), plain(states[:rows]))


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_fp32_are_those_of_torch_up_to_rounding(bias):
    plain, packed = model(torch.float32, bias)["inner"], model(torch.float32, bias)
    prepacked.prepack(packed)
    states = torch.randn(3, 300, 96)
    together = packed["inner"](states)
    torch.testing.assert_close(together, plain(states), rtol=1e-5, atol=1e-5)
    if device.is_slow_with_mkl():  # else rows are claimed nowhere
        for rows in (2, 6, 33, 256):
            assert torch.equal(packed["inner"](states[:, :rows]), together[:, :rows])


def test_weights_shared_with_an_embedding_are_not_copied():
    packed = model(torch.float32, bias=True)
    before = sum(p.numel() for p in packed.parameters())
    prepacked.prepack(packed)
    assert packed["head"].weight is packed["words"].weight
    assert all(type(part) is prepacked.Prepacked for part in packed["inner"])
    assert sum(p.numel() for p in packed.parameters()) == before


@pytest.mark.parametrize(
    ("vendor", "flags", "limit", "faster"),
    [
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", "", ("bfloat16", "float32")),
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", "AVX512_CORE", ("float32",)),
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", "AVX2", ()),
        ("AuthenticAMD", "avx2 avx512f", "", ("float32",)),
        ("AuthenticAMD", "avx2", "", ()),
        ("GenuineIntel", "avx2 avx512f amx_bf16", "", ("bfloat16",)),
        ("GenuineIntel", "avx2 avx512f", "", ()),
    ],
)
def test_weights_are_prepacked_where_it_is_faster(monkeypatch, vendor, flags, limit, faster):
    words = {"flags": [flags], "vendor_id": [vendor]}
    monkeypatch.setattr(device, "_processor", lambda name: words.get(name, []))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    found = ("bfloat16", "float32", "float16")
    found = tuple(d for d in found if prepacked.is_faster(CPU, getattr(torch, d)))
    assert found == faster
    assert not prepacked.is_faster(torch.device("cuda"), torch.bfloat16)
