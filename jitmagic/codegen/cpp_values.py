"""Writes values as C++ expressions: scalars and jm::Vec, named if they are shared, hoisted out of
loops that they do not depend on.

In: nodes of a Structure and the stack of open scopes. Out: text, placed as scoped_text.py says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..lazy_dataclass import dataclass, field
from ..loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    ValueIndex,
    add,
    linear,
    mul,
)
from ..loops.ir import (
    Buffer,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Store,
    Value,
    run_time_values,
    walk,
)
from ..schedule.substitution import expr_axes
from .cpp_ops import BELOW, INFIX, MIRRORED, call_text
from .cpp_text import (
    CTYPES,
    LANE_SIZE_OPS,
    closed,
    count_text,
    element,
    index_text,
    literal,
    step_text,
)
from .loop_structure import Structure
from .scoped_text import Scope, ScopedText, Text
from .vector_lanes import lane_step

__all__ = ["CppBody"]

LONGEST = 90  # characters of an expression that needs no name


@dataclass(slots=True)
class _Scope(Scope):
    """Represents one open block, with the names of the divisors defined in it."""

    divisors: dict[Value, str] = field(default_factory=dict)


class CppBody(ScopedText[_Scope]):
    """Writes the statements of one kernel, in the loops that cpp_kernel.py opens."""

    scope_type = _Scope
    assignment = "const auto {0} = {1};"
    first_depth = 1

    def __init__(
        self, one: Structure, names: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__(one, names, buffers)
        self.lane: Axis | None = None
        self.width = 1
        self.count = "1"  # the width as text: L if the header chooses it
        self._uses = _count_uses(one)

    def open(self, header: str, axes: tuple[Axis, ...] = (), footer: str = "}") -> None:
        super().open(header, axes, footer)

    def set_lanes(self, lane: Axis | None, width: int | None) -> None:
        """From here on, values that vary along `lane` are vectors; width None: gemm's own width."""
        self.lane = lane
        self.width, self.count = (1, "L") if width is None else (width, str(width))

    # -- values ------------------------------------------------------------------------------------

    def vector_type(self, dtype: torch.dtype) -> str:
        return f"V{self.count}<{CTYPES[dtype]}>"

    def use(self, value: Value, as_vector: bool = False) -> str:
        """Return text of the value for use in the innermost scope."""
        text = self.reach(value, self.depth)
        if as_vector and not text.vector:
            return f"{self.vector_type(value.dtype)}({text.code})"
        return text.code

    def is_vector(self, value: Value) -> bool:
        return self.lane is not None and self.lane in self.free[value]

    def needs_name(self, value: Value, text: Text) -> bool:
        return self._uses.get(value, 0) > 1 or len(text.code) > LONGEST

    def constant(self, node: Constant) -> str:
        return literal(node.value, node.dtype)

    def code_of(self, node: Value, depth: int) -> str:
        vector = self.is_vector(node)
        match node:
            case Load():
                return self._load(node, depth, vector)
            case Cast(value=value, dtype=dtype):
                return f"jm::convert<{CTYPES[dtype]}>({self.reach(value, depth).code})"
            case Compute(op="truediv", args=(value, count)) if _is_run_time_count(count):
                return f"{closed(self.reach(value, depth).code)} / {self._divisor(count, depth)}"
            case Compute(op=op, args=args):
                if (lanes := self._lanes_below(node, depth)) is not None:
                    return lanes
                texts = [self._operand(op, arg, depth, vector) for arg in args]
                return call_text(op, texts, node.dtype, args[-1].dtype)
            case IndexValue(expr=expr, dtype=dtype):
                if not vector:
                    return f"{CTYPES[dtype]}({self._index(expr, depth)})"
                lanes = self._lane_index(expr, depth, None)
                return lanes if dtype == torch.int64 else f"jm::convert<{CTYPES[dtype]}>({lanes})"
        raise TypeError(f"no C++ for {type(node).__name__} here")

    def _divisor(self, count: Value, depth: int) -> str:
        """Return the name of a jm::Divisor for a run-time number of elements."""
        # jm::Divisor multiplies by the reciprocal where that is exact, for powers of two: layer
        # norm of rows of 64 takes 1.06 of the static kernel's time, 1.16 with divisions.
        number = self.reach(count, depth)
        scope = self.scopes[number.depth]
        if count not in scope.divisors:
            scope.divisors[count] = name = self.name()
            ctype = CTYPES[count.dtype]
            scope.lines.append(f"const jm::Divisor<{ctype}> {name}({number.code});")
        return scope.divisors[count]

    def _lanes_below(self, node: Compute, depth: int) -> str | None:
        """Write a comparison of lane positions with a uniform bound as a count of lanes; None for
        other comparisons, and for static sizes, which the compiler folds.
        """
        # As two registers of int64 per side, padding 512 by 64 took 1.6 of the static kernel's
        # time, now 0.96.
        if not (self.kernel.symbols and node.op in BELOW and self.is_vector(node)):
            return None
        position, bound, op = *node.args, node.op
        if not self._counts_lanes(position):
            position, bound, op = bound, position, MIRRORED[op]
        if not self._counts_lanes(position) or self.is_vector(bound):
            return None
        assert isinstance(position, IndexValue)
        more, others = BELOW[op]
        first = self._index(add(position.expr, Integer(-more)), depth)
        lanes = f"jm::lanes_below<{self.count}>({self.reach(bound, depth).code}, {first})"
        return f"jm::bitwise_not({lanes})" if others else lanes

    def _counts_lanes(self, value: Value) -> bool:
        """Return whether the value is a position that grows by one from lane to lane."""
        if not isinstance(value, IndexValue) or value.dtype != torch.int64 or self.lane is None:
            return False
        return lane_step(value.expr, self.lane, self.kernel) == 1

    def _operand(self, op: str, arg: Value, depth: int, vector: bool) -> str:
        text = self.reach(arg, depth)
        infix = op in INFIX and arg.dtype in (torch.float32, torch.float64)
        if not vector or text.vector or infix:
            return text.code
        return f"{self.vector_type(arg.dtype)}({text.code})"

    # -- memory ------------------------------------------------------------------------------------

    def _load(self, node: Load, depth: int, vector: bool) -> str:
        pointer, offset = self.names[node.buffer], node.index[0]
        fill = literal(node.fill, node.dtype)
        if 0 in self.buffers[node.buffer].shape:
            return f"{self.vector_type(node.dtype)}({fill})" if vector else fill
        mask = None if node.mask is None else self.reach(node.mask, depth)
        if not vector:
            if mask is None:
                return element(pointer, self._index(offset, depth), node.dtype)
            index = self._index(offset, depth, f", {mask.code}")
            ctype = CTYPES[node.dtype]
            return f"jm::load_if<{ctype}>({mask.code}, {pointer}, {index}, {fill})"
        assert self.lane is not None
        step = lane_step(offset, self.lane, self.kernel)
        if mask is None:
            return self._load_lanes(pointer, offset, step, depth)
        all_lanes = mask.code if mask.vector else f"{self.vector_type(torch.bool)}({mask.code})"
        if step == 1:
            # The scalar index of a masked vector load is checked if any lane is on.
            used = (
                f"jm::any({all_lanes} & jm::valid<{self.count}>(n))" if mask.vector else mask.code
            )
            at = self._pointer(pointer, offset, depth, f", {used}")
            return f"jm::load_where({at}, {all_lanes}, {fill}, n)"
        index = self._lane_index(offset, depth, all_lanes)
        return f"jm::gather_where({pointer}, {index}, {all_lanes}, {fill}, n)"

    def _load_lanes(self, pointer: str, offset: Expr, step: int | Expr | None, depth: int) -> str:
        if step is None:
            return f"jm::gather({pointer}, {self._lane_index(offset, depth, None)}, n)"
        at = self._pointer(pointer, offset, depth)
        if step == 1:
            return f"jm::load<{self.count}>({at}, n)"
        return f"jm::load_strided<{self.count}>({at}, {step_text(step)}, n)"

    def _pointer(self, pointer: str, offset: Expr, depth: int, used: str = "") -> str:
        text = self._index(offset, depth, used)
        return pointer if text == "0" else f"{pointer} + {text}"

    def stores(self, stores: Sequence[Store]) -> list[str]:
        """Return the statements that write one point of all stores."""
        self.settle(stores)
        return [self.store(store) for store in stores]

    def settle(self, stores: Sequence[Store]) -> None:
        """Load the operands of later stores before the first one writes."""
        # The first store may overwrite them: a mutated input, or a dying operand whose memory is
        # reused (memory.py).
        for store in stores[1:]:
            for value in (store.value, *IndexValue(store.index[0]).operands):
                text = self.reach(value, self.depth)
                if not text.named and self._reads_what_changes(value):
                    self.give_name(text)

    def _reads_what_changes(self, value: Value) -> bool:
        loads = (node.buffer for node in walk((value,)) if isinstance(node, Load))
        return any(n in self.kernel.written or self.buffers[n].role == "temp" for n in loads)

    def store(self, store: Store) -> str:
        """Return the statement that writes one point (or block) of a store whose value is known."""
        pointer, offset = self.names[store.buffer], store.index[0]
        step = 0 if self.lane is None else lane_step(offset, self.lane, self.kernel)
        if step == 0:
            return self._store_scalar(store, pointer, self._index(offset, self.depth))
        value = self.use(store.value, as_vector=True)
        if step == 1:
            at = self._pointer(pointer, offset, self.depth)
            if store.mode == "add":
                value = self._sum(f"jm::load<{self.count}>({at}, n)", value, store.value.dtype)
            return f"jm::store({at}, {value}, n);"
        if step is not None:
            at = self._pointer(pointer, offset, self.depth)
            return f"jm::store_strided({at}, {step_text(step)}, {value}, n);"
        return f"jm::scatter({pointer}, {self._lane_index(offset, self.depth, None)}, {value}, n);"

    def _store_scalar(self, store: Store, pointer: str, index: str) -> str:
        value, dtype = self.use(store.value), store.value.dtype
        if store.mode == "add":
            value = self._sum(element(pointer, index, dtype), value, dtype)
        return f"{pointer}[{index}] = {value};"

    def _sum(self, a: str, b: str, dtype: torch.dtype) -> str:
        if dtype in (torch.float16, torch.bfloat16):
            total = f"jm::convert<float>({a}) + jm::convert<float>({b})"
            return f"jm::convert<{CTYPES[dtype]}>({total})"
        return f"jm::add({a}, {b})"

    # -- indexes -----------------------------------------------------------------------------------

    def _index(self, expr: Expr, depth: int, used: str = "") -> str:
        """Return a scalar offset; `used` is `, condition` for indexes that are checked only under
        it.
        """

        def run_time(index: ValueIndex) -> str:
            text = self.reach(index.value, depth).code
            if index.value.dtype != torch.int64:
                text = f"int64_t({text})"
            return f"jm::checked({text}, {count_text(index.extent)}, bad{used})"

        return index_text(expr, run_time)

    def scalar_position(self, expr: Expr) -> str:
        """Return an index expression over the axes that are variables here."""
        return self._index(expr, self.depth)

    def lane_position(self, expr: Expr) -> str:
        """Return an index expression as a vector over the lanes."""
        return self._lane_index(expr, self.depth, None)

    def _lane_index(self, expr: Expr, depth: int, mask: str | None) -> str:
        """Return an offset that differs from lane to lane, as Vec<int64_t>."""
        _, terms = linear(expr)
        assert self.lane is not None
        varying = {a: f for a, f in terms.items() if self._varies(a)}
        parts = []
        for atom, factor in varying.items():
            text = self._lane_atom(atom, depth, mask)
            parts.append(text if factor == 1 else f"{closed(text)} * {factor}")
        rest = self._index(_without(expr, varying), depth)
        if rest != "0" or not parts:
            parts.append(f"V{self.count}<int64_t>({rest})")
        return " + ".join(parts)

    def _varies(self, atom: Expr) -> bool:
        return self.lane in expr_axes(atom)

    def _lane_atom(self, atom: Expr, depth: int, mask: str | None) -> str:
        match atom:
            case AxisVar(axis):
                return f"jm::iota<int64_t, {self.count}>({axis.name})"
            case FloorDiv(a, b):
                inside = self._lane_index(a, depth, mask)
                return f"jm::floordiv({inside}, V{self.count}<int64_t>({b}))"
            case Mod(a, b):
                inside = self._lane_index(a, depth, mask)
                return f"jm::remainder({inside}, V{self.count}<int64_t>({b}))"
            case ValueIndex(value, extent):
                text = self.reach(value, depth).code
                if value.dtype != torch.int64:
                    text = f"jm::convert<int64_t>({text})"
                used = "" if mask is None else f"{mask}, "
                limit = count_text(extent)
                return f"jm::checked<{self.count}>({text}, {limit}, bad, {used}n)"
            case Apply(op, args):
                return self._lane_sized(op, args, depth, mask)
        raise TypeError(f"not an atom of an index: {atom!r}")

    def _lane_sized(self, op: str, args: Sequence[Expr], depth: int, mask: str | None) -> str:
        texts = [closed(self._lane_index(part, depth, mask)) for part in args]
        if op == "*":
            return " * ".join(texts)
        return f"jm::{LANE_SIZE_OPS[op]}({', '.join(texts)})"


def _without(expr: Expr, atoms: Mapping[Expr, int]) -> Expr:
    for atom, factor in atoms.items():
        expr = add(expr, mul(atom, -factor))
    return expr


def _is_run_time_count(value: Value) -> bool:
    """Return whether the value is a run-time number of elements, as a float."""
    return (
        isinstance(value, Cast)
        and value.dtype in (torch.float32, torch.float64)
        and isinstance(value.value, IndexValue)
        and not expr_axes(value.value.expr)
        and not run_time_values(value.value.expr)
    )


def _count_uses(one: Structure) -> dict[Value, int]:
    """Count how often each value is an operand of another or of a store."""
    uses: dict[Value, int] = {}
    for node in one.free:
        for part in node.operands:
            uses[part] = uses.get(part, 0) + 1
    for store in (store for single in one.passes for store in single.stores):
        uses[store.value] = uses.get(store.value, 0) + 1
    return uses
