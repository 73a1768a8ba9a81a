"""Subclasses of torch.Tensor with torch's `__torch_function__` or one of the program's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ...covering import covered
from .classes import Scaled
from .compared import BACKENDS, assert_same, check, reasons_of

F = nn.functional
LAYER = nn.Linear(3, 3)


class Kind(Tensor):
    def doubled(self) -> Tensor:
        return self * 2


class Special(Kind):
    pass


class Renames(Tensor):
    """Computes a difference where the program asks for a sum, by the function or a method."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.add, torch.Tensor.add):
            func = torch.sub
        elif func is torch.Tensor.__rsub__:
            func = torch.Tensor.mul
        return super().__torch_function__(func, types, args, kwargs or {})


class Drops(Tensor):
    """Results are plain tensors."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert all(issubclass(cls, kind) for kind in types)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Weight(Scaled):
    """A quantised weight whose products are another formula, as torchao's are."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, dtype: Any, size: object, stride: object) -> Weight:
        return Weight(inner["codes"], inner["scale"], dtype)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight = args
            return (x @ weight.codes.to(x.dtype).t()) * weight.scale.t()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def of(kind: Any, *shape: int) -> Tensor:
    return torch.randn(shape).as_subclass(kind)  # type: ignore[no-any-return]


def _codes() -> Weight:
    return Weight(torch.randint(-9, 9, (5, 3), dtype=torch.int8), torch.rand(5, 1), torch.float32)


def _disabled(x: Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        inside = x + 1
    return inside * 2, x * 2


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "calls and operators": (lambda x: torch.add(x * 2, 1).relu(), lambda n: (of(Kind, 3),)),
    "with plain tensors": (
        lambda x, y: (x + y, y * 2, torch.cat([y, x])),
        lambda n: (of(Kind, 3), torch.randn(3)),
    ),
    "with a more special class": (lambda x, y: x + y, lambda n: (of(Kind, 3), of(Special, 3))),
    "several results": (lambda x: (x.max(0), x.split(2)), lambda n: (of(Kind, 4, 3),)),
    "gradients": (lambda x: (x.sin() * 2).sum(), lambda n: (of(Kind, 3).requires_grad_(),)),
    "a method": (lambda x: x.doubled() + (x + 1).doubled(), lambda n: (of(Kind, 3),)),
    "attributes": (lambda x: (x.T, x.shape, x.dtype), lambda n: (of(Kind, 3, 3),)),
    "in place": (lambda x: x.add_(1), lambda n: (of(Kind, 3),)),
    "functions of torch in Python": (
        lambda x: F.layer_norm(F.gelu(x), (3,)),
        lambda n: (of(Kind, 3, 3),),
    ),
    "a module": (lambda x: LAYER(x), lambda n: (of(Kind, 3, 3),)),
    "its class": (
        lambda x: x + 1 if isinstance(x * 2, Kind) else x - 1,
        lambda n: (of(Kind, 3),),
    ),
    "another class": (
        lambda x: (x.as_subclass(Tensor) * 2, x.as_subclass(Special) + 1),
        lambda n: (of(Kind, 3),),
    ),
    "a function of its own": (
        lambda x: (torch.add(x * 2, 1), x + 1, 1 - x, x.T, 2 * x),
        lambda n: (of(Renames, 3, 3),),
    ),
    "plain results": (lambda x: (torch.add(x * 2, 1), -x, x.shape), lambda n: (of(Drops, 3),)),
    "a block without": (_disabled, lambda n: (of(Renames, 3),)),
    "of a wrapper": (
        lambda x, w: F.linear(x, w).relu(),
        lambda n: (torch.randn(2, 3), _codes()),
    ),
}


@covered(program=PROGRAMS, backend=BACKENDS)
def test_torch_functions_of_subclasses_are_followed(program: str, backend: str) -> None:
    check(*PROGRAMS[program], backend)


def test_classes_that_do_not_agree_are_left_to_eager() -> None:
    class Other(Tensor):
        pass

    x, y = of(Kind, 3), of(Other, 3)
    compiled = jitmagic.jit(lambda x, y: x + y)
    with pytest.raises(
        TypeError, match=r"unsupported operand type\(s\) for \+: 'Kind' and 'Other'"
    ):
        compiled(x, y)
    assert "no `__torch_function__` implements it" in reasons_of(compiled)


def test_a_replaced_torch_function_is_followed_again() -> None:
    compiled = jitmagic.jit(lambda x: torch.add(x, 1))
    x = of(Renames, 3)
    assert_same(compiled(x), torch.add(x, 1))
    before = Renames.__dict__["__torch_function__"]
    try:
        del Renames.__torch_function__
        assert_same(compiled(x), torch.add(x, 1))
    finally:
        Renames.__torch_function__ = before  # type: ignore[method-assign]
