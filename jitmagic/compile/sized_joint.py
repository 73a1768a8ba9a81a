"""Traces one joint graph for all sizes of a frame, and builds its partition and kernels once.

Input: a Trace with Sizes, and the values of its symbols in one call (the hints). Output: a
SizedJoint. Its templates build the executable for any other values that pass its predicates,
natively: nothing is traced and no Python runs (extensions/runtime/sizes.h).

The joint and partition stages run once, on meta tensors with SymInts, as the tracer did. If an
autograd formula, a decomposition or torch's C++ branches on a size, it compares Sizes, and the
answer becomes a predicate. So every branch taken is valid for all values that pass the predicates.
Code that reads a size as an int raises Specialize; `sizes.py` then makes that size a constant of
the joint graph, and another joint graph for another value of it.

Tracing each size tuple instead is slow: training a transformer layer took 32 ms per new size tuple,
28 of them for graphs that came out alike. The min cut of the partition weighs bytes at the hints;
other sizes use the same cut, as any cut is correct. With `options.verify` each node of the joint
graph is compared with the result of its operation at the sizes of each tuple.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from torch.fx import GraphModule

from ..autograd.autograd_function import SizedAutogradFunction
from ..autograd.nodes import flat_outputs, node_spec
from ..autograd.partition import partition
from ..autograd.result import Joint, Partition, output_specs
from ..autograd.stages import mark_stages
from ..autograd.symbolic_joint import trace_sized_joint
from ..autograd.verify import verify_joint
from ..errors import CompileFailed
from ..graph.subgraphs import Subgraph, split_into_subgraphs
from ..graph.symbolic.concrete import ScalarInput, graph_at, results_of
from ..lazy_dataclass import dataclass, replace
from ..options import Options
from ..records import LazyPayload, Recording
from ..runtime.native import SizeTemplate, Step, split_template
from ..spec import TensorSpec
from ..symbols.expr import Expr
from ..symbols.predicates import Predicates, fresh_sizes
from ..symbols.symbolic_numbers import Symbol
from ..torch_types import Executable
from ..trace.result import Trace
from ..trace.varying.concrete import ranges_of, with_sizes
from .fused_attention import with_fused_attention
from .graph_passes import edit_joint, edit_parts
from .sized_backwards import BackwardAhead, Builders, SizedBackwards, SizedGraphs
from .template import SizeTuple, Templates

__all__ = ["BuiltExecutable", "SizedJoint", "check_results", "places_among"]


class BuiltExecutable(NamedTuple):
    """An executable for one size tuple. `template` builds the executables of other tuples that pass
    `predicates`; None if Python has to build each.
    """

    run: Executable
    template: SizeTemplate | None
    predicates: tuple[Predicates, ...]


@dataclass(slots=True)
class _Part:
    """The graphs of a subgraph of the frame."""

    subgraph: Subgraph
    joint: Joint
    parts: Partition
    function: SizedAutogradFunction
    forward: Templates
    backwards: SizedBackwards


class SizedJoint:
    """The joint graphs and templates of a frame, for all values of its symbols that pass `holds`.

    The constructor raises what a stage raises if it cannot work with symbolic sizes.
    """

    def __init__(
        self,
        traced: Trace,
        values: SizeTuple,
        builders: Builders,
        options: Options,
        record: Recording,
        fixed: Collection[Symbol] = (),
    ) -> None:
        """`fixed`: symbols of the trace that are constants of this joint graph."""
        self._builders, self._options, self._hints = builders, options, values
        ranges = ranges_of(traced)
        self._named = tuple(ranges)  # the symbols of the trace
        self.predicates, sizes = fresh_sizes(ranges, values, fixed)
        self.symbols = self.predicates.symbols
        self._sized, self._kept = with_sizes(traced, sizes)
        self._slots: tuple[int, ...] | None = None  # of the outputs; None: no subgraphs
        self._parts = self._make(record)

    def _make(self, record: Recording) -> list[_Part]:
        specs = [entry.spec for entry in self._sized.inputs]
        split = split_into_subgraphs(self._sized.graph)
        if split is None:
            places, results = tuple(range(len(specs))), results_of(self._sized.graph)
            return [self._part(Subgraph(self._sized.graph, places, results, ()), specs, record)]
        self._slots = split.outputs
        made: list[_Part] = []

        def gives(subgraph: Subgraph, taken: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
            made.append(self._part(subgraph, taken, record))
            return output_specs(made[-1].joint)

        split.follow(specs, gives)
        return made

    def _part(self, subgraph: Subgraph, specs: Sequence[TensorSpec], record: Recording) -> _Part:
        gm = subgraph.graph

        def trace(fused: GraphModule) -> Joint:
            with record.stage("joint") as stage:
                joint = trace_sized_joint(fused, specs)
                stage.keep(LazyPayload(partial(_shown_joint, joint, self._known(self._hints))))
                check_results(gm, joint)
            return joint

        joint = edit_joint(with_fused_attention(gm, trace, self._options, record), record)
        with record.stage("partition") as stage:
            parts = edit_parts(partition(joint, self._options.activation_memory_budget), record)
            mark_stages(parts.backward, record.bucket)
            stage.keep(LazyPayload(partial(_shown, parts, self._known(self._hints))))
        forward = self._templates(parts.forward, "forward", parts.backward is not None)
        graphs = SizedGraphs(parts.backward, gm, len(parts.tangents), self.predicates)
        backwards = SizedBackwards(graphs, self._builders, self._options)
        if parts.backward is not None:
            ahead = backwards.ahead = BackwardAhead(backwards, self._hints)
            record.later.append(weakref.ref(ahead))
        return _Part(
            subgraph,
            joint,
            parts,
            SizedAutogradFunction(parts, self.symbols, gm, self._builders.warn_of_replay),
            forward,
            backwards,
        )

    def _templates(self, gm: GraphModule, name: str, training: bool) -> Templates:
        target = self._builders.target(gm)
        return Templates(gm, name, self.predicates, target, self._options, training)

    # -- values of a call ------------------------------------------------------------------------

    def holds(self, values: SizeTuple) -> bool:
        """Return whether the graphs are valid for these values."""
        return self.predicates.holds_for(values)

    def is_ready(self, values: SizeTuple) -> bool:
        """Return whether the forward needs no compiler for these values."""
        return self.holds(values) and all(part.forward.known(values) for part in self._parts)

    @property
    def in_parts(self) -> bool:
        """Return whether the graph is split into subgraphs."""
        return self._slots is not None

    @property
    def compiled(self) -> int:
        """Return the number of times that a compiler was needed."""
        return sum(part.forward.compiled for part in self._parts)

    def made(self, values: SizeTuple, inputs: int, record: Recording) -> BuiltExecutable:
        """Return the executable of the frame's graph at these values, for which `holds` is true.
        `inputs`: the number of a call's inputs.
        """
        templates = [part.forward.template(values, record) for part in self._parts]
        forwards = [
            self._alone(part, values, record) if template is None else template.plan
            for part, template in zip(self._parts, templates, strict=True)
        ]
        whole = self._assembled(forwards, inputs)
        run = whole.at(values) if isinstance(whole, SizeTemplate) else whole
        there = [template for template in templates if template is not None]
        predicates = (self.predicates, *(template.predicates for template in there))
        template = None
        if isinstance(whole, SizeTemplate) and len(there) == len(templates):
            template = whole
        return BuiltExecutable(run, template, predicates)

    def _alone(self, part: _Part, values: SizeTuple, record: Recording) -> Executable:
        """Build the forward of one size tuple, for which there can be no template."""
        gm = graph_at(part.parts.forward, self._known(values))
        return self._builders.graph(gm, "forward", record, part.parts.backward is not None)

    def _assembled(
        self, forwards: Sequence[SizeTemplate | Executable], inputs: int
    ) -> SizeTemplate | Executable:
        """Return the executable for all sizes that runs these forwards one after the other. A
        single forward that takes the call's inputs in order is returned unchanged.
        """
        runs = [self._run(part, one) for part, one in zip(self._parts, forwards, strict=True)]
        whole = runs[0]
        if self._slots is not None:
            steps = [
                Step(run, *part.subgraph.slots) for run, part in zip(runs, self._parts, strict=True)
            ]
            whole = split_template(len(self._kept), steps, self._slots, (), self._named)
        places, results = places_among(inputs, self._kept), results_of(self._sized.graph)
        if places == tuple(range(inputs)):
            return whole
        numbers = [
            (one.spec.dtype, one.value) for one in self._kept if isinstance(one, ScalarInput)
        ]
        first = inputs + len(numbers)
        step, outputs = Step(whole, places, results), tuple(range(first, first + results))
        return split_template(inputs, (step,), outputs, tuple(numbers), self._named)

    def _run(self, part: _Part, forward: SizeTemplate | Executable) -> SizeTemplate | Executable:
        made: SizeTemplate | Executable = part.function.template(
            forward,
            part.backwards,
        )
        return made

    def verify(self, values: SizeTuple) -> None:
        """Check that each node of the joint graphs gives its operation's result at these values."""
        for part in self._parts:
            verify_joint(graph_at(part.joint.module, self._known(values)))

    def _known(self, values: SizeTuple) -> dict[Expr, int]:
        return dict(zip(self.symbols, values, strict=True))


