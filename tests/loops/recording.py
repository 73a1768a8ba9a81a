"""Runs a function on real tensors and records its ATen ops as an fx graph with specs.

Decompositions of the product are applied before lowering, as in a compile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jitmagic.autograd.decompose import TABLE
from jitmagic.autograd.recording.recorder import Recorder
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, LoopProgram, Nest
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.spec import spec_of

__all__ = ["check", "clone", "externs", "nests", "record", "same_bits"]


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: torch.fx.Graph, root: torch.nn.Module) -> None:
        super().__init__()
        self.graph, self.root = graph, root
        self.nodes: dict[int, torch.fx.Node] = {}
        self.kept: list[torch.Tensor] = []

    def name(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)
        node.meta["spec"] = spec_of(tensor)

    def of(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if id(part) not in self.nodes:
                attribute = f"constant{len(self.kept)}"
                self.root.register_buffer(attribute, part)
                self.name(part, self.graph.get_attr(attribute))
            return self.nodes[id(part)]
        if isinstance(part, (tuple, list)):
            return type(part)(self.of(inner) for inner in part)
        if isinstance(part, dict):
            return {key: self.of(inner) for key, inner in part.items()}
        return part

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = self.of(args), self.of(kwargs)
        result = func(*args, **kwargs)
        node = self.graph.call_function(func, *given)
        if isinstance(result, torch.Tensor):
            self.name(result, node)
        elif isinstance(result, (tuple, list)):
            for n, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    self.name(part, self.graph.call_function(operator.getitem, (node, n)))
        return result


def record(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Return the graph of fn's ATen ops on these inputs (not copied), and fn's results."""
    graph, root = torch.fx.Graph(), torch.nn.Module()
    recorder = _Recorder(graph, root)
    for n, tensor in enumerate(inputs):
        node = graph.placeholder(f"x{n}")
        recorder.name(tensor, node)
    with recorder, torch.no_grad():
        results = fn(*inputs)
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    graph.output(tuple(recorder.of(part) for part in flat))
    for node in list(graph.nodes):
        if node.target in TABLE:
            _decompose(node)
    graph.eliminate_dead_code(
        lambda node: node.op in ("placeholder", "output") or "copy_" in str(node.target)
    )
    return torch.fx.GraphModule(root, graph), flat


def _decompose(node: torch.fx.Node) -> None:
    """Replace the node by its decomposition; one whose rule declines stays."""
    recorder = Recorder(TABLE)
    syms = {arg: recorder.placeholder(arg.name, arg.meta["spec"]) for arg in node.all_input_nodes}
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), syms.__getitem__)
    made = recorder.emit(node.target, *args, **kwargs)
    if any(new.target is node.target for new in recorder.graph.nodes):
        return
    copies = {sym.node: arg for arg, sym in syms.items()}
    with node.graph.inserting_before(node):
        for new in recorder.graph.nodes:
            if new not in copies:
                copies[new] = node.graph.node_copy(new, copies.__getitem__)
    if not isinstance(made, (tuple, list)):
        node.replace_all_uses_with(copies[made.node])
        return
    for part in list(node.users):
        part.replace_all_uses_with(copies[made[part.args[1]].node])


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in memory of the same layout, storage offset included."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    fresh = torch.empty(size, dtype=tensor.dtype)
    fresh.copy_(tensor.detach().as_strided((size,), (1,), 0))
    return fresh.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether both are equal, including NaNs and the sign of zero."""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nans = torch.isnan(a)
    if not torch.equal(nans, torch.isnan(b)):
        return False
    a, b = a.masked_fill(nans, 0), b.masked_fill(nans, 0)
    return torch.equal(a, b) and torch.equal(torch.signbit(a), torch.signbit(b))


def externs(program: LoopProgram) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Extern)]


def nests(program: LoopProgram) -> int:
    return sum(isinstance(step, Nest) for step in program.steps)


def check(
    fn: Callable[..., Any],
    *inputs: torch.Tensor,
    exact: bool = True,
    fallbacks: Sequence[str] = (),
    tolerance: float = 2.0,
) -> LoopProgram:
    """Lower fn's graph, verify and interpret it, compare with eager; returns the program.

    exact: every output bit for bit. Otherwise: the error against the program run in float64 is at
    most `tolerance` times eager's own error plus a few roundings. `fallbacks`: ops that may go to
    ATen.
    """
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    verify(program)
    strange = [name for name in externs(program) if name not in fallbacks]
    assert not strange, [(s.op, s.reason) for s in program.steps if isinstance(s, Extern)]
    ours, mutated = [clone(x) for x in inputs], [clone(x) for x in inputs]
    results = run(program, ours)
    with torch.no_grad():
        fn(*mutated)
    wide = None if exact else run(program, [clone(x) for x in inputs], "float64")
    assert len(results) == len(expected)
    for n, (got, want) in enumerate(zip(results, expected)):
        _compare(n, got, want, None if wide is None else wide[n], tolerance)
    for got, want in zip(ours, mutated):
        assert same_bits(got, want), "a mutated input differs"
    return program


def _compare(n, got, want, wide, tolerance) -> None:
    if want is None:
        assert got is None
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"output {n}"
    for size, a, b in zip(want.shape, got.stride(), want.stride()):
        assert size == 1 or want.numel() == 0 or a == b, f"output {n}: strides {got.stride()}"
    if wide is None or not want.dtype.is_floating_point:
        assert same_bits(got, want), f"output {n} differs:\n{got}\n{want}"
        return
    finite = torch.isfinite(want)
    assert same_bits(got[~finite], want[~finite]), f"output {n}: not the same infinities or NaNs"
    got, want, exact = got[finite].double(), want[finite].double(), wide[finite]
    error, theirs = (got - exact).abs(), (want - exact).abs()
    allowed = tolerance * theirs.max() if theirs.numel() else 0.0
    scale = exact.abs().max() if exact.numel() else 0.0
    assert not error.numel() or bool(error.max() <= allowed + 4e-7 * scale + 1e-30), (
        f"output {n}: error {error.max()} where eager's is {theirs.max()}"
    )
