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

import torch

from ...devices import Target
from ...errors import CannotRender
from ...lazy_dataclass import dataclass, field
from ...loops.expr import (
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    axes_of,
    leaves,
    linear,
)
from ...loops.ir import Buffer, Cast, Compute, Constant, IndexValue, Load, Nest, Value, walk
from ...loops.values import identity
from ...operators.scalar import SCALARS
from ...schedule.score import op_cost
from ...symbols.size import expr_of, hint_of
from ..attention.kernel import Kernel as Rendered
from ..kernel import (
    Accumulate,
    Atomic,
    Check,
    For,
    Kernel,
    Let,
    Result,
    Start,
    Statement,
    Store,
    Total,
    Var,
    VarIndex,
    statements,
    values_of,
)
from ..linearize import linearize
from ..loop_form import exact_total, loop_form
from ..loop_structure import coefficient, structure
from ..plan import Config, KernelSource
from .assembly import Assembly, Instruction, Loop, Register
from .block_loops import with_blocks

__all__ = ["BlockRenderer", "block_kernel"]

TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8",
    torch.bool: "b8",
    **{getattr(torch, f"int{bits}"): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): f"u{bits}" for bits in (8, 16, 32, 64)},
}
_OF_SIZES = {"//": "floordiv", "%": "remainder", "min": "minimum", "max": "maximum", "*": "mul"}
_HALVES = ("f16", "bf16")


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
            assert isinstance(nest, Nest)  # calls of flex_attention stay calls in this tier
            kernel = block_kernel(nest, buffers, target)
            texts.append(_Writer(kernel, target).text())
            dtypes = tuple(param.dtype for param in kernel.params)
            symbols[kernel.name] = (*dtypes, torch.int64) if kernel.sizes else dtypes
        return KernelSource(self.language, "\n".join(texts), symbols)


def block_kernel(nest: Nest, buffers: Mapping[str, Buffer], target: Target) -> Kernel:
    """Return the kernel of a nest with loops of blocks, ready to print."""
    made = structure(nest, buffers)
    return linearize(with_blocks(loop_form(made, buffers, exact_total), made, target))


@dataclass(slots=True)
class _Scope:
    """Holds what is known in an open scope: registers by expression, constant or filled scalar."""

    known: dict[object, Register] = field(default_factory=dict)


