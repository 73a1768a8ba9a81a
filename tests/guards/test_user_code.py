"""Checking guards, and explaining why one failed, runs no user code."""

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
    """Return a class that records every method or property used on its objects."""

    def noting(name: str) -> Any:
        return lambda *args: _CALLED.append(name) or NotImplemented

    kinds = (object, dict, list, torch.Tensor, types.SimpleNamespace)
    names = {name for kind in kinds for name in dir(kind) if name.startswith("__")}
    names -= set("__new__ __init__ __init_subclass__ __class__ __dict__ __slots__ __doc__".split())
    parts = "__class__ __dict__ __self__ __func__ __code__ cell_contents grad shape flags tag"
    members = {name: property(noting(name)) for name in parts.split()}
    return type("Hostile", (), {**{n: noting(n) for n in names}, **members})


@pytest.mark.parametrize("where", ["x", "cfg", "thing", "rest", "fn", "cell", *make_world().cfg])
def test_no_user_code_runs(where: Any) -> None:
    """No method or property is called on any object that a guard reads."""
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
