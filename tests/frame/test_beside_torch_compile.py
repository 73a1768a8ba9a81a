"""torch.compile around tagged code, tagged code around torch.compile, and deeper.

Checked are values, gradients, and that each compiles what it was asked to, nothing of the other's.
"""

from __future__ import annotations

import functools

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.beside import torch_compile_set_aside
from jitmagic.trace.result import Break

testing = pytest.importorskip("torch._dynamo.testing")


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield testing.CompileCounterWithBackend("eager")
    torch._dynamo.reset()


def _theirs(function, counter):
    return torch.compile(function, backend=counter)


def _ours(function):
    return jitmagic.jit(function)


def g(x):
    return x.sin() * 2


def same_with_gradients(made, plain, calls=3):
    for seed in range(calls):
        torch.manual_seed(seed)
        x = torch.randn(4, 4, requires_grad=True)
        got, wanted = made(x), plain(x)
        torch.testing.assert_close(got, wanted)
        gradients = [torch.autograd.grad(out.sum(), x)[0] for out in (got, wanted)]
        torch.testing.assert_close(*gradients)


def operations_of(counter):
    """Names of what torch.compile was given to compile."""
    nodes = [node for graph in counter.graphs for node in graph.graph.nodes]
    return [str(getattr(n.target, "__name__", n.target)) for n in nodes if "call" in n.op]


def test_ours_around_theirs(counter):
    inner = _theirs(g, counter)
    tagged = _ours(lambda x: inner(x) * 2)
    same_with_gradients(tagged, lambda x: g(x) * 2)
    assert operations_of(counter) == ["sin", "mul"]
    assert str(handle_of(tagged).outcome) == "compiled"


def test_theirs_around_ours(counter):
    tagged = _ours(g)
    outer = _theirs(lambda x: tagged(x.cos()) + 3, counter)
    same_with_gradients(outer, lambda x: g(x.cos()) + 3)
    assert operations_of(counter) == ["cos", "add"]
    assert str(handle_of(tagged).outcome) == "compiled"


def test_theirs_of_ours(counter):
    tagged = _ours(g)
    same_with_gradients(_theirs(tagged, counter), g)
    assert operations_of(counter) == []
    assert str(handle_of(tagged).outcome) == "compiled"


def test_ours_of_theirs(counter):
    tagged = _ours(_theirs(g, counter))
    same_with_gradients(tagged, g)
    assert operations_of(counter) == ["sin", "mul"]
    assert str(handle_of(tagged).outcome) == "eager: torch.compile compiles what it calls"
    handle_of(tagged).reset()
    same_with_gradients(tagged, g)


def test_three_storeys(counter):
    innermost = _ours(lambda x: x.cos() + 1)
    middle = _theirs(lambda x: innermost(x * 3).exp(), counter)
    outer = _ours(lambda x: middle(x + 2) - 1)
    same_with_gradients(outer, lambda x: ((x + 2) * 3).cos().add(1).exp() - 1)
    assert operations_of(counter) == ["mul", "exp"]
    assert {str(handle_of(one).outcome) for one in (innermost, outer)} == {"compiled"}


def test_modules(counter):
    linear = torch.nn.Linear(4, 4)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x):
            return self.linear(x).relu()

    plain = Net()
    theirs, in_place = _theirs(Net(), counter), Net()
    in_place.compile(backend=counter)
    for inner in (theirs, in_place):
        torch._dynamo.reset()  # the two share Net's code
        counter.graphs.clear()
        same_with_gradients(_ours(lambda x, inner=inner: inner(x) * 2), lambda x: plain(x) * 2)
        assert len(counter.graphs) == 1
    same_with_gradients(
        _theirs(lambda x, net=_ours(Net()): net(x) * 2, counter), lambda x: plain(x) * 2
    )


def test_a_training_step_of_theirs_with_ours_inside(counter):
    tagged = _ours(g)
    weights = [torch.ones(4, requires_grad=True) for _ in range(2)]

    def step(function, weight, x):
        loss = function(weight * x).sum() + 1
        loss.backward()
        return loss

    compiled = _theirs(step, counter)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4)
        losses = compiled(tagged, weights[0], x), step(g, weights[1], x)
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(weights[0].grad, weights[1].grad)
    assert not any("jitmagic" in str(graph.code) for graph in counter.graphs)
    assert "sin" not in operations_of(counter)


def test_the_evaluator_is_theirs_again(counter):
    evaluator = torch._C._dynamo.eval_frame.get_eval_frame_callback
    seen = []

    def failing(x):
        jitmagic.graph_break()
        seen.append(evaluator())
        raise ValueError("on purpose")

    tagged = _ours(failing)
    outer = _theirs(lambda x: tagged(x) + 1, counter)
    before = evaluator()
    with pytest.raises(ValueError, match="on purpose"):
        outer(torch.ones(2))
    assert evaluator() is before is None
    assert seen == [None]
    with pytest.raises(KeyError), torch_compile_set_aside():
        raise KeyError
    assert evaluator() is before


