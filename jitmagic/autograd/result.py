"""What the autograd split hands on. Data only.

    Joint     = the functional, decomposed ATen graph of forward (and backward when something needs
    grad) Partition = forward and backward as separate graphs plus the signature the call shell
    needs

Forward graph: placeholders are the trace's graph inputs in order; outputs are one flat tuple
`(*results, *saved)`. Mutated inputs are written by trailing `aten.copy_.default(input, new)` nodes,
so the graph body is functional and the mutation is still visible to every later stage. Backward
graph: placeholders `(*saved, *tangents)`; outputs one gradient (or None) per entry of
`grad_inputs`. Every tensor node carries `meta["spec"]: TensorSpec` (real device, static sizes) and
`meta["lines"]: tuple[UserLine, ...]` where known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node

from ..spec import TensorSpec

__all__ = [
    "AliasStep",
    "FromInput",
    "Held",
    "Joint",
    "Leaf",
    "Output",
    "Partition",
    "Result",
    "VersionBump",
    "ViewOf",
    "ViewReplay",
    "output_specs",
]


class Output:
    """How the shell makes one user-visible output. Base of the three kinds."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Result(Output):
    """A fresh tensor: the index-th of the forward graph's results."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class FromInput(Output):
    """The input tensor itself (the traced code returned it, or mutated and returned it)."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOf(Output):
    """A tensor for memory that an input or a result has, in a slot that a `ViewReplay` fills.
    `result`: the one that it is a differentiable view of, if it is one of a result.
    """

    slot: int
    spec: TensorSpec
    result: int | None = None


class AliasStep:
    """What is done on the real tensors when the graph has run, so that autograd sees what it sees
    in eager. Tensors have slots: the inputs', then the results', then those that views fill.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ViewReplay(AliasStep):
    """Eager's own call: an ATen overload, `.data` where that is None, of the tensor at `source`;
    its results have the next `outputs` slots. `grad` is the grad mode it is made in.
    """

    op: Any
    source: int
    args: tuple[Any, ...] = ()
    grad: bool = True
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class VersionBump(AliasStep):
    """The version counter of the tensor in `slot` goes up by as many writes."""

    slot: int
    times: int


@dataclass(frozen=True, slots=True)
class Leaf(AliasStep):
    """The tensor in `slot`, which has no history, requires grad from here on: a parameter that the
    program made.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class Held:
    """Eager autograd holds the memory of a value for the backward, where one of these tangents (a
    bit for each) is given: a write to it in between is an error then. `inputs`: whose memory it is.
    """

    ALL_TANGENTS: ClassVar[int] = -1

    tangents: int
    inputs: frozenset[int] = frozenset()

    def __or__(self, other: Held) -> Held:
        return Held(self.tangents | other.tangents, self.inputs | other.inputs)


@dataclass(frozen=True, slots=True)
class Joint:
    """forward_outputs/grad_outputs name the nodes of `graph` by their meaning."""

    module: torch.fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[Output, ...]
    results: tuple[TensorSpec, ...]
    mutated_inputs: tuple[int, ...]
    tangents: tuple[int, ...]  # which results receive a tangent, in tangent order
    grad_inputs: tuple[int, ...]  # which inputs receive a gradient, in order; () = forward only
    # per gradient: positions of the tangents whose results have this input in their history
    reach: tuple[tuple[int, ...], ...] = ()
    aliasing: tuple[AliasStep, ...] = ()  # in the program's order
    spent: tuple[int, ...] = ()  # bits of tangents: eager's nodes between them that saved something
    held: Mapping[Node, Held] = field(default_factory=dict)  # of no view


@dataclass(frozen=True, slots=True)
class Partition:
    """Two graphs and the signature. backward is None when nothing needs grad."""

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    outputs: tuple[Output, ...]
    results: int  # forward returns results first, then saved intermediates
    saved_inputs: tuple[int, ...]  # inputs kept for backward (version-checked), in backward order
    saved_results: tuple[int, ...]  # results kept for backward, after the inputs
    saved_intermediates: int  # extra forward outputs kept for backward, after the results
    tangents: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    mutated_inputs: tuple[int, ...]
    recomputed: tuple[str, ...] = ()  # nodes computed again in backward instead of being saved
    reach: tuple[tuple[int, ...], ...] = ()  # as Joint's
    aliasing: tuple[AliasStep, ...] = ()  # as Joint's
    spent: tuple[int, ...] = ()  # as Joint's
    notes: Mapping[str, Any] = field(default_factory=dict)


def output_specs(joint: Joint) -> list[TensorSpec]:
    """What the user's outputs will be like."""
    leaves = {step.slot for step in joint.aliasing if isinstance(step, Leaf)}
    specs = []
    for output in joint.outputs:
        match output:
            case Result(index):
                spec = joint.results[index]
                is_leaf = len(joint.inputs) + index in leaves
                specs.append(replace(spec, requires_grad=True, is_leaf=True) if is_leaf else spec)
            case FromInput(index):
                specs.append(joint.inputs[index])
            case ViewOf(slot, spec):
                specs.append(replace(spec, is_leaf=True) if slot in leaves else spec)
    return specs
