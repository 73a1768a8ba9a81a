"""Handle and Family: what stands behind a dispatcher, and what belongs to one tagged function.

Comes in: calls that no entry fits. Goes out: a new entry, or the original run as plain Python,
with the reason on show in `state`. A Family is one tagged function with all that was compiled
because of it (its resume functions, callees the hook found); they share options, compiler and
journal. Invariants: one compile at a time per handle; an entry is used only after its guards
passed for the very call it was made from; when the root handle dies, the family's entries go with
it.
"""

from __future__ import annotations

import linecache
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from .. import _frame
from ..bytecode import FrameSnapshot
from ..errors import RecompileWarning, Unsupported, UserLine, warn
from ..guards.check import check, is_other_number, why
from ..guards.guard import Guard, InRange, ValueEquals
from ..guards.read import read_source
from ..guards.source import Argument, Source
from ..options import Options
from ..records import CompileRecord, Journal
from .library import LibraryFunction
from .native import Dispatcher, Entry, continue_with
from .original import Original

__all__ = ["Compiler", "Family", "Handle", "Skip", "all_handles", "source_lines"]

_WASTED_LIMIT = 4  # times recompile_limit: entries that died before they were of use
_TOTAL_LIMIT = 64  # times recompile_limit: entries of one code over all module instances
_AFTER_LIMIT = 2  # variants of a callee once what calls it has reached its limit


@dataclass(frozen=True, slots=True)
class Skip:
    """The compile function's answer for a frame that runs as eager from now on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Compiler:
    """What frame is given to compile with; it knows no more of the stages."""

    compile: Callable[[Handle, FrameSnapshot, CompileRecord], Entry | Skip]
    flatten: Callable[[CodeType], Any] = lambda code: code
    """The tracer's view of a code object, kept as `handle.flat`."""


@dataclass(eq=False)
class Family:
    """A tagged function and all that is compiled because of it."""

    options: Options
    compiler: Compiler
    journal: Journal

    def __post_init__(self) -> None:
        self.members: list[Handle] = []  # resume functions and callees; the root is not among them
        self.limit_reached = False  # by the root or one of its resume functions

    def drop_dead(self) -> None:
        """Let go of callees whose code is gone: helpers that were defined anew."""
        self.members = [member for member in self.members if member.original.is_alive]

    def close(self) -> None:
        """Drop every entry and stub: what they refer to is hidden from the garbage collector."""
        for member in self.members:
            member.drop()
        self.members.clear()


@dataclass(eq=False, slots=True)
class _Variant:
    """What an entry remembers: the compile it came from, and whose variant it counts as."""

    record: CompileRecord
    instance: int | None  # id of what has a budget of its own, see Handle._instance_of


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def all_handles() -> list[Handle]:
    """Every handle alive, in no order."""
    return list(_handles)


