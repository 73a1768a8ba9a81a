"""Runs the graph of a frame that is called under transforms of torch.func: vmap, grad, vjp, jvp.

Input: the torch-level graph, traced for plain tensors of the shapes that the program sees. Output:
an executable of tensors as the transforms wrap them. `_Apply` is an autograd function with rules
for vmap, backward and forward mode, so torch itself unwraps the tensors of each level. A rule calls
a function derived from the graph (its vmap, vjp or jvp). Once no level is left, that function is
compiled for plain tensors, as a tagged function of the user would be.

Some graphs run operation by operation, as the program would: those that write to their inputs, read
a number in a tensor, or draw random numbers where a backward would have to repeat the draws. So do
results that are views of inputs, because torch has to know them as views.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from ..compat.autograd import run_backward
from ..compat.tensors import (
    grad_mode_below,
    is_transformed,
    transforms_of_thread,
    unwrap_if_dead,
)
from ..graph.autocast_mode import OFF, read_autocast
from ..graph.lazy_module import with_code
from ..graph.memory import storage_of
from ..graph.node_meta import mutated_by, tensors_in
from ..graph.passes import drop_dead_code
from ..graph.subgraphs import extract
from ..graph.symbolic.number_ranges import number_in
from ..graph.symbolic.python_numbers import in_python
from ..guards.kinds.tensors import has_forward_gradient
from ..lazy_dataclass import dataclass, field
from ..torch_types import AnyFunction, Executable, Values
from .backends import interpreted_by_torch

__all__ = ["under_transforms"]

Places = tuple[int, ...]
Reached = tuple[frozenset[int], ...]
Tag = Callable[[AnyFunction], AnyFunction]
Plain = Callable[["Transformable", Sequence[Any]], tuple[Any, ...]]
_KINDS = {"Vmap", "Grad", "Jvp"}


def under_transforms(gm: GraphModule, written: Sequence[int], tag: Tag) -> tuple[Executable, str]:
    """Return the executable of a graph, and why it runs operation by operation ("": it does not).

    `written`: the inputs that it writes to; `tag` returns a function that is compiled at its calls.
    """
    plain = interpreted_by_torch(gm)
    outputs: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]
    inputs = {storage_of(node) for node in gm.graph.find_nodes(op="placeholder")}
    computed = [n for n, node in enumerate(outputs) if storage_of(node) not in inputs]
    views = [n for n in range(len(outputs)) if n not in computed]
    draws = any(node.meta.get("random") for node in gm.graph.nodes)
    if why := _why_plain(gm, [outputs[n] for n in computed], written, draws and bool(views)):
        return plain, why
    part, view = _part(gm, computed), interpreted_by_torch(_part(gm, views)) if views else _nothing
    run = with_code(in_python(part)).forward
    graph = Transformable(run, type(gm).__name__, tag, _reached(part))

    def call(*inputs: Any) -> Values:
        levels = transforms_of_thread()
        if not _KINDS.issuperset(levels) or (draws and not _is_batched(inputs, levels)):
            return plain(*inputs)
        # Without grad mode, an autograd function would be recorded on the levels below. Under
        # autocast, a backward could repeat the forward with other casts.
        if ("Grad" in levels and not torch.is_grad_enabled()) or read_autocast() != OFF:
            return plain(*inputs)
        values = dict(zip(computed, graph.call(*inputs), strict=True))
        values.update(zip(views, view(*inputs), strict=True))
        return tuple(values[n] for n in range(len(outputs)))

    return call, ""


def _nothing(*inputs: object) -> Values:
    return ()


def _why_plain(
    gm: GraphModule, computed: Sequence[Node], written: Sequence[int], repeats: bool
) -> str:
    """Return why a graph runs operation by operation. `repeats`: in two parts it draws twice."""
    memory = [storage_of(node) for node in computed]
    if written:
        return "it writes to a tensor from outside"
    if not computed:
        return "its results are views of its inputs"
    if None in memory:
        return "a result is a number"
    if len(set(memory)) < len(memory):
        return "its results share memory"
    if repeats:
        return "it draws random numbers and returns views of its inputs"
    if any(node.target is number_in for node in gm.graph.nodes):
        return "a call takes a number that varies"
    return ""


def _is_batched(inputs: Values, levels: list[str]) -> bool:
    """Return whether the only level is a vmap, and some input has its dimension."""
    return levels == ["Vmap"] and any(isinstance(v, Tensor) and is_transformed(v) for v in inputs)


def _part(gm: GraphModule, places: Sequence[int]) -> GraphModule:
    """Return a graph of all inputs that computes the outputs at `places`."""
    *nodes, output = gm.graph.nodes
    inputs = [node for node in nodes if node.op == "placeholder"]
    results: Any = output.args[0]
    part = extract(inputs, nodes[len(inputs) :], [results[n] for n in places])
    drop_dead_code(part.graph)
    return part


def _reached(part: GraphModule) -> Reached:
    """Return for each output the inputs that it may be differentiated by."""
    *nodes, output = part.graph.nodes
    found: dict[Node, frozenset[int]] = {}
    for number, node in enumerate(nodes):
        if node.op == "placeholder":
            found[node] = frozenset({number})
            continue
        read = node.all_input_nodes
        flow = frozenset[int]().union(*(found[one] for one in read))
        found[node] = frozenset() if _ends_history(node) else flow
        if written := mutated_by(node):
            memory = frozenset[int | None](map(storage_of, written))
            for one in found:
                found[one] |= flow if storage_of(one) in memory else frozenset()
    results: Any = output.args[0]
    return tuple(found[node] for node in results)


def _ends_history(node: Node) -> bool:
    """Return whether a call, as the trace has run it, gives tensors without its arguments'
    history.
    """
    return any(map(_has_history, node.all_input_nodes)) and not _has_history(node)


def _has_history(node: Node) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(node.meta.get("val")))


# -- functions and their transforms ----------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Forward:
    """The forward of one call under grad alone, kept with its history for the backward.

    `wanted`: the inputs that may be differentiated. Without it a backward computes the forward
    again. It is not used where a level outside needs the history of the gradients too.
    """

    wanted: Places
    leaves: list[Tensor] = field(default_factory=list)
    results: tuple[Tensor, ...] = ()

    def run(self, graph: Transformable, inputs: Sequence[Any]) -> Values:
        """Return the results for plain tensors."""
        if _are_recorded(inputs):
            return graph.plain(inputs)
        given = list(inputs)
        self.leaves = [given[n].detach().requires_grad_() for n in self.wanted]
        for place, leaf in zip(self.wanted, self.leaves, strict=True):
            given[place] = leaf
        with torch.enable_grad():
            self.results = graph.plain(given)
        return tuple(result.detach() for result in self.results)

    def pull(
        self, results: Places, wanted: Places, graph: Transformable, inputs: Sequence[Any]
    ) -> Values:
        """Return the gradients for plain tensors; the last inputs are those of the results."""
        if not self.results or _are_recorded(inputs):
            return graph.plain(inputs)
        incoming = zip(results, inputs[-len(results) :], strict=True)
        pairs = [(self.results[n], gradient) for n, gradient in incoming]
        pairs = [(result, gradient) for result, gradient in pairs if result.requires_grad]
        leaves = [self.leaves[self.wanted.index(n)] for n in wanted]
        ends, gradients = zip(*pairs, strict=True) if pairs else ((), ())
        found = run_backward(ends, gradients, leaves, keep=True) if pairs else [None] * len(leaves)
        zip_ = zip(found, leaves, strict=True)
        return tuple(torch.zeros_like(leaf) if one is None else one for one, leaf in zip_)


def _are_recorded(inputs: Sequence[Any]) -> bool:
    """Return whether autograd records a call of plain tensors."""
    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in inputs)


class Transformable:
    """A function of tensors that returns a tuple of tensors, and its transforms.

    `reached`: for each result, the inputs that it may be differentiated by; None: all.
    """

    def __init__(
        self, function: AnyFunction, name: str, tag: Tag, reached: Reached | None = None
    ) -> None:
        self.function, self.name, self.tag, self.reached = function, name, tag, reached
        self.compiled = tag(function)
        self._derived: dict[Hashable, Transformable] = {}

    def _derive(self, key: Hashable, make: Callable[[], AnyFunction]) -> Transformable:
        if key not in self._derived:
            made: Any = make()
            name = f"{made.__name__} of {self.name}"
            made.__code__ = made.__code__.replace(co_qualname=name)  # for status() and warnings
            self._derived[key] = Transformable(made, name, self.tag)
        return self._derived[key]

    def plain(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results for plain tensors."""
        results: tuple[Any, ...] = self.compiled(*inputs)
        return results

    def vmap(self, in_dims: tuple[int | None, ...], randomness: str) -> Transformable:
        """Return the function over batches; the batch is dimension 0 of each result."""
        key = "vmap", in_dims, randomness
        return self._derive(key, lambda: _vmap(self.function, in_dims, randomness))

    def jvp(self, count: int, moved: Places) -> Transformable:
        """Return the function of `count` inputs, then tangents of those `moved`; it returns the
        results, then their tangents.
        """
        return self._derive(("jvp", moved), lambda: _jvp(self.function, count, moved))

    def vjp(self, count: int, wanted: Places, results: Places) -> Transformable:
        """Return the function of `count` inputs, then gradients of some results; it returns the
        gradients of the inputs `wanted`.
        """
        key = "vjp", wanted, results
        return self._derive(key, lambda: _vjp(self.function, count, wanted, results))

    def call(self, *inputs: Any, plain: Plain | None = None) -> Values:
        """Call the function under the transforms of this thread. `plain` computes it once no level
        is left.
        """
        levels = transforms_of_thread()
        if levels[-1:] == ["Jvp"]:
            moved = tuple(n for n, value in enumerate(inputs) if _has_tangent(value))
            if moved:
                return self._call_dual(inputs, moved)
        if levels == ["Grad"] and plain is None:
            wanted = tuple(n for n, v in enumerate(inputs) if getattr(v, "requires_grad", False))
            plain = Forward(wanted).run if wanted else None
        records = torch.is_grad_enabled() and grad_mode_below()
        made: Values = _Apply.apply(self, records, plain, *inputs)
        return made

    def _call_dual(self, inputs: Values, moved: Places) -> Values:
        """Compute the results and their tangents in one graph."""
        duals = {n: forward_ad.unpack_dual(inputs[n]) for n in moved}  # type: ignore[arg-type]
        primals = [duals[n].primal if n in duals else value for n, value in enumerate(inputs)]
        tangents = [duals[n].tangent for n in moved]
        made = self.jvp(len(inputs), moved).call(*primals, *tangents)
        count = len(made) // 2
        return tuple(
            forward_ad.make_dual(value, tangent) if self.reaches(n, moved, value) else value
            for n, (value, tangent) in enumerate(zip(made[:count], made[count:], strict=True))
        )

    def reaches(self, result: int, inputs: Sequence[int], value: Any) -> bool:
        """Return whether a result, with this value, may be differentiated by any of the inputs."""
        if self.reached is not None and self.reached[result].isdisjoint(inputs):
            return False
        return bool(value.dtype.is_floating_point or value.dtype.is_complex)

    def fixed(self, results: Values, inputs: Sequence[int]) -> list[Any]:
        """Return the results that are not differentiated by any of the inputs."""
        return [v for n, v in enumerate(results) if not self.reaches(n, inputs, v)]


