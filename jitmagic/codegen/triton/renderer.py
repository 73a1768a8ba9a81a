"""Renders Triton: fused nests in, one Python module of @triton.jit functions out.

In: the nests of a schedule, its buffers, the target. Out: a KernelSource whose text imports only
triton. A kernel takes the pointers of its buffers, in the order of `Structure.arguments`, then the
dynamic sizes; all other sizes are constants in the text. It is launched on a one-dimensional grid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch

from ...budget import check
from ...devices import Target
from ...errors import ToolchainError
from ...loops.expr import coefficient, linear
from ...loops.ir import Buffer, Expr, Nest
from ...schedule.products import Product
from ...schedule.score import extent_of
from ...symbols.size import Size, expr_of, hint_of, may_assume
from ...symbols.symbolic_numbers import Symbol, symbols_of
from ..attention.kernel import AttentionKernel
from ..attention.kernel import Kernel as Rendered
from ..attention.tiles import attention_candidates
from ..attention.triton import attention_form, attention_printer
from ..config import TritonConfig
from ..kernel import Kernel
from ..linearize import linearize
from ..live_values import with_few_live_values
from ..loop_structure import Structure, by_value, offsets_in, structure
from ..plan import Config, KernelSource, LaunchGrid
from ..products.matrix_vector import is_matrix_vector, vector_candidates, vector_tile
from ..products.tensor_cores import dot_candidates, dot_product_in, dot_tile
from ..text import argument_names, comment_lines
from .candidates import tile_candidates
from .device_functions import HELPERS, called
from .loops import tile_kernel
from .ops import TL_DTYPES
from .printer import STYLE, TritonText
from .tile import Tile, choose_tile, with_row_loops

__all__ = ["TritonRenderer"]

_HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
_LOCAL = re.compile(  # variables of kernel_lines
    r"(([ij]\d+_?)+|[xyz]|r\d*)(_in|_at)?|(v|acc|at)\d+(_at|_lost|_raw)?|t\d+|k\d+(_at)?|pid|tl|triton|libdevice|float|range|_.*"
    r"|(sum|prod|max|min|argmax|argmin|any|all)\d+"
)
_WIDTH = 100
_MULTIPLE = 16  # Triton specialises on integer arguments that are multiples of it


class TritonRenderer:
    """Renders nests for CUDA devices."""

    language = "triton"

    def candidates(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Return neighbours of the tile that the heuristics choose."""
        if isinstance(nest, AttentionKernel):
            return attention_candidates(nest)
        kernel = _structure(nest, buffers, target)
        if (product := dot_product_in(kernel)) is not None:
            return dot_candidates(dot_tile(kernel, product, target, TritonConfig()))
        if is_matrix_vector(kernel):
            return vector_candidates(vector_tile(kernel, target, TritonConfig()))
        return tile_candidates(kernel, target)

    def kernel(
        self, nest: Rendered, buffers: Mapping[str, Buffer], target: Target, config: Config | None
    ) -> Kernel | None:
        """Return the kernel of a nest or of flex_attention over tiles."""
        if isinstance(nest, AttentionKernel):
            return attention_form(nest, config)[0]
        one = _structure(nest, buffers, target)
        return _kernel(one, *_tile(one, target, config), buffers)

    def render(
        self,
        nests: Sequence[Rendered],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """Write one function per nest."""
        symbols, grids, numbers, multiples, functions = {}, {}, {}, {}, []
        helpers: set[str] = set()
        for nest in nests:
            check()
            if isinstance(nest, AttentionKernel):
                printer = attention_printer(nest, configs.get(nest.name))
                functions.append(_text(printer, helpers))
                tile = printer.tile
                programs = (tile.programs, 1, 1)
                grids[nest.name] = LaunchGrid(programs, tile.warps, tile.stages, contracts=True)
                symbols[nest.name] = nest.dtypes
                if nest.by_value:
                    numbers[nest.name] = nest.by_value
                continue
            kernel = _structure(nest, buffers, target)
            overrides = configs.get(nest.name)
            text, grids[nest.name] = _function(kernel, buffers, target, overrides, helpers)
            functions.append(text)
            pointers = [buffers[name].dtype for name in kernel.arguments]
            symbols[nest.name] = (*pointers, *(torch.int64 for _ in kernel.symbols))
            sizes = range(len(pointers), len(symbols[nest.name]))
            if places := (*by_value(kernel, buffers), *sizes):
                numbers[nest.name] = places
            if whole := _multiples(kernel):
                multiples[nest.name] = tuple(sizes[kernel.symbols.index(s)] for s in whole)
        body = "\n\n\n".join(functions)
        parts = [_HEAD, *(f"{text}\n" for text in called(helpers)), body]
        text = "\n\n".join(parts) + "\n"
        return KernelSource(self.language, text, symbols, grids, numbers, multiples)


def _structure(nest: Nest, buffers: Mapping[str, Buffer], target: Target) -> Structure:
    return with_row_loops(structure(nest, buffers), target)


def _tile(kernel: Structure, target: Target, config: Config | None) -> tuple[Tile, Product | None]:
    """Return the tile of a program, and the product that tensor cores compute."""
    overrides = config if isinstance(config, TritonConfig) else TritonConfig()
    product = dot_product_in(kernel)
    if product is not None:
        return dot_tile(kernel, product, target, overrides), product
    chosen = vector_tile if is_matrix_vector(kernel) else choose_tile
    return chosen(kernel, target, overrides), None


def _kernel(
    one: Structure, tile: Tile, product: Product | None, buffers: Mapping[str, Buffer]
) -> Kernel:
    form = tile_kernel(one, tile, buffers, product)
    in_steps = partial(linearize, form, replace(STYLE, longest=1))
    return with_few_live_values(linearize(form, STYLE), in_steps)


def _function(
    kernel: Structure,
    buffers: Mapping[str, Buffer],
    target: Target,
    config: Config | None,
    helpers: set[str],
) -> tuple[str, LaunchGrid]:
    """Return the text of a function and its grid; the device functions that it calls are added to
    `helpers`.
    """
    for name in kernel.arguments:
        if buffers[name].dtype not in TL_DTYPES:
            raise ToolchainError(
                "triton", kernel.name, f"no Triton for {buffers[name].dtype} tensors"
            )
    tile, product = _tile(kernel, target, config)
    sizes = [symbol.name for symbol in kernel.symbols]
    names = argument_names(kernel.arguments, sizes, is_reserved)
    numbers = [kernel.arguments[place] for place in by_value(kernel, buffers)]
    printer = TritonText(_kernel(kernel, tile, product, buffers), tile, names, numbers)
    return _text(printer, helpers), LaunchGrid((tile.programs, 1, 1), tile.warps)


def _text(printer: TritonText, helpers: set[str]) -> str:
    """Return the text of a function; the device functions that it calls are added to `helpers`."""
    kernel = printer.kernel
    lines = [*comment_lines(kernel.origins, "#", _WIDTH), *printer.lines()]
    helpers |= printer.helpers
    arguments = [printer.names[param.name] for param in kernel.params]
    arguments += [symbol.name for symbol in kernel.sizes]
    head = f"@triton.jit\ndef {kernel.name}({', '.join(arguments)}):\n"
    return head + "\n".join(f"    {line}" for line in lines)


def _multiples(kernel: Structure) -> list[Symbol]:
    """Return the sizes that Triton may assume to be multiples of 16 (guarded)."""
    # Row starts and mask ends that are such multiples let Triton vectorise loads.
    if kernel.context is None:
        return []
    axes = {*kernel.outer, *(axis for part in kernel.passes for axis in part.axes)}
    offsets = offsets_in(kernel)
    steps = [step for axis in axes for offset in offsets if (step := coefficient(offset, axis))]
    inner = [part.axes for part in kernel.passes if part.axes]
    ends = [expr_of(extent_of(loop)) for loop in inner or [kernel.outer]]
    asked: dict[Symbol, None] = {}
    for expr in (*ends, *(step for step in steps if isinstance(step, Expr))):
        for atom, n in linear(expr)[1].items():
            asked.update(dict.fromkeys(symbols_of(atom) if n % _MULTIPLE else ()))
    sizes = {symbol: Size(symbol, kernel.context) for symbol in asked}
    return [
        symbol
        for symbol, size in sizes.items()
        if hint_of(size) % _MULTIPLE == 0 and may_assume("==", size % _MULTIPLE, 0)
    ]


def is_reserved(name: str) -> bool:
    """Return whether a name has a meaning in kernels."""
    return name in HELPERS or _LOCAL.fullmatch(name) is not None
