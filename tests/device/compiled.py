"""From a function and CUDA tensors to a loaded executable, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitmagic.codegen import render
from jitmagic.devices import find_target
from jitmagic.loops.interp import run
from jitmagic.loops.ir import LoopProgram
from jitmagic.loops.lower import lower
from jitmagic.options import make_options
from jitmagic.runtime.load import Loaded, load
from jitmagic.schedule import schedule
from tests.codegen import accuracy
from tests.loops.recording import record

__all__ = ["check", "clone", "compare", "executable", "lowered"]

GPU = torch.device("cuda", 0)


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, strides and storage offset in memory of its own."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    fresh = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    fresh.copy_(tensor.detach().as_strided((size,), (1,), 0))
    return fresh.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def executable(program: LoopProgram, device: torch.device = GPU, **options: Any) -> Loaded:
    chosen = make_options(**options)
    target = find_target(device, chosen)
    assert target.tier == "triton", target.why
    return load(*render(schedule(program, target, chosen), target), target, chosen)


def lowered(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[LoopProgram, list[Any]]:
    graph, expected = record(fn, *[clone(x) for x in inputs])
    return lower(graph, "test"), expected


def check(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Loaded:
    """Errors against float64 are at most twice eager's plus a few roundings; the rest is exact."""
    program, expected = lowered(fn, *inputs)
    loaded = executable(program, inputs[0].device, **options)
    ours, wide = [clone(x) for x in inputs], [clone(x) for x in inputs]
    mutated = [clone(x) for x in inputs]
    got = loaded.run(*ours)
    exact = run(program, wide, "float64")
    with torch.no_grad():
        fn(*mutated)
    compare([*got, *ours], [*expected, *mutated], [*exact, *wide])
    return loaded


def compare(got: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any]) -> None:
    for number, (a, b, c) in enumerate(zip(got, eager, exact, strict=True)):
        accuracy.compare(a, b, c, f"result {number}", strides=accuracy.steps)
