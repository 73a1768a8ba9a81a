"""Modules made where they are used: one graph, unless they get hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitmagic

from ..counts import counts_of


class Scale(nn.Module):
    unit = 1.0

    def __init__(self, factor=2.0, bias=True):
        super().__init__()
        self.factor = factor
        self.register_buffer("bias", torch.ones(3) if bias else None)
        self.register_parameter("gone", None)
        self.inner = nn.ReLU()
        self.add_module("outer", nn.Hardtanh(-4.0, 4.0))

    @property
    def twice(self):
        return self.factor * 2

    def forward(self, x):
        y = self.inner(x * self.twice + self.unit)
        if self.bias is not None and self.gone is None and self.training:
            y = y + self.bias
        return self.outer(y)


class Wider(Scale):
    def __init__(self):
        super().__init__(3.0)
        self.bias = self.bias * 2

    def forward(self, x):
        return super().forward(x) - 1


def losses(x, y):
    return nn.CrossEntropyLoss()(x, y) + nn.MSELoss(reduction="sum")(x, x * 0.5)


def of_the_users(x, y):
    return Scale()(x) + Scale(1.0, bias=False)(x) + Wider()(x)


def sequence(x, y):
    return nn.Sequential(nn.GELU(), nn.Softmax(-1), nn.Flatten(0))(x)


def pools(x, y):
    return nn.MaxPool1d(2, 2)(x[None]), nn.AvgPool1d(2)(x[None]), nn.Identity()(x)


def attributes(x, y):
    made = Scale()
    made.extra = 3
    return x * made.extra * made.factor, isinstance(made, nn.Module), hasattr(made, "nothing")


def in_a_loop(x, y):
    for number in range(3):
        x = nn.LeakyReLU(0.1 * number)(x)
    return x


def made_by_a_table(x, y):
    table = {"relu": nn.ReLU, "elu": (nn.ELU, {"alpha": 0.5})}
    made = table["elu"][0](**table["elu"][1])
    return made(table["relu"]()(x) - 1)


def handed_out(x, y):
    made = nn.ReLU()
    return made(x), made


def kept(x, y):
    KEPT.append(nn.ReLU())
    return KEPT[-1](x)


def parameters(x, y):
    return nn.Linear(3, 2)(x)


WHOLE = [
    *(losses, of_the_users, sequence, pools, attributes, in_a_loop, made_by_a_table),
    *(handed_out, kept, parameters),
]


def hooked(x, y):
    made = nn.ReLU()
    made.register_forward_hook(lambda module, args, out: out + 1)
    return made(x)


KEPT: list[nn.Module] = []
BROKEN = [hooked]


def results(fn, grad):
    torch.manual_seed(3)
    x = torch.randn(4, 3, requires_grad=grad)
    out = fn(x, torch.tensor([0, 1, 2, 1]))
    parts = out if isinstance(out, tuple) else (out,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if grad:
        sum(part.sum() for part in tensors).backward()
    others = [type(part) if isinstance(part, nn.Module) else part for part in parts]
    return [t.detach() for t in tensors], [o for o in others if not torch.is_tensor(o)], x.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", WHOLE + BROKEN, ids=lambda p: p.__name__)
def test_as_eager(program, grad):
    tagged = jitmagic.jit(program, backend="eager")
    for _ in range(2):
        got, want = results(tagged, grad), results(program, grad)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1]
        torch.testing.assert_close(got[2], want[2])
    assert (counts_of(tagged).breaks == 0) == (program in WHOLE)


def test_global_hook_recompiles():
    tagged = jitmagic.jit(sequence, backend="eager")
    x, y = torch.randn(4, 3), torch.tensor([0])
    assert torch.equal(tagged(x, y), sequence(x, y))
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda *call: seen.append(call[0]))
    try:
        tagged(x, y)
        assert len(seen) == 4
    finally:
        handle.remove()
    tagged(x, y)
    assert len(seen) == 4


def test_replaced_forward_recompiles(monkeypatch):
    tagged = jitmagic.jit(in_a_loop, backend="eager")
    x = torch.randn(4, 3)
    tagged(x, None)
    monkeypatch.setattr(nn.LeakyReLU, "forward", lambda self, x: x * 2)
    assert torch.equal(tagged(x, None), x * 8)


class Holder(nn.Module):
    """All that a module may keep, and a way back to itself."""

    def __init__(self, x):
        super().__init__()
        self.rate = 0.5
        self.register_buffer("mean", x.mean(0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.body = nn.Sequential(nn.Tanh(), nn.Dropout(0.25))
        self.within = [self]
        self.eval()

    def forward(self, x):
        return self.body(x - self.mean) * self.rate + self.scratch


def makes_a_holder(x):
    made = Holder(x.detach())
    return made(x).sum(), made


def contents(module):
    return [
        (name, {k: type(v) for k, v in vars(part).items()}, list(part.state_dict()), part.training)
        for name, part in module.named_modules()
    ]


def test_returned_new_module_equals_eager_module():
    tagged = jitmagic.jit(makes_a_holder, fullgraph=True)
    x = torch.randn(4, 3, requires_grad=True)
    (got, ours), (want, plain) = tagged(x), makes_a_holder(x)
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(want, x))
    assert contents(ours) == contents(plain)
    assert ours.within[0] is ours
    assert ours._non_persistent_buffers_set == {"scratch"}
    torch.testing.assert_close(ours(x), plain(x))
    assert tagged(x)[1] is not ours


def test_new_module_live_at_a_break_works_in_the_resume_function(capsys):
    def twice(x):
        loss = nn.BCEWithLogitsLoss(pos_weight=x.detach()[0].abs())
        first = loss(x, torch.ones(4, 3))
        print("between")
        return first + loss(x * 2, torch.zeros(4, 3))

    tagged = jitmagic.jit(twice)
    x = torch.randn(4, 3, requires_grad=True)
    got, want = tagged(x), twice(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(want, x))
    assert counts_of(tagged).graphs == 2
    assert counts_of(tagged).breaks == 1
    assert capsys.readouterr().out == "between\n" * 2


def test_submodule_replaces_plain_attribute():
    class Replaced(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = 1
            self.act = nn.Tanh()

    def made(x):
        return Replaced().act(x)

    x = torch.randn(3)
    torch.testing.assert_close(jitmagic.jit(made)(x), made(x))
