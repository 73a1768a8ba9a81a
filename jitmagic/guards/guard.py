"""The Guard family: typed records of the facts that a trace relied on.

Input: facts, at the moment the tracer reads them. Output: frozen records. They are checked natively
on every call (`frame/native.py` lowers them), and by the Python reference implementation
(`check.py`) in tests and explanations. A guard knows the user's line that needed it and can state
its condition in one sentence.

    Guard = TensorMatch(source, spec, keys)      same class, dtype, device, sizes, strides, grad and
                                                 dispatch keys
          | TensorKind(source, cls, keys, dual)  same class and dispatch keys, for a tensor that no
                                                 graph takes (`dual`: because it has a tangent)
          | FlattensTo(source, names, context,   `__tensor_flatten__()` of a wrapper subclass names
                       others)                   the same inner tensors, with equal metadata and
                                                 equal objects that are no tensors
          | FieldsEqual(source, name, value,     the slot has that object, or one of its class with
                        facts)                   equal fields: the metadata of a DTensor
          | TypeIs(source, type)                 exact type
          | ValueEquals(source, value)           same exact type, equal constant (nan equals nan,
                                                 0.0 differs from -0.0)
          | IdentityIs(source, value)            the same object: a function, class, module, ...
          | InRange(source, low, high)           a float, an int, or the single number in a CPU
                                                 tensor
          | SizesRelate(op, left, right)         symbolic sizes and strides (free in TensorMatch):
                                                 `x.shape[0] >= 2`, `x.shape[0] == y.shape[1]`
          | NumbersRelate(op, left, right)       floats and ints: `loss < best - 1e-3`
          | LengthIs(source, length)             len() of an exact list, tuple or dict
          | DictKeysAre(source, keys)            same keys in the same order; ANY_KEY: any key
          | SetHas(source, item, present)        a set or frozenset contains the item, or does not
          | KeyAbsent(source, key)               a dict (or instance dict) has no such key
          | HasKeyAt(source, key, there)         an exact dict has the str at `key`, or does not
          | ClassFacts(cls, mro, facts)          a class: its bases, and attributes that it has,
                                                 lacks, or lets instances override (no source)
          | NamespaceFacts(table, facts)         a dictionary that lives as long as the process:
                                                 names bound to given objects, names absent
                                                 (no source)
          | StateRead(reader, value, final)      `reader()` returns the same value as in the trace
                                                 (no source)

          | EntriesEmpty(source, keys, absent)   dict entries that are empty dicts; absent keys
          | GlobalMissing(source)                no such name in the globals (builtins are used), or
                                                 in the builtins

          | SameObject(source, other)            two paths lead to one object
          | DifferentObjects(sources, others)    the paths lead to different objects
          | NoOverlap(sources)                   these tensors share no memory (one is mutated)

          | Unhooked(source)                     a leaf tensor has no hooks that a backward runs
          | CellEmpty(source)                    the cell has no contents

          | CacheLacks(source, key, allowed)     a functools.lru_cache has no result for the key, or
                                                 one of the `allowed` constants
          | GlobalState(facts)                   grad mode, autocast, default dtype, ... (no source)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from ..errors import UserLine
from ..lazy_dataclass import dataclass, field
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..symbols.size import stride_place
from ..symbols.symbolic_numbers import Symbol, symbols_of
from .source import Source
from .weak_fields import WeakField, referent, weakly

__all__ = [
    "ANY_KEY",
    "READ_BY_GUARDS",
    "AutocastDetails",
    "CacheLacks",
    "CellEmpty",
    "ClassFact",
    "ClassFacts",
    "DictKeysAre",
    "DifferentObjects",
    "EntriesEmpty",
    "FieldsEqual",
    "FlattensTo",
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
]


class _AnyKey:
    def __repr__(self) -> str:
        return "..."


ANY_KEY = _AnyKey()  # in DictKeysAre: a key with guards of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Base of the family; `where` is the user's line that relied on the fact (not compared)."""

    where: UserLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TensorMatch(Guard):
    source: Source
    spec: TensorSpec  # of the traced tensor; its sizes are ints, even those that are free
    keys: int  # torch._C._dispatch_keys(t).raw_repr(): python, conj, neg, functorch, ... bits
    free_sizes: tuple[int, ...] = ()  # unconstrained except by SizesRelate
    free_strides: tuple[int, ...] = ()
    hiding: tuple[str, ...] = ()  # entries of its `__dict__` that hide attributes of its class

    @property
    def free_indices(self) -> tuple[int, ...]:
        """The indices of free sizes and strides among the tensor's numbers (symbols/size.py)."""
        return (*self.free_sizes, *map(stride_place, self.free_strides))


