"""make_callable: the forward and backward executables as one function of the graph's inputs.

In: a `Partition`, the forward executable (inputs -> (*results, *saved)) and what makes the
executable ((*saved, *tangents) -> gradients) of a backward graph. Out: a callable (*inputs) ->
tuple of the user's outputs. Nothing to add: the forward itself comes back, except under autocast,
which has been applied in the trace and is off while the forward runs. Otherwise a native
`AutogradFunction` (extensions/runtime/autograd.cpp) hangs an autograd Node on the results where
something needs grad (several if they have different histories: extensions/runtime/split.h), and
replays what is not in the graph: views of inputs and results, version counters. The backward is
made at the first backward, once for each set of results that get no gradient, whatever the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import torch
from torch.fx import GraphModule

from ..errors import CompileFailed, DoubleBackward
from ..extension import runtime_module
from ..graph.recomputed import regions_of
from ..graph.regions import calls_in
from ..spec import TensorSpec, has_loose_strides
from ..symbols.compiled import SizeCode
from ..symbols.expr import Expr
from ..symbols.scalar import Symbol
from .partial import backward_without, spent_parts, tangent_nodes
from .replay import Replay, drawn_from, replay_inputs
from .result import (
    AliasStep,
    FromInput,
    Leaf,
    Output,
    Partition,
    Result,
    VersionBump,
    ViewOf,
    ViewReplay,
)
from .saved import TRACED

__all__ = ["Once", "SizedShell", "interpreted", "make_callable", "replayed"]

Executable = Callable[..., Any]
_VIEW, _DATA, _BUMP, _LEAF = range(4)  # enum AliasStep::Kind


def make_callable(
    partition: Partition,
    forward: Executable,
    backward: Once | Callable[[GraphModule], Executable] | None = None,
    source: GraphModule | None = None,
    tell: Callable[[bool], None] | None = None,
) -> Executable:
    """`backward` makes the executable of a backward graph; None: torch interprets it. `source`: the
    torch-level graph, for backwards that are differentiated; `tell` is called when there is one.
    """
    if _needs_nothing(partition):
        return forward
    if not isinstance(backward, Once):
        backward = Once.of(backward or interpreted, partition)
    signature = _signature(partition, source)
    run = forward if _computes(partition) else None
    return _function(run, backward, Replay(source, partition, tell), signature)


def _function(
    forward: Executable | None, backward: Once, replay: Replay, signature: dict[str, Any]
) -> Executable:
    made: Executable = runtime_module().AutogradFunction(
        forward, backward, replay, signature, CompileFailed, DoubleBackward
    )
    return made


def _needs_nothing(partition: Partition) -> bool:
    """Under autocast the call would cast what the graph did not."""
    casting = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return _is_plain(partition) and not casting


class SizedShell:
    """`make_callable` of a partition with Sizes, once for all values of their symbols."""

    __slots__ = ("_computes", "_graph", "_needs_nothing", "_partition", "_replay", "_symbols")

    def __init__(
        self,
        partition: Partition,
        symbols: Sequence[Symbol],
        graph: GraphModule,
        tell: Callable[[bool], None],
    ) -> None:
        """`symbols`: in the order of their values; `graph`: the torch-level one."""
        self._needs_nothing = _needs_nothing(partition)
        self._partition, self._symbols = partition, tuple(symbols)
        self._computes, self._graph = _computes(partition), graph
        self._replay = Replay(None, partition, tell, graph)

    def template(
        self,
        forward: Any,
        resolve: Callable[[tuple[int, ...]], Any],
        source: Callable[[tuple[int, ...]], GraphModule],
    ) -> Any:
        """The callable for all values, of a forward for all or for the one it will be asked for.
        `resolve` gives what has the backward without some tangents for each vector of values;
        `source` makes the torch-level graph, as it is there.
        """
        if self._needs_nothing:
            return forward
        code = SizeCode(len(self._symbols))
        code.name(self._symbols)
        signature = _numbers(self._partition, self._graph)
        absent = _stand_ins(_left_out(self._partition))
        sized = code.part((signature["tangents"], signature["aliasing"], absent))

        def replay(values: tuple[int, ...]) -> Replay:
            known = dict[Expr, int](zip(self._symbols, values, strict=True))
            return self._replay.at(known, lambda: source(values))

        return runtime_module().AutogradTemplate(
            forward if self._computes else None,
            *(resolve, replay, signature, sized, code.program(), CompileFailed, DoubleBackward),
        )


def _is_plain(partition: Partition) -> bool:
    """The executable's results are the user's outputs as they are."""
    if partition.mutated_inputs or partition.tangents or partition.aliasing:
        return False
    plain = tuple(Result(i, False) for i in range(partition.results))
    return partition.outputs == plain


def _computes(partition: Partition) -> bool:
    return any(node.op == "call_function" for node in partition.forward.graph.nodes)


class Once:
    """Calls the factory once per set of missing tangents, also when threads run their first
    backward at the same time.
    """

    __slots__ = ("__weakref__", "_factory", "_lock", "_made")

    def __init__(self, factory: Callable[[tuple[int, ...]], Executable]) -> None:
        self._factory, self._lock = factory, Lock()
        self._made: dict[tuple[int, ...], Executable] = {}

    @classmethod
    def of(cls, factory: Callable[[GraphModule], Executable], partition: Partition) -> Once:
        """`factory` is given the backward graph without what hangs on the missing tangents."""
        return cls(lambda missing: factory(backward_without(partition, missing)))

    @property
    def is_compiled(self) -> bool:
        """Whether the factory has been called."""
        return bool(self._made)

    def __call__(self, missing: tuple[int, ...] = ()) -> Executable:
        """`missing`: positions of the tangents that are not given (zeros stand for them)."""
        with self._lock:
            if missing not in self._made:
                self._made[missing] = self._factory(missing)
            return self._made[missing]


def _signature(partition: Partition, graph: GraphModule | None) -> dict[str, Any]:
    return {**_numbers(partition, graph), "absent": _stand_ins(_left_out(partition))}


def _numbers(partition: Partition, graph: GraphModule | None) -> dict[str, Any]:
    """The Partition as tuples of integers, or of Sizes; and what its backward has to check."""
    nodes = partition.forward.graph.nodes
    inputs = sum(node.op == "placeholder" for node in nodes)
    layouts = [node.meta["spec"] for node in tangent_nodes(partition)]
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
        "spent": spent_parts(partition),
        "replayed": tuple(
            (n.index, n.saved, int(n.large), int(n.copied)) for n in replay_inputs(partition, graph)
        ),
        "checks": _checks(graph),
        "draws": drawn_from(partition),
    }


def _checks(graph: GraphModule | None) -> tuple[Callable[..., bool], ...]:
    """Return whether what the backwards of autograd functions rely on holds."""
    if graph is None:
        return ()
    later = (*(call.original for _, call in calls_in(graph)), *regions_of(graph))
    return tuple(one.holds for one in later if one is not None and one.holds is not None)


def _left_out(partition: Partition) -> list[TensorSpec]:
    """Specs of saved values that a backward may not read. None where each backward reads all."""
    if partition.backward is None:
        return []
    nodes = [node for node in partition.backward.graph.nodes if node.op == "placeholder"]
    holders = nodes[: len(nodes) - len(partition.tangents)]
    everything = (tuple(range(len(partition.tangents))), tuple(range(len(holders))))
    if not holders or spent_parts(partition) == (everything,):
        return []
    return [node.meta["spec"] for node in holders]


def _stand_ins(
    specs: Sequence[TensorSpec],
) -> tuple[tuple[torch.Tensor, tuple[int, ...]], ...]:
    """What is in the place of saved values that a backward does not read: the memory of one element
    each, and their shapes.
    """
    with torch.inference_mode(False), torch.no_grad():
        elements = [torch.zeros((), dtype=spec.dtype, device=spec.device) for spec in specs]
    return tuple((one, spec.shape) for one, spec in zip(elements, specs, strict=True))


def _alias_step(step: AliasStep) -> tuple[Any, ...]:
    match step:
        case VersionBump(slot, times):
            return _BUMP, slot, times
        case Leaf(slot):
            return _LEAF, slot
        case ViewReplay(None, source):
            return _DATA, source
        case ViewReplay(op, source, args, grad, outputs):
            schema = op._schema
            given = tuple(tuple(a) if isinstance(a, list) else a for a in args)
            return _VIEW, source, schema.name, schema.overload_name, given, int(grad), outputs
    raise TypeError(f"no step of view replay: {step!r}")


def _place(output: Output, inputs: int) -> int:
    match output:
        case Result(index):
            return inputs + index
        case FromInput(index) | ViewOf(index):
            return index
    raise TypeError(f"not an output: {output!r}")


def interpreted(module: GraphModule) -> Executable:
    """Run an ATen graph with torch's own kernels; results are laid out as their specs say."""
    flat = next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0]
    strides = [None if node is None else node.meta["spec"].stride for node in flat]

    def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
        # A view among the results must be a plain tensor, not one made under no_grad.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            made = module(*inputs)
            return tuple(
                value if stride is None else _laid_out(value, stride)
                for value, stride in zip(made, strides, strict=True)
            )

    return run


