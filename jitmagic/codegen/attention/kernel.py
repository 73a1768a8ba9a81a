"""Describes the kernels of flex_attention's operators, for any renderer.

In: an Extern step that calls one of the operators (graph/targets/attention_operators.py), and the
buffers. Out: an AttentionKernel: its arguments by role, and the functions of the program as values
of the loop IR over the axes b, h, i, j (batch, head, query, key). A renderer puts them into a loop
over tiles of queries and keys that never holds the whole score matrix. None for a call that is not
rendered: it stays a call of the operator.

A function comes as a program of scalars (autograd/functions_of_calls.py); every intermediate result
is replaced by its value. Sums and differences of axes become index expressions, which are computed
in 32 bits: 64-bit integers in the inner loop are slow on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...errors import CompileFailed
from ...lazy_dataclass import dataclass, replace
from ...loops.expr import add, axes_of, bounds, mul, position
from ...loops.ir import (
    Axis,
    AxisVar,
    Buffer,
    BufferRef,
    Cast,
    Compute,
    Constant,
    Expr,
    Extern,
    IndexValue,
    Integer,
    Load,
    LoopProgram,
    Nest,
    Value,
    ValueIndex,
    walk,
)
from ...loops.values import cast, constant, opmath
from ...schedule.substitution import Rebuilder
from ...symbols.expr import Leaf, rebuild
from ...symbols.size import Dimension, Size, is_same, may_assume
from ...symbols.symbolic_numbers import Symbol, symbols_of

__all__ = [
    "MOST_POSITIONS", "SCORE", "TANGENT", "AttentionKernel", "Kernel", "attention_kernel",
]  # fmt: skip

SCORE, TANGENT = "score", "tangent"  # loads of these are values of the kernel, not of memory
_KINDS = {
    "jitmagic.flex_attention.default": "forward",
    "jitmagic.flex_attention_query_gradient.default": "query",
    "jitmagic.flex_attention_key_gradients.default": "keys",
    "jitmagic.flex_attention_bias_gradient.default": "bias",
}
_RESULTS = {
    "forward": ("out", "lse"),
    "query": ("query_grad",),
    "keys": ("key_grad", "value_grad"),
    "bias": ("bias_grad",),
}
# The side whose blocks a program visits; that of a bias visits none.
_SIDES = {"forward": "kv", "query": "kv", "keys": "q", "bias": ""}
_BLOCKS = ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
MOST_POSITIONS = 1 << 30  # of queries and keys, which are computed in 32 bits


@dataclass(frozen=True)
class AttentionKernel:
    """Holds one kernel. `kind`: "forward", "query", "keys" or "bias" (gradients). `read` and
    `written` map parameters to buffers, in the order of the arguments; `buffers` describes the
    parameters.
    `score`: the changed score; `keeps`: whether it counts, None if all do; `gradient`: that of the
    score before the change. `is_plain`: no function changes the score.
    """

    name: str
    kind: str
    scale: float
    block_size: tuple[int, int]
    blocks: int
    read: Mapping[str, str]
    written: Mapping[str, str]
    buffers: Mapping[str, Buffer]
    score: Value
    keeps: Value | None
    gradient: Value
    axes: tuple[Axis, ...]
    extents: tuple[Dimension, ...]
    symbols: tuple[Symbol, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The buffers that a launch takes, those written last."""
        return (*self.read.values(), *self.written.values())

    @property
    def by_value(self) -> tuple[int, ...]:
        """The positions of arguments that are no pointers: CPU scalars and sizes."""
        device = self.buffers["query"].device
        buffers = [self.buffers[role] for role in (*self.read, *self.written)]
        numbers = [n for n, buffer in enumerate(buffers) if buffer.device != device]
        return (*numbers, *range(len(buffers), len(buffers) + len(self.symbols)))

    def is_number(self, role: str) -> bool:
        """Return whether an argument is a CPU scalar, which is passed by value."""
        return self.buffers[role].device != self.buffers["query"].device

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes of the arguments."""
        roles = (*self.read, *self.written)
        return (*(self.buffers[role].dtype for role in roles), *(torch.int64 for _ in self.symbols))

    @property
    def key(self) -> object:
        """A key that kernels with equal text share."""
        facts = tuple(
            (name, b.shape, b.stride, b.dtype, b.device) for name, b in self.buffers.items()
        )
        values = self.score, self.keeps, self.gradient
        return self.kind, values, self.scale, self.blocks, self.block_size, facts

    @property
    def is_plain(self) -> bool:
        return isinstance(self.score, Load) and self.score.buffer == SCORE

    @property
    def reads_pairs(self) -> bool:
        """Return whether the functions read a tensor by query and key, as they do for a bias."""
        values = (self.score, self.gradient, *([] if self.keeps is None else [self.keeps]))
        loads = [node for node in walk(values) if isinstance(node, Load)]
        pair = {*self.axes[2:]}
        return any(
            load.buffer not in (SCORE, TANGENT)
            and pair <= frozenset[Axis]().union(*map(axes_of, load.index))
            for load in loads
        )

    @property
    def has_blocks(self) -> bool:
        return self.blocks > 0

    @property
    def has_full_blocks(self) -> bool:
        return self.blocks > len(_BLOCKS)


Kernel = Nest | AttentionKernel
"""A renderer writes a function for each of these."""


def attention_kernel(step: Extern, buffers: Mapping[str, Buffer]) -> AttentionKernel | None:
    """Return the kernel of a call; None if a function has no form as values."""
    kind = _KINDS.get(str(step.op))
    if kind is None or not step.functions:
        return None
    *tensors, blocks, captured, block_size, scale, _ = step.args
    if kind == "bias" and blocks:  # its programs visit no lists of blocks
        return None
    roles = ["query", "key", "value"]
    roles = roles if kind == "forward" else ["grad", "lse", "delta", *roles]
    read = {role: ref.name for role, ref in zip(roles, tensors, strict=True)}
    read |= _block_arguments(kind, blocks)
    taken = {f"captured{n}": ref.name for n, ref in enumerate(captured)}
    results = zip(_RESULTS[kind], step.results, strict=True)
    written = {role: name for role, name in results if name is not None}
    if (kind == "keys" and len(written) < 2) or (kind == "forward" and "out" not in written):
        return None
    query, key = buffers[read["query"]], buffers[read["key"]]
    extents = (*query.shape[:3], key.shape[2])
    if not all(map(_is_near, extents)):
        return None
    axes = tuple(_axis(name, size) for name, size in zip("bhij", extents, strict=True))
    captured_buffers = {role: buffers[name] for role, name in taken.items()}
    inlining = Inlining(opmath(query.dtype), captured_buffers, axes, extents)
    score, keeps = step.functions
    try:
        changed, gradient = inlining.values(score)
        kept = None if keeps is None else cast(inlining.values(keeps)[0], torch.bool)
    except CompileFailed:
        return None
    read |= {role: name for role, name in taken.items() if role in inlining.used}
    named = {role: replace(buffers[name], name=role) for role, name in {**read, **written}.items()}
    symbols = _symbols(named.values())
    return AttentionKernel(
        step.name, kind, scale, tuple(block_size), len(blocks), read, written, named,
        changed, kept, gradient, axes, extents, symbols,
    )  # fmt: skip


def _block_arguments(kind: str, blocks: Sequence[BufferRef]) -> dict[str, str]:
    """Return the block tensors that a kernel reads, by parameter."""
    names = [*_BLOCKS, *(f"full_{name}" for name in _BLOCKS)]
    pairs = zip(names, blocks, strict=False)
    side = _SIDES[kind]
    return {name: ref.name for name, ref in pairs if name.removeprefix("full_").startswith(side)}


def _is_near(size: Dimension) -> bool:
    most = MOST_POSITIONS
    return may_assume("<", size, most) if isinstance(size, Size) else size < most


def _axis(name: str, size: Dimension) -> Axis:
    return Axis(name, MOST_POSITIONS if isinstance(size, Size) else max(size, 1))


def _symbols(buffers: object) -> tuple[Symbol, ...]:
    sizes = [size for b in buffers for size in (*b.shape, *b.stride)]  # type: ignore[attr-defined]
    found = {symbol for size in sizes if isinstance(size, Size) for symbol in symbols_of(size.expr)}
    return tuple(sorted(found, key=lambda symbol: (len(symbol.name), symbol.name)))


# -- functions as values ---------------------------------------------------------------------------


class Inlining:
    """Makes values of the functions of one call. `used`: the parameters that they read."""

    def __init__(
        self,
        dtype: torch.dtype,
        captured: Mapping[str, Buffer],
        axes: Sequence[Axis],
        extents: Sequence[Dimension],
    ) -> None:
        self.dtype, self.captured, self.axes = dtype, captured, tuple(axes)
        self.extents = dict(zip(axes, extents, strict=True))
        self.used: set[str] = set()
        b, h, i, j = map(AxisVar, axes)
        everywhere = (add(add(b, h), add(i, j)),)  # these vary along all axes
        self.given: dict[str, Value] = {
            name: Load(name, everywhere, dtype) for name in (SCORE, TANGENT)
        }
        names = zip(("batch", "head", "query", "key"), (b, h, i, j), strict=True)
        self.given |= {name: IndexValue(axis, torch.int64) for name, axis in names}

    def values(self, function: LoopProgram | None) -> tuple[Value, Value]:
        """Return the result of a function, and the gradient of the score; None changes nothing."""
        unchanged = self.given[SCORE], self.given[TANGENT]
        if function is None:
            return unchanged
        change = _Folding(self, function)
        result, *gradient = [change.of_buffer(str(name)) for name in function.outputs]
        if gradient:
            return result, gradient[0]
        return unchanged if result is unchanged[0] else (result, constant(0.0, self.dtype))


class _Folding(Rebuilder):
    """Replaces intermediate results by their values, axes by index values, and arithmetic of index
    values by index expressions.
    """

    def __init__(self, inlining: Inlining, program: LoopProgram) -> None:
        self._inlining, self._program = inlining, program
        self._values = dict(inlining.given)
        nests = [step for step in program.steps if isinstance(step, Nest)]
        if len(nests) < len(program.steps):
            raise CompileFailed("a function of flex_attention needs a call of ATen")
        axes = [axis for nest in nests for axis in nest.outer]
        stores = [store for nest in nests for store in nest.stores]
        if any(axis.extent != 1 for axis in axes) or any(
            s.inner or s.mode != "set" for s in stores
        ):
            raise CompileFailed("a function of flex_attention computes whole tensors")
        here = dict.fromkeys(axes, Integer(0))
        super().__init__(here, on_load=self._loaded, on_expr=self._in_range)
        for store in stores:
            self._values[store.buffer] = self.value(store.value)

    def of_buffer(self, name: str) -> Value:
        """Return the value of a buffer that has one element."""
        if name not in self._values:
            raise CompileFailed(f"a function of flex_attention returns {name}")
        return self._values[name]

    def _loaded(self, load: Load) -> Value:
        name = load.buffer
        if name in self._program.constants:
            tensor = self._program.constants[name]
            if tensor.numel() != 1:
                raise CompileFailed("a function of flex_attention reads a constant tensor")
            return constant(tensor.item(), load.dtype)
        if name not in self._inlining.captured:
            return self.of_buffer(name)
        self._inlining.used.add(name)
        flat = position(load.index, self._inlining.captured[name].stride)
        return Load(name, (flat,), load.dtype, load.mask, load.fill)

    def _in_range(self, expr: Expr) -> Expr:
        """Replace run-time indexes that are known to be in range."""
        return rebuild(expr, self._known_leaf)

    def _known_leaf(self, leaf: Leaf) -> Expr:
        if not isinstance(leaf, ValueIndex) or not isinstance(leaf.value, IndexValue):
            return leaf
        expr, extent = leaf.value.expr, leaf.extent
        if isinstance(expr, AxisVar) and is_same(self._inlining.extents[expr.axis], extent):
            return expr
        low, high = bounds(expr)
        return expr if low >= 0 and not isinstance(extent, Size) and high < extent else leaf

    def _remake(self, node: Value) -> Value:
        made = super()._remake(node)
        match made:
            case Cast(value=IndexValue(expr=expr), dtype=torch.int32 | torch.int64 as dtype):
                return IndexValue(expr, dtype)
            case Compute(op="add" | "sub" | "mul" | "neg" as op, args=args):
                folded = _folded(op, [_expression(arg) for arg in args])
                return made if folded is None else IndexValue(folded, made.dtype)
        return made


def _expression(value: Value) -> Expr | None:
    """Return an integer value as an index expression."""
    if value.dtype not in (torch.int32, torch.int64):
        return None
    if isinstance(value, Constant):
        return Integer(int(value.value))
    return value.expr if isinstance(value, IndexValue) else None


def _folded(op: str, args: Sequence[Expr | None]) -> Expr | None:
    """Return the result as an index expression if it fits into 32 bits."""
    known: list[Expr] = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    match op, known:
        case "neg", [a]:
            made = mul(a, -1)
        case "add", [a, b]:
            made = add(a, b)
        case "sub", [a, b]:
            made = add(a, mul(b, -1))
        case "mul", [Integer(factor), a] | [a, Integer(factor)]:
            made = mul(a, factor)
        case _:
            return None
    return made if all(-(2**31) <= end < 2**31 for end in bounds(made)) else None
