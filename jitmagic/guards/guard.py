"""The Guard family: typed records of what a trace relied on.

Comes in: facts, at the moment the tracer reads them. Goes out: frozen records, checked natively on
every call (`frame/native.py` lowers them) and by the reference implementation in Python
(`check.py`) in tests and explanations. A guard knows the user's line that needed it and can say in
one sentence what it wants.

    Guard = TensorMatch(source, spec, keys)      same class, dtype, device, sizes, strides, grad and
                                                 dispatch keys
          | TensorKind(source, cls, keys, dual)  same class and dispatch keys: why a tensor is in no
                                                 graph (`dual`: because it carries a tangent)
          | TypeIs(source, type)                 exact type
          | ValueEquals(source, value)           same exact type, equal constant (nan and -0.0 too)
          | IdentityIs(source, value)            that very object: a function, class, module, ...
          | InRange(source, low, high)           a float, an int, or the one number in a CPU
                                                 tensor
          | SizesRelate(op, left, right)         sizes and strides that TensorMatch leaves free:
                                                 `x.shape[0] >= 2`, `x.shape[0] == y.shape[1]`
          | NumbersRelate(op, left, right)       floats and ints: `loss < best - 1e-3`
          | LengthIs(source, length)             len() of an exact list, tuple or dict
          | DictKeysAre(source, keys)            same keys in the same order; ANY_KEY: whichever key
          | SetHas(source, item, there)          set or frozenset that has the item, or has not
          | KeyAbsent(source, key)               dict (or instance dict) has no such key
          | HasKeyAt(source, key, there)         exact dict that has the str at `key`, or has not
          | ClassFacts(cls, mro, facts)        a class: its bases, and attributes that it has,
                                                 lacks, or leaves to its instances (no source)
          | NamespaceFacts(table, facts)       a dictionary that lives as long as the process:
                                                 names it binds to certain objects, names it lacks
                                                 (no source)
          | StateRead(reader, value, final)    a function without arguments gives what it gave
                                                 (no source)
          | EntriesEmpty(source, keys, absent)   dict entries that are empty dicts; keys it has not
          | GlobalMissing(source)                no such name in the globals (builtins are used), or
                                                 in the builtins
          | SameObject(source, other)            two paths lead to one object
          | DifferentObjects(sources, others)    none of `sources` leads to what another path does
          | NoOverlap(sources)                   these tensors share no memory (one is mutated)
          | Unhooked(source)                     a leaf without hooks that run in a backward
          | CellEmpty(source)                    the cell has no contents
          | CacheLacks(source, key, allowed)     a functools.lru_cache holds no result for the key,
                                                 or one of these constants
          | GlobalState(facts)                   grad mode, autocast, default dtype, ... (no source)
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from ..errors import UserLine
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..symbols.scalar import Symbol, symbols_of
from ..symbols.size import stride_place
from .source import Source

__all__ = [
    "ANY_KEY",
    "GONE",
    "READ_BY_GUARDS",
    "AutocastRest",
    "CacheLacks",
    "CellEmpty",
    "ClassFact",
    "ClassFacts",
    "DictKeysAre",
    "DifferentObjects",
    "EntriesEmpty",
    "GlobalMissing",
    "GlobalState",
    "Guard",
    "HasKeyAt",
    "IdentityIs",
    "InRange",
    "KeyAbsent",
    "LengthIs",
    "NameFact",
    "NamespaceFacts",
    "NoOverlap",
    "NumbersRelate",
    "SameObject",
    "SetHas",
    "SizesRelate",
    "StateFacts",
    "StateRead",
    "TensorKind",
    "TensorMatch",
    "TypeIs",
    "Unhooked",
    "ValueEquals",
    "can_be_weak",
]


class _Gone:
    """What is left of an object that died: no other object is it."""

    def __repr__(self) -> str:
        return "an object that is gone"


GONE = _Gone()


class _AnyKey:
    def __repr__(self) -> str:
        return "..."


ANY_KEY = _AnyKey()  # in DictKeysAre: a key with guards of its own


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """Ours; a plain weakref.ref may be what the user's variable holds."""

    __slots__ = ()


def can_be_weak(value: object) -> bool:
    return not isinstance(value, _Ref) and isinstance(_weakly(value), _Ref)


def _weakly(value: object) -> object:
    """Bound methods die at once when held weakly; they are made anew for every access."""
    if isinstance(value, (_Ref, types.MethodType, types.MethodWrapperType)):
        return value
    try:
        return _Ref(value)
    except TypeError:
        return value


