"""Functions and models through the stages of autograd, against eager and fp64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .lifting import check


def t(*shape, grad=True, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (torch.randn(*shape, generator=generator) * scale).requires_grad_(grad)


def ids(*shape, high):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(3))


UNARY = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "leaky_relu": F.leaky_relu,
    "softplus": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "glu": lambda x: F.glu(x, -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "logsumexp": lambda x: torch.logsumexp(x, (0, 1)),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std((0, 2), unbiased=False, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: x.norm(dim=-1),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(),
    "max_dim": lambda x: x.max(-1),
    "amax": lambda x: x.amax((0, 1)),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(2, -1),
    "cumsum": lambda x: x.cumsum(1),
    "triu": lambda x: x.triu(1) + x.tril(-1),
    "flip_roll": lambda x: x.flip(0) + x.roll(1, -1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "chunk": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) * 2,
    "split": lambda x: [part * 2 for part in x.split([1, 3], -1)],
    "unbind_stack": lambda x: torch.stack(x.unbind(1)[::-1], 0),
    "pad": lambda x: F.pad(x, (1, 2), value=3.0),
    "clamp_where": lambda x: torch.where(x > 0, x.clamp(max=0.5), x * 0.1),
    "masked_fill": lambda x: x.masked_fill(x > 0.3, -math.inf).softmax(-1),
    "nan_to_num": lambda x: (x / 0.0).nan_to_num(1.0),
    "diagonal": lambda x: x.diagonal(0, 1, 2).sum(),
    "einsum": lambda x: torch.einsum("abc,adc->abd", x, x),
    "int_outputs": lambda x: (x.argmax(-1), x > 0, (x * 2).long()),
    "prod": lambda x: x.prod(-1),
    "permute": lambda x: x.permute(2, 0, 1).relu() @ x.new_ones(3, 2),
    "half": lambda x: (x.to(torch.bfloat16) * 1.5).softmax(-1).float(),
    "complex_free_pow": lambda x: (x.abs() + 0.1).pow(1.5) + x**2 + 2**x,
    "rsub": lambda x: 1 - x + torch.sub(x, x.exp(), alpha=0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x.sin(), value=0.3) + torch.addcdiv(x, x, x.exp()),
    "lerp": lambda x: torch.lerp(x, x.cos(), 0.7) + torch.lerp(x, x.sin(), x.sigmoid()),
    "new": lambda x: (
        x + x.new_full((4,), 2) + torch.ones_like(x) + torch.arange(4) * torch.eye(3)[0, 0]
    ),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(UNARY[name], t(2, 3, 4), fp64=name not in ("half", "int_outputs"))


def test_activations_at_their_corners():
    corners = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, 21.0, -60.0, 60.0])
    smooth = ("elu", "softplus", "logsigmoid", "silu", "gelu", "mish")
    bent = ("hardswish", "hardsigmoid", "hardtanh", "relu6", "hardshrink", "softshrink")
    for name in (*smooth, *bent, "leaky_relu", "threshold"):
        check(UNARY[name], corners.clone().requires_grad_(), fp64=False)


LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), reduction=reduction
    ),
    "bce_logits": lambda x, y, reduction: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), pos_weight=y[0].exp(), reduction=reduction
    ),
    "kl": lambda x, y, reduction: F.kl_div(
        x.log_softmax(-1), y.softmax(-1), reduction=reduction.replace("mean", "batchmean")
    ),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, reduction):
    check(lambda x, y: LOSSES[name](x, y, reduction=reduction), t(3, 5), t(3, 5, grad=False) + 0.25)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3, 3), (5,)])
def test_cross_entropy(shape, reduction):
    targets = ids(*shape[:1], *shape[2:], high=5) if len(shape) > 1 else torch.tensor(3)
    if len(shape) > 1:
        targets.view(-1)[1] = 2
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1, 1.5])

    def loss(x, y, w):
        plain = F.cross_entropy(x, y, reduction=reduction)
        weighed = F.cross_entropy(x, y, w, ignore_index=2, reduction=reduction)
        return plain, weighed, F.cross_entropy(x, y, label_smoothing=0.1, reduction=reduction)

    check(loss, t(*shape), targets, weight)


class Attention(nn.Module):
    """Self-attention, causal; `fused` uses torch's own."""

    def __init__(self, fused: bool, dropout: float = 0.0):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.fused, self.dropout = fused, dropout

    def forward(self, x):
        q, k, v = (part.view(2, 6, 4, 4).transpose(1, 2) for part in self.qkv(x).split(16, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * 0.5
            mask = torch.ones(6, 6, dtype=torch.bool).tril()
            scores = scores.masked_fill(mask.logical_not(), -math.inf)
            y = F.dropout(scores.softmax(-1), self.dropout) @ v
        return self.out(y.transpose(1, 2).reshape(2, 6, 16))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=2)
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens):
        return F.linear(self.norm(self.embedding(tokens)), self.embedding.weight)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2, bias=False),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), lambda: t(5, 8)),
    "mlp_3d": (lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh()), lambda: t(2, 5, 8)),
    "cnn": (cnn, lambda: t(2, 3, 12, 12)),
    "cnn_eval": (lambda: cnn().eval(), lambda: t(2, 3, 12, 12)),
    "norm_1d": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), lambda: t(8, 6)),
    "norm_no_stats": (lambda: nn.BatchNorm2d(3, track_running_stats=False), lambda: t(2, 3, 4, 4)),
    "layer_norm": (lambda: nn.LayerNorm((3, 4)), lambda: t(2, 3, 4)),
    "rms_norm": (lambda: nn.RMSNorm(4), lambda: t(2, 3, 4)),
    "attention": (lambda: Attention(False), lambda: t(2, 6, 16)),
    "attention_dropout": (lambda: Attention(False, 0.4), lambda: t(2, 6, 16)),
    "attention_fused": (lambda: Attention(True), lambda: t(2, 6, 16)),
    "tied": (Tied, lambda: ids(3, 4, high=11)),
    "dropout": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)), lambda: t(4, 8)),
    "prelu": (lambda: nn.PReLU(3), lambda: t(2, 3, 4)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), None),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 5, 3, stride=2), nn.ConvTranspose1d(5, 3, 3)),
        lambda: t(2, 3, 9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, x) in MODELS.items() if x])
