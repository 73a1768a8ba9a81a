"""Checking guards, and asking why one failed, runs no code of the user's."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from jitmagic.guards.check import holds

from .test_check import all_guards, native
from .world import make_world

_CALLED: list[str] = []


def _hostile() -> type:
    """A class that notes what of its objects is called or looked at."""

    def noting(name: str) -> Any:
        return lambda *args: _CALLED.append(name) or NotImplemented

    kinds = (object, dict, list, torch.Tensor, types.SimpleNamespace)
    names = {name for kind in kinds for name in dir(kind) if name.startswith("__")}
    names -= set("__new__ __init__ __init_subclass__ __class__ __dict__ __slots__ __doc__".split())
    parts = "__class__ __dict__ __self__ __func__ __code__ cell_contents grad shape flags tag"
    members = {name: property(noting(name)) for name in parts.split()}
    return type("Hostile", (), {**{n: noting(n) for n in names}, **members})


@pytest.mark.parametrize("where", ["x", "cfg", "thing", "rest", "fn", "cell", *make_world().cfg])
def test_no_code_of_the_users_runs(where: Any) -> None:
    """Whatever stands where a guard looks for something, no method or property is called."""
    world = make_world()
    guards = all_guards(world)
    programs = [native([guard], world, world.snapshot()) for guard in guards]
    hostile = _hostile()()
    world.cfg.update({where: hostile}) if where in world.cfg else setattr(world, where, hostile)
    frame = world.snapshot()
    _CALLED.clear()
    for guard, program in zip(guards, programs, strict=True):
        program.check((*frame.args, *frame.cells))
        assert _CALLED == [], f"natively by {guard}"
        holds(guard, frame)
        assert _CALLED == [], f"by {guard}"