@dataclass(frozen=True, slots=True)
class TensorKind(WeakField, Guard):
    """The class is referenced weakly, as in TypeIs."""

    source: Source
    held: object
    keys: int
    dual: bool = False

    @property
    def cls(self) -> object:
        """The class, or `GONE`."""
        return self.value


@dataclass(frozen=True, slots=True)
class FlattensTo(Guard):
    """The check calls `__tensor_flatten__`, which is user code, and compares the metadata by ==."""

    source: Source
    names: tuple[str, ...]
    context: object = field(hash=False)
    others: tuple[tuple[str, object], ...] = field(default=(), hash=False)


@dataclass(frozen=True, slots=True)
class FieldsEqual(Guard):
    """Slot `name` has `value`, or an object of its class with equal attributes at these paths."""

    source: Source
    name: str
    value: object = field(hash=False)
    facts: tuple[tuple[tuple[str, ...], object], ...] = field(hash=False)


@dataclass(frozen=True, slots=True)
class TypeIs(WeakField, Guard):
    """The class is referenced weakly, so that the journal does not keep a redefined class alive."""

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
class IdentityIs(WeakField, Guard):
    """The object is referenced weakly if possible, here and by the native check.

    The journal must not keep a redefined function alive. Never compared by value.
    """

    source: Source
    held: object = field(hash=False)


READ_BY_GUARDS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32,
    torch.float64,
)  # fmt: skip
"""Dtypes of one-element tensors that InRange reads."""


@dataclass(frozen=True, slots=True)
class InRange(Guard):
    """low <= value <= high for a Python float or int, or the single number in a CPU tensor.

    `whole`: it has no fraction.
    """

    source: Source
    low: float
    high: float
    whole: bool = False


