"""Every pointwise operation, vector and scalar, per ISA.

Exact ones against torch bit by bit, approximated ones against fp64 in units of the last place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch

from jitmagic.operators import SCALARS

from .building import ARM, CXX, ISAS, library, pointer

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

TORCH = {
    "f32": torch.float32, "f64": torch.float64, "i8": torch.int8, "u8": torch.uint8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "b8": torch.bool,
}  # fmt: skip


def call(isa: str, name: str, dtype: str, *args: torch.Tensor) -> torch.Tensor:
    row = SCALARS.get(name.removesuffix("_scalar"))
    result = torch.bool if row is not None and row.boolean else TORCH[dtype]
    out = torch.empty(args[0].numel(), dtype=result)
    symbol = f"{name.removesuffix('_scalar')}_{dtype}" + ("_scalar" if "_scalar" in name else "")
    pointers = [pointer(t) for t in (*args, out)]
    getattr(library("pointwise.cpp", isa), symbol)(*pointers, ctypes.c_int64(out.numel()))
    return out


def specials(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    base = [
        0.0,
        tiny,
        tiny / 2,
        tiny * info.eps,
        1.0,
        1 - info.eps / 2,
        1 + info.eps,
        0.5,
        1.5,
        2.5,
        2.0,
        3.0,
    ]
    base += [
        88.5,
        88.8,
        89.5,
        103.5,
        104.5,
        127.5,
        128.0,
        150.0,
        709.5,
        710.5,
        746.0,
        1e5,
        1.1e5,
        1e30,
    ]
    base += [
        info.max,
        float("inf"),
        float("nan"),
        10.0,
        20.0,
        0.97,
        3.95,
        2**23 + 1.0,
        7.0,
        16777216.0,
    ]
    positive = torch.tensor(base, dtype=torch.float64).to(dtype)
    return torch.cat([positive, -positive])


def pairs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = values.numel()
    return values.repeat_interleave(n).contiguous(), values.repeat(n).contiguous()


def integers(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    near = [v for v in range(-9, 70) if info.min <= v <= info.max]
    return torch.tensor([*near, info.min, info.min + 1, info.max, info.max - 1], dtype=dtype)


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    bits = (
        {4: torch.int32, 8: torch.int64}.get(want.element_size())
        if want.is_floating_point()
        else None
    )
    if bits is None:
        equal = got == want
    else:
        equal = (got.view(bits) == want.view(bits)) | (got.isnan() & want.isnan())
    bad = (~equal).nonzero().flatten()
    assert bad.numel() == 0, (
        f"{what}: {bad.numel()} differ, first {got[bad[:4]]} want {want[bad[:4]]}"
    )


def rounded_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return the correctly rounded root: torch's vectorised square root of double is not."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.sqrt(x.numpy()))


EXACT_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "relu": torch.relu,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "signbit": torch.signbit, "square": torch.square, "logical_not": torch.logical_not,
}  # fmt: skip
EXACT_REAL_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrt": lambda x: rounded_sqrt(x), "reciprocal": torch.reciprocal, "frac": torch.frac,
    "rsqrt": lambda x: 1 / rounded_sqrt(x),
}  # fmt: skip
EXACT_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "minimum": torch.minimum,
    "maximum": torch.maximum, "fmin": torch.fmin, "fmax": torch.fmax, "eq": torch.eq,
    "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}  # fmt: skip
DIVISION: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floordiv": torch.floor_divide, "remainder": torch.remainder, "fmod": torch.fmod,
}  # fmt: skip
BITS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
}  # fmt: skip


def both(name: str) -> tuple[str, str]:
    return name, f"{name}_scalar"


def zeros_may_differ(name: str, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Allow either zero for min and max of 0 and -0, as torch does."""
    if name in ("minimum", "maximum", "fmin", "fmax", "relu") and want.is_floating_point():
        return torch.where((got == 0) & (want == 0), want, got)
    return got


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exact_real(isa: str, dtype: str) -> None:
    x = specials(TORCH[dtype])
    for name, fn in {**EXACT_UNARY, **EXACT_REAL_UNARY}.items():
        for form in both(name):
            got = zeros_may_differ(name, call(isa, form, dtype, x), want := fn(x))
            if name in ("round", "frac"):  # torch drops the sign of some zeros
                got, want = got + 0.0, want + 0.0
            assert_same(got, want, f"{form} {dtype}")
    a, b = pairs(x)
    more: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "truediv": torch.true_divide, "copysign": torch.copysign, "nextafter": torch.nextafter,
    }  # fmt: skip
    # Where a / b overflows, torch's fmod gives NaN on contiguous tensors; the header gives the
    # remainder.
    exact = ~((a / b).isinf() & a.isfinite() & (b != 0))
    for name, fn2 in {**EXACT_BINARY, **more, **DIVISION}.items():
        keep = exact if name in DIVISION else torch.ones_like(exact)
        for form in both(name):
            got = zeros_may_differ(name, call(isa, form, dtype, a, b), fn2(a, b))
            assert_same(got[keep], fn2(a, b)[keep], f"{form} {dtype}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "i64"])
def test_exact_integers(isa: str, dtype: str) -> None:
    x = integers(TORCH[dtype])
    a, b = pairs(x)
    whole = {"isnan", "isinf", "isfinite"}
    for name, fn in EXACT_UNARY.items():
        for form in both(name):
            want = fn(x.float()) if name in whole else fn(x)
            assert_same(call(isa, form, dtype, x), want, f"{form} {dtype}")
    shifts = {"lshift": torch.bitwise_left_shift, "rshift": torch.bitwise_right_shift}
    for name, fn2 in {**EXACT_BINARY, **BITS, **shifts}.items():
        for form in both(name):
            if name in shifts and dtype == "u8":
                continue  # checked below: torch's vectorised shift of uint8 is its own
            assert_same(call(isa, form, dtype, a, b), fn2(a, b), f"{form} {dtype}")
    valid = (b != 0) & ~((a == torch.iinfo(a.dtype).min) & (b == -1))
    for name, fn2 in DIVISION.items():
        for form in both(name):
            got = call(isa, form, dtype, a, b)
            assert_same(got[valid], fn2(a[valid], b[valid]), f"{form} {dtype}")
            assert not got[b == 0].any(), f"{form}: division by zero must give 0"
    for form in both("pow"):
        powers = b >= 0
        got = call(isa, form, dtype, a, b)
        assert_same(got[powers], torch.pow(a[powers], b[powers]), f"{form} {dtype}")


@pytest.mark.parametrize("isa", ISAS)
def test_shift_counts_out_of_range(isa: str) -> None:
    a = torch.tensor([255, 255, 1, 128, 7, 255], dtype=torch.uint8)
    b = torch.tensor([8, 200, 7, 7, 0, 4], dtype=torch.uint8)
    for form in both("lshift"):
        assert call(isa, form, "u8", a, b).tolist() == [0, 0, 128, 0, 7, 240]
    for form in both("rshift"):
        assert call(isa, form, "u8", a, b).tolist() == [0, 0, 0, 1, 7, 15]


@pytest.mark.parametrize("isa", ISAS)
def test_bool(isa: str) -> None:
    a, b = pairs(torch.tensor([False, True]).repeat(10))
    for name in ("add", "mul", "logical_and", "eq", "lt", *BITS):
        want = {**EXACT_BINARY, **BITS}[name](a, b)
        for form in both(name):
            assert_same(call(isa, form, "b8", a, b), want, form)
    for form in both("bitwise_not"):
        assert_same(call(isa, form, "b8", a), ~a, form)


# --- approximated functions ---------------------------------------------------------------------

ULPS = {row.name: row.ulp for row in SCALARS.values() if row.arity == 1 and row.ulp}


def floats_everywhere(n: int) -> torch.Tensor:
    """Return floats evenly over the bit patterns, so over the exponents, plus dense in curved
    regions.
    """
    bits = torch.linspace(-(2**31), 2**31 - 1, n, dtype=torch.float64).long().to(torch.int32)
    generator = torch.Generator().manual_seed(0)
    dense = [torch.linspace(-s, s, n // 4) for s in (1.0, 2.0, 20.0, 110.0)]
    big = torch.rand(n // 4, generator=generator) * 2e5 - 1e5
    near_pi = torch.arange(-30000, 30000).double().mul(torch.pi / 2).float()
    return torch.cat([bits.view(torch.float32), *dense, big, near_pi, specials(torch.float32)])


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return the distance to the fp64 value in float32 units of the last place there."""
    rounded = want.float()
    same = (got == rounded) | (got.isnan() & want.isnan())
    step = np.spacing(np.minimum(np.abs(rounded.numpy()), np.float32(2.0**127)).astype(np.float32))
    step = torch.from_numpy(np.asarray(step)).double()
    error = (got.double() - want).abs() / step
    # a result that overflows is right if the true value rounds to it
    return torch.where(same, 0.0, error.nan_to_num(nan=float("inf")))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(ULPS))
def test_float_accuracy(isa: str, name: str) -> None:
    slow = isa in ("x86-64", ARM) or name in ("erfinv", "lgamma", "erfc", "asin", "acos", "asinh")
    x = floats_everywhere(20000 if slow else 200000)
    fn = getattr(torch, name, None) or getattr(torch.special, name)
    want = fn(x.double())
    if name == "lgamma":  # near its zeros on the negative axis only the absolute error is small
        want, x = want[keep := (x > -2) | (want.abs() > 2)], x[keep]
    worst = ulps(call(isa, name, "f32", x), want)
    at = int(worst.argmax())
    assert worst[at] <= ULPS[name], f"{name}({x[at].item()!r}): {worst[at]:.2f} ulp"
    zeros = torch.tensor([0.0, -0.0] * 16)
    assert_same(call(isa, name, "f32", zeros), fn(zeros), f"{name} of zeros")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["exp", "sin", "sigmoid", "erfinv", "log1p"])
def test_scalar_forms(isa: str, name: str) -> None:
    x = floats_everywhere(2000)
    fn = getattr(torch, name)
    assert ulps(call(isa, f"{name}_scalar", "f32", x), fn(x.double())).max() <= 2.1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [r.name for r in SCALARS.values() if r.arity == 2 and r.ulp])
def test_float_binary_accuracy(isa: str, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 100_000
    a = torch.randn(n, generator=generator).mul(3).exp() * torch.randint(
        0, 2, (n,), generator=generator
    ).mul(2).sub(1)
    b = torch.randn(n, generator=generator) * 10
    b[::3] = b[::3].round()
    sa, sb = pairs(specials(torch.float32))
    a, b = torch.cat([a, sa]), torch.cat([b, sb])
    want = getattr(torch, name)(a.double(), b.double())
    worst = ulps(call(isa, name, "f32", a, b), want)
    at = int(worst.argmax())
    assert worst[at] <= SCALARS[name].ulp, (
        f"{name}({a[at].item()!r}, {b[at].item()!r}): {worst[at]:.2f} ulp"
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["exp", "expm1", "log", "tanh", "sigmoid"])
def test_double_accuracy(isa: str, name: str) -> None:
    bits = torch.linspace(-1, 1, 40000, dtype=torch.float64).mul(2.0**63 - 2048).long()
    dense = [torch.linspace(-s, s, 20000, dtype=torch.float64) for s in (1.0, 30.0, 750.0)]
    x = torch.cat([bits.view(torch.float64), *dense, specials(torch.float64)])
    wide = x.numpy().astype(np.longdouble)
    with np.errstate(all="ignore"):
        e = np.exp(-np.abs(wide))
        want = np.where(wide < 0, e, 1) / (1 + e) if name == "sigmoid" else getattr(np, name)(wide)
        got = call(isa, name, "f64", x).numpy()
        rounded = want.astype(np.float64)
        step = np.spacing(np.minimum(np.abs(rounded), 2.0**1023))
        error = np.abs(got.astype(np.longdouble) - want) / step
        same = (got == rounded) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0, np.nan_to_num(error, nan=np.inf))
    limit = 2.2 if isa == "x86-64" else 2.0  # glibc's tanh
    assert error.max() <= limit, f"{name}({x[int(error.argmax())].item()!r}): {error.max():.2f} ulp"


def test_double_erfinv_inverts() -> None:
    y = torch.tensor(
        [1e-300, 1e-12, 1e-5, 0.1, 0.49, 0.5, 0.51, 0.9, 0.999999, 1 - 1e-15, 1.0, -0.7, 1.5]
    ).double()
    got = call("native", "erfinv", "f64", y)
    torch.testing.assert_close(got, torch.special.erfinv(y), rtol=1e-13, atol=0, equal_nan=True)
