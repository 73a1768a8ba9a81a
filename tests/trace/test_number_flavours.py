"""Operations on numbers that vary, for each flavour, are those of Python or raise as in Python.

A flavour is where the number comes from: an argument, a numpy scalar, a size, data of a tensor, a
comparison of such. Each operation is called at edge values in turn, on one compiled function.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

np = pytest.importorskip("numpy")

MANY = {"recompile_limit": 64}
FLOATS = (1.5, 2.5, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e300, -3.25)
INTS = (3, 5, 0, -4, 2**31, 2**62, -(2**63), 2**70, 7)
WIDTHS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
GIVEN: dict[str, tuple[Any, ...]] = {
    "float": FLOATS,
    "int": INTS,
    "int, then float, then bool": (3, 4, 2.5, 3.5, True, False, 6),
    "numpy float64": tuple(map(np.float64, FLOATS)),
    "numpy float32": tuple(map(np.float32, (1.5, 2.5, 0.0, -0.0, math.nan, math.inf, 1e30))),
    "numpy widths": tuple(kind(n) for kind in WIDTHS for n in (3, 5, 0)),
    "numpy edges": tuple(kind(np.iinfo(kind).max) for kind in WIDTHS),
}


def read_float(x: Tensor, s: Any) -> Any:
    return (x * 0 + float(s)).max().item()


def read_int(x: Tensor, s: Any) -> Any:
    return (x[:1].long() * 0 + int(s)).item()


def read_bool(x: Tensor, s: Any) -> Any:
    return (x * 0 + 1 > float(s)).any().item()


def compared(x: Tensor, s: Any) -> Any:
    return x.sum().item() > float(s)


def size(x: Tensor, s: Any) -> Any:
    return x.shape[0]


SOURCES: dict[str, Callable[[Tensor, Any], Any]] = {
    "given": lambda x, s: s,
    "read float": read_float, "read int": read_int, "read bool": read_bool,
    "compared": compared, "size": size,
}  # fmt: skip


def attempt(function: Callable[[], Any]) -> Any:
    """Return the result, or the type of what is raised, to which the program goes on."""
    try:
        return function()
    except (ArithmeticError, TypeError, ValueError, AttributeError) as error:
        return type(error).__name__


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda n, op=getattr(operator, name): (op(n, 3), op(2.5, n))  # type: ignore[misc]
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")
    },
    "power": lambda n: n**2,
    "bits": lambda n: (n & 6, n >> 1, ~n),
    "order": lambda n: (n < 3, n >= 2.5, 3 > n),
    "equality": lambda n: (n == 3, n != 0, n == True, n == None, n == "3", n in (1, 3)),  # noqa: E711, E712
    "truth": lambda n: (1 if n else 2, not n, n and 5),
    "signs": lambda n: (-n, +n, abs(n)),
    "conversions": lambda n: (float(n), bool(n), int(n)),
    "rounding": lambda n: (math.floor(n), math.ceil(n), math.trunc(n), round(n)),
    "math": lambda n: (math.sqrt(n), math.isnan(n), math.isinf(n)),
    "text": lambda n: (f"{n}", str(n), repr(n)),
    "format": lambda n: f"{n:.3f}",
    "key": lambda n: {n: 1, "b": 2}.get(3, 7),
    "extremes": lambda n: (min(n, 2), max(n, 2), sum([n, 1])),
    "divmod": lambda n: divmod(n, 4),
    "identity": lambda n: (n is None, n is n),
    "itself": lambda n: (n + n, n - n, n == n, n < n),
    "of numpy": lambda n: (
        n == np.float32(0.1),
        np.float64(0.1) - n,
        n * np.int64(3),
        n / np.int8(3),
    ),
    "rounded": lambda n: (n + 16777217, n * 1e30, n % np.float32(0.3), n // 0.25, n + True),
    "arrays": lambda n: (n * np.ones(2), n < np.ones(2)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy
@pytest.mark.parametrize("source", SOURCES)
def test_an_operation_gives_what_python_gives(source: str) -> None:
    wrong = []
    given = GIVEN if source == "given" else {"": (1.5, 0.0, math.inf, -0.0, 7.0)}
    if source == "read int":
        given = {"": (3, 0, -4, 2**31, 2**62, -(2**63))}
    x = torch.arange(1.0, 4.0)
    for name, operation in OPERATIONS.items():

        def program(x: Tensor, s: Any, operation: Any = operation) -> Any:
            number = SOURCES[source](x, s)
            return x + 1, attempt(lambda: operation(number)), number

        for kind, values in given.items():
            compiled = jitmagic.jit(program, backend="eager", options=MANY)
            for value in values:
                xs = (
                    x
                    if source != "size"
                    else torch.ones(abs(int(value)) % 5 + 1 if value < 9 else 2)
                )
                got, wanted = compiled(xs, value), program(xs, value)
                if repr(got[1:]) != repr(wanted[1:]) or not torch.equal(got[0], wanted[0]):
                    wrong.append(f"{name} of {kind} {value!r}: {got[1:]}, not {wanted[1:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "values"), [("__abs__", (3, -4, 5)), ("item", tuple(map(np.int64, INTS[:4])))]
)
def test_a_bound_method_of_a_number_can_be_returned(name: str, values: tuple[Any, ...]) -> None:
    def program(x: Tensor, n: Any) -> Any:
        method = getattr(n, name)
        return x + method(), method, type(method)

    compiled = jitmagic.jit(program, backend="eager", fullgraph=True)
    for value in values:
        _, method, kind = compiled(torch.ones(2), value)
        assert repr(method()) == repr(getattr(value, name)())
        assert kind is type(getattr(value, name))


def test_a_check_of_a_bool_in_a_tensor_is_in_the_graph_and_raises_as_eager_does() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check((x > 0).all().item(), lambda: "not positive")
        torch._check(x.sum().item() < 10)
        return x * 2

    compiled = jitmagic.jit(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    for wrong in (-torch.ones(3), torch.full((3,), 7.0)):
        with pytest.raises(RuntimeError) as wanted:
            program(wrong)
        with pytest.raises(RuntimeError) as got:
            compiled(wrong)
        assert str(got.value) == str(wanted.value)
