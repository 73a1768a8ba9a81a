"""One odd call, first or later, takes nothing from ordinary calls: they compile, and are right.

A family: programs x odd calls (function transforms, tensors that no graph takes, modes, values of
other types, calls that raise), in both orders. An entry that runs as eager, and a graph break, are
for the calls that meet the same reason and for no other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED, Eager
from tests.covering import covered

Call = Callable[[Callable[..., Any], Tensor], Any]

# --------------------------------------------------------------------------------------- programs


def pointwise(x: Tensor) -> Tensor:
    return (x.sin() * 2 + 1).relu()


def helper(x: Tensor, by: float) -> Tensor:
    y = x * by
    return y.cos()


def through_a_callee(x: Tensor) -> Tensor:
    kept = x
    return helper(kept, 0.5) + 1


def through_methods(x: Tensor) -> Tensor:
    parts = [torch.tanh(part) for part in (x, x)]
    return torch.add(*parts)


def through_a_loop(x: Tensor) -> Tensor:
    parts = []
    for part in (x, x, x):
        parts.append(torch.tanh(part))
    return torch.stack(parts)


def branching(x: Tensor) -> Tensor:
    if isinstance(x, Tensor) and x.ndim == 2:
        x = x.transpose(0, 1)
    return x.exp()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.25

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sigmoid()


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "pointwise": lambda: pointwise,
    "through a callee": lambda: through_a_callee,
    "through methods": lambda: through_methods,
    "through a loop": lambda: through_a_loop,
    "branching": lambda: branching,
    "module": Layer,
}

# -------------------------------------------------------------------------------------- odd calls


class Sub(torch.Tensor):
    """A subclass that changes nothing."""


class EveryFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class EveryOperation(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def under(mode: Callable[[], Any]) -> Call:
    def call(run: Callable[..., Any], x: Tensor) -> Any:
        with mode():
            return run(x)

    return call


def of(change: Callable[[Tensor], Any]) -> Call:
    return lambda run, x: run(change(x))


def dual(run: Callable[..., Any], x: Tensor) -> Any:
    with forward_ad.dual_level():
        made = forward_ad.unpack_dual(run(forward_ad.make_dual(x, x)))
        return made.primal, made.tangent


def with_fake(run: Callable[..., Any], x: Tensor) -> Any:
    with FakeTensorMode():
        return tuple(run(torch.empty(3, 4)).shape)


def with_batch_norms(run: Callable[..., Any], x: Tensor) -> Any:
    return torch.func.vmap(torch.func.grad(lambda row: run(row[None]).sum()))(x)


ODD: dict[str, Call] = {
    "vmap": lambda run, x: torch.func.vmap(run)(x),
    "vmap of vmap": lambda run, x: torch.func.vmap(torch.func.vmap(run))(x),
    "grad": lambda run, x: torch.func.grad(lambda y: run(y).sum())(x),
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (x,)),
    "vjp": lambda run, x: torch.func.vjp(run, x)[0],
    "jacrev": lambda run, x: torch.func.jacrev(run)(x),
    "jacfwd": lambda run, x: torch.func.jacfwd(run)(x),
    "functionalize": lambda run, x: torch.func.functionalize(run)(x),
    "vmap of grad": with_batch_norms,
    "dual": dual,
    "meta": of(lambda x: x.to("meta")),
    "subclass": of(lambda x: x.as_subclass(Sub)),
    "parameter subclass": of(lambda x: torch.nn.UninitializedParameter()),
    "fake": with_fake,
    "sparse": of(lambda x: x.to_sparse()),
    "sparse rows": of(lambda x: x.to_sparse_csr()),
    "quantized": of(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
    "nested": of(lambda x: torch.nested.nested_tensor([x, x])),
    "jagged": of(lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged)),
    "mkldnn": of(lambda x: x.to_mkldnn()),
    "conjugate": of(lambda x: torch.complex(x, x).conj()),
    "negative view": of(lambda x: torch.complex(x, x).conj().imag),
    "array": of(lambda x: x.numpy()),
    "array of objects": of(lambda x: np.array([x, None], dtype=object)),
    "function mode": under(EveryFunction),
    "dispatch mode": under(EveryOperation),
    "default device": under(lambda: torch.device("cpu")),
    "inference": under(torch.inference_mode),
    "no grad": under(torch.no_grad),
    "autocast": under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "nothing": of(lambda x: None),
    "a float": of(lambda x: 0.5),
    "a list": of(lambda x: [x]),
    "text": of(lambda x: "x"),
    "an object": of(lambda x: object()),
    "integers": of(lambda x: x.long()),
    "one element": of(lambda x: x.sum()),
    "empty": of(lambda x: x[:0]),
    "requires grad": of(lambda x: x.detach().requires_grad_()),
}
MANY = {"jvp", "jacfwd", "dual"}  # forward mode


def seen(run: Callable[..., Any], call: Call, x: Tensor) -> Any:
    """What a call gives, or raises; parts that cannot be compared by their values by their type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tree_map(_comparable, call(run, x))
        except Exception as error:
            return type(error).__name__


