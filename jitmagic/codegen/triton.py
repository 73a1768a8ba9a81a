"""The Triton renderer: fused nests in, one Python module of @triton.jit functions out.

In: the nests of a schedule, its buffers, the target. Out: a KernelSource whose text runs with
nothing but triton imported. All sizes are constants in the text; a kernel takes the pointers of its
buffers, in the order of `structure.Structure.arguments`, and is launched on a grid of one
dimension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..errors import ToolchainError
from ..loops.ir import Buffer, Nest
from ..target import Target
from .config import TritonConfig
from .plan import Config, KernelSource, LaunchGrid
from .structure import Structure, by_value, structure
from .triton_kernel import kernel_lines
from .triton_ops import HELPERS, TL_DTYPES
from .triton_tile import choose_tile, tile_candidates

__all__ = ["TritonRenderer"]

_HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
_LOCAL = re.compile(  # what kernel_lines calls its variables
    r"(([ij]\d+_?)+|[xyz]|r\d*)(_in|_at)?|(v|acc|at|lost)\d+|k\d+(_at)?|pid|tl|triton|libdevice|float|range|_.*"
    r"|(sum|prod|max|min|argmax|argmin|any|all)\d+"
)
_WIDTH = 100


class TritonRenderer:
    """Renders nests for CUDA devices."""

    language = "triton"

    def candidates(
        self, nest: Nest, buffers: Mapping[str, Buffer], target: Target
    ) -> tuple[Config, ...]:
        """Neighbours of the tile that the heuristics choose."""
        return tile_candidates(structure(nest, buffers), target)

    def render(
        self,
        nests: Sequence[Nest],
        buffers: Mapping[str, Buffer],
        target: Target,
        configs: Mapping[str, Config] = MappingProxyType({}),
    ) -> KernelSource:
        """One function per nest."""
        symbols, grids, numbers, functions = {}, {}, {}, []
        for nest in nests:
            kernel = structure(nest, buffers)
            overrides = configs.get(nest.name)
            text, grids[nest.name] = _function(kernel, buffers, target, overrides)
            functions.append(text)
            symbols[nest.name] = tuple(buffers[name].dtype for name in kernel.arguments)
            if places := by_value(kernel, buffers):
                numbers[nest.name] = places
        body = "\n\n\n".join(functions)
        parts = [_HEAD, *_helpers(body), body]
        return KernelSource(self.language, "\n\n".join(parts) + "\n", symbols, grids, numbers)


def _helpers(body: str) -> list[str]:
    """The device functions that the kernels call."""
    return [f"{text}\n" for name, text in HELPERS.items() if re.search(rf"\b{name}\b", body)]


def _function(
    kernel: Structure, buffers: Mapping[str, Buffer], target: Target, config: Config | None
) -> tuple[str, LaunchGrid]:
    for name in kernel.arguments:
        if buffers[name].dtype not in TL_DTYPES:
            raise ToolchainError(
                "triton", kernel.name, f"no Triton for {buffers[name].dtype} tensors"
            )
    overrides = config if isinstance(config, TritonConfig) else TritonConfig()
    tile = choose_tile(kernel, target, overrides)
    names = _parameters(kernel.arguments)
    lines = [*_comment(kernel.origins), *kernel_lines(kernel, tile, names, buffers)]
    head = f"@triton.jit\ndef {kernel.name}({', '.join(names.values())}):\n"
    grid = LaunchGrid((tile.programs, 1, 1), tile.warps)
    return head + "\n".join(f"    {line}" for line in lines), grid


def _parameters(buffers: Sequence[str]) -> dict[str, str]:
    """A parameter for every buffer: its own name where no variable of the kernel has it."""
    names: dict[str, str] = {}
    for buffer in buffers:
        name = re.sub(r"\W", "_", buffer)
        if _LOCAL.fullmatch(name) or not name[0].isalpha() or name in HELPERS:
            name = f"p_{name}"
        while name in names.values():
            name += "_"
        names[buffer] = name
    return names


def _comment(origins: Sequence[str]) -> list[str]:
    """What the kernel computes, in the user's op names."""
    lines, line = [], "#"
    for number, origin in enumerate(origins):
        piece = f" {origin}" + ("," if number + 1 < len(origins) else "")
        if len(line) + len(piece) > _WIDTH:
            lines.append(line)
            line = "#  "
        line += piece
    return [*lines, line] if origins else []
