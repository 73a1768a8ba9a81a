"""Texts by which a program looks something up, in dictionaries and objects: one variant serves all
texts that find alike values, and what is found is what eager finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import jitmagic
from jitmagic.api import handle_of

KEYS = [f"k{i}" for i in range(20)]


class Holder:
    kind = "class"

    @property
    def k_property(self) -> Tensor:
        return torch.ones(4) * 7


class Net(nn.Module):
    def forward(self, x: Tensor, k: str) -> Any:
        return getattr(self, k)(x)


class World:
    """What the programs look into, the same each time that it is made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.d: dict[str, Any] = {k: torch.randn(4) for k in KEYS}
        self.d |= {f"w_{k}": torch.randn(4) for k in KEYS}
        self.nested = {k: {q: torch.randn(4) for q in KEYS} for k in KEYS}
        self.numbers = {k: float(n) for n, k in enumerate(KEYS)}
        self.lists = {k: [torch.randn(4), torch.randn(4)] for k in KEYS}
        self.parameters = nn.ParameterDict({k: torch.randn(4) for k in KEYS})
        self.modules = nn.ModuleDict({k: nn.Linear(4, 4) for k in KEYS})
        self.net, self.holder = Net(), Holder()
        for k in KEYS:
            setattr(self.net, k, nn.Linear(4, 4))
            setattr(self.holder, k, torch.randn(4))


Program = Callable[[World, Tensor, str], Any]

PROGRAMS: dict[str, Program] = {
    "get": lambda w, x, k: x * w.d.get(k),
    "get with a default": lambda w, x, k: x * w.d.get(k, x),
    "in": lambda w, x, k: x * w.d[k] if k in w.d else x,
    "not in": lambda w, x, k: x if k not in w.d else x * 2,
    "in keys": lambda w, x, k: x * 2 if k in w.d.keys() else x,  # noqa: SIM118
    "nested": lambda w, x, k: x * w.nested[k][k],
    "nested, one fixed": lambda w, x, k: x * w.nested["k1"][k] + w.nested[k]["k2"],
    "f-string": lambda w, x, k: x * w.d[f"w_{k}"],
    "f-string of the key alone": lambda w, x, k: x * w.d[f"{k}"],
    "f-string by str": lambda w, x, k: x * w.d[f"{k!s}"],
    "sum": lambda w, x, k: x * w.d["w_" + k],
    "sum of three": lambda w, x, k: x * w.d["w" + "_" + k + ""],
    "item of a list": lambda w, x, k: x * w.lists[k][1],
    "ParameterDict": lambda w, x, k: x * w.parameters[k],
    "in ParameterDict": lambda w, x, k: x * 2 if k in w.parameters else x,
    "ModuleDict": lambda w, x, k: w.modules[k](x),
    "in ModuleDict": lambda w, x, k: w.modules[k](x) if k in w.modules else x,
    "getattr of a module": lambda w, x, k: w.net(x, k),
    "getattr of an object": lambda w, x, k: x * getattr(w.holder, k),
    "getattr with a default": lambda w, x, k: x * getattr(w.holder, k, 3),
    "text returned": lambda w, x, k: (x * w.d[k], k, f"{k}.weight", f"{k}"),
    "key raised": lambda w, x, k: x * w.d[k] if k in w.d else w.d["w_" + k],
}


def outcome(program: Program, world: World, x: Tensor, k: Any) -> tuple[str, Any]:
    try:
        return "result", program(world, x, k)
    except Exception as error:  # whichever eager raises
        return type(error).__name__, str(error)


def same(ours: Any, wanted: Any) -> None:
    (left, tree), (right, other) = tree_flatten(ours), tree_flatten(wanted)
    assert tree == other
    for one, two in zip(left, right, strict=True):
        if isinstance(two, Tensor):
            torch.testing.assert_close(one, two)
        else:
            assert isinstance(two, Holder | nn.Module) or one == two


def compare(made: Program, program: Program, worlds: tuple[World, World], k: Any) -> None:
    x = torch.randn(4)
    ours, wanted = (outcome(f, w, x, k) for f, w in zip((made, program), worlds, strict=True))
    same(ours, wanted)


def traces(made: Program) -> int:
    return sum(r.result("trace") is not None for r in handle_of(made).journal)


@pytest.mark.parametrize("name", PROGRAMS)
def test_twenty_texts_are_one_variant(name: str) -> None:
    program = PROGRAMS[name]
    made, worlds = jitmagic.jit(program), (World(), World())
    for key in (*KEYS, *KEYS[::3]):
        compare(made, program, worlds, key)
    assert traces(made) == 1


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*was compiled 8 times")
def test_texts_that_find_nothing_or_something_else(name: str) -> None:
    program = PROGRAMS[name]
    made, worlds = jitmagic.jit(program), (World(), World())
    for key in ("k1", "none", "k2", "kind", "k_property", "__class__", "forward", "k3", 5, "also"):
        compare(made, program, worlds, key)


