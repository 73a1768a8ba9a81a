"""What Python does around the slots: operators with reflection, comparison, identity, iteration.

Comes in: realized Values.  Goes out: the Value of the expression, as CPython's abstract object
layer would give it (Objects/abstract.c). Everyone who needs `a + b` or `a == b` of two Values asks
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....guards.guard import DifferentObjects, IdentityIs, SameObject
from ...breaks import GraphBreak, TooManyInstructions
from ..base import Machine, Value
from ..numpy.emulation import np
from .class_facts import guard_bases
from .constants import ConstantValue

__all__ = [
    "binary",
    "compare",
    "drain",
    "equal",
    "index_of",
    "inplace",
    "is_none",
    "is_same",
    "one_of",
    "unpack",
]

_SWAPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_SMALL_INTS = range(-5, 257)
_COMPARED = 16  # keys that a number is compared with, a guard for each
_WHOLE: tuple[Any, ...] = (int,) if np is None else (int, np.integer)


def binary(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """`left op right`."""
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
    """A right operand of a proper subclass is asked first."""
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
    """`left op= right`; the result is what gets stored."""
    result = left.inplace(machine, op, right)
    return binary(machine, op, left, right) if result is None else result


def compare(machine: Machine, op: str, left: Value, right: Value) -> Value:
    """`left op right` for the six comparisons; may be a tensor."""
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
    if op in ("==", "!="):
        return machine.constant(is_same(machine, left, right) == (op == "=="))
    names = [f"'{value.python_type(machine).__name__}'" for value in (left, right)]
    message = f"'{op}' not supported between instances of {' and '.join(names)}"
    raise machine.error(TypeError, message)


def equal(machine: Machine, left: Value, right: Value) -> bool:
    """Whether containers take the two for equal: identical, or `==` is true."""
    left, right = left.realize(machine), right.realize(machine)
    if left is right:
        return True
    if _is_nan(left) and _is_nan(right):  # nothing but identity can make two of these equal
        return is_same(machine, left, right)
    if compare(machine, "==", left, right).realize(machine).truth(machine):
        return True
    for one, other in ((left, right), (right, left)):
        if _is_varying_float(machine, one) and (other.varies or _is_nan(other)):
            _guard_not_nan(machine, one)  # a nan is found by its identity, which does not vary
    return False


def _is_varying_float(machine: Machine, value: Value) -> bool:
    return value.varies and value.python_type(machine) is float


def _guard_not_nan(machine: Machine, number: Value) -> None:
    if compare(machine, "!=", number, number).realize(machine).truth(machine):
        number.refuse(machine, "`is` between numbers")


def one_of(machine: Machine, number: Value, keys: Sequence[Value]) -> Value | None:
    """The key that a number which varies is equal to, by a comparison with each; None: it is none
    of them. Where they are many, or may compare as they like, its value has to be known.
    """
    kinds = {key.realize(machine).python_type(machine) for key in keys}
    if len(keys) > _COMPARED or not kinds <= {int, float, str, bool, type(None)}:
        number.refuse(machine, "hash()")
    return next((key for key in keys if equal(machine, number, key)), None)


def is_same(machine: Machine, left: Value, right: Value) -> bool:
    """`left is right`, with the guards that keep the answer true."""
    left, right = left.realize(machine), right.realize(machine)
    if left is right:
        return True
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return _same_atoms(machine, left, right)
    if left.varies or right.varies:
        if left.python_type(machine) is right.python_type(machine):
            left.refuse(machine, "`is` between numbers")
        return False
    if left.source and right.source and not left.by_identity and not right.by_identity:
        machine.guard(DifferentObjects((left.source,), (right.source,)))
        return False
    left.guard_identity(machine)
    right.guard_identity(machine)
    first, second = left.identity(), right.identity()
    if _is_undecided(machine, (left, first), (right, second)):
        left.refuse(machine, "`is`")
    return first is second


def _is_undecided(machine: Machine, *sides: tuple[Value, object]) -> bool:
    """Whether one side is an object that a path leads to and the other one that is known without
    a path, so that no guard can say whether they are the same."""
    at_path = any(value.source and value is known for value, known in sides)
    pathless = any(not value.source and value is not known for value, known in sides)
    return at_path and pathless and len({value.python_type(machine) for value, _ in sides}) == 1


def is_none(value: Value) -> bool:
    """`value is None`: its type is guarded already, and None is the only one of its type."""
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
        return _meet(machine, left, right)
    if (left.source or right.source) and not _is_nan(left):
        left.refuse(machine, "`is` between equal constants")
    # Without a path: Python's own functions made the objects, literals are those of the code.
    for one in (left, right):
        if one.source:
            machine.guard(IdentityIs(one.source, one.value))
    return first is second


def _meet(machine: Machine, left: ConstantValue, right: ConstantValue) -> bool:
    """Return whether two paths lead to one object in this call; relied on."""
    assert left.source is not None
    assert right.source is not None
    if left.source == right.source:
        return True
    same = left.value is right.value
    different = DifferentObjects((left.source,), (right.source,))
    machine.guard(SameObject(left.source, right.source) if same else different)
    return same


def _is_nan(value: Value) -> bool:
    """Return whether it is an atom that is not equal to itself: a nan of float, complex or
    numpy.
    """
    return isinstance(value, ConstantValue) and bool(value.value != value.value)


def drain(machine: Machine, iterator: Value) -> Iterator[Value]:
    """The items an iterator still has. Consuming them all is bounded by the instruction limit."""
    limit = machine.options.unroll_limit
    for _ in range(limit):
        item = iterator.next(machine)
        if item is None:
            return
        yield item
    raise GraphBreak(TooManyInstructions.of(limit=limit))


def unpack(machine: Machine, value: Value) -> list[Value]:
    """`[*value]`."""
    iterator = value.realize(machine).iterate(machine).realize(machine)
    return list(drain(machine, iterator))


def index_of(machine: Machine, value: Value) -> int:
    """`operator.index(value)` of a constant; breaks on anything else."""
    value = value.realize(machine)
    constant = value.as_constant(machine) if value.is_constant(machine) else None
    if not isinstance(constant, _WHOLE):
        value.refuse(machine, "use as an index")
    return int(constant)  # of an IntEnum too
