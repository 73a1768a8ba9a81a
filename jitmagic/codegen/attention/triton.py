"""Writes the Triton kernels of flex_attention, which never hold the whole score matrix.

In: an AttentionKernel, a config. Out: the text of one function and its grid. The method is that of
FlashAttention-2 (Dao 2023): a program owns a tile of queries and visits the keys tile by tile with
an online softmax, in base 2 with sums in float32. The gradients compute the probabilities again
from the logsumexp; one kernel owns queries and sums the query's gradient, another owns keys and
sums those of key and value. With a block mask a program visits only the blocks in its list, and
evaluates the mask only in those that are not full.

Tiles are two-dimensional: what the program owns is dimension 0, what it visits is dimension 1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch

from ...errors import CannotRender
from ...lazy_dataclass import replace
from ...loops.ir import Axis, Expr, Load, Value, walk
from ...symbols.size import Dimension, Size, is_same
from ...symbols.symbolic_numbers import Symbol
from ..config import AttentionConfig
from ..kernel import (
    For,
    Function,
    Kernel,
    Let,
    Open,
    Param,
    Program,
    Return,
    Statement,
    TileBlock,
    Var,
)
from ..linearize import linearize
from ..plan import Config, LaunchGrid
from ..triton.ops import TL_DTYPES
from ..triton.printer import STYLE, TritonText
from ..triton.tile import Tile
from .kernel import SCORE, TANGENT, AttentionKernel
from .tiles import AttentionTile, is_wide, power, tile_of

__all__ = ["attention_text", "is_written"]

_FAR_ROWS = 1 << 23  # positions in a tile of at most 128 such rows fit into 32 bits
_LOG2E = 1.4426950408889634
_LOWEST = 'float("-inf")'


def attention_text(
    kernel: AttentionKernel, config: Config | None, helpers: set[str]
) -> tuple[str, LaunchGrid]:
    """Return the function of a kernel, and its grid; the device functions that it calls are added
    to `helpers`.
    """
    tile = tile_of(kernel, config if isinstance(config, AttentionConfig) else AttentionConfig())
    writer = _Writer(kernel, tile)
    lines = writer.lines()
    helpers |= writer.helpers
    names = [*kernel.read, *kernel.written, *(symbol.name for symbol in kernel.symbols)]
    head = f"@triton.jit\ndef {kernel.name}({', '.join(names)}):\n"
    tiles = -(-tile.own.extent // tile.own.size)
    batch, heads = kernel.extents[0], writer.heads
    grid = LaunchGrid((tiles * batch * heads, 1, 1), tile.warps, tile.stages, contracts=True)
    return head + "\n".join(f"    {line}" for line in lines), grid


def is_written(kernel: AttentionKernel) -> bool:
    """Return whether Triton has a form of all operations and dtypes of a kernel."""
    if any(buffer.dtype not in TL_DTYPES for buffer in kernel.buffers.values()):
        return False
    rows = [kernel.buffers[role].stride[2] for role in ("query", "key", "value")]
    if any(not isinstance(step, Size) and step >= _FAR_ROWS for step in rows):
        return False
    try:
        _Writer(kernel, tile_of(kernel, AttentionConfig())).lines()
    except CannotRender:
        return False
    return True


# -- text ------------------------------------------------------------------------------------------


class _Writer(TritonText):
    """Writes one kernel. Variables: `start_i` and `start_j` are the first positions of a tile, `i`
    and `j` its positions, `i_in` and `j_in` whether they are inside.
    """

    def __init__(self, kernel: AttentionKernel, tile: AttentionTile) -> None:
        b, h, _, _ = kernel.axes
        single = [TileBlock(axis.name, (axis,), n, 1) for axis, n in zip((b, h), kernel.extents)]  # noqa: B905
        params = tuple(
            Param(name, buffer.dtype, name in kernel.written, is_constant=True)
            for name, buffer in kernel.buffers.items()
        )
        numbers = [role for role in kernel.buffers if kernel.is_number(role)]
        super().__init__(
            Kernel(kernel.name, params, kernel.symbols, ()),
            Tile(
                (*single, tile.own), {tile.visited.axes: tile.visited}, tile.warps, is_wide(kernel)
            ),
            {name: name for name in kernel.buffers},
            numbers,
        )
        self.attention, self.own, self.visited = kernel, tile.own, tile.visited
        self.outer = (*single, tile.own)
        query, key = kernel.buffers["query"], kernel.buffers["key"]
        self.heads = (key if kernel.kind == "keys" else query).shape[1]
        self.is_grouped = not is_same(query.shape[1], key.shape[1])
        scale = kernel.scale
        # Without a function the scale is part of the exponent's factor, which saves a product.
        self.is_folded = kernel.is_plain and scale > 0
        self.unit = scale if self.is_folded else 1.0
        self._new = count()
        self._is_wide = False
        self._functions: dict[str, tuple[Statement, ...]] = {}

    def lines(self) -> list[str]:
        """Return the body of the function, not indented."""
        self._open_program()
        {"forward": self._forward, "query": self._query, "keys": self._keys}[self.attention.kind]()
        return self.lines_

    # -- functions of scores ---------------------------------------------------------------------

    def _prepare(self, is_masked: bool) -> tuple[Statement, ...]:
        """Place the values of the functions that a loop over tiles calls: write those that are the
        same for all visited tiles, and return those of one tile.
        """
        kernel = self.attention
        given = {SCORE: "s", TANGENT: "g"}
        wanted = {} if kernel.is_plain else {"score": kernel.score}
        if is_masked and kernel.keeps is not None:
            wanted["keeps"] = kernel.keeps
        if kernel.kind != "forward" and not isinstance(kernel.gradient, Load):
            wanted["gradient"] = kernel.gradient
        made: list[Statement] = []
        for name, value in wanted.items():
            loads = [n for n in walk((value,)) if isinstance(n, Load) and n.buffer in given]
            variables = {load: Var(given[load.buffer], load.dtype) for load in loads}
            self.axes |= dict.fromkeys(variables.values(), self._all_axes)
            lets = [Let(load, var) for load, var in variables.items()]
            made.append(Function(name, None, (), self.visited.axes[0], (*lets, Return(value))))
        start = Axis("step", 1)
        step = For((start,), (Open(self.visited), *made))
        body = (Program(self.outer), step)
        placed = linearize(replace(self.kernel, body=body), STYLE, self._new_name)
        *before, loop = placed.body[1:]
        self.block(before)
        assert isinstance(loop, For)
        inside = loop.body[1:]
        self._functions = {f.name: f.body for f in inside if isinstance(f, Function)}
        return tuple(each for each in inside if not isinstance(each, Function))

    def _new_name(self, prefix: str) -> str:
        return f"{prefix}{next(self._new)}"

    @property
    def _all_axes(self) -> frozenset[Axis]:
        return frozenset((*self.own.axes, *self.visited.axes))

    def _call(self, name: str, write: Callable[[Value], str] | None = None) -> str:
        """Write a function's values, and return its result, one for each score."""
        *body, result = self._functions[name]
        assert isinstance(result, Return)
        self.block(body)
        if self.blocks_over(self.axes_of(result.value)) >= {self.own, self.visited}:
            return (write or self.value)(result.value)
        text = self.value(result.value)
        return f"tl.broadcast_to({text}, [{self.own.size}, {self.visited.size}])"

    # -- positions -------------------------------------------------------------------------------

    def _open_program(self) -> None:
        for symbol in self.attention.symbols:
            self.line(
                f"{symbol.name}_wide, {symbol.name} = {symbol.name}, {symbol.name}.to(tl.int32)"
            )
        own, wide = self.own, ".to(tl.int64)" if self.tile.wide else ""
        tiles, heads = self._tiles(own), self.size_text(self.heads)
        self.line("pid = tl.program_id(0)")
        self.line(f"part = pid // {tiles}")
        self.line(f"b = (part // {heads}){wide}")
        self.line(f"head = (part % {heads}){wide}")
        # Under a causal mask the last queries see most keys: long programs start first.
        turn = f"{tiles} - 1 - " if own.name == "i" else ""
        self.line(f"start_{own.name} = ({turn}pid % {tiles}) * {own.size}")
        if self.attention.kind != "keys":
            self.line("h = head")
            self.line("key_head = head" + (f" // {self._groups()}" if self.is_grouped else ""))
        else:
            self.line("key_head = head")
            if not self.is_grouped:
                self.line("h = head")
        self._open_side(own)

    def _tiles(self, block: TileBlock) -> str:
        """Return the number of tiles."""
        if isinstance(block.extent, Size):
            return f"tl.cdiv({self.size_text(block.extent)}, {block.size})"
        return str(block.count)

    def _wide(self, size: Dimension) -> str:
        """Return a stride in 64 bits: products of dynamic sizes may need them."""
        self._is_wide = True
        text = self.size_text(size)
        self._is_wide = False
        return text

    def atom(self, expr: Expr) -> str:
        text = super().atom(expr)
        return f"{text}_wide" if self._is_wide and isinstance(expr, Symbol) else text

    def _groups(self) -> str:
        query, key = (self.attention.buffers[name].shape[1] for name in ("query", "key"))
        return f"({self.size_text(query)} // {self.size_text(key)})"

    def _open_side(self, block: TileBlock) -> None:
        """Define the positions of a tile, from its first one."""
        name, wide = block.name, ".to(tl.int64)" if self.tile.wide else ""
        self.line(f"{name} = start_{name}{wide} + {self._range(block)}")
        if self._is_ragged(block):
            self.line(f"{name}_in = {name} < {self.size_text(block.extent)}")
            self.scope.masks[block] = f"{name}_in"
        self.scope.flat[block] = name

    def _range(self, block: TileBlock, dimension: int | None = None) -> str:
        at = self.dimension(block) if dimension is None else dimension
        return f"tl.arange(0, {block.size})[{', '.join((':', 'None')[d != at] for d in (0, 1))}]"

    def _is_ragged(self, block: TileBlock) -> bool:
        """Return whether a tile may have positions outside; blocks of a mask may lie beyond."""
        size = block.size
        if self.attention.has_blocks:
            size = self.attention.block_size["ij".index(block.name)]
        return not is_same(block.extent % size, 0)

    # -- memory ----------------------------------------------------------------------------------

    def _begin(self, role: str, head: str) -> None:
        """Define the address of the rows of a head."""
        self.line(f"{role}_at = {self._rows(role, head)}")

    def _rows(self, role: str, head: str) -> str:
        batch, heads = map(self._wide, self.attention.buffers[role].stride[:2])
        return f"{role} + b.to(tl.int64) * {batch} + {head}.to(tl.int64) * {heads}"

    def _tile(self, role: str, block: TileBlock, dimension: int) -> tuple[str, str]:
        """Return the addresses of a tile of rows and its mask; rows are that dimension."""
        buffer = self.attention.buffers[role]
        step, inner = (self.size_text(n) for n in buffer.stride[2:])
        width, size = int(buffer.shape[3]), power(int(buffer.shape[3]))
        across = "[None, :]" if dimension == 0 else "[:, None]"
        columns = f"tl.arange(0, {size}){across}"
        start, far = f"start_{block.name}", self._wide(buffer.stride[2])
        at = f"{role}_at + {start}.to(tl.int64) * {far} + {self._range(block, dimension)} * {step}"
        at += f" + {columns}" + ("" if inner == "1" else f" * {inner}")
        masks = []
        if self._is_ragged(block):
            inside = f"{start} + {self._range(block, dimension)} < {self.size_text(block.extent)}"
            masks.append(f"({inside})")
        if width < size:
            masks.append(f"({columns} < {width})")
        return at, " & ".join(masks)

    def _read(self, name: str, place: tuple[str, str]) -> None:
        """Load from addresses; what is masked is 0."""
        at, mask = place
        self.line(f"{name} = tl.load({at}" + (f", mask={mask}, other=0.0)" if mask else ")"))

    def _write(self, place: tuple[str, str], text: str) -> None:
        at, mask = place
        self.line(f"tl.store({at}, {text}" + (f", mask={mask})" if mask else ")"))

    def _write_tile(self, role: str, text: str) -> None:
        """Store a tile of what the program owns; `text` has its own brackets."""
        dtype = TL_DTYPES[self.attention.buffers[role].dtype]
        self._begin(role, "h" if self.own.name == "i" else "key_head")
        self._write(self._tile(role, self.own, 0), f"{text}.to({dtype})")

    def _row(self, role: str) -> tuple[str, str]:
        """Return the addresses of one number for each query of the tile, and their mask."""
        at = f"{self._rows(role, 'h')} + i * {self._wide(self.attention.buffers[role].stride[2])}"
        block = self.own if self.own.name == "i" else self.visited
        return at, "i_in" if self._is_ragged(block) else ""

    # -- visiting --------------------------------------------------------------------------------

    def _visit(self, step: Callable[[bool], None]) -> None:
        """Write the loops over the visited tiles. `step` writes one, masked or not."""
        name, size = self.visited.name, self.visited.size
        if not self.attention.has_blocks:
            head = f"for step in tl.range(0, {self._tiles(self.visited)}):"
            first = f"start_{name} = step * {size}"
            self._loop(head, first, step, is_masked=self.attention.keeps is not None)
            return
        for prefix in ("", "full_") if self.attention.has_full_blocks else ("",):
            self._visit_blocks(prefix, step)

    def _loop(
        self, head: str, first: str, step: Callable[[bool], None], *, is_masked: bool
    ) -> None:
        placed = self._prepare(is_masked)
        self.line(head)
        outside, self.scope = self.scope, self.scope.inside()
        self.indent += 1
        self.line(first)
        self._open_side(self.visited)
        self.block(placed)
        step(is_masked)
        self.indent -= 1
        self.scope = outside

    def _visit_blocks(self, prefix: str, step: Callable[[bool], None]) -> None:
        side = "q" if self.visited.name == "i" else "kv"
        own, whole = ("ij".index(block.name) for block in (self.own, self.visited))
        sizes = self.attention.block_size
        row = f"start_{self.own.name} // {sizes[own]}"
        parts = sizes[whole] // self.visited.size
        counted = self._listed(f"{prefix}{side}_num_blocks", row)
        self.line(f"{prefix}count = tl.load({counted})" + (f" * {parts}" if parts > 1 else ""))
        self.line(f"{prefix}list = {self._listed(f'{prefix}{side}_indices', row)}")
        entry, inner = "step", ""
        if parts > 1:
            entry, inner = f"step // {parts}", f" + (step % {parts}) * {self.visited.size}"
        at = f"tl.load({prefix}list + {entry})"
        first = f"start_{self.visited.name} = {at} * {sizes[whole]}{inner}"
        self._loop(f"for step in tl.range(0, {prefix}count):", first, step, is_masked=not prefix)

    def _listed(self, role: str, row: str) -> str:
        """Return the address of an entry of a block mask, whose batch and head may be shared."""
        buffer = self.attention.buffers[role]
        terms = [role]
        for axis, size, extent, stride in zip(
            ("b", "h"), buffer.shape, self.attention.extents, buffer.stride, strict=False
        ):
            if not is_same(size, 1):
                text = axis if is_same(size, extent) else f"({axis} % {self.size_text(size)})"
                terms.append(f"{text} * {self.size_text(stride)}")
        return " + ".join([*terms, f"({row}) * {self.size_text(buffer.stride[2])}"])

    # -- scores ----------------------------------------------------------------------------------

    def _dot(self, a: str, b: str, total: str = "") -> str:
        # Without it float32 products would be rounded to TF32.
        exact = self.attention.buffers["query"].dtype is torch.float32
        more = ([total] if total else []) + (['input_precision="ieee"'] if exact else [])
        return f"tl.dot({', '.join([a, b, *more])})"

    def _scores(self, product: str, is_masked: bool) -> str:
        """Write the scores `s` and the changed ones `t`; return whether each counts, or ""."""
        self.line(f"s = {product}" + ("" if self.is_folded else f" * {self.attention.scale!r}"))
        changed = "s" if self.attention.is_plain else self._call("score")
        keeps = self.attention.keeps
        masks = [m for block in (self.own, self.visited) if (m := self._guard(block))]
        if is_masked and keeps is not None:
            masks.append(self._call("keeps", self.closed))
        kept = " & ".join(masks)
        kept = self.name_of(kept) if masks and not kept.isidentifier() else kept
        self.line(f"t = tl.where({kept}, {changed}, {_LOWEST})" if kept else f"t = {changed}")
        return kept

    def _guard(self, block: TileBlock) -> str:
        """Return the mask of positions that must not count: rows of queries in a forward are just
        not stored.
        """
        stored = block.name == "i" and self.attention.kind != "keys"
        return "" if stored or not self._is_ragged(block) else f"{block.name}_in"

    # -- kernels ---------------------------------------------------------------------------------

    def _forward(self) -> None:
        width = power(int(self.attention.buffers["value"].shape[3]))
        self._addresses("query", "key", "value")
        self._read("q", self._tile("query", self.own, 0))
        size = self.own.size
        self.line(f"largest = tl.full([{size}, 1], {_LOWEST}, tl.float32)")
        self.line(f"total = tl.zeros([{size}, 1], tl.float32)")
        self.line(f"acc = tl.zeros([{size}, {width}], tl.float32)")
        self._visit(self._forward_step)
        self.line("nothing = total == 0")
        self.line("total = tl.where(nothing, 1.0, total)")
        self._write_tile("out", "(acc / total)")
        if "lse" in self.attention.written:
            # Scores of masked rows are all minus infinity, and so is the log of their sum.
            text = f"tl.where(nothing, {_LOWEST}, largest * {self.unit!r} + libdevice.log(total))"
            self._write(self._row("lse"), text)

    def _addresses(self, *roles: str) -> None:
        for role in roles:
            self._begin(role, "key_head" if role in ("key", "value") else "h")

    def _forward_step(self, is_masked: bool) -> None:
        self._read("k", self._tile("key", self.visited, 1))
        self._scores(self._dot("q", "k"), is_masked)
        factor = self.unit * _LOG2E
        self.line("larger = tl.maximum(largest, tl.max(t, 1, keep_dims=True))")
        # Of a row without scores so far the largest is minus infinity, less which it is not 0.
        self.line(f"shift = tl.where(larger == {_LOWEST}, 0.0, larger) * {factor!r}")
        self.line(f"p = tl.exp2(tl.fma(t, {factor!r}, -shift))")
        self.line(f"fading = tl.exp2(largest * {factor!r} - shift)")
        self.line("total = total * fading + tl.sum(p, 1, keep_dims=True)")
        self._read("v", self._tile("value", self.visited, 0))
        self.line(f"acc = {self._dot('p.to(v.dtype)', 'v', 'acc * fading')}")
        self.line("largest = larger")

    def _probabilities(self) -> None:
        """Compute the probabilities again from the logsumexp."""
        self.line(f"p = tl.exp2(tl.fma(t, {self.unit * _LOG2E!r}, -shift))")

    def _shift(self) -> None:
        self._read("shift", self._row("lse"))
        self.line(f"shift = tl.where(shift == {_LOWEST}, 0.0, shift) * {_LOG2E!r}")
        self._read("d", self._row("delta"))

    def _score_gradient(self, kept: str) -> None:
        """Write the gradient of the scores before the function as `g`."""
        self.line("g = p * (dp - d)")
        gradient = self.attention.gradient
        if isinstance(gradient, Load):
            return
        self.line(f"g = {self._call('gradient')}")
        if kept:
            self.line(f"g = tl.where({kept}, g, 0.0)")

    def _query(self) -> None:
        width = power(int(self.attention.buffers["query"].shape[3]))
        self._addresses("query", "key", "value", "grad")
        self._read("q", self._tile("query", self.own, 0))
        self._read("do", self._tile("grad", self.own, 0))
        self._shift()
        self.line(f"acc = tl.zeros([{self.own.size}, {width}], tl.float32)")
        self._visit(self._query_step)
        self._write_tile("query_grad", f"(acc * {self.attention.scale!r})")

    def _query_step(self, is_masked: bool) -> None:
        self._read("k", self._tile("key", self.visited, 1))
        kept = self._scores(self._dot("q", "k"), is_masked)
        self._probabilities()
        self._read("v", self._tile("value", self.visited, 1))
        self.line(f"dp = {self._dot('do', 'v')}")
        self._score_gradient(kept)
        self.line(f"acc = {self._dot('g.to(k.dtype)', 'tl.trans(k)', 'acc')}")

    def _keys(self) -> None:
        widths = [power(int(self.attention.buffers[n].shape[3])) for n in ("key", "value")]
        self._addresses("key", "value")
        self._read("k", self._tile("key", self.own, 0))
        self._read("v", self._tile("value", self.own, 0))
        for name, width in zip(("dk", "dv"), widths, strict=True):
            self.line(f"{name} = tl.zeros([{self.own.size}, {width}], tl.float32)")
        if self.is_grouped:
            groups = self._groups()
            self.line(f"for group in range(0, {groups}):")
            self.indent += 1
            self.line(f"h = head * {groups} + group")
        self._addresses("query", "grad")
        self._visit(self._keys_step)
        if self.is_grouped:
            self.indent -= 1
        self._write_tile("key_grad", f"(dk * {self.attention.scale!r})")
        self._write_tile("value_grad", "dv")

    def _keys_step(self, is_masked: bool) -> None:
        self._read("q", self._tile("query", self.visited, 1))
        self._shift()
        kept = self._scores(self._dot("k", "q"), is_masked)
        self._probabilities()
        self._read("do", self._tile("grad", self.visited, 0))
        self.line(f"dv = {self._dot('p.to(do.dtype)', 'do', 'dv')}")
        self.line(f"dp = {self._dot('v', 'tl.trans(do)')}")
        self._score_gradient(kept)
        self.line(f"dk = {self._dot('g.to(q.dtype)', 'tl.trans(q)', 'dk')}")
