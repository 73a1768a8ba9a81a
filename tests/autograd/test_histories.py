"""Results of one graph that depend on different inputs: a backward calls the nodes of eager's graph
that it would call without us, and no others. Each that is called has used up what it saved.
"""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

import jitmagic

PROGRAMS = {
    "apart": lambda a, b, w: (a.tanh() * 2, b.exp() * b),
    "a weight in common": lambda a, b, w: (a.tanh() * w, b.exp() * w),
    "one of both": lambda a, b, w: (a.tanh(), b * w, a * b.sin()),
    "twice the same": lambda a, b, w: (a * w, a + w, b.cos()),
    "views": lambda a, b, w: (a.tanh()[1:], b.sin().view(3, 1), (a * w)[:2]),
    "one that nothing leads to": lambda a, b, w: (a.tanh(), w.detach() * 2, b * b),
}
COUNTS = {name: len(f(*[torch.ones(3)] * 3)) for name, f in PROGRAMS.items()}


class Upstream(torch.autograd.Function):
    """Reads what it saved and tells that it ran."""

    @staticmethod
    def forward(ctx, x, seen):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        ctx.seen = seen
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ctx.seen.append((x.shape, grad is None))
        return grad, None


class Run:
    """Inputs with a history, the results of a program of them, and what a backward did."""

    def __init__(self, f):
        torch.manual_seed(0)
        self.leaves = [torch.randn(3).requires_grad_() for _ in range(3)]
        self.seen = [[], []]
        a, b, w = self.leaves
        results = f(Upstream.apply(a.sin(), self.seen[0]), Upstream.apply(b.sin(), self.seen[1]), w)
        self.losses = [(r * r).sum() for r in results]

    def outcome(self, backward):
        error = None
        try:
            backward(self)
        except RuntimeError as raised:
            error = str(raised).splitlines()[0]
        return self.seen, [leaf.grad for leaf in self.leaves], error


def one_after_the_other(chosen):
    def backward(run):
        for i in chosen:
            if run.losses[i].requires_grad:
                run.losses[i].backward()

    return backward


def in_sum(chosen):
    return lambda run: sum(run.losses[i] for i in chosen).backward()


def retained(chosen):
    def backward(run):
        in_sum(chosen)(run) if len(chosen) == 1 else run.losses[chosen[0]].backward(
            retain_graph=True
        )
        in_sum(chosen)(run)

    return backward


def of_one_input(chosen):
    def backward(run):
        total = sum(run.losses[i] for i in chosen)
        total.backward(inputs=run.leaves[:1], retain_graph=True)
        total.backward(inputs=run.leaves[1:])

    return backward


def differentiated_twice(chosen):
    def backward(run):
        total = sum(run.losses[i] for i in chosen)
        made = torch.autograd.grad(total, run.leaves, create_graph=True, allow_unused=True)
        sum((g * g).sum() for g in made if g is not None).backward()

    return backward


WAYS = (one_after_the_other, in_sum, retained, of_one_input, differentiated_twice)


def check_same(have, want):
    (seen, grads, error), (seen_, grads_, error_) = have, want
    assert seen == seen_
    assert error == error_
    assert [g is None for g in grads] == [g is None for g in grads_]
    for g, g_ in zip(grads, grads_, strict=True):
        if g is not None:
            torch.testing.assert_close(g, g_)


@pytest.mark.filterwarnings("ignore:.*differentiated twice:jitmagic.FallbackWarning")
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_backwards_call_what_they_lead_to(name, backend):
    call = jitmagic.jit(PROGRAMS[name], backend=backend)
    places = range(COUNTS[name])
    for way, size in itertools.product(WAYS, (1, 2, 3)):
        for chosen in itertools.permutations(places, size):
            have, want = (Run(f).outcome(way(chosen)) for f in (call, PROGRAMS[name]))
            check_same(have, want)


