"""Programs whose graphs are stored: small ones of each kind that a graph can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention as flex
from torch.utils.checkpoint import checkpoint

from tests.fuzz.generate import generate
from tests.fuzz.program import load
from tests.programs.control_flow.plain import TORCH
from tests.programs.modules import operators_defined

__all__ = ["PROGRAMS", "Case"]

OPS = getattr(torch.ops, operators_defined.NAMESPACE)


@dataclass(frozen=True)
class Case:
    """`build` returns what is compiled; `calls` the arguments of each call."""

    name: str
    build: Callable[[], Callable[..., Any]]
    calls: Callable[[], Sequence[Sequence[Any]]]
    dynamic: bool = False
    checks: bool = False  # whether a function of the program runs again if guards of it fail
    raises: tuple[type[BaseException], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{'-sized' if self.dynamic else ''}"


PROGRAMS: list[Case] = []


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1.5, 2.0, count).reshape(shape).to(dtype)


def leaf(*shape: int) -> Tensor:
    return x(*shape).requires_grad_()


def program(
    *shapes: tuple[int, ...], sized: bool = True, checks: bool = False
) -> Callable[[Any], Any]:
    """Register a function of tensors of these shapes, or a class of modules."""

    def register(function: Any) -> Any:
        def build() -> Any:
            torch.manual_seed(3)
            return function() if isinstance(function, type) else function

        def calls() -> Sequence[Sequence[Any]]:
            return [[leaf(*shape) for shape in shapes]]

        for dynamic in (False, True) if sized else (False,):
            PROGRAMS.append(Case(function.__name__, build, calls, dynamic, checks))
        return function

    return register


@program((3, 4), (4,))
def elementwise(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sigmoid() + a.exp().clamp(-1, 2) / (b.abs() + 1)


@program((3, 4), (4, 5))
def product(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a @ b).softmax(-1)


@program((4, 6))
def views(a: Tensor) -> tuple[Tensor, ...]:
    b = a.view(2, 2, 6).transpose(0, 1)
    return b[..., ::2], a[1:, None], torch.as_strided(a, (2, 2), (1, 2), 1), a.t()


@program((4, 6))
def written(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a * 2
    b[1:3, ::2] += 1
    b.t()[0].mul_(3)
    with torch.no_grad():
        c = a.detach().clone()
        c.relu_()
    return b, c


@program((4, 6))
def written_input(a: Tensor) -> Tensor:
    with torch.no_grad():
        a.add_(1)
        a[0].zero_()
    return a * 2


@program((4, 6))
def random(a: Tensor) -> Tensor:
    return F.dropout(a, 0.4) + torch.rand_like(a) * torch.randn(6)


@program((4, 6))
def indexing(a: Tensor) -> tuple[Tensor, ...]:
    places = torch.tensor([2, 0, 3])
    return a[places], a.gather(1, places[:, None]), torch.where(a > 0, a, -a), a.cumsum(0)


@program((5, 6))
def several(a: Tensor) -> tuple[Tensor, ...]:
    values, places = a.topk(2, dim=0)
    return values, places, *a.split([2, 4], 1), *a.unbind(0)[:2], a.std(0)


@program((4, 6))
def sizes_in_arguments(a: Tensor) -> Tensor:
    return (a.reshape(-1, a.shape[0] // 2) / a.shape[0]).expand(3, -1, -1) + a.numel()


@program((2, 3, 8, 8), sized=False)
class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, a: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.conv(a))), 2).mean((2, 3))


@program((2, 5, 8))
class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)

    def forward(self, a: Tensor) -> Tensor:
        return self.layer(a)


@program((3, 2, 4), sized=False)
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, a: Tensor) -> Tensor:
        return self.lstm(a)[0]


@program((6, 4))
def attention(a: Tensor) -> Tensor:
    heads = a.view(1, a.shape[0], 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


@program((4, 5))
def loss(a: Tensor) -> Tensor:
    return F.cross_entropy(a, torch.tensor([1, 0, 4, 2]), label_smoothing=0.1)


@program((4, 6))
def constants(a: Tensor) -> Tensor:
    return a * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + torch.arange(6) * float("nan")


@program((4, 6))
def complex_numbers(a: Tensor) -> Tensor:
    return torch.fft.rfft(a).abs() + a[:, :4] * (1 + 2j).imag


@program((4, 6))
def autocast(a: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return a @ a.t()


@program((4, 6))
def no_grad_inside(a: Tensor) -> Tensor:
    with torch.no_grad():
        scale = a.norm()
    return a / scale


@program((4, 6))
def gradient_inside(a: Tensor) -> Tensor:
    b = a.detach().requires_grad_()
    (g,) = torch.autograd.grad((b**3).sum(), b)
    return a * g


@program((4, 6), sized=False)
def numpy_inside(a: Tensor) -> Tensor:
    return a * torch.from_numpy(np.fft.fft(a.detach().numpy()).real.astype("float32"))


@program((4, 6), checks=True)
class CheckpointedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, a: Tensor) -> Tensor:
        return checkpoint(self.layer, a, use_reentrant=False).sin()


@program((4, 6))
def checkpointed(a: Tensor) -> Tensor:
    return checkpoint(torch.sin, a * 2, use_reentrant=False).exp()


@program((4, 6), sized=False)
def custom_operators(a: Tensor) -> tuple[Tensor, ...]:
    first = operators_defined.scaled(a, 2.5, times=3)
    return first, operators_defined.square(a), OPS.noise(a), *operators_defined.both(a)


@program((4, 6), sized=False)
def custom_operator_that_writes(a: Tensor) -> Tensor:
    out, count = torch.zeros_like(a), torch.zeros(2)
    operators_defined.add_into(out, a.detach(), count)
    return out + a * count.sum()


@program((4, 6), sized=False)
def branch(a: Tensor) -> Tensor:
    return TORCH.cond(a.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (a,)) + 1


@program((4, 6), sized=False)
def loop(a: Tensor) -> Tensor:
    made = TORCH.while_loop(
        lambda n, x: n < 3, lambda n, x: (n + 1, x * 0.5 + n), (torch.tensor(0), a.detach())
    )
    return made[1] * a


@program((4, 6), sized=False)
def scanned(a: Tensor) -> Tensor:
    return TORCH.scan(lambda c, row: (c + row, c * row), a[0] * 0, a, dim=0)[1]


@program((4, 6), sized=False)
def transformed(a: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda row: (row.sin() ** 2).sum()))(a)


@program((4, 6), sized=False)
def size_of_data(a: Tensor) -> Tensor:
    return a[a > 0] * 2


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return 3 * a * a * g


@program((4, 6), checks=True)
def autograd_function(a: Tensor) -> Tensor:
    return Cubed.apply(a).sin()


@program((4, 6), checks=True)
def hooked(a: Tensor) -> Tensor:
    b = a * 2
    b.register_hook(lambda g: g * 3)
    return b.exp()


@program((1, 2, 16, 8), sized=False)
def flex_attention(a: Tensor) -> Tensor:
    a = a.detach()
    return flex(a, a * 2, a + 1, score_mod=lambda score, b, h, q, k: score + (q - k))


@program((4, 6))
def results_of_results(a: Tensor) -> tuple[Tensor, Tensor]:
    b = a.sin()
    return b, (b * 2).exp()


def generated(seed: int) -> Case:
    """Return a random program of the fuzzer."""
    space: dict[str, Any] = {}

    def build() -> Any:
        space.update(load(generate(seed).source()))
        return space["build"]()

    return Case(
        f"seed {seed}", build, lambda: [one() for one in space["CALLS"]], raises=(Exception,)
    )


@program((4, 6), (4, 6))
def optimizer_step(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        b.mul_(0.9).add_(a, alpha=0.1)
        a.addcdiv_(b, b.abs().sqrt() + 1e-8, value=-1e-3)
    return b


PROGRAMS += [generated(seed) for seed in range(40)]
