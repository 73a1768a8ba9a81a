"""Data passed from the autograd stage to later ones.

    Joint     = the functional, decomposed ATen graph of forward, and of backward if needed
    Partition = forward and backward as separate graphs plus the signature of the autograd function

Forward graph: placeholders are the trace's graph inputs in order; outputs are one flat tuple
`(*results, *saved)`. Mutated inputs are written by trailing `aten.copy_.default(input, new)` nodes,
so the graph body is functional and the mutation is still visible to every later stage. Backward
graph: placeholders `(*saved, *tangents)`; outputs one gradient (or None) per entry of
`grad_inputs`. Every tensor node carries `meta["spec"]: TensorSpec` (real device, static sizes) and
`meta["lines"]: tuple[UserLine, ...]` where known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.fx import Node

from ..lazy_dataclass import dataclass, field, replace
from ..spec import TensorSpec
from ..torch_types import OpOverload

__all__ = [
    "AliasStep",
    "EagerSaved",
    "FromInput",
    "Joint",
    "MakeLeaf",
    "MemoryBudget",
    "Output",
    "Partition",
    "Result",
    "VersionBump",
    "ViewOf",
    "ViewReplay",
    "output_specs",
]


class Output:
    """Base of the three kinds of user-visible outputs: `Result`, `FromInput`, `ViewOf`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Result(Output):
    """A tensor with memory of its own: result `index` of the forward graph."""

    index: int
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class FromInput(Output):
    """The input tensor itself, which the traced code returns, mutated or not."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOf(Output):
    """A tensor that shares memory with an input or a result, in the slot of a `ViewReplay`.
    `result` is the index of the result it is a differentiable view of, if any.
    """

    slot: int
    spec: TensorSpec
    result: int | None = None


class AliasStep:
    """A step on the real tensors after the graph ran, so that autograd sees what it sees in eager.
    Tensors have slots: the inputs, then the results, then those that view replays fill.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ViewReplay(AliasStep):
    """A view call of the program: an ATen overload (None: `.data`) on the tensor in slot `source`.
    Its results fill the next `outputs` slots. `grad` is the grad mode of the call.
    """

    op: OpOverload | None
    source: int
    args: tuple[object, ...] = ()
    grad: bool = True
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class VersionBump(AliasStep):
    """Increments the version counter of the tensor in `slot` by `times`."""

    slot: int
    times: int


@dataclass(frozen=True, slots=True)
class MakeLeaf(AliasStep):
    """Makes the tensor in `slot`, which has no history, require grad: a new parameter."""

    slot: int


@dataclass(frozen=True, slots=True)
class EagerSaved:
    """Memory that eager autograd saves for the backward of these tangents (one bit each), so that a
    write to it before the backward is an error. `inputs` are the inputs whose memory it is.
    """

    ALL_TANGENTS: ClassVar[int] = -1

    tangents: int
    inputs: frozenset[int] = frozenset()

    def __or__(self, other: EagerSaved) -> EagerSaved:
        return EagerSaved(self.tangents | other.tangents, self.inputs | other.inputs)


@dataclass(frozen=True, slots=True)
class Joint:
    """The joint graph: outputs are (*results, *gradients); `results` are their specs."""

    module: torch.fx.GraphModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[Output, ...]
    results: tuple[TensorSpec, ...]
    mutated_inputs: tuple[int, ...]
    tangents: tuple[int, ...]  # indices of results with a tangent, in tangent order
    grad_inputs: tuple[int, ...]  # indices of inputs with a gradient, in order; () = forward only
    # For each gradient: positions of the tangents whose results have its input in their history.
    reach: tuple[tuple[int, ...], ...] = ()
    aliasing: tuple[AliasStep, ...] = ()  # in program order
    freed: tuple[int, ...] = ()  # for each eager node that saved a value: bits of its tangents
    eager_saved: Mapping[Node, EagerSaved] = field(
        default_factory=dict
    )  # of nodes that are not views


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Describes what `activation_memory_budget` has changed: bytes kept between forward and
    backward, those without it, and the costly operations that the backward computes again.
    """

    share: float
    kept: int
    before: int
    again: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """The forward and backward graphs, and the signature from which autograd_function builds the
    autograd node. `backward` is None if nothing requires grad.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    outputs: tuple[Output, ...]
    results: int  # forward returns results first, then saved intermediates
    saved_inputs: tuple[int, ...]  # inputs saved for backward, with a version check, in its order
    saved_results: tuple[int, ...]  # results saved for backward, after the inputs
    saved_intermediates: int  # extra forward outputs saved for backward
    tangents: tuple[int, ...]
    grad_inputs: tuple[int, ...]
    mutated_inputs: tuple[int, ...]
    recomputed: tuple[str, ...] = ()  # nodes recomputed in backward instead of being saved
    reach: tuple[tuple[int, ...], ...] = ()  # as Joint's
    aliasing: tuple[AliasStep, ...] = ()  # as Joint's
    freed: tuple[int, ...] = ()  # as Joint's
    budget: MemoryBudget | None = None


def output_specs(joint: Joint) -> list[TensorSpec]:
    """Return the specs of the user's outputs."""
    leaves = {step.slot for step in joint.aliasing if isinstance(step, MakeLeaf)}
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