def _referent(held: object) -> object:
    if not isinstance(held, _Ref):
        return held
    value = held()
    return GONE if value is None else value


class _Holds:
    """Has a field `held`: an object, weakly where it allows that."""

    __slots__ = ()
    held: object

    def __post_init__(self) -> None:
        object.__setattr__(self, "held", _weakly(self.held))

    @property
    def value(self) -> Any:
        """The object, or `GONE`."""
        return _referent(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Base of the family: `where` is the user's line that relied on the fact (not compared)."""

    where: UserLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TensorMatch(Guard):
    source: Source
    spec: TensorSpec  # of ints: what the tensor was like
    keys: int  # torch._C._dispatch_keys(t).raw_repr(): python, conj, neg, functorch, ... bits
    free_sizes: tuple[int, ...] = ()  # dimensions of any size, but for what SizesRelate says
    free_strides: tuple[int, ...] = ()

    @property
    def free_places(self) -> tuple[int, ...]:
        """Both, as places among the tensor's numbers."""
        return (*self.free_sizes, *map(stride_place, self.free_strides))


@dataclass(frozen=True, slots=True)
class TensorKind(_Holds, Guard):
    """The class is held weakly, as in TypeIs."""

    source: Source
    held: object
    keys: int
    dual: bool = False

    @property
    def cls(self) -> Any:
        """The class, or `GONE`."""
        return self.value


@dataclass(frozen=True, slots=True)
class TypeIs(_Holds, Guard):
    """The class is held weakly: one that was defined anew must not live on in the journal."""

    source: Source
    held: object

    @property
    def type(self) -> Any:
        """The class, or `GONE`."""
        return self.value


@dataclass(frozen=True, slots=True)
class ValueEquals(Guard):
    source: Source
    value: object


@dataclass(frozen=True, slots=True)
class IdentityIs(_Holds, Guard):
    """Held weakly where the object allows it, here and by the native check: a function that was
    defined anew must not live on in the journal. Never compared by value.
    """

    source: Source
    held: object = field(hash=False)


READ_BY_GUARDS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32,
    torch.float64,
)  # fmt: skip
"""Dtypes of tensors whose one number an InRange looks at."""


@dataclass(frozen=True, slots=True)
class InRange(Guard):
    """low <= value <= high of a Python float or int, or the one number in a CPU tensor; `whole`: it
    has no fraction."""

    source: Source
    low: float
    high: float
    whole: bool = False


def _symbols_in(left: Expr, right: Expr) -> list[Symbol]:
    return list(dict.fromkeys((*symbols_of(left), *symbols_of(right))))


def _sources_of(symbols: Iterable[Symbol]) -> tuple[Source, ...]:
    """The tensors whose sizes they are, and the numbers."""
    origins: list[Any] = [symbol.origin for symbol in symbols]
    found = (one if isinstance(one, Source) else one.source for one in origins)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class SizesRelate(Guard):
    """`left op right` of sizes, strides, storage offsets and ints: integer expressions over symbols
    whose origins are SizeOf, StrideOf, OffsetOf and the Source of an int.
    """

    op: str
    left: Expr
    right: Expr

    @property
    def symbols(self) -> list[Symbol]:
        return _symbols_in(self.left, self.right)

    @property
    def sources(self) -> tuple[Source, ...]:
        return _sources_of(self.symbols)


@dataclass(frozen=True, slots=True)
class NumbersRelate(Guard):
    """`left op right` of floats and ints, as Python computes them: `symbols.floats` says which
    expressions; the origins of their symbols are Sources.
    """

    op: str
    left: Expr
    right: Expr

    @property
    def symbols(self) -> list[Symbol]:
        return _symbols_in(self.left, self.right)

    @property
    def sources(self) -> tuple[Source, ...]:
        return _sources_of(self.symbols)


@dataclass(frozen=True, slots=True)
class LengthIs(Guard):
    source: Source
    length: int


@dataclass(frozen=True, slots=True)
class DictKeysAre(Guard):
    source: Source
    keys: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class SetHas(Guard):
    """`item` is a constant or a class: to look it up runs no user code."""

    source: Source
    item: object
    there: bool


@dataclass(frozen=True, slots=True)
class KeyAbsent(Guard):
    source: Source
    key: object


@dataclass(frozen=True, slots=True)
class HasKeyAt(Guard):
    """Whether an exact dict has a str among its keys, which is read where `key` leads."""

    source: Source
    key: Source
    there: bool


