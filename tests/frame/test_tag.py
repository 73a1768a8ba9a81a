"""Tagging: the returned object, that it keeps its properties, and refused targets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import io
import pickle
import weakref

import pytest
import torch

from jitmagic.errors import TaggingError
from jitmagic.frame.tag import handle_of, original_of, untag
from jitmagic.options import make_options

from .plain_compiler import PlainCompiler

plain = PlainCompiler()


def documented(x: int, /, y: int = 2, *args: int, k: int = 3, **more: int) -> int:
    """Adds things."""
    return x + y + k + sum(args) + sum(more.values())


documented.mark = "kept"
by_name = plain.tag(documented)
by_name.__qualname__ = by_name.__name__ = "by_name"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, scale=1.0):
        return helper(self.linear(x)) * scale


def helper(x):
    return torch.relu(x)


@pytest.fixture(autouse=True)
def fresh():
    plain.compiled.clear()
    plain.answer = None


def test_jit_returns_a_real_function():
    tagged = plain.tag(documented)
    assert inspect.isfunction(tagged)
    assert inspect.signature(tagged) == inspect.signature(documented)
    assert inspect.getsource(tagged) == inspect.getsource(documented)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "mark"):
        assert getattr(tagged, name) == getattr(documented, name)
    assert tagged.__defaults__ == (2,)
    assert tagged.__kwdefaults__ == {"k": 3}
    assert tagged.__wrapped__ is documented
    assert original_of(tagged) is documented
    assert inspect.signature(tagged, follow_wrapped=False) == inspect.signature(documented)
    assert tagged(1, 2, 3, k=4, z=5) == documented(1, 2, 3, k=4, z=5)
    assert documented(1) == 6  # the user's own function is untouched
    assert handle_of(documented) is None


def test_pickles_by_name():
    assert pickle.loads(pickle.dumps(by_name)) is by_name
    assert copy.deepcopy(by_name) is by_name


def test_autoreload_moves_the_code():
    old, new = plain.tag(documented), plain.tag(lambda x, /, y=2, *args, k=3, **more: "new")
    assert old(1) == 6
    for name in ("__code__", "__defaults__", "__doc__", "__dict__"):  # what %autoreload does
        setattr(old, name, getattr(new, name))
    assert old(1) == "new"
    assert handle_of(old) is handle_of(new)


def test_lambdas_closures_and_methods():
    base = 10

    def closure(x):
        nonlocal base
        base += 1
        return x + base

    tagged = plain.tag(closure)
    assert tagged.__closure__ == closure.__closure__
    assert tagged(1) == 12
    assert closure(1) == 13
    assert tagged(1) == 14
    assert plain.tag(lambda x: x + 1)(1) == 2

    class Plain:
        def __init__(self, n):
            self.n = n

        @plain.tag
        def method(self, x):
            return self.n + x

        @staticmethod
        @plain.tag
        def static(x):
            return x

        @plain.tag
        @staticmethod
        def outer_static(x):
            return x

        @plain.tag
        @classmethod
        def make(cls, n):
            return cls(n)

    made = Plain.make(3)
    assert (made.method(1), made.static(2), made.outer_static(3)) == (4, 2, 3)
    assert isinstance(Plain.__dict__["make"], classmethod)
    assert Plain.method.__qualname__.endswith("Plain.method")
    bound = plain.tag(Plain(5).method)
    assert bound(1) == 6
    assert bound.__self__.n == 5
    partial = plain.tag(functools.partial(documented, 1, y=5))
    assert partial(k=1) == 7
    assert handle_of(partial) is not None
    assert original_of(partial).func is documented


def test_super_and_class_cells():
    class Base:
        def value(self):
            return 1

    class Derived(Base):
        @plain.tag
        def value(self):
            return super().value() + 1

    assert Derived().value() == 2
    assert Derived().value() == 2


def test_tagging_twice():
    tagged = plain.tag(documented)
    assert plain.tag(tagged) is tagged
    handle = handle_of(tagged)
    tagged(1)
    assert plain.tag(tagged, recompile_limit=3) is tagged
    assert handle_of(tagged) is handle
    assert handle.options == make_options(recompile_limit=3)
    assert handle.outcome is None
    assert untag(tagged) is documented
    assert untag(documented) is documented


def generator():
    yield 1


async def coroutine():
    return 1


async def async_generator():
    yield 1


class NoModule:
    def __call__(self):
        return 1


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param(NoModule, "it is not an nn.Module", id="class"),
        pytest.param(3, "it is not callable", id="number"),
        pytest.param(compile("1", "", "eval"), "it is not callable", id="code"),
        pytest.param(torch.nn.Module, "it has no forward", id="nn.Module class"),
        pytest.param(torch.nn.Module(), "it has no forward", id="nn.Module instance"),
    ],
)
def test_refusals(target, reason):
    with pytest.raises(TaggingError, match=reason) as caught:
        plain.tag(target)
    assert "hint:" in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("target", [generator, coroutine, async_generator])
def test_functions_that_are_suspended_keep_their_kind(target):
    tagged = plain.tag(target)
    assert tagged.__code__.co_flags == target.__code__.co_flags
    assert handle_of(tagged) is not None
    assert untag(tagged) is target


def test_module_bodies_are_refused():
    code = compile("x = 1", "<cell>", "exec")
    function = type(generator)(code, {})
    with pytest.raises(TaggingError, match="module or class body"):
        plain.tag(function)


def test_modules_with_a_call_of_their_own_are_refused():
    class Odd(Model):
        def __call__(self, x):
            return x

    class Yields(torch.nn.Module):
        def forward(self, x):
            yield x

    with pytest.raises(TaggingError, match="__call__ of its own"):
        plain.tag(Odd())
    with pytest.raises(TaggingError, match="generator"):
        plain.tag(Yields())
    assert asyncio.run(coroutine()) == 1


# ------------------------------------------------------------------------------ module instances


def test_a_module_is_tagged_in_place():
    model, x = Model(), torch.randn(2, 3)
    expected, keys = model(x), list(model.state_dict())
    named = [name for name, _ in model.named_modules()]
    assert plain.tag(model) is model
    assert torch.equal(model(x), expected)
    assert torch.equal(model(x=x, scale=2.0), expected * 2)
    assert torch.equal(model.forward(x), expected)  # untagged, as ever
    assert plain.compiled == ["forward", "helper", "forward"]
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == named
    assert type(model) is Model
    assert plain.tag(model) is model
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        model()
    assert untag(model) is model
    plain.compiled.clear()
    model(x)
    assert plain.compiled == []
    assert handle_of(model) is None


def test_tagged_modules_pickle_and_copy():
    model, x = plain.tag(Model()), torch.randn(2, 3)
    expected = model(x)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert handle_of(clone) is None
        assert torch.equal(clone(x), expected)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), expected)
    other = Model()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), expected)


def test_hooks_keep_their_meaning():
    model, x = plain.tag(Model()), torch.randn(2, 3, requires_grad=True)
    plainly = untag(copy.deepcopy(model))
    log = []

    def register(target, tell):
        return [
            target.register_forward_pre_hook(lambda m, args: tell("pre") or (args[0] + 1,)),
            target.register_forward_hook(lambda m, args, out: tell("post") or out * 3),
            target.register_full_backward_hook(lambda m, gin, gout: tell("backward")),
        ]

    handles = register(model, log.append)
    wanted = []
    register(plainly, wanted.append)
    assert torch.equal(model(x), plainly(x))
    model(x).sum().backward()
    plainly(x).sum().backward()
    assert log == wanted
    assert log[:2] == ["pre", "post"]
    assert "forward" in plain.compiled  # compiled all the same, through the frame hook
    for handle in handles:
        handle.remove()
    log.clear()
    model(x)
    assert log == []
    shared = torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: log.append(m))
    with contextlib.closing(io.StringIO()):
        model(x)
    shared.remove()
    assert model in log
    model.linear.register_forward_hook(lambda m, a, o: o + 100)
    plainly = copy.deepcopy(model)
    assert torch.equal(model(x), plainly(x))


def test_an_instances_own_forward_is_respected():
    model, x = plain.tag(Model()), torch.randn(2, 3)
    model(x)
    model.forward = lambda x: x + 5
    assert torch.equal(model(x), x + 5)
    del model.forward
    assert torch.equal(model(x), copy.deepcopy(model)(x))


def test_a_changed_forward_is_noticed():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x + 1

    def newer(self, x):
        return x + 2

    model, x = plain.tag(Model()), torch.zeros(2)
    assert model(x)[0] == 1
    Model.forward.__code__ = newer.__code__  # %autoreload
    assert [model(x)[0].item() for _ in range(3)] == [2, 2, 2]
    Model.forward = lambda self, x: x + 3
    assert model(x)[0] == 3


def test_two_instances_are_tagged_independently():
    one, two, x = plain.tag(Model()), plain.tag(Model()), torch.randn(2, 3)
    assert torch.equal(one(x), untag(copy.deepcopy(one))(x))
    assert torch.equal(two(x), copy.deepcopy(two)(x))
    assert handle_of(one) is not handle_of(two)


def test_deleting_a_tagged_module_frees_it_at_once():
    gc.collect()
    gc.disable()
    try:
        model, x = plain.tag(Model()), torch.randn(2, 3)
        out = model(x)
        model(x).sum().backward()
        refs = [weakref.ref(model), weakref.ref(model.linear.weight)]
        del model, out
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


def test_training_through_a_tagged_module():
    torch.manual_seed(0)
    model = plain.tag(Model())
    copied = copy.deepcopy(model)
    x = torch.randn(4, 3)
    for target in (model, copied):
        optimizer = torch.optim.SGD(target.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            target(x).square().mean().backward()
            optimizer.step()
    assert torch.equal(model.linear.weight, copied.linear.weight)
    assert model.train() is model
    assert model.eval().training is False
    assert model.to(torch.float64)(x.double()).dtype == torch.float64


# --------------------------------------------------------------------------------- module classes


def test_a_module_class_is_tagged_in_place():
    class Local(Model):
        def forward(self, x):
            return super().forward(x) + 1

    before = Local.forward
    x = torch.randn(2, 3)
    model = Local()
    expected = model(x)
    assert plain.tag(Local) is Local
    assert torch.equal(model(x), expected)
    assert plain.compiled[0] == "forward"
    fresh = Local()
    assert torch.equal(fresh(x), before(fresh, x))
    assert handle_of(Local).original.qualname.endswith("Local.forward")
    assert inspect.signature(Local.forward) == inspect.signature(before)
    assert plain.tag(Local) is Local
    assert untag(Local) is Local
    assert Local.forward is before
    plain.tag(model)
    assert torch.equal(model(x), expected)


def test_inherited_forwards_stay_where_they_are():
    class Child(Model):
        pass

    original = Model.forward
    plain.tag(Child)
    assert Model.forward is original
    assert "forward" in vars(Child)
    x = torch.randn(2, 3)
    child = Child()
    assert torch.equal(child(x), original(child, x))
    untag(Child)
    assert "forward" not in vars(Child)
