"""Ledger: the variants of one frame; decides whether another one may be compiled.

Input: the entries of a dispatcher, whose `notes` are Variants, and the values of a call that fits
none. Output: the sizes and numbers that vary, the guard of each entry that failed, and whether to
compile another variant. Invariant: all is derived from entries in use, not from the journal.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..bytecode import FrameSnapshot
from ..call_warnings import CallWarning
from ..errors import ASSERTION, UserLine
from ..guards.check import (
    advice,
    check,
    differing_sizes,
    differs_in_sizes,
    has_rank,
    is_other_number,
    why,
)
from ..guards.guard import Guard, IdentityIs, InRange, TensorMatch, TypeIs, ValueEquals
from ..guards.read import read_source
from ..guards.source import Argument, Source, describe
from ..guards.words import one_value
from ..lazy_dataclass import dataclass, field
from ..protocols import Protocol
from ..records import COMPILED, Compiled, Difference, Eager, Failed, Missed, Occasion, Outcome
from ..spec import TensorSpec
from ..symbols.size import SizeOf, origin_at, stride_place
from ..torch_types import Values
from .library import LibraryFunction
from .native import Dispatcher, Entry, EntryForm, ModuleCall
from .never_hooked import users_line
from .per_call_growth import Guards, differing_loops, grown_int, grown_size, int_step
from .timing.reached_numbers import reached_numbers

__all__ = ["Comparable", "GrowthQuery", "Lazy", "Ledger", "Variant", "why_not"]

_WASTED_LIMIT = 4  # times recompile_limit: entries that died before their second call
_LONGEST_LOOP = 32  # consecutive values of an int that may be a loop's index
_MOST_LAYERS = 64  # layers that may share one variant within a call of the model
_TOLERATED = 4  # mispredictions allowed; more only if under 1/4 of the hits
_TOTAL_LIMIT = 64  # times recompile_limit: entries of one code over all module instances


class Lazy(Protocol):
    """A lazily compiled executable."""

    @property
    def is_compiled(self) -> bool:
        """True once it has been compiled."""
        ...

    def __call__(self) -> object:
        """Compile it unless that has been done."""
        ...


@dataclass(frozen=True, slots=True)
class GrowthQuery:
    """The frame whose growth is checked; `is_root`: it is the tagged function itself.

    `noticed`: sizes grew in this family before, so one earlier variant is evidence enough, not two.
    """

    is_root: bool
    noticed: bool
    may_be_symbols: bool = False  # the next variant may make the sizes symbols


@dataclass(frozen=True, slots=True)
class Growth:
    """A description of what grows per call; `may_end`: it may be a loop index that restarts."""

    why: str
    may_end: bool = False


@dataclass(frozen=True, slots=True)
class Comparable:
    """Permission to time a variant against eager, on the host and on `device`.

    Eager is timed only if `nbytes` are free there, so that it does not run out of memory.
    """

    device: torch.device | None = None
    nbytes: int = 0


@dataclass(eq=False, slots=True)
class Variant:
    """The notes of an entry: the guards it was compiled for, its outcome and its counters.

    `later`: executables compiled at first use (backwards), owned by the entry's graph.
    """

    guards: tuple[Guard, ...] = ()
    outcome: Outcome = COMPILED
    later: tuple[weakref.ref[Lazy], ...] = ()
    ends: Eager | None = None  # why and on which user line it ends at a graph break
    comparable: Comparable | None = None  # timed against eager on its first calls
    symbols: frozenset[Source] = frozenset()  # numbers that are inputs of its graph
    # Sizes and numbers that could not be symbols, with the line that needs a constant.
    constants: Mapping[Hashable, UserLine | None] = field(default_factory=dict)
    instance: int | None = None  # id of the object that it counts for, see Ledger.instance_of
    number: int = 0  # in the order of compiling, from 1
    used: int = 0  # hits when the limit was reached, or at the last retry
    speculates: bool = False  # it assumes the directions of data-dependent branches
    mispredictions: int = 0  # calls in which such a branch went the other way
    inlined: tuple[str, ...] = ()  # tagged functions and modules inlined in it
    loops: Mapping[int, tuple[Guard, ...]] = field(default_factory=dict)  # SeenLoops.idle
    form: EntryForm | None = None  # None: the result is made by Python code
    warned: Sequence[CallWarning] = ()  # shown when it was traced
    place: int | None = None  # in the library of entries on disk
    files: Sequence[str] = ()  # kernels in the cache that an entry of an earlier process loaded
    seconds: float = 0.0  # that its compile took, in whichever process
    is_loaded: bool = False  # another process has compiled it: the journal has no graphs of it
    # called with the entry after a comparison with eager, or with the entry that replaces it
    changed: Callable[[Entry], None] = field(default=lambda entry: None)

    def pending(self) -> list[Lazy]:
        """Return the executables of `later` that are alive and not compiled yet."""
        alive = [later for ref in self.later if (later := ref()) is not None]
        return [later for later in alive if not later.is_compiled]


def _inlined(guards: Guards, snapshot: FrameSnapshot) -> list[Any]:
    """Return the handles of tagged functions and modules inlined under these guards."""
    found = []
    for guard in guards:
        if isinstance(guard, IdentityIs) and isinstance(guard.value, FunctionType):
            constants = guard.value.__code__.co_consts
            found += [each.owner for each in constants if type(each) is Dispatcher]
        elif isinstance(guard, TypeIs) and guard.value is ModuleCall:
            found.append(read_source(guard.source, snapshot).owner)
    return found


class Ledger:
    """The variants of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher, library: LibraryFunction | None) -> None:
        self._dispatcher, self._library = dispatcher, library
        self.wasted = 0
        self.speculates = True  # whether new variants speculate on data-dependent branches
        self.begun = 0  # compiles since the last reset
        self.added = 0  # entries made since it was tagged
        self.noted: tuple[ValueEquals, ...] = ()  # the numbers that an eager call has reached
        self.agreed_sizes: dict[Source, set[int]] = {}  # that vary in other processes
        self.agreed_numbers: set[Source] = set()
        self.inlined_in: dict[str, None] = {}  # labels of functions that inline it
        self._counted = 0  # consecutive calls not compiled because an int grows
        self._resized: WeakKeyDictionary[FrameSnapshot, list[Entry]] = WeakKeyDictionary()

    @property
    def count(self) -> int:
        """Number of variants that count towards the limit."""
        return len(self._dispatcher.entries) + self.wasted

    @property
    def calls(self) -> int:
        """Calls since it was tagged; a call that compiled an entry was dispatched twice."""
        return self._dispatcher.calls - self.added

    @property
    def is_compiled(self) -> bool:
        """True if any variant in use runs compiled code."""
        return any(isinstance(e.notes.outcome, Compiled) for e in self._dispatcher.entries)

    @property
    def failures(self) -> int:
        """Number of variants in use whose compile failed."""
        return sum(isinstance(e.notes.outcome, Failed) for e in self._dispatcher.entries)

    @property
    def last_failure(self) -> Failed:
        """The outcome of the newest failed variant."""
        outcomes = (entry.notes.outcome for entry in self._dispatcher.entries)
        return next(outcome for outcome in outcomes if isinstance(outcome, Failed))

    def add(self, entry: Entry, values: Values, snapshot: FrameSnapshot) -> None:
        """Add an entry that was compiled for a call with these values."""
        entry.notes.instance = self.instance_of(values)
        entry.notes.number = self.begun
        self.added += 1
        self._dispatcher.add(entry)
        callees = _inlined(entry.notes.guards, snapshot)
        entry.notes.inlined = tuple(dict.fromkeys(callee.label for callee in callees))
        for callee in callees:
            callee.ledger.inlined_in[self._dispatcher.owner.label] = None

    def postpone(self, snapshot: FrameSnapshot) -> None:
        """Take back a compile that was begun, and note the numbers that later calls may change."""
        self.begun -= 1
        self.noted = self.noted or reached_numbers(snapshot)

    def forget(self) -> None:
        """Reset the counters; the dispatcher owns the entries."""
        self.wasted, self.begun, self.noted = 0, 0, ()
        self.speculates = True
        self.inlined_in.clear()
        self.agreed_sizes.clear()
        self.agreed_numbers.clear()

    def replace(self, entry: Entry, other: Entry) -> bool:
        """Use `other` for the same calls; return False if the entry is not in use any more."""
        if entry not in self._dispatcher.entries:
            return False
        other.notes.instance = entry.notes.instance
        other.notes.number = entry.notes.number
        other.notes.place, other.notes.changed = entry.notes.place, entry.notes.changed
        self._dispatcher.remove(entry)
        self._dispatcher.add(other)
        other.notes.changed(other)
        return True

    def why_given_up(self, entry: Entry, error: Exception) -> str | None:
        """Return why to drop an entry whose graph raised and eager did not; None: keep using it."""
        if ASSERTION not in str(error):
            return f"its compiled graph raised {type(error).__name__}: {error}"
        if self.tolerates_misprediction(entry):
            return None
        return "a data-dependent branch keeps going the way that was assumed to be rare"

    def tolerates_misprediction(self, entry: Entry) -> bool:
        """Count a misprediction. After too many, drop the variant so that the next one breaks at
        its branches, or return False if that is impossible.
        """
        notes: Variant = entry.notes
        notes.mispredictions += 1
        missed = notes.mispredictions
        if missed <= _TOLERATED or _TOLERATED * missed < entry.hits:
            return True
        if not notes.speculates or self._dispatcher.owner.options.fullgraph:
            return False
        self.speculates = False
        if entry in self._dispatcher.entries:
            self._dispatcher.remove(entry)
        return True

    def sweep(self) -> None:
        """Remove entries whose guarded objects died; they do not count as variants."""
        for entry in self._dispatcher.entries:
            if not entry.alive:
                self.wasted += entry.hits <= 1
                self._dispatcher.remove(entry)

    def is_full(self, values: Values, limit: int) -> bool:
        """Return whether calls like this one have `limit` variants, or the code has far too many.

        Variants for redefined helpers do not count; a garbage collection breaks their cycles.
        """
        if not self._seems_full(values, limit):
            return False
        gc.collect()
        self.sweep()
        return self._seems_full(values, limit)

    def _seems_full(self, values: Values, limit: int) -> bool:
        if len(self._same_instance(values)) >= limit or self.wasted >= _WASTED_LIMIT * limit:
            return True
        return len(self._dispatcher.entries) >= _TOTAL_LIMIT * limit

    def count_uses(self) -> None:
        """Restart the count of each variant's uses."""
        for entry in self._dispatcher.entries:
            entry.notes.used = entry.hits

    def make_room(self, values: Values, limit: int) -> None:
        """Remove the variants beyond `limit` for calls like this one that were used least since
        count_uses(), except the newest; among equals the one used last stays.
        """
        alike = self._same_instance(values)
        for entry in sorted(reversed(alike[1:]), key=lambda e: e.hits - e.notes.used):
            if len(alike) > limit:
                alike.remove(entry)
                self._dispatcher.remove(entry)
        self.count_uses()

    def instance_of(self, values: Values) -> int | None:
        """Return the id of the object that the recompile limit counts for, or None: a module
        instance (layers share code), or the first tensor of an optimizer's parameter group.
        """
        first = values[0] if values else None
        if self._library is not None and type(first) is list and first:
            return id(first[0])
        return id(first) if isinstance(first, torch.nn.Module) else None

    def growth(self, snapshot: FrameSnapshot, values: Values, family: GrowthQuery) -> Growth | None:
        """Return what grew by one between the last two variants and again to this call, or None."""
        alike = self._same_instance(values)
        newest = _served_once(alike, family)
        needed = 1 if family.noticed and not family.may_be_symbols else 2
        variants = [entry.notes.guards for entry in newest[:needed]]
        if len(variants) < needed:
            return None
        guard = grown_size(variants, snapshot)
        if guard is not None and not (family.may_be_symbols and _may_be_symbol(guard, newest[0])):
            return Growth(why(guard, snapshot))
        used_once = all(entry.hits <= 1 for entry in alike)  # else the index has started over
        return self._growing_int(variants, snapshot) if used_once and len(variants) > 1 else None

    def _same_instance(self, values: Values) -> list[Entry]:
        instance = self.instance_of(values)
        return [e for e in self._dispatcher.entries if e.notes.instance == instance]

    def _growing_int(self, variants: Sequence[Guards], snapshot: FrameSnapshot) -> Growth | None:
        """Return the growth of an int that continues from the call before.

        Later calls may be compiled again: a loop's index starts over in the next loop.
        """
        guard = grown_int(variants, snapshot)
        steps = None if guard is None else int_step(guard, snapshot)
        before, self._counted = self._counted, 0
        if guard is None or steps is None or steps != before + 1:
            return None
        self._counted = steps
        return Growth(why(guard, snapshot), may_end=steps <= _LONGEST_LOOP)

    def differing_numbers(self, snapshot: FrameSnapshot) -> frozenset[Source] | None:
        """Return the floats and ints that become graph inputs, or None if there are none: they
        differ from an entry's or, in a library function, are declared to vary.
        """
        changed = frozenset(
            guard.source
            for entry in self._dispatcher.entries
            for guard in entry.notes.guards
            if isinstance(guard, ValueEquals | InRange)
            and self._may_vary(guard.source, entry, snapshot)
            and is_other_number(guard, snapshot)
        )
        changed |= {guard.source for guard in self.noted if is_other_number(guard, snapshot)}
        changed |= self._symbols(snapshot) | self.agreed_numbers
        if self._library is None:
            return changed or None
        names = snapshot.code.co_varnames[: len(snapshot.args)]
        declared = (Argument(i, name) for i, name in enumerate(names))
        return changed | {
            source for source in declared if source.name in self._library.differing_numbers
        }

    def differing_sizes(self, snapshot: FrameSnapshot) -> dict[Source, set[int]]:
        """Return the sizes and strides of tensors that vary, by index (symbols/size.py).

        They differ from an entry that fits otherwise, or were symbols of one. Other instances of a
        module have other sizes, which do not vary.
        """
        found: dict[Source, set[int]] = {}
        resized = self._resized_variants(snapshot)
        for entry in self._same_instance((*snapshot.args, *snapshot.cells)):
            for guard in entry.notes.guards:
                if isinstance(guard, TensorMatch) and has_rank(guard, snapshot):
                    indices = differing_sizes(guard, snapshot) if entry in resized else set()
                    found.setdefault(guard.source, set()).update(indices, guard.free_indices)
        for source, indices in self.agreed_sizes.items():
            found.setdefault(source, set()).update(indices)
        return {source: indices for source, indices in found.items() if indices}

    def differing_loops(self, snapshot: FrameSnapshot) -> frozenset[int]:
        """Return the heads of loops without tensor work that depend on values which differ per
        call.
        """
        alike = self._same_instance((*snapshot.args, *snapshot.cells))
        return differing_loops([entry.notes.loops for entry in alike], snapshot)

    def earlier_sizes(
        self, snapshot: FrameSnapshot
    ) -> Callable[[Source, int], tuple[int | None, ...]]:
        """Return a function giving the size or stride of a tensor at an index in each variant."""
        entries = self._same_instance((*snapshot.args, *snapshot.cells))
        specs = [
            {guard.source: guard.spec for guard in e.notes.guards if isinstance(guard, TensorMatch)}
            for e in entries
        ]

        def earlier(source: Source, index: int) -> tuple[int | None, ...]:
            return tuple(_number_at(spec.get(source), index) for spec in specs)

        return earlier

    def static_shapes(self, snapshot: FrameSnapshot) -> list[dict[Source, tuple[int, ...]]]:
        """Return shapes of compiled entries without symbols that differ from the frame in sizes
        only.
        """
        found = []
        for entry in self._resized_variants(snapshot):
            matches = [guard for guard in entry.notes.guards if isinstance(guard, TensorMatch)]
            is_static = not any(guard.free_indices for guard in matches)
            if is_static and isinstance(entry.notes.outcome, Compiled):
                found.append({guard.source: guard.spec.shape for guard in matches})
        return found

    def _resized_variants(self, snapshot: FrameSnapshot) -> list[Entry]:
        """Return the variants that only sizes and numbers keep from fitting. A compile asks three
        times, and Python evaluates every guard: for a transformer layer 1.5 ms of 60.
        """
        if snapshot not in self._resized:
            alike = self._same_instance((*snapshot.args, *snapshot.cells))
            found = [e for e in alike if differs_in_sizes(e.notes.guards, snapshot)]
            self._resized[snapshot] = found
        return self._resized[snapshot]

    def _symbols(self, snapshot: FrameSnapshot) -> frozenset[Source]:
        """Return the numbers that were inputs of a variant's graph: they stay symbols."""
        return frozenset(
            source
            for entry in self._dispatcher.entries
            for source in entry.notes.symbols
            if self._may_vary(source, entry, snapshot)
        )

    def _may_vary(self, source: Source, entry: Entry, snapshot: FrameSnapshot) -> bool:
        """Return whether a number may become a graph input: in library code, a float argument.

        Other numbers may be an instance's setting, which is constant but differs per instance.
        """
        if self._library is not None:
            return isinstance(source, Argument) and type(read_source(source, snapshot)) is float
        instance = self.instance_of((*snapshot.args, *snapshot.cells))
        return isinstance(source, Argument) or bool(entry.notes.instance == instance)

    def begin(self, snapshot: FrameSnapshot) -> tuple[int, Occasion]:
        """Start a compile; return the variant's number and the call that it is for."""
        self.begun += 1
        return self.begun, Occasion(users_line(), self.why_missed(snapshot), time.time())

    def why_missed(self, snapshot: FrameSnapshot) -> Missed:
        """Return each entry's number and what keeps it from fitting, most recently used first."""
        entries = self._dispatcher.entries
        constants = {origin for entry in entries for origin in entry.notes.constants}
        found = ((entry.notes.number, why_not(entry, snapshot, constants)) for entry in entries)
        return tuple((number, why) for number, why in found if why is not None)