class _Writer:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        self.code = Assembly()
        self.scopes = [_Scope()]
        self.arguments = {param.name: n for n, param in enumerate(kernel.params)}
        self.written = {param.name for param in kernel.params if param.written}
        self.values: dict[Value, Register] = {}
        self.axes: dict[Axis, Register] = {}
        self.extras: dict[Var, Register] = {}
        self.lane: Axis | None = None
        self.most = 1 << 12
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
            self.scopes[0].known[symbol] = register
        self.block(kernel.body)
        types = [f"{_type(param.dtype)}{'+' if param.written else ''}" for param in kernel.params]
        return self.code.text(kernel.name, types, len(kernel.sizes), self.most)

    # -- statements --------------------------------------------------------------------------------

    def block(self, body: Sequence[Statement]) -> None:
        """Write statements; stores in a row come after all of their values and addresses."""
        at = 0
        while at < len(body):
            end = at
            while end < len(body) and isinstance(body[end], Store):
                end += 1
            if end > at:
                self.stores([each for each in body[at:end] if isinstance(each, Store)])
                at = end
            else:
                self.statement(body[at])
                at += 1

    def statement(self, each: Statement) -> None:
        match each:
            case For():
                self.loop(each)
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
            case _:
                raise TypeError(f"no instruction for {each!r}")

    def loop(self, loop: For) -> None:
        extents = [self.integer(expr_of(axis.extent)) for axis in loop.axes]
        depth = self.code.depth + 1
        bound = [Register("i64", "scalar", depth) for _ in loop.axes]
        flags = ("p" if "parallel" in loop.kind else "") + ("b" if "block" in loop.kind else "")
        self.axes.update(zip(loop.axes, bound, strict=True))
        self.code.open.append(Loop(tuple(zip(bound, extents, strict=True)), flags or "s"))
        self.scopes.append(_Scope())
        lane = loop.axes[-1] if "b" in flags else self.lane
        if flags == "pb" and len(loop.axes) == 1 and self.target.threads > 1:
            self.most = max(hint_of(loop.axes[0].extent) // (2 * self.target.threads), 1)
        self.lane, before = lane, self.lane
        self.block(loop.body)
        self.lane = before
        self.scopes.pop()
        self.code.close()

    def check(self, var: Var, index: Value, extent: Register, mask: Value | None) -> None:
        given = self.converted(self.operand(index), "i64")
        masks = [] if mask is None else [self.operand(mask)]
        is_block = any(each.is_block for each in (given, *masks))
        operands = [self.as_block(each) if is_block else each for each in (given, *masks)]
        self.values[var] = self.define("check", "i64", is_block, operands[0], extent, *operands[1:])

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
            kind, number = _type(store.value.dtype), self.arguments[store.buffer]
            plain, indexed = ("add", "addat") if isinstance(store, Atomic) else ("store", "scatter")
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
        if self.step(store.offset) != 1:
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

    def define(
        self, op: str, kind: str, is_block: bool, *operands: Register | int | str, depth: int = -1
    ) -> Register:
        """Write an instruction into the scope at `depth`; return the register that it defines."""
        depth = self.code.depth if depth < 0 else depth
        register = Register(kind, "block" if is_block else "scalar", depth)
        self.code.emit(op, register, *operands, depth=depth)
        return register

    def operand(self, value: Value) -> Register:
        """Return the register of a variable or a constant."""
        if isinstance(value, Constant):
            return self.constant(value.value, _type(value.dtype))
        return self.values[value]

    def constant(self, value: bool | int | float, kind: str) -> Register:
        word = _bits(value, kind)
        known = self.scopes[0].known
        if (kind, word) not in known:
            known[kind, word] = self.define(f"const.{kind}", kind, False, word, depth=0)
        return known[kind, word]

    def number(self, value: int) -> Register:
        """Return a constant int64."""
        return self.constant(value, "i64")

    def as_block(self, register: Register) -> Register:
        """Return the block of which all elements are a scalar."""
        if register.is_block:
            return register
        known = self.scopes[register.depth].known
        if register not in known:
            op, depth = f"fill.{register.type}", register.depth
            known[register] = self.define(op, register.type, True, register, depth=depth)
        return known[register]

    def converted(self, register: Register, kind: str) -> Register:
        if register.type == kind:
            return register
        return self.define(f"to_{kind}.{register.type}", kind, register.is_block, register)

    def apply(self, op: str, kind: str, *operands: Register) -> Register:
        """Apply a pointwise operation; the last operand has the type by which it is found."""
        is_block = any(each.is_block for each in operands)
        given = [self.as_block(each) if is_block else each for each in operands]
        return self.define(f"{op}.{operands[-1].type}", kind, is_block, *given)

    def compute(self, value: Value) -> Register:
        match value:
            case Load():
                return self.load(value)
            case Cast(inner, dtype):
                return self.converted(self.operand(inner), _type(dtype))
            case Compute(op, args, dtype):
                row, of = SCALARS[op], args[-1].dtype
                if row.texts is not None:
                    raise CannotRender(BlockRenderer.language, op)
                if of == torch.bool and not row.takes(of) and row.of_bools is not None:
                    op = row.of_bools
                return self.apply(op, _type(dtype), *map(self.operand, args))
            case IndexValue(expr, dtype):
                made = self.indexes(expr) if self.varies(expr) else self.integer(expr)
                return self.converted(made, _type(dtype))
            case Var() | Constant():
                return self.operand(value)
        raise TypeError(f"no instruction for {value!r}")

    def load(self, load: Load) -> Register:
        kind, number = _type(load.dtype), self.arguments[load.buffer]
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
        if not is_view or self.step(offset) != 1:
            return self.define(f"load.{kind}", kind, is_block, number, base, index)
        register = Register(kind, "view", self.code.depth, origin=(number, base))
        self.code.emit(f"view.{kind}", register, number, base)
        return register

    # -- reductions --------------------------------------------------------------------------------

    def start(self, total: Total) -> None:
        name, operand = _reduction(total)
        is_wide = name in ("sum", "prod") and operand in ("f32", "f64")
        start = identity(total.op, total.operand)
        self.values[total.var] = self.fresh(start, "f64" if is_wide else operand)
        if total.at is not None:
            self.values[total.at] = self.fresh(2**63 - 1, "i64")
        elif name == "sum" and operand == "f64":
            self.extras[total.var] = self.fresh(0, "f64")

    def fresh(self, value: bool | int | float, kind: str) -> Register:
        """Return a register that may be changed, a block inside of a loop of blocks."""
        if self.lane is None:
            return self.define(f"const.{kind}", kind, False, _bits(value, kind))
        return self.define(f"fill.{kind}", kind, True, self.constant(value, kind))

    def accumulate(self, total: Total, value: Value, position: Expr | None) -> None:
        name, operand = _reduction(total)
        self.code.open[-1].cost += 2
        register, given = self.values[total.var], self.converted(self.operand(value), operand)
        extra: Register | int = -1
        if total.at is not None:
            extra = self.values[total.at]
        elif total.var in self.extras:
            extra = self.extras[total.var]
        operands: list[Register] = [] if isinstance(extra, int) else [extra]
        reduces = self.lane is not None and not register.is_block
        operands.append(self.as_block(given) if self.lane is not None else given)
        if position is not None:
            operands.append(self.integer(position))
            if reduces:
                step = coefficient(position, self.lane)  # type: ignore[arg-type]
                operands.append(self.integer(expr_of(step)))  # type: ignore[arg-type]
        op = f"{'reduce' if reduces else 'join'}.{name}.{operand}"
        self.code.emit(op, None, register, *operands)

    def result(self, total: Total, dtype: torch.dtype) -> Register:
        register = self.values[total.var]
        if total.at is not None:
            return self.values[total.at]
        if (lost := self.extras.get(total.var)) is not None:
            # The error term is NaN where the sum is infinite.
            whole = self.apply("add", "f64", register, lost)
            is_number = self.apply("eq", "b8", whole, whole)
            register = self.apply("where", "f64", is_number, whole, register)
        return self.converted(register, _type(dtype))

    # -- indexes -----------------------------------------------------------------------------------

    def varies(self, expr: Expr) -> bool:
        """Return whether an expression depends on the axis of blocks."""
        if self.lane is None:
            return False
        indexes = (leaf for leaf in leaves(expr) if isinstance(leaf, VarIndex))
        return self.lane in axes_of(expr) or any(self.values[i.var].is_block for i in indexes)

    def step(self, expr: Expr) -> int | Expr | None:
        """Return how far an offset moves from lane to lane; None if that is not a constant."""
        if self.lane is None:
            return 0
        indexes = (leaf for leaf in leaves(expr) if isinstance(leaf, VarIndex))
        if any(self.values[index.var].is_block for index in indexes):
            return None
        return coefficient(expr, self.lane)

    def address(self, offset: Expr) -> tuple[Register, Register]:
        """Return the offset of the first lane, and the step between lanes; or an offset and a block
        of offsets to add to it.
        """
        step = self.step(offset)
        if step is not None:
            return self.integer(offset), self.integer(expr_of(step))  # type: ignore[arg-type]
        return self.number(0), self.indexes(offset)

    def integer(self, expr: Expr) -> Register:
        """Return an integer: at the first lane of a block, if it varies."""
        constant, terms = linear(expr)
        if not terms:
            return self.number(constant)
        factors = [(self.atom(atom), self.number(n)) for atom, n in terms.items()]
        if not constant and [*terms.values()] == [1]:
            return factors[0][0]
        depth = max(atom.depth for atom, _ in factors)
        if expr not in self.scopes[depth].known:
            operands = [part for pair in factors for part in pair]
            made = self.define("sum", "i64", False, constant, *operands, depth=depth)
            self.scopes[depth].known[expr] = made
        return self.scopes[depth].known[expr]

    def atom(self, expr: Expr) -> Register:
        match expr:
            case AxisVar(axis):
                return self.axes[axis]
            case VarIndex(var):
                return self.values[var]
            case Symbol():
                return self.scopes[0].known[expr]
            case FloorDiv(a, b):
                return self.combined(expr, "floordiv", (self.integer(a), self.number(b)))
            case Mod(a, b):
                return self.combined(expr, "remainder", (self.integer(a), self.number(b)))
            case Apply(op, args) if op in _OF_SIZES:
                return self.combined(expr, _OF_SIZES[op], [*map(self.integer, args)])
        raise TypeError(f"not an index expression: {expr!r}")

    def combined(self, expr: Expr, op: str, parts: Sequence[Register]) -> Register:
        """Return scalars combined, in the outermost scope that has all of them."""
        depth = max(part.depth for part in parts)
        if expr not in self.scopes[depth].known:
            made = parts[0]
            for part in parts[1:]:
                made = self.define(f"{op}.i64", "i64", False, made, part, depth=depth)
            self.scopes[depth].known[expr] = made
        return self.scopes[depth].known[expr]

    def indexes(self, expr: Expr) -> Register:
        """Return the block of an expression's values."""
        known = self.scopes[-1].known
        if ("block", expr) not in known:
            known["block", expr] = self.new_indexes(expr)
        return known["block", expr]

    def new_indexes(self, expr: Expr) -> Register:
        step = self.step(expr)
        if step == 0:
            return self.as_block(self.integer(expr))
        if step is not None:
            operands = self.integer(expr), self.integer(expr_of(step))  # type: ignore[arg-type]
            return self.define("iota", "i64", True, *operands)
        constant, terms = linear(expr)
        made: Register | None = None
        for atom, n in terms.items():
            part = self.varying_atom(atom) if self.varies(atom) else self.integer(atom)
            if n != 1:
                part = self.apply("mul", "i64", part, self.number(n))
            made = part if made is None else self.apply("add", "i64", made, part)
        assert made is not None
        return self.apply("add", "i64", made, self.number(constant)) if constant else made

    def varying_atom(self, expr: Expr) -> Register:
        match expr:
            case AxisVar():
                return self.indexes(expr)
            case VarIndex(var):
                return self.values[var]
            case FloorDiv(a, b):
                return self.divided("quotients", a, Integer(b))
            case Mod(a, b):
                return self.divided("remainders", a, Integer(b))
            case Apply("//" | "%" as op, (a, b)) if not self.varies(b):
                return self.divided("quotients" if op == "//" else "remainders", a, b)
            case Apply(op, args) if op in _OF_SIZES:
                made = self.indexes(args[0])
                for part in args[1:]:
                    made = self.apply(_OF_SIZES[op], "i64", made, self.indexes(part))
                return made
        raise TypeError(f"not an index expression: {expr!r}")

    def divided(self, op: str, a: Expr, b: Expr) -> Register:
        """Return quotients or remainders, without divisions of what grows evenly with the lanes."""
        step, divisor = self.step(a), self.integer(b)
        if step is None:
            name = "floordiv" if op == "quotients" else "remainder"
            return self.apply(name, "i64", self.indexes(a), divisor)
        steps = self.integer(expr_of(step))  # type: ignore[arg-type]
        return self.define(op, "i64", True, self.integer(a), steps, divisor)


# Operations that write each element once, after they have read those at its place.
_PLACED = {*SCALARS, *(f"to_{kind}" for kind in TYPES.values())}


def _type(dtype: torch.dtype) -> str:
    if dtype not in TYPES:
        raise CannotRender(BlockRenderer.language, f"{dtype} tensors")
    return TYPES[dtype]


def _bits(value: bool | int | float, kind: str) -> str:
    """Return the bits of a constant in hexadecimal."""
    if kind in ("f32", "f64", "f16", "bf16"):
        dtype = next(dtype for dtype, name in TYPES.items() if name == kind)
        exact = torch.tensor(float(value), dtype=dtype)
        size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return f"{int(exact.view(size).item()) % 2 ** (8 * dtype.itemsize):x}"
    return f"{int(value) % 2**64:x}"


def _reads(each: Statement) -> Iterable[Value]:
    values = [value for value in values_of(each) if not isinstance(value, Result)]
    inside: list[Value] = []
    for value in walk(values):
        if isinstance(value, Load):
            inside += [leaf.var for leaf in leaves(value.index[0]) if isinstance(leaf, VarIndex)]
    if isinstance(each, Store):
        inside += [leaf.var for leaf in leaves(each.offset) if isinstance(leaf, VarIndex)]
    return [*values, *inside]


def _reduction(total: Total) -> tuple[str, str]:
    """Return the name of a reduction and the type of its operand."""
    kind = _type(total.operand)
    if kind == "b8" and total.at is None:
        return ("all" if identity(total.op, torch.bool) else "any"), kind
    return total.op, "f32" if kind in _HALVES else kind
