"""Operators whose results are tensors among numbers and nothing: attention's, forward and backward.

The kernels are those of GPUs: stand-ins for the CPU tell what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx import symbolic_trace

import jitmagic
from jitmagic.autograd.joint import trace_joint
from jitmagic.errors import CompileFailed
from jitmagic.spec import TensorSpec

aten = torch.ops.aten
SHAPE = (2, 4, 128, 64)

FAMILIES: dict[str, Callable[..., Any]] = {
    "cudnn": lambda q, k, v, m: aten._scaled_dot_product_cudnn_attention(q, k, v, m, True, 0.1),
    "flash": lambda q, k, v, m: aten._scaled_dot_product_flash_attention(q, k, v, 0.1, True),
    "efficient": lambda q, k, v, m: aten._scaled_dot_product_efficient_attention(
        q, k, v, m, True, 0.1
    ),
    "overrideable": lambda q, k, v, m: aten._scaled_dot_product_fused_attention_overrideable(
        q, k, v, m, 0.1
    ),
    "flash forward": lambda q, k, v, m: aten._flash_attention_forward(
        q, k, v, None, None, 4, 4, 0.1, False, False
    ),
    "efficient forward": lambda q, k, v, m: aten._efficient_attention_forward(
        q, k, v, None, None, None, None, None, 0.1, 0, True
    ),
}


def spec(shape: tuple[int, ...], grad: bool) -> TensorSpec:
    stride = torch.empty(shape, device="meta").stride()
    return TensorSpec(
        shape, stride, torch.bfloat16, torch.device("cpu"), requires_grad=grad, is_leaf=True
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_among_the_results_are_constants_of_the_graph(family: str) -> None:
    call = FAMILIES[family]
    module = symbolic_trace(lambda q, k, v, m: (call(q, k, v, m)[0],))
    given = [*[spec(SHAPE, True)] * 3, spec((2, 1, 128, 128), False)]
    try:
        joint = trace_joint(module, given)
    except CompileFailed as error:
        if "privateuse1" not in str(error):
            raise
        pytest.skip("this torch has no meta function of its backward")
    nodes = joint.module.graph.nodes
    backward = [n for n in nodes if "backward" in str(n.target)]
    assert len(backward) == 1
    assert len(joint.grad_inputs) == 3
    names = [a.name for a in backward[0].target._schema.arguments]
    bound = dict(zip(names, backward[0].args, strict=False))
    assert all(isinstance(bound[name], int) for name in ("max_q", "max_k") if name in bound)


@pytest.fixture
def kernels() -> Iterator[list[tuple[Any, ...]]]:
    """cuDNN's operators on the CPU, made of others, without dropout."""
    library = torch.library.Library("aten", "IMPL")
    seen: list[tuple[Any, ...]] = []

    def weights(q: Any, k: Any) -> Any:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)

    def forward(q, k, v, bias, lse, p=0.0, causal=False, debug=False, *, scale=None):
        state = (torch.tensor([7]), torch.tensor([9]))
        return weights(q, k) @ v, q.sum(-1), None, None, q.shape[2], k.shape[2], *state, None

    def backward(grad, q, k, v, out, lse, seed, offset, bias, cq, ck, max_q, max_k, *rest, **_):
        seen.append((int(seed), int(offset), bias, cq, ck, max_q, max_k))
        attention, inner = weights(q, k), grad @ v.mT
        inner = attention * (inner - (inner * attention).sum(-1, True)) / q.shape[-1] ** 0.5
        return inner @ k, inner.mT @ q, attention.mT @ grad

    name = "_scaled_dot_product_cudnn_attention"
    library.impl(name, forward, "CPU")
    library.impl(f"{name}_backward", backward, "CPU")
    yield seen
    library._destroy()


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_the_plan_calls_them(kernels: list[tuple[Any, ...]], backend: str) -> None:
    def fn(q, k, v):
        out = aten._scaled_dot_product_cudnn_attention(q * 2, k, v, None, True)
        return out[0] + 1, out[4]

    def outcome(call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        given = [torch.randn(2, 3, n, 8, requires_grad=True) for n in (4, 5, 5)]
        out, length = call(*given)
        return [out, *torch.autograd.grad(out.sin().sum(), given), length]

    want = outcome(fn)
    got = outcome(jitmagic.jit(fn, backend=backend))
    torch.testing.assert_close(got[:-1], want[:-1])
    assert got[-1] == want[-1] == 4
    assert kernels == [(7, 9, None, None, None, 4, 5)] * 2
