"""Philox against the known answers that Random123 publishes, and the distributions drawn from
it.
"""

from __future__ import annotations

import ctypes

import pytest
import torch

from .building import CXX, ISAS, library, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

KNOWN = [  # kat_vectors of Random123, philox4x32 10: counter, key, result
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(isa: str, counter: list[int], key: list[int], want: list[int]) -> None:
    out = (ctypes.c_uint32 * 8)()
    fn = library("reductions.cpp", isa).philox_words
    fn((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), out)
    assert list(out) == want * 2


@pytest.mark.parametrize("isa", ISAS)
def test_uniform_range(isa: str) -> None:
    words = torch.tensor([0, 255, 256, 2**31, 2**32 - 1] * 7).to(torch.uint32)
    out = torch.empty(words.numel())
    pointers = [
        pointer(words),
        ctypes.c_int64(out.numel()),
        pointer(out),
    ]
    library("reductions.cpp", isa).uniforms(*pointers)
    assert out[:5].tolist() == [0.0, 0.0, 2.0**-24, 0.5, 1 - 2.0**-24]


@pytest.mark.parametrize("isa", ISAS)
def test_normals(isa: str) -> None:
    n = 2**17
    x, scalars = torch.empty(n), torch.empty(n)
    pointers = [pointer(t) for t in (x, scalars)]
    library("reductions.cpp", isa).normals(ctypes.c_uint64(2**40 + 7), ctypes.c_int64(n), *pointers)
    assert x.isfinite().all()
    torch.testing.assert_close(x, scalars, rtol=1e-5, atol=1e-6)
    assert abs(float(x.mean())) < 5 / n**0.5
    assert abs(float(x.var()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float((x.abs() < 1).float().mean()) - 0.682689) < 0.01
    assert x.unique().numel() > 0.9 * n
