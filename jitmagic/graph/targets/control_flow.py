"""Defines nodes that choose between graphs or repeat one: cond, while_loop, scan and map.

`ControlFlow` is the target of such a node. It takes the values that the first graph starts from
("given") and then the tensors that the graphs capture, and returns one flat tuple. It runs the
graphs as plain Python would run the functions they were traced from, so autograd differentiates
what has run. Which branch is taken, and how often a graph runs, is read from data. So the node runs
between the partitions of the graph around it (graph/symbolic/data_split.py), and its graphs are
compiled like graphs of their own. On meta tensors no graph runs, since their results are known.

As with torch's operators, the gradients of a branch that was not taken are zeros, not None: whether
a result requires grad does not depend on data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ...errors import SizesDiffer
from ...lazy_dataclass import dataclass, replace
from ...symbols.interval import Interval
from ...torch_types import Executable
from .inner_graphs import WithGraphs
from .regions import FunctionCall
from .transforms import is_transform

__all__ = ["CARRIED", "PLACES", "Body", "ControlFlow", "control_flow_in", "has_graphs"]

Tensors = Sequence[torch.Tensor]
# The range of ints that a loop carries: products with small ints are in the range of int64.
CARRIED = Interval(-(2**53), 2**53)
# The name of each graph of a node, by its kind.
PLACES = {
    "cond": ("true_fn", "false_fn"),
    "while_loop": ("cond_fn", "body_fn"),
    "scan": ("combine_fn",),
    "map": ("f",),
}


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """One graph of a node. `feeds`: for each input, the group ("given" or "captured") and the index
    in it. `returns`: the output index of each result. `reaches`: the indices of captured tensors to
    which the results give gradients. `run`: the executable, once it is compiled.
    """

    graph: GraphModule
    feeds: tuple[tuple[str, int], ...]
    returns: tuple[int, ...]
    reaches: tuple[int, ...] = ()
    run: Executable | None = None

    def __call__(self, given: Tensors, captured: Tensors) -> tuple[torch.Tensor, ...]:
        # A module's __call__ prints what is raised; a script has a function here.
        run: Any = self.run or getattr(self.graph, "forward", self.graph)
        groups = {"given": given, "captured": captured}
        outputs = run(*[groups[group][n] for group, n in self.feeds])
        return tuple(outputs[n] for n in self.returns)

    def results_on_meta(self) -> tuple[torch.Tensor, ...]:
        """Return the results as the trace has found them."""
        outputs: Any = self.graph.graph.output_node().args[0]
        return tuple(outputs[n].meta["val"] for n in self.returns)


class ControlFlow(WithGraphs):
    """The target of a node whose graphs run depending on data.

    `kind` is "cond", "while_loop", "scan" or "map". `given`: the number of arguments before the
    captured tensors; the first `carried` of them are what a loop carries from one step to the next.
    `differentiable`: for each result, whether any graph makes it require grad. `ints`: the carried
    tensors that stand for ints of Python.
    """

    __module__ = __name__

    def __init__(
        self,
        kind: str,
        bodies: Sequence[Body],
        given: int,
        carried: int,
        differentiable: Sequence[bool],
        ints: Sequence[int] = (),
    ) -> None:
        self.__name__ = self.kind = kind
        self.bodies, self.given, self.carried = tuple(bodies), given, carried
        self.differentiable, self.ints = tuple(differentiable), tuple(ints)

    def graphs(self) -> list[Graph]:
        """Return the graph of each body."""
        return [body.graph.graph for body in self.bodies]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given, captured = tensors[: self.given], tensors[self.given :]
        if any(tensor.is_meta for tensor in tensors):
            return self._on_meta(tensors)
        body, results = _RUN[self.kind](self, given, captured)
        if not (any(self.differentiable) and torch.is_grad_enabled()):
            return results
        return self._with_history(results, tensors, body)

    def with_runs(self, runs: Sequence[Executable]) -> ControlFlow:
        """Return the same node with compiled graphs."""
        bodies = [replace(body, run=run) for body, run in zip(self.bodies, runs, strict=True)]
        return ControlFlow(
            self.kind, bodies, self.given, self.carried, self.differentiable, self.ints
        )

    def _with_history(
        self, results: tuple[torch.Tensor, ...], tensors: Tensors, body: Body | None
    ) -> tuple[torch.Tensor, ...]:
        """Make the results require grad as they do in the trace, and give zeros to inputs that only
        the other branch differentiates. `body`: the branch that was taken.
        """
        pairs = zip(results, self.differentiable, strict=True)
        missing = any(wanted and not one.requires_grad for one, wanted in pairs)
        if body is None and not missing:
            return results
        reached = set() if body is None else {self.given + n for n in body.reaches}
        sources = [x for n, x in enumerate(tensors) if x.requires_grad and n not in reached]
        if missing and not sources:
            sources = [x for x in tensors if x.requires_grad]
        if not sources:
            return results
        linked = [n for n, wanted in enumerate(self.differentiable) if wanted]
        made = _Linked.apply(len(linked), *(results[n] for n in linked), *sources)
        known = dict(zip(linked, made, strict=True))
        return tuple(known.get(n, one) for n, one in enumerate(results))

    def _on_meta(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Return the results as meta tensors, with a history if any graph gives them one."""
        made = self.bodies[-1].results_on_meta()
        if self.kind in ("scan", "map"):
            count = tensors[self.carried].shape[0]
            stacked = (_stacked(part, count) for part in made[self.carried :])
            made = (*made[: self.carried], *stacked)
        sources = [one for one in tensors if one.requires_grad]
        results: tuple[torch.Tensor, ...] = _Results.apply(made, self.differentiable, *sources)
        return results

    def first_carry(self, given: Tensors) -> Tensors:
        """Return what the first step gets. Graphs are compiled for what requires grad in the second
        step, which may be more than in the first.
        """
        if not torch.is_grad_enabled():
            return given[: self.carried]
        pairs = zip(given[: self.carried], self.differentiable, strict=False)
        return tuple(
            x.detach().requires_grad_() if wanted and not x.requires_grad else x
            for x, wanted in pairs
        )

    def check_ints(self, carry: Tensors) -> None:
        """Raise SizesDiffer for an int that a loop cannot carry; the frame then runs in eager."""
        for place in self.ints:
            if not CARRIED.has(number := int(carry[place])):
                raise SizesDiffer(f"{number} is outside of the range of ints that loops carry")

    def __repr__(self) -> str:
        return self.kind


