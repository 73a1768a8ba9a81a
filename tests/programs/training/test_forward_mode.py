"""Forward mode: dual tensors from outside run as eager, levels inside and linearize are graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import jitmagic
from jitmagic.compat.autograd import forward_level
from jitmagic.guards.check import check
from jitmagic.records import COMPILED
from jitmagic.trace.result import Trace

from ..harness import Program
from ..harness import check as check_program


def square(x: Tensor, y: Tensor) -> Tensor:
    return x * x + y


def pushed_forward(function: object, x: Tensor, tangent: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        made = function(forward_ad.make_dual(x, tangent), x)  # type: ignore[operator]
        found: Tensor | None = forward_ad.unpack_dual(made).tangent
        return found


def test_tangents_of_inputs_reach_the_results() -> None:
    compiled, x, tangent = jitmagic.jit(square), torch.randn(3), torch.randn(3)
    for _ in range(2):
        assert torch.equal(pushed_forward(compiled, x, tangent), 2 * x * tangent)


def test_what_was_compiled_for_plain_tensors_is_not_used_for_dual_ones() -> None:
    compiled, x, tangent = jitmagic.jit(square), torch.randn(3), torch.randn(3)
    for _ in range(2):
        compiled(x, x)
        assert torch.equal(pushed_forward(compiled, x, tangent), 2 * x * tangent)
        assert pushed_forward(compiled, x.requires_grad_(), tangent) is not None
        x = x.detach()


def test_a_call_within_a_level_is_compiled_where_no_tensor_is_dual() -> None:
    compiled, x = jitmagic.jit(square), torch.randn(3)
    with forward_ad.dual_level():
        assert torch.equal(compiled(x, x), square(x, x))
    handle = jitmagic.api.handle_of(compiled)
    assert handle.outcome == COMPILED
    traced = handle.journal.records[0].result("trace")
    assert isinstance(traced, Trace)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        snapshot = handle.original.snapshot((dual, x))
        assert check(traced.guards, snapshot) is not None
        assert not any(entry.check((dual, x)) for entry in handle.dispatcher.entries)
        assert any(entry.check((x, x)) for entry in handle.dispatcher.entries)


# -- levels inside of the tagged function ----------------------------------------------------------


def _value(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() * x.sum()


def of_one(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        made = forward_ad.unpack_dual(_value(forward_ad.make_dual(x, x * 2), w))
        return made.primal, made.tangent


def of_two(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        both = forward_ad.make_dual(x, x * 2), forward_ad.make_dual(w, w.cos())
        made = _value(*both)
        first, second = forward_ad.unpack_dual(made), forward_ad.unpack_dual(made.sum())
        return first.tangent, second.tangent, second.primal + made.mean()


def without_tangents(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, w[:, :3].sum() * x)
        parts = dual.detach(), dual > 0, x.sin(), forward_ad.unpack_dual(dual).primal, dual.sin()
        return [forward_ad.unpack_dual(part).tangent is None for part in parts]


def given_back(x: Tensor, w: Tensor) -> Any:
    level = forward_ad.enter_dual_level()
    tangent = w[:2, :3].contiguous()
    dual = forward_ad.make_dual(x, tangent, level=level)
    same = forward_ad.unpack_dual(dual, level=level).tangent is tangent
    forward_ad.exit_dual_level()
    return dual * 2, same, forward_ad.unpack_dual(dual).tangent


def in_a_module(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())
        y = torch.nn.functional.layer_norm(dual @ w, (4,)).relu()
        return forward_ad.unpack_dual(y[..., 1:] + y[..., :-1]).tangent


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "function",
    [of_one, of_two, without_tangents, given_back, in_a_module],
    ids=lambda f: f.__name__,
)
def test_a_level_inside_is_one_graph(function: Any, backend: str, wanted: bool) -> None:
    def calls() -> Any:
        torch.manual_seed(7)
        x, w = torch.randn(2, 3), torch.randn(3, 4)
        return [(x.requires_grad_(wanted), w.requires_grad_(wanted))]

    options = {"backend": backend, "fullgraph": True}
    check_program(Program(function.__name__, lambda: function, calls, options=options))


def writes(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        y = _value(forward_ad.make_dual(x, x), w)
        y.mul_(2)
        return forward_ad.unpack_dual(y).tangent


def draws(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(torch.dropout(forward_ad.make_dual(x, x), 0.5, True)).tangent


def breaks_within(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        y = forward_ad.make_dual(x, x) * 2
        jitmagic.graph_break()
        return forward_ad.unpack_dual(y).tangent


def transforms_within(x: Tensor, w: Tensor) -> Any:
    with forward_ad.dual_level():
        return torch.func.jvp(torch.sin, (x,), (x,))


def stays_open(x: Tensor, w: Tensor) -> Any:
    forward_ad.enter_dual_level()
    return forward_ad.make_dual(x, x * 2)


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
@pytest.mark.parametrize(
    "function", [writes, draws, breaks_within, transforms_within, stays_open],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_other_levels_run_as_eager(function: Any) -> None:
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    tagged = jitmagic.jit(function, backend="eager")

    def told(run: Any) -> Any:
        torch.manual_seed(3)
        try:
            made = run(x, w)
            return forward_ad.unpack_dual(made).tangent if function is stays_open else made
        except RuntimeError as error:
            return str(error)
        finally:
            if forward_level() >= 0:
                forward_ad.exit_dual_level()

    wanted = told(function)
    for _ in range(2):
        if isinstance(wanted, str):
            assert told(tagged) == wanted
        else:
            torch.testing.assert_close(told(tagged), wanted)


# -- linearize -------------------------------------------------------------------------------------


def pushed(x: Tensor, w: Tensor) -> Any:
    made, push = torch.func.linearize(_value, x, w)
    return made, push(x * 2, w), push(x, w.cos())


def pushed_for_each(x: Tensor, w: Tensor) -> Any:
    made, push = torch.func.linearize(lambda row: {"y": (row @ w).tanh()}, x[0])
    return made, torch.vmap(push)(torch.eye(3, dtype=x.dtype))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [pushed, pushed_for_each], ids=lambda f: f.__name__)
def test_linearize_is_one_graph(function: Any, backend: str) -> None:
    def calls() -> Any:
        torch.manual_seed(7)
        return [(torch.randn(2, 3), torch.randn(3, 4))]

    options = {"backend": backend, "fullgraph": True}
    check_program(Program(function.__name__, lambda: function, calls, options=options))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
def test_linearize_runs_as_eager_where_it_runs_the_function_again() -> None:
    seen: list[int] = []

    def run(x: Tensor) -> Any:
        made, push = torch.func.linearize(lambda y: (seen.append(1), y.sin())[1], x)
        return made, push(x)

    x = torch.randn(3)
    wanted, count = run(x), len(seen)
    torch.testing.assert_close(jitmagic.jit(run)(x), wanted)
    assert len(seen) == 2 * count
