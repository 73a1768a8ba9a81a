"""Vec's conversions, memory access and masks against torch, per ISA."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess

import pytest
import torch

from jitmagic.platforms import is_arm
from jitmagic.runtime import toolchain

from .building import ARM, CXX, ISAS, cpu_flags, library, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "i8": torch.int8, "u8": torch.uint8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "b8": torch.bool,
    "bf16": torch.bfloat16, "f16": torch.float16,
}  # fmt: skip
MEMORY = ["f32", "f64", "i8", "i16", "i64", "b8", "bf16"]


def raw(t: torch.Tensor) -> torch.Tensor:
    """Return the bits of a half, so that NaNs compare; other tensors unchanged."""
    return t.view(torch.int16) if t.dtype in (torch.bfloat16, torch.float16) else t


def width(isa: str) -> int:
    return int(library("layout.cpp", isa).width())


def values_to_convert(source: str, target: str, isa: str) -> torch.Tensor:
    dtype = DTYPES[source]
    if dtype is torch.bool:
        return torch.tensor([True, False] * 40)
    if dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        if DTYPES[target].is_floating_point or target == "b8":
            return every
        return every[every.isfinite() & (every.abs() < 100)].abs()
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        ends = [info.min, info.min + 1, info.max - 1, info.max, 0, 1]
        return torch.tensor([*ends, *range(max(info.min, -100), 100)], dtype=dtype)
    if DTYPES[target].is_floating_point or target == "b8":
        bits = (
            torch.linspace(-(2**31), 2**31 - 1, 60000, dtype=torch.float64).long().to(torch.int32)
        )
        # the halfway points between neighbouring halves
        ties = torch.arange(0x33000000, 0x47900000, 0x800).to(torch.int32)
        x = torch.cat([bits.view(torch.float32), ties.view(torch.float32)])
        return x.to(dtype)
    top = 127 if target in ("i8", "u8") else 30000
    inside = torch.linspace(0.0 if target == "u8" else -top, top, 999, dtype=dtype)
    beyond = torch.tensor([math.inf, -math.inf, math.nan, 3e9, -3e9, 2.0**70], dtype=dtype)
    return inside if isa == ARM or is_arm() else torch.cat([inside, beyond])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", DTYPES)
def test_convert(isa: str, source: str) -> None:
    for target, dtype in DTYPES.items():
        x = values_to_convert(source, target, isa)
        want = x.to(dtype)
        if source == "f64" and target in ("bf16", "f16"):
            want = x.float().to(dtype)  # documented: through float
        for form in ("", "_scalar"):
            got = torch.empty_like(want)
            fn = getattr(library("layout.cpp", isa), f"convert_{source}_{target}{form}")
            fn(pointer(x), pointer(got), ctypes.c_int64(x.numel()))
            nans = (
                want.isnan() & got.isnan()
                if dtype.is_floating_point
                else torch.zeros_like(want, dtype=torch.bool)
            )
            bad = ((raw(got) != raw(want)) & ~nans).nonzero().flatten()
            assert bad.numel() == 0, (target, form, x[bad[:4]], got[bad[:4]], want[bad[:4]])


def sample(name: str, n: int) -> torch.Tensor:
    x = torch.arange(1, n + 1)
    return (x % 3 == 0) if name == "b8" else x.to(DTYPES[name])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", MEMORY)
def test_tails_touch_nothing_else(isa: str, name: str) -> None:
    n, lib = width(isa), library("layout.cpp", isa)
    fill = sample(name, 7)[5:6].clone()
    for count in range(n + 2):
        a, out = sample(name, n), sample(name, 40)[:1].repeat(2 * n + 4)
        getattr(lib, f"tail_{name}")(pointer(a), pointer(out), ctypes.c_int64(count), pointer(fill))
        valid = min(count, n)
        assert out[:n].equal(torch.cat([a[:valid], fill.repeat(n - valid)]))
        assert out[n : n + valid].equal(a[:valid])
        assert out[n + valid :].equal(sample(name, 1).repeat(n + 4 - valid))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", MEMORY)
def test_strided_gather_where_stream(isa: str, name: str) -> None:
    n, lib = width(isa), library("layout.cpp", isa)
    a = sample(name, 5 * n)
    out = torch.zeros(5 * n, dtype=a.dtype)
    getattr(lib, f"strided_{name}")(
        pointer(a), pointer(out), ctypes.c_int64(3), ctypes.c_int64(n - 1)
    )
    assert out[: 3 * (n - 1) : 3].equal(a[: 3 * (n - 1) : 3])
    assert not out[3 * (n - 1) :].any()
    index, keep = (
        torch.randperm(n, generator=torch.Generator().manual_seed(0)),
        torch.arange(n) % 2 == 0,
    )
    out = torch.zeros(2 * n, dtype=a.dtype)
    getattr(lib, f"gather_{name}")(pointer(a), pointer(index), pointer(keep), pointer(out))
    zero = torch.zeros(1, dtype=a.dtype)
    assert out[:n].equal(torch.where(keep, a[index], zero))
    assert out[n:].equal(torch.zeros(n, dtype=a.dtype).index_put((index[keep],), a[index[keep]]))
    b = a.flip(0).contiguous()
    out = torch.zeros(n, dtype=a.dtype)
    getattr(lib, f"where_{name}")(pointer(keep), pointer(a), pointer(b), pointer(out))
    assert out.equal(torch.where(keep, a[:n], b[:n]))
    getattr(lib, f"stream_{name}")(pointer(a), pointer(out))
    assert out.equal(a[:n])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", MEMORY)
def test_gather_and_scatter_of_masked_lanes(isa: str, name: str) -> None:
    """Masked lanes may be outside of memory; of two lanes at one address the last is stored."""
    n, lib = 2 * width(isa), library("layout.cpp", isa)
    a, fill, lane = sample(name, n), sample(name, 3)[2:], torch.arange(n)
    index = (lane * 5 + 3) % n // 2
    for keep in (lane >= 0, lane < 0, lane % 3 > 0, lane < n - 1, lane == n - 1):
        places = torch.where(keep, index, 1 << 44)
        out = torch.zeros(3 * n, dtype=a.dtype)
        given = pointer(a), pointer(places), pointer(keep), pointer(fill), pointer(out)
        getattr(lib, f"anywhere_{name}")(*given)
        wanted = torch.zeros(2, n, dtype=a.dtype)
        for i in lane.tolist():
            if keep[i]:
                wanted[0, index[i]] = a[i]
            wanted[1, index[i] if keep[i] else 0] = a[i]
        read = torch.where(keep, a[index], fill)
        assert raw(out).equal(raw(torch.cat([read, *wanted])))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", MEMORY)
def test_partial_blocks(isa: str, name: str) -> None:
    """Concatenated tensors are read block by block, from each tensor the lanes that it has
    there.
    """
    n, lib = width(isa), library("layout.cpp", isa)
    a, fill, lane = sample(name, 4 * n), sample(name, 3)[2:], torch.arange(4 * n)
    for first, last in (
        (0, 4 * n),
        (0, 0),
        (1, n - 1),
        (n // 2, 3 * n),
        (n - 1, n),
        (2 * n, 4 * n),
    ):
        keep = (first <= lane) & (lane < last)
        for count in (n, n - 1, 1, 3 * n):
            out = torch.zeros(6 * n, dtype=a.dtype)
            given = pointer(a), pointer(keep), pointer(fill), ctypes.c_int64(count), pointer(out)
            getattr(lib, f"part_{name}")(*given)
            wanted = [
                torch.where(mask, a[: len(mask)], fill)
                for mask in (keep[:n], (keep & (lane < count))[:n], keep & (lane < count))
            ]
            assert raw(out).equal(raw(torch.cat(wanted)))


KERNEL = """
#include <jitmagic/loop.h>
extern "C" void kernel(const float* x, const int64_t* at, float* y, int64_t end, int64_t stride) {{
    jm::steps<16>(end, [&](int64_t i, int64_t n) JM_BODY {{
        const auto mask = jm::lt(jm::iota<int64_t, 16>(i), jm::Vec<int64_t, 16>(end - 3));
        const auto index = jm::load<16>(at + i, n);
        auto sum = jm::load<16>(x + i, n);
        {accesses}
        jm::store(y + i, sum, n);
    }});
}}
"""
ACCESSES = {
    "part of a block": "sum = sum + jm::load_where(x + i + 1000 * {}, mask, 0.0f, n);",
    "rows": "sum = sum + jm::gather(x + 1000 * {}, index, n);",
    "rows that count": "sum = sum + jm::gather_where(x + 1000 * {}, index, mask, 0.0f, n);",
    "column": "sum = sum + jm::load_strided<16>(x + i * stride + {}, stride, n);",
    "rows written": "jm::scatter(y + 1000 * {}, index, sum, n);",
    "column written": "jm::store_strided(y + i * stride + {}, stride, sum, n);",
}


def _instructions(access: str, count: int) -> int:
    text = KERNEL.format(accesses="\n".join(access.format(number) for number in range(count)))
    command = [
        str(CXX),
        "-O3",
        "-std=c++17",
        "-ffp-contract=off",
        "-march=native",
        "-fno-unroll-loops",  # clang would unroll the loop around the accesses
        "-S",
        "-x",
        "c++",
    ]
    command += [f"-I{toolchain.header_folder()}", "-", "-o", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return sum(line.startswith("\t") and line[1] != "." for line in done.stdout.splitlines())


@pytest.mark.skipif("avx512bw" not in cpu_flags(), reason="lanes are read one by one")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers add theirs")
@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES.keys())
def test_partial_accesses_take_few_instructions(access: str) -> None:
    """A kernel may have fifty such accesses, and g++'s time grows with the instructions."""
    assert _instructions(access, 12) - _instructions(access, 2) < 10 * 30


