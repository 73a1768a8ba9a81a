"""Pads matrix products so that their rows are aligned for a GPU's tensor cores.

In: the unfused program. Out: the same values; a product with rows that do not begin at multiples of
16 bytes becomes one of larger matrices. Tensor cores are fed 16 bytes at a time; for unaligned rows
cuBLAS uses slower kernels, written for older GPUs. H200, bf16: 8192 x 768 @ 768 x 30522 (BERT's
vocabulary) 1.61 ms, x 30528 0.56 ms; 1024 x 512 @ 512 x 51865 (Whisper's, odd) 0.65 and 0.11 ms;
similarly in a backward. TF32: BERT's three vocabulary products take 9.2 ms of a training step's 56
ms.

Extra columns of the right operand give columns of the result that are not read; padding along the
summed dimension is 0. An operand is copied into padded memory if the product gains more than the
copy costs. A result that only nests and products access stays padded; any other is computed in
parts of its rows, and each part is copied into the result, so that little memory is allocated
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch

from ...devices import row_of
from ...late import late_names
from ...lazy_dataclass import dataclass, field, replace
from ...loops.ir import (
    Alias,
    Axis,
    AxisVar,
    Buffer,
    BufferRef,
    Compute,
    Constant,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
    Value,
    unused_name,
)
from ...loops.libraries import on_tensor_cores
from ...symbols.expr import Integer, add
from ...symbols.size import Size

if TYPE_CHECKING:
    from .padded_rows import Rows
else:
    late_names(globals(), {"schedule.libraries.padded_rows": "Rows"})

__all__ = ["with_aligned_rows"]

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1}  # position of the left operand
_ROW_BYTES = 16  # the required alignment of rows
# Multiply-adds that pay for copying one element (4 bytes at 4 TB/s), in general and for the slowest
# sizes (`_Sizes.odd`); and the elements that a GPU copies in the time of one kernel launch.
_WORTH, _WORTH_ODD, _LAUNCH = 256, 32, 4 << 20
# GPT-2 small, bf16 on an H200: inference went from 1.21 to 2.92 times eager's speed, AMP training
# from 1.34 to 2.46.
_PART_BYTES = 64 << 20  # of the padded rows that are allocated next to the result
_PART_ROWS = 256  # a part consists of whole tiles


def with_aligned_rows(program: LoopProgram) -> LoopProgram:
    """Pad the products of a program where it pays; see the module docstring."""
    if not row_of(program.device).has_tensor_cores:
        return program
    if not any(_is_product(step, program) for step in program.steps):
        return program
    return _Aligner(program).run()


def _is_product(step: Step, program: LoopProgram) -> bool:
    """Return whether a step multiplies two matrices on tensor cores, with at most a bias per
    column.
    """
    if not isinstance(step, Extern) or step.op not in _PRODUCTS or step.kwargs:
        return False
    if len(step.results) != 1 or step.results[0] is None:
        return False
    if any(len(program.buffers[b.name].shape) != 1 for b in step.args[: _PRODUCTS[step.op]]):
        return False
    named = [program.buffers[name] for name in _matrices(step)]
    return all(
        on_tensor_cores(b.dtype, "products")
        and b.device == program.device
        and not any(isinstance(size, Size) or size <= 1 for size in b.shape)
        for b in named
    )


def _matrices(step: Extern) -> tuple[str, str, str]:
    """Return the operands and the result of a product."""
    first = _PRODUCTS[step.op]
    return step.args[first].name, step.args[first + 1].name, str(step.results[0])


def _with_operands(step: Extern, left: str, right: str) -> Extern:
    first = _PRODUCTS[step.op]
    return replace(step, args=(*step.args[:first], BufferRef(left), BufferRef(right)))


def _takes_rows(step: Step, name: str) -> bool:
    """Return whether a step may read this matrix with padded rows: operands of products may be
    padded.
    """
    if not isinstance(step, Extern) or step.op not in _PRODUCTS or step.kwargs:
        return False
    *others, a, b = (step.results[0], *(part.name for part in step.args))
    return name in (a, b) and name not in others


def _row(buffer: Buffer) -> tuple[int, int] | None:
    """Return (length, stride) of the contiguous rows of a matrix; None if its elements overlap or
    are strided.
    """
    (m, n), (down, right) = buffer.shape, buffer.stride
    if right == 1 and down >= n:
        return n, down
    return (m, right) if down == 1 and right >= m else None


def _unit(dtype: torch.dtype) -> int:
    """Return how many elements of this dtype 16 bytes hold."""
    return _ROW_BYTES // dtype.itemsize


def _whole(size: int, dtype: torch.dtype) -> int:
    return -(-size // _unit(dtype)) * _unit(dtype)


def _enlarged(buffer: Buffer, shape: tuple[int, int], name: str) -> Buffer:
    """Return a temporary of the same dimension order, whose rows begin at multiples of 16 bytes."""
    down = buffer.stride[1] == 1 and buffer.stride[0] >= buffer.shape[1]
    dtype = buffer.dtype
    stride = (_whole(shape[1], dtype), 1) if down else (1, _whole(shape[0], dtype))
    return replace(buffer, name=name, shape=shape, stride=stride, role="temp")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Holds the sizes of a product, before and after padding."""

    m: int
    n: int
    k: int
    wide_m: int
    wide_n: int
    wide_k: int
    slow: int  # sizes that are no multiple of this are the slowest

    @property
    def odd(self) -> bool:
        """Return whether rows begin at arbitrary elements, the slowest case. For TF32 every
        unaligned size is as slow.
        """
        return any(
            size % self.slow and wide != size
            for size, wide in zip((self.m, self.n, self.k), self.wide, strict=True)
        )

    @property
    def wide(self) -> tuple[int, int, int]:
        return self.wide_m, self.wide_n, self.wide_k


