"""Every pointwise op, bit for bit against eager, over dtypes, promotions, shapes and special
values.
"""

from __future__ import annotations

import math

import pytest
import torch
from recording import check, record

from jitmagic.loops.lower import lower
from jitmagic.loops.registry import FALLBACKS, LOWERINGS

aten = torch.ops.aten
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTS, torch.bool]
NUMBERS = [*FLOATS, *INTS]
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    1.5,
    2.5,
    math.inf,
    -math.inf,
    math.nan,
    1e-8,
    7.25,
]


def values(dtype: torch.dtype, seed: int = 0, special: bool = True) -> torch.Tensor:
    """Return [4, 14]: random numbers, special floats, negative signed integers."""
    torch.manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(4, 14) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -100
        return torch.randint(low, 100, (4, 14), dtype=dtype)
    x = torch.randn(4, 14, dtype=torch.float64) * 3
    if special:
        x[seed % 4] = torch.tensor(SPECIAL, dtype=torch.float64).roll(seed)
    return x.to(dtype)


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
UNARY = ["neg", "abs", "sign", "floor", "ceil", "round", "trunc", "relu", "square", "positive"]
UNARY_FLOAT = ["sqrt", "rsqrt", "reciprocal", "sigmoid", "exp", "exp2", "expm1", "log", "log2"]
UNARY_FLOAT += ["log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"]
UNARY_FLOAT += ["tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma"]
ASK = ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not"]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", [*BINARY, *COMPARE, *LOGIC])
def test_binary_same_dtype(name, dtype):
    if name == "sub" and dtype is torch.bool:
        return
    op = getattr(torch, name)
    check(lambda x, y: op(x, y), values(dtype), values(dtype, 1))


@pytest.mark.parametrize("a", ALL)
@pytest.mark.parametrize("b", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_binary_promotion(a, b):
    x, y = values(a), values(b, 1)
    check(lambda x, y: (x + y, x * y, x / y, x < y, x == y, torch.maximum(x, y)), x, y)
    zero = y[0, 0].clone()
    check(lambda x, z: (x + z, x * z, z * x, x / z, x >= z, torch.where(x > z, x, z)), x, zero)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("number", [2, 3.7, True, -1, 0.1])
def test_binary_with_numbers(dtype, number):
    x = values(dtype)
    small = dtype is torch.uint8 and number == -1
    allowed = tuple(
        f"aten.{n}.{o}"
        for n in ("add", "sub", "mul", "div", "rsub", *COMPARE)
        for o in ("Tensor", "Scalar")
    )
    check(
        lambda x: (x + number, x * number, x / number, x < number, x != number, number * x),
        x,
        fallbacks=allowed if small else (),
    )
    if number is not True:
        check(
            lambda x: (x - number, number - x, torch.rsub(x, number)),
            x,
            fallbacks=allowed if small else (),
        )


@pytest.mark.parametrize("dtype", ALL)
def test_bool_tensors_with_numbers(dtype):
    check(lambda x: (x + True, x * 2, x * True, x == True), values(torch.bool))  # noqa: E712


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *INTS])
def test_alpha(dtype):
    x, y = values(dtype), values(dtype, 1)
    alpha = 0.37 if dtype.is_floating_point else 3
    check(lambda x, y: (torch.add(x, y, alpha=alpha), torch.sub(x, y, alpha=alpha)), x, y)
    check(lambda x, y: torch.rsub(x, y, alpha=2), x, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_alpha_in_sixteen_bits(dtype):
    """Eager's own vector body and scalar tail differ; whole vectors are compared."""
    torch.manual_seed(0)
    x, y = torch.randn(256).to(dtype), torch.randn(256).to(dtype)
    check(lambda x, y: torch.add(x, y, alpha=0.37), x, y)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    if dtype is torch.bool and name in ("neg", "abs", "relu", "floor", "ceil", "round", "trunc"):
        return
    if dtype is torch.bool and name in ("square", "positive"):
        return
    op = getattr(torch, name)
    check(lambda x: op(x), values(dtype))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_unary_float(name, dtype):
    op = getattr(torch, name)
    check(lambda x: op(x), values(dtype), exact=False)


@pytest.mark.parametrize("dtype", FLOATS)
def test_frac_and_angles(dtype):
    check(lambda x: (torch.frac(x), torch.deg2rad(x), torch.rad2deg(x)), values(dtype), exact=False)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ASK)
