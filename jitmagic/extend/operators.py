"""Registers facts and formulas of operators: of torch.library, or of torch itself.

Input: an overload and functions of the user. Output: rows of the three registries in
operator_rows.py.

An error in such a function is an `ExtensionFailed`, which names the operator and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from torch import Tag

from ..compat.operators import CustomOpDef, OpOverload, OpOverloadPacket
from ..errors import UsageError
from ..lazy_dataclass import replace
from ..operators.operation import operation
from ..torch_types import AnyFunction
from .operator_rows import (
    DECOMPOSITIONS,
    LOWERINGS,
    OPERATORS,
    Dims,
    RegisteredDecomposition,
    RegisteredLowering,
)
from .registry import Registration, as_decorator

__all__ = [
    "register_decomposition",
    "register_lowering",
    "register_operator",
]


def register_operator(
    overload: object,
    /,
    *,
    shape: AnyFunction | None = None,
    writes: tuple[str, ...] = (),
    cost: AnyFunction | None = None,
    pure: bool = False,
    raises: bool = False,
) -> Registration:
    """Register facts of an operator, such as `torch.ops.library.name.default`.

    shape: a function of the operator's arguments, in which tensors have no data (device meta). It
        returns such tensors with the shapes, dtypes and strides of the results. Sizes may be
        symbolic; `torch.library.get_ctx().new_dynamic_size()` makes one that depends on data.
        Without it, the fake kernel decides (`torch.library.register_fake`).
    writes: the names of arguments that the kernel writes to although the schema does not declare it
    cost: a function of the same arguments as `shape` that returns the number of arithmetic
        operations of a call. jitmagic then may compute a result again in a backward instead of
        saving it, if the operator is pure, and reports show the number.
    pure: the kernel does nothing but compute its results. Unused calls are then left out, and equal
        ones are computed once. An operator with a decomposition or a lowering always is.
    raises: the kernel may raise because of the data of its arguments, so that even unused calls run

    Returns a `Registration`, which a `with` block removes at its end. Raises UsageError if there
    are facts of the operator already, and for arguments that do not fit.
    """
    op = _overload_of(overload)
    for role, function in (("shape", shape), ("cost", cost)):
        if function is not None and not callable(function):
            raise UsageError(f"{role} is a function of the operator's arguments, not {function!r}")
    arguments = [argument.name for argument in op._schema.arguments]
    for written in writes:
        if written not in arguments:
            raise UsageError.unknown(f"argument of {op}", written, arguments)
    known = operation(op._schema.name.removeprefix("aten::"))
    row = replace(known, shape=shape, writes=tuple(writes), cost=cost, is_pure=pure)
    row = replace(row, raises="data") if raises else row
    return OPERATORS.add(str(op), row)


@overload
def register_decomposition(op: object, run: AnyFunction, /) -> Registration: ...
@overload
def register_decomposition(op: object, /) -> Callable[[AnyFunction], AnyFunction]: ...


def register_decomposition(
    op: object, run: AnyFunction | None = None, /
) -> Registration | Callable[[AnyFunction], AnyFunction]:
    """Register `run(*arguments) -> results`, which computes an operator by other torch operations.

    It replaces the operator's kernel in compiled code, so that its parts are fused with what is
    around it. Gradients are those that were registered for the operator. It may raise
    NotImplementedError to leave a call to the kernel. Results must have the shapes and dtypes that
    the operator has. It may not write to its arguments.

    With a function, it returns a `Registration`, which a `with` block removes at its end; without
    one, a decorator. Raises UsageError for an operator that writes to its arguments or draws random
    numbers, and if a decomposition of it is registered already.
    """
    if run is None:
        return as_decorator(lambda run: register_decomposition(op, run))
    name = str(_formula_target(op))
    return DECOMPOSITIONS.add(name, RegisteredDecomposition(name, _function(run)))


@overload
def register_lowering(
    op: object, run: AnyFunction, /, *, over: Dims | None = None
) -> Registration: ...
@overload
def register_lowering(
    op: object, /, *, over: Dims | None = None
) -> Callable[[AnyFunction], AnyFunction]: ...


def register_lowering(
    op: object, run: AnyFunction | None = None, /, *, over: Dims | None = None
) -> Registration | Callable[[AnyFunction], AnyFunction]:
    """Register `run(*arguments) -> result`, which computes one element of an operator's result.

    Each tensor among the arguments is a `Scalar`: its element at the same place, after
    broadcasting. Scalars have Python's operators, `.to(dtype)` and the functions of
    `jitmagic.extend.scalar`. 16-bit floats are computed in float32; the result is converted to the
    dtype of the operator's result. Several results are a tuple.

    over: dimensions that `.sum()`, `.mean()`, `.prod()`, `.max()`, `.min()`, `.any()` and `.all()`
        of a scalar combine: an int, several, or the name of the operator's argument that has them.
        The result has these dimensions, or not, or with size 1.

    The formula becomes part of the kernels around it. It may raise NotImplementedError to leave a
    call to the operator's kernel.

    With a function, it returns a `Registration`, which a `with` block removes at its end; without
    one, a decorator. Raises UsageError for an operator that writes to its arguments or draws random
    numbers, and if a lowering of it is registered already.
    """
    if run is None:
        return as_decorator(lambda run: register_lowering(op, run, over=over))
    found = _formula_target(op)
    arguments = [argument.name for argument in found._schema.arguments]
    if isinstance(over, str) and over not in arguments:
        raise UsageError.unknown(f"argument of {found}", over, arguments)
    row = RegisteredLowering(str(found), _function(run), over)
    return LOWERINGS.add(row.name, row)


def _function(given: Any) -> AnyFunction:
    if not callable(given):
        raise UsageError(f"a formula is a function of the operator's arguments, not {given!r}")
    return given  # type: ignore[no-any-return]


def _formula_target(given: object) -> OpOverload:
    """Return the overload. Raises UsageError if its results are not all that it does."""
    op = _overload_of(given)
    if op._schema.is_mutable:
        raise UsageError(f"{op} writes to its arguments, which a formula cannot")
    if Tag.nondeterministic_seeded in op.tags:
        raise UsageError(f"{op} draws random numbers, which a formula cannot")
    return op


def _overload_of(given: Any) -> OpOverload:
    """Return the overload of an operator that has only one on tensors without `out=`."""
    if isinstance(given, CustomOpDef):
        given = given._opoverload
    if isinstance(given, OpOverload):
        return given
    if isinstance(given, OpOverloadPacket):
        overloads = [getattr(given, name) for name in given.overloads()]
        found = [op for op in overloads if _is_usual(op)]
        if len(found) == 1:
            return found[0]  # type: ignore[no-any-return]
        known = ", ".join(map(str, found or overloads))
        raise UsageError(f"{given} has several overloads, choose one: {known}")
    raise UsageError(f"an operator is an overload like torch.ops.aten.relu.default, not {given!r}")


def _is_usual(op: OpOverload) -> bool:
    arguments = op._schema.arguments
    takes_tensor = any("Tensor" in str(argument.type) for argument in arguments)
    return takes_tensor and not any(argument.is_out for argument in arguments)
