"""Transforms of torch.func around a tagged function, whose graph they transform.

The programs are those of test_transforms.py: each transform, applied to each tagged function,
equals eager in values, gradients through it and flags, and the function is one compiled graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, functionalize, grad, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_leaves

import jitmagic
from jitmagic.api import handle_of
from tests.covering import covered

from ..counts import breaks_of, eager_of
from .test_transforms import FUNCTIONS, TRANSFORMS, Function

Program = Callable[[Any], Any]  # of the tagged function, or of the plain one


def _seen(program: Callable[[], Any], leaves: tuple[Tensor, ...]) -> tuple[Any, list[Tensor]]:
    """The flags of a program's results, and their values and gradients by the leaves."""
    torch.manual_seed(3)
    made = [leaf for leaf in tree_leaves(program()) if isinstance(leaf, Tensor)]
    flags = [(leaf.requires_grad, leaf.dtype, tuple(leaf.shape)) for leaf in made]
    total = sum(leaf.double().sin().sum() for leaf in made if leaf.is_floating_point())
    if isinstance(total, Tensor) and total.requires_grad:
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        made += [g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None]
    return flags, [*(leaf.detach() for leaf in made), torch.rand(1)]


def _inputs(wanted: bool) -> tuple[Tensor, Tensor]:
    """In float64: derivatives of third order lose digits."""
    torch.manual_seed(7)
    made = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    return made[0].requires_grad_(wanted), made[1].requires_grad_(wanted)


def _check(program: Program, function: Any, leaves: tuple[Tensor, ...], backend: str) -> Any:
    tagged = jitmagic.jit(function, backend=backend, fullgraph=True)
    flags, values = _seen(lambda: program(function), leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        for _ in range(2):
            flags_now, values_now = _seen(lambda: program(tagged), leaves)
            assert flags_now == flags
            torch.testing.assert_close(values_now, values, rtol=1e-7, atol=1e-7)
    return tagged


def _why_by_operation(tagged: Any) -> list[str]:
    """Why torch runs graphs of a function call by call under transforms ("": it does not)."""
    records = handle_of(tagged).journal.records
    return [why for record in records if (why := record.result("transforms")) is not None]


@covered(
    transform=TRANSFORMS, function=FUNCTIONS, wanted=[False, True], backend=["eager", "aot_eager"]
)
def test_each_transform(transform: Any, function: Function, wanted: bool, backend: str) -> None:
    x, w = _inputs(wanted)
    tagged = _check(lambda f: transform(f)(x, w), function, (x, w), backend)
    if backend == "aot_eager":
        assert set(_why_by_operation(tagged)) == {""}


@pytest.mark.parametrize("number", range(0, len(TRANSFORMS), 4))
def test_generated_code(number: int) -> None:
    x, w = _inputs(True)
    function = FUNCTIONS[number % len(FUNCTIONS)]
    _check(lambda f: TRANSFORMS[number](f)(x, w), function, (x, w), "native")


# -- programs of other kinds -----------------------------------------------------------------------


def writes(x: Tensor) -> Tensor:
    y = x + 1
    x.mul_(2)
    return y * x


def returns_views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[1:], x + 1


def shares_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y, y[1:]


def draws(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5) * x.sum()


def _total(made: Any) -> Tensor:
    return sum(part.sum() for part in tree_leaves(made))


def written_afterwards(f: Any, x: Tensor) -> Any:
    """Writes to a result, which reaches what shares its memory."""

    def run(x: Tensor) -> Tensor:
        own = x * 1
        made = tree_leaves(f(own))
        made[0].mul_(2)
        return _total(made) + own.sum()

    return grad(run)(x), vmap(run, randomness="different")(x)


OTHERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "vmap": lambda f, x: (vmap(f, randomness="different")(y := x.clone()), y),
    "grad": lambda f, x: grad(lambda x: _total(f(x * 1)))(x),
    "jvp": lambda f, x: (jvp(f, (y := x.clone(),), (x.cos(),)), y),
    "vjp": lambda f, x: vjp(lambda x: _total(f(x * 1)), x)[1](torch.ones((), dtype=x.dtype)),
    "linearize": lambda f, x: linearize(lambda x: f(x * 1), x)[1](x),
    "written afterwards": written_afterwards,
}
KINDS = {
    writes: "it writes to a tensor from outside",
    returns_views: "",
    shares_memory: "its results share memory",
    draws: "",
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("function", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("call", OTHERS)
def test_graphs_that_may_run_by_operation(call: str, function: Any) -> None:
    """Writes, aliases and draws are eager's, and the reason is recorded."""
    x = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4)
    tagged = _check(lambda f: OTHERS[call](f, x), function, (), "aot_eager")
    # linearize records the function's operations, so it runs as eager.
    assert set(_why_by_operation(tagged)) == ({KINDS[function]} if call != "linearize" else set())


def test_a_module_with_transformed_parameters_is_one_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    weights, x = dict(model.named_parameters()), _inputs(False)[1]

    def per_sample() -> Any:
        loss = lambda p, row: functional_call(model, p, (row,)).sum()  # noqa: E731
        return vmap(grad(loss), (None, 0))(weights, x)

    wanted = per_sample()
    tagged = jitmagic.jit(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(per_sample(), wanted)
    assert _why_by_operation(tagged) == [""]


def test_sizes_and_numbers_that_vary_share_a_variant() -> None:
    tagged = jitmagic.jit(lambda x, by: (x * by).sum(0) + x.shape[0], backend="aot_eager")
    for n in range(2, 8):
        x, by = torch.randn(3, n, 4), n / 3
        wanted = vmap(lambda row: (row * by).sum(0) + row.shape[0])(x)
        torch.testing.assert_close(vmap(lambda row: tagged(row, by))(x), wanted)
    assert len(handle_of(tagged).dispatcher.entries) <= 3


def test_no_transform_and_functionalize_have_variants_of_their_own() -> None:
    x, function = torch.linspace(-1, 1, 4), lambda x: x.sin() * 2
    tagged = jitmagic.jit(function, backend="aot_eager")
    for call in (lambda f: f(x), lambda f: vmap(f)(x), lambda f: functionalize(f)(x)) * 2:
        torch.testing.assert_close(call(tagged), call(function))
    assert len(handle_of(tagged).dispatcher.entries) == 2


class Doubled(torch.autograd.Function):
    """Has a gradient that its forward does not show."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 100


BROKEN: dict[str, Any] = {
    "autograd function": lambda x: Doubled.apply(x).sin(),
    "number": lambda x: x * x.sum().item(),
    "branch": lambda x: x.sin() if x.sum() > 0 else x.cos(),
    "array": lambda x: torch.from_numpy(x.detach().numpy()) * x,
    "leaf": lambda x: x.detach().requires_grad_() * x,
}


@pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("call", ["vmap", "grad", "jvp"])
def test_what_a_level_decides_is_a_break(call: str, name: str) -> None:
    """torch refuses some of these on a level, or has rules for them that a trace does not see."""
    x = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    function = BROKEN[name]
    tagged = jitmagic.jit(function, backend="aot_eager")

    def told(f: Any) -> Any:
        try:
            return _seen(lambda: OTHERS[call](f, x), (x,))
        except Exception as error:
            return type(error)

    wanted = told(function)
    for _ in range(2):
        found = told(tagged)
        assert found == wanted if isinstance(wanted, type) else found[0] == wanted[0]
        if not isinstance(wanted, type):
            torch.testing.assert_close(found[1], wanted[1])
    assert breaks_of(tagged) or eager_of(tagged)