def test_models(name):
    torch.manual_seed(1)
    make, data = MODELS[name]
    check(make(), data(), seed=5, fp64="dropout" not in name)


def test_channels_last():
    torch.manual_seed(1)
    x = t(2, 3, 12, 12, grad=False).to(memory_format=torch.channels_last)
    check(cnn(), x.requires_grad_())


def test_transposed_inputs_keep_their_strides():
    x = t(4, 3, grad=False).t().requires_grad_()
    check(
        lambda x: (F.softmax(x, -1), F.gelu(x) + 1, F.layer_norm(x, (4,)), torch.zeros_like(x)), x
    )


def test_indexing():
    index, rows = ids(3, 4, high=5), torch.tensor([0, 2, 2])

    def pick(x, index, rows):
        gathered = x.gather(0, index[:, :3])
        scattered = x.scatter_add(0, index[:, :3], gathered)
        return (
            x[rows],
            x[rows, rows],
            x.index_select(0, rows),
            scattered,
            x[x.shape[0] - 1, 1:],
            x[:, None],
        )

    check(pick, t(5, 3), index, rows)


def test_embedding_bag_of_ops():
    table = t(9, 4)
    check(lambda w, i: F.embedding(i, w, padding_idx=0).sum(1) @ w.t(), table, ids(3, 4, high=9))


def test_matrix_products():
    def products(a, b, v):
        return (
            torch.baddbmm(a, a, b, beta=0.5, alpha=2),
            torch.addmv(v, a[0], v),
            v.outer(v),
            torch.dot(v, v),
        )

    check(products, t(2, 3, 3), t(2, 3, 3), t(3))


def test_no_grad_region_and_detach():
    def regions(x, w):
        h = (x @ w).relu()
        with torch.no_grad():
            scale = h.std() + w.mean()
        return h * scale, h.detach() * w, scale, (h * 2).detach()

    check(regions, t(4, 4), t(4, 4))


def test_no_grad_region_in_the_graph():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    still = graph.call_method("mul", (x, 2))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    moving = graph.call_method("mul", (x, still))
    graph.output((still, moving))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)

    def program(x):
        with torch.no_grad():
            y = x * 2
        return y, x * y

    from jitmagic.autograd.joint import trace_joint
    from jitmagic.spec import spec_of

    joint = trace_joint(module, [spec_of(t(3))])
    assert [out.requires_grad for out in joint.outputs] == [False, True]
    assert torch.is_grad_enabled()


def test_unused_input_gets_no_gradient():
    check(lambda x, y: x * 2, t(3), t(4))


def test_dropout_keeps_the_random_stream():
    check(
        lambda x: F.dropout(x, 0.5) + torch.rand(3) + F.dropout(x, 0.2), t(3), seed=11, fp64=False
    )
    check(
        lambda x: (x + torch.randn_like(x)) * torch.bernoulli(torch.full((3,), 0.5)),
        t(3),
        fp64=False,
    )


def test_unused_random_draw_still_advances_the_stream():
    from .lifting import compile_like

    def program(x):
        F.dropout(x, 0.5)
        return x * torch.rand(3)

    call, inputs, _ = compile_like(program, (t(3),))
    torch.manual_seed(4)
    ours = call(*inputs)[0]
    torch.manual_seed(4)
    assert torch.equal(ours, program(inputs[0]))


def test_autocast_is_part_of_the_graph():
    def program(x, w):
        return F.softmax(F.linear(x, w), -1)

    x, w = t(4, 8), t(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        check(program, x, w, fp64=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["gelu", "silu", "softmax", "log_softmax", "hardswish", "softplus", "mish"]
)
def test_low_precision_rounds_as_eager(name, dtype):
    from .lifting import compile_like

    x = t(4, 16, grad=False).to(dtype)
    call, inputs, _ = compile_like(UNARY[name], (x,))
    wide = UNARY[name](x.double())
    ours, eager = call(*inputs)[0].double(), UNARY[name](x).double()
    assert (ours - wide).abs().max() <= 2 * (eager - wide).abs().max() + torch.finfo(dtype).eps / 4
