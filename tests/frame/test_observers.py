"""Tracers and modes around tagged code see what they see around the untagged program.

Each way to tag a program, before and after it was compiled, is combined with each tracer of torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import jitmagic
from jitmagic.api import handle_of

X, Y = torch.arange(4.0), torch.arange(4.0) + 10


def _jit(target):
    return jitmagic.jit(target, backend="eager")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


class TaggedNet(Net):
    def forward(self, x):
        return self.linear(x).relu()


TaggedNet = _jit(TaggedNet)


def g(x):
    return x.sin() * 2 + 1


tagged_g = _jit(g)


def around(x):
    return tagged_g(x) * 3


def plain_around(x):
    return g(x) * 3


def _in_a_function() -> Any:
    return around, plain_around


def _function() -> Any:
    return tagged_g, g


def _module() -> Any:
    net = Net()
    return _jit(copy.deepcopy(net)), net


def _class() -> Any:
    tagged = TaggedNet()
    net = Net()
    net.load_state_dict(tagged.state_dict())
    return tagged, net


def _submodule() -> Any:
    tagged, net = _module()
    return torch.nn.Sequential(tagged), net


def _exported(strict: bool) -> Callable[..., Any]:
    def export(program: Any, x: torch.Tensor) -> Any:
        if not isinstance(program, torch.nn.Module):
            program = _Holding(program)
        return torch.export.export(program, (x,), strict=strict).module()

    return export


class _Holding(torch.nn.Module):
    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program

    def forward(self, x):
        return self.program(x)


TRACERS: dict[str, Callable[..., Any]] = {
    "jit.trace": torch.jit.trace,
    "jit.script": lambda program, x: torch.jit.script(program),
    "symbolic_trace": lambda program, x: torch.fx.symbolic_trace(program),
    "make_fx": lambda program, x: make_fx(program)(x),
    "make_fx fake": lambda program, x: make_fx(program, tracing_mode="fake")(x),
    "make_fx pre_dispatch": lambda program, x: make_fx(program, pre_dispatch=True)(x),
    "export": _exported(False),
}
PROGRAMS = [_function, _in_a_function, _module, _class, _submodule]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_programs_compute_the_same(tracer, program, warm):
    tagged, plain = program()
    jitmagic.reset()
    if warm:
        assert torch.allclose(tagged(X), plain(X))
        tagged(X)
    try:
        TRACERS[tracer](plain, X)
    except Exception as error:  # torch refuses such a program: a module's weights are no fakes
        with pytest.raises(type(error)):
            TRACERS[tracer](tagged, X)
        return
    made = TRACERS[tracer](tagged, X)
    assert torch.allclose(made(Y), plain(Y))
    assert torch.allclose(made(X), plain(X))
    assert torch.allclose(tagged(Y), plain(Y))


def test_a_function_of_no_arguments_is_traced():
    weight = torch.nn.Parameter(torch.ones(2))

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self):
            return self.weight * 2

    holder = _jit(Holder())
    holder()
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(holder)[0])
    assert any(node.op == "get_attr" for node in traced.graph.nodes)


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_Dispatched, _Called])
def test_a_mode_sees_the_programs_operations(mode):
    tagged = _jit(lambda x: g(x))
    with mode() as plain:
        g(X)
    for _ in range(3):  # before it is compiled, and after
        with mode() as observed:
            tagged(X)
        assert observed.seen == plain.seen != []
        tagged(X)
    assert str(handle_of(tagged).outcome) == "compiled"


@pytest.mark.parametrize(
    "switched_off", [torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass]
)
def test_nothing_is_compiled_in_the_middle_of_an_operation(switched_off, recwarn):
    tagged = _jit(lambda x: g(x))
    with switched_off():
        assert torch.equal(tagged(X), g(X))
    assert handle_of(tagged).outcome is None
    tagged(X)
    assert str(handle_of(tagged).outcome) == "compiled"
    assert [str(one.message) for one in recwarn] == []