def test_predicates(name, dtype):
    op = getattr(torch, name)
    check(lambda x: op(x), values(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("divisor", [3, -3, 2.5, -1])
def test_division_by_numbers(dtype, divisor):
    if not dtype.is_floating_point and (isinstance(divisor, float) or dtype is torch.uint8):
        divisor = 3
    x = values(dtype)
    check(
        lambda x: (
            torch.floor_divide(x, divisor),
            torch.remainder(x, divisor),
            torch.fmod(x, divisor),
            torch.div(x, divisor, rounding_mode="trunc"),
            torch.div(x, divisor, rounding_mode="floor"),
            torch.div(x, divisor, rounding_mode=None),
        ),
        x,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_of_float_tensors(dtype):
    x, y = values(dtype), values(dtype, 1)
    check(lambda x, y: (torch.floor_divide(x, y), torch.remainder(x, y), torch.fmod(x, y)), x, y)
    check(lambda x, y: torch.div(x, y, rounding_mode="trunc"), x, y)


def test_integer_division_by_a_tensor_falls_back_to_aten():
    x, y = values(torch.int64), values(torch.int64, 1).abs() + 1
    fallbacks = ["aten.floor_divide.default", "aten.remainder.Tensor"]
    program = check(lambda x, y: (torch.floor_divide(x, y), x % y), x, y, fallbacks=fallbacks)
    assert all("zero" in step.reason for step in program.steps)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4, -3])
def test_powers(dtype, exponent):
    x = values(dtype)
    exact = exponent in (0, 1, 2, 3, 0.5)
    check(lambda x: x**exponent, x, exact=exact)


@pytest.mark.parametrize("dtype", [*INTS, torch.bool])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 2.5])
def test_integer_powers(dtype, exponent):
    check(lambda x: x**exponent, values(dtype), exact=isinstance(exponent, int))


def test_powers_of_tensors():
    for dtype in FLOATS:
        x, y = values(dtype), values(dtype, 1)
        check(lambda x, y: (torch.pow(x, y), torch.pow(2.0, y)), x, y)
    check(
        lambda x, y: torch.pow(x, y),
        *(values(torch.int64), values(torch.uint8)),
        fallbacks=["aten.pow.Tensor_Tensor"],
    )


@pytest.mark.parametrize("dtype", [*INTS, torch.bool])
def test_bits(dtype):
    x, y = values(dtype), values(dtype, 1)
    check(lambda x, y: (x & y, x | y, x ^ y, ~x), x, y)
    if dtype is not torch.bool:
        check(lambda x: (x & 3, x | 1, x << 2, x >> 1, x << 70, x >> 70, x << 3), x)
        check(lambda x, y: (x << (y % 9 - 2), x >> (y % 9 - 2)), x, y)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_clamp(dtype):
    x = values(dtype)
    low, high = (1, 50) if not dtype.is_floating_point else (-0.7, 1.3)
    check(lambda x: (x.clamp(low, high), x.clamp(min=low), x.clamp(max=high), x.clamp_min(low)), x)
    check(lambda x: (x.clamp_max(high), torch.clamp(x, 0.5)), x)
    check(lambda x, a, b: x.clamp(a, b), x, values(dtype, 1), values(dtype, 2))


@pytest.mark.parametrize("dtype", ALL)
def test_choice(dtype):
    x, y, c = values(dtype), values(dtype, 1), values(torch.bool, 2)
    check(lambda c, x, y: torch.where(c, x, y), c, x, y)
    check(lambda c, x: (torch.where(c, x, 1), torch.where(c, 2.5, x)), c, x)
    check(lambda c, x: x.masked_fill(c, 1), c, x)
    check(lambda c, x, z: torch.masked_fill(x, c, z), c, x, y[0, 0].clone())


@pytest.mark.parametrize("a", ALL)
@pytest.mark.parametrize("b", ALL)
def test_conversion(a, b):
    x = values(a, special=False)
    if a.is_floating_point and b is torch.uint8:
        x = x.abs()
    check(lambda x: (x.to(b), x.to(b).clone()), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_forms(dtype):
    x, y, z = (values(dtype, n, special=False) for n in range(3))
    check(lambda x, y, z: (torch.addcdiv(x, y, z), torch.addcdiv(x, y, z, value=0.3)), x, y, z)
    check(lambda x, y, z: torch.addcmul(x, y, z), x, y, z, exact=False)
    check(lambda x, y, z: torch.addcmul(x, y, z, value=0.3), x, y, z, exact=False)
    check(lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8)), x, y, exact=False)
    check(lambda x, y, w: torch.lerp(x, y, w), x, y, z, exact=False)
    check(lambda x, y: (torch.copysign(x, y), torch.nextafter(x, y)), x, y)
    check(lambda x, y: (torch.hypot(x, y), torch.xlogy(x, y.abs())), x, y, exact=False)
    check(lambda x, y: torch.heaviside(x, y), x, y)
    check(lambda x: torch.nan_to_num(x, 0.5), values(dtype))
    check(lambda x, y: torch.logaddexp(x, y), values(dtype), values(dtype, 1), exact=False)


