"""Defines regions: graphs that run inside a node of another graph, and the nodes that have one.

A `Region` is a graph with a description of its inputs. `FunctionCall` is the target of the node for
a torch.autograd.Function. The operations of the forward stand before it in the graph, under
no_grad; the node makes their results the outputs of an autograd node whose backward is the region.
Run on tensors of any kind (real, meta, traced) it calls `apply` of a real autograd function:
versions, views, zeros for missing gradients, checks and second derivatives are torch's own. Its
results are the tensors that it was given; only their history is new.

`ProgramBackward` is the backward that the program wrote. It runs if the facts about Python state
that the region was traced under no longer hold when the backward runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.fx import GraphModule, Node
from torch.utils.hooks import RemovableHandle

from ...compat.modes import switch_grad_mode
from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction

__all__ = [
    "FunctionCall", "HookCall", "ProgramBackward", "Region", "back_to_entry_mode", "calls_in",
    "holding",
]  # fmt: skip

Tensors = Sequence[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Region:
    """A graph that runs inside a node of another graph.

    `feeds`: for each input, the (group, index) of the value that it takes. `returns`: for each
    result, the index of an output of the graph, or None.
    """

    graph: GraphModule
    feeds: tuple[tuple[str, int], ...]
    returns: tuple[int | None, ...]

    def run(self, groups: Mapping[str, Tensors]) -> tuple[torch.Tensor | None, ...]:
        """Run the graph on its inputs from `groups`, in the grad mode of the caller."""
        given = [groups[group][place] for group, place in self.feeds]
        if any(value is None for value in given):
            raise RuntimeError("a gradient is missing that existed when the backward was traced")
        _ENTERED.modes.append(torch.is_grad_enabled())
        try:
            outputs = self.graph(*given)
        finally:
            switch_grad_mode(_ENTERED.modes.pop())
        return tuple(None if place is None else outputs[place] for place in self.returns)


class _Entered(threading.local):
    """Thread-local state: the grad modes at entry to the running regions, innermost last."""

    def __init__(self) -> None:
        self.modes: list[bool] = []
        self.held: tuple[Any, ...] | None = None  # objects of the call that runs op by op
        self.outdated = False


_ENTERED = _Entered()


def back_to_entry_mode() -> None:
    """Restore the grad mode in which the running region was entered."""
    switch_grad_mode(_ENTERED.modes[-1])


@contextmanager
def holding(held: tuple[object, ...] | None, outdated: bool = False) -> Iterator[None]:
    """Run a graph op by op for a call that holds these objects. `outdated`: facts about them are
    known not to hold.
    """
    before = _ENTERED.held, _ENTERED.outdated
    _ENTERED.held, _ENTERED.outdated = held, outdated
    try:
        yield
    finally:
        _ENTERED.held, _ENTERED.outdated = before


@dataclass(slots=True)
class ProgramBackward:
    """The backward that the program wrote. `make` gives its class and the attributes of `ctx`, or
    the hook, from the tensors and numbers that the forward left there and the objects that the call
    holds.
    `guards` are the facts that the region relies on; `holds` checks them, once they are lowered.
    """

    make: Callable[[Sequence[Any], tuple[Any, ...]], Any]
    guards: tuple[object, ...]
    holds: Callable[[tuple[Any, ...]], bool] | None = None

    def is_wanted(self, ctx: Any) -> bool:
        """Return whether the traced region is no longer valid for this call."""
        if ctx.held is None or self.holds is None:
            return False
        return bool(ctx.outdated or not self.holds(ctx.held))

    def run(self, ctx: Any, gradients: Tensors) -> tuple[Any, ...]:
        """Run the program's backward; return one gradient for each of the call's inputs."""
        function, attributes = self.make(ctx.left, ctx.held)
        base = torch.autograd.Function
        is_vjp = function.vjp is not base.vjp  # type: ignore[attr-defined]
        backward = function.vjp if is_vjp else function.backward
        answer = backward(_Context(ctx, attributes), *gradients)
        made: tuple[Any, ...] = answer if isinstance(answer, tuple) else (answer,)
        return made[: len(ctx.needs_input_grad) - 1]


class _Context:
    """The `ctx` that the program's backward sees. `real` belongs to the FunctionCall, which has one
    more argument.
    """

    def __init__(self, real: object, attributes: Mapping[str, object]) -> None:
        vars(self).update(attributes, _real=real)

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        needs: tuple[bool, ...] = self._real.needs_input_grad
        return needs[:-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@dataclass(frozen=True, slots=True)
class _CallState:
    """A call's arguments besides its inputs, wrapped so that autograd sees no tensor."""

    made: Tensors
    saved: Tensors
    captured: Sequence[torch.Tensor]
    left: Sequence[Any]


