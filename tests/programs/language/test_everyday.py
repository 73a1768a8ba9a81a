"""What people write in notebooks: small models, matrix algebra, loops. Compiled as eager runs it.

Each program runs plainly and compiled, twice over, and must show the same; see harness.py.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of
from ..harness import Program, check


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage boundary is verified."""
    monkeypatch.setenv("JITMAGIC_VERIFY", "1")


def r(*shape: int, grad: bool = False) -> Tensor:
    """A tensor that depends on its shape alone."""
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


class Unrolled(nn.Module):
    """An LSTM cell stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 6)
        steps = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            steps.append(self.out(h))
        return torch.stack(steps, 1)


class Residual(nn.Module):
    """A ResNet block with an in-place sum and in-place ReLUs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, 2, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.down = nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


class Autoencoder(nn.Module):
    """Variational, drawing its noise inside."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(10, 8)
        self.mean, self.spread = nn.Linear(8, 3), nn.Linear(8, 3)
        self.decode = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 10), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        noise = torch.randn_like(spread)
        return self.decode(mean + noise * torch.exp(0.5 * spread)), mean, spread


class Experts(nn.Module):
    """A mixture of experts, routed by data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, index = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = (index == number).nonzero(as_tuple=True)
            out.index_add_(0, token, expert(x[token]) * weight[token, slot].unsqueeze(-1))
        return out


def recurrent() -> nn.Module:
    return nn.LSTM(8, 16, 2, batch_first=True)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def rotary(q: Tensor) -> Tensor:
    half = torch.arange(0, q.shape[-1], 2).float() / q.shape[-1]
    angle = torch.outer(torch.arange(q.shape[1], dtype=torch.float32), 1.0 / (10000**half))
    angle = torch.cat((angle, angle), -1)
    left, right = q.chunk(2, -1)
    return q * angle.cos() + torch.cat((-right, left), -1) * angle.sin()


def power_iteration(matrix: Tensor) -> tuple[Tensor, Tensor]:
    vector = matrix.new_ones(matrix.shape[0])
    for _ in range(20):
        vector = matrix @ vector
        vector = vector / vector.norm()
    return vector, vector @ matrix @ vector


def singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The library's V comes in other strides than its meta kernel says."""
    u, s, v = torch.svd(matrix)
    return u @ torch.diag(s) @ v.t(), v.abs()


def newton(features: Tensor, labels: Tensor) -> Tensor:
    weight = features.new_zeros(features.shape[1])
    for _ in range(3):
        p = torch.sigmoid(features @ weight)
        curvature = features.T @ (features * (p * (1 - p))[:, None]) + 1e-2 * torch.eye(4).to(
            features
        )
        weight = weight - torch.linalg.solve(curvature, features.T @ (p - labels) + 1e-2 * weight)
    return weight


