"""Represents single elements of tensors in formulas of users: `Scalar`, and functions of it.

Input: Python's operators and calls of `scalar.exp(x)` in a function that was registered by
`register_lowering`. Output: the values that a `Builder` makes of them (loops/registered.py).
`register_scalar` adds functions: rows of the table of scalar operations (operators/scalar.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, Unpack, overload

import torch

from ..errors import UsageError
from ..operators.scalar import LANGUAGES, ScalarOperation, register, unregister
from .registry import Registration, Registry, as_decorator

__all__ = ["Builder", "Scalar", "register_scalar", "scalar"]

Number = bool | int | float
TensorFunction = Callable[..., torch.Tensor]


class Builder(Protocol):
    """The interface of the stage that makes values of formulas."""

    def apply(self, name: str, args: tuple[object, ...]) -> Scalar: ...
    def convert(self, value: Scalar, dtype: torch.dtype) -> Scalar: ...
    def reduce(self, name: str, value: Scalar) -> Scalar: ...


def _operator(name: str) -> Callable[[Scalar, Any], Scalar]:
    return lambda self, other: self.builder.apply(name, (self, other))


def _reflected(name: str) -> Callable[[Scalar, Any], Scalar]:
    return lambda self, other: self.builder.apply(name, (other, self))


def _unary(name: str) -> Callable[[Scalar], Scalar]:
    return lambda self: self.builder.apply(name, (self,))


def _reduction(name: str) -> Callable[[Scalar], Scalar]:
    return lambda self: self.builder.reduce(name, self)


class Scalar:
    """One element of a tensor, or a number that is known only at run time.

    weak: whether it takes the dtype of other operands, as Python's numbers do
    """

    __slots__ = ("builder", "dtype", "value", "weak")

    def __init__(self, builder: Builder, value: Any, dtype: torch.dtype, weak: bool) -> None:
        self.builder, self.value, self.dtype, self.weak = builder, value, dtype, weak

    def to(self, dtype: torch.dtype) -> Scalar:
        """Convert as `Tensor.to` does."""
        return self.builder.convert(self, dtype)

    def __bool__(self) -> bool:
        raise UsageError("the value of a Scalar is not known here: use scalar.where(c, x, y)")

    __hash__ = None  # type: ignore[assignment]
    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("truediv"), _reflected("truediv")
    __pow__, __rpow__ = _operator("pow"), _reflected("pow")
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # type: ignore[assignment]
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __and__, __rand__ = _operator("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor"), _reflected("bitwise_xor")
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("bitwise_not")

    sum, prod, mean = _reduction("sum"), _reduction("prod"), _reduction("mean")
    max, min = _reduction("max"), _reduction("min")
    any, all = _reduction("any"), _reduction("all")


class _Functions:
    """The scalar operations by name: `scalar.exp(x)`, `scalar.where(condition, x, y)`."""

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*args: Scalar | Number) -> Scalar:
            for one in args:
                if isinstance(one, Scalar):
                    return one.builder.apply(name, args)
            raise UsageError(f"scalar.{name} takes at least one Scalar, use math for numbers")

        return function


scalar = _Functions()
_REGISTERED: Registry[ScalarOperation] = Registry("scalar operation", on_remove=unregister)


class ScalarFacts(TypedDict, total=False):
    """The keywords of `register_scalar`."""

    arity: int
    cpp: str
    triton: str
    numba: str
    texts: Mapping[str, str]
    cost: int
    operands: str
    boolean: bool


@overload
def register_scalar(
    name: str, reference: TensorFunction, /, **facts: Unpack[ScalarFacts]
) -> Registration: ...
@overload
def register_scalar(
    name: str, /, **facts: Unpack[ScalarFacts]
) -> Callable[[TensorFunction], TensorFunction]: ...


def register_scalar(
    name: str, reference: TensorFunction | None = None, /, **facts: Unpack[ScalarFacts]
) -> Registration | Callable[[TensorFunction], TensorFunction]:
    """Register a scalar operation, for lowerings: `scalar.name(x)`.

    reference: a function of tensors that computes it elementwise, for jitmagic's checks
    arity: the number of operands, 1 by default
    cpp, triton, numba: expressions in C++, Triton and Python (compiled by numba). {0}, {1} and {2}
        are the operands, {t} is their type. Kernels in a language without one are not built, and
        the next language is used instead. C++ of + - * / and scalar operations is vectorised
    texts: expressions by the names of registered renderers
    cost: in additions, 10 by default
    operands: "floats" (of 32 or 64 bits, the default), "integers", "numbers", "bools", or "any"
    boolean: whether the result is a bool; otherwise it has the dtype of the operands

    With a function, it returns a `Registration`, which a `with` block removes at its end; without
    one, a decorator. Raises UsageError for a name that is taken, and for a wrong expression.
    """
    if reference is None:
        return as_decorator(lambda reference: register_scalar(name, reference, **facts))
    rest: dict[str, Any] = {"arity": 1, "operands": "floats", "cost": 10, **facts}
    if unknown := [fact for fact in rest if fact not in ScalarFacts.__annotations__]:
        raise UsageError.unknown("argument", unknown[0], ScalarFacts.__annotations__)
    texts = {**rest.pop("texts", {})}
    texts |= {language: rest.pop(language) for language in LANGUAGES if language in rest}
    row = ScalarOperation(name, rest.pop("arity"), reference, rest.pop("operands"), **rest)
    register(row, texts)
    return _REGISTERED.add(name, row)
