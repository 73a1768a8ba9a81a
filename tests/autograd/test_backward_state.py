"""A backward reads Python state as it is when the backward runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.errors import OutdatedBackward
from tests.covering import covered
from tests.programs.counts import counts_of

pytestmark = pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning")

SCALE = 2.0
VARIABLE = "JITMAGIC_TEST_SCALE"


class State(NamedTuple):
    """A program whose backward reads a state, and what sets that to the first or second value."""

    run: Callable[[Tensor], Tensor]
    change: Callable[[bool], object]


def function(backward: Callable[..., Any], forward: Callable[..., Any] | None = None) -> type:
    """An autograd function that takes an input, and an object which it puts on ctx."""

    class Read(Function):
        @staticmethod
        def forward(ctx, x, kept):
            ctx.kept = kept
            ctx.save_for_backward(x)
            return x.sin() if forward is None else forward(ctx, x, kept)

        @staticmethod
        def vjp(ctx, g):
            return backward(ctx, g), None

    return Read


def attribute() -> State:
    kept = SimpleNamespace(scale=2.0)
    read = function(lambda ctx, g: g * ctx.kept.scale * ctx.saved_tensors[0])
    return State(
        lambda x: read.apply(x, kept) * 3, lambda v: setattr(kept, "scale", 5.0 if v else 2.0)
    )


def attribute_in_closure() -> State:
    kept = SimpleNamespace(scale=2.0)
    read = function(lambda ctx, g: g * kept.scale)
    return State(
        lambda x: read.apply(x, None) * 3, lambda v: setattr(kept, "scale", 5.0 if v else 2.0)
    )


def cell() -> State:
    scale = 2.0
    read = function(lambda ctx, g: g * scale)

    def change(second: bool) -> None:
        nonlocal scale
        scale = 5.0 if second else 2.0

    return State(lambda x: read.apply(x, None) * 3, change)


def global_name() -> State:
    read = function(lambda ctx, g: g * SCALE)
    change = lambda v: globals().update(SCALE=5.0 if v else 2.0)  # noqa: E731
    return State(lambda x: read.apply(x, None) * 3, change)


def global_name_alone() -> State:
    """The backward is given no object of the call."""
    read, made = function(lambda ctx, g: g * SCALE), global_name()
    return State(lambda x: read.apply(x * 2, None) * 3, made.change)


def class_attribute() -> State:
    read = function(lambda ctx, g: g * read.scale)
    read.scale = 2.0
    return State(
        lambda x: read.apply(x, None) * 3, lambda v: setattr(read, "scale", 5.0 if v else 2.0)
    )


def training_mode() -> State:
    module = torch.nn.Linear(3, 3)
    read = function(lambda ctx, g: g * (2.0 if ctx.kept.training else 5.0))
    return State(lambda x: read.apply(x, module) * 3, lambda v: module.train(not v))


def environment() -> State:
    read = function(lambda ctx, g: g * float(os.environ.get(VARIABLE, "2")))
    change = lambda v: os.environ.update({VARIABLE: "5" if v else "2"})  # noqa: E731
    return State(lambda x: read.apply(x, None) * 3, change)


def dictionary() -> State:
    kept = {"scale": 2.0}
    read = function(lambda ctx, g: g * ctx.kept["scale"])
    return State(lambda x: read.apply(x, kept) * 3, lambda v: kept.update(scale=5.0 if v else 2.0))


def list_length() -> State:
    kept = [1]
    read = function(lambda ctx, g: g * len(ctx.kept))
    return State(
        lambda x: read.apply(x, kept) * 3, lambda v: kept.append(1) if v else kept.__init__([1])
    )


def tensor_replaced() -> State:
    tensors = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    kept = SimpleNamespace(weight=tensors[0])
    read = function(lambda ctx, g: g * ctx.kept.weight)
    return State(lambda x: read.apply(x, kept) * 3, lambda v: setattr(kept, "weight", tensors[v]))


def tensor_written() -> State:
    kept = torch.ones(3)
    read = function(lambda ctx, g: g * ctx.kept)
    return State(lambda x: read.apply(x, kept) * 3, lambda v: kept.fill_(5.0 if v else 2.0))


def tensor_read_twice() -> State:
    kept = torch.ones(3)
    read = function(lambda ctx, g: g * ctx.kept, lambda ctx, x, kept: x * kept)
    return State(lambda x: read.apply(x, kept).sin(), lambda v: kept.fill_(5.0 if v else 2.0))


def closure_of_forward() -> State:
    scale = 2.0

    def change(second: bool) -> None:
        nonlocal scale
        scale = 5.0 if second else 2.0

    def forward(ctx, x, kept):
        ctx.shape, ctx.factors = x.shape, [1, 2]
        return x.sin()

    read = function(
        lambda ctx, g: ctx.kept(g).reshape(ctx.shape) * ctx.factors[1] * ctx.saved_tensors[0],
        forward,
    )
    return State(lambda x: read.apply(x, lambda g: g * scale) * 3, change)


def object_of_forward() -> State:
    kept = SimpleNamespace(scale=2.0)

    class Made:
        def __init__(self, owner):
            self.owner = owner

    def forward(ctx, x, kept):
        ctx.made = Made(kept)
        return x.sin()

    read = function(lambda ctx, g: g * ctx.made.owner.scale, forward)
    return State(
        lambda x: read.apply(x, kept) * 3, lambda v: setattr(kept, "scale", 5.0 if v else 2.0)
    )


def backward_replaced() -> State:
    class Read(Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * 2

    first, second = Read.backward, lambda ctx, g: g * 5
    change = lambda v: setattr(Read, "backward", staticmethod(second if v else first))  # noqa: E731
    return State(lambda x: Read.apply(x) * 3, change)


def region(state: Callable[[], tuple[Callable[..., Tensor], Callable[[bool], object]]]) -> Any:
    def made() -> State:
        inner, change = state()
        return State(lambda x: checkpoint(inner, x * 2, use_reentrant=False).sin(), change)

    return made


def checkpointed_attribute() -> tuple[Callable[..., Tensor], Callable[[bool], object]]:
    kept = SimpleNamespace(scale=2.0)
    return lambda x: (x.sin() * kept.scale).exp(), lambda v: setattr(kept, "scale", 2.0 + v)


def checkpointed_mode() -> tuple[Callable[..., Tensor], Callable[[bool], object]]:
    module = torch.nn.Linear(3, 3)
    inner = lambda x: x.sin().exp() if module.training else x.cos().exp()  # noqa: E731
    return inner, lambda v: module.train(not v)


def checkpointed_global() -> tuple[Callable[..., Tensor], Callable[[bool], object]]:
    def inner(x: Tensor) -> Tensor:
        return (x.sin() * SCALE).exp()

    return inner, global_name().change


def checkpointed_list() -> tuple[Callable[..., Tensor], Callable[[bool], object]]:
    kept = [2.0]
    inner = lambda x: (x.sin() * (kept[0] if kept else 3.0)).exp()  # noqa: E731
    return inner, lambda v: kept.clear() if v else kept.__init__([2.0])


STATES = {
    made.__name__: made
    for made in (
        attribute, attribute_in_closure, cell, global_name, global_name_alone,
        class_attribute, training_mode, environment, dictionary, list_length, tensor_replaced,
        tensor_written, tensor_read_twice, closure_of_forward, object_of_forward, backward_replaced,
    )
} | {
    "checkpointed attribute": region(checkpointed_attribute),
    "checkpointed mode": region(checkpointed_mode),
    "checkpointed global": region(checkpointed_global),
    "checkpointed list": region(checkpointed_list),
}  # fmt: skip
# The values of the state at the forward and at two backwards of it, call by call.
TIMES = {
    "unchanged": [(0, 0, 0), (0, 0, 0)],
    "between": [(0, 1, 1), (1, 0, 0), (0, 1, 1)],
    "between calls": [(0, 0, 0), (1, 1, 1), (0, 0, 0)],
    "between backwards": [(0, 0, 1), (0, 1, 0)],
}


def gradients(make: Callable[[], State], times: list[Any], wrap: Callable[..., Any]) -> Any:
    state = make()
    run, found = wrap(state.run), []
    try:
        for forward, *backwards in times:
            state.change(bool(forward))
            x = torch.linspace(0.5, 1.5, 3, requires_grad=True)
            made = run(x)
            for later in backwards:
                state.change(bool(later))
                found += torch.autograd.grad(made.sum(), x, retain_graph=True)
    finally:
        state.change(False)
    return found, run


@covered(name=STATES, when=TIMES, backend=["native", "aot_eager"])
def test_a_backward_reads_the_state_of_its_own_time(name, when, backend):
    make, times = STATES[name], TIMES[when]
    if name.startswith("checkpointed") and "backwards" in when:
        pytest.skip("torch keeps what the first of two backwards has computed again")
    eager, _ = gradients(make, times, lambda run: run)
    ours, run = gradients(make, times, lambda run: jitmagic.jit(run, backend=backend))
    torch.testing.assert_close(ours, eager)
    assert counts_of(run).breaks == 0


@pytest.mark.parametrize("name", ["attribute", "cell", "tensor_replaced", "closure_of_forward"])
def test_torch_runs_the_traced_graph_as_eager(name):
    """backend="eager": the nodes are torch's own, their backward looks at the state too."""
    times = TIMES["between"]
    eager, _ = gradients(STATES[name], times, lambda run: run)
    ours, _ = gradients(STATES[name], times, lambda run: jitmagic.jit(run, backend="eager"))
    torch.testing.assert_close(ours, eager)


