"""Modules: inlined calls, parameters as inputs by source, buffers, containers, mutation, guards."""

from __future__ import annotations

import copy
import functools
import operator
import types

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import jitmagic
from jitmagic.frame.tag import handle_of, untag
from jitmagic.guards.guard import EntriesEmpty, TensorMatch

from .replaying import break_of, check, trace_of


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 8), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.GELU(),
            nn.AdaptiveAvgPool2d(2), nn.Dropout2d(0.2),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32, 10), nn.Dropout(0.1), nn.LogSoftmax(dim=1)
        )

    def forward(self, x):
        return self.head(self.features(x))


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return self.proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = nn.ModuleDict(
            {"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)}
        )
        self.act = nn.GELU()

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp["down"](self.act(self.mlp["up"](self.ln2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(11, 16), nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tok.weight  # shared

    def forward(self, ids, targets=None):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.history: list = []

    def forward(self, x):
        self.calls += 1
        self.count.add_(1)
        self.total = self.total * 0.5 + x.detach()
        self.last = x.mean()
        self.history.append(self.calls)
        return self.total * self.calls + self.last


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.scales = nn.ParameterList([torch.ones(4) * i for i in range(3)])
        self.by_name = nn.ModuleDict({"a": nn.Identity(), "b": nn.Tanh()})
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = layer(x) * scale
        for name, layer in self.by_name.items():
            x = layer(x) + len(name)
        x = self.layers[-1](x) + self.layers[1:][0](x) + len(self.layers)
        for child in self.seq:
            x = child(x)
        for layer in reversed(self.layers):
            x = layer(x).sin()
        if "a" in self.by_name and hasattr(self, "seq") and not hasattr(self, "nothing"):
            x = x + self.seq[0].weight.sum()
        return x, sum(p.sum() for p in self.layers[0].parameters())


class Walks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        for child in self.children():
            x = child(x)
        decay = sum((p**2).sum() for p in self.parameters())
        names = [name for name, _ in self.named_parameters()]
        kinds = [type(m).__name__ for m in self.modules()]
        return x.sum() + decay, names, kinds, [n for n, _ in self.named_children()]


class Base(nn.Module):
    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    @property
    def doubled(self):
        return self.lin.weight * self.scale

    @staticmethod
    def act(x):
        return x.relu()

    def forward(self, x):
        return self.act(self.lin(x)) + self.doubled.sum()


class Derived(Base):
    def forward(self, x):
        return super().forward(x) * 2


class WithTorchHead(nn.MultiheadAttention):
    pass


MODELS = [
    (MLP, lambda: (torch.randn(5, 12),)),
    (CNN, lambda: (torch.randn(3, 1, 12, 12),)),
    (Attention, lambda: (torch.randn(2, 7, 16),)),
    (Block, lambda: (torch.randn(2, 7, 16),)),
    (GPT, lambda: (torch.randint(0, 11, (2, 9)),)),
    (GPT, lambda: (torch.randint(0, 11, (2, 9)), torch.randint(0, 11, (2, 9)))),
    (Stateful, lambda: (torch.randn(3),)),
    (Containers, lambda: (torch.randn(2, 4),)),
    (Walks, lambda: (torch.randn(2, 3),)),
    (Base, lambda: (torch.randn(2, 3),)),
    (Derived, lambda: (torch.randn(2, 3),)),
]


@pytest.mark.parametrize(("model", "arguments"), MODELS, ids=[m.__name__ for m, _ in MODELS])
@pytest.mark.parametrize("training", [True, False])
def test_model(model, arguments, training):
    check(lambda: (model().train(training), arguments()))


@pytest.mark.parametrize("model", [MLP, CNN, GPT])
def test_gradients(model):
    arguments = next(args for kind, args in MODELS if kind is model)
    check(lambda: (model(), arguments()), backward=True)


LAYERS = [
    (lambda: nn.Linear(4, 3), (2, 4)), (lambda: nn.Bilinear(4, 4, 2), None),
    (lambda: nn.Conv1d(4, 3, 3), (2, 4, 9)), (lambda: nn.ConvTranspose2d(4, 3, 3), (2, 4, 5, 5)),
    (lambda: nn.Conv2d(4, 3, 3, padding="same", padding_mode="reflect"), (2, 4, 5, 5)),
    (lambda: nn.BatchNorm1d(4), (6, 4)),
    (lambda: nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 5, 5)),
    (lambda: nn.LayerNorm(4), (2, 4)), (lambda: nn.RMSNorm(4), (2, 4)),
    (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    (lambda: nn.PReLU(), (2, 4)), (lambda: nn.RReLU(), (2, 4)),
    (lambda: nn.Softmax(dim=-1), (2, 4)),
    (lambda: nn.GLU(), (2, 4)), (lambda: nn.Hardswish(), (2, 4)), (lambda: nn.Mish(), (2, 4)),
    (lambda: nn.AvgPool2d(2), (2, 4, 6, 6)), (lambda: nn.Upsample(scale_factor=2), (2, 4, 3, 3)),
    (lambda: nn.PixelShuffle(2), (2, 4, 3, 3)), (lambda: nn.ZeroPad2d(1), (2, 4, 3, 3)),
    (lambda: nn.AlphaDropout(0.2), (2, 4)), (lambda: nn.CosineSimilarity(), None),
    (lambda: nn.Unflatten(1, (2, 2)), (2, 4)), (lambda: nn.Threshold(0.1, 2), (2, 4)),
    (lambda: nn.LocalResponseNorm(2), (2, 4, 5)), (lambda: nn.Fold((4, 4), 2), (2, 4, 9)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_torch_layer(layer, shape):
    args = (
        (lambda: (torch.randn(2, 4), torch.randn(2, 4)))
        if shape is None
        else lambda: (torch.randn(shape),)
    )

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer()

        def forward(self, *inputs):
            return self.layer(*inputs)

    check(lambda: (Holder(), args()))


LOSSES = [
    nn.CrossEntropyLoss,
    nn.MSELoss,
    nn.L1Loss,
    nn.BCEWithLogitsLoss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_loss_modules(loss):
    criterion = loss()

    def program(x, y):
        return criterion(x, y)

    check(lambda: (program, (torch.randn(3, 4, requires_grad=True), torch.rand(3, 4))))


def test_parameters_are_inputs_by_source():
    model = MLP()
    trace = trace_of(model, torch.randn(2, 12))
    names = [each.name for each in trace.inputs]
    assert names == [
        "x", "self_fc1_weight", "self_fc1_bias", "self_fc2_weight", "self_fc2_bias",
        "self_fc3_weight", "self_fc3_bias",
    ]  # fmt: skip
    assert all("val" in n.meta for n in trace.graph.graph.nodes if n.op != "output")
    assert not list(trace.graph.parameters())


def test_guards_of_an_mlp_are_few():
    trace = trace_of(MLP(), torch.randn(2, 12))
    assert len(trace.guards) <= 25, "\n".join(map(str, trace.guards))
    assert sum(isinstance(g, TensorMatch) for g in trace.guards) == 7
    # The hooks of all modules, and one for each module: of those called, and of the root's names.
    assert sum(isinstance(g, EntriesEmpty) for g in trace.guards) == 5


def test_a_shared_parameter_is_one_input():
    trace = trace_of(GPT(), torch.randint(0, 11, (1, 4)))
    names = [each.name for each in trace.inputs]
    assert "self_tok_weight" in names
    assert "self_head_weight" not in names


def test_lines_of_nodes_are_the_users():
    trace = trace_of(MLP(), torch.randn(2, 12))
    for node in trace.graph.graph.nodes:
        if node.op.startswith("call"):
            assert node.meta["lines"][0].filename == __file__
            assert node.meta["lines"][0].function.endswith("forward")


def test_graph_is_torch_level():
    trace = trace_of(CNN(), torch.randn(2, 1, 12, 12))
    targets = [n.target for n in trace.graph.graph.nodes if n.op.startswith("call")]
    assert F.batch_norm in targets
    assert targets.count(torch.conv2d) == 2
    assert "add_" in targets  # num_batches_tracked


def test_backward_hooks_are_effects_at_the_exit():
    model = MLP()
    model.fc2.register_full_backward_hook(lambda *_: None)
    assert len(trace_of(model, torch.randn(2, 12)).effects) == 2
    root = MLP()
    root.fc1.weight.register_hook(lambda grad: grad)  # a tensor's hook is autograd's affair
    assert not trace_of(root, torch.randn(2, 12)).effects


def test_forward_of_an_instance_is_used():
    def make():
        model = MLP()
        model.fc2.forward = lambda x: x[:, :6] * 2
        return model, (torch.randn(2, 12),)

    check(make)


def test_module_created_inside_breaks():
    def program(x):
        y = x + 1
        return nn.LSTM(3, 3)(y)

    assert "made outside of graphs" in break_of(program, torch.randn(2, 3)).reason.message


def test_removing_submodules_breaks():
    class Swap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            y = self.lin(x)
            self.lin = None
            return y

    break_of(Swap(), torch.randn(1, 2))


def test_closure_and_global_modules():
    def make():
        lin = nn.Linear(3, 3)
        norm = nn.BatchNorm1d(3)

        def program(x):
            return norm(lin(x)) + lin.weight.sum()

        return program, (torch.randn(4, 3),)

    check(make)


def test_shared_submodule_called_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = self.one

        def forward(self, x):
            return self.two(self.one(x))

    trace = check(lambda: (Twice(), (torch.randn(2, 3),)))
    assert len(trace.inputs) == 3


def test_multihead_attention_module():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.mha(x, x, x, need_weights=False)[0]

    check(lambda: (Holder(), (torch.randn(2, 5, 8),)))


def test_transformer_encoder_layer():
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)

        def forward(self, x):
            return self.layer(x)

    check(lambda: (Holder(), (torch.randn(2, 5, 8),)))


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
def test_recurrent_modules_in_autocast_break_with_a_reason(kind):
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(4, 5)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = x * 2
                return self.rnn(y)[0]

    broken = break_of(Holder(), torch.randn(100, 2, 4))
    assert "self.rnn(y)" in broken.where.text


def test_deepcopy_of_a_traced_module_traces_alike():
    model = Block()
    one = trace_of(model, torch.randn(1, 3, 16))
    two = trace_of(copy.deepcopy(model), torch.randn(1, 3, 16))
    assert [str(n.target) for n in one.graph.graph.nodes] == [
        str(n.target) for n in two.graph.graph.nodes
    ]


class Wrapper(nn.Module):
    """Forwards unknown names to what it wraps, as adapters do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MLP()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x):
        return self.fc3(self.inner.fc2(self.fc1(x)))


class Assorted(nn.Module):
    activations = {"relu": F.relu, "gelu": F.gelu}

    def __init__(self, act: str = "gelu") -> None:
        super().__init__()
        self.act = self.activations[act]
        self.tanh_gelu = functools.partial(F.gelu, approximate="tanh")
        self.lin = nn.Linear(3, 3)
        self.config = types.SimpleNamespace(scale=2.0, names=["a", "b"])
        self.register_buffer("table", torch.arange(9.0).view(3, 3), persistent=False)
        self.register_buffer("none", None)

    @property
    def device(self):
        return next(self.parameters()).device

    def extra(self, x, *, flip=False, **scales):
        x = x.flip(0) if flip else x
        for value in scales.values():
            x = x * value
        return x

    def forward(self, x, mask=None):
        assert isinstance(self.lin.weight, nn.Parameter)
        assert not isinstance(self.table, nn.Parameter)
        assert self.none is None
        x = self.tanh_gelu(self.act(self.lin(x))).to(self.device) * self.config.scale
        x = self.extra(x, flip=True, a=2, b=0.5) + torch.zeros(3, device=self.device)
        if mask is not None:
            x = x.masked_fill(mask, 0.0)
        out = {"x": x @ self.table, "n": len(self.config.names), "dtype": self.lin.weight.dtype}
        return tuple(out.items()) if self.training else out


class SwitchesMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        y = self.drop(x)
        self.drop.training = False
        return y + self.drop(x)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (Wrapper, lambda: (torch.randn(2, 12),)),
        (Assorted, lambda: (torch.randn(3, 3),)),
        (Assorted, lambda: (torch.randn(3, 3), torch.eye(3).bool())),
        (SwitchesMode, lambda: (torch.randn(3, 3),)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_patterns_of_real_models(model, arguments, training):
    check(lambda: (model().train(training), arguments()))


def test_under_inference_mode():
    with torch.inference_mode():
        check(lambda: (CNN().eval(), (torch.randn(2, 1, 12, 12),)))
        check(lambda: (lambda x: x.add_(1).mul_(2), (torch.randn(2, 3),)))


def test_modules_tagged_by_jitmagic_are_inlined():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        jitmagic.jit(model[0], fullgraph=True)
        jitmagic.jit(model, backend="eager")
        return lambda x: model(x) + 1, (torch.randn(2, 4),)

    nodes = check(make).graph.graph.nodes
    assert [n.target for n in nodes if n.op == "call_function"][-1] is operator.add


def test_module_that_loses_its_tag_is_traced_again():
    model = jitmagic.jit(nn.Linear(4, 4))
    run = jitmagic.jit(lambda x: model(x) + 1)
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x) + 1)
        untag(model)
    assert len(handle_of(run).dispatcher.entries) == 2


def test_modules_compiled_by_torch_break():
    model = nn.Linear(4, 4)
    model._compiled_call_impl = functools.partial(model._call_impl)  # as Module.compile() does
    assert "compiled by torch" in break_of(lambda x: model(x) + 1, torch.randn(2, 4)).reason.message


def test_a_disabled_module_breaks():
    plain = jitmagic.disable(jitmagic.jit(nn.Linear(4, 4)))
    assert break_of(lambda x: plain(x) + 1, torch.randn(2, 4)).reason.message.count("disable")
