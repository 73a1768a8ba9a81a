"""Triton kernels of flex_attention, run by Triton's interpreter, against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch.fx import GraphModule

import jitmagic
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.codegen import render
from jitmagic.codegen.attention.kernel import attention_kernel
from jitmagic.codegen.config import AttentionConfig
from jitmagic.codegen.kernel import Kernel
from jitmagic.codegen.kernel_interpreter import interpret
from jitmagic.codegen.kernel_verifier import verify_kernel
from jitmagic.codegen.plan import Call, KernelSource, Plan
from jitmagic.codegen.triton.renderer import TritonRenderer
from jitmagic.graph.targets.flex_attention import FlexAttention
from jitmagic.loops.ir import Alias, Extern
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import schedule
from jitmagic.spec import spec_of

from .flex_attention_programs import Program, exact, programs
from .for_gpu import H200, on_cpu
from .interpreted import run_interpreted
from .test_kernel_language import flat

PROGRAMS = programs("cpu")

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(autouse=True)
def kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make kernels for CPU tensors too, which stand for those of a GPU; eager runs plainly."""
    monkeypatch.setattr(FlexAttention, "_has_kernel", lambda *args: True)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def graphs_of(program: Program, given: Sequence[Tensor]) -> tuple[Any, list[Tensor]]:
    """Return forward and backward of a call, and the tensors that it takes."""
    held: list[Any] = []

    def backend(gm: GraphModule, tensors: Sequence[Tensor]) -> Any:
        held.append((gm, [*tensors]))
        return gm.forward

    jitmagic.jit(program.function(), backend=backend, fullgraph=True)(*given)
    ((graph, taken),) = held
    places = [next((n for n, x in enumerate(given) if x is y), None) for y in taken]
    assert [n for n in places if n is not None] == [0, 1, 2]
    specs = [
        replace(spec_of(x), requires_grad=n is not None) for x, n in zip(taken, places, strict=True)
    ]
    return partition(trace_joint(graph, specs, grad_enabled=True)), taken


def rendered(graph: GraphModule, **config: int) -> tuple[Plan, KernelSource]:
    scheduled = schedule(lower(graph, "attention"), H200, Options())
    names = [step.name for step in scheduled.program.steps]
    plan, source = render(scheduled, H200, dict.fromkeys(names, AttentionConfig(**config)))
    assert source is not None
    assert not any(isinstance(step, Call) for step in plan.steps)
    return plan, source


def run(graph: GraphModule, given: Sequence[Tensor], **config: int) -> list[Any]:
    plan, source = rendered(graph, **config)
    results, _ = run_interpreted(source, on_cpu(plan), given)
    return results


def run_kernels(graph: GraphModule, given: Sequence[Tensor], **config: int) -> list[Any]:
    """Run the kernels that are printed in the reference interpreter."""
    plan, source = rendered(graph, **config)
    scheduled = schedule(lower(graph, "attention"), H200, Options()).program
    made = {}
    for step in scheduled.steps:
        if isinstance(step, Alias):
            continue
        call = attention_kernel(step, scheduled.buffers) if isinstance(step, Extern) else step
        kernel = TritonRenderer().kernel(call, scheduled.buffers, H200, AttentionConfig(**config))
        made[step.name] = partial(interpreted, verify_kernel(kernel))
    return list(PlanRunner(on_cpu(plan), {name: made[name] for name in source.symbols})(*given))


def interpreted(kernel: Kernel, tensors: Sequence[Tensor]) -> None:
    memory = {param.name: flat(x) for param, x in zip(kernel.params, tensors, strict=True)}
    assert not interpret(kernel, memory)


Run = Callable[..., list[Any]]


def check(
    program: Program, dtype: torch.dtype, tolerance: float, run: Run = run, **config: int
) -> None:
    given = program.tensors(dtype)
    parts, taken = graphs_of(program, given)
    out, lse, *saved = run(parts.forward, taken, **config)
    wide = [x.double().requires_grad_() for x in given]
    wanted, wanted_lse = exact(program, *wide)
    close(out, wanted, tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-4, rtol=1e-4)
    plain, _ = program.function()(*given)
    assert out.stride() == plain.stride()
    tangents = [torch.randn_like(out), torch.randn_like(lse)]
    finite = wanted_lse.isfinite()
    tangents[1] = tangents[1].masked_fill(~finite, 0.0)
    expected = torch.autograd.grad(
        [wanted, wanted_lse.masked_fill(~finite, 0.0)], wide, [t.double() for t in tangents]
    )
    states = [*saved_tensors(parts, taken, [out, lse], saved), *tangents]
    found = run(parts.backward, states, **config)
    for gradient, value in zip(found, expected, strict=True):
        assert gradient.dtype is dtype
        close(gradient, value, tolerance * value.abs().max().clamp(1).item())


def saved_tensors(
    parts: Any, taken: Sequence[Tensor], results: Sequence[Any], saved: Sequence[Any]
) -> list[Any]:
    """Return the tensors that the backward takes besides tangents, by their names."""
    nodes = list(parts.forward.graph.find_nodes(op="placeholder"))
    outputs = parts.forward.graph.output_node().args[0]
    known = {node.name: x for node, x in zip(nodes, taken, strict=True)}
    known |= {node.name: x for node, x in zip(outputs, [*results, *saved], strict=True)}
    names = [node.name for node in parts.backward.graph.find_nodes(op="placeholder")]
    return [known[name] for name in names if not name.startswith("tangent")]


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients(name: str) -> None:
    check(PROGRAMS[name], torch.float32, 1e-5)


@pytest.mark.parametrize("name", ["causal with slopes", "capped", "odd lengths", "grouped heads"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes(name: str, dtype: torch.dtype) -> None:
    check(PROGRAMS[name], dtype, 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_the_formula_in_the_reference_interpreter(name: str) -> None:
    check(PROGRAMS[name], torch.float32, 1e-5, run_kernels)


@pytest.mark.parametrize("name", ["causal with slopes", "odd lengths", "grouped heads"])
@pytest.mark.parametrize("tiles", [(16, 32), (32, 16), (64, 64)])
def test_tiles_of_any_size(name: str, tiles: tuple[int, int]) -> None:
    rows, columns = tiles
    check(PROGRAMS[name], torch.float32, 1e-5, rows=rows, columns=columns)


@pytest.mark.parametrize("name", ["causal with slopes", "capped", "odd lengths", "grouped heads"])
def test_kernels_compile_for_the_device(name: str, tmp_path: Any) -> None:
    program = replace(PROGRAMS[name], widths=(64, 64))
    parts, _ = graphs_of(program, program.tensors(torch.bfloat16))
    for graph in (parts.forward, parts.backward):
        plan, source = rendered(graph)
        flags = aligned_arguments(plan, inputs=True)
        cubins, _ = build_cubins(source, flags, H200, Store(tmp_path))
        assert {*cubins} == {*source.symbols}