def replayed(module: GraphModule, *unused: object, **nothing: object) -> Executable:
    """Run an ATen graph's own Python code, below autograd. What the forward's kernels laid out in
    their own way (saved.py) is turned back: views in the graph count on the layout of the trace.
    """
    forward = module.forward
    flat = next(node for node in reversed(module.graph.nodes) if node.op == "output").args[0]
    specs = enumerate(map(_spec_of, flat))
    loose = [(n, spec) for n, spec in specs if spec and has_loose_strides(spec.shape)]
    holders = [node for node in module.graph.nodes if node.op == "placeholder"]
    turned = [(n, node.meta[TRACED]) for n, node in enumerate(holders) if TRACED in node.meta]

    def replay(*inputs: torch.Tensor) -> tuple[Any, ...]:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            if turned:
                given = list(inputs)
                for place, stride in turned:
                    given[place] = _laid_out(given[place], stride)
                inputs = tuple(given)
            made = forward(*inputs)
            return _relabelled(made, loose) if loose else tuple(made)

    return replay


def _spec_of(node: torch.fx.Node | None) -> TensorSpec | None:
    return None if node is None else node.meta["spec"]


def _relabelled(
    made: Sequence[Any], loose: Sequence[tuple[int, TensorSpec]]
) -> tuple[torch.Tensor, ...]:
    """Strides that lead nowhere, those of extents of 0 and 1, are eager's: people see them."""
    results = list(made)
    for place, spec in loose:
        value = results[place]
        if value.stride() != spec.stride and _lies_as(value, spec):
            results[place] = value.as_strided(spec.shape, spec.stride)
    return tuple(results)


def _lies_as(value: torch.Tensor, spec: TensorSpec) -> bool:
    if value.shape != spec.shape:  # a seed: what it is like is the kernel's to choose
        return False
    sides = zip(spec.shape, value.stride(), spec.stride, strict=True)
    return not value.numel() or all(n == 1 or have == wanted for n, have, wanted in sides)


def _laid_out(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A kernel may choose other strides than its meta function says."""
    if value.stride() == stride or not value.numel():
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(
        value
    )