def _stacked(row: torch.Tensor, count: int) -> torch.Tensor:
    return row.unsqueeze(0).expand(count, *row.shape).contiguous()


class _Results(torch.autograd.Function):
    """Makes tensors like `made`; the `differentiable` ones depend on all the sources."""

    @staticmethod
    def forward(
        ctx: Any, made: Tensors, differentiable: Sequence[bool], *sources: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results = tuple(
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
            for one in made
        )
        pairs = zip(results, differentiable, strict=True)
        ctx.mark_non_differentiable(*(one for one, wanted in pairs if not wanted))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        raise NotImplementedError("meta tensors of a trace are not differentiated")


class _Linked(torch.autograd.Function):
    """Returns the first `count` tensors; the gradients of the others are zeros."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sources = [(one.shape, one.dtype, one.device) for one in tensors[count:]]
        # Detached tensors, because a result that is an input would be a view, which the program
        # could not write to.
        return tuple(one.detach() for one in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        zeros = [torch.zeros(shape, dtype=t, device=device) for shape, t, device in ctx.sources]
        return None, *gradients, *zeros


# -- how each kind runs ----------------------------------------------------------------------------


Run = tuple[Body | None, tuple[torch.Tensor, ...]]  # the branch that was taken, and its results


def _choose(flow: ControlFlow, given: Tensors, captured: Tensors) -> Run:
    body = flow.bodies[0 if given[0] else 1]
    return body, body((), captured)


def _repeat(flow: ControlFlow, given: Tensors, captured: Tensors) -> Run:
    test, body = flow.bodies
    first = carry = flow.first_carry(given)
    flow.check_ints(carry)
    while test(carry, captured)[0]:
        carry = body(carry, captured)
        flow.check_ints(carry)
    # A loop that does not run returns copies, as torch's does: results share no memory with inputs.
    return None, tuple(one.clone() for one in given) if carry is first else tuple(carry)


def _scan(flow: ControlFlow, given: Tensors, captured: Tensors) -> Run:
    body, carry = flow.bodies[0], flow.first_carry(given)
    stacked = []
    for rows in zip(*(xs.unbind(0) for xs in given[flow.carried :]), strict=True):
        made = body((*carry, *rows), captured)
        carry = made[: flow.carried]
        stacked.append(made[flow.carried :])
    return None, (*carry, *(torch.stack(parts) for parts in zip(*stacked, strict=True)))


_RUN: dict[str, Callable[[ControlFlow, Tensors, Tensors], Run]] = {
    "cond": _choose,
    "while_loop": _repeat,
    "scan": _scan,
    "map": _scan,
}


def control_flow_in(graph: GraphModule) -> Iterator[tuple[Node, ControlFlow]]:
    """Yield the control-flow nodes of a graph, with their targets."""
    for node in graph.graph.nodes:
        if isinstance(node.target, ControlFlow):
            yield node, node.target


def has_graphs(target: object) -> bool:
    """Return whether calling the target runs graphs of its own."""
    return isinstance(target, FunctionCall | ControlFlow) or is_transform(target)
