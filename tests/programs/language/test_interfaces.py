"""The public verbs: what can be tagged, graph breaks, backends, the recompile limit."""

from __future__ import annotations

import functools
import io
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of, original_of
from jitmagic.records import AT_LIMIT, COMPILED

from ..chain import chain, check_chain
from ..counts import Counts, breaks_of, counts_of

# ---------------------------------------------------------------------------- fullgraph and breaks


def prints(x: Tensor) -> Tensor:
    y = x + 1
    print("between")
    return y * 2


def test_fullgraph_names_line_reason_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    run = jitmagic.jit(prints, fullgraph=True)
    for _ in range(2):
        with pytest.raises(jitmagic.Unsupported) as caught:
            run(torch.ones(2))
        where = caught.value.where
        assert where.filename == __file__
        assert where.lineno == prints.__code__.co_firstlineno + 2
        for words in ('print("between")', caught.value.reason, "hint: " + caught.value.hint):
            assert words in str(caught.value)
    assert capsys.readouterr().out == ""
    relaxed = jitmagic.jit(prints)
    assert torch.equal(relaxed(torch.ones(2)), torch.full((2,), 4.0))
    assert capsys.readouterr().out == "between\n"


def breaks_by_hand(x: Tensor) -> Tensor:
    y = x.sin()
    jitmagic.graph_break()
    return y.cos()


def test_graph_break() -> None:
    x = torch.randn(4)
    run = jitmagic.jit(breaks_by_hand)
    torch.testing.assert_close(run(x), breaks_by_hand(x))
    assert counts_of(run) == Counts(graphs=2, breaks=1, kernels=2)
    with pytest.raises(jitmagic.Unsupported, match="graph_break"):
        jitmagic.jit(breaks_by_hand, fullgraph=True)(x)


def asks(x: Tensor) -> tuple[Tensor, bool]:
    return x + 1, jitmagic.is_compiling()


def test_is_compiling() -> None:
    assert asks(torch.ones(1))[1] is False
    assert jitmagic.jit(asks)(torch.ones(1))[1] is True


def test_disable_and_reset() -> None:
    run = jitmagic.jit(asks)
    assert jitmagic.disable(run)(torch.ones(1))[1] is False
    assert handle_of(run).outcome is None
    run(torch.ones(1))
    assert handle_of(run).outcome == COMPILED
    jitmagic.reset()
    assert handle_of(run).outcome is None
    assert run(torch.ones(1))[1] is True
    with pytest.raises(jitmagic.TaggingError, match="not callable"):
        jitmagic.disable(3)  # type: ignore[arg-type]


def test_a_disabled_callee_breaks_the_graph() -> None:
    @jitmagic.disable
    def plain(x: Tensor) -> Tensor:
        assert not jitmagic.is_compiling()
        return x * 3

    def outer(x: Tensor) -> Tensor:
        return plain(x + 1) * 2

    x = torch.randn(3)
    run = jitmagic.jit(outer)
    torch.testing.assert_close(run(x), outer(x))
    assert counts_of(run).breaks == 1


@pytest.mark.parametrize("recursive", [True, False])
def test_disable_says_why_and_may_leave_callees_to_the_compiler(recursive: bool) -> None:
    seen = []

    def helper(x: Tensor) -> Tensor:
        seen.append(("helper", jitmagic.is_compiling()))
        return x.sin()

    @jitmagic.disable(recursive=recursive, reason="it opens a socket")
    def plain(x: Tensor) -> Tensor:
        seen.append(("plain", jitmagic.is_compiling()))
        return helper(x) * 3

    x = torch.randn(3)
    run = jitmagic.jit(lambda x: plain(x + 1) * 2)
    torch.testing.assert_close(run(x), helper(x + 1) * 6)
    assert seen[:2] == [("plain", False), ("helper", not recursive)]
    assert "excluded from compilation by jitmagic.disable: it opens a socket" in breaks_of(run)[0]
    tagged = jitmagic.jit(asks)
    around = jitmagic.disable(lambda x: tagged(x), recursive=recursive)
    assert around(torch.ones(1))[1] is not recursive


