"""Replays a compiled graph op by op for double backward and batched gradients.

Serves backwards that are differentiated (create_graph=True) or run for a batch of tangents
(is_grads_batched). In: the torch-level graph of a `Partition`, the values of `replay_inputs` at the
call, the tangents. Out: gradients with a history, to any order: the graph runs again under
autograd, in the modes it was traced in, and torch differentiates that. The ATen graph cannot be
used: it is recorded below autograd, so it has no detach and no_grad. Only inputs from which
backward's saved values are computed need their values; stand-ins replace the others, which affect
no gradient. That saves memory: an input is held only if eager holds something computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial

import torch
from torch.backends import cuda as attention
from torch.fx import GraphModule, Node

from ..compat.autograd import run_backward
from ..errors import DoubleBackward, OutdatedBackward
from ..graph.autocast_mode import Autocast, autocast_as, read_autocast
from ..graph.nested import nodes_in
from ..graph.operators.raising import may_raise_on_data
from ..graph.reach import ancestors
from ..graph.symbolic.concrete import Values, spec_at
from ..graph.targets.recomputed import regions_of, run_checkpointed
from ..graph.targets.regions import FunctionCall, calls_in, holding
from ..lazy_dataclass import dataclass
from ..spec import TensorSpec
from ..symbols.size import hint_of
from .nodes import node_spec, placeholders, result_nodes, runs_once
from .result import Partition, Result, ViewOf

__all__ = [
    "Replay",
    "ReplayInput",
    "ReplayModes",
    "ReplayState",
    "ResultPlace",
    "generator_devices",
    "replay_inputs",
]

# Limits for holding inputs that eager would free, before a replay has been requested.
_SMALL = 1 << 22  # bytes
_SHARE = 4  # or, if larger, the bytes that backward saves divided by this
_COPIED = 1 << 16  # bytes that a call may copy in case of a later replay

Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """An input whose value a replay needs. `saved` is its position among backward's saved values,
    or -1. `large` ones are held only after a first replay was requested. `copied` ones are held as
    a copy: the graph writes to it, or the caller may do so later, because eager does not hold it.
    """

    index: int
    saved: int
    large: bool
    copied: bool


def replay_inputs(
    partition: Partition, graph: GraphModule | None = None
) -> tuple[ReplayInput, ...]:
    """Return the inputs that backward's saved values and random draws depend on. With `graph`, add
    those that user-defined backwards may read.
    """
    if partition.backward is None:
        return ()
    holders = placeholders(partition.forward)
    needed, later = ancestors(_roots(partition)), list[int]()
    if graph is not None:
        read = ancestors(_read_by_user_backwards(graph))
        needed |= {holders[i] for i, node in enumerate(placeholders(graph)) if node in read}
        later = _read_in_both(graph)
        if _bytes(holders, later) > _COPIED:  # not copied: a write before the backward is an error
            later = []
    # An input that is written to is saved after the write; a replay starts from its old value.
    changing = {*partition.mutated_inputs, *later}
    saved = tuple(i for i in partition.saved_inputs if i not in changing)
    apart = [i for i, node in enumerate(holders) if node in needed and i not in saved]
    written = [i for i in apart if i in partition.mutated_inputs]
    passing = [i for i in apart if i not in written and not _is_kept_alive(node_spec(holders[i]))]
    large: set[int] = set()
    if _bytes(holders, passing) > max(_SMALL, _saved(partition) // _SHARE):
        large.update(passing)
    if _bytes(holders, written) > _COPIED:
        large.update(written)
    copied = {*written, *later, *(passing if _bytes(holders, passing) <= _COPIED else ())}
    places = {i: n for n, i in enumerate(partition.saved_inputs) if i in saved}
    return tuple(
        ReplayInput(i, places.get(i, -1), i in large, i in copied) for i in sorted((*saved, *apart))
    )


def _read_by_user_backwards(graph: GraphModule) -> list[Node]:
    """Return what autograd functions saved or left on `ctx`, and the inputs of checkpointed
    regions.
    """
    calls = [node for node, call in calls_in(graph) if call.original is not None]
    left = [node for call in calls for node in nodes_in((call.args[2], call.args[4]))]
    return left + [node for node in graph.graph.nodes if "enters" in node.meta]


def _read_in_both(graph: GraphModule) -> list[int]:
    """Return inputs read by forward and by the backward of an autograd function that did not save
    them. Such a backward reads their values at the time that it runs.
    """
    found = []
    for place, node in enumerate(placeholders(graph)):
        calls = [user for user in node.users if isinstance(user.target, FunctionCall)]
        captured = [call for call in calls if node in nodes_in(call.args[3])]
        if captured and not all(_is_backward_only(node, user) for user in node.users):
            found.append(place)
    return found


def _is_backward_only(node: Node, user: Node) -> bool:
    """Return whether the user is an autograd function's call that computes nothing from the
    node.
    """
    return isinstance(user.target, FunctionCall) and node not in nodes_in(user.args[1:3])


def _is_kept_alive(spec: TensorSpec) -> bool:
    """Return whether it is a parameter, which the caller keeps alive to get its gradient."""
    return spec.is_leaf and spec.requires_grad


def generator_devices(partition: Partition) -> tuple[str, ...]:
    """Return the devices whose random generators a differentiable forward draws from."""
    if partition.backward is None:
        return ()
    draws = [node for node in partition.forward.graph.nodes if _may_draw(node)]
    return tuple(dict.fromkeys(str(_first_spec(node).device) for node in draws))


def _may_draw(node: Node) -> bool:
    return runs_once(node) and bool(node.users or node.all_input_nodes)


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Position of a result: the output at `index`, or its base if `base` is set."""

    index: int
    base: bool


