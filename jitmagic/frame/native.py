"""Lowers guards to native programs and re-exports the names of the native extension.

Input: the guards of a trace and the sources that the entry reads. Output: the steps of a
`GuardProgram` (extensions/frame/guard_program.cpp) and the registers that hold the sources.
Invariant: every load checks what it reads, so steps may run in any order; common prefixes of paths
share registers, and cheap, shallow guards come first. The program keeps constants and namespaces
alive, and holds everything else weakly where possible.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ..extension import native_missing
from ..guards.constants import exact_name
from ..guards.guard import Guard
from ..guards.kinds import KINDS, Step
from ..guards.read import integer_classes
from ..guards.source import (
    Argument,
    ArrayMemory,
    AttributeAt,
    Builtin,
    CacheEntry,
    CellContents,
    Contents,
    DictEntry,
    DictKeyAt,
    DictValueAt,
    FunctionPart,
    Global,
    Globals,
    Gradient,
    ImportedModule,
    InstanceDict,
    IntOf,
    Item,
    ItemAt,
    IteratorParts,
    Joined,
    Length,
    ModuleAttr,
    Part,
    Reduced,
    Referent,
    SlotAttr,
    Source,
    TypeAttr,
    TypeOf,
)

try:
    from .._frame import (
        TORCH_VERSION,
        CallBatch,
        Continue,
        Dispatcher,
        Entry,
        GuardProgram,
        ModuleCall,
        Spread,
        TimedGraph,
        call_plainly,
        continue_with,
        release_arguments,
    )
    from .. import _frame  # isort: skip  # last, so that the error names the extension
except ImportError as error:
    raise native_missing("jitmagic._frame", str(error)) from error

if torch.__version__ != TORCH_VERSION:
    raise native_missing(
        "jitmagic._frame", f"built for torch {TORCH_VERSION}, running {torch.__version__}"
    )

__all__ = [
    "CallBatch",
    "Continue",
    "Dispatcher",
    "Entry",
    "GuardProgram",
    "ModuleCall",
    "Spread",
    "Step",
    "TimedGraph",
    "call_plainly",
    "continue_with",
    "lower_guards",
    "release_arguments",
]

_GRADIENT = torch._C.TensorBase.__dict__["grad"]
_PLAIN_STEPS = {  # the only operand is the register of the base
    CellContents: "CELL",
    InstanceDict: "INSTANCE_DICT",
    TypeOf: "TYPE",
    Contents: "CONTENTS",
    Length: "LENGTH_OF",
    IteratorParts: "ITERATOR_PARTS",
    Referent: "REFERENT",
}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)  # reading their .grad runs no Python


def lower_guards(
    guards: Iterable[Guard],
    inputs: tuple[Source, ...],
    namespace: dict[str, Any],
    builtins: dict[str, Any],
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps that check `guards` and load `inputs`, and the register of each input."""
    lowering = _Lowering(namespace, builtins)
    for guard in sorted(guards, key=_cost):
        lowering.check(guard)
    registers = tuple(lowering.register(source) for source in inputs)
    return tuple(lowering.steps), registers


def _cost(guard: Guard) -> tuple[int, int]:
    kind = KINDS[type(guard)]
    depth = max((_depth(source) for source in kind.sources(guard)), default=1)
    return depth, kind.rank


def _depth(source: Source) -> int:
    depth = 1
    while (base := getattr(source, "base", None)) is not None:
        if isinstance(source, ItemAt | AttributeAt) and _depth(source.index) > _depth(base):
            base = source.index
        source, depth = base, depth + 1
    return depth


class _Lowering:
    """The steps so far and the register of each loaded source."""

    def __init__(self, namespace: dict[str, Any], builtins: dict[str, Any]) -> None:
        self.namespace, self.builtins = namespace, builtins
        self.steps: list[Step] = []
        self._registers: dict[Source, int] = {}
        self._relations = -1  # index of the SIZES step, if that was the last check

    def register(self, source: Source) -> int:
        """Return the register that holds `source`; append a load unless a step has loaded it."""
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
            case Globals():  # there is no step that loads an object of the program itself
                return ("NAMESPACE_ITEM", {"globals": self.namespace}, "globals")
            case Builtin(name=name):
                return ("NAMESPACE_ITEM", self.builtins, name)
            case ImportedModule(name=name):
                return ("NAMESPACE_ITEM", sys.modules, name)
            case Item(base=InstanceDict(base=owner), key=str(key)):
                return ("INSTANCE_ITEM", self.register(owner), exact_name(key))
            case ItemAt(base=base, index=index):
                return ("ITEM_AT", self.register(base), self.register(index))
            case AttributeAt(base=base, index=index, tables=tables):
                return ("ATTRIBUTE_AT", self.register(base), self.register(index), tables)
        return self._follow(source, self.register(source.base))  # type: ignore[attr-defined]

    def _follow(self, source: Source, base: int) -> Step:
        if (step := _PLAIN_STEPS.get(type(source))) is not None:
            return (step, base)
        match source:
            case Item(key=key) | DictEntry(key=key):
                return ("ITEM", base, key)
            case DictKeyAt(index=index):
                return ("DICT_KEY", base, index)
            case DictValueAt(index=index):
                return ("DICT_VALUE", base, index)
            case TypeAttr(name=name):
                return ("TYPE_ATTR", base, name)
            case SlotAttr(name=name):
                return ("SLOT", base, name)
            case FunctionPart(part=part):
                return ("FUNCTION_PART", base, part)
            case ModuleAttr(name=name):
                return ("MODULE_ITEM", base, name)
            case IntOf():
                return ("INT_OF", base, integer_classes())
            case Joined(before=before, after=after):
                return ("JOINED", base, before, after)
            case Part(start=start, stop=stop):
                return ("PART", base, slice(start, stop))
            case Reduced(function=function):
                # The extension has the functions of guards/contents.py under the same names.
                return ("REDUCED", base, getattr(_frame, function.__name__, function))
            case Gradient():
                return ("GRADIENT", base, _GRADIENT, _PLAIN_TENSORS)
            case CacheEntry(key=key):
                return ("CACHE_ENTRY", base, key)
            case ArrayMemory():
                return ("ARRAY_MEMORY", base, torch.from_numpy, sys.modules["numpy"].ndarray)
        raise TypeError(f"not a source: {source!r}")

    def check(self, guard: Guard) -> None:
        """Append the steps of one guard."""
        for step in KINDS[type(guard)].lower(guard, self):
            self._append(step)

    def _append(self, step: Step) -> None:
        """Append a step; consecutive relations of sizes are merged into one that reads each tensor
        once.

        The eight relations of two matrices took 110 ns per call as separate steps, 40 ns merged.
        """
        is_relation = step[0] == "SIZES"
        if is_relation and self._relations >= 0:
            _, registers, codes = self.steps.pop(self._relations)  # loads may have come since
            step = ("SIZES", tuple(dict.fromkeys((*registers, *step[1]))), (*codes, *step[2]))
        self._relations = len(self.steps) if is_relation else -1
        self.steps.append(step)
