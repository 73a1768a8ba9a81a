"""Items, keys, lengths, slices and sums of containers, and the state of built-in iterators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from ...bytecode import build
from ...lazy_dataclass import dataclass
from ..constants import exact_name
from ..contents import item_at, length_of, of_numbers, plain_sequence
from ..iterator_parts import iterator_parts
from ..live_objects import entries_of, entry_of, item_of
from .objects import InstanceDict
from .row import Code, Derived, Registers, Residual, Source, Step

__all__ = [
    "Contents",
    "DictEntry",
    "DictKeyAt",
    "DictValueAt",
    "Item",
    "ItemAt",
    "IteratorParts",
    "Joined",
    "Length",
    "Part",
    "Reduced",
]

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # where nn.Module stores its state


@dataclass(frozen=True, slots=True)
class Contents(Derived):
    """The items of a set or deque, as a tuple in their order."""

    TEXT, STEP = "tuple({0})", "CONTENTS"

    def follow(self, base: Any) -> object:
        if type(base) not in (set, frozenset, deque):
            raise TypeError("neither a set nor a deque")
        return tuple(base)

    def code(self, base: Code) -> Code:
        return build.call(tuple, base)


@dataclass(frozen=True, slots=True)
class Item(Derived):
    """`base[key]` of an exact list, tuple or dict; the key is constant."""

    key: object

    def describe(self) -> str:
        if (owner := self._owner()) is not None:
            return f"{owner.describe()}.{self.key}"
        return f"{self.base.describe()}[{self.key!r}]"

    def _owner(self) -> Source | None:
        """Return the object of which it is an attribute, a module's parameter too."""
        match self.base:
            case InstanceDict(base=owner) if isinstance(self.key, str):
                return owner
            case Item(base=InstanceDict(base=owner), key=table) if isinstance(self.key, str):
                return owner if table in _MODULE_TABLES else None
        return None

    def follow(self, base: object) -> object:
        return item_of(base, self.key)

    def load(self, registers: Registers) -> Step:
        if isinstance(self.base, InstanceDict) and isinstance(self.key, str):
            return ("INSTANCE_ITEM", registers.register(self.base.base), exact_name(self.key))
        return ("ITEM", registers.register(self.base), self.key)

    def emit(self, residual: Residual) -> Code:
        key = build.load_const(self.key)
        if isinstance(self.base, Contents) and isinstance(self.key, int) and self.key >= 0:
            return build.call(_nth, residual.base(self.base.base), key)
        return [*residual.base(self.base), *key, *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class DictEntry(Derived):
    """The value under a constant key of an object whose class inherits from dict."""

    key: object

    TEXT, STEP = "{0}[{self.key!r}]", "ITEM"

    def follow(self, base: object) -> object:
        return item_of(base, self.key)

    def code(self, base: Code) -> Code:
        return build.call(entry_of, base, build.load_const(self.key))


@dataclass(frozen=True, slots=True)
class DictKeyAt(Derived):
    """The index-th key of a dict, if it is not a constant."""

    index: int

    TEXT, STEP = "list({0})[{self.index}]", "DICT_KEY"

    def follow(self, base: object) -> object:
        return entries_of(base)[self.index][0]

    def emit(self, residual: Residual) -> Code:
        return _part_of_entry(residual, self.base, self.index, 0)


@dataclass(frozen=True, slots=True)
class DictValueAt(Derived):
    """The value under the index-th key."""

    index: int

    TEXT, STEP = "list({0}.values())[{self.index}]", "DICT_VALUE"

    def follow(self, base: object) -> object:
        return entries_of(base)[self.index][1]

    def emit(self, residual: Residual) -> Code:
        return _part_of_entry(residual, self.base, self.index, 1)


@dataclass(frozen=True, slots=True)
class ItemAt(Derived):
    """`base[i]` of a list or tuple, or of a dict with str keys; i is the value at `index`."""

    index: Source

    TEXT, STEP = "{0}[{1}]", "ITEM_AT"
    follow = staticmethod(item_at)

    @property
    def bases(self) -> tuple[Source, ...]:
        return self.base, self.index

    def code(self, base: Code, index: Code) -> Code:
        return [*base, *index, *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class Length(Derived):
    """`len()` of a list, tuple, dict, set or deque: an int."""

    TEXT, STEP = "len({0})", "LENGTH_OF"
    follow = staticmethod(length_of)


@dataclass(frozen=True, slots=True)
class Joined(Derived):
    """`before + base + after`, of a str."""

    before: str
    after: str

    STEP = "JOINED"

    def describe(self) -> str:
        first, last = (repr(end) if end else "" for end in (self.before, self.after))
        return " + ".join(filter(None, (first, self.base.describe(), last)))

    def follow(self, base: object) -> object:
        if type(base) is not str:
            raise TypeError("not a str")
        return f"{self.before}{base}{self.after}"


@dataclass(frozen=True, slots=True)
class Part(Derived):
    """`base[start:stop]` of an exact list or tuple, a new one."""

    start: int | None
    stop: int | None

    STEP = "PART"

    def describe(self) -> str:
        ends = ("" if end is None else str(end) for end in (self.start, self.stop))
        return f"{self.base.describe()}[{':'.join(ends)}]"

    def follow(self, base: object) -> object:
        return plain_sequence(base)[self.start : self.stop]

    def operands(self) -> tuple[object, ...]:
        return (slice(self.start, self.stop),)


@dataclass(frozen=True, slots=True)
class Reduced(Derived):
    """The sum, minimum or maximum of a list or tuple of floats and ints."""

    function: Callable[..., object]

    TEXT = "{self.function.__name__}({0})"

    def follow(self, base: object) -> object:
        return self.function(of_numbers(base))

    def load(self, registers: Registers) -> Step:
        return ("REDUCED", registers.register(self.base), registers.native(self.function))


@dataclass(frozen=True, slots=True)
class IteratorParts(Derived):
    """The state of a built-in iterator (iterator_parts.py)."""

    TEXT, STEP = "parts({0})", "ITERATOR_PARTS"

    def follow(self, base: object) -> object:
        if (parts := iterator_parts(base)) is None:
            raise ValueError("an iterator whose state cannot be read")
        return parts


def _part_of_entry(residual: Residual, base: Source, index: int, part: int) -> Code:
    entry = [*residual.call_on(entries_of, base), *build.load_const(index), *build.binary_subscr()]
    return [*entry, *build.load_const(part), *build.binary_subscr()]


def _nth(items: Iterable[object], index: int) -> object:
    return next(islice(items, index, None))