def _shown(parts: Partition, known: dict[Expr, int]) -> Partition:
    """Return the partition at this call's sizes: people may run the graphs that explain() shows."""
    backward = None if parts.backward is None else graph_at(parts.backward, known)
    return replace(parts, forward=graph_at(parts.forward, known), backward=backward)


def _shown_joint(joint: Joint, known: dict[Expr, int]) -> Joint:
    """Return the joint graph at this call's sizes, for people too."""
    return replace(joint, module=graph_at(joint.module, known))


def check_results(gm: GraphModule, joint: Joint) -> None:
    """Raise CompileFailed if a result of the joint graph has another dtype, device or rank than in
    the trace: a decomposition may take a SymInt for another kind of number.
    """
    for node, made in zip(flat_outputs(gm), output_specs(joint), strict=True):
        assert node is not None
        said = node_spec(node)
        if (said.dtype, said.device, len(said.shape)) != (made.dtype, made.device, len(made.shape)):
            raise CompileFailed(f"{node} is {made} in the joint graph, not {said}")


def places_among(inputs: int, kept: Sequence[int | ScalarInput]) -> tuple[int, ...]:
    """Return, for each input of a concrete graph, its position in (inputs of the call, *numbers
    computed from sizes). Inputs that were read only for their sizes are not among them.
    """
    fresh = itertools.count(inputs)
    return tuple(next(fresh) if isinstance(one, ScalarInput) else one for one in kept)
