"""Defines a row per torch operation, and the table that finds rows by name.

An operation is a function, a method or an ATen packet: `dropout`, `index_add`, `linalg_svd`. Its
row has facts that neither schema nor tags declare: what kernels raise on data, what they draw and
write, which dtypes they take. Rules that are code (shapes, decompositions, lowerings) register in
their stages. An operation without a row has the facts of `Operation()`.

A row holds for all spellings: `index_add_` in place, `__iadd__`, `operator.iadd` and torch's
aliases. A row whose name ends in `*` holds for names with that beginning that have no row of their
own. The row of a scalar operation gives the facts of the ATen packet that computes it.
`jitmagic.extend.register_operator` adds rows of single overloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from ..compat.operators import OpOverload, OpOverloadPacket
from ..errors import VerifyError
from ..lazy_dataclass import dataclass, replace
from .scalar import SCALARS, ScalarOperation

__all__ = [
    "ALL",
    "FLOATS",
    "FRACTIONS",
    "INTEGERS",
    "NO_BOOLS",
    "ORDERED",
    "Draws",
    "Flag",
    "Operation",
    "canonical",
    "define",
    "has_row",
    "is_elementwise",
    "is_in_place",
    "kind_of",
    "operation",
    "overloads_named",
    "rows",
    "takes_device",
    "tensor_first",
    "work_of",
]

ALL = frozenset(("bool", "integer", "float", "complex"))
NO_BOOLS, ORDERED, INTEGERS = ALL - {"bool"}, ALL - {"complex"}, frozenset(("bool", "integer"))
FLOATS, FRACTIONS = frozenset(("float",)), frozenset(("float", "complex"))


class Flag(NamedTuple):
    """An argument that switches something on, with its value in calls that leave it out."""

    name: str
    position: int
    default: bool

    def in_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return whether it is on. A value that varies counts as on."""
        at, default = self.position, self.default
        given = kwargs.get(self.name, args[at] if at < len(args) else default)
        return default if given is None else not isinstance(given, int | float) or bool(given)


@dataclass(frozen=True, slots=True)
class Draws:
    """Describes an operation that draws random numbers, always or while `switch` is on."""

    switch: Flag | None = None

    def in_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return whether the call may draw."""
        return self.switch is None or self.switch.in_call(args, kwargs)


@dataclass(frozen=True, slots=True)
class Operation:
    """Facts of an operation.

    raises: "data": kernels refuse some values; "often": values that occur in practice, so that
        programs catch the error; "zero": an integer divisor of 0
    draws: whether and when it draws random numbers; None means as the tags say
    statistics: the flag that makes it update running statistics, which its schema hides
    takes: kinds of numbers that kernels take in the first tensor
    operands: "one kind" (of one dtype, no bools), "one dtype", "floats", or "any"
    index: dtypes that kernels take in the second tensor, an index or a mask; empty: any
    has_labels: the second tensor may have class numbers
    is_elementwise: None means as the tags say
    promotion: the dtype of an elementwise result: "common" to its operands, "equal" (operands have
        one dtype), "floating" (the common one, or the default dtype for integers), "bool", or that
        of the "first" operand
    arity: the number of arguments that take part in that promotion
    accepts: kinds of numbers that kernels are known to take in all operands
    work: additions that one element costs, if an elementwise result is cheap to compute again
    exact_numbers: a Python number gives the bits that a 0-dim tensor of the dtype of the other
        operand, float32 or float64, gives
    floats_are_data: no float argument decides the shape, the dtype or the strides of the result
    is_product: a matrix product or a convolution, which GPUs have for floats alone
    can_be_probed: whether kernels take the values of stand-ins
    size_at: the position of the size of a new tensor, which kernels take in any case
    scatters: it writes other elements than it reads
    mixes: tensors of other devices that it takes: "scalars" (0-dim CPU tensors as numbers),
        "indexes" on the CPU, "any", or none
    kernel_strides: whether kernels choose the strides of results, so that meta kernels may differ
    shape, writes, cost, is_pure: as `jitmagic.extend.register_operator` takes them
    """

    raises: str = ""
    draws: Draws | None = None
    statistics: Flag | None = None
    takes: frozenset[str] = ALL
    operands: str = "any"
    index: tuple[torch.dtype, ...] = ()
    has_labels: bool = False
    is_elementwise: bool | None = None
    promotion: str = ""
    arity: int = 0
    accepts: frozenset[str] = FLOATS
    work: int = 0
    exact_numbers: bool = False
    floats_are_data: bool = False
    is_product: bool = False
    can_be_probed: bool = True
    size_at: int | None = None
    scatters: bool = False
    mixes: str = ""
    kernel_strides: bool = False
    shape: Callable[..., Any] | None = None
    writes: tuple[str, ...] = ()
    cost: Callable[..., Any] | None = None
    is_pure: bool = False


_ROWS: dict[str, Operation] = {}
_NONE = Operation()


def define(names: str, **facts: Any) -> None:
    """Add a row for each name. Raises VerifyError if one has a row already."""
    row = replace(_NONE, **facts)
    for name in names.split():
        if name in _ROWS:
            raise VerifyError(f"there are two rows of the operation {name}")
        _ROWS[name] = row


@cache
def operation(name: str) -> Operation:
    """Return the row of an operation, by any of its spellings."""
    row, scalar = _row(name), _packets().get(canonical(name))
    return row if scalar is None else replace(row, **_facts_of(scalar))


def _row(name: str) -> Operation:
    for spelling in (name, canonical(name)):
        if (row := _ROWS.get(spelling)) is not None:
            return row
    plain = canonical(name)
    stems = [stem for stem in _ROWS if stem.endswith("*") and plain.startswith(stem[:-1])]
    return _ROWS[max(stems, key=len)] if stems else _NONE


def has_row(name: str) -> bool:
    """Return whether the operation has facts of its own under this very name."""
    return name in _ROWS or name in _packets()


def rows() -> Iterator[tuple[str, Operation]]:
    """Yield each operation that has facts of its own."""
    for name in dict.fromkeys((*_ROWS, *_packets())):
        yield name, operation(name)


@cache
def _packets() -> dict[str, ScalarOperation]:
    return {row.packet: row for row in SCALARS.values() if row.packet}


_PROMOTIONS = {
    **dict.fromkeys(("float", "float_wide"), "floating"),
    **dict.fromkeys(("compare", "logic", "predicate"), "bool"),
}


def _facts_of(scalar: ScalarOperation) -> dict[str, Any]:
    """Return the facts of a packet that computes a scalar operation."""
    by_operands = "first" if scalar.arity == 1 else "common"
    facts: dict[str, Any] = {"arity": scalar.arity, "work": scalar.cost}
    facts["promotion"] = _PROMOTIONS.get(scalar.rule, by_operands)
    if scalar.arity > 1:
        facts["mixes"] = "scalars"
    if scalar.rule == "integral":
        return {**facts, "takes": INTEGERS, "accepts": INTEGERS}
    is_total = scalar.rule in _PROMOTIONS or scalar.of_bools is not None
    return {**facts, "accepts": ORDERED} if is_total else facts


def overloads_named(name: str) -> list[OpOverload]:
    """Return the overloads of the ATen packet with this name, none if there is no such packet."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return []
    return [getattr(packet, each) for each in packet.overloads()]


