"""Whole programs called under torch.autocast: one graph, dtypes as eager, values by float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from tests.covering import covered

from ..counts import counts_of

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
    "attention to a wide query, masked": lambda x: F.scaled_dot_product_attention(
        *[x[None, None]] * 2, (x @ _w(x))[None, None], attn_mask=torch.eye(6).bool()[None, None]
    ),
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


@covered(
    name=CASES,
    backend=["native", "aot_eager", "eager"],
    grad=[False, True],
    dtype=[torch.bfloat16, torch.float16],
)
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


# -- regions inside --------------------------------------------------------------------------------


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


def _returned_from(x: Tensor) -> tuple[Any, ...]:
    for n in (1, 2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if n == 2:
                return x @ x, torch.get_autocast_dtype("cpu")
    return ()


def _default_dtype(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast(device_type="cpu"):
        a = x @ x
    with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cpu"):
        b = x @ x
    return a, b, torch.get_autocast_dtype("cpu")


_LIVE = torch.autocast("cpu", dtype=torch.bfloat16)


def _live_block(x: Tensor) -> tuple[Any, ...]:
    with _LIVE as block:
        a = x @ x
    with _LIVE:
        b = (x * 2) @ x
    return a, b, x @ x, block is _LIVE, _LIVE.prev


@contextmanager
def _casting(enabled: bool) -> Iterator[str]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled, cache_enabled=False):
        yield "in"


def _through_a_generator(x: Tensor) -> tuple[Any, ...]:
    with _casting(True) as name:
        a = x @ x
    with _casting(False):
        b = x @ x
    return a, b, name


def _broken_in_two_blocks(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        with torch.autocast("cpu", enabled=False):
            b = a.float() @ x
            print(end="")
            c = x @ x
        d = x @ x
        print(end="")
    return a, b, c, d, x @ x


def _set_by_hand(x: Tensor) -> tuple[Any, ...]:
    was = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    a = x @ x
    torch.set_autocast_enabled("cpu", was[0])
    torch.set_autocast_dtype("cpu", was[1])
    return a, x @ x


ONE_GRAPH = [
    *(_region, _nested, _calls_decorated, _left_by_an_exception, _returned_from, _default_dtype),
    *(_live_block, _through_a_generator, _set_by_hand),
]
REGIONS = [*ONE_GRAPH, _broken_inside, _broken_in_two_blocks]


@covered(program=REGIONS, backend=["native", "aot_eager", "eager"], outside=[False, True])
def test_regions_inside(program: Callable[..., Any], backend: str, outside: bool) -> None:
    # No leaf: eager keeps the casts of those (test_kept_casts_of_leaves).
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


# -- casts that eager keeps ------------------------------------------------------------------------


def _inner_dtype(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.float16):
            a = x @ x
        b = x @ x
    return a, b


def _mixed_operands(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.float16):
            a = x @ x
        return a, x.t() @ x  # what is no leaf is cast anew: two dtypes meet


def _written_between(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        with torch.no_grad():
            x.add_(1)
        b = x @ x
    return a, b, x @ x


def _written_through_data(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        x.data.add_(1)  # no version tells
        b = x @ x
    return a, b, x @ x


def _bound_between(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        x.data = x.data + 1
        b = x @ x
    return a, b, x @ x


def _cache_off(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
            a = x @ x
        b = x @ x
    return a, b


def _two_blocks(x: Tensor) -> tuple[Any, ...]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
    with torch.autocast("cpu", dtype=torch.float16):
        b = x @ x
    return a, b


ONE_CAST = [_region, _calls_decorated, _cache_off, _two_blocks, _left_by_an_exception]
KEPT = [*REGIONS, _inner_dtype, _mixed_operands, _written_between, _cache_off, _two_blocks]
KEPT += [_written_through_data, _bound_between]


@covered(
    program=KEPT,
    backend=["native", "aot_eager", "eager"],
    around=[None, torch.bfloat16, torch.float16],
)
def test_kept_casts_of_leaves(
    program: Callable[..., Any], backend: str, around: torch.dtype | None
) -> None:
    """A leaf keeps its cast until the outermost block ends, whatever becomes of dtype or leaf."""
    run = jitmagic.jit(program, backend=backend)
    for _ in range(2):
        eager, ours = (_what_becomes_of_a_leaf(f, around) for f in (program, run))
        assert [type(part) for part in ours] == [type(part) for part in eager]
        for got, want in zip(ours, eager, strict=True):
            if isinstance(want, Tensor):
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=0.02, atol=0.05)
            else:
                assert got == want
    if around is None and program in ONE_CAST:
        counts = counts_of(run)
        assert (counts.graphs, counts.breaks) == (1, 0)


def _what_becomes_of_a_leaf(program: Callable[..., Any], around: torch.dtype | None) -> list[Any]:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    block = nullcontext() if around is None else torch.autocast("cpu", around)
    with warnings.catch_warnings(), block:
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        before = (x @ x) if around is not None else None
        try:
            made = list(program(x))
        except RuntimeError as error:
            return [str(error).partition("\n")[0]]
        made += [before, torch.autograd.grad(sum(_floats(made)), x)[0], x.detach()]
    return made


def _floats(made: list[Any]) -> list[Tensor]:
    return [t.float().sum() for t in made if isinstance(t, Tensor) and t.requires_grad]


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_regions_do_not_split_graphs(program: Callable[..., Any]) -> None:
    run = jitmagic.jit(program)
    run(torch.randn(6, 6))
    found = counts_of(run)
    assert (found.graphs, found.breaks) == (1, 0)


def test_a_break_inside_splits_the_graph_there_alone() -> None:
    run = jitmagic.jit(_broken_inside)
    run(torch.randn(6, 6))
    found = counts_of(run)
    assert (found.graphs, found.breaks) == (2, 1)


def test_the_default_dtype_is_guarded() -> None:
    run = jitmagic.jit(_default_dtype)
    x = torch.randn(6, 6)
    default = torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert run(x)[0].dtype is dtype
            assert run(x)[2] is dtype
    finally:
        torch.set_autocast_dtype("cpu", default)
    assert counts_of(run).graphs == 2


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager", lambda gm, inputs: gm])
def test_an_error_inside_leaves_the_thread_as_it_was(backend: Any) -> None:
    def pick(x: Tensor, index: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x)[index]

    run = jitmagic.jit(pick, backend=backend)
    x = torch.randn(4, 4)
    torch.testing.assert_close(run(x, torch.tensor([1])), pick(x, torch.tensor([1])))
    with pytest.raises(IndexError):
        run(x, torch.tensor([9]))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("backend", ["native", "aot_eager", "eager"])
def test_training_in_a_region_follows_the_weights(backend: str) -> None:
    """A step changes weights in place: no cast of the step before may be used."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    plain = copy.deepcopy(model)
    x, target = torch.randn(12, 6), torch.randint(0, 3, (12,))

    def loss_of(net: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(net(x), target)

    curves = []
    for net, call in ((plain, loss_of), (model, jitmagic.jit(loss_of, backend=backend))):
        optimizer = torch.optim.SGD(net.parameters(), 0.5)
        curve = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = call(net)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    assert curves[0][-1] < 0.7 * curves[0][0]
    torch.testing.assert_close(*map(torch.tensor, curves), rtol=0.02, atol=0.02)


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
