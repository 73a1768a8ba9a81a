"""Implements CPython's abstract object layer: binary operators, comparison, `is`, iteration.

Input: realized Values. Output: the Value of `a + b`, `a == b` and the like, in the order in which
CPython's Objects/abstract.c tries the operands' methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....guards.guard import DifferentObjects, IdentityIs, SameObject
from ...breaks import GraphBreak, TooManyInstructions
from ..base import Machine, Value
from ..numpy_scalars import np
from .class_facts import guard_bases
from .constants import ConstantValue

__all__ = [
    "RemainingItems",
    "binary",
    "compare",
    "equal",
    "equal_key",
    "index_of",
    "inplace",
    "is_none",
    "is_same",
    "unpack",
]

_SWAPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_SMALL_INTS = range(-5, 257)  # CPython caches these, so equal ones are identical
_COMPARED = 16  # most keys that a symbolic number is compared with; each adds a guard
_WHOLE: tuple[Any, ...] = (int,) if np is None else (int, np.integer)


def binary(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """Return `left op right`."""
    tried_first = _prefers_reflected(machine, left, right)
    if tried_first:
        result = right.binary(machine, op, left, reflected=True)
        if result is not None:
            return result
    result = left.binary(machine, op, right)
    if result is None and not tried_first:
        result = right.binary(machine, op, left, reflected=True)
    if result is None:
        raise machine.error(TypeError, _no_operator(machine, op, left, right))
    return result


def _prefers_reflected(machine: Machine, left: Value, right: Value) -> bool:
    """Return whether the right operand's method runs first: its type is a proper subclass."""
    # With an atom the order has no effect: ConstantValue.binary declines every operand that is no
    # atom, and `1 & True` is the same by int and by bool.
    if isinstance(left, ConstantValue) or isinstance(right, ConstantValue):
        return False
    kinds = left.python_type(machine), right.python_type(machine)
    if kinds[0] is kinds[1]:
        return False
    guard_bases(machine, kinds[1])
    return kinds[0] in kinds[1].__mro__


def _no_operator(machine: Machine, op: str, left: Value, right: Value) -> str:
    names = [f"'{value.python_type(machine).__name__}'" for value in (left, right)]
    return f"unsupported operand type(s) for {op}: {' and '.join(names)}"


