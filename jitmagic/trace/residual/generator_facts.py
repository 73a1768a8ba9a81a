"""Finds which variables the pieces of a generator read and set, and names their exits.

Input: the body of a generator and its `Split`. Output: for each entry the variables that its piece
is called with, and for each exit those that the generator's frame gets back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...bytecode import Body, ExceptionRegion, Instruction, in_users_order, liveness
from ...bytecode.flow import definitely_bound, successors
from ...bytecode.suspension import NULL, Split
from ...bytecode.versions import RUNNING, Kind
from ...lazy_dataclass import dataclass
from .resume import ResumeKey, Root

__all__ = ["PieceFacts", "returns"]

_RETURN = 0  # the number of the exit at which a piece returns


@dataclass(eq=False)
class PieceFacts:
    """The split body of a generator, and which variables its pieces read and set."""

    body: Body
    found: Split

    @cached_property
    def own(self) -> frozenset[str]:
        """The variables that are no cells."""
        return frozenset(self.body.varnames).difference(self.body.cellvars, self.body.freevars)

    @cached_property
    def entries(self) -> list[Instruction]:
        """The entries that control can reach."""
        found, wanted = self.found, set(self.found.entries)
        seen: set[Instruction] = set()
        work = [self.body.instructions[0]]
        while work:
            one = work.pop()
            if one in seen:
                continue
            seen.add(one)
            if one in wanted:
                work += [end for end in self.ends(one) if not returns(end)]
                continue
            work += found.ways[one]
            if one in found.handlers:
                work.append(found.handlers[one])
        return [one for one in found.entries if one in seen]

    @cached_property
    def pieces(self) -> dict[Instruction, set[Instruction]]:
        return {entry: self.found.piece(entry) for entry in self.found.entries}

    def ends(self, entry: Instruction) -> list[Instruction]:
        """Return the exits and returns of a piece, in the order of the code."""
        return self._ends[entry]

    @cached_property
    def _ends(self) -> dict[Instruction, list[Instruction]]:
        order = {one: place for place, one in enumerate(self.body.instructions)}
        return {
            entry: sorted(self.found.ends(piece), key=order.__getitem__)
            for entry, piece in self.pieces.items()
        }

    @cached_property
    def _leading_to(self) -> dict[Instruction, list[Instruction]]:
        """The entries of the pieces that lead to each exit."""
        found: dict[Instruction, list[Instruction]] = {}
        for entry, ends in self._ends.items():
            for end in ends:
                found.setdefault(end, []).append(entry)
        return found

    def number(self, end: Instruction) -> int:
        """Return the number by which a piece names its exit."""
        return _RETURN if returns(end) else self._numbers[end]

    @cached_property
    def _numbers(self) -> dict[Instruction, int]:
        ends = [*self.found.exits, *self.found.left]
        return {end: number for number, end in enumerate(ends, 1)}

    @cached_property
    def live(self) -> Mapping[Instruction, frozenset[str]]:
        return liveness(self.body)

    @cached_property
    def _bound(self) -> dict[Instruction, int]:
        return definitely_bound(self.body)

    @cached_property
    def _bits(self) -> dict[str, int]:
        return {name: 1 << place for place, name in enumerate(self.body.slots())}

    def is_bound(self, name: str, at: Instruction) -> bool:
        """Return whether the variable is bound on every path to an instruction."""
        return bool(self._bound[at] & self._bits[name])

    def may_be_bound(self, at: Instruction) -> frozenset[str]:
        """Return the variables that may be bound before an instruction."""
        return self._possible[at]

    @cached_property
    def _possible(self) -> dict[Instruction, frozenset[str]]:
        ways = successors(self.body)
        first = self.body.instructions[0]
        known = {first: frozenset(self.body.parameters)}
        work = [first]
        while work:
            one = work.pop()
            after = known[one]
            if one.op == "STORE_FAST":
                after |= {str(one.arg)}
            for way in ways[one]:
                if not after <= known.get(way, frozenset()) or way not in known:
                    known[way] = known.get(way, frozenset()) | after
                    work.append(way)
        return known

    @cached_property
    def _sets(self) -> dict[Instruction, frozenset[str]]:
        """The variables that a piece may set or delete, by its entry."""
        return {
            entry: frozenset(
                str(one.arg)
                for one in piece
                if (RUNNING.kind(one.op) is Kind.LOCAL and not one.op.startswith("LOAD_FAST"))
                or one.op == "LOAD_FAST_AND_CLEAR"
            )
            & self.own
            for entry, piece in self.pieces.items()
        }

    def sets(self, entry: Instruction) -> frozenset[str]:
        return self._sets[entry]

    def is_set(self, name: str, end: Instruction) -> bool:
        """Return whether a variable is bound at an exit in every piece that leads there."""
        passed = (self.live[entry] | self.sets(entry) for entry in self._leading_to[end])
        return self.is_bound(name, end) and all(name in names for names in passed)

    @cached_property
    def _returned(self) -> dict[Instruction, frozenset[str]]:
        return {
            end: self._possible[end].intersection(frozenset().union(*map(self.sets, entries)))
            for end, entries in self._leading_to.items()
        }

    def read_later(self, end: Instruction) -> tuple[str, ...]:
        """Return the variables that pieces set before this exit and the rest may read."""
        return tuple(sorted(self._returned.get(end, frozenset()) & self.live[end]))

    def dead(self, end: Instruction) -> tuple[str, ...]:
        """Return the variables that pieces set before this exit and nothing reads after it."""
        return tuple(sorted(self._returned.get(end, frozenset()) - self.live[end]))

    def key(self, entry: Instruction, root: Root, first: Instruction) -> ResumeKey:
        """Return the key of a piece, which begins at `first` of the root's body."""
        read = root.live[first] | self.sets(entry)
        own = read & self._possible[entry] & self.own
        cells = read.difference(self.own).intersection((*self.body.cellvars, *self.body.freevars))
        nulls = tuple(slot is NULL for slot in self.found.stacks[entry])
        return ResumeKey(first, in_users_order(own | cells, root.body), nulls)

    def stack(self, end: Instruction) -> tuple[bool, ...]:
        """Return for each stack entry at an exit whether it is NULL; an exception comes last."""
        slots = self.found.stacks[end]
        if end in self.found.left:
            region = self.region_of(end)
            slots = (*slots[: region.depth], None)
        return tuple(slot is NULL for slot in slots)

    def region_of(self, handler: Instruction) -> ExceptionRegion:
        return next(region for region in self.body.regions if region.target is handler)


def returns(one: Instruction) -> bool:
    return one.op in ("RETURN_VALUE", "RETURN_CONST")
