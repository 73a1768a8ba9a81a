"""Backward of a compiled graph as something that can be differentiated itself (create_graph=True),
or run for a batch of tangents at once (is_grads_batched).

In: the torch-level graph of a `Partition`, the inputs that `replay_inputs` names as they were then,
the tangents. Out: gradients with a history, to any order: the graph runs once more op by op under
autograd, in the modes it was traced in, and torch differentiates that. (The ATen graph would not
do: it is recorded below autograd, where detach and no_grad are gone, and decomposed into pieces.)
Only inputs that backward's saved values are computed from have to have their values; the others
are of no consequence for any gradient, so that stand-ins take their places. That keeps memory: an
input is held only where eager holds something computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.backends import cuda as attention
from torch.fx import GraphModule, Node

from ..errors import DoubleBackward, OutdatedBackward
from ..graph.nested import nodes_in
from ..graph.operators.autocast import Autocast, autocast_as, read_autocast
from ..graph.operators.raising import may_raise_on_data
from ..graph.reach import ancestors
from ..graph.recomputed import regions_of, run_checkpointed
from ..graph.regions import FunctionCall, calls_in, holding
from ..graph.symbolic.concrete import Values, spec_at
from ..spec import TensorSpec
from ..symbols.size import hint_of
from .nodes import runs_once
from .result import Partition, Result, ViewOf

__all__ = ["Replay", "ReplayInput", "drawn_from", "replay_inputs"]

# Of inputs that eager would not hold: what may be held all the same before a replay is asked for.
_LITTLE = 1 << 22  # bytes
_SHARE = 4  # or the bytes that backward saves, divided by this
_COPIED = 1 << 16  # bytes that each call may have to copy first

Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """An input whose value a replay needs. `saved`: its place among what backward saves, or -1.
    `large`: it is held for a replay alone and big, so not before one was asked for. `copied`: the
    graph writes to it, or whoever calls may do so later, as eager does not hold it; so that it is a
    copy that is held.
    """

    index: int
    saved: int
    large: bool
    copied: bool


def replay_inputs(
    partition: Partition, graph: GraphModule | None = None
) -> tuple[ReplayInput, ...]:
    """The inputs that what backward reads, and what is drawn on the way, are computed from; also
    what the program's own backwards may read in the torch-level graph.
    """
    if partition.backward is None:
        return ()
    holders = _placeholders(partition.forward)
    needed, later = ancestors(_roots(partition)), list[int]()
    if graph is not None:
        read = ancestors(_read_by_originals(graph))
        needed |= {holders[i] for i, node in enumerate(_placeholders(graph)) if node in read}
        later = _read_twice(graph)
        if _bytes(holders, later) > _COPIED:  # a write to them before the backward is an error
            later = []
    # One that is written to is saved as it is then, a replay begins with what it was before.
    changing = {*partition.mutated_inputs, *later}
    saved = tuple(i for i in partition.saved_inputs if i not in changing)
    apart = [i for i, node in enumerate(holders) if node in needed and i not in saved]
    written = [i for i in apart if i in partition.mutated_inputs]
    passing = [i for i in apart if i not in written and not _is_held(_spec(holders[i]))]
    large: set[int] = set()
    if _bytes(holders, passing) > max(_LITTLE, _saved(partition) // _SHARE):
        large.update(passing)
    if _bytes(holders, written) > _COPIED:
        large.update(written)
    copied = {*written, *later, *(passing if _bytes(holders, passing) <= _COPIED else ())}
    places = {i: n for n, i in enumerate(partition.saved_inputs) if i in saved}
    return tuple(
        ReplayInput(i, places.get(i, -1), i in large, i in copied) for i in sorted((*saved, *apart))
    )


def _read_by_originals(graph: GraphModule) -> list[Node]:
    """Return what autograd functions have saved or left on `ctx`, and what enters a region that is
    computed again."""
    calls = [node for node, call in calls_in(graph) if call.original is not None]
    left = [node for call in calls for node in nodes_in((call.args[2], call.args[4]))]
    return left + [node for node in graph.graph.nodes if "enters" in node.meta]


def _read_twice(graph: GraphModule) -> list[int]:
    """The inputs that a forward reads and the backward of an autograd function as well, which did
    not save them: it reads them as they are then.
    """
    found = []
    for place, node in enumerate(_placeholders(graph)):
        calls = [user for user in node.users if isinstance(user.target, FunctionCall)]
        captured = [call for call in calls if node in nodes_in(call.args[3])]
        if captured and not all(_is_later(node, user) for user in node.users):
            found.append(place)
    return found


def _is_later(node: Node, user: Node) -> bool:
    """Return whether the user is the call of an autograd function that computes nothing from the
    node.
    """
    return isinstance(user.target, FunctionCall) and node not in nodes_in(user.args[1:3])


def _is_held(spec: TensorSpec) -> bool:
    """Whoever computes gradients for it holds it anyway: a parameter."""
    return spec.is_leaf and spec.requires_grad


def drawn_from(partition: Partition) -> tuple[str, ...]:
    """The devices whose random generators a differentiable forward draws from."""
    if partition.backward is None:
        return ()
    draws = [node for node in partition.forward.graph.nodes if _may_draw(node)]
    return tuple(dict.fromkeys(str(_first_spec(node).device) for node in draws))


def _may_draw(node: Node) -> bool:
    return runs_once(node) and bool(node.users or node.all_input_nodes)


class Replay:
    """Called with the values of `replay_inputs` and the tangents, None for each that is missing;
    the result is called for the gradients, once random generators are where they were.
    """

    def __init__(
        self,
        graph: GraphModule | None,
        partition: Partition,
        tell: Callable[[bool], None] | None = None,
        like: GraphModule | None = None,
    ) -> None:
        """Made in the modes that the graph was traced in. `tell` is called before each
        replay: whether it is one because what the backward relies on has changed.
        `like`: the same graph at other sizes, where there is none yet.
        """
        self._graph: Callable[[], GraphModule | None] = lambda: graph
        self._values: Values = {}  # of the symbols of its sizes
        self._tell = tell
        self._needed = replay_inputs(partition, graph if like is None else like)
        self._inputs = tuple(_spec(node) for node in _placeholders(partition.forward))
        self._results = _results(partition)
        self._grad_inputs = partition.grad_inputs
        self._modes = _Modes.now()

    def at(self, values: Values, graph: Callable[[], GraphModule]) -> Replay:
        """The replay where the symbols have these values, of a graph that is made when needed."""
        made = copy(self)
        made._values, made._graph = values, graph
        return made

    def __call__(
        self, values: Tensors, tangents: Tensors, held: tuple[Any, ...] | None = None
    ) -> Callable[[], Tensors]:
        """Run the graph; the result computes the gradients. The two are apart as the graph draws
        what it drew in the call, and backwards that the program wrote draw new numbers. `held`: of
        the call, where autograd functions run these.
        """
        if self._tell is not None:
            self._tell(held is not None)
        with torch.enable_grad():
            inputs = self._take(values, held is not None)
        with_tangents = [n for n, tangent in enumerate(tangents) if tangent is not None]
        outputs = self._run(inputs, held)
        results = tuple(self._result(outputs, n) for n in with_tangents)
        given = tuple(tangents[n] for n in with_tangents)
        return partial(self._gradients, results, given, inputs)

    def _gradients(
        self,
        results: Sequence[torch.Tensor],
        tangents: Tensors,
        inputs: Sequence[torch.Tensor],
    ) -> Tensors:
        differentiable = torch.is_grad_enabled()
        # What torch.autograd.grad calls, which imports sympy first (0.3 s).
        gradients: Tensors = torch.autograd.Variable._execution_engine.run_backward(
            results,
            tangents,
            differentiable,  # keep_graph
            differentiable,  # create_graph
            tuple(inputs[i] for i in self._grad_inputs),
            allow_unreachable=True,
            accumulate_grad=False,
        )
        return gradients

    def _take(self, values: Tensors, is_outdated: bool) -> list[torch.Tensor]:
        """The graph's inputs. Each is a tensor of its own, so that a gradient for it has nothing of
        what flows to it through another input that was computed from it.
        """
        spare = self._read_later() if is_outdated else set[int]()
        pairs = zip(self._needed, values, strict=True)
        lost = [needed for needed, value in pairs if value is None and needed.index not in spare]
        if lost and is_outdated:
            raise OutdatedBackward(len(lost))
        if lost:
            size = sum(hint_of(self._inputs[needed.index].nbytes) for needed in lost)
            raise DoubleBackward(
                f"{len(lost)} of its inputs ({size / 1e6:.1f} MB) are not kept for a backward\n"
                "  hint: run it again, from now on they are kept (inference tensors cannot be)"
            )
        known = {
            needed.index: value.clone() if needed.copied else value.view_as(value)
            for needed, value in zip(self._needed, values, strict=True)
            if value is not None
        }
        return [
            known[i] if i in known else _stand_in(spec_at(spec, self._values))
            for i, spec in enumerate(self._inputs)
        ]

    def _read_later(self) -> set[int]:
        """The inputs that no call but the backwards of autograd functions reads: those have them
        from what the call holds, as they are now.
        """
        graph = self._graph()
        holders = [] if graph is None else _placeholders(graph)
        return {i for i, node in enumerate(holders) if all(_is_later(node, u) for u in node.users)}

    def _run(
        self, inputs: Sequence[torch.Tensor], held: tuple[Any, ...] | None
    ) -> Sequence[torch.Tensor]:
        graph = self._graph()
        if graph is None:
            raise DoubleBackward("its graph is not known")
        with self._modes.again(), holding(held, outdated=True):
            outputs: Sequence[torch.Tensor]
            if held is not None and regions_of(graph):
                outputs = run_checkpointed(graph, inputs, held)
            else:
                outputs = graph.forward(*inputs)
        return outputs

    def _result(self, outputs: Sequence[torch.Tensor], tangent: int) -> torch.Tensor:
        place, traced_spec = self._results[tangent]
        spec = spec_at(traced_spec, self._values)
        found = None if place is None else outputs[place.index]
        if found is not None and place is not None and place.base:
            found = found._base
        if found is None or (found.shape, found.dtype, found.device) != (
            torch.Size(spec.shape),
            spec.dtype,
            spec.device,
        ):
            raise DoubleBackward("run again, it does not give what it gave then")
        return found


@dataclass(frozen=True, slots=True)
class _Modes:
    """What decides what torch functions do, beside their arguments."""

    grad: bool
    autocast: Autocast
    attention: tuple[bool, ...]  # its kernels; some of them cannot be differentiated twice

    @staticmethod
    def now() -> _Modes:
        kernels = tuple(bool(enabled()) for enabled, _ in _ATTENTION)
        return _Modes(torch.is_grad_enabled(), read_autocast(), kernels)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A block that runs in these modes."""
        before = _Modes.now().attention
        with torch.set_grad_enabled(self.grad), autocast_as(self.autocast):
            try:
                _choose_attention(before, self.attention)
                yield
            finally:
                _choose_attention(self.attention, before)