class _Relation:
    """Mixin for the fields `left` and `right`."""

    __slots__ = ()
    left: Expr
    right: Expr

    @property
    def symbols(self) -> list[Symbol]:
        return list(dict.fromkeys((*symbols_of(self.left), *symbols_of(self.right))))

    @property
    def sources(self) -> tuple[Source, ...]:
        """The number sources, and the tensors whose sizes the other symbols are."""
        origins: list[Any] = [symbol.origin for symbol in self.symbols]
        found = (one if isinstance(one, Source) else one.source for one in origins)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class SizesRelate(_Relation, Guard):
    """`left op right` for sizes, strides, storage offsets and ints.

    Both sides are integer expressions over symbols whose origins are SizeOf, StrideOf, OffsetOf, or
    the Source of an int.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class NumbersRelate(_Relation, Guard):
    """`left op right` for floats and ints, evaluated with Python's arithmetic.

    `symbols.float_programs` defines the expressions; the origins of their symbols are Sources.
    """

    op: str
    left: Expr
    right: Expr


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
    """`item` is a constant or a class, so that looking it up runs no user code."""

    source: Source
    item: object
    present: bool


@dataclass(frozen=True, slots=True)
class KeyAbsent(Guard):
    source: Source
    key: object


@dataclass(frozen=True, slots=True)
class HasKeyAt(Guard):
    """An exact dict has the key read at the path `key` (a str); it lacks that if not `there`."""

    source: Source
    key: Source
    there: bool


@dataclass(frozen=True, slots=True)
class ClassFact(WeakField):
    """The attribute of a class under a name, looked up from position `start` of its MRO.

    The lookup uses neither `__get__` nor the metaclass. `kind` says what it finds:

    is       the object `held`, referenced weakly if possible
    absent   nothing
    yields   nothing, or an attribute that an instance's `__dict__` always overrides (its type is
             immutable and no data descriptor)
    slot     a slot; its descriptor is not held, because it would keep the class alive
    """

    kind: Literal["is", "absent", "yields", "slot"]
    name: str
    start: int = 0
    held: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClassFacts(Guard):
    """The facts about one class; another guard (TypeIs, IdentityIs) checks that it is that class.

    So this one needs no source: it refers to the class and its bases directly, and weakly.
    """

    held: object
    held_mro: tuple[object, ...]
    facts: tuple[ClassFact, ...]

    @classmethod
    def about(cls, kind: type, *facts: ClassFact) -> ClassFacts:
        """Make the guard for a class as it is now."""
        return cls(weakly(kind), tuple(map(weakly, kind.__mro__)), facts)

    @property
    def cls(self) -> Any:
        """The class, or `GONE`."""
        return referent(self.held)

    @property
    def mro(self) -> tuple[object, ...]:
        """The class and its bases in lookup order; `GONE` for those that died."""
        return tuple(map(referent, self.held_mro))


@dataclass(frozen=True, slots=True)
class NameFact(WeakField):
    """A name in a namespace is bound to the object `held`, or to an equal constant.

    `held` is weak if possible; `absent`: the name is not bound. For a cache of functools the name
    is (), the key of a call without arguments.
    """

    name: str | tuple[()]
    held: object = field(default=None, compare=False)
    absent: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceFacts(Guard):
    """The facts about one namespace of the process (a torch module, builtins).

    The guard holds the dictionary itself, so it needs no source, and all names are one native step.
    """

    table: dict[Any, object] = field(hash=False, compare=False, repr=False)
    facts: tuple[NameFact, ...]


@dataclass(frozen=True, slots=True)
class StateRead(Guard):
    """State of the process: `reader()`, called at each check, returns `value`.

    The reader is fast (usually a C function) and has no side effects. `final`: a changed value
    never changes back, so the entry is dropped.
    """

    reader: Callable[[], object]
    value: object
    final: bool = False


@dataclass(frozen=True, slots=True)
class EntriesEmpty(Guard):
    """Entries of a dict under `keys` are empty dicts or missing, and no key of `absent` exists.

    A trace has one per dict. In one native step it checks all that a call of an nn.Module relies
    on: no hooks, no `forward` of the instance, nothing in its `__dict__` that hides a parameter.
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
    """No two of `sources` lead to one object, and none leads to an object of `others`.

    One guard for all, because guards on pairs grow with the square of their number: named_modules()
    of a diffusers UNet uses more than 64 modules as keys.
    """

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
    """A functools.lru_cache has no result for a key, or one of the `allowed` constants.

    Needed where the trace inlined the cached function, as eager does on a cache miss.
    """

    source: Source
    key: object
    allowed: tuple[object, ...] = ()


class AutocastDetails(NamedTuple):
    """The autocast state of a thread that StateFacts does not have."""

    cpu: object  # the autocast dtype of the device, set even while autocast is off
    cuda: object
    cache: bool  # casts of leaves are cached
    nesting: int  # number of open blocks


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The thread's torch state that a trace was made under; all fields are plain values."""

    grad_enabled: bool
    inference_mode: bool
    autocast_cpu: object  # None when off, else the autocast dtype
    autocast_cuda: object
    default_dtype: object
    deterministic: bool
    function_modes: int  # torch-function modes except the default device's (0 in ordinary code)
    dispatch_modes: int  # torch-dispatch mode stack depth (0 in ordinary code)
    transformed: bool  # called under a transform of torch.func
    default_device: object = None  # set by torch.set_default_device or `with torch.device()`
    autocast_details: AutocastDetails | None = None  # None unless an autocast block relied on it


@dataclass(frozen=True, slots=True)
class GlobalState(Guard):
    facts: StateFacts
