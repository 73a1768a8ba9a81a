"""Guards on a wrapper subclass in the world, and what happens to it before they are checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.testing._internal.two_tensor import TwoTensor

from jitmagic.guards import guard as g
from jitmagic.guards.source import Source
from jitmagic.symbols.expr import Integer
from jitmagic.symbols.interval import INT64
from jitmagic.symbols.size import SizeOf
from jitmagic.symbols.symbolic_numbers import Symbol

from .world import World

__all__ = ["WRAPPERS", "guards_on_wrapper"]

WRAPPERS: dict[str, Callable[[World], object]] = {
    "a wrapper of another size": lambda w: w.cfg.update(
        wrapper=TwoTensor(torch.ones(2), torch.ones(2))
    ),
    "no wrapper": lambda w: w.cfg.update(wrapper=torch.ones(3, 2)),
    "a number in place of a wrapper": lambda w: w.cfg.update(wrapper=3),
}


def guards_on_wrapper(source: Source, slotted: Source) -> list[g.Guard]:
    names = "a", "b"
    facts = [("t", ()), ("v", ((("__class__",), str),)), ("v", (((), "u"),)), ("v", (((), "t"),))]
    return [
        *(g.FieldsEqual(one, "tag", *rest) for one in (source, slotted) for rest in facts),
        g.FieldsEqual(slotted, "tag", "v", ((("none", "such"), None),)),
        *(g.FlattensTo(source, *rest) for rest in [(names, None), (("a",), None), (names, "m")]),
        g.FlattensTo(source, names, None, (("ndim", 2),)),
        g.FlattensTo(source, names, None, (("ndim", 1),)),
        g.SizesRelate("==", Symbol("rows", int, INT64, SizeOf(source, 0)), Integer(3)),
    ]
