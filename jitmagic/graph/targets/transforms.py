"""Defines nodes that run functions of tensors: torch.func's transforms, and opaque functions.

`Transformed` is the target of such a node. It takes the tensors among the call's arguments and
those that the function captures, runs torch's own transform over the region, and returns the
tensors of the result as one flat tuple. Run on tensors of any kind (real, meta, traced) it is the
call that the program wrote: torch.func's levels and batching rules and its behaviour under an outer
autograd are torch's own, and a joint trace below them records plain ATen operations. So no batching
or differentiation rule is duplicated, and transforms nest in any order. `Pull` calls the function
that a transform returned with its results (vjp, linearize). `PythonCall` runs a function that the
tracer does not look into.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from ...compat.pytree import tree_flatten, tree_map, tree_unflatten
from ...lazy_dataclass import dataclass
from ...torch_types import AnyFunction, Args, Kwargs
from .inner_graphs import WithGraphs

__all__ = [
    "PassThrough",
    "Pattern",
    "Pull",
    "PythonCall",
    "Slot",
    "Transformed",
    "is_transform",
    "linearize",
]


@dataclass(frozen=True, slots=True)
class Slot:
    """A leaf of a Pattern: stands for the tensor of that index."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class PassThrough:
    """A leaf of a Pattern: an object of the program that a transform forwards unchanged."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pytree of tuples, lists, dicts, whose leaves are constants, Slots and PassThroughs."""

    leaves: tuple[object, ...]
    spec: Any  # torch.utils._pytree.TreeSpec

    @staticmethod
    def of(structure: object) -> Pattern:
        """Return the pattern of a call's result: tensors, and functions over tensors, become
        Slots.
        """
        leaves, spec = tree_flatten(structure)
        count = iter(range(len(leaves)))
        return Pattern(
            tuple(Slot(next(count)) if _is_output(leaf) else leaf for leaf in leaves), spec
        )

    def fill(self, tensors: Sequence[object]) -> Any:
        leaves = [tensors[leaf.index] if isinstance(leaf, Slot) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def _is_output(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor | types.FunctionType)


class _OverTensors:
    """Base of the targets. `made`: the structure of the first run's result."""

    __module__ = __name__

    def __init__(self, name: str, settings: Mapping[str, object]) -> None:
        self.__name__ = name
        self.settings = dict(settings)
        self.made: Pattern | None = None

    def _flat(self, result: object) -> tuple[Any, ...]:
        if self.made is None:
            self.made = Pattern.of(result)
        leaves, _ = tree_flatten(result)
        return tuple(filter(_is_output, leaves))

    def __repr__(self) -> str:
        return self.__name__


class Transformed(_OverTensors, WithGraphs):
    """The target of a node that calls a transformed function.

    `takes_function`: the transform is called with the function and returns one to be called with
    the arguments (grad, vmap); else it is called with both at once (jvp, vjp). `feeds`: for each
    input of the region its group ("given" to the function, or "captured") and its index there.
    `arguments` of the call and the function's `answer` are structures over the tensors.
    """

    def __init__(
        self,
        transform: AnyFunction,
        settings: Mapping[str, object],
        takes_function: bool,
        region: GraphModule,
        feeds: Sequence[tuple[str, int]],
        arguments: Pattern,
        answer: Pattern,
    ) -> None:
        super().__init__(transform.__name__, settings)
        self.transform, self.takes_function = transform, takes_function
        self.region, self.feeds = region, tuple(feeds)
        self.arguments, self.answer = arguments, answer
        self.runs = 0  # how often the function has run

    def graphs(self) -> list[Graph]:
        """Return the graph of the function."""
        return [self.region.graph]

    def __call__(self, given: Sequence[Any], captured: Sequence[object]) -> tuple[object, ...]:
        args, kwargs = self.arguments.fill(given)
        return self._flat(self.apply(partial(self._function, captured), args, kwargs))

    def apply(self, function: AnyFunction, args: Args, kwargs: Kwargs) -> Any:
        """Call the transform of `function`."""
        if self.takes_function:
            return self.transform(function, **self.settings)(*args, **kwargs)
        return self.transform(function, *args, **self.settings, **kwargs)

    def _function(self, captured: Sequence[object], *args: object, **kwargs: object) -> Any:
        self.runs += 1
        leaves, _ = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        groups: dict[str, Sequence[object]] = {"given": tensors, "captured": captured}
        inputs = [groups[group][n] for group, n in self.feeds]
        # A module's __call__ prints what is raised; a script has a function here.
        run = getattr(self.region, "forward", self.region)
        return self.answer.fill(run(*inputs))


class Pull(_OverTensors):
    """The target of a node that calls a function returned by a transform."""

    def __init__(self, settings: Mapping[str, object], arguments: Pattern) -> None:
        super().__init__("pull", settings)
        self.arguments = arguments

    def __call__(self, function: Callable[..., Any], given: Sequence[object]) -> tuple[object, ...]:
        return self._flat(function(*self.arguments.fill(given), **self.settings))


class PythonCall(_OverTensors):
    """The target of a node that calls a function which is registered to be a node."""

    def __init__(self, function: AnyFunction, arguments: Pattern) -> None:
        super().__init__(str(getattr(function, "__name__", "call")), {})
        self.function, self.arguments = function, arguments

    def __call__(self, given: Sequence[object]) -> tuple[object, ...]:
        args, kwargs = self.arguments.fill(given)
        return self._flat(self.function(*args, **kwargs))


def linearize(function: AnyFunction, *primals: Any) -> tuple[Any, AnyFunction]:
    """Do torch.func.linearize. torch traces the function for its second result, which computes
    only what depends on the tangents; here the compiled graph merges the equal parts.
    """

    def push(*tangents: Any) -> Any:
        return torch.func.jvp(function, primals, tangents)[1]

    # The trace takes tensors that reach the function unchanged for constants of the function.
    own = tree_map(lambda one: one.view_as(one) if _is_tensor(one) else one, primals)
    return function(*own), push


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def is_transform(target: object) -> bool:
    """Return whether the target runs a transform, or an opaque function, of several operations."""
    return isinstance(target, _OverTensors)