def test_an_optimized_module_is_left_as_it_is(counter):
    net = torch.nn.Linear(4, 4)
    theirs = _theirs(net, counter)
    with pytest.warns(jitmagic.errors.FallbackWarning, match="torch.compile"):
        assert _ours(theirs) is theirs
    same_with_gradients(theirs, net)


def test_modules_that_ours_makes_after_theirs_was_used(counter):
    """torch.compile wraps the initialisation of all modules; ours look through that."""
    _theirs(g, counter)(torch.ones(2))

    def f(x, y):
        return torch.nn.CrossEntropyLoss(label_smoothing=0.1)(torch.nn.GELU()(x), y)

    tagged = _ours(f)
    x, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 0])
    torch.testing.assert_close(tagged(x, y), f(x, y))
    assert str(handle_of(tagged).outcome) == "compiled"


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_optimizers_are_torch_s_own_after_theirs(kind, counter):
    """The first torch.compile of a process puts functions of its own around their methods."""
    _theirs(g, counter)(torch.ones(2))

    def losses(wrap):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 3)
        optimizer = getattr(torch.optim, kind)(net.parameters(), 1e-2)

        def step(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        return torch.stack([run(torch.ones(2, 3)) for _ in range(4)])

    whole = lambda step: jitmagic.jit(step, backend="eager", fullgraph=True)  # noqa: E731
    torch.testing.assert_close(losses(whole), losses(lambda step: step))


def test_what_a_user_keeps_from_theirs_is_called_as_it_is(counter):
    """A function under torch.compiler.disable is plain Python, also for us."""
    _theirs(g, counter)(torch.ones(2))
    apart = torch.compiler.disable(g)
    tagged = _ours(lambda x: apart(x) + 1)
    same_with_gradients(tagged, lambda x: g(x) + 1)


def test_what_our_own_python_calls_is_not_hooked(counter):
    """Their function around `nn.Module.__init__` is called where sizes are compiled for late."""
    _theirs(g, counter)(torch.ones(2))

    def program(x):
        total = x.new_zeros(x.shape[1])
        for row in x:
            total = total + row.sin()
        return total.tanh()

    tagged = _ours(program)
    for length in (3, 4, 5, 2):
        x = torch.randn(length, 8, dtype=torch.float64)
        torch.testing.assert_close(tagged(x), program(x))
    handle = handle_of(tagged)
    assert [each for each in (handle, *handle.family.members) if each.given_up is not None] == []


@pytest.mark.parametrize("is_recursive", [True, False])
def test_what_torch_disables_runs_as_plain_python(is_recursive: bool) -> None:
    seen = []

    @torch.compiler.disable(recursive=is_recursive)
    def disabled(x):
        seen.append(jitmagic.is_compiling())
        return x.sin()

    tagged = _ours(lambda x: disabled(x) * 2)
    assert torch.equal(tagged(torch.ones(3)), torch.ones(3).sin() * 2)
    assert seen == [False]
    reason = handle_of(tagged).journal.records[0].result("trace").exit.reason
    assert reason.kind == "DisabledFunction"
    assert reason.message.endswith("excluded from compilation by torch.compiler.disable")


def test_what_wraps_a_tagged_function_is_not_disabled_by_its_marks() -> None:
    inner = _ours(g)

    @functools.wraps(inner)
    def wrapper(x):
        return inner(x) + 1

    tagged = _ours(lambda x: wrapper(x) * 2)
    assert torch.equal(tagged(torch.ones(3)), (g(torch.ones(3)) + 1) * 2)
    (record,) = handle_of(tagged).journal
    assert not isinstance(record.result("trace").exit, Break)


@pytest.mark.parametrize("name", ["graph_break", "step_unsupported", "sub"])
def test_what_theirs_keeps_out_of_graphs_breaks_ours(name: str, counter) -> None:
    """What torch keeps of its id tells, even of a function that does nothing."""

    def broken(x):
        y = x * 2
        torch.sub(y, 1) if name == "sub" else getattr(torch._dynamo.decorators, name)()
        return y + 1

    torch._dynamo.disallow_in_graph(torch.sub)
    try:
        made = _ours(broken)
        same_with_gradients(made, broken)
    finally:
        torch._dynamo.allow_in_graph(torch.sub)
    (first, *_) = handle_of(made).journal
    exit_ = first.result("trace").exit
    assert isinstance(exit_, Break)
    assert "torch.compile has no graph go past it" in exit_.reason.message