def _sizes(a: Buffer, b: Buffer) -> _Sizes:
    """Return the sizes of a product."""
    # m is padded only if the left operand is contiguous along m, as only then its rows have length
    # m.
    (m, k), n = a.shape, b.shape[1]
    slow = 2 if a.dtype.itemsize == 2 else _unit(a.dtype)
    wide_m = _whole(m, a.dtype) if a.stride[0] == 1 else m
    return _Sizes(m, n, k, wide_m, _whole(n, a.dtype), _whole(k, a.dtype), slow)


@dataclass(slots=True)
class _Aligner:
    program: LoopProgram
    rows: Rows = field(init=False)
    steps: list[Step] = field(default_factory=list)
    copies: dict[tuple[object, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = Rows(self.program, _takes_rows)

    def run(self) -> LoopProgram:
        for step in self.program.steps:
            if _is_product(step, self.program):
                assert isinstance(step, Extern)
                self.product(step)
            else:
                self.steps.append(step)
        steps = tuple(self.rows.moved(self.steps))
        # `rows.moved` has changed the offsets of aliases into padded memory.
        return replace(self.program, buffers=self.rows.buffers, steps=steps)

    def product(self, step: Extern) -> None:
        a, b, _ = _matrices(step)
        sizes = _sizes(self.rows.buffers[a], self.rows.buffers[b])
        shapes = (sizes.wide_m, sizes.wide_k), (sizes.wide_k, sizes.wide_n)
        operands = list(zip((a, b), shapes, strict=True))
        if any(_row(self.rows.buffers[name]) is None for name in (a, b)):
            self.steps.append(step)
            return
        changed = [name for name, shape in operands if not self.is_fine(name, shape)]
        if not changed or not self.is_worth(step, changed, sizes):
            self.steps.append(step)
            return
        summed = sizes.wide_k != sizes.k
        left, right = (
            self.enlarged(name, shape, summed or name == a) if name in changed else name
            for name, shape in operands
        )
        new = _with_operands(self.with_bias(step, sizes), left, right)
        if (sizes.wide_m, sizes.wide_n) == (sizes.m, sizes.n):
            self.steps.append(new)
        else:
            self.write(new, step, sizes)

    def is_fine(self, name: str, shape: tuple[int, int]) -> bool:
        """Return whether an operand has this shape, and rows that begin at multiples of 16
        bytes.
        """
        buffer = self.rows.buffers[name]
        row = _row(buffer)
        return row is not None and buffer.shape == shape and row[1] % _unit(buffer.dtype) == 0

    def is_worth(self, step: Extern, changed: list[str], sizes: _Sizes) -> bool:
        """Return whether the product gains more than the copies of operands and result cost."""
        out = _matrices(step)[2]
        copied = [name for name in dict.fromkeys(changed) if self.key(name) not in self.copies]
        if (sizes.wide_m, sizes.wide_n) != (sizes.m, sizes.n) and not self.stays(out, step):
            copied.append(out)
        cost = sum(prod(self.rows.buffers[name].shape) + _LAUNCH for name in copied)
        worth = _WORTH_ODD if sizes.odd else _WORTH
        return sizes.m * sizes.n * sizes.k >= cost * worth

    def stays(self, out: str, maker: Step) -> bool:
        """Return whether the result may stay in padded memory."""
        return self.rows.may_be_longer(out, self.rows.buffers[out].shape[1], maker)

    # -- operands --------------------------------------------------------------------------------

    def key(self, name: str) -> tuple[object, ...] | None:
        """Return a key shared by a matrix and its transpose; None if the contents change."""
        if not self.rows.is_fixed(name):
            return None
        buffer = self.rows.buffers[name]
        return self.rows.owner[name], self.rows.start[name], _row(buffer), frozenset(buffer.shape)

    def enlarged(self, name: str, shape: tuple[int, int], zero: bool) -> str:
        """Copy an operand into one of this shape; `zero`: fill the padding with 0."""
        larger = _enlarged(self.rows.buffers[name], shape, self.new(f"{name}_rows"))
        key = self.key(name)
        known = None if key is None else self.copies.get((*key, frozenset(shape)))
        self.rows.buffers[larger.name] = larger
        if known is not None:  # the same matrix, or its transpose
            self.steps.append(Alias(larger.name, known, 0))
            return larger.name
        self.copy(name, larger, zero)
        if key is not None and zero:
            self.copies[key] = self.copies[*key, frozenset(shape)] = larger.name
        return larger.name

    def with_bias(self, step: Extern, sizes: _Sizes) -> Extern:
        """Return the product with a bias that covers the padding columns."""
        if step.op is not aten.addmm.default or sizes.wide_n == sizes.n:
            return step
        bias = self.rows.buffers[step.args[0].name]
        if bias.shape != (sizes.n,):  # one number for all columns
            return step
        name = self.new(f"{bias.name}_rows")
        larger = replace(bias, name=name, shape=(sizes.wide_n,), stride=(1,), role="temp")
        self.rows.buffers[name] = larger
        self.copy(bias.name, larger, False)
        return replace(step, args=(BufferRef(name), *step.args[1:]))

    def copy(self, name: str, target: Buffer, zero: bool) -> None:
        """Add a step that copies a buffer into a larger one."""
        sizes = self.rows.buffers[name].shape
        axes = _axes(f"{target.name}_of_{name}", target.shape if zero else sizes)
        point = tuple(AxisVar(axis) for axis in axes)
        mask: Value | None = None
        for axis, size in zip(axes, sizes, strict=True):
            if axis.extent > size:
                limit = Constant(size, torch.int64)
                inside = Compute("lt", (IndexValue(AxisVar(axis)), limit), torch.bool)
                mask = (
                    inside if mask is None else Compute("logical_and", (mask, inside), torch.bool)
                )
        source, index = self.rows.element_of_owner(name, point)
        value = Load(source, index, target.dtype, mask)
        self.steps.append(
            Nest(target.name, axes, (Store(target.name, (), point, value),), (target.name,))
        )

    def new(self, name: str) -> str:
        """Return a name that no buffer has."""
        return unused_name(name, self.rows.buffers)

    # -- results ---------------------------------------------------------------------------------

    def write(self, step: Extern, maker: Extern, sizes: _Sizes) -> None:
        """Add the padded product and the step that recovers its result. `maker`: the original
        product.
        """
        out = _matrices(step)[2]
        buffers = self.rows.buffers
        stride = (sizes.wide_n, 1)
        rows = replace(buffers[out], shape=(sizes.wide_m, sizes.wide_n), stride=stride, role="temp")
        if not self.stays(out, maker):
            self.in_parts(step, rows)
            return
        rows = replace(rows, name=self.new(f"{out}_rows"))
        buffers[rows.name] = rows
        self.rows.lengthen(out, sizes.n, sizes.wide_n)
        self.steps.append(replace(step, name=rows.name, results=(rows.name,)))
        self.steps.append(Alias(out, rows.name, 0))

    def in_parts(self, step: Extern, rows: Buffer) -> None:
        """Multiply some rows at a time, and copy each part into the result."""
        a, b, out = _matrices(step)
        total, columns = rows.shape
        count = _rows_of_a_part(rows)
        for begin in range(0, total, count):
            size = min(count, total - begin)
            part = replace(rows, name=self.new(f"{out}_rows"), shape=(size, columns))
            self.rows.buffers[part.name] = part
            left = a if size == total else self.some_rows(a, begin, size)
            new = _with_operands(step, left, b)
            self.steps.append(replace(new, name=part.name, results=(part.name,)))
            self.copy_part(part, self.rows.buffers[out], begin)

    def some_rows(self, name: str, begin: int, size: int) -> str:
        """Return a view of some rows of an operand."""
        buffer, part = self.rows.buffers[name], self.new(f"{name}_part")
        shape = (size, buffer.shape[1])
        self.rows.buffers[part] = replace(buffer, name=part, shape=shape, role="temp")
        self.steps.append(Alias(part, name, begin * buffer.stride[0]))
        return part

    def copy_part(self, part: Buffer, result: Buffer, begin: int) -> None:
        """Add a step that copies a part into the rows of a result from `begin` on."""
        size = min(part.shape[0], result.shape[0] - begin)
        axes = _axes(f"{part.name}_of", (size, result.shape[1]))
        row, column = (AxisVar(axis) for axis in axes)
        index = (add(row, Integer(begin)), column)
        store = Store(result.name, (), index, Load(part.name, (row, column), part.dtype))
        self.steps.append(Nest(f"{part.name}_copy", axes, (store,), (f"{part.name}_copy",)))


def _rows_of_a_part(buffer: Buffer) -> int:
    """Return the number of rows of a result that are multiplied at a time."""
    total = buffer.shape[0]
    parts = -(-total * buffer.stride[0] * buffer.dtype.itemsize // _PART_BYTES)
    if parts == 1:
        return total
    each = -(-total // parts)
    return -(-each // _PART_ROWS) * _PART_ROWS


def _axes(label: str, shape: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(Axis(f"{label}.{n}", size) for n, size in enumerate(shape))