def inplace(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """Return `left op= right`, the value to store."""
    result = left.inplace(machine, op, right)
    return binary(machine, op, left, right) if result is None else result


def compare(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """Return `left op right` for the six comparisons, possibly a tensor."""
    tried_first = _prefers_reflected(machine, left, right)
    if tried_first:
        result = right.compare(machine, _SWAPPED[op], left, reflected=True)
        if result is not None:
            return result
    result = left.compare(machine, op, right)
    if result is None and not tried_first:
        result = right.compare(machine, _SWAPPED[op], left, reflected=True)
    if result is not None:
        return result
    if op in ("==", "!="):  # CPython falls back to identity, for other operators to TypeError
        return machine.constant(is_same(machine, left, right) == (op == "=="))
    names = [f"'{value.python_type(machine).__name__}'" for value in (left, right)]
    message = f"'{op}' not supported between instances of {' and '.join(names)}"
    raise machine.error(TypeError, message)


def equal(machine: Machine, left: Value, right: Value) -> bool:
    """Return whether containers treat the two as equal: identical, or `==` is true."""
    left, right = left.realize(machine), right.realize(machine)
    if left is right:
        return True
    if _is_nan(left) and _is_nan(right):  # two nans are equal in a container only by identity
        return is_same(machine, left, right)
    if compare(machine, "==", left, right).realize(machine).truth(machine):
        return True
    for one, other in ((left, right), (right, left)):
        if _is_varying_float(machine, one) and (other.varies or _is_nan(other)):
            _guard_not_nan(machine, one)  # containers would find a nan by its identity
    return False


def _is_varying_float(machine: Machine, value: Value) -> bool:
    return value.varies and value.python_type(machine) is float


def _guard_not_nan(machine: Machine, number: Value) -> None:
    if compare(machine, "!=", number, number).realize(machine).truth(machine):
        number.refuse(machine, "`is` between numbers")


def equal_key(machine: Machine, number: Value, keys: Sequence[Value]) -> Value | None:
    """Return the key that equals a symbolic number, or None; compares with each key in turn.

    The number is specialised if there are too many keys, or keys with an unknown `__eq__`.
    """
    kinds = {key.realize(machine).python_type(machine) for key in keys}
    if len(keys) > _COMPARED or not kinds <= {int, float, str, bool, type(None)}:
        number.refuse(machine, "hash()")
    return next((key for key in keys if equal(machine, number, key)), None)


def is_same(machine: Machine, left: Value, right: Value) -> bool:
    """Return `left is right`, guarded."""
    left, right = left.realize(machine), right.realize(machine)
    if left is right:
        return True
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return _same_atoms(machine, left, right)
    if left.varies or right.varies:
        if left.python_type(machine) is right.python_type(machine):
            left.refuse(machine, "`is` between numbers")
        return False
    # Machine.wrap returns one Value per live object, so two Values are two objects in this call.
    if left.source and right.source and not left.by_identity and not right.by_identity:
        machine.guard(DifferentObjects((left.source,), (right.source,)))
        return False
    left.guard_identity(machine)
    right.guard_identity(machine)
    first, second = left.identity(), right.identity()
    if _is_unguardable(machine, (left, first), (right, second)):
        left.refuse(machine, "`is`")
    return first is second


def _is_unguardable(machine: Machine, *sides: tuple[Value, object]) -> bool:
    """Return whether no guard can check if two objects of one type are the same.

    That is so if one has only a source and the other only an identity.
    """
    at_path = any(value.source and value is known for value, known in sides)
    pathless = any(not value.source and value is not known for value, known in sides)
    return at_path and pathless and len({value.python_type(machine) for value, _ in sides}) == 1


def is_none(value: Value) -> bool:
    """Return `value is None`; the guard of its type suffices, since None is a singleton."""
    return isinstance(value, ConstantValue) and value.value is None


def _same_atoms(machine: Machine, left: ConstantValue, right: ConstantValue) -> bool:
    if left.python_type(machine) is not right.python_type(machine):
        return False
    first, second = left.as_constant(machine), right.as_constant(machine)
    if left.identity() is first:
        return first is second
    if first != second and not (_is_nan(left) and _is_nan(right)):
        return False
    if isinstance(first, int) and first in _SMALL_INTS:
        return True
    if left.source and right.source:
        return _is_same_object(machine, left, right)
    if (left.source or right.source) and not _is_nan(left):
        left.refuse(machine, "`is` between equal constants")
    # A side without a source is a literal of the code, or Python's own functions computed it.
    for one in (left, right):
        if one.source:
            machine.guard(IdentityIs(one.source, one.value))
    return first is second


def _is_same_object(machine: Machine, left: ConstantValue, right: ConstantValue) -> bool:
    """Return whether two sources read the same object in this call, guarded either way."""
    assert left.source is not None
    assert right.source is not None
    if left.source == right.source:
        return True
    same = left.value is right.value
    different = DifferentObjects((left.source,), (right.source,))
    machine.guard(SameObject(left.source, right.source) if same else different)
    return same


def _is_nan(value: Value) -> bool:
    """Return whether it is a nan: a float, complex or numpy atom that is unequal to itself."""
    return isinstance(value, ConstantValue) and bool(value.value != value.value)


class RemainingItems(Iterator[Value]):
    """Yields the remaining items of an iterator; breaks the graph after `unroll_limit` items."""

    # No generator: after an error of an item, CPython's iterators go on with the next one.
    def __init__(self, machine: Machine, iterator: Value) -> None:
        self._machine, self._iterator = machine, iterator
        self._left = machine.options.unroll_limit

    def __next__(self) -> Value:
        if not self._left:
            limit = self._machine.options.unroll_limit
            raise GraphBreak(TooManyInstructions.of(limit=limit))
        self._left -= 1
        item = self._iterator.next(self._machine)
        if item is None:
            raise StopIteration
        return item


def unpack(machine: Machine, value: Value) -> list[Value]:
    """Return the items of `[*value]`."""
    iterator = value.realize(machine).iterate(machine).realize(machine)
    return list(RemainingItems(machine, iterator))


def index_of(machine: Machine, value: Value) -> int:
    """Return `operator.index(value)` of a constant; break the graph on anything else."""
    value = value.realize(machine)
    constant = value.as_constant(machine) if value.is_constant(machine) else None
    if not isinstance(constant, _WHOLE):
        value.refuse(machine, "use as an index")
    return int(constant)  # of an IntEnum too
