"""Models constants (immutable atoms) and folds operations on them.

Input: an int, str, None, dtype, range, numpy scalar or the like, with a source or created by the
trace. Output: folded results. Only `as_constant` reads the value and guards it, so a constant that
the program merely passes along has no value guard.
"""

from __future__ import annotations

import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from ....guards.guard import TypeIs, ValueEquals
from ....guards.source import Source
from ....late_tables import EVERY, LateTable
from ...breaks import GraphBreak, NumpyCall, UnsupportedArguments
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.iterators import IteratorValue, RangeIterator, StepIterator
from ..methods import MethodValue
from ..numpy_scalars import ARRAY_SCALARS, np

__all__ = [
    "ATOMS",
    "BINARY",
    "COMPARE",
    "CONTEXT_CONSTANTS",
    "INPLACE",
    "UNARY",
    "ConstantMethodValue",
    "ConstantValue",
    "evaluate",
    "fold",
    "folds_late",
]

ATOMS: tuple[type, ...] = (
    int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented),
    range, types.CodeType, torch.dtype, torch.device, torch.layout, torch.memory_format,
    SDPBackend,
)  # fmt: skip

BINARY: dict[str, Callable[[object, object], object]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "@": operator.matmul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
INPLACE: dict[str, Callable[[object, object], object]] = {
    op: getattr(operator, f"i{function.__name__.strip('_')}") for op, function in BINARY.items()
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert,
}  # fmt: skip

CONTEXT_CONSTANTS: dict[type, Callable[[Machine, Any], Value]] = {}
"""Maps types of constants that are context managers to functions that enter one and return its
`__exit__`."""

_SINGLETONS = (None, True, False, Ellipsis, NotImplemented)
_SINGLE_TYPES = (torch.dtype, torch.layout, torch.memory_format)  # one object per value
_LARGEST_POWER = 4096  # bits of a folded integer; the program computes larger ones itself
_LARGEST_TEXT = 1 << 20  # characters


class ConstantValue(Value):
    """An atom; `value` reads its value in this call without a guard, `as_constant` with one."""

    __slots__ = ("_value_guarded", "value")

    def __init__(self, value: object, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value
        self._value_guarded = source is None

    @property
    def is_value_guarded(self) -> bool:
        if self.source is not None and self.value != self.value:
            return False  # a nan equals nothing, so containers find it by its identity
        return self._value_guarded

    def python_type(self, machine: Machine) -> type:
        return type(self.value)

    def is_constant(self, machine: Machine) -> bool:
        return True

    def as_constant(self, machine: Machine) -> Any:
        if not self._value_guarded:
            assert self.source is not None
            machine.guard(ValueEquals(self.source, self.value))
            self._value_guarded = True
        return self.value

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        if (enter := CONTEXT_CONSTANTS.get(type(self.value))) is None:
            self.refuse(machine, "with")
        return enter(machine, self.as_constant(machine)), self

    def identity(self) -> object:
        # Two equal ints or strings may be different objects, so their values imply no identity.
        single = isinstance(self.value, _SINGLE_TYPES) or any(self.value is s for s in _SINGLETONS)
        return self.value if single else self

    def hash_key(self, machine: Machine) -> object:
        value = self.as_constant(machine)
        # Since CPython 3.10 the hash of a nan depends on its identity.
        if isinstance(value, float) and math.isnan(value):
            self.refuse(machine, "nan as a key")
        return value

    def get_attr(self, machine: Machine, name: str) -> Value:
        value = self.as_constant(machine)
        try:
            found = getattr(value, name)
        except AttributeError as error:
            raise machine.error(AttributeError, *error.args, exact=True) from None
        if isinstance(found, types.BuiltinMethodType | types.MethodWrapperType):
            return ConstantMethodValue(self, name)
        return machine.constant(found)

    def get_item(self, machine: Machine, key: Value) -> Value:
        if not key.is_constant(machine):
            self.refuse(machine, "indexing")
        return fold(machine, operator.getitem, self, key)

    def contains(self, machine: Machine, item: Value) -> Value:
        if not item.is_constant(machine):
            self.refuse(machine, "`in`")
        return fold(machine, operator.contains, self, item)

    def iterate(self, machine: Machine) -> Value:
        value = self.as_constant(machine)
        if isinstance(value, range):
            return RangeIterator(value)
        if not isinstance(value, str | bytes):
            message = f"'{type(value).__name__}' object is not iterable"
            raise machine.error(TypeError, message)
        items = (machine.constant(item) for item in value)
        return StepIterator(machine, type(iter(value)), items)

    def length(self, machine: Machine) -> int:
        return int(fold(machine, len, self).as_constant(machine))

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        # The operand of `"%d %d" % (a, b)` is a tuple: a constant, but no ConstantValue.
        formats = op == "%" and isinstance(self.value, str | bytes) and not reflected
        if not (isinstance(other, ConstantValue) or (formats and other.is_constant(machine))):
            if formats:
                self.refuse(machine, "% formatting")
            return None
        left, right = (other, self) if reflected else (self, other)
        if not _varies(right):
            _check_size(op, left.as_constant(machine), right.as_constant(machine))
        return fold(machine, BINARY[op], left, right)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, ConstantValue):
            return None
        return fold(machine, COMPARE[op], self, other)

    def unary(self, machine: Machine, op: str) -> Value:
        if op == "~" and type(self.value) is bool and sys.version_info >= (3, 12):
            self.refuse(machine, "~, of which Python warns on the line of the program")
        return fold(machine, UNARY[op], self)

    def truth(self, machine: Machine) -> bool:
        # Not implemented by all constants: NotImplemented raises TypeError since 3.14.
        return bool(evaluate(machine, bool, self.as_constant(machine)))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raise machine.error(TypeError, f"'{type(self.value).__name__}' object is not callable")

    def recipe(self, builder: Builder) -> Recipe:
        return builder.constant(self.value)

    def describe(self) -> str:
        return type(self.value).__name__


class ConstantMethodValue(MethodValue):
    """A bound method of an atom or an enum member; such methods are pure, so calls are folded."""

    __slots__ = ()

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if self.name == "join" and len(args) == 1 and not kwargs:
            # The items become operands of `fold`, which can defer the call to after the graph if
            # one is a symbolic number; a list or an iterator as a whole could not be an operand.
            items = _items_of(machine, args[0].realize(machine))
            if items is not None:
                return fold(machine, _joined, self.owner, *items)
        values = [arg.realize(machine) for arg in args]
        keywords = {name: arg.realize(machine) for name, arg in kwargs.items()}
        if not all(value.is_constant(machine) for value in (*values, *keywords.values())):
            what = "arguments that are not constants"
            name = f"{self.owner.describe()}.{self.name}"
            raise GraphBreak(UnsupportedArguments.of(name=name, what=what))
        names, count = tuple(keywords), len(values)

        def method(owner: object, *constants: object) -> object:
            named = dict(zip(names, constants[count:], strict=True))
            return getattr(owner, self.name)(*constants[:count], **named)

        return fold(machine, method, self.owner, *values, *keywords.values())

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")  # each read creates a new, equal method


def _items_of(machine: Machine, value: Value) -> list[Value] | None:
    """Return the items of `value` for `str.join`, which then need not be constants.

    None unless `value` is an iterator, or a list or tuple with a symbolic item.
    """
    if isinstance(value, IteratorValue):
        items = []
        while (item := value.next(machine)) is not None:
            items.append(item.realize(machine))
        return items
    is_plain = value.python_type(machine) in (list, tuple)
    return (
        [item.realize(machine) for item in value.parts()] if is_plain and _varies(value) else None
    )


def _joined(separator: Any, *items: object) -> object:
    return separator.join(items)


def fold(machine: Machine, function: Callable[..., object], *values: Value) -> Value:
    """Compute `function(*values)` while tracing; what it raises, the traced program raises.

    With symbolic numbers Python computes it after the graph if it can (numbers/residual_calls.py).
    """
    if any(_varies(value) for value in values):
        for fold_late in _LATE.get(EVERY, ()):
            if (later := fold_late(machine, function, values)) is not None:
                return later
    constants = [value.as_constant(machine) for value in values]
    if any(type(constant) in ARRAY_SCALARS for constant in constants):
        function = _without_warnings(function)
    return machine.constant(evaluate(machine, function, *constants))


def evaluate(machine: Machine, function: Callable[..., object], *arguments: object) -> Any:
    """Call a Python function while tracing; what it raises, the traced program raises."""
    try:
        return function(*arguments)
    except GraphBreak:  # of `_without_warnings`
        raise
    except Exception as error:  # a pure function of constants raises the same in the program
        raise machine.error(type(error), *error.args, exact=True) from None


FoldLate = Callable[[Machine, Callable[..., object], Sequence[Value]], Value | None]
_LATE: LateTable[str, list[FoldLate]] = LateTable("late folds")


def folds_late(function: FoldLate) -> FoldLate:
    """Register a function that may defer `function(*values)` if a value is symbolic."""
    _LATE.setdefault(EVERY, []).append(function)
    return function


def _varies(value: Value) -> bool:
    return value.varies or (not value.source and any(map(_varies, value.parts())))


def _without_warnings(function: Callable[..., object]) -> Callable[..., object]:
    """Break the graph if numpy would warn of an overflow: the program must warn in each call."""

    def run(*constants: object) -> object:
        try:
            with np.errstate(all="raise"):
                return function(*constants)
        except FloatingPointError as error:
            raise GraphBreak(NumpyCall.of(name="a numpy scalar", why=str(error))) from None

    return run


def _check_size(op: str, left: object, right: object) -> None:
    """Break the graph before a result that may exhaust memory."""
    bits = 0.0
    if op == "**" and isinstance(left, int) and isinstance(right, int) and right > 0:
        bits = math.log2(abs(left) + 1) * right
    elif op == "<<" and isinstance(right, int):
        bits = right
    elif op == "*":
        for text, count in ((left, right), (right, left)):
            if isinstance(text, str | bytes) and isinstance(count, int):
                # Scaled so that one limit serves both kinds: 2**20 characters count as 4,096 bits.
                bits = len(text) * count * _LARGEST_POWER / _LARGEST_TEXT
    if bits > _LARGEST_POWER:
        raise GraphBreak(UnsupportedArguments.of(name=op, what="a very large result"))


@wraps(*ATOMS, *ARRAY_SCALARS)
def _wrap_atom(machine: Machine, obj: object, source: Source) -> Value:
    machine.guard(TypeIs(source, type(obj)))
    return ConstantValue(obj, source)
