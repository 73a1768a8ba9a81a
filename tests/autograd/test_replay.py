"""The replay behind create_graph=True: its inputs, results and draws, how long they are held, and
what it refuses.
"""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch

import jitmagic
from jitmagic.errors import DoubleBackward, FallbackWarning

from .lifting import close
from .test_functions import t
from .test_second_order import second

grad = torch.autograd.grad
pytestmark = pytest.mark.filterwarnings("ignore:.*op by op:jitmagic.errors.FallbackWarning")


def test_views_and_results_without_tangents():
    def several(x, w):
        y = (x @ w).tanh()
        return y, y.t(), y[0], (x * 2).sin(), x * 3

    compiled = jitmagic.jit(several, fullgraph=True)
    for chosen in ([0], [1], [2], [3], [4], [1, 3], [0, 1, 2, 3, 4]):

        def part(function, chosen=tuple(chosen)):
            def run(x, w):
                made = function(x, w)
                return sum((made[i] ** 2).sum() * (i + 1) for i in chosen) + (w**2).sum()

            return run

        x, w = t(4, 4), t(4, 4)
        for a, e in zip(second(part(compiled), x, w), second(part(several), x, w), strict=True):
            assert (a is None) == (e is None), chosen
            if a is not None:
                close(a, e, None)


def test_an_input_computed_from_another_input():
    """The gradient for x through h is not given twice."""

    def function(x, h):
        return (x * h).sin()

    def whole(function):
        x = t(5)
        h = x.exp()
        first = grad(function(x, h).sum(), (x, h), create_graph=True)
        return [*first, *grad(sum((g * g).sum() for g in first), x)]

    for a, e in zip(whole(jitmagic.jit(function)), whole(function), strict=True):
        torch.testing.assert_close(a, e)


def test_chains_of_graphs():
    first, then = jitmagic.jit(lambda x: x.sin() * x), jitmagic.jit(lambda h: (h * h).cumsum(0))
    x = t(6)
    ours = second(lambda x: then(first(x).exp()), x)
    eager = second(lambda x: then.__wrapped__(first.__wrapped__(x).exp()), x)
    for a, e in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, e)


def test_a_graph_that_is_linear_keeps_nothing():
    compiled = jitmagic.jit(lambda x, y: (x + 2 * y.t(), x.sum(0)))
    x, y = t(3, 4), t(4, 3)
    h = x * 1
    made = compiled(h, y)
    ref = weakref.ref(h.untyped_storage())
    del h
    gc.collect()
    assert ref() is None
    tangents = t(3, 4), t(4)
    gx, gy = grad(made, (x, y), tangents, create_graph=True)
    torch.testing.assert_close(gx, tangents[0] + tangents[1])
    torch.testing.assert_close(gy, 2 * tangents[0].t())
    (again,) = grad((gx * gx).sum() + gy.sum(), tangents[1])
    torch.testing.assert_close(again, 2 * gx.sum(0))


def test_a_big_input_that_eager_frees_is_kept_from_the_second_time_on():
    """relu keeps its result; the input is another four times four MiB."""
    compiled = jitmagic.jit(lambda h: h.exp())
    x = torch.linspace(0, 1, 1 << 21).requires_grad_()

    def run():
        h = x * 1
        made = compiled(h)
        ref = weakref.ref(h)
        del h
        return made, ref

    made, ref = run()
    gc.collect()  # a compile on CPython 3.12 leaves a cycle
    assert ref() is None
    with pytest.raises(DoubleBackward, match=r"8\.4 MB.*not saved(.|\n)*run it again"):
        grad(made.sum(), x, create_graph=True)
    made, _ = run()
    (first,) = grad(made.sum(), x, create_graph=True)
    (again,) = grad(first.sum(), x)
    torch.testing.assert_close(again, x.exp())


