"""What the model code of libraries does around tensors, in programs of torch alone.

Configurations with a `__getattribute__`, outputs that inherit from OrderedDict, context variables,
registries that are sets, signatures that are looked at, modules that override `__call__`: each
program runs plainly and compiled and must show the same, without a graph break where none is named.
"""

# ruff: noqa: T201
from __future__ import annotations

import collections
import collections.abc
import contextvars
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..harness import Program, check

PROGRAMS: list[Program] = []


def program(**stated: Any) -> Callable[[Any], Any]:
    """Register a function or a Module class that takes one matrix."""

    def register(target: Any) -> Any:
        build = target if isinstance(target, type) else lambda: target
        stated.setdefault("graphs", 1)
        PROGRAMS.append(Program(target.__name__, build, calls, **stated))
        return target

    return register


def calls() -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 4, generator=generator).requires_grad_(),)]


# -- configurations ------------------------------------------------------------------------------


class Config:
    renamed = {"n_layer": "layers"}

    def __init__(self) -> None:
        self.layers, self.scale = 2, 1.5

    def __getattribute__(self, name):
        own = super().__getattribute__("__dict__")
        if own.get("frozen") is not None:
            raise AttributeError(name)
        if name != "renamed" and name in super().__getattribute__("renamed"):
            name = super().__getattribute__("renamed")[name]
        return super().__getattribute__(name)


class Falling(Config):
    def __getattr__(self, name):
        return 7 if name == "seven" else object.__getattribute__(self, name)

    @property
    def broken(self):
        return self.seven + self.nowhere


CONFIG, FALLING = Config(), Falling()


@program()
def attributes_by_a_method_of_the_class(x):
    for _ in range(CONFIG.n_layer):
        x = x * CONFIG.scale
    if hasattr(CONFIG, "missing") or getattr(CONFIG, "absent", None) is not None:
        x = x + 1
    return x


@program()
def attributes_found_by_getattr_after_that(x):
    if hasattr(FALLING, "broken"):
        x = x + 1
    return x * FALLING.seven * FALLING.n_layer


def test_a_changed_configuration_is_noticed():
    config = Config()
    f = jitmagic.jit(lambda x: x * config.n_layer, fullgraph=True)
    x = torch.ones(3)
    assert torch.equal(f(x), x * 2)
    config.layers = 3
    assert torch.equal(f(x), x * 3)
    config.frozen = True
    with pytest.raises((AttributeError, jitmagic.Unsupported)):
        f(x)


class Slotted:
    __slots__ = ("__dict__", "a")

    def __init__(self):
        self.a, self.b = 1, 2


@program()
def a_dictionary_beside_slots(x):
    return x + 1, dict(vars(Slotted()))


# -- outputs -------------------------------------------------------------------------------------


