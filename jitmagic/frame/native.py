"""Lowering of guards to native programs, and the names of the native part.

Comes in: the guards of a trace and the sources of what the entry reads. Goes out: the steps of a
`GuardProgram` (extensions/frame/guard_program.cpp) and the registers in which the sources end up.
Invariant: every load checks what it reads, so steps may come in any order; common prefixes of
paths share registers, cheap and shallow guards come first. The program keeps alive constants,
namespaces and nothing that can be held weakly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..extension import native_missing
from ..guards.guard import (
    ANY_KEY,
    CellEmpty,
    ClassFact,
    ClassFacts,
    DictKeysAre,
    DifferentObjects,
    EntriesEmpty,
    GlobalMissing,
    GlobalState,
    Guard,
    IdentityIs,
    InRange,
    KeyAbsent,
    LengthIs,
    NameFact,
    NamespaceFacts,
    NoOverlap,
    SameObject,
    SetHas,
    SizesRelate,
    StateRead,
    TensorKind,
    TensorMatch,
    TypeIs,
    Unhooked,
    ValueEquals,
    can_be_weak,
)
from ..guards.read import is_array_scalar
from ..guards.source import (
    Argument,
    ArrayMemory,
    Builtin,
    CellContents,
    Contents,
    DictEntry,
    DictKeyAt,
    DictValueAt,
    FunctionPart,
    Global,
    Gradient,
    ImportedModule,
    InstanceDict,
    Item,
    IteratorParts,
    ModuleAttr,
    Referent,
    SlotAttr,
    Source,
    TypeAttr,
    TypeOf,
)
from ..symbols.expr import Expr, Integer
from ..symbols.polynomial import operation
from ..symbols.scalar import Symbol
from ..symbols.size import OffsetOf, SizeOf, StrideOf

try:
    from .._frame import (
        TORCH_VERSION,
        Continue,
        Dispatcher,
        Entry,
        GuardProgram,
        ModuleCall,
        call_plainly,
        continue_with,
    )
except ImportError as error:
    raise native_missing("jitmagic._frame", str(error)) from error

if torch.__version__ != TORCH_VERSION:
    raise native_missing(
        "jitmagic._frame", f"built for torch {TORCH_VERSION}, running {torch.__version__}"
    )

__all__ = [
    "Continue",
    "Dispatcher",
    "Entry",
    "GuardProgram",
    "ModuleCall",
    "Step",
    "call_plainly",
    "continue_with",
    "lower_guards",
]

Step = tuple[Any, ...]

_GRADIENT = torch._C.TensorBase.__dict__["grad"]
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)  # their .grad is read in C alone

# Within one depth: what fails soonest and costs least.
_RANK: dict[type[Guard], int] = {
    IdentityIs: 0,
    TypeIs: 0,
    SameObject: 0,
    ValueEquals: 1,
    LengthIs: 1,
    TensorKind: 2,
    TensorMatch: 2,
    InRange: 2,
    Unhooked: 2,
    CellEmpty: 2,
    ClassFacts: 2,
    NamespaceFacts: 2,
    StateRead: 3,
    SizesRelate: 3,
    GlobalState: 3,
    SetHas: 3,
    KeyAbsent: 4,
    GlobalMissing: 4,
    EntriesEmpty: 5,
    DictKeysAre: 6,
    DifferentObjects: 7,
    NoOverlap: 7,
}


def lower_guards(
    guards: Iterable[Guard],
    inputs: tuple[Source, ...],
    namespace: dict[str, Any],
    builtins: dict[str, Any],
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Steps that check `guards` and load `inputs`, and the register of each input."""
    lowering = _Lowering(namespace, builtins)
    for guard in sorted(guards, key=_cost):
        lowering.check(guard)
    registers = tuple(lowering.register(source) for source in inputs)
    return tuple(lowering.steps), registers


def _cost(guard: Guard) -> tuple[int, int]:
    depth = max((_depth(source) for source in _sources(guard)), default=1)
    return depth, _RANK[type(guard)]


def _sources(guard: Guard) -> tuple[Source, ...]:
    match guard:
        case GlobalState() | ClassFacts() | NamespaceFacts() | StateRead():
            return ()
        case NoOverlap(sources=sources) | SizesRelate(sources=sources):
            return sources
        case DifferentObjects(sources=sources, others=others):
            return (*sources, *others)
        case SameObject(source=source, other=other):
            return source, other
    return (guard.source,)  # type: ignore[attr-defined]


