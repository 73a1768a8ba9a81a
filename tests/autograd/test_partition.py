"""The partition: saved values, recomputed values, and the minimality of the cut."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitmagic
from jitmagic.autograd import offered_copies
from jitmagic.autograd import partition as costs
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.mincut import FlowNetwork
from jitmagic.autograd.partition import partition
from jitmagic.devices import CUDA_ROW
from jitmagic.errors import UserLine
from jitmagic.spec import spec_of
from tests.processes import run_forked

from .lifting import check, compile_like, lift
from .test_functions import UNARY, Attention, t

aten = torch.ops.aten


def parts_of(program, *args):
    return compile_like(program, args)[2]


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def saved_bytes(parts):
    flat = parts.forward.graph.output_node().args[0][parts.results :]
    specs = [node.meta["spec"] for node in flat]
    return sum(torch.Size(spec.shape).numel() * spec.dtype.itemsize for spec in specs)


def test_a_mask_is_saved_in_one_byte_and_products_run_once():
    parts = parts_of(lambda x, w: F.relu(x @ w), t(8, 16), t(16, 16))
    assert targets(parts.backward).count(aten.mm.default) == 2
    assert targets(parts.forward).count(aten.mm.default) == 1
    assert saved_bytes(parts) == 0  # the result itself, which eager keeps too
    assert parts.saved_results == (0,)
    hidden = parts_of(lambda x, w: F.relu(x @ w).sum(), t(8, 16), t(16, 16))
    assert saved_bytes(hidden) == 8 * 16


def test_cheap_chains_are_computed_again():
    parts = parts_of(lambda x: ((x * 2 + 1) * x - 3).square().sum(), t(64, 64))
    assert saved_bytes(parts) == 0
    assert parts.saved_inputs == (0,)
    assert parts.recomputed


ACTIVATIONS = {
    **{name: UNARY[name] for name in ("gelu", "gelu_tanh", "silu", "mish", "elu")},
    "sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gpu_saves_what_an_activation_reads_and_nothing_of_it(name, dtype, monkeypatch):
    """The product before it, from which value and derivative are computed where they are read."""
    monkeypatch.setattr(costs, "row_of", lambda device: CUDA_ROW)

    def feed_forward(x, up, down):
        return F.linear(ACTIVATIONS[name](F.linear(x, up)), down)

    given = (t(64, 32), t(128, 32), t(32, 128))
    given = [each.detach().to(dtype).requires_grad_() for each in given]
    assert saved_bytes(parts_of(feed_forward, *given)) == 64 * 128 * dtype.itemsize


def narrow(*shape):
    return torch.randn(shape).to(torch.bfloat16).requires_grad_()


@pytest.fixture
def of_a_gpu(monkeypatch):
    """Let tensors of some hundred elements count as large ones on a GPU."""
    for module in (costs, offered_copies):
        monkeypatch.setattr(module, "row_of", lambda device: CUDA_ROW)
    monkeypatch.setattr(offered_copies, "_LARGE", 2**9)


def normed(x, w, b):
    return F.relu(F.batch_norm(x, None, None, w, b, True))


def test_a_gpu_computes_the_mask_after_a_norm_again(of_a_gpu):
    """It reads its input anyway; eager does not keep the bias, so that a copy is saved."""
    x, w, b = narrow(16, 4, 8, 8), t(4), t(4)
    parts = parts_of(normed, x, w, b)
    assert parts.saved_results == ()
    assert saved_bytes(parts) == 3 * 4 * 4  # mean, deviation, bias
    assert targets(parts.forward).count(aten.clone.default) == 1
    check(normed, x, w, b)
    small = parts_of(normed, narrow(2, 4, 2, 2), t(4), t(4))
    assert aten.clone.default not in targets(small.forward), "its kernel takes longer"


def test_a_bias_may_be_written_before_the_backward(of_a_gpu):
    found = []
    for call in (normed, jitmagic.jit(normed)):
        torch.manual_seed(0)
        x, w, b = narrow(16, 4, 8, 8), t(4), t(4)
        y = call(x, w, b)
        with torch.no_grad():
            b.add_(3)
        y.sum().backward()
        found.append([part.grad for part in (x, w, b)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


def test_what_a_product_reads_after_a_norm_is_computed_again(of_a_gpu):

    def block(x, w, b, v):
        return F.conv2d(normed(x, w, b), v).sum()

    parts = parts_of(block, narrow(16, 4, 8, 8), t(4), t(4), narrow(3, 4, 1, 1))
    assert saved_bytes(parts) == 3 * 4 * 4
    assert targets(parts.backward).count(aten.relu.default) == 1


def test_random_draws_are_never_repeated():
    parts = parts_of(lambda x: (F.dropout(x, 0.5) * x).sin().sum(), t(8, 8))
    draws = [op for op in targets(parts.backward) if "bernoulli" in str(op)]
    assert not draws
    assert sum("bernoulli" in str(op) for op in targets(parts.forward)) == 1


def test_softmax_saves_its_output_once():
    parts = parts_of(Attention(False), t(2, 6, 16))
    assert targets(parts.forward).count(aten.bmm.default) == 2
    assert targets(parts.backward).count(aten.bmm.default) == 4


def test_views_are_not_saved():
    parts = parts_of(lambda x, w: (x @ w).exp().t().reshape(-1)[2:].sum(), t(4, 4), t(4, 4))
    flat = parts.forward.graph.output_node().args[0][parts.results :]
    assert all(node.target not in (aten.t.default, aten.view.default) for node in flat)


def test_constants_reach_the_backward():
    check(lambda x: (x * torch.tensor([1.0, 2.0, 3.0])).exp(), t(2, 3))


def test_unneeded_gradients_cost_nothing():
    parts = parts_of(lambda x, w: F.linear(x, w).relu(), t(4, 8, grad=False), t(8, 8))
    assert targets(parts.backward).count(aten.mm.default) == 1
    assert parts.grad_inputs == (1,)


def test_reach_of_tangents():
    parts = parts_of(lambda x, y: (x * 2, y * 3, x * y), t(3), t(3))
    assert parts.reach == ((0, 2), (1, 2))


def test_specs_and_outputs_are_complete():
    graph, inputs = lift(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (t(3, 4),))
    joint = trace_joint(graph, [spec_of(x) for x in inputs])
    parts = partition(joint)
    for module in (joint.module, parts.forward, parts.backward):
        module.graph.lint()
        for node in module.graph.nodes:
            if node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload):
                assert node.meta["spec"] is not None
    names = [n.name for n in parts.backward.graph.nodes if n.op == "placeholder"]
    saved = len(parts.saved_inputs) + len(parts.saved_results) + parts.saved_intermediates
    assert len(names) == saved + len(parts.tangents)


def test_lines_reach_backward_nodes():
    graph, inputs = lift(lambda x: (x.sin() * 2).sum(), (t(3),))
    for number, node in enumerate(graph.graph.nodes):
        node.meta["lines"] = (UserLine("program.py", number),)
    joint = trace_joint(graph, [spec_of(x) for x in inputs])
    cos = next(node for node in joint.module.graph.nodes if node.target is aten.cos.default)
    sine = next(n for n in graph.graph.nodes if "sin" in str(n.target))
    assert cos.meta["lines"] == sine.meta["lines"]


def brute_force(count, edges, source, sink):
    inner = [v for v in range(count) if v not in (source, sink)]
    best = None
    for mask in range(1 << len(inner)):
        side = {source} | {v for i, v in enumerate(inner) if mask >> i & 1}
        size = sum(c for a, b, c in edges if a in side and b not in side)
        best = size if best is None else min(best, size)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_a_minimum(seed):
    dice = random.Random(seed)
    count = dice.randint(3, 8)
    edges = [
        (dice.randrange(count), dice.randrange(count), dice.randint(1, 9)) for _ in range(3 * count)
    ]
    edges = [(a, b, c) for a, b, c in edges if a != b]
    network = FlowNetwork(count)
    for edge in edges:
        network.edge(*edge)
    size, side = network.cut(0, count - 1)
    assert size == brute_force(count, edges, 0, count - 1)
    assert size == sum(c for a, b, c in edges if a in side and b not in side)


def test_long_graphs_do_not_recurse():
    def deep(x):
        for _ in range(400):
            x = (x * 1.01).tanh()
        return x

    parts = parts_of(deep, t(4))
    assert parts.backward is not None


def test_tracing_imports_neither_dynamo_nor_sympy():
    script = """
        import sys, torch
        import torch.nn.functional as F
        from jitmagic.autograd.joint import trace_joint
        from jitmagic.autograd.partition import partition
        from jitmagic.spec import spec_of
        def program(x, c, w, n, b, q):
            y = F.gelu(F.layer_norm(torch.conv2d(x, c), (6,), n, b))
            a = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            return F.cross_entropy(y.flatten(1) @ w, torch.arange(2)), a.softmax(-1)
        shapes = [(2, 3, 8, 8), (4, 3, 3, 3), (144, 5), (6,), (6,), (2, 2, 4, 8)]
        inputs = [torch.randn(s, requires_grad=True) for s in shapes]
        gm = torch.fx.symbolic_trace(program)
        partition(trace_joint(gm, [spec_of(x) for x in inputs]))
        assert not [m for m in ("torch._dynamo", "torch._inductor", "sympy") if m in sys.modules]
    """
    done = run_forked(script)
    assert done.returncode == 0, done.stderr


# -- training --------------------------------------------------------------------------------------


def curve(model, forward, batches, optimizer_of):
    optimizer, losses = optimizer_of(model.parameters()), []
    for batch in batches:
        optimizer.zero_grad()
        loss = forward(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(36, 5),
        )  # fmt: skip

    def forward(self, x, y):
        return F.cross_entropy(self.body(x), y)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(17, 16), Attention(False, 0.1)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 17)

    def forward(self, x, y):
        h = self.embedding(x)
        h = h + self.attention(self.norm(h))
        return F.cross_entropy(self.head(F.gelu(h)).flatten(0, 1), y.flatten())


@pytest.mark.parametrize("kind", [Classifier, Language])
def test_thirty_steps_give_eagers_losses(kind):
    generator = torch.Generator().manual_seed(0)

    def batch():
        if kind is Language:
            tokens = torch.randint(17, (2, 7), generator=generator)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return torch.randn(4, 1, 8, 8, generator=generator), torch.randint(
            5, (4,), generator=generator
        )

    batches = [batch() for _ in range(30)]
    torch.manual_seed(1)
    ours, theirs = kind(), kind()
    theirs.load_state_dict(ours.state_dict())
    call, inputs, _ = compile_like(ours, batches[0])
    state = inputs[2:]
    optimizer = lambda parameters: torch.optim.AdamW(parameters, 1e-2)
    torch.manual_seed(2)
    eager = curve(theirs, lambda model, pair: model(*pair), batches, optimizer)
    torch.manual_seed(2)
    compiled = curve(ours, lambda model, pair: call(*pair, *state)[0], batches, optimizer)
    torch.testing.assert_close(compiled, eager, rtol=2e-4, atol=2e-4)


def log_probability(x, index):
    return F.cross_entropy(x.float(), index)


def test_logits_are_saved_in_their_own_dtype():
    x, index = narrow(16, 500), torch.randint(0, 500, (16,))
    parts = parts_of(log_probability, x, index)
    assert targets(parts.forward).count(aten.clone.default) == 1
    assert saved_bytes(parts) < 16 * 500 * 2 + 16 * 20, "two bytes an element, and rows"


def test_no_copy_is_made_of_an_input_that_eager_saves_or_that_is_wide():
    for program, args in (
        (lambda x: (x.float() * x.float()).sum(), (t(8, 8),)),
        (lambda x: (x * x.float()).sum(), (narrow(8, 8),)),
        (lambda x: x.float().sum(), (narrow(8, 8),)),
    ):
        parts = parts_of(program, *args)
        assert aten.clone.default not in targets(parts.forward)


def test_a_caller_may_write_to_logits_before_backward():
    x, index = narrow(16, 500), torch.randint(0, 500, (16,))
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    run = jitmagic.jit(log_probability, options={"keep": "compiled", "on_error": "raise"})
    for fn, leaf in ((run, ours), (log_probability, theirs)):
        loss = fn(leaf, index)
        with torch.no_grad():
            leaf.zero_()
        loss.backward()
    exact = x.detach().double().requires_grad_()
    F.cross_entropy(exact, index).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-2, atol=1e-5)


ONE_HOT = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.parametrize("target", [0, 6, -1, 7, 100])
def test_a_sum_of_a_one_hot_row_is_its_term(target, tier):
    def sums(g, index):
        classes = torch.arange(7)
        return torch.where(classes == index[:, None], g[:, None], 0.0).sum(1)

    g, index = torch.tensor(ONE_HOT), torch.full((len(ONE_HOT),), target)
    options = {"keep": "compiled", "cpu_tier": tier, "on_error": "raise"}
    ours, theirs = jitmagic.jit(sums, options=options)(g, index), sums(g, index)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    known = ~theirs.isnan()
    assert torch.equal(ours.signbit()[known], theirs.signbit()[known])