@pytest.mark.parametrize("chosen", list(itertools.permutations(range(3))))
def test_tangents_may_come_in_any_order(chosen):
    """The engine prefers nodes that were made later; each thread counts its own."""
    f = PROGRAMS["one of both"]

    def backward(run):
        parts = {}

        def use(i):
            parts[i] = run.losses[i].exp().sin()

        for n, i in enumerate(chosen):
            if n % 2:
                use(i)
            else:
                thread = threading.Thread(target=use, args=(i,))
                thread.start()
                thread.join()
        sum(parts[i] for i in chosen).backward()
        sum(parts[i] for i in chosen[:1]).backward()  # used up, each of them

    call = jitmagic.jit(f, backend="aot_eager")
    for _ in range(2):
        check_same(*(Run(g).outcome(backward) for g in (call, f)))


def test_hooks_of_leaves_that_a_loss_does_not_lead_to_do_not_run():
    def f(a, b):
        return a * 2, b * 3

    for run in (f, jitmagic.jit(f, backend="aot_eager")):
        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        seen = []
        a.register_hook(lambda grad, seen=seen: seen.append("a"))
        b.register_hook(lambda grad, seen=seen: seen.append("b"))
        run(a, b)[1].sum().backward()
        assert seen == ["b"]


@pytest.mark.parametrize("kept", ["none", "results"])
def test_a_long_history_is_freed(kept):
    """By a loop: recursion over 20,000 calls would need more than the stack has."""

    def cell(h, x, w, v):
        h = (h * w + x).tanh()
        return h, h * v

    call = jitmagic.jit(cell, backend="aot_eager")
    x, w, v = torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    h = torch.zeros(2, requires_grad=True)
    results = []
    for _ in range(20_000):
        h, y = call(h, x, w, v)
        if kept == "results":
            results.append(y)
    del h, y
    results.clear()


def test_threads_may_differentiate_one_call():
    """With retain_graph, as in eager: each backward has tangents and gradients of its own."""

    def f(a, b, w):
        return a.tanh() * w, b.exp() * w, (a * b).sum()

    call = jitmagic.jit(f, backend="aot_eager")
    a, b, w = leaves = [torch.linspace(i, 1, 50).requires_grad_() for i in range(3)]
    want = [torch.autograd.grad(sum(r.sum() * n for r in f(*leaves)), leaves) for n in range(8)]
    results = [r.sum() for r in call(a * 1, b * 1, w)]
    wrong = []

    def work(n):
        for _ in range(50):
            made = torch.autograd.grad(sum(r * n for r in results), leaves, retain_graph=True)
            if not all(torch.allclose(m, e) for m, e in zip(made, want[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


CONSTANTS = {
    "a number": lambda a: a * 3,
    "a quotient": lambda a: a / 3,
    "an index": lambda a: a[torch.tensor([0, 0, 1])],
    "places": lambda a: a.gather(0, torch.zeros(2, dtype=torch.int64)),
    "views of one": lambda a: (a * 2).chunk(2),
    "apart": lambda a: (a * 2, a + 1, a.exp()),
    "zero": lambda a: a * 0 + 1,
    "nothing": lambda a: (a + 1).view(-1),
    "weights": lambda a: (a.lerp(a + 1, 0.3), -a),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_saved_constants_are_freed_as_in_eager(name):
    """Nodes that saved constants run once, unless retained; those that saved nothing always do."""
    jitted = jitmagic.jit(CONSTANTS[name], backend="aot_eager")

    def seen(program):
        a = torch.ones(4, requires_grad=True)
        results = program(a)
        results = results if isinstance(results, tuple) else (results,)
        told = []
        for keep in (True, False, False):
            for result in results:
                try:
                    result.sum().backward(retain_graph=keep)
                except RuntimeError as error:
                    told.append(str(error).partition("\n")[0])
                told.append(a.grad.tolist())
        return told

    assert seen(jitted) == seen(CONSTANTS[name])
