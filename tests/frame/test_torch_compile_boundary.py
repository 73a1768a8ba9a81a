"""torch.compile around tagged code, tagged code around torch.compile, and nested deeper.

The tests check values, gradients, and that each compiler compiles only what it was asked to.
"""

from __future__ import annotations

import functools

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.torch_compile_boundary import torch_compile_disabled
from jitmagic.trace.result import Break

from ..processes import run_forked

testing = pytest.importorskip("torch._dynamo.testing")


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield testing.CompileCounterWithBackend("eager")
    torch._dynamo.reset()


def _torch_compile(function, counter):
    return torch.compile(function, backend=counter)


def _jitmagic(function):
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
    """Return the names of the operations that torch.compile was given."""
    nodes = [node for graph in counter.graphs for node in graph.graph.nodes]
    return [str(getattr(n.target, "__name__", n.target)) for n in nodes if "call" in n.op]


def test_jit_around_torch_compile(counter):
    inner = _torch_compile(g, counter)
    tagged = _jitmagic(lambda x: inner(x) * 2)
    same_with_gradients(tagged, lambda x: g(x) * 2)
    assert operations_of(counter) == ["sin", "mul"]
    assert str(handle_of(tagged).outcome) == "compiled"


def test_torch_compile_around_jit(counter):
    tagged = _jitmagic(g)
    outer = _torch_compile(lambda x: tagged(x.cos()) + 3, counter)
    same_with_gradients(outer, lambda x: g(x.cos()) + 3)
    assert operations_of(counter) == ["cos", "add"]
    assert str(handle_of(tagged).outcome) == "compiled"


def test_torch_compile_of_a_jitted_function(counter):
    tagged = _jitmagic(g)
    same_with_gradients(_torch_compile(tagged, counter), g)
    assert operations_of(counter) == []
    assert str(handle_of(tagged).outcome) == "compiled"


def test_jit_of_a_torch_compiled_function(counter):
    tagged = _jitmagic(_torch_compile(g, counter))
    same_with_gradients(tagged, g)
    assert operations_of(counter) == ["sin", "mul"]
    assert str(handle_of(tagged).outcome) == "eager: torch.compile compiles its callees"
    handle_of(tagged).reset()
    same_with_gradients(tagged, g)


def test_three_nested_levels(counter):
    innermost = _jitmagic(lambda x: x.cos() + 1)
    middle = _torch_compile(lambda x: innermost(x * 3).exp(), counter)
    outer = _jitmagic(lambda x: middle(x + 2) - 1)
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
    theirs, in_place = _torch_compile(Net(), counter), Net()
    in_place.compile(backend=counter)
    for inner in (theirs, in_place):
        torch._dynamo.reset()  # the two share Net's code
        counter.graphs.clear()
        same_with_gradients(_jitmagic(lambda x, inner=inner: inner(x) * 2), lambda x: plain(x) * 2)
        assert len(counter.graphs) == 1
    same_with_gradients(
        _torch_compile(lambda x, net=_jitmagic(Net()): net(x) * 2, counter), lambda x: plain(x) * 2
    )


def test_a_torch_compiled_training_step_with_a_jitted_function(counter):
    tagged = _jitmagic(g)
    weights = [torch.ones(4, requires_grad=True) for _ in range(2)]

    def step(function, weight, x):
        loss = function(weight * x).sum() + 1
        loss.backward()
        return loss

    compiled = _torch_compile(step, counter)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4)
        losses = compiled(tagged, weights[0], x), step(g, weights[1], x)
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(weights[0].grad, weights[1].grad)
    assert not any("jitmagic" in str(graph.code) for graph in counter.graphs)
    assert "sin" not in operations_of(counter)


def test_torch_compiles_evaluator_is_restored(counter):
    evaluator = torch._C._dynamo.eval_frame.get_eval_frame_callback
    seen = []

    def failing(x):
        jitmagic.graph_break()
        seen.append(evaluator())
        raise ValueError("on purpose")

    tagged = _jitmagic(failing)
    outer = _torch_compile(lambda x: tagged(x) + 1, counter)
    before = evaluator()
    with pytest.raises(ValueError, match="on purpose"):
        outer(torch.ones(2))
    assert evaluator() is before is None
    assert seen == [None]
    with pytest.raises(KeyError), torch_compile_disabled():
        raise KeyError
    assert evaluator() is before


def test_an_optimized_module_is_not_tagged(counter):
    net = torch.nn.Linear(4, 4)
    theirs = _torch_compile(net, counter)
    with pytest.warns(jitmagic.errors.FallbackWarning, match="torch.compile"):
        assert _jitmagic(theirs) is theirs
    same_with_gradients(theirs, net)


