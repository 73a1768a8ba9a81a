"""Varying floats and ints work alone and together in every form of tensor operations. Each form is
called with the edge values in turn, so that the first variant has a constant and the others a
symbol. Results, dtypes, gradients and exceptions equal eager's each time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.trace.result import Return, Trace

Form = Callable[[Tensor, Any], Any]

FLOATS = [0.5, 0.25, 0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e30, -2.75]
INTS = [3, 1, 0, -1, 7, 2**31, 2**63 - 1, -(2**63), True, False]
KINDS = {
    "float": FLOATS,
    "int": INTS,
    "mixed": [0.5, 3, 2.5, 1, True, -1, 0.0],
    "int64 of numpy": [np.int64(one) for one in INTS[:-2]],
    "int32 of numpy": [np.int32(one) for one in (3, 1, 0, -1, 7, 12)],
    "float64 of numpy": [np.float64(one) for one in FLOATS],
    "float32 of numpy": [np.float32(one) for one in FLOATS],
}
TIERS: dict[str, dict[str, Any]] = {
    "cpp": {},
    "blocks": {"options": {"cpu_tier": "blocks"}},
    "numba": {"options": {"cpu_tier": "numba"}},
    "aten": {"options": {"cpu_tier": "aten"}},
}

FORMS: dict[str, Form] = {
    "mul": lambda x, s: (x * s, s * x, torch.mul(x, s)),
    "add": lambda x, s: (x + s, s + x, x - s, s - x),
    "div": lambda x, s: (x / s, s / x),
    "floor": lambda x, s: (x.detach() // s, x % s, torch.fmod(x, s)),
    "compare": lambda x, s: (x > s, x <= s, x == s, s != x, s < x),
    "alpha": lambda x, s: (torch.add(x, x, alpha=s), torch.sub(x, x, alpha=s)),
    "addcmul": lambda x, s: (x.addcmul(x, x, value=s), x.addcdiv(x, x * x + 1, value=s)),
    "lerp": lambda x, s: x.lerp(x * 2, s),
    "addmm": lambda x, s: torch.addmm(x[:1], x[:, None], x[None], beta=s, alpha=0.5),
    "addmm alpha": lambda x, s: torch.addmm(x[:1], x[:, None], x[None], alpha=s),
    "clamp": lambda x, s: (x.clamp(min=s), x.clamp(-0.5, s), x.clamp_max(s)),
    "where": lambda x, s: (torch.where(x > 0, x, s), torch.where(x > 0, s, x)),
    "masked fill": lambda x, s: x.masked_fill(x > 0, s),
    "full": lambda x, s: (torch.full((3,), s), torch.full_like(x, s), x.new_full((2,), s)),
    "tensor": lambda x, s: torch.tensor(s) * x.detach(),
    "tensor of several": lambda x, s: (torch.tensor([[s, 1], [2.5, s]]), torch.tensor((s, 3.0))),
    "tensor of a dtype": lambda x, s: torch.as_tensor([x.shape[0], s, 2], dtype=torch.float64),
    "power": lambda x, s: (x.abs() + 0.5) ** s,
    "base": lambda x, s: s**x,
    "threshold": lambda x, s: torch.nn.functional.threshold(x, s, 0.0),
    "leaky": lambda x, s: torch.nn.functional.leaky_relu(x, s),
    "softmax": lambda x, s: torch.softmax(x / s, -1),
    "eps": lambda x, s: torch.nn.functional.layer_norm(x, x.shape, eps=abs(s) + 1e-5),
    "in place": lambda x, s: x.clone().mul_(s).add_(s).sub_(x, alpha=s),
    "fill": lambda x, s: x.detach().clone().fill_(s),
    "item": lambda x, s: (y := x.detach().clone(), y.__setitem__(slice(1, 2), s))[0],
}
PYTHON: dict[str, Form] = {
    "sums": lambda x, s: x * (s + 1 - s * 2),
    "quotients": lambda x, s: x * (s / 7 + 1 / (s + 2.5)),
    "floor": lambda x, s: x * (s // 3) + x * (s % 3) + x * (-s % 2.5) + x * (s // -0.7),
    "powers": lambda x, s: x * s**2 + x * 0.9**s,
    "abs": lambda x, s: x * abs(s) + x * -s,
    "rounded": lambda x, s: x * round(s) + x * int(s) + x * math.floor(s) + x * math.ceil(s),
    "digits": lambda x, s: (x * round(s, 1) + x * -round(s * 3 + 0.1, 2), round(s, 1) * 2),
    "min": lambda x, s: x * min(s, 0.3) + x * max(s, 2) + x * max(0, min(s, 1)),
    "math": lambda x, s: x * math.sqrt(s) + x * math.exp(s) + x * math.log(s) + x * math.cos(s),
    "fabs": lambda x, s: (x * math.fabs(s), math.fabs(s), max(True, s), min(s, False)),
    "branch": lambda x, s: x * s if s > 0.3 else x + s if s else x - s,
    "chain": lambda x, s: x * s if 0 < s <= 1 else -x,
    "bool": lambda x, s: x if bool(s) else -x,
    "float": lambda x, s: x * float(s) + float(s),
    "text": lambda x, s: (x * s, f"{s} {s:.2f}" if s == s else "", str(s)),
    "kind": lambda x, s: x * s if isinstance(s, float) else x + s,
    "equal": lambda x, s: (x, s == 1, s != 0.5, s in (1, 3), s is None),
    "results": lambda x, s: (x, s, s * 2, s - 1),
    "complex": lambda x, s: (x, complex(s, 1)),
}
BOTH: dict[str, Callable[[Tensor, int, float], Any]] = {
    "warm-up": lambda x, i, r: x * (r * min(1.0, i / 10)),
    "decay": lambda x, i, r: x - r * 0.97**i * x,
    "bias": lambda x, i, r: x * (r / (1 - 0.9 ** (abs(i) + 1))),
    "two forms": lambda x, i, r: (x * i + r, x.clamp(-r, i), torch.where(x > r, x, i)),
    "one call": lambda x, i, r: (x.clamp(r, i), torch.add(x, i, alpha=1) * r, x.lerp(x * i, r)),
    "one product": lambda x, i, r: torch.addmm(x[:1], x[:, None], x[None], beta=r, alpha=i),
    "temperature": lambda x, i, r: torch.softmax(x / r, -1) * i,
    "numbers alone": lambda x, i, r: (i * r, i + r, i - r, r // 1 + i, i % 4 * r, i**2 * r),
    "compared": lambda x, i, r: x * i if r < i else x * r,
    "digits": lambda x, i, r: (x * round(r * i, 2) - round(r, 3), f"{r:.2f}"),
    "picked": lambda x, i, r: x * max(i, r) + x * min(i * 1.0, r),
    "rounded": lambda x, i, r: x * round(r * i) + x * int(i * r) + x * (i // (abs(r) + 0.5)),
}


def outcome(program: Callable[..., Any], x: Tensor, *numbers: Any) -> Any:
    """Return the result and all gradients, or the type of the exception."""
    x = x.clone().requires_grad_(x.is_floating_point())
    try:
        given = program(x, *numbers)
        results = list(given) if isinstance(given, tuple) else [given]
        for one in results:
            if isinstance(one, Tensor) and one.requires_grad:
                one.sum().backward(retain_graph=True)
    except Exception as error:
        return type(error)
    return [one.detach() if isinstance(one, Tensor) else one for one in (*results, x.grad)]


def alike(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, type) or isinstance(got, type):
        return got is wanted
    return len(got) == len(wanted) and all(map(_alike, got, wanted))


def _alike(got: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Tensor):
        if type(got) is not type(wanted) or not isinstance(wanted, float):
            return type(got) is type(wanted) and repr(got) == repr(wanted)
        got, wanted = torch.tensor(got), torch.tensor(wanted)
    if got.dtype is not wanted.dtype or got.shape != wanted.shape:
        return False
    zeros = (wanted == 0) & (got == 0)
    signs = not wanted.dtype.is_floating_point or torch.equal(
        got.signbit() & zeros, wanted.signbit() & zeros
    )
    return signs and torch.allclose(got, wanted, rtol=2e-5, atol=1e-7, equal_nan=True)


def run(program: Callable[..., Any], x: Tensor, calls: list[tuple[Any, ...]], **how: Any) -> Any:
    compiled = jitmagic.jit(program, **{"options": {"recompile_limit": 64}, **how})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for numbers in calls:
            wanted, got = outcome(program, x, *numbers), outcome(compiled, x, *numbers)
            assert alike(got, wanted), (numbers, got, wanted)
    return compiled


def traces(compiled: Any) -> list[Trace]:
    handle = handle_of(compiled)
    assert handle is not None
    found = (record.result("trace") for record in handle.journal)
    return [traced for traced in found if traced is not None]


X = torch.tensor([0.5, -0.5, 2.0, -2.0, 0.0, 3.25])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*FORMS, *(f"python {name}" for name in PYTHON)])
def test_each_form(name: str, kind: str) -> None:
    program = FORMS.get(name) or PYTHON[name.removeprefix("python ")]
    run(program, X, [(s,) for s in KINDS[kind]], backend="eager")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    calls = [(s,) for s in (0.5, 0.25, 3.0, -0.0, 3, 1, 0, -1)]
    run(FORMS[name], X.to(dtype), calls, backend="eager")
    of_numpy = [(np.float64(s),) for s in (0.5, 0.25, -0.0, 3.0)]
    run(FORMS[name], X.to(dtype), of_numpy, backend="eager")


@pytest.mark.parametrize("name", BOTH)
def test_float_and_int_together(name: str) -> None:
    calls = [(i, r) for i, r in zip(INTS, FLOATS, strict=False)]
    calls += [(2, 0.5), (5, -0.0), (9, 1.5), (-4, 0.125), (12, math.inf)]
    run(BOTH[name], X, calls, backend="eager")


EVERYDAY = [(n, 1 / (n + 1)) for n in range(1, 17)]


@pytest.mark.parametrize("name", BOTH)
def test_sixteen_pairs_take_two_compiles(name: str) -> None:
    compiled = run(BOTH[name], X, EVERYDAY, backend="eager")
    limit = 3 if name in ("compared", "one call") else 2
    assert len(traces(compiled)) <= limit, [t.specialized for t in traces(compiled)]


@pytest.mark.parametrize("tier", TIERS)
def test_generated_code(tier: str) -> None:
    """Put all forms into few programs, each of which costs a compile."""

    def tensors(x: Tensor, i: int, r: float) -> tuple[Any, ...]:
        return (
            x * r + i, x / i - r, (x > r) * i, x.clamp(-r, i), torch.where(x > i, x, r),
            x.addcmul(x, x, value=r), x.lerp(x * i, r), torch.full((3,), r), torch.full((3,), i),
            torch.add(x, x, alpha=r), (x.abs() + 0.5) ** r, x % i, torch.softmax(x / r, -1),
        )  # fmt: skip

    def numbers(x: Tensor, i: int, r: float) -> tuple[Any, ...]:
        rate = r * min(1.0, i / 10) * 0.97**i
        return x * rate, x * (i // 3 + i % 3), x * (r // 0.3), x * (r % 0.3), x * round(r * i), rate

    how = {"options": {"recompile_limit": 64, **TIERS[tier].get("options", {})}}
    edges = [(7, -0.75), (2**31, 0.5), (3, math.inf), (1, 1e30), (-5, 0.25)]
    for program in (tensors, numbers):
        compiled = run(program, X, [*EVERYDAY, *edges], **how)
        assert any(len([e for e in t.inputs if e.is_scalar]) == 2 for t in traces(compiled))


def test_constant_reports_the_use_and_line_that_needed_it() -> None:
    def program(x: Tensor, i: int, r: float) -> Any:
        y = x * r
        return y, {f"{i}": 1}

    compiled = run(program, X, [(1, 0.5), (2, 0.25), (3, 0.125)], backend="eager")
    (special,) = traces(compiled)[-1].specialized
    assert (special.name, special.where.lineno) == ("i", program.__code__.co_firstlineno + 2)
    assert "an int that varies" in special.why


OF_NUMPY: dict[str, tuple[Callable[[Tensor, Any], Any], int]] = {
    "rate": (lambda x, s: x - s * x.sin() * (1 - s), 2),
    "several": (lambda x, s: (x * (s * 2), x * (s * 3), s * 2, s / 3, -s), 2),
    "functions": (lambda x, s: x * np.sqrt(s) + x * math.cos(math.pi * s), 2),
    "passed on": (lambda x, s: (x, s, [s, {"s": s}]), 1),
    "module": (lambda x, s: torch.nn.functional.leaky_relu(x, s), 2),
    "compared": (lambda x, s: x if s > 0.4 else x + 1, 3),
    "clipped": (lambda x, s: x * min(1.0, s + s), 5),
    "text": (lambda x, s: (x * s, f"{s:.2f}"), 2),
    "remainder": (lambda x, s: (x * (s % 0.2), 1.0 / s, s**2, 2.0**s), 2),
    "of two classes": (lambda x, s: (x * (s * np.float64(0.5)), np.float32(2) * s + np.int8(3)), 2),
}


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", OF_NUMPY)
def test_numpy_floats_vary_unless_their_value_is_used(name: str, kind: Any) -> None:
    program, most = OF_NUMPY[name]
    calls = [(kind(s),) for s in (0.5, 0.25, 0.125, 0.75, 0.3)]
    compiled = run(program, X, calls, options={"cpu_tier": "aten"})
    assert len(traces(compiled)) <= most
    assert all(isinstance(t.exit, Return) for t in traces(compiled))


OF_NUMPY_INTS: dict[str, tuple[Callable[[Tensor, Any], Any], int]] = {
    "sizes": (lambda x, n: (x[:n], torch.zeros(n, 2), x.expand((n, 2, *x.shape)).sum(0)), 3),
    "arithmetic": (lambda x, n: (x * n, x * (2 * n - n // 2 + n % 3), x**n, x * float(n)), 2),
    "passed on": (lambda x, n: (n, n + 1, -n, n * n, n * np.int64(2), [n], x), 2),
    "numbers": (lambda x, n: (int(n), n.item(), f"{n}", x[:1] * math.sqrt(n), abs(int(n))), 2),
    "compared": (lambda x, n: (x if n > 6 else x + 1, n == 7, not n), 4),
    "extremes": (lambda x, n: x[: max(n, 2)] * min(n, 4), 4),
    "quotient": (lambda x, n: x * (n / 4), 2),
    "key": (lambda x, n: x * {5: 2.0}.get(n, 1.0), 2),
}


@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize("name", OF_NUMPY_INTS)
def test_numpy_integers_are_symbols(name: str, kind: Any) -> None:
    """Dtypes other than int64 may wrap around: their numbers are constants, a variant each."""
    program, most = OF_NUMPY_INTS[name]
    calls = [(kind(n),) for n in (5, 6, 9, 7, 3)]
    compiled = run(program, X, calls, options={"cpu_tier": "aten"})
    is_wrapping = kind is np.int32 and name in ("arithmetic", "passed on")
    assert len(traces(compiled)) <= (5 if is_wrapping else most)


LOOKUPS: dict[str, Callable[[int], Any]] = {
    "in a dict": lambda n: n in {5: "a", 20: "b"},
    "in a set": lambda n: n in {7.0, 3},
    "in a frozenset": lambda n: n in frozenset((2, 9)),
    "in a tuple": lambda n: n in (4, 11),
    "get": lambda n: {6: 2.0, "a": 1.0, None: 0.5}.get(n + 1, 3.0),
    "item": lambda n: {True: 2.0, 6: 4.0}.setdefault(n, 1.0),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_number_is_looked_up_by_comparison(name: str) -> None:
    """There is a variant for each key that was found and one for all other numbers."""
    program = lambda x, n: x * LOOKUPS[name](n)  # noqa: E731
    compiled, x = jitmagic.jit(program, backend="aot_eager"), torch.ones(2)
    for n in range(30):
        assert torch.equal(compiled(x, n), program(x, n))
    graphs = [r for r in handle_of(compiled).journal if isinstance(r.result("trace"), Trace)]
    assert len(graphs) <= 5


PLACES: dict[str, Callable[[Tensor, int, Tensor], Any]] = {
    "row": lambda x, p, y: x.__setitem__(p, y),
    "row, a number": lambda x, p, y: x.__setitem__(p, 3.5),
    "row, a number that varies": lambda x, p, y: x.__setitem__(p, p * 0.5),
    "column": lambda x, p, y: x.__setitem__((slice(None), p), y[0]),
    "element": lambda x, p, y: x.__setitem__((p, p), True),
    "slice": lambda x, p, y: x.__setitem__(slice(p, p + 1), y),
    "from behind": lambda x, p, y: x.__setitem__(-p - 1, y),
    "added to": lambda x, p, y: x.__setitem__(p, x[p] + y),
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", PLACES)
def test_index_of_an_assignment_may_vary(name: str, backend: str) -> None:
    """A ring buffer takes two compiles; an index out of range raises as in eager."""
    write = PLACES[name]
    compiled = jitmagic.jit(lambda x, p, y: write(x, p, y), backend=backend)
    ours, eager = torch.zeros(6, 6), torch.zeros(6, 6)
    for step in range(14):
        y = torch.randn(6)
        compiled(ours, step % 6, y)
        write(eager, step % 6, y)
        assert torch.equal(ours, eager)
    graphs = [r for r in handle_of(compiled).journal if isinstance(r.result("trace"), Trace)]
    assert len(graphs) <= 4
    for run in (write, compiled):
        if name != "slice":
            with pytest.raises(IndexError):
                run(ours, 6, y)
    assert torch.equal(ours, eager)


FOLLOWED: dict[str, Form] = {
    "gumbel_softmax": lambda x, s: torch.nn.functional.gumbel_softmax(x, tau=s),
    "hard gumbel_softmax": lambda x, s: torch.nn.functional.gumbel_softmax(x, s, hard=True),
    "normalize": lambda x, s: torch.nn.functional.normalize(x, eps=s),
}


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", FOLLOWED)
def test_torch_python_functions_are_inlined_for_a_varying_number(name: str, backend: str) -> None:
    """The function is inlined: its operations take the number (a temperature), one node cannot."""
    compiled, x = jitmagic.jit(FOLLOWED[name], backend=backend), torch.randn(4, 6)
    for step in range(12):
        temperature = math.exp(-0.1 * step)
        torch.manual_seed(step)
        wanted = FOLLOWED[name](x, temperature)
        torch.manual_seed(step)
        torch.testing.assert_close(compiled(x, temperature), wanted)
    graphs = [r for r in handle_of(compiled).journal if isinstance(r.result("trace"), Trace)]
    assert len(graphs) == 2
