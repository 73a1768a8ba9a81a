"""Classes of nn.Modules change between the calls of a tagged function; graphs are compiled anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic

from ..scenarios import Fixed, Tag, collection, seen, through, two, x3

scenario, test_as_plain = collection(recompile_limit=64)


@scenario
def modules_change(tag: Tag) -> list[Any]:
    class Base(torch.nn.Module): ...

    class Model(Base):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Identity()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("total", torch.zeros(3))
            self.scale = 2.0

        def forward(self, t):
            self.total = self.total + 1
            self.calls = 3
            t = self.layer(t) * self.scale + self.weight + self.total
            return t.detach(), self.training, getattr(self, "late", 0.0), isinstance(self, Base)

    torch_getattr, torch_setattr = torch.nn.Module.__getattr__, torch.nn.Module.__setattr__

    def get(self, name):
        return 5.0 if name in ("weight", "late") else torch_getattr(self, name)

    def put(self, name, value):
        torch_setattr(self, name, value * 2)

    model = Model()

    @tag
    def f(t):
        return model(t)

    def ask():
        total = vars(model)["_buffers"]["total"]
        total.zero_()
        return seen(f, x3()), total.tolist(), vars(model).get("calls")

    return through(
        ask,
        (Model, "layer", lambda self, t: t * 10),
        (Base, "weight", 7.0),
        (Base, "weight", property(two)),
        (Base, "scale", property(two)),
        (Base, "scale", 8.0),
        (Model, "total", property(lambda self: 9.0)),
        (Model, "training", Fixed(0.0)),
        (Model, "calls", property(two, lambda self, value: None)),
        (Model, "late", 6.0),
        (Base, "__getattr__", get),
        (Base, "__setattr__", put),
        (Base, "__getattribute__", lambda self, name: object.__getattribute__(self, name)),
        (Base, "__call__", lambda self, t: t),
        (Base, "_call_impl", lambda self, t: t),
    )


@scenario
def modules_that_delete(tag: Tag) -> list[Any]:
    class Model(torch.nn.Module):
        def forward(self, t):
            self.note = 1
            del self.note
            return t + 1, hasattr(self, "note")

    model = Model()

    @tag
    def f(t):
        return model(t)

    def kept(self, name):
        self.__dict__["kept"] = name

    def ask():
        vars(model).pop("kept", None)
        return seen(f, x3()), vars(model).get("kept")

    return through(ask, (Model, "__delattr__", kept), (Model, "note", property(two)))


@scenario
def graph_modules_are_recompiled(tag: Tag) -> list[Any]:
    graph = torch.fx.symbolic_trace(lambda t: torch.relu(t) + 1)

    @tag
    def f(t):
        return graph(t)

    results = [seen(f, x3() - 3)]
    for node in graph.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.neg
    graph.recompile()
    return [*results, seen(f, x3() - 3)]


class Deep(torch.nn.Module):
    """More layers than one would compare with each other, pair by pair."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(100))

    def forward(self, x):
        for number, (name, layer) in enumerate(self.named_modules()):
            x = x + number * len(name)
        return x


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_layers_that_become_one_are_noticed(backend):
    model = Deep()
    run = jitmagic.jit(model.forward, backend=backend, fullgraph=True)
    x = torch.ones(2)
    torch.testing.assert_close(run(x), model(x))
    model.layers[99] = model.layers[3]
    torch.testing.assert_close(run(x), model(x))
