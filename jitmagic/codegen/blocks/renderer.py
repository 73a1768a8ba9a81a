"""Renders the linear form of kernels as instructions of the block interpreter.

In: the nests of a schedule, the buffers. Out: KernelSource of language "blocks", whose text is the
kernels' programs. A value that varies along the axis of blocks is a block, all others are scalars;
a scalar operand of a block is filled into one, outside of the loops that do not change it. A kernel
that needs an operation without instructions is refused (CannotRender), so that its graph runs by
the next tier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ...devices import Target
from ...errors import CannotRender
from ...loops.expr import Expr
from ...loops.ir import Buffer, Cast, Compute, Constant, IndexValue, Load, Nest, Value, walk
from ...loops.values import identity
from ...operators.scalar import SCALARS
from ...schedule.score import op_cost
from ...symbols.size import Dimension, Size, expr_of, hint_of
from ..kernel import (
    Accumulate,
    Argument,
    Atomic,
    Call,
    Check,
    For,
    Group,
    Kernel,
    Let,
    Parallel,
    Pointer,
    Result,
    Scratch,
    Start,
    Statement,
    Store,
    Total,
    Var,
)
from ..kernel_values import variables_in
from ..kernel_walk import statements, values_of
from ..linearize import linearize
from ..loop_form import loop_form
from ..loop_structure import structure
from ..plan import Config, KernelSource
from ..products.blocks import product_program, programmed_products
from .assembly import MOST, Instruction, Loop, Register
from .block_loops import with_blocks
from .pairs import join_pairs
from .values import ONE, TYPES, Values, bits_of, type_of

if TYPE_CHECKING:
    from ..attention.kernel import Kernel as Rendered

__all__ = ["BlockRenderer"]

_COMPUTED = {"f16": "f32", "bf16": "f32", "b8": "u8"}  # the type in which others are reduced


class BlockRenderer:
    """Renders nests for the block interpreter; stateless."""

    language = "blocks"

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return no candidates: a program has no variants."""
        return ()

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the programs of all kernels, and the argument dtypes of each."""
        symbols, texts = {}, []
        for nest in nests:
            kernel = self.kernel(nest, buffers, target, None)
            texts.append(_Writer(kernel, target).text())
            symbols[kernel.name] = kernel.argument_dtypes
        return KernelSource(self.language, "\n".join(texts), symbols)

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel:
        """Return the kernel of a nest with loops of blocks, ready to print."""
        assert isinstance(nest, Nest)  # calls of flex_attention stay calls in this tier
        made = structure(nest, buffers)
        if products := programmed_products(made):
            return linearize(product_program(made, products, buffers))
        return linearize(with_blocks(loop_form(made, buffers), made))


class _Writer(Values):
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__()
        self.kernel, self.target = kernel, target
        self.arguments = {param.name: n for n, param in enumerate(kernel.params)}
        self.written = {param.name for param in kernel.params if param.written}
        self.most = MOST
        self.extents: list[Dimension] = []  # of the axes of blocks
        roots = [root for each in statements(kernel.body) for root in _reads(each)]
        nodes = walk(roots)
        self.uses = Counter(part for node in nodes for part in node.operands)
        self.uses.update(roots)

    def text(self) -> str:
        """Return the kernel's program."""
        kernel = self.kernel
        for number, symbol in enumerate(kernel.sizes):
            register = Register("i64", "scalar", 0)
            self.code.emit("size", register, number)
            self.known[0][symbol] = register
        self.block(kernel.body)
        join_pairs(self.code.open[0])
        types = [f"{type_of(param.dtype)}{'+' if param.written else ''}" for param in kernel.params]
        static = [extent for extent in self.extents if not isinstance(extent, Size)]
        extent = max(static, default=0) if len(static) == len(self.extents) else 0
        return self.code.text(kernel.name, types, len(kernel.sizes), self.most, extent)

    # -- statements --------------------------------------------------------------------------------

    def block(self, body: Sequence[Statement]) -> None:
        """Write statements; stores in a row come after all of their values and addresses."""
        stores: list[Store] = []
        for each in body:
            if isinstance(each, Store):
                stores.append(each)
                continue
            self.stores(stores)
            stores = []
            self.statement(each)
        self.stores(stores)

    def statement(self, each: Statement) -> None:
        match each:
            case For():
                self.loop(each)
            case Parallel(body=(For() as loop,)):
                self.loop(loop, "p")
            case Let(target, Result(total)):
                self.values[target] = self.result(total, each.target.dtype)
            case Let(target, value):
                self.code.open[-1].cost += max(op_cost(value), 1)
                self.values[target] = self.compute(value)
            case Start(total):
                self.start(total)
            case Accumulate(total, value, position):
                self.accumulate(total, value, position)
            case Check(var, index, extent, mask):
                self.check(var, index, self.integer(expr_of(extent)), mask)
            case Scratch():
                self.scratch(each)
            case Call(function="gemm"):
                self.product(each)
            case _:
                raise TypeError(f"no instruction for {each!r}")

    def loop(self, loop: For, flags: str = "") -> None:
        extents = [self.integer(expr_of(axis.extent)) for axis in loop.axes]
        depth = self.code.depth + 1
        bound = [Register("i64", "scalar", depth) for _ in loop.axes]
        flags += "b" if loop.kind == "block" else ""
        self.axes.update(zip(loop.axes, bound, strict=True))
        self.code.open.append(Loop(tuple(zip(bound, extents, strict=True)), flags or "s"))
        self.known.append({})
        lane = self.lane
        if loop.kind == "block":
            lane = loop.axes[-1]
            self.extents.append(lane.extent)
        if flags == "pb" and len(loop.axes) == 1 and self.target.threads > 1:
            self.most = max(hint_of(loop.axes[0].extent) // (2 * self.target.threads), 1)
        self.lane, before = lane, self.lane
        self.block(loop.body)
        self.lane = before
        self.known.pop()
        self.code.close()

    def check(self, var: Var, index: Value, extent: Register, mask: Value | None) -> None:
        given = self.converted(self.operand(index), "i64")
        masks = [] if mask is None else [self.operand(mask)]
        is_block = any(each.is_block for each in (given, *masks))
        operands = [self.as_block(each) if is_block else each for each in (given, *masks)]
        self.values[var] = self.define("check", "i64", is_block, operands[0], extent, *operands[1:])

    def scratch(self, each: Scratch) -> None:
        # The array of sizes follows the arguments, then the scratch memories.
        number = self.arguments[each.name] = len(self.arguments) + 1
        self.written.add(each.name)
        self.code.emit(f"scratch.{type_of(each.dtype)}", None, number, self.whole(each.size))

    def product(self, call: Call) -> None:
        """Write a product: its sizes, two operands, where the sums go, and whether by tiles."""
        *sizes, a, b, target, step, _ = call.args
        operands: list[Register | int] = [self.whole(size) for size in sizes]
        for given in (a, b, Group((target, step))):
            assert isinstance(given, Group)
            place, *steps = given.args
            assert isinstance(place, Pointer)
            operands += [self.arguments[place.buffer], self.integer(place.offset)]
            operands += [self.whole(each) for each in steps]
        by_tiles = isinstance(call.constants[0], str)
        self.code.emit("product.f32", None, *operands, int(by_tiles))

    def whole(self, given: Argument) -> Register:
        """Return the register of a number that a statement takes."""
        assert isinstance(given, (int, Size, Expr))
        return self.integer(given if isinstance(given, Expr) else expr_of(given))

    def stores(self, stores: Sequence[Store]) -> None:
        """Write the stores of one point. What a single store takes may be computed in its place."""
        if len(stores) == 1 and self.placed(stores[0]):
            return
        ready = []
        for store in stores:
            self.code.open[-1].cost += 1
            base, index = self.address(store.offset)
            value = self.operand(store.value)
            if len(stores) > 1 and value.origin is not None:  # an earlier store may overwrite it
                value = self.copied(value)
            if self.varies(store.offset):
                value = self.as_block(value)
            ready.append((store, base, index, value))
        for store, base, index, value in ready:
            kind, number = type_of(store.value.dtype), self.arguments[store.buffer]
            is_sum = isinstance(store, Atomic)
            plain, indexed = ("addto", "addat") if is_sum else ("store", "scatter")
            name = indexed if index.is_block else plain
            self.code.emit(f"{name}.{kind}", None, number, base, index, value)

    def placed(self, store: Store) -> bool:
        """Let the last instruction write into the memory of the buffer, if that is possible."""
        items, value = self.code.open[-1].items, self.values.get(store.value)
        last = items[-1] if items else None
        if not isinstance(last, Instruction) or value is None or last.out is not value:
            return False
        is_pointwise = value.kind == "block" and last.op.partition(".")[0] in _PLACED
        if not is_pointwise or self.uses[store.value] > 1 or isinstance(store, Atomic):
            return False
        if self.step(store.offset) is not ONE:
            return False
        items.pop()
        base, _ = self.address(store.offset)
        value.kind = "view"
        self.code.emit(f"place.{value.type}", None, value, self.arguments[store.buffer], base)
        items.append(last)
        return True

    def copied(self, view: Register) -> Register:
        assert view.origin is not None
        number, base = view.origin
        return self.define(f"load.{view.type}", view.type, True, number, base, self.number(1))

    # -- values ------------------------------------------------------------------------------------

    def operand(self, value: Value) -> Register:
        """Return the register of a variable or a constant."""
        if isinstance(value, Constant):
            return self.constant(value.value, type_of(value.dtype))
        return self.values[value]

    def compute(self, value: Value) -> Register:
        match value:
            case Load():
                return self.load(value)
            case Cast(inner, dtype):
                return self.converted(self.operand(inner), type_of(dtype))
            case Compute(op, args, dtype):
                row, of = SCALARS[op], args[-1].dtype
                if row.texts is not None:
                    raise CannotRender(BlockRenderer.language, op)
                if of == torch.bool and not row.takes(of) and row.of_bools is not None:
                    op = row.of_bools
                return self.apply(op, type_of(dtype), *map(self.operand, args))
            case IndexValue(expr, dtype):
                made = self.indexes(expr) if self.varies(expr) else self.integer(expr)
                return self.converted(made, type_of(dtype))
            case Var() | Constant():
                return self.operand(value)
        raise TypeError(f"no instruction for {value!r}")

    def load(self, load: Load) -> Register:
        kind, number = type_of(load.dtype), self.arguments[load.buffer]
        (offset,) = load.index
        base, index = self.address(offset)
        mask = None if load.mask is None else self.operand(load.mask)
        is_block = self.varies(offset) or (mask is not None and mask.is_block)
        if mask is not None:
            fill = self.constant(load.fill, kind)
            op = f"{'gatherif' if index.is_block else 'loadif'}.{kind}"
            masks = self.as_block(mask) if is_block else mask
            return self.define(op, kind, is_block, number, base, index, masks, fill)
        if index.is_block:
            return self.define(f"gather.{kind}", kind, True, number, base, index)
        is_view = is_block and kind != "b8" and load.buffer not in self.written
        if not is_view or self.step(offset) is not ONE:
            return self.define(f"load.{kind}", kind, is_block, number, base, index)
        register = Register(kind, "view", self.code.depth, origin=(number, base))
        self.code.emit(f"view.{kind}", register, number, base)
        return register

    # -- reductions --------------------------------------------------------------------------------

    def start(self, total: Total) -> None:
        _, operand = _reduction(total)
        is_wide = total.var.dtype != total.operand
        start = identity(total.op, total.operand)
        self.values[total.var] = self.fresh(start, "f64" if is_wide else operand)
        if total.at is not None:
            self.values[total.at] = self.fresh(2**63 - 1, "i64")
        elif total.lost is not None:
            self.values[total.lost] = self.fresh(0, "f64")

    def fresh(self, value: bool | int | float, kind: str) -> Register:
        """Return a register that may be changed, a block inside of a loop of blocks."""
        if self.lane is None:
            return self.define(f"const.{kind}", kind, False, bits_of(value, kind))
        return self.define(f"fill.{kind}", kind, True, self.constant(value, kind))

    def accumulate(self, total: Total, value: Value, position: Expr | None) -> None:
        name, operand = _reduction(total)
        self.code.open[-1].cost += 2
        register, given = self.values[total.var], self.converted(self.operand(value), operand)
        extra = total.at or total.lost
        operands = [] if extra is None else [self.values[extra]]
        reduces = self.lane is not None and not register.is_block
        operands.append(self.as_block(given) if self.lane is not None else given)
        if position is not None:
            operands.append(self.integer(position))
            if reduces:
                step = self.step(position)
                assert step is not None
                operands.append(self.integer(step))
        op = f"{'reduce' if reduces else 'join'}.{name}.{operand}"
        self.code.emit(op, None, register, *operands)

    def result(self, total: Total, dtype: torch.dtype) -> Register:
        register = self.values[total.var]
        if total.at is not None:
            return self.values[total.at]
        if total.lost is not None:
            # The error term is NaN where the sum is infinite.
            whole = self.apply("add", "f64", register, self.values[total.lost])
            is_number = self.apply("eq", "b8", whole, whole)
            register = self.apply("where", "f64", is_number, whole, register)
        return self.converted(register, type_of(dtype))


# Operations that write each element once, after they have read those at its place.
_PLACED = {*SCALARS, *(f"to_{kind}" for kind in TYPES.values())}


def _reads(each: Statement) -> Iterable[Value]:
    values = [value for value in values_of(each) if not isinstance(value, Result)]
    inside: list[Value] = []
    for value in walk(values):
        if isinstance(value, Load):
            inside += variables_in(value.index[0])
    if isinstance(each, Store):
        inside += variables_in(each.offset)
    return [*values, *inside]


def _reduction(total: Total) -> tuple[str, str]:
    """Return the name of a reduction and the type of its operand."""
    kind = type_of(total.operand)
    if total.op == "logsumexp":
        raise CannotRender(BlockRenderer.language, total.op, "reduction")
    if kind == "b8" and total.at is None:
        return ("all" if identity(total.op, torch.bool) else "any"), kind
    return total.op, _COMPUTED.get(kind, kind)
