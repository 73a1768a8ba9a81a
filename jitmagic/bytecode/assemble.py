"""Assembles a Body into a code object.

Input: a Body, decoded, edited or built from scratch. Output: a `types.CodeType` for the running
interpreter: co_consts, co_names and localsplus laid out, jumps resolved and sized to a fixpoint,
caches and superinstructions inserted, stack size, line and exception tables computed. Invariant:
the body is not changed, and a body that cannot be encoded raises `BytecodeError`.

Variables. Opcodes that take a variable name it; the slot is looked up in varnames, then cellvars,
then freevars. At run time LOAD_DEREF, STORE_DEREF, MAKE_CELL and LOAD_CLOSURE only index
localsplus, so they may name a plain local (a parameter that holds a cell). Opcodes may have
portable names, which exist on every version: JUMP, POP_JUMP_IF_*, LOAD_CLOSURE. Jumps may go
forward or backward.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from itertools import pairwise

from ..errors import BytecodeError
from ..lazy_dataclass import dataclass
from .exceptions_table import TableEntry, encode_exception_table
from .flow import maximum_depth, regions_by_instruction
from .instruction import LOCAL_TWIN, Body, ExceptionRegion, Instruction
from .line_table import encode_line_table
from .versions import COMPARE_OPERATORS, RUNNING, Kind

__all__ = ["assemble"]

# By identity: True is not the small int 1.
_VALUES = {
    id(value): (op, index, value)
    for op, values in RUNNING.values.items()
    for index, value in enumerate(values)
}


@dataclass(eq=False, slots=True)
class _Item:
    """A real instruction under construction; offsets and sizes are in code units."""

    op: str
    source: Instruction
    argument: int = 0
    target: _Item | None = None
    at: int = 0
    prefixes: int = 0
    end: int = 0

    @property
    def caches(self) -> int:
        return RUNNING.caches.get(self.op, 0)


def assemble(body: Body) -> types.CodeType:
    """Encode a body for the running interpreter."""
    regions = regions_by_instruction(body)
    _check(body)
    firsts, items = _select(body)
    pools = _Pools(body)
    for item in items:
        if RUNNING.kind(item.op) is not Kind.JUMP and item.source.op not in RUNNING.expansions:
            item.argument = pools.argument(item)
    items = _fuse(items, regions)
    _lay_out(items)
    return types.CodeType(
        body.argcount,
        body.posonlyargcount,
        body.kwonlyargcount,
        len(body.varnames),
        maximum_depth(body),
        body.flags,
        _code_bytes(items),
        tuple(pools.consts),
        tuple(pools.names),
        _plain(body.varnames),
        body.filename,
        body.name,
        body.qualname,
        body.firstlineno,
        encode_line_table(_positions(items), body.firstlineno),
        encode_exception_table(_table_entries(items, firsts, regions)),
        tuple(body.freevars),
        _plain(body.cellvars),
    )


def _plain(names: list[str]) -> tuple[str, ...]:
    """Return the names without the suffix that distinguishes two slots of one name."""
    return tuple(name.removesuffix(LOCAL_TWIN) for name in names)


def _check(body: Body) -> None:
    """Raise BytecodeError for bodies that would crash the interpreter: it does not verify code."""
    slots = body.slots()
    if len(set(slots)) != len(slots):
        raise BytecodeError(f"{body.qualname}: a name stands for two variables: {slots}")
    if len(body.varnames) < body.parameter_count:
        raise BytecodeError(f"{body.qualname}: {body.parameter_count} parameters, {body.varnames}")
    following = _skipped_opcodes(body.instructions)
    for instruction in body.instructions:
        if instruction.op == "COPY_FREE_VARS" and instruction.arg != len(body.freevars):
            raise BytecodeError(
                f"{body.qualname}: {instruction} with {len(body.freevars)} free variables"
            )
        if (
            instruction.op == "FOR_ITER"
            and following.get(instruction.target) != RUNNING.loop_landing
        ):
            raise BytecodeError(f"{body.qualname}: FOR_ITER has to jump to {RUNNING.loop_landing}")


def _skipped_opcodes(instructions: list[Instruction]) -> dict[Instruction | None, tuple[str, ...]]:
    """Map each FOR_ITER target to the opcodes that the interpreter will skip there."""
    length = len(RUNNING.loop_landing)
    targets = {i.target for i in instructions if i.op == "FOR_ITER"}
    return {
        instruction: tuple(other.op for other in instructions[i : i + length])
        for i, instruction in enumerate(instructions)
        if instruction in targets
    }


def _select(body: Body) -> tuple[dict[Instruction, _Item], list[_Item]]:
    """Choose the opcodes of this version for the direction of each jump."""
    index = {instruction: i for i, instruction in enumerate(body.instructions)}
    firsts: dict[Instruction, _Item] = {}
    items: list[_Item] = []
    detours: list[tuple[_Item, int]] = []
    for i, instruction in enumerate(body.instructions):
        parts = [
            _Item(op, instruction, argument)
            for op, argument in RUNNING.expansions.get(instruction.op, ())
        ]
        if parts:
            firsts[instruction] = parts[0]
            items += parts
            continue
        target = instruction.target
        is_jump = RUNNING.kind(instruction.op) is Kind.JUMP
        if is_jump != (target is not None) or (target is not None and target not in index):
            raise BytecodeError(f"{body.qualname}: {instruction} has no target in the body")
        backward = target is not None and index[target] <= i
        op = RUNNING.real_op(instruction.op, backward=backward)
        if op == "LOAD_CONST" and id(instruction.arg) in _VALUES:
            op = _VALUES[id(instruction.arg)][0]
        if op is None and backward and instruction.op in RUNNING.inversions:
            # Conditional jumps only go forward since 3.12: skip a plain backward jump.
            skip = _Item(RUNNING.inversions[instruction.op], instruction)
            items.append(skip)
            detours.append((skip, len(items) + 1))
            firsts[instruction] = skip
            op = "JUMP_BACKWARD"
        if op is None:
            where = "backward " if backward else ""
            raise BytecodeError(
                f"{body.qualname}: there is no {where}{instruction.op} on this Python"
            )
        item = _Item(op, instruction)
        firsts.setdefault(instruction, item)
        items.append(item)
    for item in items:
        if item.source.target is not None:
            item.target = firsts[item.source.target]
    for skip, behind in detours:
        if behind == len(items):
            raise BytecodeError(f"{body.qualname}: control runs off the end after {skip.source}")
        skip.target = items[behind]
    return firsts, items


class _Pools:
    """co_consts, co_names and localsplus, extended as arguments are encoded."""

    def __init__(self, body: Body) -> None:
        self.consts, self.names = list(body.consts), list(body.names)
        self._const_index = {id(value): i for i, value in reversed(list(enumerate(self.consts)))}
        self._name_index = {name: i for i, name in enumerate(self.names)}
        self._slots = {name: i for i, name in enumerate(body.slots())}

    def argument(self, item: _Item) -> int:
        """Return the encoded argument of an instruction that does not jump."""
        instruction, kind = item.source, RUNNING.kind(item.op)
        arg = instruction.arg
        if kind is Kind.CONST:
            return self._const(arg)
        if kind is Kind.NONE and arg is None:
            return 0
        if kind is Kind.VALUE:
            return _VALUES[id(arg)][1]
        if kind is Kind.BINARY and instruction.op == "BINARY_SUBSCR":
            return RUNNING.operators.index("[]")
        if kind is Kind.INT and isinstance(arg, int) and 0 <= arg < 1 << 31:
            return arg
        if isinstance(arg, str) and kind is not Kind.INT and kind is not Kind.NONE:
            return self._symbol(kind, arg, instruction, item.op)
        raise BytecodeError(
            f"{instruction} has an argument of the wrong kind (wanted {kind.value})"
        )

    def _symbol(self, kind: Kind, arg: str, instruction: Instruction, op: str) -> int:
        if kind is Kind.NAME:
            bits = RUNNING.names[op]
            if instruction.flag and not bits:
                raise BytecodeError(f"{instruction}: {op} has no flag on this Python")
            flags = (instruction.flag | instruction.explicit << 1) & (1 << bits) - 1
            return self._name(arg) << bits | flags
        if kind in (Kind.LOCAL, Kind.CELL) and arg in self._slots:
            return self._slots[arg]
        if kind is Kind.COMPARE and arg in COMPARE_OPERATORS:
            return RUNNING.encode_compare(arg, instruction.flag)
        if kind is Kind.BINARY and arg in RUNNING.operators:
            return RUNNING.operators.index(arg)
        raise BytecodeError(f"{instruction}: no such {kind.value}")

    def _const(self, value: object) -> int:
        # By identity: equal constants may differ (0.0 and -0.0, 1 and True).
        if id(value) not in self._const_index:
            self._const_index[id(value)] = len(self.consts)
            self.consts.append(value)
        return self._const_index[id(value)]

    def _name(self, name: str) -> int:
        if name not in self._name_index:
            self._name_index[name] = len(self.names)
            self.names.append(name)
        return self._name_index[name]


def _fuse(items: list[_Item], regions: dict[Instruction, ExceptionRegion]) -> list[_Item]:
    """Merge adjacent instructions of one source position into this version's superinstructions."""
    pairs = {parts: op for op, parts in RUNNING.superinstructions.items()}
    if not pairs:
        return items
    targets = {id(item.target) for item in items} | {
        id(region.target) for region in regions.values()
    }
    fused: list[_Item] = []
    for item in items:
        last = fused[-1] if fused else None
        if (
            last is None
            or (last.op, item.op) not in pairs
            or max(last.argument, item.argument) > 15  # both share one byte
            or id(item) in targets  # no jump can land inside a superinstruction
            or id(item.source) in targets
            or last.source.position != item.source.position
            or last.source.offset != item.source.offset
            or regions.get(last.source) is not regions.get(item.source)
        ):
            fused.append(item)
        else:
            last.op = pairs[last.op, item.op]
            last.argument = last.argument << 4 | item.argument
    return fused


