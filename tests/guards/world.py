"""A call with an example of everything that guards read."""

from __future__ import annotations

import collections
import functools
import math
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.two_tensor import TwoTensor

from jitmagic.bytecode import FrameSnapshot

__all__ = [
    "CACHES", "FACTOR", "SPACE", "Output", "Point", "Slotted", "Thing", "World", "act",
    "made_caches", "make_world",
]  # fmt: skip

FACTOR = 2
Point = collections.namedtuple("Point", "x y")


class Thing:
    scale = 3

    def __init__(self) -> None:
        self.size, self.name = 4, "thing"


class Output(collections.OrderedDict):
    def __getitem__(self, key):
        raise AssertionError("a guard runs no user code")


class Slotted:
    __slots__ = ("tag",)


@dataclass
class World:
    """One call, which may be mutated before the guards are checked again."""

    x: Any
    cfg: Any
    thing: Any
    rest: Any
    fn: Any
    cell: Any
    space: dict[str, Any]

    def snapshot(self) -> FrameSnapshot:
        def f(x, cfg, thing, rest, fn):
            return None

        return FrameSnapshot(
            code=f.__code__,
            args=(self.x, self.cfg, self.thing, self.rest, self.fn),
            cells=(self.cell,),
            globals=self.space,
            builtins={"len": len},
            name="f",
            qualname="f",
        )


def act(x: Any) -> Any:
    return x


def made_caches() -> dict[str, Any]:
    """Return a functools.lru_cache without a limit, and one that is full."""
    plain, limited = functools.cache(act), functools.lru_cache(2)(lambda n, *, more=0: n + more)
    plain(3), plain("a"), plain((1, 2)), limited(1), limited(2, more=3), limited(2.0, more=3)
    return {"plain cache": plain, "limited cache": limited}


CACHES: dict[str, Callable[[World], object]] = {
    "cache cleared": lambda w: w.cfg["plain cache"].cache_clear(),
    "cache filled": lambda w: (w.cfg["plain cache"]("b"), w.cfg["limited cache"](9)),
    "another cache": lambda w: w.cfg.update(made_caches()),
    "no cache": lambda w: w.cfg.update(dict.fromkeys(made_caches(), 3)),
}
TEXTS: dict[str, Callable[[World], object]] = {
    f"key is now {key!r}": lambda w, key=key: w.cfg.update(key=key)
    for key in ("bias", "in_features", "forward", "nothing", "rate", 5)
} | {
    "text that is there now": lambda w: w.cfg.update(weights=1),
    "a table that is none": lambda w: w.cfg["model"].__dict__.update(_parameters=None),
}
COUNTS: dict[str, Callable[[World], object]] = {
    "count below": lambda w: w.cfg["count"].fill_(-1),
    "count is no number": lambda w: w.cfg["count"].fill_(math.nan),
    "count in float64": lambda w: w.cfg.update(count=torch.tensor(3.0, dtype=torch.float64)),
    "count in float16": lambda w: w.cfg.update(count=torch.tensor(3.0, dtype=torch.float16)),
    "count of integers": lambda w: w.cfg.update(count=torch.tensor(3)),
    "count with a dimension": lambda w: w.cfg.update(count=torch.ones(1)),
    "count elsewhere": lambda w: w.cfg.update(count=torch.empty((), device="meta")),
    "count that is sparse": lambda w: w.cfg.update(count=torch.tensor(3.0).to_sparse()),
}
SPACE: dict[str, Any] = {}  # a namespace that lives as long as the process
NAMESPACES: dict[str, Callable[[World], object]] = {
    "namespace: function replaced": lambda w: SPACE.update(act=lambda x: x),
    "namespace: name gone": lambda w: SPACE.pop("rate"),
    "namespace: name there": lambda w: SPACE.update(none=1),
    "namespace: empty": lambda w: SPACE.clear(),
}
SIMPLE: dict[str, Callable[[World], object]] = {
    "nothing": lambda w: None,
    "queue grows": lambda w: w.cfg["queue"].append(7),
    "queue turned": lambda w: w.cfg["queue"].rotate(1),
    "missing": lambda w: w.cfg.pop("n"),
    "shorter": lambda w: w.cfg["layers"].pop(),
    "deep": lambda w: w.cfg["layers"].__setitem__(1, (21, 30)),
    "output order": lambda w: w.cfg["output"].move_to_end("a"),
    "output entry": lambda w: w.cfg["output"].update(b=3),
    "one item more": lambda w: w.cfg["names"].add("b"),
    "one item less": lambda w: w.cfg["names"].remove("a"),
    "attribute": lambda w: setattr(w.thing, "size", 5),
    "attribute gone": lambda w: delattr(w.thing, "name"),
    "attribute new": lambda w: setattr(w.thing, "other", 5),
}


def make_world() -> World:
    SPACE.clear()
    SPACE.update(act=act, rate=0.5, __name__="space")
    slotted = Slotted()
    slotted.tag = "t"
    model = torch.nn.Linear(2, 2)
    leaf = torch.ones(3, requires_grad=True)
    leaf.grad = torch.zeros(3)

    def user(a, b=5, *, c=6):
        return FACTOR

    cfg = {
        "n": 3,
        "rate": 0.5,
        "count": torch.tensor(3.0),
        "on": True,
        "none": None,
        "dims": (1, 2),
        "point": Point(1, 2),
        "layers": [10, (20, 30)],
        "ordered": collections.OrderedDict(a=1, b=2),
        "slotted": slotted,
        "model": model,
        "key": "weight",
        "part": "na",
        "leaf": leaf,
        "wrapper": TwoTensor(torch.ones(3, 2), torch.ones(3, 2)),
        5: "five",
        "output": Output(a=1, b=2),
        "names": {"a", int},
        "few": {4},
        "queue": collections.deque([3, "b"], maxlen=4),
        "partial": functools.partial(user, 1),
        "array": np.zeros(2),
        "whole": np.int64(3),
        "single": np.float32(0.75),
        "weak": weakref.ref(user),
        "shown": types.MappingProxyType({"a": 1}),
        **made_caches(),
        "dead": weakref.ref(type("Gone", (), {})()),
    }
    rest = (torch.zeros(4), torch.zeros(4))
    space = {"FACTOR": 2, "torch": torch, "helper": user}
    return World(torch.randn(2, 4), cfg, Thing(), rest, user, types.CellType(7), space)
