"""Prints a kernel as the body of one Triton function.

In: a Kernel of the linear form, the Tile of a program. Out: lines, and the device functions that
they call. Every index vector has the full rank of the tile (size 1 in dimensions that it does not
depend on), so that values broadcast; a block of size 1 is a scalar. A run-time index that is out of
range fails a device assertion, as eager's CUDA kernels do: the error surfaces at the next
synchronisation. Points outside the extents are exempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import torch

from ...loops.expr import (
    Add,
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    add,
    axes_of,
    is_never_negative,
    leaves,
    linear,
)
from ...loops.ir import Cast, Compute, Constant, IndexValue, Load, Value
from ...loops.values import identity
from ...operators.scalar import SCALARS
from ...symbols.polynomial import product
from ...symbols.size import Dimension, Size, expr_of, is_same
from ..kernel import (
    Accumulate,
    Atomic,
    Barrier,
    Check,
    Dot,
    Fold,
    For,
    Inside,
    Kernel,
    Let,
    Open,
    Program,
    Result,
    Start,
    Statement,
    Store,
    TileBlock,
    Total,
    Var,
    VarIndex,
)
from ..linearize import Style
from ..text import terms_text
from .ops import (
    INFIX,
    cast_text,
    closed,
    compute_text,
    helpers_of,
    literal,
    plain_number,
    spread,
    typed,
)
from .tile import Tile

__all__ = ["STYLE", "TritonText"]

STYLE = Style(longest=7, tiles=True)
_SIZE_OPS = {"min": "tl.minimum", "max": "tl.maximum"}
_JOIN: Mapping[str, str] = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}"} | {
    "all": "{0} & {1}",
    "max": "combine_max({0}, {1})",
    "min": "combine_min({0}, {1})",
}
_FOLD: Mapping[str, str] = {
    "sum": "tl.sum({0}, {axis}{keep})",
    "prod": "tl.reduce({0}, {axis}, combine_prod{keep})",
    "any": "tl.max({0}, {axis}{keep})",
    "all": "tl.min({0}, {axis}{keep})",
    "max": "tl.reduce({0}, {axis}, combine_max{keep})",
    "min": "tl.reduce({0}, {axis}, combine_min{keep})",
}


class _Scope:
    """Holds the names of masks and positions of the blocks that are open."""

    def __init__(self, outside: _Scope | None = None) -> None:
        self.masks: dict[TileBlock, str] = {} if outside is None else dict(outside.masks)
        self.flat: dict[TileBlock, str] = {} if outside is None else dict(outside.flat)

    def inside(self) -> _Scope:
        return _Scope(self)


class TritonText:
    """Prints one kernel. `by_value`: buffers that are CPU scalars, passed as numbers."""

    def __init__(
        self, kernel: Kernel, tile: Tile, names: Mapping[str, str], by_value: Iterable[str] = ()
    ) -> None:
        self.kernel, self.tile, self.names = kernel, tile, names
        self.by_value = frozenset(by_value)
        self.all_blocks = (*tile.outer, *tile.inner.values())
        self.lines_: list[str] = []
        self.indent = 0
        self.scope = _Scope()
        self.helpers: set[str] = set()
        self.axes: dict[Var, frozenset[Axis]] = {}
        self._positions = {b: _position_of(b) for b in self.all_blocks if len(b.axes) > 1}
        self._home = {axis: block for block in self.all_blocks for axis in block.axes}
        self._numbers = count()

    def lines(self) -> list[str]:
        """Return the body of the function, not indented."""
        if not self.tile.wide:
            for symbol in self.kernel.sizes:
                # Sizes are passed as int64, but 32-bit index arithmetic is faster where offsets
                # fit.
                self.line(f"{symbol.name} = {symbol.name}.to(tl.int32)")
        self.block(self.kernel.body)
        return self.lines_

    # -- statements ------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines_.append(f"{'    ' * self.indent}{text}")

    def block(self, body: Iterable[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def inside(self, head: str, body: Iterable[Statement]) -> None:
        self.line(head)
        outside, self.scope = self.scope, self.scope.inside()
        self.indent += 1
        self.block(body)
        self.indent -= 1
        self.scope = outside

    def statement(self, each: Statement) -> None:
        match each:
            case Program(blocks):
                self.program(blocks)
            case Open(block, start):
                self.open(block, "" if start is None else start.name)
            case For():
                self.loop(each)
            case Let(Var() as var, value):
                self.let(var, value)
            case Start(total):
                self.start(total)
            case Accumulate(total, value, position):
                self.accumulate(total, value, position)
            case Dot():
                self.dot(each)
            case Check():
                self.check(each)
            case Barrier():
                # The only explicit barrier between the threads of a program that Triton has.
                self.line("tl.debug_barrier()")
            case Store():
                self.store(each)
            case _:
                raise TypeError(f"no Triton for {each!r}")

    def program(self, blocks: Sequence[TileBlock]) -> None:
        """Define the blocks of this program, by its number."""
        before = _ProgramCounts()
        pid = "tl.program_id(0)" + (".to(tl.int64)" if self.tile.wide else "")
        if len(blocks) > 1:
            self.line(f"pid = {pid}")
            pid = "pid"
        for number, block in reversed(list(enumerate(blocks))):
            extent = self.size_text(block.extent)
            start = pid if before.is_one else f"{pid} // {before}"
            before.take(block, extent)
            if not all(other.single for other in blocks[:number]):
                start += f" % {_ProgramCounts.of(block, extent)}"
            if block.size > 1 and not block.single:
                self.open(block, start if start == pid else f"({start})", block.size)
            else:
                self.open(block, start if block.size == 1 else "")

    def open(self, block: TileBlock, origin: str, factor: int = 1) -> None:
        """Define the positions of a block, its mask and its axes."""
        points = self.positions(block)
        start = origin if factor == 1 else f"{origin} * {factor}"
        text = " + ".join(part for part in (start, points) if part)
        flat = block.axes[0].name if len(block.axes) == 1 else block.name
        if block not in self.all_blocks:  # a point of a loop, whose variable is an int32
            text = f"{start} + tl.full([], 0, {self.position_dtype})"
        self.line(f"{flat} = {text}")
        if block.ragged:
            self.line(f"{flat}_in = {flat} < {self.size_text(block.extent)}")
            self.scope.masks[block] = f"{flat}_in"
        self.scope.flat[block] = flat
        below: Dimension = 1
        for number, axis in reversed(list(enumerate(block.axes))):
            text = flat if is_same(below, 1) else f"{flat} // {self.size_text(below)}"
            if number:
                text += f" % {self.size_text(axis.extent)}"
            if text != axis.name:
                self.line(f"{axis.name} = {text}")
            below = below * axis.extent

    def loop(self, loop: For) -> None:
        (axis,), size = loop.axes, self.size_text(loop.axes[0].extent)
        steps = f"range(0, {size}" + (f", {loop.step})" if loop.step != 1 else ")")
        if loop.stages:
            steps = f"tl.{steps[:-1]}, num_stages={loop.stages})"
        self.inside(f"for {axis.name} in {steps}:", loop.body)

    def let(self, var: Var, value: Value) -> None:
        self.axes[var] = self.axes_of(value)
        if isinstance(value, Fold):
            self.fold(var, value)
        else:
            self.line(f"{var.name} = {self.value(value)}")

    def name_of(self, code: str) -> str:
        """Return a variable that holds the expression, computed here."""
        if code.isidentifier():
            return code
        name = f"t{next(self._numbers)}"
        self.line(f"{name} = {code}")
        return name

    # -- reductions ------------------------------------------------------------------------------

    @property
    def position_dtype(self) -> str:
        return "tl.int64" if self.tile.wide else "tl.int32"

    def start(self, total: Total) -> None:
        """Define the accumulators, and their positions or rounding errors."""
        held, dtype = total.var.name, total.var.dtype
        self.axes[total.var] = frozenset(total.tile)
        if total.method == "dot":
            rows, columns = self.tile.outer
            self.line(f"{held} = tl.zeros([{rows.size}, {columns.size}], tl.float32)")
            return
        shape = self.shape(self.blocks_over(total.tile))
        start = typed(identity(total.op, dtype), dtype).replace("[]", shape, 1)
        self.line(f"{held} = {start}")
        if total.at is not None:
            at = f"tl.full({shape}, {2**31 - 1}, {self.position_dtype})"
            self.line(f"{total.at.name} = {at}")
        elif total.lost is not None:
            self.line(f"{total.lost.name} = {start}")

    def accumulate(self, total: Total, value: Value, position: Expr | None) -> None:
        """Accumulate the next value of each lane."""
        held, text = total.var.name, self.value(value)
        if total.at is not None:
            assert position is not None
            at, name = total.at.name, self.helper(f"first_{total.op}")
            code = f"{name}({held}, {at}, {text}, {self.index(position)})"
            self.line(f"{held}, {at} = {code}")
        elif total.lost is not None:
            lost = total.lost.name
            self.line(f"{held}, {lost} = {self.helper('add_kept')}({held}, {lost}, {text})")
        else:
            if total.op in ("max", "min"):
                self.helper(f"combine_{total.op}")
            self.line(f"{held} = {_JOIN[total.op].format(held, closed(text))}")

    def result(self, total: Total) -> str:
        """Return what was accumulated. A rounding error is NaN if the sum is infinite."""
        if total.method == "dot":
            rows, columns = self.tile.outer
            return f"tl.reshape({total.var.name}, [{rows.size}, {columns.size}, 1])"
        if total.lost is None:
            return total.var.name
        held = total.var.name
        whole = self.name_of(f"{held} + {total.lost.name}")
        return f"tl.where({whole} == {whole}, {whole}, {held})"

    def fold(self, var: Var, fold: Fold) -> None:
        """Combine the points along the block and define the result."""
        block, op, value = fold.block, fold.op, fold.value
        axis, source = self.dimension(block), value.dtype
        keep = ", keep_dims=True" if self.tile.rank > 1 else ""
        blocks = self.blocks_over(self.axes_of(value)) | {block}
        if op in ("argmax", "argmin"):
            name = f"{var.name}_at"
            text, positions = self.positioned(value, block, blocks)
            function = self.helper(f"first_{op}")
            self.line(f"_, {name} = tl.reduce(({text}, {positions}), {axis}, {function}{keep})")
            self.line(f"{var.name} = {name}.to(tl.int64)")
            return
        text = self.value(value)
        if block not in self.blocks_over(self.axes_of(value)):
            text = self.spread(text, blocks)
        template = _FOLD[op]
        # tl.max and tl.min ignore NaN: only integers may use them.
        if not source.is_floating_point and op in ("max", "min"):
            template = f"tl.{op}({{0}}, {{axis}}{{keep}})"
        elif op in ("max", "min", "prod"):
            self.helper(f"combine_{op}")
        text = template.format(self.name_of(text), axis=axis, keep=keep)
        if source == fold.dtype:
            self.line(f"{var.name} = {text}")
        else:
            self.line(f"{var.name} = {cast_text(self.name_of(text), source, fold.dtype)}")

    def positioned(self, value: Value, block: TileBlock, blocks: set[TileBlock]) -> tuple[str, str]:
        """Return the values and the positions of an argmax or argmin."""
        if isinstance(value, Result) and value.total.at is not None:
            return value.total.var.name, value.total.at.name
        text = self.value(value)
        if block not in self.blocks_over(self.axes_of(value)):
            text = self.spread(text, blocks)
        return text, f"tl.broadcast_to({self.scope.flat[block]}, {self.shape(blocks)})"

    def dot(self, each: Dot) -> None:
        """Add the product of two tiles, by tensor cores."""
        (rows, columns, terms), held = each.blocks, each.total.var.name
        sides = [
            self.name_of(f"tl.reshape({self.spread(self.value(side), {block, terms})}, "
                         f"[{block.size}, {terms.size}])")
            for side, block in ((each.a, rows), (each.b, columns))
        ]  # fmt: skip
        exact = ', input_precision="ieee"' if each.a.dtype == torch.float32 else ""
        self.line(f"{held} = tl.dot({sides[0]}, tl.trans({sides[1]}), {held}{exact})")

    # -- shapes ----------------------------------------------------------------------------------

    def dimension(self, block: TileBlock) -> int:
        """Return the block's dimension in the tile."""
        spread = self.tile.spread
        return spread.index(block) if block in spread else len(spread)

    def positions(self, block: TileBlock) -> str:
        """Return 0 .. size-1 along the block's dimension; "" for a scalar."""
        if block.size == 1:
            return ""
        wide = ".to(tl.int64)" if self.tile.wide and block not in self.tile.outer else ""
        text = f"tl.arange(0, {block.size})"
        if self.tile.rank > 1:
            mine = self.dimension(block)
            spots = (":" if d == mine else "None" for d in range(self.tile.rank))
            text += f"[{', '.join(spots)}]"
        return text + wide

    def blocks_over(self, axes: Iterable[Axis]) -> set[TileBlock]:
        return {self._home[axis] for axis in axes if axis in self._home}

    def ordered(self, blocks: set[TileBlock]) -> list[TileBlock]:
        return [block for block in self.all_blocks if block in blocks]

    def masks(self, axes: Iterable[Axis]) -> list[str]:
        """Return the masks of the blocks over these axes, which say what is inside."""
        blocks = self.ordered(self.blocks_over(axes))
        return [self.scope.masks[block] for block in blocks if block in self.scope.masks]

    def shape(self, blocks: Iterable[TileBlock]) -> str:
        """Return the shape of a value that varies along these blocks; [] for a scalar."""
        sizes = {self.dimension(block): block.size for block in blocks if block.size > 1}
        if not sizes:
            return "[]"
        return f"[{', '.join(str(sizes.get(d, 1)) for d in range(self.tile.rank))}]"

    def spread(self, text: str, blocks: Iterable[TileBlock]) -> str:
        return spread(text, self.shape(blocks), self.position_dtype)

    def axes_of(self, node: Value) -> frozenset[Axis]:
        """Return the axes along which an expression varies."""
        match node:
            case Var():
                return self.axes.get(node, frozenset())
            case Load(index=(offset,), mask=mask):
                over = self.axes_in(offset)
                return over if mask is None else over | self.axes_of(mask)
            case IndexValue(expr):
                return self.axes_in(expr)
            case Inside(value, block):
                return self.axes_of(value) | frozenset(block.axes)
            case Fold(_, value, block):
                return self.axes_of(value) - frozenset(block.axes)
            case Result(total):
                return frozenset(total.tile)
        return frozenset().union(*map(self.axes_of, node.operands))

    def axes_in(self, expr: Expr) -> frozenset[Axis]:
        through = (leaf.var for leaf in leaves(expr) if isinstance(leaf, VarIndex))
        return axes_of(expr).union(*map(self.axes_of, through))

    # -- values ----------------------------------------------------------------------------------

    def value(self, node: Value) -> str:
        """Return the expression of a value."""
        match node:
            case Var(name):
                return name
            case Constant(value, dtype):
                return typed(value, dtype)
            case Load():
                return self.load(node)
            case Cast(value, dtype):
                return cast_text(self.value(value), value.dtype, dtype)
            case Compute(op, args, dtype):
                self.helpers.update(helpers_of(op, args[-1].dtype))
                return compute_text(op, self.operands(node), dtype, args[-1].dtype)
            case IndexValue(expr, dtype):
                text = self.index(expr)
                if text.lstrip("-").isdigit():
                    return typed(int(text), dtype)
                return cast_text(text, torch.int32, dtype)
            case Inside(value, block, fill, dtype):
                mask = self.scope.masks[block]
                return f"tl.where({mask}, {self.value(value)}, {typed(fill, dtype)})"
            case Result(total, dtype):
                if total.at is not None:
                    return f"{total.at.name}.to(tl.int64)"
                text, held = self.result(total), total.var.dtype
                return text if dtype == held else cast_text(self.name_of(text), held, dtype)
        raise TypeError(f"no Triton for {type(node).__name__}")

    def operands(self, node: Compute) -> list[str]:
        numbers = [isinstance(arg, Constant) for arg in node.args]
        chooses = SCALARS[node.op].conditional
        tensor = not all(numbers[1:] if chooses else numbers)
        # Triton gives a plain number the dtype of a tensor operand; without one it would be an
        # int32 or a float32.
        plain = (node.op in INFIX or chooses) and tensor
        write = literal if plain else typed
        return [
            write(arg.value, arg.dtype) if isinstance(arg, Constant) else self.value(arg)
            for arg in node.args
        ]

    def helper(self, name: str) -> str:
        self.helpers.add(name)
        return name

    # -- memory ----------------------------------------------------------------------------------

    def load(self, node: Load) -> str:
        (offset,), name = node.index, self.names[node.buffer]
        if node.buffer in self.by_value:
            if node.mask is None:
                return name
            return f"tl.where({self.value(node.mask)}, {name}, {_fill(node)})"
        axes, at = self.axes_in(offset), self.index(offset)
        masks = self.masks(axes)
        if node.mask is not None:
            masks.append(closed(self.value(node.mask)))
            # tl.load requires pointers of at least the shape of their mask.
            wide = self.shape(self.blocks_over(axes | self.axes_of(node.mask)))
            if wide != self.shape(self.blocks_over(axes)):
                at = spread(at, wide)
        pointer = name if at == "0" else f"{name} + {at}"
        if not masks:
            return f"tl.load({pointer})"
        return f"tl.load({pointer}, mask={' & '.join(masks)}, other={_fill(node)})"

    def store(self, store: Store) -> None:
        blocks = self.blocks_over(store.axes)
        name, offset = self.names[store.buffer], self.index(store.offset)
        value, masks = self.value(store.value), self.masks(store.axes)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if isinstance(store, Atomic):
            where = self.spread(offset, blocks) if self.shape(blocks) != "[]" else offset
            # The default, acq_rel, would add fences, which sums in no particular order do not need.
            self.line(f'tl.atomic_add({name} + {where}, {value}{mask}, sem="relaxed")')
            return
        pointer = name if offset == "0" else f"{name} + {offset}"
        self.line(f"tl.store({pointer}, {value}{mask})")

    def check(self, check: Check) -> None:
        """Check a run-time index, counted from the end if it is negative."""
        index, size, axes = check.index, self.size_text(check.extent), self.axes_of(check.index)
        name = f"{check.var.name}_raw"
        inside = f"({name} >= -{size}) & ({name} < {size})"
        outside = [f" | ~{mask}" for mask in self.masks(axes)]
        if check.mask is not None:
            outside.append(f" | ~{closed(self.value(check.mask))}")
        self.axes[check.var] = axes
        self.line(f"{name} = {self.value(index)}")
        self.line(f'tl.device_assert({inside}{"".join(outside)}, "index out of range")')
        self.line(f"{check.var.name} = tl.where({name} < 0, {name} + {size}, {name})")

    # -- indexes ---------------------------------------------------------------------------------

    def size_text(self, size: Dimension) -> str:
        """Return an extent or a stride, in parentheses if it is an expression."""
        return closed(self.index(size.expr)) if isinstance(size, Size) else str(size)

    def index(self, expr: Expr) -> str:
        """Return the expression in integer arithmetic; axes are variables of their own name."""
        constant, terms = linear(expr)
        parts = []
        for block, digits in self._positions.items():
            # Triton cannot see that the digits of a position add up to the position, and would load
            # elements one by one.
            factor = terms.get(AxisVar(block.axes[-1]), 0)
            if factor and all(terms.get(atom) == factor * n for atom, n in digits.items()):
                flat = self.scope.flat[block]
                parts.append(flat if factor == 1 else f"{flat} * {factor}")
                terms = {atom: n for atom, n in terms.items() if atom not in digits}
        return terms_text(parts, terms, constant, self.atom)

    def atom(self, expr: Expr) -> str:
        match expr:
            case AxisVar(axis):
                return axis.name
            case Symbol(name):
                return name
            case VarIndex(var):
                return var.name
            case Apply(op, args):
                return self.sized(op, args)
            case FloorDiv(a, b):
                return self.divided("//", a, str(b))
            case Mod(a, b):
                return self.divided("%", a, str(b))
            case Integer() | Add():
                return f"({self.index(expr)})"
        raise TypeError(f"not an index expression: {expr!r}")

    def divided(self, sign: str, a: Expr, divisor: str) -> str:
        """Return a division that rounds down, which Triton's operators do only for non-negative
        operands.
        """
        if is_never_negative(a):
            return f"({closed(self.index(a))} {sign} {divisor})"
        name = {"//": "floor_divide_integer", "%": "remainder_integer"}[sign]
        return f"{self.helper(name)}({self.index(a)}, {divisor})"

    def sized(self, op: str, args: Sequence[Expr]) -> str:
        """Return arithmetic over dynamic sizes."""
        if op in ("//", "%"):
            return self.divided(op, args[0], closed(self.index(args[1])))
        texts = [closed(self.index(part)) for part in args]
        return " * ".join(texts) if op == "*" else f"{_SIZE_OPS[op]}({', '.join(texts)})"