@dataclass(frozen=True, slots=True)
class ClassFact(_Holds):
    """What a class has under a name, looked up from position `start` of its MRO on (no __get__, no
    metaclass).

    is: the very object `held`, weakly where it allows that. absent: nothing. yields: nothing, or
    what gives way to an instance's own attribute and always will: an object of a type that cannot
    change and is no data descriptor. slot: a slot of that name; the object would hold its class.
    """

    kind: Literal["is", "absent", "yields", "slot"]
    name: str
    start: int = 0
    held: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClassFacts(Guard):
    """What is relied on of one class whose identity is guarded elsewhere: the guard holds it and
    its bases weakly, as objects, whatever path they were reached by.
    """

    held: object
    held_mro: tuple[object, ...]
    facts: tuple[ClassFact, ...]

    @classmethod
    def about(cls, kind: type, *facts: ClassFact) -> ClassFacts:
        """The guard of a class as it is now."""
        return cls(_weakly(kind), tuple(map(_weakly, kind.__mro__)), facts)

    @property
    def cls(self) -> Any:
        """The class, or `GONE`."""
        return _referent(self.held)

    @property
    def mro(self) -> tuple[object, ...]:
        """The class and its bases in the order of look-ups; `GONE` for what died."""
        return tuple(map(_referent, self.held_mro))


@dataclass(frozen=True, slots=True)
class NameFact(_Holds):
    """What a namespace has under a name: the very object `held` or an equal constant, held weakly
    where it allows that; `absent`: no such name. Of a cache of functools the name is (), under
    which it keeps what a call without arguments gave.
    """

    name: str | tuple[()]
    held: object = field(default=None, compare=False)
    absent: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceFacts(Guard):
    """What is relied on of one namespace of the process (a module of torch, builtins): its
    dictionary is held, so no path leads to it, and all its names are one native step.
    """

    table: dict[Any, object] = field(hash=False, compare=False, repr=False)
    facts: tuple[NameFact, ...]


@dataclass(frozen=True, slots=True)
class StateRead(Guard):
    """State of the process is what it was: `reader` tells it, called without arguments at each
    check (a function in C, or a quick one that changes nothing). `final`: once it is another it
    never comes back, so the entry is dead.
    """

    reader: Callable[[], object]
    value: object
    final: bool = False


@dataclass(frozen=True, slots=True)
class EntriesEmpty(Guard):
    """Of a dict: what it has under `keys` are empty dicts (or nothing), and it has none of
    `absent`. A trace has one for each dict.

    One step for what every call of an nn.Module relies on: no hooks, no forward of its own, nothing
    in its `__dict__` that hides a parameter.
    """

    source: Source
    keys: tuple[str, ...]
    absent: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class GlobalMissing(Guard):
    source: Source


@dataclass(frozen=True, slots=True)
class SameObject(Guard):
    source: Source
    other: Source


@dataclass(frozen=True, slots=True)
class DifferentObjects(Guard):
    """No two of `sources` lead to one object, nor one of them and one of `others`."""

    sources: tuple[Source, ...]
    others: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class NoOverlap(Guard):
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Unhooked(Guard):
    source: Source


@dataclass(frozen=True, slots=True)
class CellEmpty(Guard):
    source: Source


@dataclass(frozen=True, slots=True)
class CacheLacks(Guard):
    """A functools.lru_cache holds no result for a key, or an allowed constant: the trace followed
    the function in its place.
    """

    source: Source
    key: object
    allowed: tuple[object, ...] = ()


class AutocastRest(NamedTuple):
    """What a thread keeps of autocast besides what is on."""

    cpu: object  # the dtype of the device, also where autocast is off
    cuda: object
    cache: bool  # casts of leaves are kept
    nesting: int  # blocks that are open


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The thread's torch state a trace was made under. All fields are plain values."""

    grad_enabled: bool
    inference_mode: bool
    autocast_cpu: object  # None when off, else the autocast dtype
    autocast_cuda: object
    default_dtype: object
    deterministic: bool
    function_modes: int  # torch-function modes, but for the default device's (0 in ordinary code)
    dispatch_modes: int  # torch-dispatch mode stack depth (0 in ordinary code)
    default_device: object = None  # of factories: torch.set_default_device, `with torch.device()`
    autocast_rest: AutocastRest | None = None  # where autocast blocks relied on it


@dataclass(frozen=True, slots=True)
class GlobalState(Guard):
    facts: StateFacts