@dataclass(frozen=True, slots=True)
class ReplayModes:
    """The modes that change results of torch functions."""

    grad: bool
    autocast: Autocast
    attention: tuple[bool, ...]  # enabled kernels; some cannot be differentiated twice

    @staticmethod
    def now() -> ReplayModes:
        # A replay under another attention kernel might not be differentiable again.
        kernels = tuple(bool(enabled()) for enabled, _ in _ATTENTION)
        return ReplayModes(torch.is_grad_enabled(), read_autocast(), kernels)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Enter these modes and restore the previous ones."""
        before = ReplayModes.now().attention
        with torch.set_grad_enabled(self.grad), autocast_as(self.autocast):
            try:
                _choose_attention(before, self.attention)
                yield
            finally:
                _choose_attention(self.attention, before)


@dataclass(frozen=True, slots=True)
class ReplayState:
    """Describes a compiled graph for its replay, as data. `results` are, for each tangent, the
    place of its result among the torch-level outputs, and its spec.
    """

    needed: tuple[ReplayInput, ...]
    inputs: tuple[TensorSpec, ...]
    results: tuple[tuple[ResultPlace | None, TensorSpec], ...]
    grad_inputs: tuple[int, ...]
    modes: ReplayModes


class Replay:
    """A differentiable run of the graph. Called with the values of `replay_inputs` and the tangents
    (None if missing), it returns a function that computes the gradients; the caller restores the
    random generators in between.
    """

    def __init__(
        self,
        graph: GraphModule | None,
        partition: Partition,
        tell: Callable[[bool], None] | None = None,
        like: GraphModule | None = None,
    ) -> None:
        """Construct it in the modes that the graph was traced in. `tell` is called before each
        replay with True if facts that the backward relies on have changed. `like` is the same graph
        at other sizes, used if `graph` does not exist yet.
        """
        self.graph: Callable[[], GraphModule | None] = lambda: graph
        self._values: Values = {}  # of the symbolic sizes
        self._tell = tell
        self.state = ReplayState(
            needed=replay_inputs(partition, graph if like is None else like),
            inputs=tuple(node_spec(node) for node in placeholders(partition.forward)),
            results=tuple(_results(partition)),
            grad_inputs=partition.grad_inputs,
            modes=ReplayModes.now(),
        )

    @classmethod
    def of_state(
        cls,
        graph: Callable[[], GraphModule | None],
        state: ReplayState,
        tell: Callable[[bool], None],
    ) -> Replay:
        """Make a replay of its state, with a graph that is read when needed."""
        made = cls.__new__(cls)
        made.graph, made._values, made._tell, made.state = graph, {}, tell, state
        return made

    def at(self, values: Values, graph: Callable[[], GraphModule]) -> Replay:
        """Return the replay at these symbol values, with a graph that is built when needed."""
        made = copy(self)
        made._values, made.graph = values, graph
        return made

    def __call__(
        self, values: Tensors, tangents: Tensors, held: tuple[object, ...] | None = None
    ) -> Callable[[], Tensors]:
        """Run the graph and return a function that computes the gradients. The graph repeats the
        draws of the original call, while user-defined backwards draw new numbers, hence two steps.
        `held` holds the call's autograd function objects, whose backwards then run.
        """
        if self._tell is not None:
            self._tell(held is not None)
        # The backward may be called under no_grad; the replay needs a history.
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
        wanted = [inputs[i] for i in self.state.grad_inputs]
        gradients: Tensors = run_backward(
            results, tangents, wanted, keep=differentiable, create=differentiable
        )
        return gradients

    def _take(self, values: Tensors, is_outdated: bool) -> list[torch.Tensor]:
        """Return the graph's inputs as separate tensors. The gradient of one then excludes what
        flows to it through another input that was computed from it.
        """
        spare = self._read_in_backward() if is_outdated else set[int]()
        pairs = zip(self.state.needed, values, strict=True)
        missing = [needed for needed, value in pairs if value is None and needed.index not in spare]
        if missing and is_outdated:
            raise OutdatedBackward(len(missing))
        if missing:
            size = sum(hint_of(self.state.inputs[needed.index].nbytes) for needed in missing)
            raise DoubleBackward(
                f"{len(missing)} of its inputs ({size / 1e6:.1f} MB) are not saved for that\n"
                "  hint: run it again: from now on they are saved (inference tensors cannot be)"
            )
        known = {
            needed.index: value.clone() if needed.copied else value.view_as(value)
            for needed, value in zip(self.state.needed, values, strict=True)
            if value is not None
        }
        return [
            known[i] if i in known else _stand_in(spec_at(spec, self._values))
            for i, spec in enumerate(self.state.inputs)
        ]

    def _read_in_backward(self) -> set[int]:
        """Return the inputs that only backwards of autograd functions read. Those read the tensors
        that the call holds, at their current values.
        """
        graph = self.graph()
        holders = [] if graph is None else placeholders(graph)
        return {
            i
            for i, node in enumerate(holders)
            if all(_is_backward_only(node, u) for u in node.users)
        }

    def _run(
        self, inputs: Sequence[torch.Tensor], held: tuple[object, ...] | None
    ) -> Sequence[torch.Tensor]:
        graph = self.graph()
        if graph is None:
            raise DoubleBackward("its graph is not available")
        with self.state.modes.again(), holding(held, outdated=True):
            outputs: Sequence[torch.Tensor]
            if held is not None and regions_of(graph):
                outputs = run_checkpointed(graph, inputs, held)
            else:
                outputs = graph.forward(*inputs)
        return outputs

    def _result(self, outputs: Sequence[torch.Tensor], tangent: int) -> torch.Tensor:
        place, traced_spec = self.state.results[tangent]
        spec = spec_at(traced_spec, self._values)
        found = None if place is None else outputs[place.index]
        if found is not None and place is not None and place.base:
            found = found._base
        if found is None or (found.shape, found.dtype, found.device) != (
            torch.Size(spec.shape),
            spec.dtype,
            spec.device,
        ):
            raise DoubleBackward("a second run of the graph gives other results")
        return found


def _choose_attention(before: tuple[bool, ...], wanted: tuple[bool, ...]) -> None:
    for (_, enable), was, on in zip(_ATTENTION, before, wanted, strict=True):
        if was != on:  # these flags are process-wide
            enable(on)


_ATTENTION: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (attention.flash_sdp_enabled, attention.enable_flash_sdp),
    (attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp),
    (attention.math_sdp_enabled, attention.enable_math_sdp),
    (attention.cudnn_sdp_enabled, attention.enable_cudnn_sdp),
)


def _results(partition: Partition) -> list[tuple[ResultPlace | None, TensorSpec]]:
    """Return, per tangent, the position of its result among the torch-level outputs, and its
    spec.
    """
    flat = result_nodes(partition.forward)
    places: dict[int, ResultPlace] = {}
    for index, output in enumerate(partition.outputs):
        if isinstance(output, ViewOf) and output.result is not None:
            places.setdefault(output.result, ResultPlace(index, True))
    for index, output in enumerate(partition.outputs):
        if isinstance(output, Result):
            places[output.index] = ResultPlace(index, False)
    return [(places.get(r), node_spec(flat[r])) for r in partition.tangents]


def _roots(partition: Partition) -> list[Node]:
    """Return the forward nodes that need real values for the gradients to be correct."""
    flat = result_nodes(partition.forward)
    roots = [placeholders(partition.forward)[i] for i in partition.saved_inputs]
    roots += [flat[i] for i in partition.saved_results]
    roots += flat[partition.results :]
    for node in partition.forward.graph.nodes:
        if runs_once(node):
            roots += node.all_input_nodes
        elif may_raise_on_data(node):
            roots += _checked_operands(node)
    return roots


def _checked_operands(node: Node) -> list[Node]:
    """Return the index operands, whose values the kernel checks; without any, all operands."""
    inputs = node.all_input_nodes
    return [n for n in inputs if not _first_spec(n).dtype.is_floating_point] or inputs


def _stand_in(spec: TensorSpec) -> torch.Tensor:
    """Return a tensor with the spec's layout filled with a legal value: index 0, or 1.0 for log."""
    floats = spec.dtype.is_floating_point or spec.dtype.is_complex
    extents = zip(spec.shape, spec.stride, strict=True)
    span = 1 + sum((extent - 1) * stride for extent, stride in extents) if spec.nbytes else 0
    memory = torch.full((span,), int(floats), dtype=spec.dtype, device=spec.device)
    return memory.as_strided(spec.shape, spec.stride).requires_grad_(spec.requires_grad)


def _saved(partition: Partition) -> int:
    """Return the bytes that backward holds."""
    assert partition.backward is not None
    holders = placeholders(partition.backward)
    return _bytes(holders, range(len(holders) - len(partition.tangents)))


def _bytes(nodes: Sequence[Node], chosen: Iterable[int]) -> int:
    return sum(hint_of(node_spec(nodes[i]).nbytes) for i in chosen)


def _first_spec(node: Node) -> TensorSpec:
    """Return the spec of one result, or of an operand if there is none."""
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        return spec
    return _first_spec(next(iter(node.users), None) or node.all_input_nodes[0])
