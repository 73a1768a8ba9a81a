"""Renders numba: fused nests in, one Python module of scalar loops out.

In: the nests of a schedule, the buffers. Out: KernelSource of language "numba"; every kernel has
the ABI of the C++ tier, `int (void* const* args)`, and returns 1 when a run-time index was out of
range. runtime/numba_kernels.py supplies the globals of the text. Vectorising is left to LLVM; sums
and products of float32 accumulate in float64, and sums of float64 are compensated (TwoSum), so that
long sums are as exact as short ones. Dynamic sizes are one more argument, an array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from ..errors import ToolchainError
from ..loops.expr import AxisVar, Expr, Integer, add
from ..loops.ir import Buffer, Nest, Reduction
from ..loops.values import identity
from ..operators.scalar import REDUCTIONS
from ..symbols.polynomial import product
from ..symbols.size import expr_of
from ..target import Target
from .loop_structure import Pass, Structure, passes_in, structure
from .numba_ops import HALVES, HELPERS, TYPES, compute_text, helpers_of, literal
from .numba_values import NumbaBody
from .plan import Config, KernelSource
from .scoped_text import argument_names

__all__ = ["NumbaRenderer"]

_HEAD = """\
import math

import numpy as np
from numba import {types}
"""
_LOCAL = re.compile(  # variables of the kernels, and the module's globals
    r"[vaijrxyz]\d.*|acc.*|at\d+|args|bad|math|np|kernel|inline|pointer|bits|real|fma|False|True|None"
    r"|abs|range|int|and|or|not|if|else|for|in|is|def|return|lambda|while|del|pass|from|import|as"
    r"|with|try|class|global|assert|break|continue|elif|except|finally|raise|yield|async|await|max"
)


class NumbaRenderer:
    """Renders nests for a CPU without a C++ compiler; stateless."""

    language = "numba"

    def candidates(
        self, nest: Nest, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return no candidates: a scalar loop on one thread has no variants."""
        return ()

    def render(
        self,
        nests: Sequence[Nest],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Return the text of all kernels, and the argument dtypes of each."""
        symbols, functions = {}, []
        for nest in nests:
            kernel = structure(nest, buffers)
            functions.append("\n".join(_Kernel(kernel, buffers).function()))
            dtypes = tuple(buffers[name].dtype for name in kernel.arguments)
            # Dynamic sizes are one more argument: compiling for each size took 0.25 to 1.7 s.
            symbols[kernel.name] = (*dtypes, torch.int64) if kernel.symbols else dtypes
        kernels = "\n\n\n".join(functions)
        body = "\n\n\n".join([*helpers_of(kernels), kernels])
        names = sorted({name for name in TYPES.values() if re.search(rf"\b{name}\b", body)})
        head = _HEAD.format(types=", ".join(names))
        return KernelSource(self.language, f"{head}\n\n{body}\n", symbols)


class _Kernel:
    """Writes one function."""

    def __init__(self, kernel: Structure, buffers: Mapping[str, Buffer]) -> None:
        self.kernel, self.buffers = kernel, buffers
        sizes = {symbol.name for symbol in kernel.symbols}
        self.names = argument_names(kernel.arguments, sizes, _is_reserved)
        self.body = NumbaBody(kernel, self.names, buffers)

    def function(self) -> list[str]:
        """Return the whole function, below a comment with the operators it computes."""
        body = self.body
        body.open(f"def {self.kernel.name}(args):")
        for number, name in enumerate(self.kernel.arguments):
            memory = _memory_type(self.buffers[name].dtype, self.kernel.name)
            body.line(f"{self.names[name]} = pointer(args[{number}], {memory})")
        for number, symbol in enumerate(self.kernel.symbols):
            sizes = f"pointer(args[{len(self.kernel.arguments)}], int64)"
            body.line(f"{symbol.name} = {sizes}[{number}]")
        body.line("bad = 0")
        body.loops(self.kernel.outer)
        for pass_ in self.kernel.passes:
            self._pass(pass_)
        body.close_all(self.kernel.outer)
        body.line("return bad")
        body.close()
        return [f"# {', '.join(self.kernel.origins)}", "@kernel", *body.scopes[0].lines]

    def _pass(self, pass_: Pass) -> None:
        totals = [_Accumulator(node, self.body.name("acc")) for node in pass_.reductions]
        for total in totals:
            self.body.lines(total.declare())
        self.body.loops(pass_.axes)
        for nested in passes_in(
            self.body.bound, (), pass_.roots, self.kernel.free, ready=self.body.ready()
        ):
            self._pass(nested)
        for total in totals:
            value = self.body.name_of(total.node.value)
            self.body.lines(total.update(value, self._position(total)))
        texts = [self.body.store(store) for store in pass_.stores]
        self.body.lines(texts)
        self.body.close_all(pass_.axes)
        for total in totals:
            self.body.assign(total.node, total.result())

    def _position(self, total: _Accumulator) -> str:
        """Return the row-major position of the point among the reduction's axes."""
        if not total.positional:
            return ""
        position: Expr = Integer(0)
        for axis in total.node.axes:
            position = add(product(position, expr_of(axis.extent)), AxisVar(axis))
        return self.body.index(position)


class _Accumulator:
    """Writes one reduction's accumulator."""

    def __init__(self, node: Reduction, name: str) -> None:
        self.node, self.name = node, name
        self.dtype = node.value.dtype
        self.positional = node.op in ("argmax", "argmin")
        # Eager sums floats in cascade; a single float32 accumulator would err by the length of the
        # sum.
        wide = node.op in ("sum", "prod") and self.dtype.is_floating_point
        self.accumulated_as = torch.float64 if wide else self.dtype
        self.compensated = node.op == "sum" and self.dtype == torch.float64
        self.boolean = self.dtype == torch.bool or node.op in ("any", "all")

    def declare(self) -> list[str]:
        """Return the initialisation of the accumulator."""
        start = literal(identity(self.node.op, self.dtype), self.accumulated_as)
        lines = [f"{self.name} = {start}"]
        if self.compensated:
            return [*lines, f"{self.name}_lost = {start}"]
        return [*lines, f"{self.name}_at = int64(-1)"] if self.positional else lines

    def update(self, value: str, position: str) -> list[str]:
        """Accumulate one value; NaN wins in max and min, the first of equals in argmax and
        argmin.
        """
        acc, op = self.name, self.node.op
        if self.positional:
            sign = ">" if op == "argmax" else "<"
            nan = f" or ({value} != {value} and {acc} == {acc})"
            more = nan if self.dtype.is_floating_point else ""
            return [
                f"if {acc}_at < 0 or {value} {sign} {acc}{more}:",
                f"    {acc} = {value}",
                f"    {acc}_at = {position}",
            ]
        if self.boolean:
            both = identity(op, torch.bool)
            return [f"{acc} = {acc} {'and' if both else 'or'} {value}"]
        if self.compensated:
            return [
                f"{acc}_new = {acc} + {value}",
                f"{acc}_taken = {acc}_new - {acc}",
                f"{acc}_lost += ({acc} - ({acc}_new - {acc}_taken)) + ({value} - {acc}_taken)",
                f"{acc} = {acc}_new",
            ]
        if op in ("sum", "prod"):
            sign = "+" if op == "sum" else "*"
            return [f"{acc} = {TYPES[self.accumulated_as]}({acc} {sign} {value})"]
        text = compute_text(REDUCTIONS[op], [value, acc], torch.bool, self.dtype)
        return [f"{acc} = {text}"]

    def result(self) -> str:
        """Return the reduction's value."""
        if self.positional:
            return f"{self.name}_at"
        if self.compensated:  # the error term is NaN if the sum is infinite
            whole = f"({self.name} + {self.name}_lost)"
            return f"({whole} if math.isfinite({self.name}) else {self.name})"
        if self.dtype in HALVES:
            return f"round_{HALVES[self.dtype]}(float32({self.name}))"
        return (
            self.name if self.accumulated_as == self.dtype else f"{TYPES[self.dtype]}({self.name})"
        )


def _memory_type(dtype: torch.dtype, kernel: str) -> str:
    """Return the type of an element in memory."""
    if dtype not in TYPES:
        raise ToolchainError("numba", kernel, f"no numba for {dtype} tensors")
    if dtype in HALVES:
        return "uint16"
    return "uint8" if dtype == torch.bool else TYPES[dtype]


def _is_reserved(name: str) -> bool:
    """Return whether a name has a meaning in kernels."""
    if name in HELPERS or name in TYPES.values() or name in ("uint16", "uint32"):
        return True
    return _LOCAL.fullmatch(name) is not None
