"""Describes regions of a graph that the backward recomputes, as torch.utils.checkpoint does.

`meta["checkpoint"]` of each node of such a region is its `Recomputed`. `Rerun` describes how to run
the program's function again, from the tensors that enter the region and the objects that the call
holds. That is needed if the function reads Python state and a fact about it no longer holds when
the backward runs. The graph is then run node by node under torch's own checkpoint, which compares
the tensors saved by both runs, as in eager.

A `Policy` of a region (selective checkpointing) names the ATen calls whose results are saved. It is
asked while the joint graph is recorded, and by torch's own checkpoint in a rerun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import checkpoint

from ...compat.autograd import checkpointed, is_checkpoint_valid
from ...lazy_dataclass import dataclass
from ...torch_types import Args, Kwargs, OpOverload

__all__ = ["Policy", "Recomputed", "Rerun", "check_reentrant", "regions_of", "run_checkpointed"]


@dataclass(slots=True, eq=False)
class Rerun:
    """Calls the checkpointed function again. `make` gives the function and its arguments, from the
    entering tensors (nodes whose `meta["enters"]` holds their indices) and the objects that the
    call holds. The last arguments are keywords with `names`. With `has_policy`, the first one is
    the policy, or the list of operators, of selective checkpointing.

    is_reentrant: as eager's, its backward refuses to run for `torch.autograd.grad`
    """

    make: Callable[[Sequence[Any], tuple[Any, ...]], list[Any]]
    entering: int
    names: list[str]
    guards: tuple[object, ...]
    keeps_draws: bool
    has_policy: bool = False
    is_reentrant: bool = False
    holds: Callable[[tuple[Any, ...]], bool] | None = None


def check_reentrant(holds: Callable[[tuple[Any, ...]], bool] | None, held: tuple[Any, ...]) -> bool:
    """Return `holds(held)`, in a backward. Raises as eager's reentrant checkpoint does."""
    if not is_checkpoint_valid():
        raise RuntimeError(
            "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or "
            "passing an `inputs` parameter to .backward(). To resolve this error, you can either "
            "set use_reentrant=False, or call .backward() without passing the `inputs` argument."
        )
    return holds is None or holds(held)


class Policy:
    """Decides which calls of one run of a region have results that are saved.

    `chosen`: the user's function of a context and the call, which returns a bool or a
    CheckpointPolicy, or the list of operators to save.
    """

    def __init__(self, chosen: Any) -> None:
        self._chosen = chosen

    def saves(self, op: OpOverload, args: Args, kwargs: Kwargs, made: object) -> bool:
        """Return whether the results of a call are saved; offloaded ones count as saved."""
        if op is torch.ops.aten.detach.default:  # torch does not ask about it either
            return False
        if isinstance(self._chosen, list):
            return op in self._chosen
        context: Any = checkpoint.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = made
        answer = self._chosen(context, op, *args, **kwargs)
        return answer if isinstance(answer, bool) else answer not in _RECOMPUTES


_RECOMPUTES = (
    checkpoint.CheckpointPolicy.MUST_RECOMPUTE,
    checkpoint.CheckpointPolicy.PREFER_RECOMPUTE,
)


@dataclass(slots=True, eq=False)
class Recomputed:
    """One call of torch.utils.checkpoint in the program; compared by identity.

    `make_policy`: a new policy for each run, since a policy may count the calls that it saw
    """

    rerun: Rerun | None
    make_policy: Callable[[], Policy] | None = None


def regions_of(graph: GraphModule) -> list[Rerun]:
    """Return the reruns of a graph's checkpointed regions."""
    found = dict.fromkeys(node.meta.get("checkpoint") for node in graph.graph.nodes)
    return [one.rerun for one in found if one is not None and one.rerun is not None]


def run_checkpointed(
    graph: GraphModule, inputs: Sequence[torch.Tensor], held: tuple[object, ...]
) -> Any:
    """Run a graph whose checkpointed regions are recomputed by the program's own functions."""
    return _Run(graph, held).run(*inputs)


class _Run(Interpreter):
    """Runs a graph node by node, with each region under torch's checkpoint."""

    def __init__(self, graph: GraphModule, held: tuple[object, ...]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        nodes = list(graph.graph.nodes)
        self._held = held
        self._last = {node.meta.get("checkpoint"): node for node in nodes}
        self._given: dict[tuple[Rerun, int], object] = {}
        self._open: tuple[Recomputed, Iterator[None]] | None = None

    def run_node(self, n: Node) -> object:
        region = n.meta.get("checkpoint")
        if region is not None and region.rerun is not None and self._open is None:
            self._open = region, self._entered(region.rerun)
        made = super().run_node(n)
        for rerun, place in n.meta.get("enters", {}).items():
            self._given[rerun, place] = made
        if self._open is not None and self._last[self._open[0]] is n:
            next(self._open[1], None)
            self._open = None
        return made

    def _entered(self, rerun: Rerun) -> Iterator[None]:
        given = [self._given[rerun, place] for place in range(rerun.entering)]
        made = rerun.make(given, self._held)
        contexts = checkpoint.noop_context_fn
        if rerun.has_policy:
            contexts = partial(checkpoint.create_selective_checkpoint_contexts, made.pop(0))
        function, *args = made
        count = len(args) - len(rerun.names)
        named = dict(zip(rerun.names, args[count:], strict=True))
        # checkpoint() runs this generator to its yield, then the function, then the rest.
        generator: Iterator[None] = checkpointed(
            function, rerun.keeps_draws, contexts, "default", False, True,
            *args[:count], **named,
        )  # fmt: skip
        next(generator)
        return generator