@pytest.mark.parametrize("big", [False, True])
def test_what_the_graph_overwrites(big):
    """It is copied before: each time where it is small, else once a replay was asked for."""

    def step(state, x):
        state.add_(1)
        return (x * state).sin()

    compiled = jitmagic.jit(step, fullgraph=True)
    state, x = torch.zeros(1 << 15 if big else 3), t(1)

    def orders(function):
        first = grad(function(state, x).sum(), x, create_graph=True)[0]
        again = grad(first.sum(), x, create_graph=True)[0]
        return first, again, grad(again.sum(), x)[0]

    if big:
        with pytest.raises(DoubleBackward, match="1 of its inputs.*not saved"):
            orders(compiled)
        assert torch.equal(state, torch.ones_like(state))
        state.zero_()
    ours = orders(compiled)
    assert torch.equal(state, torch.ones_like(state))  # once, whatever is replayed
    state.zero_()
    for a, e in zip(ours, orders(step), strict=True):
        torch.testing.assert_close(a, e)


def test_a_copy_is_replayed_any_number_of_times():
    compiled = jitmagic.jit(lambda s, x: (s.mul_(2), (x * s).sin())[1])
    state, x = torch.ones(3), t(3)
    made = compiled(state, x).sum()
    state.zero_()
    one, other = (grad(made, x, create_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(one, (x * 2).cos() * 2)
    assert torch.equal(one, other)


def test_an_input_written_to_after_the_call():
    for changed in (0, 1):
        said = []
        for function in (lambda x, w: (x @ w).tanh(), jitmagic.jit(lambda x, w: (x @ w).tanh())):
            x, w = t(3, 4), t(4, 4)
            made = function(x, w).sum()
            with torch.no_grad():
                (x, w)[changed].add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                grad(made, (x, w), create_graph=True)
            said.append(True)
        assert len(said) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x + w).sin() * (x * 2 - w).exp(),
        lambda x, w: torch.where(x > 0, w, w * w).tanh() + x[0],
        lambda x, w: (x + w * w).softmax(-1),
    ],
)
def test_an_input_that_eager_does_not_hold(function):
    """Small ones are copied, so that they may be written to before a backward is differentiated."""
    ours, theirs = [], []
    for called, kept in ((jitmagic.jit(function), ours), (function, theirs)):
        x, w = t(3, 4).detach(), t(3, 4)
        for _ in range(2):
            made = called(x, w).sum()
            x.add_(1)
            (first,) = grad(made, w, create_graph=True)
            kept += [first, *grad(first.sum(), w)]
    for a, e in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("leaf", [False, True], ids=["data", "parameter"])
def test_a_large_input_that_eager_does_not_hold(leaf):
    """It is held and not copied, until the first write that a backward finds: torch's error."""
    compiled = jitmagic.jit(lambda x, w: ((x + 1).sin() * w).sum())

    def orders(function):
        x, w = t(1 << 15).detach().requires_grad_(leaf), t(1 << 15)
        made = function(x, w)
        with torch.no_grad():
            x.add_(1)
        (first,) = grad(made, w, create_graph=True)
        return first, *grad((first * w).sum(), w)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        orders(compiled)
    for _ in range(2):
        for a, e in zip(orders(compiled), orders(compiled.__wrapped__), strict=True):
            torch.testing.assert_close(a, e)


