"""Makes the CPU kernel of flex_attention's forward: a call of the header's jm::attend.

In: an AttentionKernel. Out: a Kernel in the loop form: the program's functions, from a vector of
scores, its lanes consecutive keys, to the changed and masked scores, and the call.
"""

from __future__ import annotations

import math

import torch

from ...errors import CannotRender
from ...loops.expr import Integer
from ...loops.ir import Compute, Load, Value, walk
from ...loops.values import where
from ...operators.scalar import SCALARS, line_of
from ...symbols.size import Dimension, is_same
from ..cpp.text import CTYPES
from ..kernel import (
    NATIVE,
    Argument,
    Call,
    Function,
    Group,
    Kernel,
    Let,
    Param,
    Pointer,
    Return,
    Var,
)
from .kernel import SCORE, AttentionKernel

__all__ = ["attention_call", "is_written"]

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
        for node in walk(_functions(kernel).values()):
            if isinstance(node, Compute) and SCALARS[node.op].texts is not None:
                line_of(node.op, "cpp")
    except CannotRender:
        return False
    return True


def _functions(kernel: AttentionKernel) -> dict[str, Value]:
    """Return the functions of scores: the changed score, and the masked one."""
    functions = {"score": kernel.score}
    if kernel.keeps is not None:
        functions["masked"] = where(kernel.keeps, kernel.score, -math.inf)
    return functions


def attention_call(kernel: AttentionKernel) -> Kernel:
    """Return the kernel."""
    params = tuple(
        Param(name, buffer.dtype, name in kernel.written, is_constant=name in kernel.read)
        for name, buffer in kernel.buffers.items()
    )
    functions = _functions(kernel)
    made = [_function(kernel, name, value) for name, value in functions.items()]
    call = _call(kernel, [*functions][-1])
    return Kernel(kernel.name, params, kernel.symbols, (*made, call))


def _function(kernel: AttentionKernel, name: str, value: Value) -> Function:
    given = Var("s", value.dtype, NATIVE)
    loads = [load for load in walk((value,)) if isinstance(load, Load) and load.buffer == SCORE]
    body = (*(Let(load, given) for load in loads), Return(value))
    return Function(name, given, kernel.axes, kernel.axes[-1], body)


def _call(kernel: AttentionKernel, masked: str) -> Call:
    query, key, value = (kernel.buffers[name] for name in ("query", "key", "value"))
    batch, heads, queries, width = query.shape
    sizes: tuple[Argument, ...] = (batch, heads, key.shape[1], queries)
    sizes += (key.shape[2], width, value.shape[3], float(kernel.scale))
    rows = [_rows(kernel, role, batch) for role in ("query", "key", "value")]
    out = _rows(kernel, "out", batch)
    lse = _rows(kernel, "lse", batch) if "lse" in kernel.written else Group(())
    args: tuple[Argument, ...] = (Group(sizes), *rows, _blocks(kernel), "score", masked, out, lse)
    return Call("attend", args, "attention", (CTYPES[query.dtype],))


def _rows(kernel: AttentionKernel, role: str, batch: Dimension) -> Group:
    buffer = kernel.buffers[role]
    stride: list[Dimension] = [*buffer.stride]
    stride += [1] * (4 - len(stride))
    if not is_same(buffer.shape[0], batch):  # the batch shares one row of keys
        stride[0] = 0
    return Group((Pointer(role, Integer(0)), *stride))


def _blocks(kernel: AttentionKernel) -> Group:
    if not kernel.has_blocks:
        return Group(())
    lists = [_list(kernel, "")]
    if kernel.has_full_blocks:
        lists.append(_list(kernel, "full_"))
    return Group((*kernel.block_size, *lists))


def _list(kernel: AttentionKernel, prefix: str) -> Group:
    """Return the addresses and strides of a list of blocks, which batch and heads may share."""
    names = [f"{prefix}kv_num_blocks", f"{prefix}kv_indices"]
    steps: list[Dimension] = []
    for name in names:
        buffer = kernel.buffers[name]
        for size, step in zip(buffer.shape[:2], buffer.stride[:2], strict=True):
            steps.append(0 if is_same(size, 1) else step)
        steps += buffer.stride[2:]
    return Group((*(Pointer(name, Integer(0)) for name in names), *steps))
