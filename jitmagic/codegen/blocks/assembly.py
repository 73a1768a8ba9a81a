"""Defines instructions on virtual registers, and assigns them the registers of an interpreter.

In: instructions and loops, added to the scope that is open or to one around it. Out: the text of a
program, whose syntax extensions/interpreter/reader.cpp has. A register holds a scalar, a block, or
a view: the address of a block in an argument's memory. Blocks share memory when one is used for the
last time before the other is defined, so that few of them have to stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...lazy_dataclass import dataclass, field

__all__ = ["BYTES", "MOST", "Assembly", "Instruction", "Loop", "Register"]

BYTES = {
    **dict.fromkeys(("f64", "i64", "u64"), 8),
    **dict.fromkeys(("f32", "i32", "u32"), 4),
    **dict.fromkeys(("f16", "bf16", "i16", "u16"), 2),
    **dict.fromkeys(("f8", "b8", "i8", "u8"), 1),
}
CACHE = 24 << 10  # of the first cache, 32 to 48 KiB; arguments take part of it too
MOST, LEAST = 1024, 128  # lanes of a block
LINE = 64  # lanes are a multiple, so that blocks of any type begin at cache lines


@dataclass(eq=False, slots=True)
class Register:
    """Is a virtual register. `kind`: "scalar", "block" or "view"; `depth`: of the scope in which
    its value is computed; `origin`: argument and offset of what a view shows.
    """

    type: str
    kind: str
    depth: int
    number: int = -1
    origin: tuple[int, Register] | None = None

    @property
    def is_block(self) -> bool:
        """Return whether it has a value for each lane."""
        return self.kind != "scalar"


@dataclass(eq=False, slots=True)
class Instruction:
    """Holds one operation; `out`: the register that it defines. The operands follow it in the
    text; numbers and other words are operands too.
    """

    op: str
    out: Register | None
    operands: tuple[Register | int | str, ...]

    def used(self) -> Iterator[Register]:
        """Yield the registers that it reads."""
        for operand in self.operands:
            if isinstance(operand, Register):
                yield operand


@dataclass(eq=False, slots=True)
class Loop:
    """Holds a loop over (axis, extent) pairs; `flags` as in the text; `cost`: of one element."""

    axes: tuple[tuple[Register, Register], ...]
    flags: str
    items: list[Instruction | Loop] = field(default_factory=list)
    cost: int = 0

    def used(self) -> Iterator[Register]:
        """Yield the registers that the loop and what is inside read."""
        for _, extent in self.axes:
            yield extent
        for item in self.items:
            yield from item.used()


@dataclass(slots=True)
class Assembly:
    """Collects the instructions of one kernel; `open` are the scopes, the outermost first."""

    open: list[Loop] = field(default_factory=lambda: [Loop((), "")])
    width: int = 0  # bytes of one lane of all registers
    classes: list[str] = field(default_factory=list)
    viewed: set[int | None] = field(default_factory=set)  # arguments
    free: dict[int, list[int]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Return the depth of the innermost scope."""
        return len(self.open) - 1

    def emit(
        self, op: str, out: Register | None, *operands: Register | int | str, depth: int = -1
    ) -> None:
        """Add an instruction to the scope at `depth`, by default the innermost one."""
        self.open[depth].items.append(Instruction(op, out, operands))

    def close(self) -> None:
        """End the innermost scope, a loop."""
        loop = self.open.pop()
        self.open[-1].items.append(loop)

    def text(self, name: str, arguments: list[str], sizes: int, most: int, extent: int) -> str:
        """Return the text of the kernel. `most`: lanes beyond which threads would be idle;
        `extent`: of the longest loop of blocks, 0 if one is dynamic.
        """
        self._assign(self.open[0])
        lanes = max(min(CACHE // max(self.width, 1), most, MOST), LEAST) // LINE * LINE
        if extent:  # blocks of equal sizes, and no longer than the loop
            blocks = -(-extent // lanes)
            lanes = -(-extent // (blocks * LINE)) * LINE
        lines = [
            f"kernel {name}",
            f"lanes {lanes}",
            " ".join(["arguments", *arguments]),
            f"sizes {sizes}",
            " ".join(["registers", *self.classes]),
            *_lines(self.open[0].items, ""),
            "end",
        ]
        return "\n".join([*lines, ""])

    # -- registers ---------------------------------------------------------------------------------

    def _assign(self, scope: Loop) -> None:
        """Number the registers that a scope defines."""
        last: dict[Register, int] = {}
        for at, item in enumerate(scope.items):
            last.update(dict.fromkeys(item.used(), at))
        own: set[Register] = set()
        for at, item in enumerate(scope.items):
            if isinstance(item, Loop):
                for axis, _ in item.axes:
                    self._number(axis)
                self._assign(item)
            ended = [register for register in dict.fromkeys(item.used()) if last[register] == at]
            self._release(register for register in ended if register in own)
            if isinstance(item, Instruction) and item.out is not None and item.out.number < 0:
                self._number(item.out)
                own.add(item.out)
                if item.out not in last:
                    self._release((item.out,))

    def _number(self, register: Register) -> None:
        size = BYTES[register.type] if register.kind == "block" else 0
        if size and self.free.get(size):
            register.number = self.free[size].pop()
            return
        register.number = len(self.classes)
        self.classes.append({"scalar": "s", "view": "v"}.get(register.kind, str(size)))
        if register.kind == "block" or (register.kind == "view" and self._is_first(register)):
            self.width += BYTES[register.type]

    def _is_first(self, view: Register) -> bool:
        """Return whether it is the first view of an argument: others mostly show the same block."""
        number = None if view.origin is None else view.origin[0]
        is_first = number not in self.viewed
        self.viewed.add(number)
        return is_first

    def _release(self, registers: Iterator[Register] | tuple[Register, ...]) -> None:
        for register in registers:
            if register.kind == "block":
                self.free.setdefault(BYTES[register.type], []).append(register.number)


def _lines(items: list[Instruction | Loop], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Instruction):
            operands = item.operands if item.out is None else (item.out, *item.operands)
            words = [str(o.number if isinstance(o, Register) else o) for o in operands]
            yield f"{indent}{' '.join([item.op, *words])}"
            continue
        axes = [str(part.number) for pair in item.axes for part in pair]
        yield f"{indent}{' '.join(['loop', item.flags, str(item.cost), *axes])}"
        yield from _lines(item.items, f"{indent}  ")
        yield f"{indent}end"
