"""Tabulates the device functions that Triton kernels call, each as its text.

HELPERS has them by name, after those that they call; `called` has the texts that are written
above a module's kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

__all__ = ["HELPERS", "PROPAGATE_NAN", "called"]

PROPAGATE_NAN = "propagate_nan=tl.PropagateNan.ALL"
_LOG2_E = 1.4426950408889634
_MORE = """\
    quotient = libdevice.floor(whole)
    quotient = tl.where(whole - quotient > 0.5, quotient + 1.0, quotient)
    exact = tl.where(whole != 0, quotient, libdevice.copysign(whole * 0.0, ratio))
    return tl.where(b == 0, ratio, exact)"""
_FLOOR_DIVIDE = (
    """\
@triton.jit
def floor_divide_{name}(a, b):
    # c10::div_floor_floating: the quotient of what divides exactly
    ratio = {ratio}
    rest = libdevice.fmod(a, b)
    whole = {whole}
    whole = tl.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1.0, whole)
"""
    + _MORE
)
_EXTREME = """\
@triton.jit
def first_{name}(a, at_a, b, at_b):
    # NaN comes before every number; of equals, the lowest position
    better = (a {sign} b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    keep = better | (equal & (at_a < at_b))
    return tl.where(keep, a, b), tl.where(keep, at_a, at_b)"""

HELPERS: Mapping[str, str] = {
    "floor_divide_integer": """\
@triton.jit
def floor_divide_integer(a, b):
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)""",
    "remainder_integer": """\
@triton.jit
def remainder_integer(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)""",
    "remainder_float": """\
@triton.jit
def remainder_float(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)""",
    "floor_divide_single": _FLOOR_DIVIDE.format(
        name="single", ratio="tl.div_rn(a, b)", whole="tl.div_rn(a - rest, b)"
    ),
    "floor_divide_double": _FLOOR_DIVIDE.format(
        name="double", ratio="a / b", whole="(a - rest) / b"
    ),
    "combine_max": f"""\
@triton.jit
def combine_max(a, b):
    return tl.maximum(a, b, {PROPAGATE_NAN})""",
    "combine_min": f"""\
@triton.jit
def combine_min(a, b):
    return tl.minimum(a, b, {PROPAGATE_NAN})""",
    "add_kept": """\
@triton.jit
def add_kept(total, lost, value):
    joined = total + value
    taken = joined - total
    return joined, lost + ((total - (joined - taken)) + (value - taken))
""",
    "flushed_exp2": """\
@triton.jit
def flushed_exp2(x):
    # what is less than 2 ** -126 is 0: one instruction in place of four
    if x.dtype == tl.float32:
        asm: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(asm, "=f,f", [x], x.dtype, is_pure=True, pack=1)
    else:
        return libdevice.exp2(x)""",
    "add_exp": f"""\
@triton.jit
def add_exp(largest, total, value):
    # the maximum so far, and the sum of exponentials relative to it
    rest = value - largest
    factor = flushed_exp2(tl.abs(rest) * -{_LOG2_E})
    joined = tl.where(rest > 0, total * factor + 1.0, total + factor)
    joined = tl.where(value == float("-inf"), total, joined)
    return tl.maximum(largest, value, {PROPAGATE_NAN}), joined""",
    "add_exps": f"""\