def _comparable(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.is_nested:
        return [part.detach() for part in value.unbind()]
    if value.layout is torch._mkldnn or value.layout is not torch.strided:
        return type(value).__name__, str(value.layout), value.to_dense().detach()
    if value.device.type == "meta" or value.is_quantized:
        return type(value).__name__, value.dtype, tuple(value.shape)
    return type(value).__name__, value.detach().as_subclass(Tensor)


def same(left: Any, right: Any) -> None:
    one, other = tree_flatten(left), tree_flatten(right)
    assert one[1] == other[1], f"{right} instead of {left}"
    for a, b in zip(one[0], other[0], strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert a == b or a != a


def is_one_graph(tagged: Callable[..., Any]) -> bool:
    """Whether the call before ran as a compiled graph with no Python around it."""
    handle = handle_of(tagged)
    assert handle is not None
    entry = handle.dispatcher.entries[0]
    return entry.notes.outcome == COMPILED and not entry.residual


@covered(odd=ODD, program=PROGRAMS, order=["ooxxo", "xxoox"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_odd_then_ordinary_and_back(odd: str, program: str, order: str) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    fn = PROGRAMS[program]()
    tagged = jitmagic.jit(PROGRAMS[program](), options={"cpu_tier": "aten"})
    for which in order:
        call = ODD[odd] if which == "o" else lambda run, x: run(x)
        same(seen(fn, call, x), seen(tagged, call, x))
        if which == "x":
            assert is_one_graph(tagged)


SPREAD = "meta sparse quantized nested mkldnn".split()


def plus_one(x: Tensor) -> Tensor:
    return x + 1


def calls_with_another_tensor(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), plus_one(torch.ones(2))


@pytest.mark.parametrize("odd", [*SPREAD, "sparse rows"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_frame_that_has_no_other_tensors_is_one_eager_entry(odd: str) -> None:
    tagged, x = jitmagic.jit(pointwise), torch.linspace(-1, 1, 12).reshape(3, 4)
    for _ in range(2):
        same(seen(pointwise, ODD[odd], x), seen(tagged, ODD[odd], x))
    handle = handle_of(tagged)
    assert handle is not None
    assert [type(entry.notes.outcome) for entry in handle.dispatcher.entries] == [Eager]
    assert not any(member.resume_line for member in handle.family.members)
    torch.testing.assert_close(tagged(x), pointwise(x))
    assert is_one_graph(tagged)
    assert len(handle.journal) == 2


@pytest.mark.parametrize("odd", SPREAD)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_what_it_calls_with_other_tensors_is_compiled(odd: str) -> None:
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    tagged = jitmagic.jit(calls_with_another_tensor)
    same(seen(calls_with_another_tensor, ODD[odd], x), seen(tagged, ODD[odd], x))
    handle = handle_of(tagged)
    assert handle is not None
    callees = {member.name: member.outcome for member in handle.family.members}
    assert callees["plus_one"] == COMPILED


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_compiled_once_they_have_a_shape() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    tagged = jitmagic.jit(layer)
    x = torch.randn(3, 5)
    first = tagged(x)
    for _ in range(2):
        torch.testing.assert_close(tagged(x), first)
    assert is_one_graph(tagged)


def test_a_callee_keeps_its_odd_call_to_itself() -> None:
    """A function that breaks whatever it is given; what it calls is a frame of its own."""

    def outer(x: Tensor) -> Tensor:
        print(end="")
        return helper(x, 0.5)

    tagged, x = jitmagic.jit(outer), torch.linspace(-1, 1, 12).reshape(3, 4)
    same(seen(outer, ODD["sparse"], x), seen(tagged, ODD["sparse"], x))
    torch.testing.assert_close(tagged(x), outer(x))
    handle = handle_of(tagged)
    assert handle is not None
    (rest,) = [p for p in handle.family.members if p.resume_line and p.name == "outer"][:1]
    assert not rest.dispatcher.entries[0].residual


def test_calls_that_raise_do_not_stand_in_the_way_of_those_that_do_not() -> None:
    def product(x: Tensor, w: Tensor, n: int) -> Tensor:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return (x @ w).view(n, -1) * 2

    tagged, x, w = jitmagic.jit(product), torch.randn(4, 6), torch.randn(6, 4)
    wrong: list[tuple[Any, ...]] = [(x, x, 2), (x, w, 3), (x, w, -1), (x, None, 2), (x, w, "2")]
    for call in wrong:
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            tagged(*call)
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            product(*call)
    for _ in range(2):
        torch.testing.assert_close(tagged(x, w, 2), product(x, w, 2))
    assert is_one_graph(tagged)


def test_a_failed_compile_is_for_the_calls_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jitmagic.compile import pipeline  # noqa: PLC0415

    real = pipeline.trace_joint

    def refuses_doubles(gm: Any, specs: Any) -> Any:
        if any(spec.dtype is torch.float64 for spec in specs):
            raise AssertionError("a bug of ours")
        return real(gm, specs)

    monkeypatch.setattr(pipeline, "trace_joint", refuses_doubles)
    tagged, x = jitmagic.jit(pointwise), torch.linspace(-1, 1, 12)
    with pytest.warns(jitmagic.FallbackWarning, match="a bug of ours"):
        torch.testing.assert_close(tagged(x.double()), pointwise(x.double()))
    for _ in range(2):
        torch.testing.assert_close(tagged(x), pointwise(x))
        assert is_one_graph(tagged)
        torch.testing.assert_close(tagged(x.double()), pointwise(x.double()))


# ----------------------------------------------- under a transform that wraps no operand


def draws(c: Tensor) -> Tensor:
    return torch.rand(3) * c


def writes(c: Tensor) -> Tensor:
    return c.add_(1) * 2


def makes_a_leaf(c: Tensor) -> Tensor:
    return c * nn.Parameter(torch.ones(3))


def reads(c: Tensor) -> Tensor:
    return (c * c).sum()


UNWRAPPED: dict[str, Call] = {
    "vmap, one draw": lambda run, c: torch.func.vmap(lambda y: y + run(c), randomness="same")(
        torch.zeros(4, 3)
    ),
    "vmap, a draw each": lambda run, c: torch.func.vmap(
        lambda y: y + run(c), randomness="different"
    )(torch.zeros(4, 3)),
    "vmap, no draws": lambda run, c: torch.func.vmap(lambda y: y + run(c))(torch.zeros(4, 3)),
    "grad": lambda run, c: torch.func.grad(lambda y: (y * run(c)).sum())(torch.ones(3)),
    "jvp": lambda run, c: torch.func.jvp(lambda y: y * run(c), (c + 1,), (c + 1,)),
    "an operand of it": lambda run, c: torch.func.grad(lambda y: run(y).sum())(c + 1),
}


@pytest.mark.parametrize("fn", [draws, writes, makes_a_leaf, reads])
@pytest.mark.parametrize("call", UNWRAPPED)
@pytest.mark.parametrize("order", ["oox", "xoox"])
def test_a_transform_decides_of_every_operation(
    order: str, call: str, fn: Callable[[Tensor], Tensor]
) -> None:
    """Whether something may be drawn or written, and how often, also where nothing is wrapped."""
    tagged = jitmagic.jit(fn, options={"cpu_tier": "aten"})

    def told(run: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        c, answers = torch.ones(3), []
        for which in order:
            chosen = UNWRAPPED[call] if which == "o" else lambda run, c: run(c)
            answers += [seen(run, chosen, c), c.clone()]
        return answers

    with warnings.catch_warnings():
        warnings.simplefilter("error", jitmagic.FallbackWarning)
        same(told(fn), told(tagged))
    assert is_one_graph(tagged)