@pytest.mark.parametrize("isa", ISAS)
def test_masks_and_iota(isa: str) -> None:
    n, lib = width(isa), library("layout.cpp", isa)
    lib.mask_bits.restype = lib.first_bits.restype = ctypes.c_uint64
    for pattern in (0, 1, 0b1010, (1 << n) - 1, 1 << (n - 1)):
        m = torch.tensor([bool(pattern >> i & 1) for i in range(n)])
        assert lib.mask_bits(pointer(m)) == pattern & ((1 << n) - 1)
        assert lib.mask_any_all(pointer(m)) == bool(m.any()) + 2 * bool(m.all())
    for count in (-1, 0, 1, n - 1, n, n + 5):
        assert lib.first_bits(ctypes.c_int64(count)) == (1 << min(max(count, 0), n)) - 1
    out = torch.empty(n, dtype=torch.int64)
    lib.iota_i64(ctypes.c_int64(2**40), pointer(out))
    assert out.equal(torch.arange(2**40, 2**40 + n))


@pytest.mark.parametrize("isa", ISAS)
def test_fma_rounds_once(isa: str) -> None:
    n = width(isa)
    a = torch.randn(n, generator=torch.Generator().manual_seed(0))
    b, c, out = 1 / a, -torch.ones(n), torch.empty(n)
    library("layout.cpp", isa).fma_f32(*map(pointer, (a, b, c, out)), ctypes.c_int64(n))
    assert out.equal((a.double() * b.double() - 1).float())