# ------------------------------------------------------------------------------- what can be tagged


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight

    def twice(self, x: Tensor) -> Tensor:
        return self(x) * 2

    @staticmethod
    def plus(x: Tensor) -> Tensor:
        return x + 1


def test_methods_lambdas_closures_and_statics() -> None:
    x, module, k = torch.randn(2, 3), Scaled(), 3.0
    forms: list[Callable[..., Any]] = [
        module.twice,
        lambda x: x * 2 + 1,
        lambda x: x * k,
        Scaled.plus,
        functools.partial(chain, x),
    ]
    for form in forms:
        run = jitmagic.jit(form)
        assert type(run) is type(form)
        for _ in range(2):
            torch.testing.assert_close(run(x), form(x))
        assert handle_of(run).outcome == COMPILED


class Pipeline:
    """A callable object that has settings and a part of its own."""

    def __init__(self) -> None:
        self.part, self.factor = Scaled(), 2

    def __call__(self, x: Tensor, *, shift: float = 1.0) -> Tensor:
        return self.part(x) * self.factor + shift


CALLABLES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a builtin of torch": (torch.sin, (torch.randn(3),), {}),
    "of torch.nn.functional": (F.gelu, (torch.randn(3),), {"approximate": "tanh"}),
    "a Python function of torch": (F.layer_norm, (torch.randn(2, 3), [3]), {"eps": 0.1}),
    "a method of a tensor": (torch.full((3,), 2.0).add, (torch.randn(3),), {"alpha": 3}),
    "an operator": (operator.mul, (torch.randn(3), 2), {}),
    "a partial of a builtin": (functools.partial(torch.add, 1), (torch.randn(3),), {}),
    "an object": (Pipeline(), (torch.randn(2, 3),), {"shift": 3.0}),
    "a partial of an object": (functools.partial(Pipeline(), shift=2.0), (torch.randn(2, 3),), {}),
    "a method of a module": (Scaled().twice, (torch.randn(2, 3),), {}),
    "a decorated function": (torch.no_grad()(chain), (torch.randn(3, 2), torch.ones(3, 2)), {}),
    "a gradient": (torch.func.grad(lambda x: x.sin().sum()), (torch.randn(3),), {}),
    "a value and a gradient": (torch.func.grad_and_value(torch.sum), (torch.randn(3),), {}),
    "a vmap": (torch.vmap(lambda x: x.sin() + 1, in_dims=1), (torch.randn(2, 3),), {}),
    "a vmap of a gradient": (torch.vmap(torch.func.grad(torch.sum)), (torch.randn(2, 3),), {}),
    "a Jacobian": (torch.func.jacrev(torch.sin), (torch.randn(3),), {}),
    "a forward Jacobian": (torch.func.jacfwd(torch.sin), (torch.randn(3),), {}),
    "a Hessian": (torch.func.hessian(lambda x: x.sin().sum()), (torch.randn(3),), {}),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_any_callable_is_one_graph(name: str) -> None:
    target, args, kwargs = CALLABLES[name]
    run = jitmagic.jit(target, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(run(*args, **kwargs), target(*args, **kwargs))
    assert counts_of(run).graphs == 1
    assert counts_of(run).breaks == 0
    assert original_of(run) == target or isinstance(target, functools.partial)
    assert jitmagic.jit(run, fullgraph=True) is run


def test_a_tagged_object_keeps_its_settings() -> None:
    x, pipeline = torch.randn(2, 3), Pipeline()
    run = jitmagic.jit(pipeline)
    for factor in (2, 5, -1):
        pipeline.factor = factor
        torch.testing.assert_close(run(x), pipeline(x))
    with pytest.raises(TypeError, match="unexpected keyword argument 'shifted'"):
        run(x, shifted=1)


@pytest.mark.parametrize("target", [Pipeline(), torch.sin, functools.partial(F.gelu)])
def test_names_in_dynamic_are_refused_where_arguments_have_none(target: Any) -> None:
    with pytest.raises(jitmagic.TaggingError, match=r"without names\n  hint: dynamic=True"):
        jitmagic.jit(target, dynamic={"x": {0: None}})


def test_containers_of_tagged_modules_are_one_graph() -> None:
    x = torch.randn(2, 3)
    parts = [jitmagic.jit(nn.Linear(3, 3)) for _ in range(3)]
    stack = nn.Sequential(*parts)
    programs: list[Callable[..., Tensor]] = [
        jitmagic.jit(stack),
        jitmagic.jit(lambda x: stack[:2](x) + stack[2](x)),
        jitmagic.jit(lambda x: nn.Sequential(*parts)(x)),
    ]
    expected = [stack(x), stack[:2](x) + stack[2](x), stack(x)]
    for run, value in zip(programs, expected, strict=True):
        torch.testing.assert_close(run(x), value)
        assert counts_of(run).graphs == 1
        assert counts_of(run).breaks == 0


def test_a_decorated_staticmethod_and_a_method_in_a_class() -> None:
    class Box:
        k = 4

        @jitmagic.jit
        @staticmethod
        def left(x: Tensor) -> Tensor:
            return x + 4

        @staticmethod
        @jitmagic.jit
        def right(x: Tensor) -> Tensor:
            return x + 4

        @classmethod
        @jitmagic.jit
        def of_class(cls, x: Tensor) -> Tensor:
            return x + cls.k

        @jitmagic.jit(fullgraph=True)
        def method(self, x: Tensor) -> Tensor:
            return x + self.k

    x = torch.randn(3)
    for bound in (Box.left, Box.right, Box.of_class, Box().left, Box().of_class, Box().method):
        assert isinstance(bound, types.FunctionType | types.MethodType)
        assert torch.equal(bound(x), x + 4)


def test_a_closure_that_changes() -> None:
    k = 2.0

    @jitmagic.jit
    def scaled(x: Tensor) -> Tensor:
        return x * k

    x = torch.randn(3)
    assert torch.equal(scaled(x), x * 2)
    k = 5.0
    assert torch.equal(scaled(x), x * 5)


def test_module_instances_and_classes() -> None:
    x, module = torch.randn(2, 3), Scaled()
    assert jitmagic.jit(module) is module
    assert list(module.state_dict()) == ["weight"]
    torch.testing.assert_close(module(x), x * 2)

    class Derived(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + 1

    assert jitmagic.jit(Derived) is Derived
    torch.testing.assert_close(Derived()(x), x * 2 + 1)
    assert handle_of(Derived).outcome == COMPILED


# ----------------------------------------------------------------------------------------- backends


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_backends_by_name(backend: str) -> None:
    run = jitmagic.jit(chain, backend=backend)
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    run(x, y).sum().backward()
    ours, x.grad = x.grad, None
    chain(x, y).sum().backward()
    torch.testing.assert_close(ours, x.grad)
    check_chain(run)


def test_a_backend_of_the_user() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        seen.append((gm, inputs))
        return lambda *args: list(gm.forward(*args))

    run = jitmagic.jit(chain, backend=backend)
    check_chain(run)
    check_chain(run)
    ((gm, inputs),) = seen
    assert isinstance(gm, torch.fx.GraphModule)
    assert [tuple(t.shape) for t in inputs] == [(8, 64), (8, 64)]


def test_a_backend_of_the_user_that_fails() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        raise LookupError("nothing for you")

    run = jitmagic.jit(chain, backend=backend)
    for _ in range(2):  # as torch.compile's: what the user wrote is the user's to mend
        with pytest.raises(LookupError, match="nothing for you"):
            check_chain(run)


def test_what_a_backend_of_the_user_raises_in_a_call_is_raised() -> None:
    """What an operation of its graph raises is the program's error, as eager words it."""
    calls: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> Any:
            calls.append(len(calls))
            if len(calls) == 2:
                raise LookupError("not the second time")
            return gm.forward(*inputs)

        return run

    def program(x: Tensor, place: Tensor) -> Tensor:
        x.add_(1)
        return x[place] * 2

    run = jitmagic.jit(program, backend=backend)
    for place in ([0], [0], [1], [7], [2]):
        x, y = torch.zeros(3), torch.zeros(3)
        if len(calls) == 1:
            with pytest.raises(LookupError, match="not the second time"):
                run(x, torch.tensor(place))
            assert x.sum() == 0
        elif place == [7]:
            with pytest.raises(IndexError, match="index 7 is out of bounds"):
                run(x, torch.tensor(place))
            assert x.sum() == 3
        else:
            assert torch.equal(run(x, torch.tensor(place)), program(y, torch.tensor(place)))
    assert len(calls) == 5


def test_a_backend_of_the_user_that_returns_nonsense() -> None:
    run = jitmagic.jit(chain, backend=lambda gm, inputs: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(jitmagic.CompileFailed, match="callable"):
        check_chain(run)


@pytest.mark.parametrize("owner", [torch.Generator(), io.StringIO()], ids=["torch", "io"])
def test_a_method_that_nobody_knows_is_compiled_around_once(owner: Any) -> None:
    """Each read makes a new method: it is none of the facts that the code behind it rests on."""

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        if isinstance(owner, io.StringIO):
            owner.write("n")
        else:
            owner.manual_seed(n)
        return x * 2

    run = jitmagic.jit(function, backend="eager")
    counts = []
    for _ in range(4):
        assert torch.equal(run(torch.ones(3), 7), torch.full((3,), 2.0))
        counts.append(len(handle_of(run).journal))
    assert counts == counts[:1] * 4
    assert not isinstance(owner, io.StringIO) or owner.getvalue() == "nnnn"


def test_the_recompile_limit_is_a_visible_state() -> None:
    run = jitmagic.jit(chain, dynamic=False, options={"recompile_limit": 2})
    xs = [torch.randn(2, n) for n in (3, 4, 5, 6)]
    for x in xs[:2]:
        run(x, x)
    assert handle_of(run).outcome == COMPILED
    with pytest.warns(jitmagic.RecompileWarning, match="recompile_limit"):
        run(xs[2], xs[2])
    assert handle_of(run).outcome == AT_LIMIT
    for x in xs:
        torch.testing.assert_close(run(x, x), chain(x, x))
    assert "recompile limit is reached" in repr(handle_of(run))


def test_the_recompile_limit_raises_under_fullgraph() -> None:
    run = jitmagic.jit(chain, fullgraph=True, dynamic=False, options={"recompile_limit": 2})
    xs = [torch.randn(2, n) for n in (3, 4, 5)]
    for x in xs[:2]:
        run(x, x)
    for _ in range(2):
        with pytest.raises(jitmagic.Unsupported, match=r"2 times.*\.shape is \(2, 5\)"):
            run(xs[2], xs[2])
    for x in xs[:2]:
        torch.testing.assert_close(run(x, x), chain(x, x))


class Step(nn.Module):
    """One position: a part that sees the cache grow, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = Mixed(), nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        return self.out(self.mix(x, cache)).tanh()


class Mixed(nn.Module):
    """Attention to all that came before, and a norm."""

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(x)
        seen = torch.cat(cache)
        return normed((x @ seen.T).softmax(-1) @ seen)


def normed(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def test_below_the_limit_only_what_does_not_vary_is_compiled() -> None:
    torch.manual_seed(2)
    model = Step()
    caches: list[list[Tensor]] = [[], []]
    x = torch.randn(1, 4)
    eager = [x := model(x, caches[0]).detach() for _ in range(12)]
    run = jitmagic.jit(model, options={"recompile_limit": 4})
    x = caches[0][0]
    with pytest.warns(jitmagic.RecompileWarning) as warned:
        ours = [x := run(x, caches[1]).detach() for _ in range(12)]
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(one, other)
    assert ["Step.forward" in str(warning.message) for warning in warned] == [True]
    names = [record.name for record in handle_of(run).journal]
    states = {member.label: member.outcome for member in handle_of(run).family.members}
    assert "grow with every call" in str(states["Mixed.forward"])  # noticed before the limit
    assert states["normed"] == COMPILED
    assert names.count("forward") <= 4 + 2 + 1  # Step's, Mixed's, Linear's
    assert names.count("normed") == 1
