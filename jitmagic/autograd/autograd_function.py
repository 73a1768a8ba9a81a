"""Combines the forward and backward executables into one function of the graph's inputs.

In: a `Partition`, the forward executable (inputs -> (*results, *saved)) and a factory for the
executable ((*saved, *tangents) -> gradients) of a backward graph. Out: a callable (*inputs) ->
tuple of the user's outputs.

If there is nothing to add, that is the forward itself, except under autocast: the trace has applied
the casts, so autocast must be off while the forward runs. Otherwise a native `AutogradFunction`
(extensions/runtime/autograd.cpp) attaches an autograd Node to results that require grad (several if
their histories differ: extensions/runtime/split.h). It also replays what is not in the graph: views
of inputs and results, version counters. The backward executable is built when a backward first
runs, in any thread, once for each set of missing tangents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch.fx import GraphModule

from ..compat.modes import BelowViewTracking
from ..construction import made_by, nothing
from ..errors import CompileFailed, DoubleBackward
from ..extension import runtime_module
from ..graph.targets.recomputed import check_reentrant, regions_of
from ..graph.targets.regions import calls_in
from ..protocols import Protocol
from ..spec import TensorSpec, has_loose_strides
from ..symbols.expr import Expr
from ..symbols.size_programs import SizeCode
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable, OpOverload
from .backward_graphs import backward_without, freed_parts, stages_of, tangent_nodes
from .nodes import flat_outputs, node_spec, placeholders
from .replay import Replay, generator_devices, replay_inputs
from .result import (
    AliasStep,
    FromInput,
    MakeLeaf,
    Output,
    Partition,
    Result,
    VersionBump,
    ViewOf,
    ViewReplay,
)

__all__ = [
    "BackwardCache",
    "SizedAutogradFunction",
    "SizedBackwardCache",
    "differentiable",
    "differentiable_template",
    "fx_executable",
    "make_callable",
]

_VIEW, _DATA, _BUMP, _LEAF = range(4)  # enum AliasStep::Kind


def make_callable(
    partition: Partition,
    forward: Executable,
    backward: BackwardCache | Callable[[GraphModule], Executable] | None = None,
    source: GraphModule | None = None,
    tell: Callable[[bool], None] | None = None,
) -> Executable:
    """Build the callable. `backward` makes the executable of a backward graph. `source` is the
    torch-level graph, which a double backward runs; `tell` is called before that, to warn.
    """
    if _needs_nothing(partition):
        return forward
    if not isinstance(backward, BackwardCache):
        backward = BackwardCache.of(backward or fx_executable, partition)
    run = forward if _computes(partition) else None
    replay = Replay(source, partition, tell)
    facts, absent = _described(partition, source), tuple(_skippable_specs(partition))
    return differentiable(run, backward, replay, facts, absent)


def differentiable(
    run: Executable | None,
    backward: BackwardCache,
    replay: Replay,
    facts: dict[str, Any],
    absent: tuple[TensorSpec, ...],
) -> Executable:
    """Return the native function of a forward and its backward. `facts` is the signature
    (extensions/runtime/signature.cpp); `absent`: the specs of saved values, if a backward may skip
    some.
    """
    signature = {**facts, "absent": _stand_ins(absent)}
    made: Executable = runtime_module().AutogradFunction(
        run, backward, replay, signature, CompileFailed, DoubleBackward
    )
    if facts["checks"]:
        return made  # they are live functions
    return made_by(made, "differentiable", run, backward, replay, facts, absent)


def _needs_nothing(partition: Partition) -> bool:
    """Return whether the forward executable alone suffices. Under autocast it does not: its ATen
    calls would be cast a second time.
    """
    casting = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return _is_plain(partition) and not casting


class SizedAutogradFunction:
    """`make_callable` of a partition with Sizes, once for all values of their symbols."""

    __slots__ = ("_computes", "_graph", "_needs_nothing", "_partition", "_replay", "_symbols")

    def __init__(
        self,
        partition: Partition,
        symbols: Sequence[Symbol],
        graph: GraphModule,
        tell: Callable[[bool], None],
    ) -> None:
        """Size tuples list values in the order of `symbols`; `graph` is the torch-level graph."""
        self._needs_nothing = _needs_nothing(partition)
        self._partition, self._symbols = partition, tuple(symbols)
        self._computes, self._graph = _computes(partition), graph
        self._replay = Replay(None, partition, tell, graph)

    def template(
        self,
        forward: object,
        resolve: SizedBackwardCache,
    ) -> Any:
        """Return the callable for all values. `forward` serves all values or is looked up per size
        tuple. `resolve` returns the factory of partial backwards for a size tuple.
        """
        if self._needs_nothing:
            return forward
        run = forward if self._computes else None
        facts = _described(self._partition, self._graph)
        absent = tuple(_skippable_specs(self._partition))
        return differentiable_template(run, resolve, self._replay, facts, absent, self._symbols)


class SizedBackwardCache(Protocol):
    """Returns the backward for each size tuple, without tangents that are missing."""

    def __call__(self, missing: tuple[int, ...]) -> Any: ...

    def source(self, values: tuple[int, ...]) -> GraphModule:
        """Return the torch-level graph at these sizes."""


def differentiable_template(
    run: object,
    resolve: SizedBackwardCache,
    replay: Replay,
    facts: dict[str, Any],
    absent: tuple[TensorSpec, ...],
    symbols: tuple[Symbol, ...],
) -> Any:
    """Return `differentiable` for all values of the symbols, with Sizes in `facts` and `absent`."""
    code = SizeCode(len(symbols))
    code.set_symbols(symbols)
    sized = code.with_registers((facts["tangents"], facts["aliasing"], _stand_ins(absent)))

    def replay_at(values: tuple[int, ...]) -> Replay:
        known = dict[Expr, int](zip(symbols, values, strict=True))
        return replay.at(known, lambda: resolve.source(values))

    made = runtime_module().AutogradTemplate(
        run, resolve, replay_at, facts, sized, code.program(), CompileFailed, DoubleBackward
    )
    if facts["checks"]:
        return made  # they are live functions
    given = (run, resolve, replay, facts, absent, symbols)
    return made_by(made, "differentiable_template", *given)


def _is_plain(partition: Partition) -> bool:
    """Return whether the executable's results are the user's outputs unchanged."""
    if partition.mutated_inputs or partition.tangents or partition.aliasing:
        return False
    plain = tuple(Result(i, False) for i in range(partition.results))
    return partition.outputs == plain


def _computes(partition: Partition) -> bool:
    return any(node.op == "call_function" for node in partition.forward.graph.nodes)


class BackwardCache:
    """Calls the factory once per set of missing tangents, also if threads run their first backward
    at the same time.

    graph: returns the whole backward graph, or None     tangents: how many it takes
    made: the executables so far     on_change: called after each new one, e.g. to write it
    stored: functions that make executables which another process has compiled
    """

    __slots__ = (
        *("__weakref__", "_factory", "_lock", "graph", "made", "on_change", "stored", "tangents"),
    )

    def __init__(
        self,
        factory: Callable[[GraphModule], Executable],
        graph: Callable[[], GraphModule | None],
        tangents: int,
    ) -> None:
        self._factory, self.graph, self.tangents = factory, graph, tangents
        self._lock = Lock()
        self.made: dict[tuple[int, ...], Executable] = {}
        self.stored: Mapping[tuple[int, ...], Callable[[], Executable]] = {}
        self.on_change: Callable[[], None] = nothing

    @classmethod
    def of(
        cls, factory: Callable[[GraphModule], Executable], partition: Partition
    ) -> BackwardCache:
        """Wrap a factory that takes the backward graph reduced to the tangents that are given."""
        return cls(factory, lambda: partition.backward, len(partition.tangents))

    @property
    def is_compiled(self) -> bool:
        """Return whether the factory has been called."""
        return bool(self.made)

    def __call__(self, missing: tuple[int, ...] = ()) -> Executable:
        """Return the executable; `missing` are positions of tangents that are not given."""
        with self._lock:
            found = self.made.get(missing)
            if found is None:
                stored = self.stored.get(missing)
                found = self.made[missing] = self.make(missing) if stored is None else stored()
                if stored is None:
                    self.on_change()
        return found

    def known(self) -> dict[tuple[int, ...], Executable]:
        """Return the executables, with those that only another process has used so far."""
        rest = self.stored.keys() - self.made.keys()
        return {**self.made, **{missing: self.stored[missing]() for missing in rest}}

    def make(self, missing: tuple[int, ...]) -> Executable:
        """Return a new executable."""
        graph = self.graph()
        if graph is None:
            raise CompileFailed("there is no backward")
        return self._factory(backward_without(graph, self.tangents, missing))


def _described(partition: Partition, graph: GraphModule | None) -> dict[str, Any]:
    """Return the Partition as tuples of ints or Sizes, with the checks of its backward."""
    inputs = len(placeholders(partition.forward))
    layouts = [node_spec(node) for node in tangent_nodes(partition)]
    return {
        "inputs": inputs,
        "results": partition.results,
        "intermediates": partition.saved_intermediates,
        "saved_inputs": partition.saved_inputs,
        "saved_results": partition.saved_results,
        "grad_inputs": partition.grad_inputs,
        "mutated": partition.mutated_inputs,
        "aliasing": tuple(_alias_step(step) for step in partition.aliasing),
        "outputs": tuple(_place(output, inputs) for output in partition.outputs),
        "tangents": tuple(
            (index, spec.shape, spec.stride)
            for index, spec in zip(partition.tangents, layouts, strict=True)
        ),
        "reach": partition.reach,
        "stages": stages_of(partition.backward),
        "freed": freed_parts(partition),
        "replayed": tuple(
            (n.index, n.saved, int(n.large), int(n.copied)) for n in replay_inputs(partition, graph)
        ),
        "checks": _checks(graph),
        "draws": generator_devices(partition),
    }


def _checks(graph: GraphModule | None) -> tuple[Callable[..., bool], ...]:
    """Return the functions that check the guards of user-defined backwards."""
    if graph is None:
        return ()
    calls, regions = [call.original for _, call in calls_in(graph)], regions_of(graph)
    checks: list[Callable[..., bool] | None] = [one.holds for one in calls if one is not None]
    checks += [
        partial(check_reentrant, one.holds) if one.is_reentrant else one.holds for one in regions
    ]
    return tuple(check for check in checks if check is not None)


def _skippable_specs(partition: Partition) -> list[TensorSpec]:
    """Return specs of saved values that some backward skips, or [] if each backward reads all."""
    if partition.backward is None:
        return []
    nodes = placeholders(partition.backward)
    # The placeholders of a backward graph are the saved values, then the tangents.
    holders = nodes[: len(nodes) - len(partition.tangents)]
    everything = (tuple(range(len(partition.tangents))), tuple(range(len(holders))))
    if not holders or freed_parts(partition) == (everything,):
        return []
    return [node_spec(node) for node in holders]


def _stand_ins(
    specs: Sequence[TensorSpec],
) -> tuple[tuple[torch.Tensor, tuple[int, ...]], ...]:
    """Return a one-element tensor and a shape for each saved value that a backward does not
    read.
    """
    # Autograd cannot save inference tensors.
    with torch.inference_mode(False), torch.no_grad():
        elements = [torch.zeros((), dtype=spec.dtype, device=spec.device) for spec in specs]
    # One element, expanded natively: the stand-in for a saved activation costs no memory of its
    # size.
    return tuple((one, spec.shape) for one, spec in zip(elements, specs, strict=True))


def _alias_step(step: AliasStep) -> tuple[Any, ...]:
    match step:
        case VersionBump(slot, times):
            return _BUMP, slot, times
        case MakeLeaf(slot):
            return _LEAF, slot
        case ViewReplay(None, source):
            return _DATA, source
        case ViewReplay(OpOverload(_schema=schema), source, args, grad, outputs):
            # The native side reads tuples only.
            given = tuple(tuple(a) if isinstance(a, list) else a for a in args)
            return _VIEW, source, schema.name, schema.overload_name, given, int(grad), outputs
    raise TypeError(f"not a step of view replay: {step!r}")


def _place(output: Output, inputs: int) -> int:
    match output:
        case Result(index):
            return inputs + index
        case FromInput(index) | ViewOf(index):
            return index
    raise TypeError(f"not an output: {output!r}")


def fx_executable(module: GraphModule, *unused: object, **unused_options: object) -> Executable:
    """Run an ATen graph's own Python code, below autograd. Saved values in a kernel's own layout
    (SavedLayouts) are restored to the traced strides, which views in the graph rely on.
    """
    forward = module.forward
    specs = [None if node is None else node_spec(node) for node in flat_outputs(module)]
    loose = [(n, spec) for n, spec in enumerate(specs) if spec and has_loose_strides(spec.shape)]
    restored = [
        (n, node.meta["traced_stride"])
        for n, node in enumerate(placeholders(module))
        if "traced_stride" in node.meta
    ]

    def replay(*inputs: torch.Tensor) -> tuple[Any, ...]:
        with BelowViewTracking():
            if restored:
                given = list(inputs)
                for place, stride in restored:
                    given[place] = _laid_out(given[place], stride)
                inputs = tuple(given)
            made = forward(*inputs)
            return _with_eager_strides(made, loose) if loose else tuple(made)

    return made_by(replay, "op_by_op", module)


def _with_eager_strides(
    made: Sequence[Any], loose: Sequence[tuple[int, TensorSpec]]
) -> tuple[torch.Tensor, ...]:
    """Give size-0 and size-1 dimensions eager's strides, which users can read."""
    # Kernels of torch may choose any stride for a dimension of size 1, but programs print
    # `stride()`.
    results = list(made)
    for place, spec in loose:
        value = results[place]
        if value.stride() != spec.stride and _has_layout(value, spec):
            results[place] = value.as_strided(spec.shape, spec.stride)
    return tuple(results)


def _has_layout(value: torch.Tensor, spec: TensorSpec) -> bool:
    if value.shape != spec.shape:  # a seed: the kernel chooses its shape
        return False
    sides = zip(spec.shape, value.stride(), spec.stride, strict=True)
    return not value.numel() or all(n == 1 or have == wanted for n, have, wanted in sides)


def _laid_out(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return the value with the strides of its spec, which the kernel may not follow."""
    if value.stride() == stride or not value.numel():
        return value
    # A copy, not as_strided: the memory really has another order.
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(
        value
    )
