"""Traces one call whose program is to be saved, and finds what its tensors are.

In: a callable and its arguments. Out: a TracedCall: the trace, the arguments' tensors, and for each
input of the graph the argument or weight that it is. A call that Python would have to finish,
because the graph breaks or an object changes, is refused with a UsageError.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..bytecode import FrameSnapshot
from ..compat.pytree import keystr, tree_flatten_with_path
from ..compile.retracing import settle
from ..errors import Unsupported, UsageError
from ..frame.declared_dynamic import dynamic_dims
from ..guards.read import read_source
from ..lazy_dataclass import dataclass
from ..options import Options
from ..trace.assumptions import Assumptions
from ..trace.machine import trace
from ..trace.result import (
    Break,
    BuildDict,
    BuildList,
    BuildTuple,
    Constant,
    FromGraph,
    FromSource,
    Invoke,
    Recipe,
    Return,
    Trace,
)
from ..trace.varying.concrete import data_symbols
from ..trace.varying.varying_sizes import VaryingSizes
from .examples import Arguments

__all__ = ["Leaf", "TracedCall", "trace_call"]

_CONSTANT_WEIGHTS = "call .eval() on the module first, or pass the tensor as an argument"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor among the arguments, and its path there: `[0]['mask']`."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class TracedCall:
    """`values` are the tensors that the graph's inputs are in this call; `places` their positions
    among the leaves, None for weights.
    """

    traced: Trace
    leaves: tuple[Leaf, ...]
    values: tuple[torch.Tensor, ...]
    places: tuple[int | None, ...]
    results: tuple[tuple[str, FromGraph | int], ...]
    """The tensors of the result with their paths: outputs of the graph, or positions of inputs."""


def trace_call(fn: Callable[..., Any], arguments: Arguments, options: Options) -> TracedCall:
    """Trace a call in the grad mode of the caller."""
    leaves = (*_leaves_of(arguments[0]), *_leaves_of(arguments[1]))
    _check_leaves(leaves)
    snapshot = FrameSnapshot.of_call(_frame_of(fn), *arguments)
    sizes = VaryingSizes(dynamic_dims(options, {}, lambda *_: False), lambda *_: ())
    traced, _, _ = settle(partial(trace, snapshot, options, None), Assumptions(sizes=sizes))
    _check(traced)
    values = tuple(read_source(entry.source, snapshot) for entry in traced.inputs)
    positions = {id(leaf.tensor): n for n, leaf in enumerate(leaves)}
    places = tuple(positions.get(id(value)) for value in values)
    for n in traced.mutated:
        if places[n] is None:
            name = traced.inputs[n].name
            raise UsageError(f"the call writes to the weight {name}: {_CONSTANT_WEIGHTS}")
    assert isinstance(traced.exit, Return)
    found = [
        (name, part if isinstance(part, FromGraph) else _position(part, snapshot, values))
        for name, part in _tensors_of(traced.exit.value, "")
    ]
    return TracedCall(traced, leaves, values, places, tuple(found))


def _frame_of(fn: Callable[..., Any]) -> types.FunctionType:
    """Return a function that calls `fn`; its frame is traced."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    assert isinstance(forward, types.FunctionType)
    return forward


def _leaves_of(args: object) -> Iterator[Leaf]:
    for path, leaf in tree_flatten_with_path(args)[0]:
        if isinstance(leaf, torch.Tensor):
            yield Leaf(keystr(path), leaf)


def _check_leaves(leaves: tuple[Leaf, ...]) -> None:
    if len({id(leaf.tensor) for leaf in leaves}) < len(leaves):
        raise UsageError("an example passes one tensor twice: pass a copy")
    for leaf in leaves:
        tensor = leaf.tensor
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_sparse:
            raise UsageError(f"argument {leaf.name} is not a plain strided tensor")
        if tensor.device.type != "cpu":
            raise UsageError(f"argument {leaf.name} is on {tensor.device}: pass a CPU tensor")


def _check(traced: Trace) -> None:
    """Raise for a trace that Python would have to finish."""
    if isinstance(traced.exit, Break):
        reason = traced.exit.reason
        raise Unsupported(reason.message, reason.hint, traced.exit.where)
    if all(node.op in ("placeholder", "output") for node in traced.graph.graph.nodes):
        raise UsageError("the call has no operation on tensors")
    if traced.effects or traced.lock is not None:
        raise UsageError("the call changes Python objects, which a saved program cannot do")
    if traced.draws:
        raise UsageError("the call draws random numbers of Python or numpy: use torch's")
    if traced.wrappers or any(not entry.is_memory for entry in traced.inputs):
        raise UsageError("the call takes numbers or tensor subclasses, which cannot be saved")
    if data_symbols(traced):
        raise UsageError("a size depends on the data of a tensor, which cannot be saved")


def _tensors_of(recipe: Recipe, name: str) -> Iterator[tuple[str, FromGraph | FromSource]]:
    """Yield the tensors of a result with their paths; None is left out."""
    keys: list[object]
    match recipe:
        case FromGraph() | FromSource():
            yield name, recipe
            return
        case Constant(None):
            return
        case Invoke(Constant(type() as kind), (BuildTuple(parts),)) if issubclass(kind, tuple):
            keys = [*range(len(parts))]  # torch.return_types.topk
        case Invoke(Constant(made), (_, BuildTuple(parts))) if made is tuple.__new__:
            keys = [*range(len(parts))]  # a namedtuple
        case BuildTuple(parts) | BuildList(parts):
            keys = [*range(len(parts))]
        case BuildDict(made, parts) if all(isinstance(key, Constant) for key in made):
            keys = [key.value for key in made if isinstance(key, Constant)]
        case _:
            kinds = "tensors, tuples, lists and dicts"
            raise UsageError(f"the result{name} is not made of {kinds}: {type(recipe).__name__}")
    for key, part in zip(keys, parts, strict=True):
        yield from _tensors_of(part, f"{name}[{key!r}]")


def _position(recipe: FromSource, snapshot: FrameSnapshot, values: tuple[torch.Tensor, ...]) -> int:
    """Return the position of the graph's input that the result returns."""
    value = read_source(recipe.source, snapshot)
    for n, known in enumerate(values):
        if known is value:
            return n
    raise UsageError("the result has an object that is no tensor of the graph")