def _choose_attention(before: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
    for (_, enable), was, on in zip(_ATTENTION, before, wanted, strict=True):
        if was != on:  # these are the whole process's
            enable(on)


_ATTENTION: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (attention.flash_sdp_enabled, attention.enable_flash_sdp),
    (attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp),
    (attention.math_sdp_enabled, attention.enable_math_sdp),
    (attention.cudnn_sdp_enabled, attention.enable_cudnn_sdp),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a result is: the output of that index, or the tensor that this output is a view of."""

    index: int
    base: bool


def _results(partition: Partition) -> list[tuple[_Place | None, TensorSpec]]:
    """Per tangent: where the torch-level graph returns its result, and what it is like."""
    flat: Any = next(n for n in reversed(partition.forward.graph.nodes) if n.op == "output").args[0]
    places: dict[int, _Place] = {}
    for index, output in enumerate(partition.outputs):
        if isinstance(output, ViewOf) and output.result is not None:
            places.setdefault(output.result, _Place(index, True))
    for index, output in enumerate(partition.outputs):
        if isinstance(output, Result):
            places[output.index] = _Place(index, False)
    return [(places.get(r), _spec(flat[r])) for r in partition.tangents]


def _placeholders(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _roots(partition: Partition) -> list[Node]:
    """Of the forward graph: what must have its value for the gradients to have theirs."""
    nodes = list(partition.forward.graph.nodes)
    flat: Any = nodes[-1].args[0]
    roots: list[Node] = [_placeholders(partition.forward)[i] for i in partition.saved_inputs]
    roots += [flat[i] for i in partition.saved_results]
    roots += flat[partition.results :]
    for node in nodes:
        if runs_once(node):
            roots += node.all_input_nodes
        elif may_raise_on_data(node):
            roots += _looked_at(node)
    return roots


def _looked_at(node: Node) -> list[Node]:
    """Indices where there are any: else the numbers themselves can be what it refuses."""
    inputs = node.all_input_nodes
    return [n for n in inputs if not _first_spec(n).dtype.is_floating_point] or inputs


def _stand_in(spec: TensorSpec) -> torch.Tensor:
    """A tensor for which nothing but what `spec` says matters. 0 is an index, 1 has a logarithm."""
    floats = spec.dtype.is_floating_point or spec.dtype.is_complex
    extents = zip(spec.shape, spec.stride, strict=True)
    span = 1 + sum((extent - 1) * stride for extent, stride in extents) if spec.nbytes else 0
    memory = torch.full((span,), int(floats), dtype=spec.dtype, device=spec.device)
    return memory.as_strided(spec.shape, spec.stride).requires_grad_(spec.requires_grad)


def _saved(partition: Partition) -> int:
    """Bytes that backward holds."""
    assert partition.backward is not None
    holders = _placeholders(partition.backward)
    return _bytes(holders, range(len(holders) - len(partition.tangents)))


def _bytes(nodes: Sequence[Node], chosen: Iterable[int]) -> int:
    return sum(hint_of(_spec(nodes[i]).nbytes) for i in chosen)


def _spec(node: Node) -> TensorSpec:
    spec: TensorSpec = node.meta["spec"]
    return spec


def _first_spec(node: Node) -> TensorSpec:
    """Of an operation with several results: of one of them, or of what it reads."""
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        return spec
    return _first_spec(next(iter(node.users), None) or node.all_input_nodes[0])