class Output(collections.OrderedDict):
    """As in transformers: attributes and entries are kept the same."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if self.__dict__.get(field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


@dataclasses.dataclass
class Result(Output):
    loss: Any = None
    logits: Any = None
    cache: Any = None


class Ordered(collections.OrderedDict):
    """Nothing of its own."""


class Counted(dict):
    def __missing__(self, key):
        return len(self)

    def __getitem__(self, key):
        return super().__getitem__(key) * 2


def shown(result: Result) -> tuple[Any, ...]:
    return type(result).__name__, list(result), list(vars(result)), *result.values()


@program()
def an_output_that_is_a_dictionary(x):
    inner = Result(logits=x * 2)
    outer = Result(logits=inner.logits + inner[0] + inner["logits"], loss=x.sum())
    if isinstance(outer, dict) and "cache" not in outer and len(outer) == 2:
        outer.cache = 3
    return {**outer}, outer.to_tuple(), list(outer.__dict__), bool(Result())


@program()
def a_dictionary_with_its_own_access(x):
    made = Counted(a=x)
    made["b"] = made["a"] + made["nothing"]
    del made["a"]
    return made.get("b"), made.get("nothing", 5), dict(made), made == {"b": made.get("b")}


def test_an_output_is_the_same_object_outside():
    def f(x):
        return Result(loss=x.sum(), cache=None, logits=x + 1)

    x = torch.randn(3)
    eager, ours = f(x), jitmagic.jit(f, fullgraph=True)(x)
    assert type(ours) is Result
    assert shown(eager)[:3] == shown(ours)[:3]
    assert all(torch.equal(a, b) for a, b in zip(eager.values(), ours.values(), strict=True))
    assert ours.loss is ours["loss"]


def test_entries_of_an_output_that_existed_before():
    def f(result):
        result["extra"] = result.logits * 2
        return result.logits + result[0] + len(result)

    tagged = jitmagic.jit(f, fullgraph=True)
    for x in (torch.ones(2), torch.zeros(2)):
        eager, ours = Result(loss=x, logits=x + 1), Result(loss=x, logits=x + 1)
        assert torch.equal(tagged(ours), f(eager))
        assert shown(ours)[:3] == shown(eager)[:3]
        assert torch.equal(ours.extra, eager["extra"])
        assert ours.extra is ours["extra"]
    assert len(list(jitmagic.api.handle_of(tagged).journal)) == 1
    ours = Result(logits=x)
    ours.move_to_end("logits")
    assert torch.equal(tagged(ours), f(Result(logits=x)))


def test_entries_are_read_past_the_access_of_the_class():
    def f(counted, x):
        return x * dict.__getitem__(counted, "a") + counted["a"] + counted["none"]

    tagged, x = jitmagic.jit(f, fullgraph=True), torch.ones(2)
    assert torch.equal(tagged(Counted(a=3), x), f(Counted(a=3), x))
    assert torch.equal(tagged(Counted(a=4), x), f(Counted(a=4), x))
    assert torch.equal(tagged(Counted(a=4, none=1), x), f(Counted(a=4, none=1), x))


@program()
def the_kind_that_fromkeys_makes(x):
    ordered = collections.OrderedDict.fromkeys("ba", 1)
    return type(ordered).__name__, list(ordered), type(dict.fromkeys("b")).__name__, x + 1


@program()
def dictionaries_of_a_class_from_behind(x):
    ordered, plain = Ordered(a=1, b=2), Counted(a=1, b=2)
    steps = type(reversed(ordered)).__name__
    return x + 1, list(reversed(ordered)), list(reversed(plain)), ordered.popitem(), steps


# -- what surrounds a forward --------------------------------------------------------------------

COLLECTOR: contextvars.ContextVar[Any] = contextvars.ContextVar("COLLECTOR", default=None)


def collecting(function):
    def inner(*args):
        token = COLLECTOR.set({})
        try:
            return function(*args), COLLECTOR.get()
        finally:
            COLLECTOR.reset(token)

    return inner


@program()
def a_context_variable_set_for_a_while(x):
    return collecting(collecting(torch.sin))(x)


@program(graphs=2, breaks=3)
def a_break_while_a_context_variable_is_set(x):
    token = COLLECTOR.set(5)
    x = x * COLLECTOR.get()
    print("at", COLLECTOR.get())
    COLLECTOR.reset(token)
    return x + 1


def test_a_context_variable_that_stays_set():
    @jitmagic.jit
    def f(x):
        token = COLLECTOR.set(x * 2)
        return x + 1, token

    assert COLLECTOR.get() is None
    x = torch.ones(2)
    for _ in range(2):
        y, token = f(x)
        assert torch.equal(COLLECTOR.get(), x * 2)
        assert torch.equal(y, x + 1)
        COLLECTOR.reset(token)
        assert COLLECTOR.get() is None


class Layers(collections.abc.Sequence):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index >= 5:
            raise IndexError(index)
        return index


@program()
def a_generator_left_where_nothing_would_be_done(x):
    for name, layer in zip(["a", "b"], Layers()):  # noqa: B905
        x = x * (layer + len(name))
    return x


@program()
def kinds_of_tensors(x):
    kinds = [torch.FloatTensor, torch.DoubleTensor, torch.LongTensor, torch.cuda.FloatTensor]
    asked = [isinstance(x, kind) for kind in kinds]
    return x * 2 if isinstance(x, (int, torch.DoubleTensor)) else x + sum(asked)


LOG: list[str] = []


def test_a_generator_with_a_finally_is_closed_by_python():
    def steps():
        try:
            yield from (1, 2, 3)
        finally:
            LOG.append("closed")

    @jitmagic.jit
    def f(x):
        for _, step in zip(range(2), steps()):  # noqa: B905
            x = x * step
        return x

    LOG.clear()
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
    assert LOG == ["closed"]


class Chunked(nn.Module):
    def chunk(self, a, b=1, *, c=2, **rest):
        return a * b

    def forward(self, x):
        found = inspect.signature(self.chunk).parameters
        if "c" in found and "nothing" not in found and len(found) == 4:
            x = x + 1
        for name, one in found.items():
            if one.kind is inspect.Parameter.VAR_KEYWORD and one.name == name:
                x = x * 3
        return self.chunk(x), self.chunk.__code__.co_varnames[:2]


program()(Chunked)


@program()
def questions_about_other_compilers(x):
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return x
    try:
        capturing = torch.cuda.is_current_stream_capturing()
    except RuntimeError as error:
        capturing = str(error)
    return x + 1, capturing


if torch.cuda._is_compiled():  # then it is of the moment, and ends the graph
    PROGRAMS.pop()


# -- modules -------------------------------------------------------------------------------------


class Aggregation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.count, self.extra = nn.Linear(4, 4), 0, {"factor": 3.0}

    def __call__(self, x, *, twice=False):
        return super().__call__(x, twice)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)

    def __getattr__(self, name):
        if "extra" in self.__dict__ and name in self.__dict__["extra"]:
            return self.extra[name]
        return super().__getattr__(name)

    def forward(self, x, twice):
        self.count += 1
        if "linear" in self.__dict__ or self.__dict__.get("nothing") is not None:
            x = x + 100
        return self.linear(x) * (2 if twice else 1) * self.factor


@program()
class ModulesThatOverrideWhatModulesDo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.aggregation = Aggregation()

    def forward(self, x):
        return self.aggregation(x, twice=True) + self.aggregation(x), self.aggregation.count


def test_hooks_of_a_module_with_its_own_call_run():
    module = ModulesThatOverrideWhatModulesDo()
    tagged = jitmagic.jit(module)
    x = torch.ones(2, 4)
    tagged(x)
    module.aggregation.register_forward_hook(lambda module, args, result: result * 0)
    assert torch.equal(tagged(x)[0], torch.zeros(2, 4))


class Lazy(nn.Module):
    @property
    def nothing(self):
        return self.nowhere


class Given(Lazy):
    def __getattr__(self, name):
        return 5 if name == "nothing" else super().__getattr__(name)


@program()
class PropertiesThatFindNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lazy, self.given = Lazy(), Given()

    def forward(self, x):
        known = getattr(self.lazy, "nothing", None)
        return x * self.given.nothing, known


@program(graphs=3, breaks=3)
class ABreakInALoopOverSomeOfTheLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers[:3]:
            x = layer(x).relu()
            print("layer", tuple(x.shape))
        return x + 1


class Meta(type):
    """A metaclass that leaves equality alone."""


class Keyed(metaclass=Meta):
    pass


BACKENDS = {Keyed: 2, nn.Parameter: 3}


@program()
def classes_as_keys(x):
    return x * BACKENDS[Keyed] * BACKENDS.get(nn.Parameter)


# -- registries ----------------------------------------------------------------------------------


def test_what_is_in_a_set_is_noticed():
    known, frozen = {"a", Keyed}, frozenset([Keyed, 1])

    @jitmagic.jit(fullgraph=True)
    def f(x):
        if "a" in known and "b" not in known and int in known:
            x = x + 1
        return x * (2 if 1 in frozen and len(known) < 4 else 3)

    x = torch.ones(2)
    assert torch.equal(f(x), x * 2)
    known.add(int)
    assert torch.equal(f(x), (x + 1) * 2)
    known.add("b")
    assert torch.equal(f(x), x * 3)
    known.clear()
    assert torch.equal(f(x), x * 2)


def test_a_set_that_existed_before_is_changed_by_python():
    known: set[Any] = {"a"}

    @jitmagic.jit
    def f(x):
        known.add(x.dim())
        return x + len(known)

    assert torch.equal(f(torch.ones(2)), torch.full((2,), 3.0))
    assert known == {"a", 1}


@pytest.mark.parametrize("one", PROGRAMS, ids=str)
def test_program(one: Program) -> None:
    check(one)