ACTIVATIONS = {
    "silu": (),
    "gelu": (),
    "hardtanh": (-0.5, 0.7),
    "relu6": (),
    "leaky_relu": (0.2,),
    "elu": (1.3,),
    "softplus": (1.5, 3.0),
    "hardsigmoid": (),
    "hardswish": (),
    "mish": (),
    "hardshrink": (0.4,),
    "threshold": (0.1, 20.0),
    "sigmoid": (),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    op = getattr(aten, name)
    special = name not in ("hardswish", "gelu", "mish")
    check(lambda x: op(x, *ACTIVATIONS[name]), values(dtype, special=special), exact=False)


def test_activations_with_modes():
    x = values(torch.float32, special=False)
    check(lambda x: (aten.gelu(x, approximate="tanh"), aten.softshrink(x, 0.3)), x, exact=False)
    p = torch.rand(40)
    check(lambda p: (aten.logit(p), aten.logit(p, 0.1)), p, exact=False)
    check(lambda x, w: aten._prelu_kernel(x, w), x, x + 1)
    check(lambda x, y: aten.mse_loss(x, y, 0), x, x.roll(1))


BACKWARDS = {
    "sigmoid_backward": lambda g, x: (g, x.sigmoid()),
    "tanh_backward": lambda g, x: (g, x.tanh()),
    "silu_backward": lambda g, x: (g, x),
    "gelu_backward": lambda g, x: (g, x),
    "threshold_backward": lambda g, x: (g, x, 0.3),
    "hardtanh_backward": lambda g, x: (g, x, -0.5, 0.6),
    "leaky_relu_backward": lambda g, x: (g, x, 0.1, False),
    "softplus_backward": lambda g, x: (g, x, 1.5, 3.0),
    "hardsigmoid_backward": lambda g, x: (g, x),
    "hardswish_backward": lambda g, x: (g, x),
    "logit_backward": lambda g, x: (g, x.sigmoid(), 0.1),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BACKWARDS)
def test_activation_backwards(name, dtype):
    grad, x = values(dtype, 3, special=False), values(dtype, special=False)
    tensors = [a for a in BACKWARDS[name](grad, x) if isinstance(a, torch.Tensor)]
    numbers = [a for a in BACKWARDS[name](grad, x) if not isinstance(a, torch.Tensor)]
    check(lambda *t: getattr(aten, name)(*t, *numbers), *tensors, exact=False)


def test_gelu_tanh_backward():
    grad, x = torch.randn(50), torch.randn(50)
    check(lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), grad, x, exact=False)


@pytest.mark.parametrize(
    "shapes",
    [
        ((), ()),
        ((3,), ()),
        ((1,), (4,)),
        ((2, 1, 3), (4, 1)),
        ((0,), (1,)),
        ((2, 0), (2, 1)),
        ((1, 1), (1,)),
    ],
)
def test_broadcast_and_sizes(shapes):
    x, y = (torch.randn(shape) for shape in shapes)
    check(lambda x, y: (x + y, x * 2 - y, x > y, torch.where(x > 0, x, y)), x, y)


def test_strides_of_inputs_and_outputs():
    x = torch.randn(3, 4, 5)
    t, s = x.permute(2, 0, 1), torch.randn(20, 8)[::4, 1::2][:, :3]
    check(lambda t, s: (t + 1, t.exp(), t + s.unsqueeze(-1), t * 2), t, s, exact=False)
    e = torch.randn(1, 5).expand(4, 5)
    check(lambda e: (e + 1, e.clone()), e)
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    check(lambda x: (x + 1, x.clone(), x.contiguous()), channels_last)


def test_generated():
    x = torch.randn(3, 4)
    check(lambda x: (torch.zeros_like(x), torch.ones(2, 3), torch.full((2,), 7), x + 0), x)
    check(lambda x: (torch.arange(7), torch.arange(2, 11, 3), torch.arange(1, -4, -2)), x)
    check(lambda x: (torch.arange(0, 1, 0.1), torch.arange(5, dtype=torch.bfloat16)), x)
    check(lambda x: (torch.linspace(-1, 1, 7), torch.linspace(0, 5, 4), x + 0), x)
    check(lambda x: (torch.linspace(3, -2, 1), torch.linspace(1, 2, 50)), x, exact=False)
    check(lambda x: torch.full((2,), 1j), x, fallbacks=["aten.full.default"])
    check(lambda x: (torch.eye(4), torch.eye(3, 5), torch.scalar_tensor(2.5)), x)
    check(lambda x: (torch.full_like(x, 0.1), x.new_full((2, 2), 3.0), torch.fill(x, 2)), x)
    check(lambda x: (torch.full((3,), True), torch.full((3,), 1.5, dtype=torch.float16)), x)


def test_constants_of_the_graph():
    weight = torch.randn(4)
    check(lambda x: x * weight + weight, torch.randn(3, 4))


def test_unknown_dtypes_fall_back():
    x = torch.randn(4, dtype=torch.complex64)
    program = check(lambda x: x + x, x, fallbacks=["aten.add.Tensor"])
    assert "complex" in program.steps[0].reason


def test_every_registered_name_is_an_op():
    for name in [*LOWERINGS.load_all(), *FALLBACKS.load_all()]:
        assert name.startswith("aten.")
        packet, overload = name.removeprefix("aten.").rsplit(".", 1)
        assert overload in getattr(aten, packet).overloads(), name


def test_lowering_keeps_one_nest_per_op():
    graph, _ = record(lambda x: torch.relu(x * 2 + 1), torch.randn(4))
    assert [step.name for step in lower(graph, "g").steps] == [
        "mul_tensor",
        "add_tensor",
        "relu_default",
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_meet_scalars_of_16_bits_in_float32(dtype):
    for number in values(torch.float64, special=False)[0]:
        x = number.to(dtype)
        check(lambda x: (x * 0.99, x / 0.97, 0.99 * x), x)