def _has_tangent(value: object) -> bool:
    return isinstance(value, Tensor) and has_forward_gradient(value)


def _vmap(function: AnyFunction, in_dims: tuple[int | None, ...], randomness: str) -> AnyFunction:
    def vmapped(*inputs: Any) -> Any:
        return torch.func.vmap(function, in_dims, randomness=randomness)(*inputs)

    return vmapped


def _jvp(function: AnyFunction, count: int, moved: Places) -> AnyFunction:
    def with_tangents(*inputs: Any) -> Any:
        def of_moved(*primals: Any) -> Any:
            values = list(inputs[:count])
            for place, primal in zip(moved, primals, strict=True):
                values[place] = primal
            return function(*values)

        primals = tuple(inputs[place] for place in moved)
        made = torch.func.jvp(of_moved, primals, inputs[count:])
        return (*made[0], *made[1])

    return with_tangents


def _vjp(function: AnyFunction, count: int, wanted: Places, results: Places) -> AnyFunction:
    def gradients(*inputs: Any) -> Any:
        def of_wanted(*primals: Any) -> Any:
            values = list(inputs[:count])
            for place, primal in zip(wanted, primals, strict=True):
                values[place] = primal
            made = function(*values)
            return tuple(made[place] for place in results)

        made = torch.func.vjp(of_wanted, *(inputs[place] for place in wanted))
        return made[1](inputs[count:])

    return gradients


