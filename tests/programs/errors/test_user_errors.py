"""Errors of the user's own, through jitmagic.jit: type, message and line are eager's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED


def seen_error(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[type, str, Any]:
    """Type and message of what a call raises, and the innermost line of this file on the way."""
    with pytest.raises(Exception) as caught:
        fn(*args, **kwargs)
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [(f.filename, f.lineno, f.name) for f in frames[1:] if f.filename == __file__]
    return type(caught.value), str(caught.value), own[-1] if own else None


def wants(a: Tensor, b: Tensor, *, scale: float) -> Tensor:
    return (a + b) * scale


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {"scale": 1}),
        ((1, 2), {}),
        ((1, 2, 3), {"scale": 1}),
        ((1, 2), {"scale": 1, "other": 2}),
        ((1, 2), {"scale": 1, "a": 2}),
    ],
)
def test_wrong_arguments_read_as_in_eager(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    run = jitmagic.jit(wants)
    assert seen_error(run, *args, **kwargs)[:2] == seen_error(wants, *args, **kwargs)[:2]
    x = torch.ones(2)
    assert torch.equal(run(x, x, scale=2.0), wants(x, x, scale=2.0))


class Method(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_wrong_arguments_of_modules_read_as_in_eager() -> None:
    eager, run = Method(), jitmagic.jit(Method())
    assert seen_error(run)[:2] == seen_error(eager)[:2]
    assert seen_error(run, 1, 2)[:2] == seen_error(eager, 1, 2)[:2]


def lookup(table: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.embedding(ids, table) * 2


def gathered(x: Tensor, ids: Tensor) -> Tensor:
    return x[ids] * 2 + 1


def mismatched(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    return z @ y


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    return (z + y).sum()


def refuses(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    if x.shape[0] == 3:
        raise ValueError(f"no rows of {x.shape[0]}")
    return z


def nested(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    return inner(z) * 2


def inner(x: Tensor) -> Tensor:
    y = x.sin()
    return y.reshape(7, 7)


def missing_key(x: Tensor, y: Tensor) -> Tensor:
    table = {"a": y}
    return x + table["b"]


def asserting(x: Tensor, y: Tensor) -> Tensor:
    assert x.shape[0] == 2, "two rows"
    return x * y


def after_a_break(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    n = int(z.sum().item() * 0)
    return z.reshape(7, n + 7)


def data_error(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    if bool((y == y).all()):
        raise RuntimeError("all equal")
    return z


ROWS = (torch.ones(3, 4), torch.ones(3, 4))
ERRORS = [
    (lookup, (torch.randn(4, 3), torch.tensor([1, 9]))),
    (gathered, (torch.randn(4, 3), torch.tensor([1, 9]))),
    (mismatched, (torch.randn(2, 3), torch.randn(4, 5))),
    (broadcast, (torch.randn(2, 3), torch.randn(4, 5))),
    *((fn, ROWS) for fn in (refuses, nested, missing_key, asserting, after_a_break, data_error)),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("fn", "args"), ERRORS, ids=lambda v: getattr(v, "__name__", None))
def test_errors_are_eagers_own(fn: Callable[..., Any], args: tuple[Any, ...], grad: bool) -> None:
    if grad:
        args = tuple(a.clone().requires_grad_(a.is_floating_point()) for a in args)
    run = jitmagic.jit(fn)
    expected = seen_error(fn, *args)
    assert expected[2] is not None
    for _ in range(3):
        assert seen_error(run, *args) == expected


def gathers(x: Tensor, ids: Tensor) -> Tensor:
    return x.gather(0, ids.unsqueeze(-1)) * 2


def selects(x: Tensor, ids: Tensor) -> Tensor:
    return x.index_select(0, ids) * 2


def writes(x: Tensor, ids: Tensor) -> Tensor:
    y = x.clone()
    y[ids] = 0.0
    return y * 2


def one_hot(x: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.one_hot(ids, 4) @ x.long()


def classified(x: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(x[:2], ids)


def divided(x: Tensor, ids: Tensor) -> Tensor:
    return ids // (9 - ids)


def at_a_fraction(x: Tensor, ids: Tensor) -> Tensor:
    return x.quantile((4.0 - ids) / 4, dim=0) * 2


def mutating(x: Tensor, ids: Tensor) -> Tensor:
    z = x.clone()
    x.mul_(1)
    return z[ids] + x.sum()


BY_INDEX = [
    lookup,
    gathered,
    gathers,
    selects,
    writes,
    one_hot,
    classified,
    divided,
    at_a_fraction,
    mutating,
]


@pytest.mark.parametrize("fn", BY_INDEX, ids=lambda fn: fn.__name__)
def test_an_index_out_of_range_at_run_time(fn: Callable[..., Any]) -> None:
    """The graph was compiled with good indices; the same shapes then carry a bad one."""
    run = jitmagic.jit(fn)
    table, good, bad = torch.randn(4, 3), torch.tensor([1, 2]), torch.tensor([1, 9])
    torch.testing.assert_close(run(table, good), fn(table, good))
    expected = seen_error(fn, table, bad)
    for _ in range(2):
        assert seen_error(run, table, bad) == expected
        torch.testing.assert_close(run(table, good), fn(table, good))


def test_a_user_error_leaves_the_compiled_variants_alone() -> None:
    run = jitmagic.jit(refuses)
    x, bad = torch.ones(2, 4), torch.ones(3, 4)
    run(x, x)
    assert seen_error(run, bad, bad)[0] is ValueError
    assert torch.equal(run(x, x), x + x)
    assert handle_of(run).outcome == COMPILED


class WithoutTables(nn.Module):
    def __init__(self) -> None:
        pass  # super().__init__() was forgotten

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_a_module_that_was_not_initialised() -> None:
    module = WithoutTables()

    def call(x: Tensor) -> Tensor:
        return module(x)

    assert seen_error(jitmagic.jit(call), torch.ones(2)) == seen_error(call, torch.ones(2))
