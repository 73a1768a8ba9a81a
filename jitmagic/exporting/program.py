"""Builds the torch.export.ExportedProgram of a captured call.

In: an ExampleCall and its Capture. Out: the program, in torch's conventions: parameters, buffers
and constants are inputs that come before the arguments, under their names in the module's state;
what the program writes is an output; sizes are symbols with ranges.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..autograd.nodes import flat_outputs
from ..autograd.result import FromInput, Joint, Result, ViewOf, ViewReplay
from ..compat.export import (
    ConstantArgument,
    ExportedProgram,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    ModuleCallEntry,
    ModuleCallSignature,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    expression_of,
)
from ..compat.pytree import tree_flatten, tree_flatten_with_path, tree_map
from ..errors import Unsupported, warn
from ..guards.read import read_source
from ..guards.source import Item, Source
from ..torch_types import OpOverload
from .call import ATOMS, ExampleCall, key_of
from .capture import Capture, Input
from .graph import ExportGraph
from .outputs import results_of, sources_in
from .state import Held, State

__all__ = ["exported_program"]

aten = torch.ops.aten
_SYMBOLIC: Mapping[type, Any] = {
    torch.SymInt: SymIntArgument, torch.SymFloat: SymFloatArgument, torch.SymBool: SymBoolArgument,
}  # fmt: skip
_MUTATIONS = {
    InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
}


def exported_program(call: ExampleCall, capture: Capture) -> ExportedProgram:
    """Return the exported program of a captured call."""
    return _Program(call, capture).build()


class _Program:
    """An exported program under construction."""

    def __init__(self, call: ExampleCall, capture: Capture) -> None:
        self.call, self.capture = call, capture
        self.graph = ExportGraph(call, capture)
        self.state = State(call.target)
        self.inputs: list[InputSpec] = []
        self.nodes: dict[int, Node] = {}  # of tensors that are no arguments, by id
        self.kept: list[torch.Tensor] = []  # so that no id is used again
        self.leaves: dict[int, Node] = {}
        self.written: dict[Node, Any] = {}  # placeholder -> its new value

    def build(self) -> ExportedProgram:
        self.graph.add_sizes()
        self._add_state()
        self._add_leaves()
        self.graph.read_sizes(self.leaves)
        values = self._copy_calls()
        outputs, out_spec = self._outputs(values)
        self._remove_unused_sizes()
        signature = ExportGraphSignature(self.inputs, outputs)
        graph = self.graph.graph
        return ExportedProgram(
            GraphModule({}, graph),
            graph,
            signature,
            self.state.tensors,
            self._ranges(),
            [self._entry(out_spec)],
            (self.call.args, dict(self.call.kwargs)),
            {**self.state.constants},
        )

    # -- inputs ----------------------------------------------------------------------------------

    def _add_state(self) -> None:
        """Add the parameters, then buffers, then constants that the graph or the exit reads."""
        read = [(one.tensor, one.entry.source) for one in self.capture.inputs]
        tensors = [(tensor, source) for tensor, source in read if tensor is not None]
        tensors += self._tensors_of_exit()
        found = {id(tensor): (tensor, self.state.input_of(tensor, source))
                 for tensor, source in tensors}  # fmt: skip
        mutated = {id(self.capture.inputs[i].tensor) for i in self.capture.joint.mutated_inputs}
        for key in mutated & found.keys():
            tensor, held = found[key]
            found[key] = tensor, self.state.as_buffer(held)
        joint = self.capture.joint.module
        constants = [getattr(joint, str(node.target)) for node in self._attributes()]
        found |= {id(one): (one, self.state.lifted(one)) for one in constants}
        order = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        for tensor, held in sorted(found.values(), key=lambda one: order.index(one[1].kind)):
            self._add_tensor(tensor, held)

    def _attributes(self) -> Iterator[Node]:
        nodes = self.capture.joint.module.graph.nodes
        return (node for node in nodes if node.op == "get_attr")

    def _tensors_of_exit(self) -> Iterator[tuple[torch.Tensor, Source]]:
        """Yield the tensors that the program returns or replaces, but does not compute with."""
        for source in sources_in(self.capture.trace):
            parts, _ = tree_flatten_with_path(read_source(source, self.capture.snapshot))
            for path, value in parts:
                if isinstance(value, torch.Tensor) and self._leaf_of(value) is None:
                    yield value, reduce(Item, map(key_of, path), source)

    def _leaf_of(self, tensor: torch.Tensor) -> int | None:
        return self.capture.leaves.of_tensor(tensor)

    def _add_tensor(self, tensor: torch.Tensor, held: Held) -> None:
        node = self.graph.placeholder(held.placeholder, self.graph.fake(tensor))
        self.kept.append(tensor)
        self.nodes[id(tensor)] = node
        argument = TensorArgument(node.name)
        self.inputs.append(InputSpec(held.kind, argument, held.name, held.is_persistent))

    def _add_leaves(self) -> None:
        for n, leaf in enumerate(self.call.leaves):
            value = self.graph.leaf(n)
            node = self.leaves[n] = self.graph.placeholder(leaf.name, value)
            argument: Any = ConstantArgument(node.name, leaf.value)
            if isinstance(value, torch.Tensor):
                argument = TensorArgument(node.name)
            elif isinstance(value, torch.SymInt):
                argument = SymIntArgument(node.name)
            self.inputs.append(InputSpec(InputKind.USER_INPUT, argument, None))

    def _node_of_input(self, given: Input) -> Node:
        """Return the node of an input of the joint graph."""
        if given.tensor is not None:
            return self.nodes[id(given.tensor)]
        if given.leaf is not None and not given.entry.is_scalar:
            return self.leaves[given.leaf]
        number = given.number if given.leaf is None else self.leaves[given.leaf]
        return self.graph.call(aten.scalar_tensor.default, number, dtype=given.entry.spec.dtype)

    # -- the graph -------------------------------------------------------------------------------

    def _copy_calls(self) -> list[Node]:
        """Add the calls of the joint graph; return the value of each result of the program."""
        joint = self.capture.joint
        placeholders = joint.module.graph.find_nodes(op="placeholder")
        pairs = zip(placeholders, self.capture.inputs, strict=False)
        made: dict[Node, Node] = {node: self._node_of_input(given) for node, given in pairs}
        slots = list(made.values())
        for node in self._attributes():
            made[node] = self.nodes[id(getattr(joint.module, str(node.target)))]
        kept = needed(joint)
        for node in joint.module.graph.nodes:
            if node.target is aten.copy_.default and node in kept:
                target, value = node.args
                self.written[made[target]] = made[value]
            elif node.op == "call_function" and node in kept:
                made[node] = self.graph.copy(node, made)
        slots = [self.written.get(node, node) for node in slots]
        return self._replayed([*slots, *(made[one] for one in results_in(joint))])

    def _replayed(self, slots: list[Node]) -> list[Node]:
        """Return the program's results, views of inputs and of other results among them."""
        joint = self.capture.joint
        count = len(joint.inputs)
        for step in joint.aliasing:
            if not isinstance(step, ViewReplay):
                continue
            source = slots[step.source]
            if step.op is None:
                slots.append(source)
                continue
            view = self.graph.call(step.op, source, *step.args)
            many = isinstance(view.meta["val"], tuple | list)
            parts = range(step.outputs) if many else ()
            slots += [self.graph.call(operator.getitem, view, n) for n in parts] or [view]
        found = []
        for output in joint.outputs:
            match output:
                case Result(index):
                    found.append(slots[count + index])
                case FromInput(index):
                    found.append(slots[index])
                case ViewOf(slot):
                    found.append(slots[slot])
        return found

    # -- outputs ---------------------------------------------------------------------------------

    def _outputs(self, values: Sequence[Node]) -> tuple[list[OutputSpec], Any]:
        """Add the output node; return the specs of the outputs and the structure of the result."""
        by_fake = {id(node.meta["val"]): node for node in values}
        for node in (*self.nodes.values(), *self.leaves.values()):
            by_fake.setdefault(id(self.written.get(node, node).meta["val"]),
                               self.written.get(node, node))  # fmt: skip
        found = results_of(
            self.capture.trace,
            self._stand_in,
            lambda n: values[n].meta["val"],
            lambda value: self.graph.item(by_fake[id(value)]),
        )
        if found.dropped:
            warn(f"the exported program does not set {', '.join(found.dropped)}")
        for source, value in found.buffers:
            buffer = read_source(source, self.capture.snapshot)
            self.written[self.nodes[id(buffer)]] = by_fake[id(value)]
        flat, spec = tree_flatten(found.value)
        names = {one.arg.name: one for one in self.inputs}
        outputs, arguments = [], []
        for node, new in self.written.items():
            held = names[node.name]
            kind = _MUTATIONS.get(held.kind, OutputKind.USER_INPUT_MUTATION)
            target = node.name if held.target is None else held.target
            outputs.append(OutputSpec(kind, TensorArgument(new.name), target))
            arguments.append(new)
        for value in flat:
            argument, output = self._output(value, by_fake)
            outputs.append(OutputSpec(OutputKind.USER_OUTPUT, argument, None))
            arguments.append(output)
        self.graph.graph.output(tuple(arguments))
        return outputs, spec

    def _stand_in(self, source: Source) -> Any:
        """Return the object at a source, with the values of nodes in place of its tensors."""
        if (n := self.capture.leaves.numbers.get(source)) is not None:
            return self.leaves[n].meta["val"]
        return tree_map(self._value_of, read_source(source, self.capture.snapshot))

    def _value_of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        leaf = self._leaf_of(value)
        node = self.nodes[id(value)] if leaf is None else self.leaves[leaf]
        return self.written.get(node, node).meta["val"]

    def _output(self, value: Any, by_fake: Mapping[int, Node]) -> tuple[Any, Any]:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            value = self.graph.node_of(value)
            if isinstance(value, Node):
                return _SYMBOLIC[type(value.meta["val"])](value.name), value
        if isinstance(value, torch.Tensor):
            node = by_fake[id(value)]
            return TensorArgument(node.name), node
        if type(value) in ATOMS:
            return ConstantArgument("", value), value
        kind = type(value).__name__
        raise Unsupported(
            f"the program returns a {kind}, which no exported program does",
            f"return tensors, numbers and containers, or register the class: "
            f"torch.export.register_dataclass({kind})",
            None,
        )

    # -- the program -----------------------------------------------------------------------------

    def _remove_unused_sizes(self) -> None:
        for node in reversed(self.graph.graph.nodes):
            if node.target is aten.sym_size.int and not node.users:
                self.graph.graph.erase_node(node)

    def _ranges(self) -> dict[Any, Any]:
        """Return the range of each symbol of the arguments."""
        return {
            symbol: self.graph.env.var_to_range[symbol]
            for size in self.graph.sizes.values()
            for symbol in expression_of(size).free_symbols
        }

    def _entry(self, out_spec: Any) -> ModuleCallEntry:
        """Return the calling convention of the program."""
        names = list(self.call.names)
        return ModuleCallEntry("", ModuleCallSignature([], [], self.call.spec, out_spec, names))


def results_in(joint: Joint) -> list[Node]:
    """Return the nodes of the program's results, without gradients."""
    return [node for node in flat_outputs(joint.module)[: len(joint.results)] if node is not None]


def needed(joint: Joint) -> set[Node]:
    """Return the nodes that the results and the writes of the program are computed from."""
    found = set(results_in(joint))
    for node in reversed(list(joint.module.graph.nodes)):
        if node in found or node.target is aten.copy_.default or is_effect(node):
            found |= {node, *node.all_input_nodes}
    return found


def is_effect(node: Node) -> bool:
    """Return whether a call runs for the errors that it may raise."""
    return isinstance(node.target, OpOverload) and not node.target._schema.returns
