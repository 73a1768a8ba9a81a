"""Whole models: joint graph, partition, lowering, interpretation; loss and gradients as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recording import externs, nests

from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from jitmagic.loops.python_form import from_python, to_python
from jitmagic.loops.verify import verify
from jitmagic.spec import spec_of


def mlp(x, target, w1, b1, w2, b2):
    hidden = F.relu(F.linear(x, w1, b1))
    return F.cross_entropy(F.linear(hidden, w2, b2), target)


def attention(tokens, target, table, qkv, out, gain, bias):
    x = F.embedding(tokens, table)
    n = F.layer_norm(x, (16,), gain, bias)
    q, k, v = (part.view(2, 6, 4, 4).transpose(1, 2) for part in F.linear(n, qkv).split(16, 2))
    scores = (q @ k.transpose(-2, -1)) * 0.5
    mask = torch.ones(6, 6).tril() == 0
    weights = F.dropout(F.softmax(scores.masked_fill(mask, float("-inf")), -1), 0.1)
    mixed = (weights @ v).transpose(1, 2).reshape(2, 6, 16)
    x = x + F.gelu(F.linear(mixed, out))
    return F.cross_entropy(F.linear(x, table).view(12, -1), target.view(-1))


def conv(x, w, gain, bias):
    y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, gain, bias, training=True)
    return F.max_pool2d(F.silu(y), 2).flatten(1).log_softmax(-1).square().mean()


def _inputs(name):
    torch.manual_seed(0)
    match name:
        case "mlp":
            shapes = ((8, 12), None, (10, 12), (10,), (5, 10), (5,))
            return mlp, [torch.randint(0, 5, (8,)) if s is None else torch.randn(s) for s in shapes]
        case "attention":
            tokens = [torch.randint(0, 9, (2, 6)) for _ in range(2)]
            shapes = ((9, 16), (48, 16), (16, 16), (16,), (16,))
            return attention, [*tokens, *(torch.randn(s) for s in shapes)]
    return conv, [torch.randn(s) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4,), (4,))]


EXPECTED = {  # kernels before fusion; every op without a library call is loops
    "mlp": {"addmm", "mm"},
    "attention": {"mm", "bmm", "bernoulli", "embedding_dense_backward"},
    "conv": {"convolution", "convolution_backward", "max_pool2d_with_indices"}
    | {"max_pool2d_with_indices_backward"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_training_step(name):
    fn, inputs = _inputs(name)
    leaves = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    graph = torch.fx.Graph()
    args = tuple(graph.placeholder(f"p{n}") for n in range(len(inputs)))
    graph.output((graph.call_function(fn, args),))
    parts = partition(trace_joint(torch.fx.GraphModule({}, graph), [spec_of(x) for x in leaves]))
    forward, backward = lower(parts.forward, "forward"), lower(parts.backward, "backward")
    fallbacks = {op.split(".")[1] for op in (*externs(forward), *externs(backward))}
    assert fallbacks <= EXPECTED[name]
    assert nests(forward) > 5
    for program in (forward, backward):
        verify(program)
        assert from_python(to_python(program), program.constants).steps == program.steps

    torch.manual_seed(7)
    loss = fn(*leaves)
    loss.backward()
    plain = [x.detach() for x in inputs]
    torch.manual_seed(7)
    results = run(forward, plain)
    assert torch.allclose(results[0], loss.detach(), rtol=1e-5)
    saved = [plain[n] for n in parts.saved_inputs] + [results[n] for n in parts.saved_results]
    saved += results[parts.results :]
    gradients = run(backward, [*saved, *(torch.ones_like(results[n]) for n in parts.tangents)])
    for n, gradient in zip(parts.grad_inputs, gradients):
        want = leaves[n].grad
        assert torch.allclose(gradient, want, rtol=1e-4, atol=1e-5 * float(want.abs().max())), n