def test_modules_made_while_compiling_after_torch_compile_ran(counter):
    """torch.compile wraps the initialisation of all modules; jitmagic bypasses the wrapper."""
    _torch_compile(g, counter)(torch.ones(2))

    def f(x, y):
        return torch.nn.CrossEntropyLoss(label_smoothing=0.1)(torch.nn.GELU()(x), y)

    tagged = _jitmagic(f)
    x, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 0])
    torch.testing.assert_close(tagged(x, y), f(x, y))
    assert str(handle_of(tagged).outcome) == "compiled"


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_optimizers_work_after_torch_compile_was_used(kind, counter):
    """The first torch.compile of a process wraps the methods of optimizers."""
    _torch_compile(g, counter)(torch.ones(2))

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


def test_saved_torch_compile_callables_run_unchanged(counter):
    """A function under torch.compiler.disable is plain Python for jitmagic too."""
    _torch_compile(g, counter)(torch.ones(2))
    apart = torch.compiler.disable(g)
    tagged = _jitmagic(lambda x: apart(x) + 1)
    same_with_gradients(tagged, lambda x: g(x) + 1)


def test_callees_of_jitmagics_python_are_not_hooked(counter):
    """torch.compile's wrapper of `nn.Module.__init__` runs when new sizes are compiled late."""
    _torch_compile(g, counter)(torch.ones(2))

    def program(x):
        total = x.new_zeros(x.shape[1])
        for row in x:
            total = total + row.sin()
        return total.tanh()

    tagged = _jitmagic(program)
    for length in (3, 4, 5, 2):
        x = torch.randn(length, 8, dtype=torch.float64)
        torch.testing.assert_close(tagged(x), program(x))
    handle = handle_of(tagged)
    assert [each for each in (handle, *handle.family.members) if each.given_up is not None] == []


@pytest.mark.parametrize("is_recursive", [True, False])
def test_torch_compiler_disable_runs_as_plain_python(is_recursive: bool) -> None:
    seen = []

    @torch.compiler.disable(recursive=is_recursive)
    def disabled(x):
        seen.append(jitmagic.is_compiling())
        return x.sin()

    tagged = _jitmagic(lambda x: disabled(x) * 2)
    assert torch.equal(tagged(torch.ones(3)), torch.ones(3).sin() * 2)
    assert seen == [False]
    reason = handle_of(tagged).journal.records[0].result("trace").exit.reason
    assert reason.kind == "DisabledFunction"
    assert reason.message.endswith("excluded from compilation by torch.compiler.disable")


def test_wrappers_of_tagged_functions_do_not_inherit_the_marks() -> None:
    inner = _jitmagic(g)

    @functools.wraps(inner)
    def wrapper(x):
        return inner(x) + 1

    tagged = _jitmagic(lambda x: wrapper(x) * 2)
    assert torch.equal(tagged(torch.ones(3)), (g(torch.ones(3)) + 1) * 2)
    (record,) = handle_of(tagged).journal
    assert not isinstance(record.result("trace").exit, Break)


@pytest.mark.parametrize("name", ["graph_break", "step_unsupported", "sub"])
def test_functions_excluded_from_torch_compile_graphs_break_the_graph(name: str, counter) -> None:
    """torch's record of the function's id decides, even for a function that does nothing."""

    def broken(x):
        y = x * 2
        torch.sub(y, 1) if name == "sub" else getattr(torch._dynamo.decorators, name)()
        return y + 1

    torch._dynamo.disallow_in_graph(torch.sub)
    try:
        made = _jitmagic(broken)
        same_with_gradients(made, broken)
    finally:
        torch._dynamo.allow_in_graph(torch.sub)
    (first, *_) = handle_of(made).journal
    exit_ = first.result("trace").exit
    assert isinstance(exit_, Break)
    assert "torch.compile breaks its graphs there" in exit_.reason.message


SEEDED = """
import torch
torch.compile(torch.sin, backend="eager")(torch.ones(2))  # wraps torch.manual_seed
import jitmagic

def seeded(x):
    torch.manual_seed(0)
    return x + torch.randn(3)

tagged = jitmagic.jit(seeded, backend="eager", fullgraph=True)
assert torch.equal(tagged(torch.ones(3)), seeded(torch.ones(3)))
"""


def test_a_seed_is_no_graph_break_where_torch_compile_ran_first():
    done = run_forked(SEEDED, imported="torch")
    assert done.returncode == 0, done.stderr


AFTER_AN_ERROR = """
import faulthandler
import torch, jitmagic

faulthandler.dump_traceback_later(100, exit=True)
x = torch.randn(4)
try:
    torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sum(), (x,))
except Exception as error:
    print(type(error).__name__)
doubled = torch.compile(lambda x: x * 2, backend="eager")

def helper(x):
    return doubled(x) + 1

def broken(x):
    y = x + 1
    jitmagic.graph_break()
    return helper(y)

fast = jitmagic.jit(broken)
print([torch.equal(fast(x), (x + 1) * 2 + 1) for _ in range(3)])
"""


def test_torch_compile_runs_in_hooked_code_after_an_error_of_its_own():
    """torch's evaluator stays installed after the error, below jitmagic's and then above it too."""
    done = run_forked(AFTER_AN_ERROR)
    assert done.stdout.split("\n")[1] == "[True, True, True]", done.stderr