def test_a_state_that_stays_costs_no_further_variant():
    make = STATES["attribute"]
    _, run = gradients(make, [(0, 0, 0)] * 4, jitmagic.jit)
    counts = counts_of(run)
    assert (counts.graphs, counts.breaks) == (1, 0)


def test_sizes_that_vary():
    state, eager = STATES["closure_of_forward"](), STATES["closure_of_forward"]()
    compiled = jitmagic.jit(state.run, dynamic=True)
    for size, second in ((3, False), (5, True), (7, False), (4, True)):
        found = []
        for run, one in ((compiled, state), (eager.run, eager)):
            one.change(False)
            x = torch.linspace(0.5, 1.5, size, requires_grad=True)
            made = run(x)
            one.change(second)
            found += torch.autograd.grad(made.sum(), x)
        torch.testing.assert_close(*found)


# ------------------------------------------------------------- a backward within the traced code


def step(change_first: bool) -> Callable[[Tensor], Any]:
    kept = SimpleNamespace(scale=2.0)
    read = function(lambda ctx, g: g * ctx.kept.scale)

    def run(x: Tensor) -> Any:
        kept.scale = 2.0
        made = read.apply(x, kept).sum()
        if change_first:
            kept.scale = 5.0
        made.backward()
        kept.scale = 7.0
        return x.grad

    return run


