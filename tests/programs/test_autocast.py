"""Whole programs called under torch.autocast: one graph, dtypes as eager, values by float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic

from .counts import counts_of

_W = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))


def _written(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = (x @ _W.to(x.dtype))[0]
    return y


def _w(x: Tensor) -> Tensor:
    return _W.to(x.dtype)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "product and sum": lambda x: (x @ _w(x)) @ x + x,
    "addmm": lambda x: torch.addmm(x, x, _w(x)),
    "addmm in place is not cast": lambda x: (x * 2).addmm_(x, _w(x)),
    "add in place": lambda x: (x * 1).add_(x @ _w(x)),
    "softmax": lambda x: F.softmax(x @ _w(x), -1),
    "norms": lambda x: ((x @ _w(x)).norm(), F.layer_norm(x @ _w(x), (6,))),
    "reductions": lambda x: ((x @ _w(x)).sum(0), (x @ _w(x)).mean(), (x @ _w(x)).cumsum(1)),
    "powers": lambda x: ((x @ _w(x)).exp(), (x @ _w(x)) ** 2),
    "widest": lambda x: (torch.cat([x, x @ _w(x)]), torch.addcmul(x, x @ _w(x), x)),
    "losses": lambda x: (
        F.cross_entropy(x @ _w(x), torch.tensor([1, 2, 3, 0, 1, 1])),
        F.mse_loss(x @ _w(x), x),
        F.binary_cross_entropy_with_logits(x @ _w(x), x.sigmoid()),
    ),
    "attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
    "views": lambda x: (x @ _w(x)).split(2, 1)[1] * 2,
    "written": _written,
    "distances": lambda x: torch.cdist(x @ _w(x), x),
}


def _all(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _gradient(made: tuple[Tensor, ...], x: Tensor) -> Tensor:
    weights = [torch.arange(t.numel()).reshape(t.shape).sin() for t in made]
    return torch.autograd.grad(
        sum((t.double() * w).sum() for t, w in zip(made, weights, strict=True)), x
    )[0]


def _as_close(ours: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Not further from the float64 result than eager is, within the roundings of the dtype."""
    assert ours.dtype is eager.dtype
    exact = exact.detach()
    scale = max(float(exact.abs().max()), 1.0)
    limit = 2 * float((eager.detach().double() - exact).abs().max()) + 0.004 * scale
    assert float((ours.detach().double() - exact).abs().max()) <= limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_called_under_autocast(name: str, backend: str, grad: bool, dtype: torch.dtype) -> None:
    function = CASES[name]
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(3)).requires_grad_(grad)
    wide = x.detach().double().requires_grad_(grad)
    run = jitmagic.jit(function, backend=backend, fullgraph=True)
    exact = _all(function(wide))
    with warnings.catch_warnings(), torch.autocast("cpu", dtype):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        eager, ours = _all(function(x)), _all(run(x))
    for got, want, true in zip(ours, eager, exact, strict=True):
        assert (got.shape, got.stride()) == (want.shape, want.stride())
        assert got.requires_grad == want.requires_grad
        _as_close(got, want, true)
    if grad:
        _as_close(_gradient(ours, x), _gradient(eager, x), _gradient(exact, wide))


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_a_layer_trains_as_in_eager(backend: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
    run = jitmagic.jit(layer, backend=backend)
    x = torch.randn(2, 5, 8)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        ours, eager = run(x), plain(x)
    true = exact(x.double())
    _as_close(ours, eager, true)
    for made in (ours, eager, true):
        (made.double() ** 3).sum().backward()
    for own, other, wide in zip(
        layer.parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        assert own.grad is not None
        assert other.grad is not None
        assert wide.grad is not None
        _as_close(own.grad, other.grad, wide.grad)


def test_each_mode_has_an_entry_of_its_own() -> None:
    run = jitmagic.jit(lambda x: x @ x)
    x = torch.randn(4, 4)
    made = []
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            made.append(run(x).dtype)
    assert made == [torch.float32, torch.bfloat16, torch.float16, torch.float32]


# -- regions inside: entered and left as plain Python, their bodies are graphs ---------------------


def _region(x: Tensor) -> tuple[Any, ...]:
    z = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = z @ x
        b = F.softmax(a, -1) + 1
        inside = torch.is_autocast_enabled("cpu")
    return a, b, a.float() @ x, inside, torch.is_autocast_enabled("cpu")


def _nested(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        with torch.autocast("cpu", enabled=False):
            b = a.float() @ x
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            c = x @ x
        d = (a @ x).sum()
    return a, b, c, d


@torch.autocast("cpu", dtype=torch.bfloat16)
def _decorated(x: Tensor) -> Tensor:
    return (x @ x).relu()


def _calls_decorated(x: Tensor) -> tuple[Any, ...]:
    y = _decorated(x * 2)
    return y, y.float() @ x, torch.is_autocast_enabled("cpu")


def _broken_inside(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        print(end="")
        b = a @ x
    return a, b, x @ x


def _left_by_an_exception(x: Tensor) -> tuple[Any, ...]:
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
            raise KeyError("out")
    except KeyError:
        pass
    return a, x @ x, torch.is_autocast_enabled("cpu")


REGIONS = [_region, _nested, _calls_decorated, _broken_inside, _left_by_an_exception]


@pytest.mark.parametrize("outside", [False, True], ids=["off outside", "on outside"])
@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
@pytest.mark.parametrize("program", REGIONS, ids=lambda program: program.__name__)
def test_regions_inside(program: Callable[..., Any], backend: str, outside: bool) -> None:
    # No leaf: eager's cache would hand a leaf's cast of one region to a region of another dtype.
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(3)).requires_grad_() * 1
    run = jitmagic.jit(program, backend=backend)
    cached = torch.is_autocast_cache_enabled()
    with warnings.catch_warnings(), torch.autocast("cpu", torch.float16, enabled=outside):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        eager = program(x)
        ours = [run(x) for _ in range(2)][-1]
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled() is cached
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()
    for got, want in zip(ours, eager, strict=True):
        assert type(got) is type(want)
        if isinstance(want, Tensor):
            assert (got.dtype, got.requires_grad) == (want.dtype, want.requires_grad)
            torch.testing.assert_close(got, want, rtol=0.02, atol=0.05)
        else:
            assert got == want


def test_the_body_of_a_region_is_a_graph() -> None:
    run = jitmagic.jit(_region)
    run(torch.randn(6, 6))
    found = counts_of(run)
    assert (found.graphs, found.breaks) == (3, 3)  # made, entered, left


def test_numbers_that_vary_under_autocast() -> None:
    def scaled(x: Tensor, s: float) -> tuple[Tensor, ...]:
        y = x @ x
        return y * s, y**s, torch.add(y, x, alpha=s), F.softmax(y / s, -1)

    run = jitmagic.jit(scaled)
    x = torch.rand(6, 6)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        for s in (2.0, 0.5, 3.25):
            for got, want in zip(run(x, s), scaled(x, s), strict=True):
                assert got.dtype is want.dtype
                torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_statistics_are_written_once() -> None:
    """The call is tried on tensors without data: what it writes, it writes when it runs."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    plain = copy.deepcopy(layer)
    run = jitmagic.jit(layer)
    x = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        for _ in range(2):
            ours, eager = run(x), plain(x)
            assert ours.dtype is eager.dtype
            torch.testing.assert_close(ours, eager, rtol=0.02, atol=0.05)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(layer.named_buffers())[name], buffer, rtol=0.01, atol=0.01)