class _ProgramCounts:
    """Counts the programs per point of some blocks, as text: a product of block counts."""

    def __init__(self) -> None:
        self._known = 1
        self._texts: list[str] = []

    @property
    def is_one(self) -> bool:
        return self._known == 1 and not self._texts

    def take(self, block: TileBlock, extent: str) -> None:
        """Multiply by another block's count; `extent` is the text of its extent."""
        if isinstance(block.count, int):
            self._known *= block.count
        elif not block.single:
            self._texts.append(extent if block.size == 1 else f"tl.cdiv({extent}, {block.size})")

    @classmethod
    def of(cls, block: TileBlock, extent: str) -> _ProgramCounts:
        one = cls()
        one.take(block, extent)
        return one

    def __str__(self) -> str:
        known = [str(self._known)] if self._known != 1 or not self._texts else []
        text = " * ".join([*self._texts, *known])
        return f"({text})" if len(self._texts) + len(known) > 1 else text


def _position_of(block: TileBlock) -> Mapping[Expr, int]:
    """Return the terms of a point's row-major position."""
    position, below = Integer(0), Integer(1)  # type: Expr, Expr
    for axis in reversed(block.axes):
        position = add(position, product(AxisVar(axis), below))
        below = product(below, expr_of(axis.extent))
    return linear(position)[1]


def _fill(node: Load) -> str:
    """Return the value of a masked-off load."""
    # Triton reads a plain number as a float32, and casts no int to a float of eight bits.
    if isinstance(node.fill, int):
        is_small = node.dtype.is_floating_point and node.dtype.itemsize == 1
        return repr(float(node.fill) if is_small else node.fill)
    if node.dtype == torch.float64 and node.fill:
        return typed(node.fill, node.dtype)
    return plain_number(node.fill, torch.float64)
