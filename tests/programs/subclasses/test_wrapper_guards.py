"""A call with another wrapper, other metadata or other methods is compiled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic

from ..counts import counts_of
from .classes import Slotted, TwoTensor, scaled, two
from .compared import assert_same, reasons_of


def variants(calls: list[tuple[Any, ...]], program: Callable[..., Any]) -> int:
    """Return the number of graphs that the calls compile; each is compared with eager's result."""
    compiled = jitmagic.jit(program, dynamic=False)
    for args in calls:
        assert_same(compiled(*args), program(*args))
    return counts_of(compiled).graphs


def slotted(factor: object) -> tuple[Slotted]:
    return (Slotted(torch.ones(3), factor),)


DOUBLE = TwoTensor(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
CALLS: dict[str, tuple[int, list[tuple[Any, ...]]]] = {
    "equal metadata": (1, [slotted(2.0), slotted(2.0), slotted(float("2"))]),
    "other metadata": (2, [slotted(2.0), slotted(3.0), slotted(2.0), slotted(3.0)]),
    "another class": (2, [(two(3),), (torch.ones(3),), slotted(2.0)][:2]),
    "another dtype inside": (2, [(two(3),), (DOUBLE,)]),
    "another size": (2, [(two(3),), (two(4),), (two(3),)]),
    "other strides": (2, [(two(3, 4),), (two(4, 3).t(),)]),
    "another flag": (2, [(two(3),), (two(3).requires_grad_(),)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_metadata_are_guarded(name: str) -> None:
    graphs, calls = CALLS[name]
    assert variants(calls, lambda x: x * 2) == graphs


def test_a_changed_dispatch_function_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitmagic.jit(lambda x: x * 2)
    x = two(3)
    compiled(x)

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TwoTensor(args[0].a * 5, args[0].b * 7)

    monkeypatch.setattr(TwoTensor, "__torch_dispatch__", classmethod(dispatch))
    result = compiled(x)
    torch.testing.assert_close(result.a, x.a * 5)
    assert counts_of(compiled).graphs == 2


def test_metadata_that_cannot_be_compared_are_a_graph_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Slotted, "__tensor_flatten__", lambda self: (["_value"], torch.ones(3)))
    compiled = jitmagic.jit(lambda x: x * 2)
    (x,) = slotted(2.0)
    torch.testing.assert_close(compiled(x)._value, (x * 2)._value)
    assert "raises RuntimeError: Boolean value of Tensor" in reasons_of(compiled)


def test_metadata_that_change_in_place_are_noticed() -> None:
    compiled = jitmagic.jit(lambda x: x * 2)
    (x,) = slotted([2.0, 1.0])
    assert_same(compiled(x), x * 2)
    x.factor[0] = 5.0
    assert_same(compiled(x), x * 2)


def test_a_wrong_flatten_is_a_graph_break_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def flatten(self: Any) -> Any:
        raise ValueError("not today")

    monkeypatch.setattr(Slotted, "__tensor_flatten__", flatten)
    compiled = jitmagic.jit(lambda x: x * 2)
    (x,) = slotted(2.0)
    torch.testing.assert_close(compiled(x)._value, (x * 2)._value)
    assert "raises ValueError: not today" in reasons_of(compiled)


def test_equal_weights_share_a_variant() -> None:
    calls = [(torch.randn(2, 4), scaled(3, 4)), (torch.randn(2, 4), scaled(3, 4))]
    assert variants(calls, torch.nn.functional.linear) == 1
