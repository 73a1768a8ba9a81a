"""Symbolic floats: arithmetic on them gives what Python gives, or the trace breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.graph.verify import verify
from jitmagic.guards.check import holds
from jitmagic.guards.guard import InRange
from jitmagic.guards.source import Argument, Source
from jitmagic.options import Options
from jitmagic.trace import result as r
from jitmagic.trace.assumptions import Assumptions
from jitmagic.trace.machine import trace

from .replaying import Replay

Program = Callable[[Tensor, float], Any]


def traced(
    program: Program, count: Tensor, rate: float, varying: frozenset[str] | None
) -> tuple[r.Trace, FrameSnapshot]:
    snapshot = FrameSnapshot.of_call(program, (count, rate))  # type: ignore[arg-type]
    with torch.no_grad():
        made = trace(snapshot, Options(), None, Assumptions(_sources(varying)))
    verify(made.graph)
    return made, snapshot


def _sources(names: frozenset[str] | None) -> frozenset[Source] | None:
    return None if names is None else frozenset(Argument(1, name) for name in names)


def chain(count: Tensor, rate: float) -> float:
    count += 1
    n = count.item()
    return rate / (1 - 0.9**n) * 2 - (1 - 0.999**n) ** 0.5


def two_counts(count: Tensor, rate: float) -> tuple[float, float]:
    count += 1
    first = count.item()
    count += 2
    return -first, first / (count.item() * 3)


def decided(count: Tensor, rate: float) -> float:
    if rate != 0 and rate > 0 and not rate < 0 and rate:
        return rate * count.item()
    return 0.0


def both_sides(count: Tensor, rate: float) -> list[float]:
    n = count.item() + 1
    return [2 - n, n - 2, 2 / n, n / 2, 0.5**n, n**2, n * n, n**-0.5, rate**n, 3 + n, True + n]


PROGRAMS = [chain, two_counts, decided, both_sides]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 5, 7000])
def test_arithmetic_is_that_of_python(program: Program, dtype: torch.dtype, count: int) -> None:
    made, snapshot = traced(program, torch.tensor(float(count), dtype=dtype), 0.3, {"rate"})
    assert isinstance(made.exit, r.Return), made.exit
    with torch.no_grad():
        got = Replay(made, snapshot).run()
    wanted = program(torch.tensor(float(count), dtype=dtype), 0.3)
    assert torch.tensor(got, dtype=torch.float64).allclose(
        torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert type(got) is type(wanted)


def test_one_graph_for_all_rates_and_counts_within_bounds() -> None:
    made, snapshot = traced(chain, torch.tensor(3.0), 0.3, {"rate"})
    (counts,) = [guard for guard in made.guards if isinstance(guard, InRange)]
    for count, rate, held in [(5.0, 0.01, True), (-1.0, 0.3, False), (3.0, 0.0, True)]:
        assert holds(counts, FrameSnapshot.of_call(chain, (torch.tensor(count), rate))) is held


@pytest.mark.parametrize(
    ("program", "others"),
    [
        (lambda count, rate: rate > 0.25, {0.2500001: True, 0.9: True, 0.25: False, 0.1: False}),
        (lambda count, rate: rate <= 0.3, {0.3: True, 0.300001: False}),
        (lambda count, rate: rate == 0.4, {0.29: True, 0.4: False, 0.41: False}),
    ],
)
def test_comparing_an_argument_with_a_constant_narrows_its_bounds(
    program: Program, others: dict[float, bool]
) -> None:
    made, _ = traced(program, torch.tensor(1.0), 0.3, {"rate"})
    assert isinstance(made.exit, r.Return)
    for rate, held in others.items():
        other = FrameSnapshot.of_call(program, (torch.tensor(1.0), rate))
        ranges = [guard for guard in made.guards if isinstance(guard, InRange)]
        assert all(holds(guard, other) for guard in ranges) == held, rate


BREAKS: dict[str, Program] = {
    "a branch": lambda count, rate: 1 if count.item() > 5 else 2,
    "truth": lambda count, rate: not count.item(),
    "a branch on two": lambda count, rate: 1 if rate < count.item() else 2,
    "a comparison as a number": lambda count, rate: (rate < count.item()) + 1,
    "an integer that is no float": lambda count, rate: count.item() + (2**53 + 1),
}
# What only raises for some counts is asserted.
ASSERTED: dict[str, Program] = {
    "division by what may be zero": lambda count, rate: 1 / count.item(),
    "zero to the power of nothing": lambda count, rate: 0.0 ** count.item(),
    "a power that overflows": lambda count, rate: 10.0 ** count.item(),
    "a negative power of zero": lambda count, rate: count.item() ** -1,
    "a counter that was multiplied": lambda count, rate: math.sqrt(count.mul_(2).item()),
    "a result": lambda count, rate: math.sqrt((count + 1).item()),
}
# A number of the call itself is a constant there: why, and by the trace on which line.
SPECIALIZED: dict[str, tuple[Program, str]] = {
    "an index": (lambda count, rate: [1, 2][int(rate)], "value"),
    "a key": (lambda count, rate: {rate: 1}, "hash()"),
    "a method": (lambda count, rate: rate.is_integer(), "is_integer"),
    "a root of a negative number": (lambda count, rate: (rate - 1) ** 0.5, "**"),
    "a complex number": (lambda count, rate: complex(rate), "value"),
}
DATA: dict[str, Program] = {
    "text": lambda count, rate: f"{rate:.3f} of {2 * rate!r}",
    "a method of a text": lambda count, rate: f"{rate}".upper(),
    "a comparison of two": lambda count, rate: rate < count.item(),
    "floor division": lambda count, rate: count.item() // 2,
    "rounding": lambda count, rate: round(count.item()),
    "an integer tensor": lambda count, rate: torch.ones(3, dtype=torch.int64) * rate,
    "half a number": lambda count, rate: torch.ones((), dtype=torch.float16).pow(rate),
    "a slope": lambda count, rate: torch.nn.functional.leaky_relu(-torch.ones(3), rate),
    "an exponent": lambda count, rate: torch.ones(3) ** rate,
    "a size": lambda count, rate: torch.full((2,), rate),
    "a bound": lambda count, rate: torch.ones(3).clamp(-rate, rate) + min(rate, 0.5),
    "functions": lambda count, rate: math.sqrt(rate) + abs(-rate) + int(rate * 100),
}


@pytest.mark.parametrize("name", BREAKS)
def test_operations_that_may_differ_from_python_break(name: str) -> None:
    made, _ = traced(BREAKS[name], torch.tensor(3.0), 0.3, {"rate"})
    assert isinstance(made.exit, r.Break)


@pytest.mark.parametrize("name", ASSERTED)
def test_operations_that_raise_for_some_counts_are_asserted(name: str) -> None:
    program = ASSERTED[name]
    made, snapshot = traced(program, torch.tensor(3.0), 0.3, {"rate"})
    assert isinstance(made.exit, r.Return)
    assert any("check_errors" in str(node.target) for node in made.graph.graph.nodes)
    with torch.no_grad():
        assert Replay(made, snapshot).run() == pytest.approx(program(torch.tensor(3.0), 0.3))


@pytest.mark.parametrize("name", SPECIALIZED)
def test_a_number_that_has_to_be_a_constant_says_where(name: str) -> None:
    program, why = SPECIALIZED[name]
    made, snapshot = traced(program, torch.tensor(3.0), 0.3, {"rate"})
    assert isinstance(made.exit, r.Return)
    (special,) = made.specialized
    assert special.name == "rate" and why in special.why, special
    assert special.where is not None
    assert special.where.lineno == program.__code__.co_firstlineno
    with torch.no_grad():
        assert str(Replay(made, snapshot).run()) == str(program(torch.tensor(3.0), 0.3))


@pytest.mark.parametrize("name", DATA)
def test_operations_on_numbers_stay_in_the_graph(name: str) -> None:
    made, snapshot = traced(DATA[name], torch.tensor(3.0), 0.3, {"rate"})
    assert isinstance(made.exit, r.Return) and not made.specialized
    with torch.no_grad():
        got, wanted = Replay(made, snapshot).run(), DATA[name](torch.tensor(3.0), 0.3)
    assert type(got) is type(wanted)
    if isinstance(wanted, str):
        assert got == wanted
    else:
        torch.testing.assert_close(got, wanted)


def test_numbers_are_constants_and_items_are_data_by_default() -> None:
    made, _ = traced(lambda count, rate: rate * 2, torch.tensor(3.0), 0.3, None)
    assert isinstance(made.exit, r.Return) and made.inputs == ()
    made, _ = traced(lambda count, rate: count.item(), torch.tensor(3.0), 0.3, None)
    assert isinstance(made.exit, r.Return)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(40,), ()])
def test_tensor_operations_with_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The graph alone, run by torch, agrees to a rounding or two of the dtype."""
    a, b = torch.rand(shape).to(dtype) + 1, torch.rand(shape).to(dtype) + 1

    def program(x: Tensor, rate: float) -> tuple[Tensor, ...]:
        y = x.clone()
        y.mul_(rate).add_(a, alpha=rate).addcmul_(a, b, value=-rate)
        y.addcdiv_(a, b, value=rate).lerp_(b, rate).div_(rate).sub_(b, alpha=rate)
        return y, x * rate, rate * x, x / rate, x + rate, x - rate, x.lerp(a, weight=rate)

    x = torch.rand(shape).to(dtype)
    made, snapshot = traced(program, x, 0.3, {"rate"})
    assert isinstance(made.exit, r.Return), made.exit
    with torch.no_grad():
        got = Replay(made, snapshot).run()
        wanted = program(x, 0.3)
    bound = 8 * torch.finfo(dtype).eps
    for ours, eager in zip(got, wanted, strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours, eager, rtol=bound, atol=bound)
