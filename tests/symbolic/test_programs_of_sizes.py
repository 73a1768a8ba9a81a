"""Small programs with changing sizes: the number of traces, and results equal to eager's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import FallbackWarning
from jitmagic.graph.symbolic import concrete
from jitmagic.spec import TensorSpec

SIZES = (9, 5, 16, 34, 12, 7, 1, 20)
Program = Callable[..., Any]
Make = Callable[[int], tuple[Any, ...]]


@jitmagic.disable
def opaque(value: Any) -> Any:
    return value


def rows(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, 6),)


def images(n: int) -> tuple[Any, ...]:
    return (torch.randn(2, 3, n + 7, n + 7),)


def sequences(n: int) -> tuple[Any, ...]:
    return (torch.randn(3, n, 8),)


def cube_of(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0, None, None] * x[:, 1, None] + x[:, 2]


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape[0] + 2, 6)
    y[1:-1] = x
    y[x.shape[0]] = 1.0
    return y


def as_images_of(size: Callable[[int], int], mode: str) -> Program:
    return lambda x: F.interpolate(x, (size(x.shape[2]), size(x.shape[3])), mode=mode)


# -- of tensors whose sizes change ----------------------------------------------------------------

LAYERS: dict[str, tuple[nn.Module, Make]] = {
    "LSTMCell": (nn.LSTMCell(6, 4), rows),
    "GRUCell": (nn.GRUCell(6, 4), rows),
    "RNNCell": (nn.RNNCell(6, 4), rows),
    "LSTM, lengths": (nn.LSTM(8, 4, batch_first=True), sequences),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), sequences),
    "convolution": (nn.Conv2d(3, 4, 3, stride=2, padding=1), images),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1), images),
    "unfold": (nn.Unfold(2), images),
    "pooled": (nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3)), images),
    "upsampled": (nn.Upsample(scale_factor=2, mode="bilinear"), images),
}
PROGRAMS: dict[str, tuple[Program, Make]] = {
    "linspace": (lambda x: x * torch.linspace(0, 1, x.shape[0])[:, None], rows),
    "linspace up to a size": (lambda x: torch.linspace(0, x.shape[0] - 1, x.shape[0]), rows),
    "window": (lambda x: x * torch.hann_window(x.shape[0])[:, None], rows),
    "eye": (lambda x: x @ x.t() + torch.eye(x.shape[0]), rows),
    "diagonal": (lambda x: (x @ x.t()).fill_diagonal_(0.5).softmax(-1), rows),
    "diagonal of a cube": (lambda x: cube_of(x).fill_diagonal_(0.5) * 2, rows),
    "power": (lambda x: x / x.shape[0] ** 0.5 + x.shape[0] ** -0.5, rows),
    "logarithm": (lambda x: x * math.log(x.shape[0] + 1), rows),
    "sym_float": (lambda x: x / torch.sym_float(x.shape[0]), rows),
    "half as a bound": (lambda x: x[: int(x.shape[0] / 2) + 1] * 2, rows),
    "ceil as a bound": (lambda x: x[: math.ceil(x.shape[0] / 2)] * 2, rows),
    "part as a bound": (lambda x: x[: int(x.shape[0] * 0.75) + 1].sum(0), rows),
    "probability": (lambda x: F.dropout(x, 1 / (x.shape[0] + 1), training=False), rows),
    "last row": (lambda x: x[-1] + x[x.shape[0] - 1] + x[0], rows),
    "one of each": (lambda x: x[x.shape[0] // 2, None, 1:3] * 2, rows),
    "assignments": (assigned, rows),
    "chunks": (lambda x: torch.cat([c * i for i, c in enumerate(x.chunk(2))]), rows),
    "split": (lambda x: [c.sum() for c in x.split(x.shape[0] // 2 + 1)], rows),
    "bits": (lambda x: x.sum() + (x.shape[0] & 3) + (x.shape[0] >> 1), rows),
    "divmod": (lambda x: x.sum() + sum(divmod(x.shape[0], 3)), rows),
    "fft": (lambda x: torch.fft.rfft(x, dim=0).abs(), rows),
    "buckets": (lambda x: torch.bucketize(x, torch.linspace(-1, 1, x.shape[0])), rows),
    "twice as large": (as_images_of(lambda n: n * 2, "bilinear"), images),
    "half as large": (as_images_of(lambda n: n // 2, "nearest"), images),
    "of one size": (as_images_of(lambda n: 8, "area"), images),
    "rate of sizes": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), images),
    "scaled attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, scale=1 / math.sqrt(x.shape[1])),
        sequences,
    ),
}
NUMBERS: dict[str, tuple[Program, Make]] = {
    "bound": (lambda x, n: x[:n] * 2, lambda n: (torch.randn(40, 6), n)),
    "start": (lambda x, n: x[n : n + 3] + n, lambda n: (torch.randn(40, 6), n)),
    "index": (lambda x, n: x[n] * x[n, 2], lambda n: (torch.randn(40, 6), n)),
    "zeros": (lambda x, n: x.sum() + torch.zeros(n, 3), lambda n: (torch.randn(4), n)),
    "arange": (lambda x, n: x.sum() * torch.arange(n), lambda n: (torch.randn(4), n)),
    "view": (lambda x, n: x.view(n, 2, 3).sum(1), lambda n: (torch.randn(n, 6), n)),
    "narrow": (lambda x, n: x.narrow(0, 1, n).sum(0), lambda n: (torch.randn(40, 6), n)),
    "half": (lambda x, n: x[: n // 2 + 1].relu(), lambda n: (torch.randn(40, 6), n)),
    "a size returned": (lambda x, n: (x[: n + 1], x[: n + 1].shape[0]), lambda n: (x40(), n)),
}


def x40() -> torch.Tensor:
    return torch.randn(40, 6)


def traces(fn: Any) -> int:
    records = handle_of(fn).journal.records
    return sum(any(stage.stage == "trace" for stage in record.stages) for record in records)


def check(program: Program, make: Make, dynamic: bool | None, backend: str) -> int:
    torch.manual_seed(0)
    plain = copy.deepcopy(program)
    made = jitmagic.jit(program, dynamic=dynamic, backend=backend, options={"recompile_limit": 32})
    for n in SIZES:
        args = make(n)
        ours, theirs = ([copied(one) for one in args] for _ in range(2))
        found, wanted = made(*ours), plain(*theirs)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        for result, given in ((found, ours), (wanted, theirs)):
            differentiate(result)
            given[:] = [one.grad for one in given if isinstance(one, torch.Tensor)]
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    return traces(made)


def copied(value: Any) -> Any:
    return value.clone().requires_grad_() if isinstance(value, torch.Tensor) else value


def differentiate(result: Any) -> None:
    leading = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if leading:
        sum((t.square().sum() for t in leading), torch.zeros(())).backward()


def expected(make: Make, dynamic: bool | None) -> int:
    """One variant for all sizes, one for size 1 where the tensors have it, the first if static."""
    return 1 + (make is not images) + (dynamic is None)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions(name: str, dynamic: bool | None) -> None:
    program, make = PROGRAMS[name]
    assert check(program, make, dynamic, "aot_eager") == expected(make, dynamic)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dynamic: bool | None) -> None:
    layer, make = LAYERS[name]
    assert check(copy.deepcopy(layer), make, dynamic, "aot_eager") == expected(make, dynamic)


def test_batches_of_a_layer_that_has_a_formula_for_each_step() -> None:
    """Its steps are no symbol as long as they do not change."""
    assert check(nn.GRU(8, 4), sequences, None, "aot_eager") == expected(sequences, None)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", NUMBERS)
def test_ints_of_the_call_are_sizes(name: str, dynamic: bool | None) -> None:
    program, make = NUMBERS[name]
    of_size = name not in ("start", "index")  # a tensor of 1 row is contiguous whatever its stride
    assert check(program, make, dynamic, "aot_eager") <= 2 + of_size


def across_a_break(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    half = n // 2
    y = opaque(x * 2)
    return y.view(n * 6)[: half + 1] * n + torch.ones(half + 1)


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_pass_a_graph_break(dynamic: bool | None) -> None:
    """Two frames: the second takes its sizes as ints, which are symbols once they have changed."""
    assert check(across_a_break, rows, dynamic, "aot_eager") <= 6


SHARING = ("power", "logarithm", "sym_float", "half as a bound")


@pytest.mark.parametrize("name", SHARING)
def test_kernels_serve_all_sizes(name: str) -> None:
    program, make = PROGRAMS[name]
    own = jitmagic.jit(program, dynamic=True, options={"keep": "compiled"})
    for n in SIZES:
        args = make(n)
        torch.testing.assert_close(own(*args), program(*args), rtol=1e-4, atol=1e-5)
    records = handle_of(own).journal.records
    # The variant that serves a size of one serves others as well, with kernels of the same text.
    assert sum(record.kernels > 0 for record in records) <= 3


def test_graph_that_changes_at_some_size_runs_in_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inferred shapes are compared at each size; no part of a wrong graph runs."""
    move = concrete._moved_spec

    def moved_spec(spec: TensorSpec, known: dict[Any, Any]) -> TensorSpec:
        made = move(spec, known)
        return replace(made, shape=(20, 21)) if made.shape == (20, 20) else made

    monkeypatch.setattr(concrete, "_moved_spec", moved_spec)
    program = PROGRAMS["eye"][0]
    made = jitmagic.jit(program, dynamic=True, backend="aot_eager")
    for n in SIZES[:-1]:
        made(torch.randn(n, 6))
    x = torch.randn(20, 6)
    with pytest.warns(FallbackWarning, match="at these sizes"):
        found = made(x)
    torch.testing.assert_close(found, program(x))
    assert traces(made) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_relation_that_cannot_be_computed_does_not_hold(backend: str) -> None:
    """Guards of a variant divide by a size of a later call, which is zero."""

    def last_half(x: torch.Tensor) -> torch.Tensor:
        return [part.sum() for part in x.split(max(x.shape[0] // 2, 1))][-1]

    made = jitmagic.jit(last_half, backend=backend)
    for n in (2, 6, 1, 8, 1, 3):
        x = torch.randn(n)
        torch.testing.assert_close(made(x), last_half(x))
