"""Runs a Trace in plain Python, as the emitted residual would.

Reads inputs, runs the graph, replays effects and makes the result, without any bytecode. A trace
that ends in a Break returns its exit.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.graph.verify import verify
from jitmagic.guards.read import read_source
from jitmagic.options import Options
from jitmagic.trace import result as r
from jitmagic.trace.machine import trace


def snapshot_of(fn: Callable[..., Any], args: tuple) -> FrameSnapshot:
    if isinstance(fn, torch.nn.Module):
        return FrameSnapshot.of_call(type(fn).forward, (fn, *args))
    return FrameSnapshot.of_call(fn, args)


def trace_of(fn: Callable[..., Any], *args: Any) -> r.Trace:
    made = trace(snapshot_of(fn, args), Options())
    verify(made.graph)
    return made


class Replay:
    def __init__(self, trace: r.Trace, snapshot: FrameSnapshot) -> None:
        self.trace, self.snapshot = trace, snapshot
        self.made: dict[r.Recipe, Any] = {}

    def run(self) -> Any:
        inputs = [self._input(each) for each in self.trace.inputs]
        before = torch.is_grad_enabled()
        self.outputs = self.trace.graph(*inputs)
        assert torch.is_grad_enabled() == before
        self._read_sources()
        for effect in self.trace.effects:
            self._effect(effect)
        exit_ = self.trace.exit
        return self.make(exit_.value) if isinstance(exit_, r.Return) else exit_

    def _input(self, entry: r.GraphInput) -> torch.Tensor:
        value = read_source(entry.source, self.snapshot)
        return torch.tensor(value, dtype=entry.spec.dtype) if entry.is_scalar else value

    def _read_sources(self) -> None:
        def visit(value: Any) -> None:
            if isinstance(value, r.FromSource):
                self.make(value)
            elif isinstance(value, r.Constant):
                pass  # a live object: a namespace of a module, say
            elif isinstance(value, r.Recipe | r.Effect | r.Exit):
                for cls in type(value).__mro__:
                    for name in getattr(cls, "__slots__", ()):
                        visit(getattr(value, name))
            elif isinstance(value, tuple | list):
                for item in value:
                    visit(item)
            elif hasattr(value, "values") and not isinstance(value, type):
                for item in value.values():
                    visit(item)

        visit(self.trace.effects)
        visit(self.trace.exit)

    def make(self, recipe: r.Recipe | None) -> Any:
        if recipe is None:
            return None
        if recipe not in self.made:
            self.made[recipe] = self._make(recipe)
        return self.made[recipe]

    def _make(self, recipe: r.Recipe) -> Any:
        match recipe:
            case r.FromSource(source=source):
                return read_source(source, self.snapshot)
            case r.FromGraph(index=index):
                return self.outputs[index]
            case r.Constant(value=value):
                return value
            case r.BuildTuple(items=items):
                return tuple(map(self.make, items))
            case r.BuildList(items=items):
                return list(map(self.make, items))
            case r.BuildSet(items=items):
                return set(map(self.make, items))
            case r.BuildCell(contents=contents):
                return types.CellType() if contents is None else types.CellType(self.make(contents))
            case r.BuildFunction():
                return self._function(recipe)
            case r.BuildDict(keys=keys, values=values):
                return dict(zip(map(self.make, keys), map(self.make, values), strict=True))
            case r.BuildSlice(items=items):
                return slice(*map(self.make, items))
            case r.Invoke(callee=callee, args=args, kwargs=kwargs):
                named = {name: self.make(value) for name, value in kwargs}
                return self.make(callee)(*map(self.make, args), **named)
            case r.NewInstance(cls=cls):
                made = self.make(cls)
                return made.__new__(made)
        raise AssertionError(recipe)

    def _function(self, recipe: r.BuildFunction) -> Any:
        closure = tuple(map(self.make, recipe.closure))
        namespace, defaults = self.make(recipe.globals), self.make(recipe.defaults)
        made = types.FunctionType(recipe.code, namespace, recipe.name, defaults, closure)
        made.__kwdefaults__ = self.make(recipe.kwdefaults)
        made.__qualname__ = recipe.qualname
        return made

    def _effect(self, effect: r.Effect) -> None:
        match effect:
            case r.SetAttr(object=target, name=name, value=value):
                setter = type if isinstance(self.make(target), type) else object
                setter.__setattr__(self.make(target), name, self.make(value))
            case r.SetItem(object=target, key=key, value=value):
                self.make(target)[self.make(key)] = self.make(value)
            case r.DelAttr(object=target, name=name):
                object.__delattr__(self.make(target), name)
            case r.DelItem(object=target, key=key):
                del self.make(target)[self.make(key)]
            case r.SetCell(cell=cell, value=None):
                del self.make(cell).cell_contents
            case r.SetCell(cell=cell, value=value):
                self.make(cell).cell_contents = self.make(value)
            case r.ReplaceList(target=target, items=items):
                self.make(target)[:] = list(map(self.make, items))
            case r.ReplaceDict(target=target, keys=keys, values=values):
                table, pairs = self.make(target), zip(keys, values, strict=True)
                new = {self.make(k): self.make(v) for k, v in pairs}
                table.clear()
                table.update(new)
            case r.Perform(callee=callee, args=args, kwargs=kwargs):
                named = {name: self.make(value) for name, value in kwargs}
                self.make(callee)(*map(self.make, args), **named)
            case _:
                raise AssertionError(effect)


Make = Callable[[], tuple[Callable[..., Any], tuple]]


def check(make: Make, *, backward: bool = False) -> r.Trace:
    """`make()` gives a function and arguments: one pair runs eager, one through its trace."""
    torch.manual_seed(0)
    fn, args = make()
    torch.manual_seed(0)
    copied, copied_args = make()
    torch.manual_seed(1)
    wanted = fn(*args)
    rng = torch.get_rng_state()
    snapshot = snapshot_of(copied, copied_args)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    made = trace(snapshot, Options())
    assert torch.equal(state, torch.get_rng_state()), "tracing drew random numbers"
    verify(made.graph)
    assert isinstance(made.exit, r.Return), f"{made.exit.reason} at {made.exit.where}"
    got = Replay(made, snapshot).run()
    assert torch.equal(rng, torch.get_rng_state()), "other random numbers were drawn"
    same(wanted, got)
    same(args, copied_args)
    if isinstance(fn, torch.nn.Module):
        same(fn.state_dict(), copied.state_dict())
    if backward:
        wanted.sum().backward()
        got.sum().backward()
        for one, two in zip(fn.parameters(), copied.parameters(), strict=True):
            same(one.grad, two.grad)
    return made


def same(wanted: Any, got: Any) -> None:
    if isinstance(wanted, torch.nn.Module):
        same(wanted.state_dict(), got.state_dict())
        return
    assert type(wanted) is type(got), (type(wanted), type(got))
    if isinstance(wanted, torch.Tensor):
        assert wanted.dtype == got.dtype
        assert wanted.shape == got.shape
        assert wanted.stride() == got.stride()
        assert wanted.requires_grad == got.requires_grad
        assert torch.equal(wanted.nan_to_num(7.0), got.nan_to_num(7.0))
    elif isinstance(wanted, tuple | list):
        assert len(wanted) == len(got)
        for one, two in zip(wanted, got, strict=True):
            same(one, two)
    elif isinstance(wanted, dict):
        assert list(wanted) == list(got)
        for key in wanted:
            same(wanted[key], got[key])
    elif not callable(wanted) and not hasattr(wanted, "__dict__"):
        assert wanted == got or (wanted != wanted and got != got)


def break_of(fn: Callable[..., Any], *args: Any) -> r.Break:
    made = trace_of(fn, *args)
    assert isinstance(made.exit, r.Break), "no graph break"
    return made.exit


def fresh(module: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(module)