@cache
def takes_device(op: str | OpOverload) -> bool:
    """Return whether an overload, or any overload of a name, has an option `device`."""
    overloads = overloads_named(op) if isinstance(op, str) else [op]
    arguments = (argument for each in overloads for argument in each._schema.arguments)
    return any(argument.name == "device" and argument.kwarg_only for argument in arguments)


_TENSOR_FIRST = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "self")


def tensor_first(name: str) -> list[OpOverload]:
    """Return the functional overloads of a packet whose first operand is a tensor."""
    return [op for op in overloads_named(name) if op._overloadname in _TENSOR_FIRST]


@cache
def _work() -> dict[object, int]:
    return {op: row.work for name, row in rows() if row.work for op in tensor_first(name)}


def work_of(op: object) -> int:
    """Return the additions that an element of a cheap elementwise overload costs, else 0."""
    return _work().get(op, 0)


_OF_LISTS = "_foreach_"


@cache
def is_elementwise(op: str | OpOverload) -> bool:
    """Return whether an overload, or any overload of a name, computes each element of its result
    from the elements at the same place.
    """
    name = op if isinstance(op, str) else op._opname
    known = operation(name.removeprefix(_OF_LISTS)).is_elementwise
    if isinstance(op, OpOverload) and not name.startswith(_OF_LISTS):
        return torch.Tag.pointwise in op.tags or bool(known)
    if known is not None:
        return known
    overloads = overloads_named(canonical(name).removeprefix(_OF_LISTS))
    return any(torch.Tag.pointwise in each.tags for each in overloads)


# Python's operators, by the names of the module `operator`.
_PYTHON = {
    **{name: name for name in ("add", "sub", "mul", "matmul", "pow", "neg", "abs")},
    **{"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pos": "positive"},
    **{"and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor"},
    **{"invert": "bitwise_not", "inv": "bitwise_not"},
    **{"lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"},
    **{name: name for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
_IN_PLACE = {
    spelling
    for word in (written.removesuffix("_") for written in _PYTHON)
    for spelling in (f"i{word}", f"__i{word}__")
}
# torch's second names of operations, of which it has no table.
_ALIASES = {
    **{"absolute": "abs", "clip": "clamp", "fix": "trunc", "negative": "neg"},
    **{"divide": "div", "true_divide": "div", "multiply": "mul", "subtract": "sub"},
    **{"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le"},
    **{"not_equal": "ne", "arctan2": "atan2"},
}
_SPELLINGS = {
    spelling: name
    for written, name in _PYTHON.items()
    for word in (written.removesuffix("_"),)
    for spelling in (written, f"i{word}", f"__{word}__", f"__r{word}__", f"__i{word}__")
} | _ALIASES


def canonical(name: str) -> str:
    """Return the name of the functional form: add for `add_`, `__radd__` and `iadd`."""
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    plain = name if name.endswith("__") else name.removesuffix("_")
    return _ALIASES.get(plain, plain)


def is_in_place(name: str) -> bool:
    """Return whether a call with this name writes to its first argument."""
    return name in _IN_PLACE or (name not in _SPELLINGS and canonical(name) != name)


def kind_of(dtype: torch.dtype) -> str:
    """Return the kind of numbers of a dtype, a member of `ALL`."""
    if dtype.is_floating_point:
        return "float"
    if dtype.is_complex:
        return "complex"
    return "bool" if dtype is torch.bool else "integer"