def _number_at(spec: TensorSpec | None, index: int) -> int | None:
    if spec is None:
        return None
    numbers, dim = (spec.shape, index) if index >= 0 else (spec.stride, stride_place(index))
    return numbers[dim] if dim < len(numbers) else None


def _may_be_symbol(guard: Guard, newest: Entry) -> bool:
    """Return whether a growing size is a tensor's and is not known to need a constant."""
    tried = newest.notes.constants
    return isinstance(guard, TensorMatch) and not any(
        SizeOf(guard.source, dim) in tried for dim in range(len(guard.spec.shape))
    )


def _served_once(alike: list[Entry], family: GrowthQuery) -> list[Entry]:
    """Return the newest variants, up to the first that served more than one call.

    Layers that share code call it once each, so a variant counts if its hits equal the newest's.
    """
    often = alike[0].hits if alike else 0
    if family.is_root:
        return list(itertools.takewhile(lambda entry: entry.hits <= 1, alike))
    return list(itertools.takewhile(lambda entry: entry.hits == often <= _MOST_LAYERS, alike))


def why_not(
    entry: Entry, snapshot: FrameSnapshot, constants: Collection[Hashable] = ()
) -> Difference | None:
    """Describe an entry's first failing guard; None if all hold. `constants` cannot be symbols."""
    failing = check(entry.notes.guards, snapshot)
    if failing is None:
        return None
    where = _line_needing_constant(failing, snapshot, entry.notes.constants) or failing.where
    source: Source | None = getattr(failing, "source", None)
    if source is not None and source in constants:
        edit = one_value(describe(source))
    else:
        edit = advice(failing, snapshot)
    return Difference(why(failing, snapshot), where, edit, source)


def _line_needing_constant(
    guard: Guard, snapshot: FrameSnapshot, constants: Mapping[Hashable, UserLine | None]
) -> UserLine | None:
    """Return the line that prevents a differing size from being a symbol, or None."""
    if not isinstance(guard, TensorMatch) or not constants:
        return None
    indices = sorted(differing_sizes(guard, snapshot), reverse=True)
    lines = (constants.get(origin_at(guard.source, index)) for index in indices)
    return next(filter(None, lines), None)