# -- calls under transforms ------------------------------------------------------------------------


class _Apply(torch.autograd.Function):
    """Calls a Transformable: (graph, records, plain, *inputs) -> results."""

    @classmethod
    def apply(cls, graph: Transformable, records: bool, plain: Plain | None, *inputs: Any) -> Any:
        """Compute the results where no level is left. `records`: the grad mode there."""
        if transforms_of_thread():
            return super().apply(graph, records, plain, *inputs)
        # A backward may run after its level has ended (vjp), with tensors of that level.
        given = [unwrap_if_dead(v) if isinstance(v, Tensor) else v for v in inputs]
        with torch.set_grad_enabled(records):
            results = graph.plain(given) if plain is None else plain(graph, given)
            # torch refuses to save an input that is a result, such as an incoming gradient.
            same = {id(value) for value in given}
            return tuple(v.view_as(v) if id(v) in same else v for v in results)

    @staticmethod
    def forward(graph: Transformable, records: bool, plain: Any, *inputs: Any) -> Any:
        raise AssertionError("no level is left, so `apply` computes the results")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.graph, _, ctx.plain, *ctx.inputs = inputs
        # Not save_for_backward(): a backward that has a Forward reads no inputs, and may follow
        # a write to one.
        ctx.versions = _versions(ctx.inputs)
        wanted = _wanted(ctx) or range(len(ctx.inputs))
        ctx.mark_non_differentiable(*ctx.graph.fixed(output, wanted))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, wanted = ctx.inputs, _wanted(ctx)
        results = tuple(n for n, gradient in enumerate(gradients) if gradient is not None)
        made: list[Any] = [None] * len(inputs)
        if results:
            given = (gradients[n] for n in results)
            kept = getattr(ctx.plain, "__self__", Forward(wanted))
            plain = partial(kept.pull, results, wanted)
            if not kept.results and _versions(inputs) != ctx.versions:
                raise RuntimeError(
                    "an input of a function compiled by jitmagic was modified by an inplace "
                    "operation before the gradient under torch.func was computed"
                )
            pull = ctx.graph.vjp(len(inputs), wanted, results)
            for place, value in zip(wanted, pull.call(*inputs, *given, plain=plain), strict=True):
                made[place] = value
        return None, None, None, *made

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        inputs, given = ctx.inputs, tangents[3:]
        moved = tuple(n for n, tangent in enumerate(given) if tangent is not None)
        push = ctx.graph.jvp(len(inputs), moved)
        made = push.call(*inputs, *(given[n] for n in moved))
        results, pushed = made[: len(made) // 2], made[len(made) // 2 :]
        pairs = enumerate(zip(results, pushed, strict=True))
        return tuple(t if ctx.graph.reaches(n, moved, v) else None for n, (v, t) in pairs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        graph, records, _, *values = inputs
        batched = graph.vmap(tuple(in_dims[3:]), info.randomness)
        return _Apply.apply(batched, records, None, *values), 0


def _versions(inputs: Sequence[Any]) -> list[int]:
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _wanted(ctx: Any) -> Places:
    return tuple(n for n, needed in enumerate(ctx.needs_input_grad[3:]) if needed)