def _depth(source: Source) -> int:
    depth = 1
    while (base := getattr(source, "base", None)) is not None:
        source, depth = base, depth + 1
    return depth


class _Lowering:
    """Steps so far, and which register holds what."""

    def __init__(self, namespace: dict[str, Any], builtins: dict[str, Any]) -> None:
        self.namespace, self.builtins = namespace, builtins
        self.steps: list[Step] = []
        self._registers: dict[Source, int] = {}

    def register(self, source: Source) -> int:
        """The register that holds what `source` leads to; loads it when no step has yet."""
        if source not in self._registers:
            name, *operands = self._load(source)
            target = len(self._registers)
            self.steps.append((name, target, *operands))
            self._registers[source] = target
        return self._registers[source]

    def registers(self, sources: tuple[Source, ...]) -> tuple[int, ...]:
        return tuple(self.register(source) for source in sources)

    def _load(self, source: Source) -> Step:
        match source:
            case Argument(index=index):
                return ("ARGUMENT", index)
            case Global(name=name):
                return ("NAMESPACE_ITEM", self.namespace, name)
            case Builtin(name=name):
                return ("NAMESPACE_ITEM", self.builtins, name)
            case ImportedModule(name=name):
                return ("NAMESPACE_ITEM", sys.modules, name)
            case Item(base=InstanceDict(base=owner), key=str(key)):
                return ("INSTANCE_ITEM", self.register(owner), _exact(key))
        return self._follow(source, self.register(source.base))  # type: ignore[attr-defined]

    def _follow(self, source: Source, base: int) -> Step:
        match source:
            case CellContents():
                return ("CELL", base)
            case InstanceDict():
                return ("INSTANCE_DICT", base)
            case Item(key=key) | DictEntry(key=key):
                return ("ITEM", base, key)
            case DictKeyAt(index=index):
                return ("DICT_KEY", base, index)
            case DictValueAt(index=index):
                return ("DICT_VALUE", base, index)
            case TypeOf():
                return ("TYPE", base)
            case TypeAttr(name=name):
                return ("TYPE_ATTR", base, name)
            case SlotAttr(name=name):
                return ("SLOT", base, name)
            case FunctionPart(part=part):
                return ("FUNCTION_PART", base, part)
            case ModuleAttr(name=name):
                return ("MODULE_ITEM", base, name)
            case Contents():
                return ("CONTENTS", base)
            case Gradient():
                return ("GRADIENT", base, _GRADIENT, _PLAIN_TENSORS)
            case IteratorParts():
                return ("ITERATOR_PARTS", base)
            case Referent():
                return ("REFERENT", base)
            case ArrayMemory():
                return ("ARRAY_MEMORY", base, torch.from_numpy, sys.modules["numpy"].ndarray)
        raise TypeError(f"not a source: {source!r}")

    def check(self, guard: Guard) -> None:
        """Append the steps of one guard."""
        match guard:
            case GlobalState():
                self.steps.append(_state(guard))
                if guard.facts.autocast_rest is not None:
                    self.steps.append(("AUTOCAST", *guard.facts.autocast_rest))
            case GlobalMissing(source=Global(name=name)):
                self.steps.append(("NAMESPACE_ABSENT", self.namespace, name))
            case GlobalMissing(source=Builtin(name=name)):
                self.steps.append(("NAMESPACE_ABSENT", self.builtins, name))
            case KeyAbsent(source=InstanceDict(base=owner), key=str(key)):
                self.steps.append(("INSTANCE_ABSENT", self.register(owner), _exact(key)))
            case ClassFacts(cls=cls, mro=mro, facts=facts):
                self.steps.append(("CLASS", cls, mro, tuple(map(_fact, facts))))
            case NamespaceFacts(table=table, facts=names):
                self.steps.append(("NAMESPACE", table, tuple(map(_name_fact, names))))
            case StateRead(reader=reader, value=value, final=final):
                self.steps.append(("STATE_READ", reader, value, int(final)))
            case NoOverlap(sources=sources):
                self.steps.append(("NO_OVERLAP", self.registers(sources)))
            case SizesRelate(op=op, left=left, right=right, sources=sources):
                places = {source: place for place, source in enumerate(sources)}
                code = (*_postfix(left, places), *_postfix(right, places), (op, 0, 0))
                self.steps.append(("SIZES", self.registers(sources), code))
            case SameObject(source=left, other=right):
                self.steps.append(("SAME", self.register(left), self.register(right)))
            case DifferentObjects(sources=sources, others=others):
                self.steps.append(("DIFFERENT", self.registers(sources), self.registers(others)))
            case _:
                register = self.register(guard.source)  # type: ignore[attr-defined]
                self.steps.append(_check(guard, register))


