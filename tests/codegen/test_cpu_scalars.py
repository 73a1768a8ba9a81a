"""CPU scalars next to tensors of a GPU: kernels take them by value, and compute with them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from jitmagic.autograd.joint import trace_joint
from jitmagic.codegen import render
from jitmagic.codegen.plan import Call, KernelSource, Launch, NumberSlot, Plan
from jitmagic.graph.builder import GraphBuilder
from jitmagic.graph.symbolic.number_ranges import add_number
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import schedule
from jitmagic.spec import TensorSpec
from jitmagic.symbols.interval import Interval

from .for_gpu import CPU, H200, compiled, on_cpu
from .interpreted import run_interpreted

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor, lr: Tensor) -> tuple[Any, ...]:
    """One Adam step of a parameter; `step` is float32 and `lr` float64, both on the CPU."""
    count = step + 1
    n = count.to(torch.float64, copy=True)
    size = lr / (1 - torch.pow(0.9, n))
    root = (1 - torch.pow(0.999, n)).sqrt()
    m = torch.lerp(m, g, 0.1)
    v = v * 0.999 + g * g * 0.001
    below = v.sqrt() / root.to(torch.float32).to(p.device) + 1e-8
    return torch.addcdiv(p, m * (-size).to(torch.float32).to(p.device), below), m, v, count


def mixed(x: Tensor, count: Tensor, rate: Tensor) -> tuple[Any, ...]:
    """A result on the CPU is computed there."""
    kept = rate * 2
    return x * count + kept, kept, torch.where(x > count, x, rate.to(torch.float32))


def branch(x: Tensor, rate: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(rate.to(torch.float32).to(x.device).expand(3), (1, 2))
    return x + padded


def inputs_of(program: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    if program is adam:
        tensors = [torch.randn(1000) for _ in range(3)]
        return (*tensors, torch.rand(1000), torch.tensor(7.0), torch.tensor(0.1).double())
    if program is mixed:
        return torch.randn(3, 50), torch.tensor(3), torch.tensor(0.3).double()
    return torch.randn(6), torch.tensor(0.3).double()


def test_adam_is_one_kernel_and_the_counter_stays_on_the_cpu() -> None:
    plan, source = compiled(adam, *inputs_of(adam))
    ((name, places),) = source.by_value.items()
    assert [source.symbols[name][n] for n in places] == [torch.float64, torch.float32]
    calls = [step for step in plan.steps if isinstance(step, Call)]
    assert [str(step.op) for step in calls] == ["aten.add.Tensor"]
    assert sum(isinstance(step, Launch) for step in plan.steps) == 1


def test_scalars_that_kernels_cannot_take_stay_on_the_cpu() -> None:
    def program(x: Tensor, rate: Tensor) -> Tensor:
        twice = rate * 2
        return x * torch.where(rate > 0.5, twice, rate).to(torch.float32)

    plan, source = compiled(program, torch.randn(6), torch.tensor(0.3).double())
    ((name, places),) = source.by_value.items()
    assert [source.symbols[name][n] for n in places] == [torch.float64]
    assert not any(isinstance(step, Call) for step in plan.steps)
    plan, source = compiled(program, torch.randn(6), torch.tensor(0.3).half())
    ((name, places),) = source.by_value.items()
    assert [source.symbols[name][n] for n in places] == [torch.float32]
    assert sum(isinstance(step, Call) for step in plan.steps) == 4


def test_cpu_results_are_computed_on_the_cpu() -> None:
    plan, _ = compiled(mixed, *inputs_of(mixed))
    calls = [step for step in plan.steps if isinstance(step, Call)]
    assert [str(step.op) for step in calls] == ["aten.mul.Tensor"]
    (layout,) = calls[0].layouts
    assert layout is not None
    assert layout.device == CPU


@needs_triton
@pytest.mark.parametrize("program", [adam, mixed, branch], ids=lambda p: p.__name__)
def test_interpreted_and_compiled(program: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    inputs = inputs_of(program)
    plan, source = compiled(program, *inputs)
    cubins, _ = build_cubins(source, aligned_arguments(plan, True), H200, Store(tmp_path))
    assert set(cubins) == set(source.symbols)
    got, _ = run_interpreted(source, on_cpu(plan), inputs)
    expected = program(*inputs)
    for ours, eager in zip(
        got, expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        torch.testing.assert_close(ours, eager)


def numbers_of_calls(dropout: bool) -> tuple[Plan, KernelSource]:
    """A graph whose calls read a float that varies, for a tensor that counts as being on a GPU."""
    gpu = torch.device("cuda", 0)
    specs = [
        TensorSpec((4, 8), (8, 1), torch.float32, gpu),
        TensorSpec((), (), torch.float64, CPU),
    ]
    builder = GraphBuilder(False)
    x, p = (builder.placeholder(name, spec) for name, spec in zip("xp", specs, strict=True))

    def number() -> Node:
        return add_number(builder.graph, p, 0.3, Interval(1e-9, 0.999), (), 0)

    made = builder.call(torch.nn.functional.leaky_relu, (x, number()))
    made = builder.call(torch.nn.functional.layer_norm, (made, (8,)), {"eps": number()})
    if dropout:
        made = builder.call(torch.dropout, (made, number(), True))
    builder.output(made)
    graph, _ = builder.finish("numbers")
    loops = lower(trace_joint(graph, specs, grad_enabled=False).module, "numbers")
    verify(loops)
    plan, source = render(schedule(loops, H200, Options()), H200)
    assert source is not None
    return plan, source


def test_a_number_of_a_call_is_taken_by_value_or_read_for_aten() -> None:
    plan, source = numbers_of_calls(dropout=True)
    for name, places in source.by_value.items():
        assert [source.symbols[name][n] for n in places] == [torch.float64]
    (call,) = (step for step in plan.steps if isinstance(step, Call))
    assert call.args[1] == NumberSlot(1)


@needs_triton
def test_a_number_of_a_call_interpreted() -> None:
    plan, source = numbers_of_calls(dropout=False)
    x = torch.randn(4, 8)
    for p in (0.3, 0.123456789):
        got, _ = run_interpreted(source, on_cpu(plan), [x, torch.tensor(p, dtype=torch.float64)])
        wanted = torch.nn.functional.leaky_relu(x, p)
        torch.testing.assert_close(
            got[0], torch.nn.functional.layer_norm(wanted, (8,), eps=p), rtol=1e-5, atol=1e-6
        )