class Handle:
    """One dispatcher's Python side: compiles on a miss, keeps the ledger, explains its state."""

    def __init__(
        self,
        original: Original,
        family: Family,
        *,
        flat: Any = None,
        root: bool = False,
        library: LibraryFunction | None = None,
    ) -> None:
        self.original, self.family, self.library = original, family, library
        self.name = original.name
        self._flat, self._root, self._goes_on = flat, root, flat is not None
        self._reason: str | None = None  # why calls without an entry run as eager
        # for whom its callees are hooked when it runs as eager
        self._hooked: Family | None = family
        if library is not None and library.plain:
            self._reason, self._hooked = f"eager: {library.plain}", None
        self._wasted = 0
        self._compiling_thread: int | None = None
        self._lock = threading.RLock()
        self.dispatcher = Dispatcher(original.qualname, original.arity, self._missed, self._failed)
        self.dispatcher.owner, self.dispatcher.family = self, family
        if not root:
            family.members.append(self)
        _handles.add(self)

    @classmethod
    def of_function(cls, function: FunctionType, options: Options, compiler: Compiler) -> Handle:
        """The root handle of a tagged function."""
        family = Family(options, compiler, Journal())
        return cls(Original.of_function(function), family, root=True)

    @classmethod
    def of_callee(
        cls,
        code: CodeType,
        namespace: dict[str, Any],
        family: Family,
        library: LibraryFunction | None = None,
    ) -> Handle:
        """The handle of code that the hook found; the code holds the handle, not the other way."""
        family.drop_dead()
        return cls(Original(code, namespace, weak=True), family, library=library)

    def for_resume(self, flat: Any) -> Handle:
        """The handle of a resume function of this one; its values are all plain arguments."""
        original = Original(flat.code, self.original.namespace, name=self.name)
        return Handle(original, self.family, flat=flat)

    def resume_dispatcher(self, flat: Any) -> Dispatcher:
        """The dispatcher of a new resume function: what residuals continue with."""
        return self.for_resume(flat).dispatcher

    def __del__(self) -> None:
        if self._root:
            self.family.close()

    # ---------------------------------------------------------------------------------- to be read

    @property
    def is_root(self) -> bool:
        """Whether this is the tagged function itself, not a resume function or a callee."""
        return self._root

    @property
    def options(self) -> Options:
        """The family's options."""
        return self.family.options

    @property
    def journal(self) -> Journal:
        """The family's compiles, oldest first."""
        return self.family.journal

    @property
    def flat(self) -> Any:
        """The tracer's view of the code."""
        if self._flat is None:
            self._flat = self.family.compiler.flatten(self.original.code)
        return self._flat

    @property
    def run_plainly(self) -> Original:
        """The original, called with the dispatcher's values."""
        return self.original

    def varying(self, snapshot: FrameSnapshot) -> frozenset[Source] | None:
        """Floats and ints that are data: those that differ from what an entry was compiled for, and
        of a library function the arguments that are declared to change. None where there are none.
        """
        changed = frozenset(
            guard.source
            for entry in self.dispatcher.entries
            for guard in _guards_of(entry.notes.record)
            if isinstance(guard, ValueEquals | InRange)
            and self._may_vary(guard.source, entry, snapshot)
            and is_other_number(guard, snapshot)
        )
        if self.library is None:
            return changed or None
        names = snapshot.code.co_varnames[: len(snapshot.args)]
        declared = (Argument(i, name) for i, name in enumerate(names))
        return changed | {one for one in declared if one.name in self.library.varying}

    def _may_vary(self, source: Source, entry: Entry, snapshot: FrameSnapshot) -> bool:
        """Of library code only float arguments. What is no argument may be an instance's setting,
        which differs from that of another instance and never changes.
        """
        if self.library is not None:
            return isinstance(source, Argument) and type(read_source(source, snapshot)) is float
        instance = self._instance_of((*snapshot.args, *snapshot.cells))
        return isinstance(source, Argument) or bool(entry.notes.instance == instance)

    @property
    def label(self) -> str:
        """What the user calls it: a method with its class, a notebook's cell `<cell>`."""
        name = self.original.code.co_qualname.rpartition("<locals>.")[2]
        return self.name if name == "<module>" else name

    @property
    def goes_on(self) -> UserLine | None:
        """Of a resume function: where in the user's function it goes on."""
        if not self._goes_on:
            return None
        code = self.original.code
        lines = (line for _, _, line in code.co_lines() if line is not None)
        return UserLine(code.co_filename, next(lines, code.co_firstlineno), self.label)

    @property
    def source_lines(self) -> tuple[str, int, tuple[str, ...]]:
        """File, first line number and lines of the original; none where the source is unknown."""
        return source_lines(self.original.code)

    @property
    def state(self) -> str:
        """not called yet | compiling | compiled | limit reached | eager: why."""
        if self._compiling_thread is not None:
            return "compiling"
        if self._reason is not None:
            return self._reason
        return "compiled" if self.dispatcher.entries else "not called yet"

    # ------------------------------------------------------------------------------------- the miss

    def _missed(self, values: tuple[Any, ...]) -> Any:
        if _frame.suspended() or self._compiling_thread == threading.get_ident():
            return self.original.run(values)
        if self._reason is None and self._compile_once(values):
            return continue_with(self.dispatcher, *values)
        return self.original.run(values, self._hooked)

    def _compile_once(self, values: tuple[Any, ...]) -> bool:
        """Whether there is an entry for these values now."""
        with self._lock:
            if any(entry.check(values) for entry in self.dispatcher.entries):
                return True  # another thread was here first
            if self._reason is not None:
                return False
            self._sweep()
            if self._is_at_limit(values):
                self._reach_limit(values)
                return False
            return self._compile(values)

    def _compile(self, values: tuple[Any, ...]) -> bool:
        snapshot = self.original.snapshot(values)
        record = self.journal.open(self.name)
        made = self._run_compiler(snapshot, record)
        if isinstance(made, Entry) and not made.check(values):
            which = _which(record, snapshot)
            made = Skip(f"its guards do not hold for the call they were made from{which}")
            warn(f"{self.label} runs as eager: {made.reason}")
        if isinstance(made, Skip):
            record.outcome = f"eager: {made.reason}"
            self._give_up(record.outcome)
            return False
        record.outcome = "compiled"
        made.notes = _Variant(record, self._instance_of(values))
        self.dispatcher.add(made)
        return True

    def _run_compiler(self, snapshot: FrameSnapshot, record: CompileRecord) -> Entry | Skip:
        self._compiling_thread = threading.get_ident()
        _frame.suspend()
        try:
            return self.family.compiler.compile(self, snapshot, record)
        except Unsupported as error:  # fullgraph=True: the user asked to be told
            record.outcome = f"failed: {error.reason}"
            raise
        except Exception as error:  # a stage failed: the user's call still has a right answer
            failure = f"{type(error).__name__}: {error}"
            _warn_failed(self.label, failure)
            return Skip(f"compiling it failed with {failure}")
        except BaseException:  # Ctrl-C: the next call starts over
            record.outcome = "failed: interrupted"
            raise
        finally:
            _frame.resume_hook()
            self._compiling_thread = None
            _forget_entries(record)

    def _failed(self, entry: Entry, values: tuple[Any, ...], error: Exception) -> Any:
        """A graph raised. Eager says what the user should see, unless inputs may have changed or
        what raised are hooks on saved tensors (checkpointing ends a second run so).
        """
        if entry.mutates or getattr(error, "__jitmagic_from_hook__", False):
            raise error
        result = self.original.run(values)
        if entry in self.dispatcher.entries:
            self.dispatcher.remove(entry)
        reason = f"eager: its compiled graph raised {type(error).__name__}: {error}"
        self._give_up(reason)
        warn(f"{self.label} runs as {reason}")
        return result

    # ----------------------------------------------------------------------------------- the ledger

    def _sweep(self) -> None:
        """Take out entries whose guarded objects died; they do not count as variants."""
        for entry in self.dispatcher.entries:
            if not entry.alive:
                self._wasted += entry.hits <= 1
                self.dispatcher.remove(entry)

    def _is_at_limit(self, values: tuple[Any, ...]) -> bool:
        limit = self._limit
        entries = self.dispatcher.entries
        instance = self._instance_of(values)
        alike = sum(entry.notes.instance == instance for entry in entries)
        wasted = self._wasted >= _WASTED_LIMIT * limit
        return alike >= limit or wasted or len(entries) >= _TOTAL_LIMIT * limit

    @property
    def _limit(self) -> int:
        """What varies in every call of a function varies in most of what it calls: the parts that
        see nothing of it are worth compiling, the others are not worth the whole budget again.
        """
        limit = self.options.recompile_limit
        return min(limit, _AFTER_LIMIT) if self._is_below_limit else limit

    @property
    def _is_below_limit(self) -> bool:
        """Whether this is a callee of the user's in a function that has reached its limit."""
        return self.family.limit_reached and self.original.is_weak and self.library is None

    def _instance_of(self, values: tuple[Any, ...]) -> int | None:
        """Each module instance has its own budget of variants: layers share their class's code.
        So has each group of parameters of an optimizer, known by its first tensor.
        """
        first = values[0] if values else None
        if self.library is not None and type(first) is list and first:
            return id(first[0])
        return id(first) if isinstance(first, torch.nn.Module) else None

    def _reach_limit(self, values: tuple[Any, ...]) -> None:
        self._give_up("limit reached")
        if self._is_below_limit:
            return  # that calls run as eager has been said
        self.family.limit_reached |= not self.original.is_weak
        where = self.goes_on
        part, misses = self.label, "the call fits none of the variants; calls like it run"
        hint = "make what varies an argument that is a tensor"
        if where is not None:  # called by no user: most often a loop with a graph break in it
            part = f"{part} from line {where.lineno} on, after a graph break,"
            misses = "now fits none of the variants; what fits none runs"
            hint = (
                "remove the break (jitmagic.explain shows it), tag what a loop calls, not the loop"
            )
        count = len(self.dispatcher.entries) + self._wasted
        difference = self.why_missed(values)
        warn(
            f"{part} was compiled {count} times and {misses} as eager from now on\n"
            f"  first difference: {difference[0] if difference else 'a guarded object is gone'}\n"
            f"  hint: {hint}, or give jit "
            f'options={{"recompile_limit": {2 * self.options.recompile_limit}}}',
            RecompileWarning,
            where,
        )

    def why_missed(self, values: tuple[Any, ...]) -> list[str]:
        """For each entry, most recently used first, what keeps it from fitting these values."""
        snapshot = self.original.snapshot(values)
        found: list[str] = []
        for entry in self.dispatcher.entries:
            guards = _guards_of(entry.notes.record) if entry.notes else ()
            failing = check(guards, snapshot)
            if failing is not None:
                found.append(why(failing, snapshot))
        return found

    def _give_up(self, reason: str) -> None:
        """Calls without an entry run the original from now on, with as little ado as can be."""
        self._reason = reason
        original = self.original
        if original.is_weak:
            if not self.dispatcher.entries:
                _frame.skip(original.code, self.family)
        elif original.takes_positionals_only:
            function = FunctionType(original.code, original.namespace, original.name)
            self.dispatcher.give_up(function, original.code.co_argcount)

    # ---------------------------------------------------------------------------------------- reset

    def reset(self, options: Options | None = None) -> None:
        """As if never called (with new options): root handles take their family along."""
        with self._lock:
            if options is not None:
                self.family.options = options
            if self._root:
                self.family.close()
                self.family.limit_reached = False
                self.journal.records.clear()
            self.drop()
            self._reason, self._wasted = None, 0
            self._flat = None if self._root else self._flat

    def drop(self) -> None:
        """Take out all entries, and the stub that the hook may have put on the code."""
        self.dispatcher.clear()
        self.dispatcher.give_up(None, 0)
        if self.original.is_alive:
            _frame.forget(self.original.code, self.family)

    def __repr__(self) -> str:
        return f"<jitmagic handle of {self.original.qualname}: {self.state}>"


def source_lines(code: CodeType) -> tuple[str, int, tuple[str, ...]]:
    """File, first line number and lines of a code object; none where the source is unknown."""
    numbers = [line for *_, line in code.co_lines() if line]
    last = max(numbers, default=code.co_firstlineno)
    first = code.co_firstlineno
    if code.co_name == "<module>":  # top-level code of a cell begins where its first statement does
        first = min((line for line in numbers if line > first), default=first)
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    return code.co_filename, first, tuple(line.rstrip("\n") for line in lines)


def _guards_of(record: CompileRecord) -> tuple[Guard, ...]:
    traced = record.result("trace")
    return getattr(traced, "guards", ())


def _which(record: CompileRecord, snapshot: FrameSnapshot) -> str:
    failing = check(_guards_of(record), snapshot)
    return "" if failing is None else f": {why(failing, snapshot)}"


def _forget_entries(record: CompileRecord) -> None:
    """A journal that held entries would keep residuals, and through them itself, alive for ever."""
    for stage in record.stages:
        if isinstance(stage.result, Entry):
            stage.result = None


def _warn_failed(name: str, failure: str) -> None:
    warn(f"{name} could not be compiled and runs as eager: {failure}")