@triton.jit
def add_exps(largest, total, values):
    # the same of several values for each lane, which are neighbours
    lanes: tl.constexpr = largest.shape[0]
    values = tl.reshape(values, [lanes, values.shape[0] // lanes])
    after = tl.maximum(largest, tl.reduce(values, 1, combine_max), {PROPAGATE_NAN})
    base = tl.where(tl.abs(after) == float("inf"), 0.0, after)
    terms = flushed_exp2((values - base[:, None]) * {_LOG2_E})
    faded = total * flushed_exp2((largest - base) * {_LOG2_E})
    return after, faded + tl.sum(terms, 1)""",
    "add_square": """\
@triton.jit
def add_square(total, squares, count, value):
    # the sum so far, and the squares of differences from the mean, as Youngs and Cramer add them
    after = count + 1.0
    joined = total + value
    rest = after * value - joined
    scale = 1.0 / tl.maximum(count * after, 1.0)
    return joined, squares + rest * rest * scale, after""",
    "combine_sum": """\
@triton.jit
def combine_sum(a, b):
    return a + b""",
    "combine_logsumexp": f"""\
@triton.jit
def combine_logsumexp(a, b):
    # the difference of equal infinities is NaN
    rest = libdevice.log1p(libdevice.exp(-tl.abs(a - b)))
    return tl.where(a == b, a + {math.log(2)}, tl.maximum(a, b, {PROPAGATE_NAN}) + rest)""",
    "key_of_float": """\
@triton.jit
def key_of_float(value, position, ascending: tl.constexpr):
    # the bits of floats, turned where they are negative, are in order; of zeros the sign is kept
    # below the position
    zero = (value == 0).to(tl.int64) & (value.to(tl.int32, bitcast=True) < 0).to(tl.int64)
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(value == 0, 0, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    bits = tl.where(value != value, 0x7FFFFFFF, bits)
    bits = ~bits if ascending else bits
    return (bits.to(tl.int64) << 32) | ((0x7FFF - position) << 1) | zero""",
    "float_of_key": """\
@triton.jit
def float_of_key(key, ascending: tl.constexpr):
    bits = (key >> 32).to(tl.int32)
    bits = ~bits if ascending else bits
    value = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    return tl.where((bits == 0) & ((key & 1) == 1), -value, value)""",
    "key_of_integer": """\
@triton.jit
def key_of_integer(value, position, ascending: tl.constexpr):
    bits = ~value if ascending else value
    return (bits.to(tl.int64) << 32) | ((0x7FFF - position) << 1)""",
    "integer_of_key": """\
@triton.jit
def integer_of_key(key, ascending: tl.constexpr):
    bits = (key >> 32).to(tl.int32)
    return ~bits if ascending else bits""",
    "position_of_key": """\
@triton.jit
def position_of_key(key):
    return 0x7FFF - ((key >> 1) & 0x7FFF)""",
    "first_keys": """\
@triton.jit
def first_keys(keys, places, count: tl.constexpr, axis: tl.constexpr):
    # the greatest keys, one after the other; those outside of the row are the least int64. Halves
    # are compared: Triton 3.6 takes 360 shuffles for 8 of 128 keys of 64 bits, and 40 for these.
    # The lower half, which has the position, is not negative: -1 marks what was found.
    high, low = (keys >> 32).to(tl.int32), keys.to(tl.int32)
    found = tl.zeros_like(places).to(tl.int64)
    for place in tl.static_range(count):
        best = tl.max(high, axis, keep_dims=True)
        last = tl.max(tl.where(high == best, low, -1), axis, keep_dims=True)
        found = tl.where(places == place, (best.to(tl.int64) << 32) | last, found)
        high = tl.where(low == last, -0x80000000, high)
        low = tl.where(low == last, -1, low)
    return found""",
    # Its distance from 2 is a power of 2, whose exponent was fitted on [0, 4]: 7e-8 off, as the sum
    # in float32 is, for half of the instructions. The exponential of the hardware adds 2e-7.
    "erf_plus_one": """\
@triton.jit
def erf_plus_one(x):
    # where results have 16 bits
    t = tl.abs(x)
    p = tl.fma(t, 7.70644363e-7, -1.65121492e-5)
    p = tl.fma(p, t, 1.52092296e-4)
    p = tl.fma(p, t, -7.63762917e-4)
    p = tl.fma(p, t, 1.97979854e-3)
    p = tl.fma(p, t, 3.91362963e-4)
    p = tl.fma(p, t, -2.81341504e-2)
    p = tl.fma(p, t, 1.48493171e-1)
    p = tl.fma(p, t, 9.18403864e-1)
    p = tl.fma(p, t, 1.62791002)
    rest = tl.exp2(-(p * t))
    return tl.where(x < 0, rest, 2.0 - rest)""",
    "philox_four": """\
@triton.jit
def philox_four(seed, offset, at, vector: tl.constexpr, threads: tl.constexpr):
    # what ATen's CUDA kernels draw for an element and the three after it
    run = at // vector
    counter = offset // 4 + (run // threads * (vector // 4) + at % vector // 4).to(tl.int64)
    thread = (run % threads).to(tl.uint32)
    return tl.philox(seed, counter.to(tl.uint32), (counter >> 32).to(tl.uint32), thread, thread * 0)
""",
    "philox_bits": """\
@triton.jit
def philox_bits(seed, offset, at, vector: tl.constexpr, threads: tl.constexpr):
    a, b, c, d = philox_four(seed, offset, at // 4 * 4, vector, threads)
    lane = at % 4
    return tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d)).to(tl.int64)""",
    "philox_run": """\
@triton.jit
def philox_run(seed, offset, at, vector: tl.constexpr, threads: tl.constexpr):
    # along a last dimension of two and two
    a, b, c, d = philox_four(seed, offset, at, vector, threads)
    return tl.join(tl.join(a, c), tl.join(b, d))""",
    "combine_prod": """\
@triton.jit
def combine_prod(a, b):
    return a * b""",
    "first_argmax": _EXTREME.format(name="argmax", sign=">"),
    "first_argmin": _EXTREME.format(name="argmin", sign="<"),
}


def called(names: Iterable[str]) -> list[str]:
    """Return the texts of device functions and of those that they call."""
    wanted = {*names}
    for name, text in reversed([*HELPERS.items()]):
        if name in wanted:
            wanted.update(re.findall(r"\w+", text))
    return [text for name, text in HELPERS.items() if name in wanted]
