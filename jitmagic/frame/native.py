"""Lowers guards to native programs and re-exports the names of the native extension.

Input: the guards of a trace and the sources that the entry reads. Output: the steps of a
`GuardProgram` (extensions/frame/guard_program.cpp) and the registers that hold the sources.
Invariant: every load checks what it reads, so steps may run in any order; common prefixes of paths
share registers, and cheap, shallow guards come first. The program keeps constants and namespaces
alive, and holds everything else weakly where possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..extension import check_build, native_missing
from ..guards.guard import Guard
from ..guards.kinds import KINDS, Step
from ..guards.source import Source
from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction, Namespace

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

check_build("jitmagic._frame", TORCH_VERSION)

__all__ = [
    "CallBatch",
    "Continue",
    "Dispatcher",
    "Entry",
    "EntryForm",
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


def lower_guards(
    guards: Iterable[Guard],
    inputs: tuple[Source, ...],
    namespace: Namespace,
    builtins: Namespace,
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps that check `guards` and load `inputs`, and the register of each input."""
    lowering = _Lowering(namespace, builtins)
    for guard in sorted(guards, key=_cost):
        lowering.check(guard)
    registers = tuple(lowering.register(source) for source in inputs)
    return tuple(lowering.steps), registers


def _cost(guard: Guard) -> tuple[int, int]:
    kind = KINDS[type(guard)]
    depth = max((source.depth for source in kind.sources(guard)), default=1)
    return depth, kind.rank


class _Lowering:
    """The steps so far and the register of each loaded source."""

    def __init__(self, namespace: Namespace, builtins: Namespace) -> None:
        self.namespace, self.builtins = namespace, builtins
        self.steps: list[Step] = []
        self._registers: dict[Source, int] = {}
        self._relations = -1  # index of the SIZES step, if that was the last check

    def register(self, source: Source) -> int:
        """Return the register that holds `source`; append a load unless a step has loaded it."""
        if source not in self._registers:
            name, *operands = source.load(self)
            target = len(self._registers)
            self.steps.append((name, target, *operands))
            self._registers[source] = target
        return self._registers[source]

    def registers(self, sources: tuple[Source, ...]) -> tuple[int, ...]:
        return tuple(self.register(source) for source in sources)

    def native(self, function: AnyFunction) -> AnyFunction:
        """Return the C function that does the same: the extension names it like the Python one."""
        twin: AnyFunction = getattr(_frame, function.__name__, function)
        return twin

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


@dataclass(frozen=True, slots=True)
class EntryForm:
    """Says what the dispatcher calls the graph with, and how it makes the result (`template`: a
    trace.residual.template.Template, which this package does not know).
    """

    sources: tuple[Source, ...]
    template: Any
    has_graph: bool

    @property
    def wanted(self) -> tuple[Source, ...]:
        """The sources that a call reads after the guards, which give them registers."""
        return (*self.sources, *self.template.sources)

    def entry(
        self, program: GuardProgram, run: AnyFunction | None, registers: Any, hooked: bool = False
    ) -> Entry:
        """Return the entry; `registers` are those of `wanted`."""
        count = len(self.sources)
        shape = self.template.with_registers(registers[count:])
        inputs = registers[:count] if self.has_graph else ()
        return Entry(program, run or _no_graph, inputs, shape, hooked)


def _no_graph() -> tuple[object, ...]:
    """Stand in for the executable of a frame that computes nothing."""
    return ()