def relabelled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In-place operations that change what a tensor looks like, and writes through them."""
    row = x.clone().unsqueeze_(0)
    turned = (x * 2).t_()
    turned.add_(1)
    squeezed = row.squeeze_().transpose_(0, 1)
    squeezed[0] = 7.0
    return row, turned, squeezed


@functools.lru_cache
def causal(n: int) -> Tensor:
    return torch.tril(torch.ones(n, n)).bool()


def forgetful() -> Callable[[Tensor], Tensor]:
    causal.cache_clear()
    return masked


def masked(x: Tensor) -> Tensor:
    """The cache is asked for its tensor before the graph runs."""
    return x.masked_fill(~causal(x.shape[-1]), float("-inf")).softmax(-1)


def announced(n: int) -> Tensor:
    print(f"a mask of {n}")
    return torch.tril(torch.ones(n, n)).bool()


def interrupted(x: Tensor) -> Tensor:
    """The break is inside the argument of a bound method."""
    return x.masked_fill(~announced(x.shape[-1]), float("-inf")).softmax(-1)


def clusters(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    nearest = torch.cdist(points, centres).argmin(1)
    for _ in range(2):
        means = []  # no comprehension: those are frames of their own before 3.12
        for k in range(centres.shape[0]):
            mine = points[nearest == k]
            means.append(mine.mean(0) if len(mine) else centres[k])
        centres = torch.stack(means)
        nearest = torch.cdist(points, centres).argmin(1)
    return centres, nearest


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, -1), v)


def square(n: int) -> Tensor:
    return r(n, n) @ r(n, n).T + torch.eye(n)


def case(
    name: str,
    build: Callable[[], Any],
    counts: tuple[int, int, int | None],
    *calls: tuple[Any, ...],
) -> Program:
    """A program and what its first call compiles to: graphs, breaks, kernels (None: any)."""
    train = isinstance(build(), nn.Module)
    graphs, breaks, kernels = counts
    return Program(name, build, lambda: calls, graphs, breaks, kernels, train=train)


PROGRAMS = [
    case("lstm", recurrent, (1, 0, 3), (r(3, 5, 8, grad=True),)),
    case("lstm cell", Unrolled, (1, 0, 7), (r(2, 3, 4, grad=True),)),
    case("resnet block", Residual, (1, 0, 3), (r(2, 4, 8, 8, grad=True),)),
    case("autoencoder", Autoencoder, (1, 0, 5), (r(4, 10),)),
    case("experts", Experts, (1, 0, 16), (r(6, 8, grad=True),)),
    case("encoder", encoder, (1, 0, 11), (r(2, 5, 16, grad=True),)),
    case("rotary", lambda: rotary, (1, 0, 2), (r(2, 6, 8, grad=True),)),
    case("power iteration", lambda: power_iteration, (1, 0, 2), (square(6),)),
    # one kernel fewer where the machine's svd gives the strides that the meta kernel says
    case("singular", lambda: singular, (1, 0, None), (r(4, 4),), (r(5, 3),), (r(3, 5),)),
    case("newton", lambda: newton, (1, 0, 6), (r(30, 4), (r(30) > 0).float())),
    case("relabelled", lambda: relabelled, (1, 0, 1), (r(3, 4, grad=True),)),
    case("masked", forgetful, (1, 0, 1), (r(5, 5, grad=True),)),
    case("interrupted", lambda: interrupted, (2, 2, 2), (r(5, 5, grad=True),)),
    case("clusters", lambda: clusters, (7, 7, 14), (r(20, 2), r(3, 2))),
    case("attention", lambda: attention, (1, 0, 1), tuple(r(2, 2, 5, 8, grad=True) for _ in "qkv")),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_as_eager(program: Program) -> None:
    check(program)


def test_a_bound_method_on_the_stack_is_no_reason_to_compile_again() -> None:
    compiled = jitmagic.jit(interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.RecompileWarning)
        for seed in range(12):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), interrupted(x))


def test_a_float_that_changes_from_call_to_call_is_data() -> None:
    def scaled(x: Tensor, rate: float) -> tuple[Tensor, float]:
        return torch.tanh(x * rate - rate) + (1 - rate), rate

    def stepped(x: Tensor, rate: float) -> Tensor:
        return x * rate if rate > 0.25 else x

    for fn in (scaled, stepped):
        compiled = jitmagic.jit(fn)
        with warnings.catch_warnings():
            warnings.simplefilter("error", jitmagic.RecompileWarning)
            for i in range(20):
                x, y = r(3, 4, grad=True), r(3, 4, grad=True)
                eager, ours = fn(x, 0.31 + i / 50), compiled(y, 0.31 + i / 50)
                torch.testing.assert_close(ours, eager)
                sum(torch.utils._pytree.tree_leaves(eager)).sum().backward()
                sum(torch.utils._pytree.tree_leaves(ours)).sum().backward()
                torch.testing.assert_close(y.grad, x.grad)


def test_a_float_that_must_be_a_constant_stays_one() -> None:
    def labelled(x: Tensor, rate: float) -> tuple[Tensor, str]:
        return x * rate, f"rate {rate}"

    compiled = jitmagic.jit(labelled)
    for rate in (0.5, 0.25, 0.125):
        torch.testing.assert_close(compiled(r(4), rate)[0], r(4) * rate)
        assert compiled(r(4), rate)[1] == f"rate {rate}"
    assert counts_of(compiled).breaks == 0


NEW: dict[str, Callable[[Tensor], Any]] = {
    "sizes": lambda x: x.new(2, 3).zero_() + x[0, 0],
    "of another": lambda x: x.new(*x.size()).fill_(2) * x,
    "a Size": lambda x: x.new(x.size()).copy_(x),
    "nothing": lambda x: x + x.new().sum(),
    "a row": lambda x: x.new(x.shape[0]).zero_(),
    "of another dtype": lambda x: x.long().new(3).zero_(),
}


@pytest.mark.parametrize("name", NEW)
def test_new_tensors_as_older_programs_make_them(name: str) -> None:
    tagged = jitmagic.jit(NEW[name], fullgraph=True)
    for size in (3, 4, 5):
        x = torch.randn(size, size)
        torch.testing.assert_close(tagged(x), NEW[name](x))
