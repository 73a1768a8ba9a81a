"""The native autograd function: what a user of the results can do with them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import jitmagic
from jitmagic.autograd.autograd_function import BackwardCache, fx_executable, make_callable
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.errors import CompileFailed, DoubleBackward
from jitmagic.spec import spec_of

from .lifting import compile_like, lift
from .test_functions import t


def program(x, w):
    return (x @ w).tanh(), (x * 2).sum()


def compiled():
    x, w = t(3, 4), t(4, 4)
    return compile_like(program, (x, w))[0], x, w


def expected(x, w, tangents=(1.0, 1.0)):
    a, b = program(x, w)
    return torch.autograd.grad((a * tangents[0]).sum() + b * tangents[1], (x, w))


def test_a_graph_without_gradients_is_the_executable_itself():
    graph, inputs = lift(lambda x: (x + 1, x * 2), (t(3, grad=False),))
    parts = partition(trace_joint(graph, [spec_of(x) for x in inputs]))

    def forward(x):
        return x + 1, x * 2

    assert parts.backward is None
    assert make_callable(parts, forward) is forward


def test_node_is_visible():
    call, x, w = compiled()
    out, total = call(x, w)
    assert out.grad_fn.name() == "JitmagicBackward"
    assert out.grad_fn is total.grad_fn or out.grad_fn.name() == total.grad_fn.name()
    assert not out.is_leaf
    assert "JitmagicBackward" in repr(out)


def test_undefined_tangents_are_zero_and_give_no_gradient():
    call, x, w = compiled()
    out, total = call(x, w)
    total.backward()
    assert torch.equal(x.grad, torch.full((3, 4), 2.0))
    assert w.grad is None
    x.grad = None
    call(x, w)[0].sum().backward()
    gx, gw = expected(x, w, (1.0, 0.0))
    torch.testing.assert_close(x.grad, gx)
    torch.testing.assert_close(w.grad, gw)


def test_gradients_accumulate_and_autograd_grad_works():
    call, x, w = compiled()
    for _ in range(2):
        out, total = call(x, w)
        (out.sum() + total).backward()
    gx, gw = expected(x, w)
    torch.testing.assert_close(x.grad, 2 * gx)
    torch.testing.assert_close(w.grad, 2 * gw)
    out, total = call(x, w)
    (only,) = torch.autograd.grad(out.sum() + total, [x])
    torch.testing.assert_close(only, gx)


def test_retain_graph_and_second_backward():
    call, x, w = compiled()
    loss = call(x, w)[0].sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_double_backward_needs_the_graph():
    x, w = t(3, 4), t(4, 4)
    graph, _ = lift(program, (x, w))
    parts = partition(trace_joint(graph, [spec_of(x), spec_of(w)]))
    call = make_callable(parts, fx_executable(parts.forward))
    with pytest.raises(DoubleBackward, match="create_graph=True"):
        torch.autograd.grad(call(x, w)[0].sum(), [x], create_graph=True)


def test_writing_to_a_saved_input_is_noticed():
    call, x, w = compiled()
    loss = call(x, w)[0].sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_writing_to_a_saved_result_is_noticed():
    call, x, w = compiled()
    out = call(x, w)[0]
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_writing_to_a_result_through_a_view_of_it():
    def turned(x):
        return x.exp().t()

    x = t(3, 4)
    out = compile_like(turned, (x,))[0](x)[0]
    with torch.no_grad():
        out[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_results_that_eager_does_not_save_may_be_written_to():
    def scores(x, w):
        y = x @ w
        return y, y.relu()

    x, w = t(3, 4), t(4, 4)
    y, z = compile_like(scores, (x, w))[0](x, w)
    y.mul_(2)
    (y.sum() + z.sum()).backward()
    ours = x.grad.clone()
    x.grad = None
    y, z = scores(x, w)
    y.mul_(2)
    (y.sum() + z.sum()).backward()
    torch.testing.assert_close(ours, x.grad)


def test_inputs_that_eager_does_not_save_may_be_written_to():
    def masked(x, w):
        return ((x * 2 + 1) @ w).relu()

    x, w = t(3, 4, grad=False), t(4, 4)
    loss = compile_like(masked, (x, w))[0](x, w)[0].sum()
    x.zero_()
    loss.backward()
    assert w.grad is not None


def test_hooks():
    call, x, w = compiled()
    seen = []
    x.register_hook(lambda grad: seen.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append("accumulated"))
    out, _ = call(x, w)
    out.register_hook(lambda grad: seen.append("result") or grad * 2)
    out.retain_grad()
    out.grad_fn.register_hook(lambda inputs, outputs: seen.append("node"))
    out.sum().backward()
    assert seen == ["result", "node", "leaf", "accumulated"]
    torch.testing.assert_close(x.grad, 2 * expected(x, w, (1.0, 0.0))[0])
    assert torch.equal(out.grad, torch.full((3, 4), 2.0))


def test_strided_and_expanded_tangents():
    call, x, w = compiled()
    tangent = t(4, 3, grad=False).t()
    call(x, w)[0].backward(tangent)
    ours = x.grad.clone()
    x.grad = None
    program(x, w)[0].backward(tangent)
    torch.testing.assert_close(ours, x.grad)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", ["zero", "negative", "strided"])
def test_tangents_whose_memory_does_not_hold_their_elements(kind):
    """Kernels read memory: it must hold the numbers, and there must be some."""
    x = torch.randn(4, 4, requires_grad=True)
    tangent = {
        "zero": lambda: torch._efficientzerotensor([4, 4]),
        "negative": lambda: torch._neg_view(torch.randn(4, 4)),
        "strided": lambda: torch.randn(4, 4, dtype=torch.complex64).conj().imag,
    }[kind]()
    compiled, plain = jitmagic.jit(lambda x: (x * 2).sin()), (x * 2).sin()
    got = torch.autograd.grad(compiled(x), x, tangent)[0]
    torch.testing.assert_close(got, torch.autograd.grad(plain, x, tangent)[0])


def test_a_loss_whose_gradient_has_no_memory():
    x = torch.randn(4, requires_grad=True)
    torch.sgn(jitmagic.jit(lambda x: x.exp() * 2)(x)).sum().backward()
    assert torch.equal(x.grad, torch.zeros(4))


def test_anomaly_mode():
    call, x, w = compiled()
    with torch.autograd.detect_anomaly(check_nan=False):
        call(x, w)[0].sum().backward()
    assert x.grad is not None


def test_saved_tensor_hooks_of_the_user():
    call, x, w = compiled()
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(x, w)[0]
    assert packed
    out.sum().backward()
    torch.testing.assert_close(x.grad, expected(x, w, (1.0, 0.0))[0])


def test_memory_is_freed_after_backward():
    graph, inputs = lift(lambda x: (x.sin() * x.cos()).exp().sum(), (t(3, 4),))
    parts = partition(trace_joint(graph, [spec_of(x) for x in inputs]))
    plain, kept = fx_executable(parts.forward), []

    def forward(*args):
        made = plain(*args)
        kept.extend(weakref.ref(value) for value in made[parts.results :])
        return made

    loss = make_callable(parts, forward)(*inputs)[0]
    assert parts.saved_intermediates == len(kept)
    gc.collect()
    loss.backward()
    assert all(ref() is None for ref in kept)


def test_backward_is_built_once_at_first_use():
    x, w = t(3, 4), t(4, 4)
    graph, _ = lift(program, (x, w))
    parts = partition(trace_joint(graph, [spec_of(x), spec_of(w)]))
    made = []

    def factory(backward):
        made.append(threading.get_ident())
        return fx_executable(backward)

    call = make_callable(parts, fx_executable(parts.forward), factory)
    call(x, w)
    assert not made
    losses = [call(x, w)[0].sum() for _ in range(8)]
    threads = [threading.Thread(target=loss.backward) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    torch.testing.assert_close(x.grad, 8 * expected(x, w, (1.0, 0.0))[0])


def test_an_error_in_backward_reaches_the_caller():
    x, w = t(3, 4), t(4, 4)
    graph, _ = lift(program, (x, w))
    parts = partition(trace_joint(graph, [spec_of(x), spec_of(w)]))

    def factory(backward):
        raise CompileFailed("no compiler today")

    call = make_callable(parts, fx_executable(parts.forward), factory)
    with pytest.raises(CompileFailed, match="no compiler today"):
        call(x, w)[0].sum().backward()


def test_an_error_in_forward_reaches_the_caller():
    call, x, w = compiled()
    with pytest.raises(TypeError, match="expected 2 input tensors"):
        call(x)
    with pytest.raises(TypeError, match="is not a tensor"):
        call(x, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        call(x, t(5, 4))


def test_versions_of_written_inputs_are_bumped():
    state, x = t(3, grad=False), t(3, grad=False)
    call, _, _ = compile_like(lambda s, x: (s.add_(x), s * 2)[1], (state, x))
    before = state._version
    call(state, x)
    assert state._version > before


def test_under_autocast_the_graph_is_not_cast_again():
    def plain(x, w):
        return (x @ w).exp()

    x, w = t(3, 4), t(4, 4)
    call, _, _ = compile_like(plain, (x, w))
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, w)[0].dtype is torch.float32


def test_parameters_train_through_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    x = t(16, 4, grad=False)
    call, inputs, parts = compile_like(model, (x,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (call(*inputs)[0] - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.8
    assert parts.grad_inputs == (1, 2, 3, 4)


SLOPES = torch.tensor([0.0, 4.0])


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_results_without_a_tangent_contribute_nothing(backend):
    """Not even zero times the infinite slope of sqrt at 0."""

    def run(x):
        y = x * 3
        return y, y.sqrt(), (y.sqrt() + y).sum(), x.detach()

    compiled = jitmagic.jit(run, backend=backend)
    for wanted in ([0], [1], [2], [0, 1], [0, 2], [0, 1, 2], [0]):

        def gradient(f, chosen=tuple(wanted)):
            x = SLOPES.clone().requires_grad_()
            results = f(x)
            sum(results[i].sum() * (i + 1) for i in chosen).backward()
            return x.grad

        # two graphs: what reaches x is added up in another order
        torch.testing.assert_close(gradient(compiled), gradient(run), rtol=3e-7, atol=0)


def test_a_gradient_that_only_missing_tangents_reach_is_none():
    compiled = jitmagic.jit(lambda a, b: (a * 2, b.sqrt()))
    a, b = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    compiled(a, b)[0].sum().backward()
    assert torch.equal(a.grad, torch.full((2,), 2.0))
    assert b.grad is None


# ------------------------------------------------------------- one result after the other


def separate(x, y, w):
    """Two losses that share inputs but no saved value, one that shares all, one that reads none."""
    shared = (x @ w).exp()
    return shared * 2, shared * 3, (y * x).sin(), x + 1


@pytest.mark.parametrize(
    ("order", "works"),
    [
        ((0, 2, 3), True),
        ((2, 0), True),
        ((3, 3, 1), True),
        ((0, 1), False),
        ((2, 2), False),
        ((2, 0, 2), False),
    ],
)
def test_results_are_differentiated_one_after_the_other_as_in_eager(order, works):
    def gradients(function):
        inputs = t(3, 3), t(3, 3, scale=0.7), t(3, 3, scale=-0.4)
        results, seen = function(*inputs), []
        for index in order:
            results[index].sum().backward()
            seen.append([None if i.grad is None else i.grad.clone() for i in inputs])
        return seen

    compiled = jitmagic.jit(separate)
    if not works:
        for function in (separate, compiled):
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                gradients(function)
        return
    for mine, eager in zip(gradients(compiled), gradients(separate), strict=True):
        for a, b in zip(mine, eager, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b)


def test_retained_backward_frees_nothing():
    x, y, w = t(3, 3), t(3, 3, scale=0.7), t(3, 3, scale=-0.4)
    results = jitmagic.jit(separate)(x, y, w)
    results[2].sum().backward(retain_graph=True)
    results[0].sum().backward()
    results[2].sum().backward()
    others = [i.detach().requires_grad_() for i in (x, y, w)]
    eager = separate(*others)
    (eager[0] + 2 * eager[2]).sum().backward()
    for ours, other in zip((x, y, w), others, strict=True):
        assert torch.allclose(ours.grad, other.grad)
    with pytest.raises(RuntimeError, match="a second time"):
        results[2].sum().backward()


def test_what_one_loss_saved_may_be_written_to_before_the_other_runs():
    x = t(3, 4, grad=False)
    actor, critic = t(4, 4), t(4, 4, scale=0.7)
    first, second = jitmagic.jit(lambda x, a, c: ((x @ a).exp(), (x @ c).exp()))(x, actor, critic)
    first.sum().backward(retain_graph=True)
    with torch.no_grad():
        first.zero_()
    second.sum().backward()
    assert torch.allclose(critic.grad, x.T @ (x @ critic).exp())


def test_memory_that_only_one_loss_reads_is_freed_after_its_backward():
    graph, inputs = lift(lambda x, y: ((x @ x).sin(), (y @ y).sin()), (t(3, 3), t(3, 3)))
    parts = partition(trace_joint(graph, [spec_of(i) for i in inputs]))
    plain, kept = fx_executable(parts.forward), []

    def forward(*args):
        made = plain(*args)
        kept.extend(weakref.ref(value) for value in made[parts.results :])
        return made

    first, second = make_callable(parts, forward)(*inputs)
    held = len([ref for ref in kept if ref() is not None])
    first.sum().backward()
    gc.collect()
    left = len([ref for ref in kept if ref() is not None])
    assert 0 < left < held
    second.sum().backward()
    assert all(ref() is None for ref in kept)


@pytest.mark.parametrize("view", [lambda y: y.view(-1), lambda y: y.t(), lambda y: y[1:]])
def test_what_a_result_is_a_view_of_is_kept_only_where_eager_keeps_it(view):
    def masks(x, w):
        total = x + w
        parts = [torch.where(total > level / 4, x, w) * (level + 9) for level in range(-6, 6)]
        return view(total), torch.stack(parts).sum(0)

    def gradients(call):
        x, w = t(5, 7), t(1, 7)
        shown, result = call(x, w)
        shown.mul_(2)  # eager's backward needs the masks alone
        return torch.autograd.grad(shown.sum() + result.sum(), [x, w])

    actual = gradients(compile_like(masks, (t(5, 7), t(1, 7)))[0])
    torch.testing.assert_close(actual, gradients(masks))


def test_equal_gradients_are_tensors_of_their_own_where_they_are_in_eager():
    def two_biases(a, b, c):
        return (a.mean(0) * 2 + b.mean(0) * 2).sum() + c.clone().sum()

    def shared(a, b, c):
        return (a + b) * c

    def clipped(call):
        inputs = [t(5, 7), t(5, 7), t(5, 7)]
        result = call(*inputs)
        tangent = torch.ones_like(result)
        gradients = torch.autograd.grad(result, inputs, tangent)
        for gradient in gradients:
            if gradient.stride() == (7, 1):
                gradient.mul_(2)
        return [*gradients, tangent]

    for program in (two_biases, shared):
        call = compile_like(program, (t(5, 7), t(5, 7), t(5, 7)))[0]
        torch.testing.assert_close(clipped(lambda *xs, f=call: f(*xs)[0]), clipped(program))


def test_only_backwards_that_this_process_compiles_are_changes():
    graph, inputs = lift(program, (t(3, 4), t(4, 4)))
    parts = partition(trace_joint(graph, [spec_of(x) for x in inputs]))
    cache, changes = BackwardCache.of(lambda graph: "compiled", parts), []
    cache.on_change = lambda: changes.append(cache.known())
    cache.stored = {(): lambda: "stored"}  # by another process
    assert (cache(), cache.known(), changes) == ("stored", {(): "stored"}, [])
    assert (cache((0,)), changes) == ("compiled", [{(): "stored", (0,): "compiled"}])