def _lay_out(items: list[_Item]) -> None:
    """Assign offsets to the items; terminates because jumps only ever gain prefixes."""
    for item in items:
        item.prefixes = _prefixes(item.argument)
    sizes = [1 + item.caches for item in items]
    jumps = [(item, item.target) for item in items if item.target is not None]
    moved = True
    while moved:
        moved = False
        at = 0
        for item, size in zip(items, sizes, strict=True):
            item.at = at
            item.end = at = at + size + item.prefixes
        for item, target in jumps:
            distance = target.at - item.end
            item.argument = -distance if "BACKWARD" in item.op else distance
            needed = _prefixes(item.argument)
            if needed > item.prefixes:
                item.prefixes, moved = needed, True


def _prefixes(argument: int) -> int:
    """Return the number of EXTENDED_ARG prefixes an argument needs."""
    return max(0, (argument.bit_length() + 7) // 8 - 1)


def _code_bytes(items: list[_Item]) -> bytes:
    out = bytearray()
    extended = RUNNING.opcodes["EXTENDED_ARG"]
    for item in items:
        for prefix in range(item.prefixes, 0, -1):
            out += bytes((extended, item.argument >> 8 * prefix & 255))
        out += bytes((RUNNING.opcodes[item.op], item.argument & 255))
        out += bytes(2 * item.caches)  # inline caches: the interpreter fills them
    return bytes(out)


def _positions(items: list[_Item]) -> Iterable[tuple]:
    return ((item.source.position, item.end - item.at) for item in items)


def _table_entries(
    items: list[_Item],
    firsts: dict[Instruction, _Item],
    regions: dict[Instruction, ExceptionRegion],
) -> list[TableEntry]:
    """Flatten nested regions: one entry per run of items with the same innermost region."""
    entries: list[TableEntry] = []  # disjoint, because the interpreter bisects the table
    start = 0
    ends = [
        index
        for index, (one, other) in enumerate(pairwise(items), 1)
        if regions.get(one.source) is not regions.get(other.source)
    ]
    for end in [*ends, len(items)]:
        region = regions.get(items[start].source) if items else None
        if region is not None:
            target = firsts[region.target].at
            span = items[start].at, items[end - 1].end
            entries.append(TableEntry(*span, target, region.depth, region.lasti))
        start = end
    return entries
