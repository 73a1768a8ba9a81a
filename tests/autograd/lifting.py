"""Torch-level graphs for tests, and what jitmagic.autograd makes of them compared with eager."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from jitmagic.autograd.autograd_function import fx_executable, make_callable
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.spec import spec_of


class _Recording(TorchFunctionMode):
    """Runs a program on real tensors and writes down its torch calls, as the tracer would."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes = {id(x): self.graph.placeholder(f"input_{i}") for i, x in enumerate(inputs)}
        self.alive: list[Any] = list(inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled:
            self.graph.call_function(func, args)
            return func(*args)
        known = fx.node.map_aggregate((args, kwargs), self.node)
        made = func(*args, **kwargs)
        held = [x for x in (made if isinstance(made, (tuple, list)) else (made,))]
        if any(isinstance(x, torch.Tensor) for x in held) or func is torch.Tensor.__setitem__:
            node = self.graph.call_function(func, *known)
            self.alive.append(made)
            if isinstance(made, torch.Tensor):
                self.nodes[id(made)] = node
            elif made is not None:
                for i, x in enumerate(held):
                    self.nodes[id(x)] = self.graph.call_function(operator.getitem, (node, i))
        return made

    def node(self, value: Any) -> Any:
        return self.nodes[id(value)] if isinstance(value, torch.Tensor) else value


def lift(
    program: Callable[..., Any], args: tuple[torch.Tensor, ...]
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """(torch-level graph with a flat tuple output, its inputs: args, parameters, buffers)."""
    copied, copies = copy.deepcopy((program, args))
    state = torch.get_rng_state()
    recording = _Recording(leaves(copied, copies))
    with recording:
        out = copied(*copies)
    torch.set_rng_state(state)
    flat = list(out) if isinstance(out, (tuple, list)) else [out]
    recording.graph.output(tuple(recording.node(value) for value in flat))
    return fx.GraphModule(torch.nn.Module(), recording.graph), leaves(program, args)


def compile_like(
    program: Callable[..., Any], args: tuple[torch.Tensor, ...]
) -> tuple[Callable[..., tuple[Any, ...]], list[torch.Tensor], Any]:
    """(compiled callable, its inputs, its Partition): every stage of this package, ATen kernels."""
    gm, inputs = lift(program, args)
    parts = partition(trace_joint(gm, [spec_of(tensor) for tensor in inputs]))
    return make_callable(parts, fx_executable(parts.forward), source=gm), inputs, parts


def check(
    program: Callable[..., Any], *args: torch.Tensor, seed: int = 0, fp64: bool = True
) -> Any:
    """Outputs, gradients, written inputs like eager's, as close to fp64. Returns the Partition."""
    ours, theirs = copy.deepcopy((program, args)), copy.deepcopy((program, args))
    exact = _doubled(*copy.deepcopy((program, args))) if fp64 else None
    call, inputs, parts = compile_like(*ours)
    torch.manual_seed(seed)
    out = call(*inputs)
    expected = _run(*theirs, seed)
    wide = _run(*exact, seed) if exact else [None] * len(expected)
    assert len(out) == len(expected)
    for a, e, w in zip(out, expected, wide):
        assert (a.shape, a.dtype, a.requires_grad) == (e.shape, e.dtype, e.requires_grad)
        assert a.numel() == 0 or _steps(a) == _steps(e)
        close(a, e, w)
    backward(out)
    backward(expected)
    if exact:
        backward(wide)
    wide_leaves = leaves(*exact) if exact else [None] * len(leaves(*theirs))
    for a, e, w in zip(leaves(*ours), leaves(*theirs), wide_leaves):
        close(a.detach(), e.detach(), None if w is None else w.detach())
        assert (a.grad is None) == (e.grad is None)
        if a.grad is not None:
            close(a.grad, e.grad, None if w is None else w.grad)
    return parts


def _steps(x: torch.Tensor) -> list[int]:
    """Strides that mean something."""
    return [stride for stride, extent in zip(x.stride(), x.shape) if extent > 1]


def close(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> None:
    """Equal to eager within rounding, and at most twice as far from fp64."""
    if not eager.dtype.is_floating_point:
        assert torch.equal(ours, eager)
        return
    unit = torch.finfo(eager.dtype).eps * max(
        1.0, eager.detach().abs().max().item() if eager.numel() else 0
    )
    torch.testing.assert_close(ours, eager, rtol=32 * unit, atol=32 * unit, equal_nan=True)
    if exact is not None and eager.numel() and eager.isfinite().all():
        error = (ours.double() - exact).abs().max()
        assert error <= 2 * (eager.double() - exact).abs().max() + 4 * unit


def backward(outputs: Any) -> None:
    """One backward through all differentiable outputs with fixed, uneven tangents."""
    total: Any = 0
    for i, out in enumerate(outputs):
        if out.requires_grad:
            weights = torch.linspace(0.5, 1.5, max(out.numel(), 1), dtype=torch.float64)[
                : out.numel()
            ]
            total = total + (out * weights.view(out.shape).to(out.dtype)).sum() * (i + 1)
    if isinstance(total, torch.Tensor):
        total.backward()


def leaves(program: Any, args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Everything a program can write to or give a gradient to."""
    if isinstance(program, torch.nn.Module):
        return [*args, *program.parameters(), *program.buffers()]
    return list(args)


def _run(program: Any, args: Any, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    out = program(*args)
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _doubled(program: Any, args: Any) -> Any:
    if isinstance(program, torch.nn.Module):
        program = program.double()
    made = []
    for a in args:
        wide = a.detach().double() if a.dtype.is_floating_point else a
        made.append(wide.requires_grad_(a.requires_grad))
    return program, tuple(made)
