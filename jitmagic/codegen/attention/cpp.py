"""Writes the C++ kernel of flex_attention's forward as a call of the header's jm::attend.

In: an AttentionKernel. Out: the lines of one function: the program's functions as lambdas from a
vector of scores, its lanes consecutive keys, to the changed and masked scores.
"""

from __future__ import annotations

import math

import torch

from ...errors import CannotRender
from ...loops.ir import Load, Value, walk
from ...loops.values import where
from ...symbols.size import Dimension, is_same
from ..cpp_text import CTYPES, count_text
from ..cpp_values import CppBody
from .kernel import SCORE, AttentionKernel, structure_of

__all__ = ["attention_function", "is_written"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_written(kernel: AttentionKernel) -> bool:
    """Return whether there is a C++ form of the kernel: of forwards alone, since torch refuses
    gradients on the CPU.
    """
    if kernel.kind != "forward" or kernel.buffers["query"].dtype not in _DTYPES:
        return False
    if any(buffer.dtype not in CTYPES for buffer in kernel.buffers.values()):
        return False
    try:
        attention_function(kernel)
    except CannotRender:
        return False
    return True


def attention_function(kernel: AttentionKernel) -> list[str]:
    """Return the lines of the function."""
    functions = {"score": kernel.score}
    if kernel.keeps is not None:
        functions["masked"] = where(kernel.keeps, kernel.score, -math.inf)
    one = structure_of(kernel, *functions.values())
    body = CppBody(one, {name: name for name in kernel.buffers}, kernel.buffers)
    body.open(f'extern "C" int {kernel.name}(void* const* args) {{')
    for number, (name, buffer) in enumerate(kernel.buffers.items()):
        kind = f"{'const ' if name in kernel.read else ''}{CTYPES[buffer.dtype]}*"
        body.line(f"{kind} {name} = ({kind})args[{number}];")
    for number, symbol in enumerate(kernel.symbols):
        sizes = f"((const int64_t*)args[{len(kernel.buffers)}])"
        body.line(f"const int64_t {symbol.name} = {sizes}[{number}];")
    body.line("int bad = 0;  // set by a run-time index that is out of range")
    for name, value in functions.items():
        _write_function(body, kernel, name, value)
    _write_call(body, kernel, [*functions][-1])
    body.line("return bad;")
    body.close()
    return body.scopes[0].lines


def _write_function(body: CppBody, kernel: AttentionKernel, name: str, value: Value) -> None:
    body.set_lanes(kernel.axes[-1], None)
    axes = ", ".join(f"int64_t {axis.name}" for axis in kernel.axes)
    body.open(f"const auto {name} = [&](auto s, {axes}, int64_t n) JM_BODY {{", kernel.axes, "};")
    for load in walk((value,)):
        if isinstance(load, Load) and load.buffer == SCORE:
            body.define(load, "s", vector=True)
    body.line(f"return {body.use(value, as_vector=True)};")
    body.close()
    body.set_lanes(None, 1)


def _write_call(body: CppBody, kernel: AttentionKernel, masked: str) -> None:
    query, key, value = (kernel.buffers[name] for name in ("query", "key", "value"))
    batch, heads, queries, width = query.shape
    sizes: list[Dimension] = [batch, heads, key.shape[1], queries]
    sizes += [key.shape[2], width, value.shape[3]]
    shape = ", ".join([*map(count_text, sizes), f"{kernel.scale!r}f"])
    ctype = CTYPES[query.dtype]
    body.line(f"jm::attend<{ctype}>(")
    body.line(f"    {{{shape}}},")
    for role in ("query", "key", "value"):
        body.line(f"    {_rows(kernel, role, batch)},")
    body.line(f"    {_blocks(kernel)}, score, {masked}, {_rows(kernel, 'out', batch)},")
    body.line(f"    {_rows(kernel, 'lse', batch) if 'lse' in kernel.written else '{}'});")


def _rows(kernel: AttentionKernel, role: str, batch: Dimension) -> str:
    buffer = kernel.buffers[role]
    stride: list[Dimension] = [*buffer.stride]
    stride += [1] * (4 - len(stride))
    if not is_same(buffer.shape[0], batch):  # the batch shares one row of keys
        stride[0] = 0
    return f"{{{', '.join([role, *map(count_text, stride)])}}}"


def _blocks(kernel: AttentionKernel) -> str:
    if not kernel.has_blocks:
        return "{}"
    lists = [_list(kernel, "")]
    if kernel.has_full_blocks:
        lists.append(_list(kernel, "full_"))
    return f"{{{', '.join([*map(str, kernel.block_size), *lists])}}}"


def _list(kernel: AttentionKernel, prefix: str) -> str:
    """Return the addresses and strides of a list of blocks, which batch and heads may share."""
    names = [f"{prefix}kv_num_blocks", f"{prefix}kv_indices"]
    steps: list[Dimension] = []
    for name in names:
        buffer = kernel.buffers[name]
        for size, step in zip(buffer.shape[:2], buffer.stride[:2], strict=True):
            steps.append(0 if is_same(size, 1) else step)
        steps += buffer.stride[2:]
    return f"{{{', '.join([*names, *map(count_text, steps)])}}}"