def _check(guard: Guard, register: int) -> Step:
    match guard:
        case TensorMatch(spec=spec, keys=keys):
            shape = _fixed(spec.shape, guard.free_sizes)
            stride = _fixed(spec.stride, guard.free_strides)
            facts = (spec.cls, spec.dtype, spec.device, shape, stride)
            return ("TENSOR", register, *facts, spec.requires_grad, spec.is_leaf, keys)
        case TensorKind(cls=cls, keys=keys, dual=dual):
            return ("TENSOR_KIND", register, cls, keys, dual)
        case TypeIs(type=cls):
            return ("TYPE_IS", register, cls)
        case ValueEquals(value=value) if is_constant(value):
            return ("EQUALS", register, value)
        case IdentityIs(value=value) | ValueEquals(value=value):
            return ("IS_WEAK" if can_be_weak(value) else "IS", register, value)
        case InRange(low=low, high=high):
            return ("IN_RANGE", register, low, high)
        case LengthIs(length=length):
            return ("LENGTH", register, length)
        case DictKeysAre(keys=keys):
            return ("DICT_KEYS", register, tuple(keys), ANY_KEY)
        case SetHas(item=item, there=there):
            return ("SET_HAS", register, item, int(there))
        case KeyAbsent(key=key):
            return ("KEY_ABSENT", register, key)
        case EntriesEmpty(keys=keys, absent=absent):
            return ("ENTRIES_EMPTY", register, tuple(keys), tuple(absent))
        case CellEmpty():
            return ("CELL_EMPTY", register)
        case Unhooked():
            return ("UNHOOKED", register)
    raise TypeError(f"not a guard: {guard!r}")


def _fixed(numbers: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...]:
    """-1 stands for what is not compared."""
    return tuple(-1 if place in free else n for place, n in enumerate(numbers)) if free else numbers


def _postfix(expr: Expr, places: Mapping[Source, int]) -> tuple[tuple[str, int, int], ...]:
    """A program for a stack of 64-bit ints: (operation, operand, operand)."""
    match expr:
        case Integer(value):
            return (("constant", value, 0),)
        case Symbol(origin=SizeOf(source=source, dim=dim)):
            return (("size", places[source], dim),)  # type: ignore[index]
        case Symbol(origin=StrideOf(source=source, dim=dim)):
            return (("stride", places[source], dim),)  # type: ignore[index]
        case Symbol(origin=OffsetOf(source=source)):
            return (("offset", places[source], 0),)  # type: ignore[index]
        case Symbol(origin=source):
            return (("number", places[source], 0),)  # type: ignore[index]
    op, a, b = operation(expr)
    return (*_postfix(a, places), *_postfix(b, places), (op, 0, 0))


def _fact(fact: ClassFact) -> Step:
    match fact.kind:
        case "is":
            return ("IS", _exact(fact.name), fact.start, fact.value)
        case "absent":
            return ("ABSENT", _exact(fact.name), fact.start)
    return (fact.kind.upper(), _exact(fact.name))


def _name_fact(fact: NameFact) -> Step:
    name = _exact(fact.name) if isinstance(fact.name, str) else fact.name
    return ("ABSENT", name) if fact.absent else ("IS", name, fact.value)


def _state(guard: GlobalState) -> Step:
    facts = guard.facts
    return (
        "STATE",
        facts.grad_enabled,
        facts.inference_mode,
        facts.autocast_cpu,
        facts.autocast_cuda,
        facts.default_dtype,
        facts.deterministic,
        facts.function_modes,
        facts.dispatch_modes,
        facts.default_device,
    )


_SCALARS = (str, int, bool, float, complex, bytes, range, type(None), type(...), torch.device)


def is_constant(value: object) -> bool:
    """Whether native and Python checks compare the value by content rather than by identity."""
    kind = type(value)
    if kind in _SCALARS or value is NotImplemented or is_array_scalar(kind):
        return True
    if isinstance(value, tuple) or kind is frozenset:
        return all(is_constant(item) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, slice):
        return is_constant((value.start, value.stop, value.step))
    return False


def _exact(name: str) -> str:
    return name if type(name) is str else str.__str__(name)