class FunctionCall:
    """The target of a node that calls one of the program's autograd functions.

    `dirty` and `constant` are the indices of inputs written in place and of results marked as not
    differentiable. `backward` is None until it is traced, and where nothing requires grad; so is
    `original`.
    """

    __module__ = __name__

    def __init__(
        self,
        name: str,
        *,
        dirty: Sequence[int] = (),
        constant: Sequence[int] = (),
        materialize: bool = True,
        once: bool = False,
    ) -> None:
        self.__name__ = f"{name}_apply"
        self.dirty, self.constant = tuple(dirty), tuple(constant)
        self.materialize, self.once = materialize, once
        self.backward: Region | None = None
        self.original: ProgramBackward | None = None
        backwards: AnyFunction = once_differentiable(self._backward) if once else self._backward
        parts = {"forward": staticmethod(self._forward), "backward": staticmethod(backwards)}
        self._function: Any = type(name, (torch.autograd.Function,), parts)

    def __call__(
        self,
        inputs: Tensors,
        made: Tensors,
        saved: Tensors,
        captured: Sequence[torch.Tensor],
        left: Sequence[object] = (),
    ) -> tuple[torch.Tensor | None, ...]:
        """Run the call. The autograd node has edges to `inputs` only. `left`: tensors and numbers
        among the attributes of `ctx`.
        """
        outputs: tuple[torch.Tensor | None, ...] = self._function.apply(
            *inputs, _CallState(made, saved, captured, left)
        )
        return outputs

    def _forward(self, ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        *inputs, held = given
        ctx.set_materialize_grads(self.materialize)
        if self.dirty:
            ctx.mark_dirty(*(inputs[place] for place in self.dirty))
        if self.constant:
            ctx.mark_non_differentiable(*(held.made[place] for place in self.constant))
        ctx.save_for_backward(*held.saved)
        ctx.captured, ctx.left = held.captured, held.left
        ctx.held, ctx.outdated = _ENTERED.held, _ENTERED.outdated
        return tuple(held.made)

    def _backward(self, ctx: Any, *gradients: torch.Tensor | None) -> tuple[object, ...]:
        original = self.original
        if original is not None and (self.backward is None or original.is_wanted(ctx)):
            return (*original.run(ctx, gradients), None)
        assert self.backward is not None
        groups = {"gradient": gradients, "saved": ctx.saved_tensors, "captured": ctx.captured}
        return (*self.backward.run(groups), None)

    def __repr__(self) -> str:
        return self.__name__


class HookCall(FunctionCall):
    """The target of a node that registers a hook of its only input, whose region is the hook.

    Run on tensors of any kind it calls `register_hook`, so that the autograd engine decides when
    the hook runs, and with which gradient.
    """

    def __call__(
        self,
        inputs: Tensors,
        made: Tensors,
        saved: Tensors,
        captured: Sequence[torch.Tensor],
        left: Sequence[object] = (),
    ) -> tuple[torch.Tensor | None, ...]:
        """Register the hook; there are no results."""
        self.register(inputs, captured, left)
        return ()

    def register(
        self, inputs: Tensors, captured: Sequence[torch.Tensor], left: Sequence[object]
    ) -> RemovableHandle:
        """Register the hook, and return its handle."""
        (tensor,) = inputs
        assert tensor is not None
        call = _Registration(captured, left, _ENTERED.held, _ENTERED.outdated)
        handle: RemovableHandle = tensor.register_hook(partial(self._hook, call))
        return handle

    def _hook(self, call: _Registration, gradient: torch.Tensor) -> torch.Tensor | None:
        assert self.backward is not None
        if (original := self.original) is not None and original.is_wanted(call):
            assert call.held is not None
            (hook,) = original.make(call.left, call.held)
            changed: torch.Tensor | None = hook(gradient)
            return changed
        return self.backward.run({"gradient": (gradient,), "captured": call.captured})[0]


@dataclass(frozen=True, slots=True)
class _Registration:
    """The state that a hook needs when it runs."""

    captured: Sequence[torch.Tensor]
    left: Sequence[object]
    held: tuple[Any, ...] | None
    outdated: bool


def calls_in(graph: GraphModule) -> Iterator[tuple[Node, FunctionCall]]:
    """Yield the calls of autograd functions in a graph, with their nodes."""
    for node in graph.graph.nodes:
        if isinstance(node.target, FunctionCall):
            yield node, node.target