@pytest.mark.parametrize("change_first", [False, True])
def test_a_backward_in_the_frame_sees_what_the_frame_has_written(change_first):
    eager, compiled = step(change_first), jitmagic.jit(step(change_first))
    for _ in range(3):
        found = [run(torch.ones(3, requires_grad=True)) for run in (compiled, eager)]
        torch.testing.assert_close(*found)


def test_a_list_of_the_forward_that_the_caller_has_too():
    read = function(lambda ctx, g: g * ctx.kept[0])

    def run(x: Tensor) -> Any:
        kept = [2.0]
        return read.apply(x, kept), kept

    compiled = jitmagic.jit(run)
    for _ in range(2):
        found = []
        for one in (compiled, run):
            x = torch.ones(3, requires_grad=True)
            made, kept = one(x)
            kept[0] = 5.0
            found += torch.autograd.grad(made.sum(), x)
        torch.testing.assert_close(*found)


def test_a_result_that_is_on_ctx_and_changed_by_the_caller():
    class Read(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.made = x.sin()
            return ctx.made

        @staticmethod
        def backward(ctx, g):
            return g * ctx.made

    run = lambda x: Read.apply(x * 2)  # noqa: E731
    compiled = jitmagic.jit(run)
    for _ in range(2):
        found = []
        for one in (compiled, run):
            x = torch.ones(3, requires_grad=True)
            made = one(x)
            made.detach().mul_(3)
            found += torch.autograd.grad(made.sum(), x)
        torch.testing.assert_close(*found)


def test_a_large_tensor_that_is_written_to_before_the_forward_runs_again():
    """It cannot run on what is gone: that is said."""
    kept = torch.ones(1 << 15)
    read = function(lambda ctx, g: g * ctx.kept, lambda ctx, x, kept: x * kept)
    made = jitmagic.jit(lambda x: read.apply(x, kept).sin())(kept.clone().requires_grad_())
    kept.fill_(2.0)
    with pytest.raises(OutdatedBackward, match="written to since the forward"):
        made.sum().backward()


def test_a_cell_that_the_frame_changes_after_the_call():
    read = function(lambda ctx, g: ctx.kept(g))

    def run(x: Tensor) -> Any:
        scale = 2.0
        made = read.apply(x, lambda g: g * scale)
        scale = 5.0
        return made

    compiled = jitmagic.jit(run)
    for _ in range(2):
        found = []
        for one in (compiled, run):
            x = torch.ones(3, requires_grad=True)
            found += torch.autograd.grad(one(x).sum(), x)
        torch.testing.assert_close(*found)


def test_backward_releases_held_objects():
    """The objects are released after the backward, as eager's ctx releases them."""
    kept = SimpleNamespace(scale=2.0, marker=torch.ones(1))
    read = function(lambda ctx, g: g * ctx.kept.scale)
    compiled = jitmagic.jit(lambda x, kept: read.apply(x, kept) * 3)
    before = _references(kept)
    x = torch.ones(3, requires_grad=True)
    made = compiled(x, kept)
    assert _references(kept) > before
    made.sum().backward()
    del made
    assert _references(kept) == before


def _references(obj: object) -> int:
    return sys.getrefcount(obj)


# ------------------------------------------------------------------------------------------ hooks


def hook_in_the_code(kept: Any, module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        made = x.sin()
        made.register_hook(lambda g: g * kept.scale)
        return made * 2

    return run


def hook_of_the_input(kept: Any, module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        x.register_hook(lambda g: g * kept.scale)
        return x.sin() * 2

    return run


def hook_of_a_leaf(kept: Any, module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        x.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(kept.scale), None)[1])
        return x.sin() * 2

    return run


def hook_of_a_module(kept: Any, module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    module.register_full_backward_hook(lambda m, gi, go: tuple(g * kept.scale for g in gi))
    return lambda x: module(x) * 2


def hook_before_a_module(kept: Any, module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    module.register_full_backward_pre_hook(lambda m, go: tuple(g * kept.scale for g in go))
    return lambda x: module(x) * 2


HOOKS = (
    hook_in_the_code, hook_of_the_input, hook_of_a_leaf, hook_of_a_module, hook_before_a_module
)  # fmt: skip


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("make", HOOKS)
def test_hooks_read_the_state_of_their_own_time(make, within):
    found = []
    for wrap in (jitmagic.jit, lambda run: run):
        torch.manual_seed(0)
        kept = SimpleNamespace(scale=2.0)
        run = make(kept, torch.nn.Linear(3, 3))

        def step(x: Tensor, run: Any = run, kept: Any = kept) -> Tensor:
            loss = run(x).sum()
            kept.scale = kept.scale + 1
            if within:
                loss.backward()
            return loss

        compiled = wrap(step)
        for second in (False, True, False):
            kept.scale = 2.0
            x = torch.linspace(0.5, 1.5, 3, requires_grad=True)
            loss = compiled(x)
            kept.scale += 3.0 if second else 0.0
            if not within:
                loss.backward()
            found.append(x.grad)
    torch.testing.assert_close(found[:3], found[3:])