def removed(w: World) -> None:
    del w.d["k3"], w.nested["k3"], w.lists["k3"], w.parameters["k3"], w.modules["k3"]
    delattr(w.net, "k3"), delattr(w.holder, "k3")


def added(w: World) -> None:
    w.d["new"], w.d["w_new"], w.nested["new"] = torch.ones(4), torch.ones(4), w.nested["k1"]
    w.lists["new"], w.parameters["new"], w.modules["new"] = (
        w.lists["k1"],
        w.d["k1"],
        nn.Linear(4, 4),
    )
    w.net.new, w.holder.new = nn.Linear(4, 4), torch.ones(4)


def replaced(w: World) -> None:
    w.d["k3"] = w.d["w_k3"] = w.nested["k3"]["k3"] = torch.ones(4, dtype=torch.float64)
    w.lists["k3"] = (torch.ones(4), torch.ones(4))
    w.parameters["k3"], w.modules["k3"] = torch.zeros(4), nn.Tanh()
    w.net.k3, w.holder.k3 = nn.Tanh(), torch.zeros(1)


def of_the_class(w: World) -> None:
    Net.k3 = lambda self, x: x * 9
    Holder.k3 = property(lambda self: torch.ones(4) * 9)


def shadowed(w: World) -> None:
    w.net.__dict__["k3"] = torch.sin


def back_to_eval(w: World) -> None:
    w.modules["k3"].register_forward_hook(lambda module, args, result: result * 2)
    w.net.k3.register_forward_hook(lambda module, args, result: result * 2)


CHANGES = [removed, added, replaced, of_the_class, shadowed, back_to_eval]


@pytest.fixture
def classes() -> Any:
    yield
    for kind in (Net, Holder):
        if "k3" in vars(kind):
            delattr(kind, "k3")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("classes")
@pytest.mark.filterwarnings("ignore:.*was compiled 8 times")
def test_changes_between_calls_are_seen(name: str) -> None:
    program = PROGRAMS[name]
    for change in CHANGES:
        made, worlds = jitmagic.jit(program), (World(), World())
        for key in ("k1", "k3", "new"):
            compare(made, program, worlds, key)
        for world in worlds:
            torch.manual_seed(1)
            change(world)
        for key in ("k3", "new", "k1", "k2", "k3"):
            compare(made, program, worlds, key)
        test = [vars(kind).get("k3") for kind in (Net, Holder)]
        for kind, was in zip((Net, Holder), test, strict=True):
            if was is not None:
                delattr(kind, "k3")


def test_numbers_that_texts_find_are_numbers_that_vary() -> None:
    world = World()
    made = jitmagic.jit(lambda x, k: x * world.numbers[k])
    for key in KEYS:
        x = torch.randn(4)
        assert torch.equal(made(x, key), x * world.numbers[key])
    assert traces(made) <= 3


def writes(w: World, x: Tensor, k: str) -> Any:
    w.holder.k5 = x
    return getattr(w.holder, k) * 2


def writes_after(w: World, x: Tensor, k: str) -> Any:
    y = getattr(w.holder, k) * 2
    w.holder.k5 = x
    return y


def counts(w: World, x: Tensor, k: str) -> Any:
    w.modules[k].calls = getattr(w.modules[k], "calls", 0) + 1
    return w.modules["k1"](x) + w.modules[k](x)


def writes_to_what_is_found(w: World, x: Tensor, k: str) -> Any:
    w.nested[k]["k1"] = x
    return w.nested["k2"]["k1"] + x


def reads_the_text(w: World, x: Tensor, k: str) -> Any:
    return x * w.d[k] if k.endswith("5") else x * w.d[f"w_{k}"] + len(k)


def joins_two(w: World, x: Tensor, k: str) -> Any:
    other = w.holder.name
    return x, f"{k}{other}", k + other


WRITERS = [writes, writes_after, counts, writes_to_what_is_found, reads_the_text, joins_two]


@pytest.mark.parametrize("program", WRITERS)
@pytest.mark.filterwarnings("ignore:.*was compiled 8 times")
def test_writes_and_reads_of_the_text(program: Program) -> None:
    made, worlds = jitmagic.jit(program), (World(), World())
    for world in worlds:
        world.holder.name = "k5"
    for key in ("k1", "k2", "k5", "k1", "k6", "k2", "k5"):
        compare(made, program, worlds, key)
        ours, wanted = (vars(w.holder) | w.nested["k2"] | w.nested["k5"] for w in worlds)
        same(ours, wanted)
        calls = [[getattr(m, "calls", 0) for m in w.modules.values()] for w in worlds]
        assert calls[0] == calls[1]