def test_retained_and_released_graphs():
    compiled = jitmagic.jit(lambda x, w: (x @ w).tanh())
    x, w = t(3, 4), t(4, 4)
    loss = compiled(x, w).sum()
    first = grad(loss, x, retain_graph=True)[0]
    again = grad(loss, x, create_graph=True)[0]
    torch.testing.assert_close(first, again)
    grad(again.sum(), w, retain_graph=True)
    assert torch.equal(grad(loss, x)[0], first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        grad(loss, x, create_graph=True)


def test_nothing_is_held_when_all_is_done():
    compiled = jitmagic.jit(lambda h, w: (h @ w).tanh())
    w = t(4, 4)
    for create_graph in (False, True):
        h = t(3, 4) * 1
        ref = weakref.ref(h)
        made = compiled(h, w)
        (g,) = grad(made.sum(), w, create_graph=create_graph)
        if create_graph:
            g.sum().backward()
        w.grad = None
        del h, g
        if not create_graph:
            assert ref() is None  # although `made` and its node live
        del made
        gc.collect()
        assert ref() is None


def test_checkpointed_hooked_and_threaded():
    checkpoint = torch.utils.checkpoint.checkpoint

    def f(x, w):
        return (x @ w).tanh() @ w

    compiled = jitmagic.jit(f)
    x, w = t(4, 4), t(4, 4)
    expected = second(f, x, w)

    def compare(made):
        for a, e in zip(made, expected, strict=True):
            torch.testing.assert_close(a, e)

    compare(second(lambda x, w: checkpoint(compiled, x, w, use_reentrant=False), x, w))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        compare(second(compiled, x, w))
    with torch.autograd.graph.save_on_cpu():
        compare(second(compiled, x, w))
    made = [None] * 4

    def work(i):
        made[i] = second(compiled, x, w)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in made:
        compare(one)


def test_accumulated_into_grad():
    compiled = jitmagic.jit(lambda x, w: (x @ w).tanh())
    x, w = t(3, 4), t(4, 4)

    def penalty(function):
        for p in (x, w):
            p.grad = None
        (g,) = grad(function(x, w).sum(), x, create_graph=True)
        (g.norm() + function(x, w).mean()).backward()
        return x.grad, w.grad

    for a, e in zip(penalty(compiled), penalty(compiled.__wrapped__), strict=True):
        torch.testing.assert_close(a, e)


def test_inference_tensors_are_allowed_before_a_replay():
    with torch.inference_mode():
        offset = torch.ones(1 << 15)  # too large to be copied each time
    compiled = jitmagic.jit(lambda x, o: (x + o).sin())
    x = t(1 << 15)
    made = compiled(x, offset)
    torch.testing.assert_close(grad(made.sum(), x, retain_graph=True)[0], (x + 1).cos())
    with pytest.raises(DoubleBackward, match="inference tensors"):
        grad(made.sum(), x, create_graph=True)


def test_one_warning_for_a_function():
    @jitmagic.jit
    def f(x):
        return x.sin() * x

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in (3, 4, 4):
            second(f, t(n))
    told = [w for w in seen if issubclass(w.category, FallbackWarning)]
    assert len(told) == 1
    assert "f is differentiated twice (create_graph)" in str(told[0].message)


@pytest.mark.parametrize("function", [lambda x: (x.sin() * x.roll(1)).cumsum(0), lambda x: 2 * x])
def test_a_batch_of_gradients(function):
    """One backward for many tangents, which have no memory of the size of one."""
    compiled, x = jitmagic.jit(function), t(4)
    expected = torch.autograd.functional.jacobian(function, x)
    for options in ({}, {"vectorize": True}, {"vectorize": True, "create_graph": True}):
        made = torch.autograd.functional.jacobian(compiled, x, **options)
        torch.testing.assert_close(made, expected)
    rows = grad(compiled(x), x, torch.eye(4), is_grads_batched=True)[0]
    torch.testing.assert_close(rows, expected)
    assert not rows.requires_grad


def test_numbers_that_vary():
    def function(x, scale):
        return (x * scale).sin() * scale

    compiled, x = jitmagic.jit(function), t(4)
    for scale in (1.0, 2.0, 3.5, 4.5):
        ours = second(lambda x, s=scale: compiled(x, s), x)
        for a, e in zip(ours, second(lambda x, s=scale: function(x, s), x), strict=True):
            close(a, e, None)


def test_gradients_between_results():
    def function(x, w):
        features = (x @ w).tanh()
        return features, (features**2).sin().sum()

    def penalty(function):
        x, w = t(3, 4), t(4, 4)
        features, loss = function(x, w)
        (slope,) = grad(loss, features, create_graph=True)
        return grad(slope.norm() + loss, (x, w))

    for a, e in zip(penalty(jitmagic.jit(function)), penalty(function), strict=True):
        close(a, e, None)
