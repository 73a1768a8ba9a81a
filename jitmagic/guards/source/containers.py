"""Items, keys, lengths, slices and sums of containers, and the state of built-in iterators."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...bytecode import build
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

    def text(self, base: str) -> str:
        return f"tuple({base})"

    def follow(self, base: Any) -> Any:
        if type(base) not in (set, frozenset, deque):
            raise TypeError("neither a set nor a deque")
        return tuple(base)

    def step(self, base: int) -> Step:
        return ("CONTENTS", base)

    def code(self, base: Code) -> Code:
        return build.call(tuple, base)


@dataclass(frozen=True, slots=True)
class Item(Derived):
    """`base[key]` of an exact list, tuple or dict; the key is constant."""

    key: object

    def describe(self) -> str:
        owner = self._owner()
        return (
            f"{self.base.describe()}[{self.key!r}]"
            if owner is None
            else (f"{owner.describe()}.{self.key}")
        )

    def _owner(self) -> Source | None:
        """Return the object of which it is an attribute, a module's parameter too."""
        match self.base:
            case InstanceDict(base=owner) if isinstance(self.key, str):
                return owner
            case Item(base=InstanceDict(base=owner), key=table) if isinstance(self.key, str):
                return owner if table in _MODULE_TABLES else None
        return None

    def follow(self, base: Any) -> Any:
        return item_of(base, self.key)

    def load(self, registers: Registers) -> Step:
        if isinstance(self.base, InstanceDict) and isinstance(self.key, str):
            return ("INSTANCE_ITEM", registers.register(self.base.base), exact_name(self.key))
        return ("ITEM", registers.register(self.base), self.key)

    def emit(self, residual: Residual) -> Code:
        key = build.load_const(self.key)
        if isinstance(self.base, Contents) and isinstance(self.key, int) and self.key >= 0:
            return build.call(_nth, self.base.base.emit(residual), key)
        return [*self.base.emit(residual), *key, *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class DictEntry(Derived):
    """The value under a constant key of an object whose class inherits from dict."""

    key: object

    def text(self, base: str) -> str:
        return f"{base}[{self.key!r}]"

    def follow(self, base: Any) -> Any:
        return item_of(base, self.key)

    def step(self, base: int) -> Step:
        return ("ITEM", base, self.key)

    def code(self, base: Code) -> Code:
        return build.call(entry_of, base, build.load_const(self.key))


@dataclass(frozen=True, slots=True)
class DictKeyAt(Derived):
    """The index-th key of a dict, if it is not a constant."""

    index: int

    def text(self, base: str) -> str:
        return f"list({base})[{self.index}]"

    def follow(self, base: Any) -> Any:
        return entries_of(base)[self.index][0]

    def step(self, base: int) -> Step:
        return ("DICT_KEY", base, self.index)


@dataclass(frozen=True, slots=True)
class DictValueAt(Derived):
    """The value under the index-th key."""

    index: int

    def text(self, base: str) -> str:
        return f"list({base}.values())[{self.index}]"

    def follow(self, base: Any) -> Any:
        return entries_of(base)[self.index][1]

    def step(self, base: int) -> Step:
        return ("DICT_VALUE", base, self.index)


@dataclass(frozen=True, slots=True)
class ItemAt(Derived):
    """`base[i]` of a list or tuple, or of a dict with str keys; i is the value at `index`."""

    index: Source

    @property
    def bases(self) -> tuple[Source, ...]:
        return self.base, self.index

    def text(self, base: str, index: str) -> str:
        return f"{base}[{index}]"

    def follow(self, base: Any, index: Any) -> Any:
        return item_at(base, index)

    def step(self, base: int, index: int) -> Step:
        return ("ITEM_AT", base, index)

    def code(self, base: Code, index: Code) -> Code:
        return [*base, *index, *build.binary_subscr()]


@dataclass(frozen=True, slots=True)
class Length(Derived):
    """`len()` of a list, tuple, dict, set or deque: an int."""

    def text(self, base: str) -> str:
        return f"len({base})"

    def follow(self, base: Any) -> Any:
        return length_of(base)

    def step(self, base: int) -> Step:
        return ("LENGTH_OF", base)


@dataclass(frozen=True, slots=True)
class Joined(Derived):
    """`before + base + after`, of a str."""

    before: str
    after: str

    def text(self, base: str) -> str:
        first, last = (repr(end) if end else "" for end in (self.before, self.after))
        return " + ".join(filter(None, (first, base, last)))

    def follow(self, base: Any) -> Any:
        if type(base) is not str:
            raise TypeError("not a str")
        return f"{self.before}{base}{self.after}"

    def step(self, base: int) -> Step:
        return ("JOINED", base, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Part(Derived):
    """`base[start:stop]` of an exact list or tuple, a new one."""

    start: int | None
    stop: int | None

    def text(self, base: str) -> str:
        ends = ("" if end is None else str(end) for end in (self.start, self.stop))
        return f"{base}[{':'.join(ends)}]"

    def follow(self, base: Any) -> Any:
        return plain_sequence(base)[self.start : self.stop]

    def step(self, base: int) -> Step:
        return ("PART", base, slice(self.start, self.stop))


@dataclass(frozen=True, slots=True)
class Reduced(Derived):
    """The sum, minimum or maximum of a list or tuple of floats and ints."""

    function: Callable[..., Any]

    def text(self, base: str) -> str:
        return f"{self.function.__name__}({base})"

    def follow(self, base: Any) -> Any:
        return self.function(of_numbers(base))

    def load(self, registers: Registers) -> Step:
        return ("REDUCED", registers.register(self.base), registers.native(self.function))


@dataclass(frozen=True, slots=True)
class IteratorParts(Derived):
    """The state of a built-in iterator (iterator_parts.py)."""

    def text(self, base: str) -> str:
        return f"parts({base})"

    def follow(self, base: Any) -> Any:
        if (parts := iterator_parts(base)) is None:
            raise ValueError("an iterator whose state cannot be read")
        return parts

    def step(self, base: int) -> Step:
        return ("ITERATOR_PARTS", base)


def _nth(items: Iterable[object], index: int) -> object:
    return next(islice(items, index, None))
