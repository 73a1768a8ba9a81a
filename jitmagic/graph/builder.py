"""Builds a torch-level torch.fx.Graph while the program is traced, propagating shapes at once.

Input: placeholders with their TensorSpec; calls of torch functions and tensor methods (`call`).
Output: for every call its result with a Node in place of each tensor, and in the end a GraphModule
with one flat tuple of outputs.

The graph records the program in order, including mutations, random draws and changes of grad mode
and autocast: run on real inputs it does what the traced code does, except that it fills no autocast
cache. node_meta.py lists what a node carries. A call whose result holds no tensor and which changes
nothing leaves no node: it is a constant. A result that is an existing tensor (in-place methods,
`x.float()` of a float tensor) is that tensor's node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import Node as AutogradNode
from torch.fx import Graph, GraphModule, Node

from ..budget import spend
from ..compat.modes import switch_grad_mode
from ..errors import ASSERTION, UserLine
from ..spec import TensorSpec
from .autocast_mode import DEVICES, OFF, Autocast, read_autocast
from .compile_cost import expected_seconds
from .default_dtype import spelled_out
from .devices import CPU, kernels_on
from .gradients import gradients, has_freed_history, history_of, reachable_leaves, refuse_sparse
from .inference_memory import InferenceMemory
from .lazy_module import LazyModule, add_node, call_by_identity
from .memory import TensorNodes, Writes, storage_of
from .meta_calls import MetaCall, Modes
from .nested import map_nodes, map_tensors, rebuilt, tensor_nodes_in
from .node_meta import device_of, is_number_like, lines_of_call, spec_on, specs_in, tensors_in
from .operators.autocast import CastCache
from .operators.foreign import is_foreign
from .operators.target_traits import draws, hidden_writes
from .passes import drop_dead_code
from .propagate import DataDependent, input_meta, run_on_meta, strides_are_certain
from .symbolic.data_sizes import NewSize
from .symbolic.size_nodes import READ, READ_AT_LEVEL, SizeNodes, expected_in, run_on_history
from .symbolic.sym_node import as_torch
from .target_names import Target, target_name
from .targets.regions import FunctionCall

__all__ = ["GraphBuilder", "map_nodes"]

aten = torch.ops.aten


class GraphBuilder:
    """A graph under construction; its modes are those of the program at the traced instruction."""

    def __init__(
        self,
        grad_enabled: bool | None = None,
        step: Callable[[], int] = lambda: 0,
        is_transformed: bool = False,
    ) -> None:
        self.graph, self.step = Graph(), step  # returns the tracer's position (node_meta.py)
        self.grad_enabled = torch.is_grad_enabled() if grad_enabled is None else grad_enabled
        self.autocast = read_autocast()
        self.differentiates = False  # whether any call gave a result that requires grad
        self.inputs: dict[Node, None] = {}  # the placeholders, in order
        # Numbers of backwards, expectations on sizes, calls with tensor results, calls on numbers.
        self.backwards = self._expected = self.work = self.arithmetic = 0
        self.leaves: list[Node] = []  # tensors that the program made leaves
        self.mutated_inputs: dict[Node, int] = {}  # placeholders written in place -> step
        self.input_writes: list[Node] = []  # a placeholder for each write to one, in order
        self.cast_cache = CastCache()
        self.writes = Writes()
        self.unknown_strides: set[Node] = set()  # nodes whose strides real kernels choose
        self.assertions: list[Node] = []  # see `assert_false`
        self.has_cast = self.autocast != OFF  # whether autocast was ever on
        self.is_transformed = is_transformed  # whether it runs under a transform of torch.func
        self.is_frame = not is_transformed  # whether it runs on tensors whose data may be read
        self.modes_vary = False  # whether its modes are known only when it runs (a backward)
        self.inference = InferenceMemory()
        self.default_dtype: torch.dtype | None = None  # set if the program changed it
        self.sizes = SizeNodes(self.graph, READ_AT_LEVEL if is_transformed else READ)
        self.fresh_size: NewSize | None = None  # creates unbacked sizes, if they are allowed
        self.entry_modes = self._emitted_modes = self.grad_enabled, self.autocast
        self._nodes = TensorNodes()
        self.known = self._nodes.get  # the node of a meta tensor, or None
        self._inputs_over: dict[int | None, list[tuple[int, Node]]] = {}  # storage -> inputs
        self._outputs: dict[Node, int] = {}

    @property
    def root(self) -> GraphBuilder:
        """Return the outermost graph, whose inputs are the program's own tensors."""
        return self

    def local(self, node: Node) -> Node:
        """Return the node of this graph that stands for a node of an enclosing graph."""
        return node

    def flags_vary(self, node: Node) -> bool:
        """Return whether it is not known yet if the tensor requires grad."""
        return False

    # -- inputs and outputs ----------------------------------------------------------------------

    def placeholder(self, name: str, spec: TensorSpec) -> Node:
        """Add a graph input after the existing placeholders."""
        last, first = next(reversed(self.inputs), None), next(iter(self.graph.nodes), None)
        point: AbstractContextManager[Any] = nullcontext()
        if last is not None:
            point = self.graph.inserting_after(last)
        elif first is not None:
            point = self.graph.inserting_before(first)
        with point:
            node = self.graph.placeholder(_identifier(name))
        # fx makes node names unique, not parameters: `forward(S, s)` would begin with `s = S`.
        node.target = node.name
        meta = input_meta(spec)
        self._describe(node, meta, spec, ())
        self._nodes[meta] = node
        self._inputs_over.setdefault(storage_of(node), []).append((len(self.inputs), node))
        self.inputs[node] = None
        self.sizes.add_input(node, spec)
        return node

    def inputs_sharing(self, node: Node) -> list[Node]:
        """Return the inputs that share memory with the tensor."""
        return [input for _, input in self._inputs_over.get(storage_of(node), ())]

    def output(self, node: Node) -> int:
        """Make `node` an output (the same node gives the same index)."""
        return self._outputs.setdefault(node, len(self._outputs))

    def finish(self, name: str) -> tuple[GraphModule, tuple[Node, ...]]:
        """Return the finished graph and the placeholders that are used, in order."""
        self._emit_modes(self.entry_modes, ())
        for node in self._outputs_with_history() if self.backwards else ():
            node.meta["freed"] = has_freed_history(_value(node))
        self.graph.output(tuple(self._outputs))
        drop_dead_code(self.graph)
        kept = []
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if node.users:
                    kept.append(node)
                else:
                    self.graph.erase_node(node)
        call_by_identity(self.graph)
        module = LazyModule(torch.nn.Module(), self.graph, class_name=_identifier(name))
        return module, tuple(kept)

    def written(self) -> tuple[int, ...]:
        """Return the positions of the finished graph's inputs that it writes to."""
        left = [node for node in self.graph.nodes if node.op == "placeholder"]
        return tuple(n for n, node in enumerate(left) if node in self.mutated_inputs)

    # -- calls -----------------------------------------------------------------------------------

    def call(
        self,
        target: Target,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        lines: tuple[UserLine, ...] = (),
    ) -> Any:
        """Record a call of a function, or of a method by name, and return its result with nodes in
        place of tensors. Raises DataDependent, EagerRaises, MixedDevices.
        """
        args, kwargs = self._rewritten(target, (*args,), dict(kwargs or {}), lines)
        given = tensor_nodes_in((args, kwargs))
        if any(node.graph is not self.graph for node in given):
            raise DataDependent("a number of a finished graph")
        tensors: list[torch.Tensor] = [node.meta["val"] for node in given]
        spend(expected_seconds(target, args, tensors, self.grad_enabled))
        devices = {id(node.meta["val"]): device_of(node) for node in given}
        line = next(iter(lines), None)
        modes = Modes(self.grad_enabled, self.autocast, self.cast_cache, self.fresh_size, line)
        values, named = map_nodes((args, kwargs), _value)
        call = MetaCall(target, values, named, devices, modes, tensors)
        call.run()
        self.cast_cache.note_written(call.changed, self._is_input)
        written = tuple(node for node, is_so in zip(given, call.written, strict=True) if is_so)
        written += hidden_writes(target, args, kwargs, written)
        if call.inner is not None:
            written = call.with_inner_writes(written, self._inputs_over)
        is_drawn = draws(target, args, kwargs) or call.draws_inside
        if is_drawn:
            self._note_draw()
        random = is_drawn or call.acts_inside
        value = self._settle(target, call.value, given)
        fresh = [tensor for tensor in tensors_in(value) if tensor not in self._nodes]
        if not (fresh or written or random or is_foreign(target)):
            return map_tensors(value, self._nodes.__getitem__)
        node = self._add(target, args, kwargs, value, spec_on(value, call.placement.device), lines)
        numbers = all(map(is_number_like, tensors_in(value)))
        self.root.work += not numbers
        self.root.arithmetic += numbers
        expected = expected_in((call.args, call.kwargs)) if self.sizes.are_used else 0
        expects, self._expected = expected > self._expected, max(expected, self._expected)
        marks = {"data_dependent": call.sizes, "expects": expects, "random": random}
        node.meta.update((name, True) for name, holds in marks.items() if holds)
        if written:
            node.meta["mutates"] = written
            self._note_writes(node, written)
        return self._unpack(node, value, call.placement.device, lines)

    def add_computed(
        self, target: Any, args: tuple[Any, ...], value: Any, spec: Any, lines: tuple[UserLine, ...]
    ) -> Node:
        """Add a call whose result is known, with a node for each size among its arguments."""
        args = self.sizes.in_call(target, args, lines, self.step())
        node = self._add(target, args, {}, value, spec, lines)
        self._nodes[value] = node
        return node

    def _rewritten(
        self,
        target: Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lines: tuple[UserLine, ...],
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments with the default dtype spelled out and a node for each size."""
        if (default := self.default_dtype) is not None:
            args, kwargs = spelled_out(self.call, target, (args, kwargs), default)
        if self.sizes.are_used:
            self._emit_modes((self.grad_enabled, self.autocast), lines)
            given, kwargs = self.sizes.in_call(target, (args, kwargs), lines, self.step())
            args = tuple(given)
        return args, kwargs

    def call_function(
        self,
        call: FunctionCall,
        args: tuple[tuple[Node | None, ...], ...],
        lines: tuple[UserLine, ...],
        follow: Callable[[], tuple[tuple[Node, ...], tuple[Any, ...]]],
    ) -> tuple[Node | None, ...]:
        """Record a call of an autograd function on (inputs, forward results, saved tensors).
        `follow` traces the backward once the tensors have their new history, and returns the
        tensors it captures and the values left on `ctx`. The results have new nodes from here on.
        """
        held: list[torch.Tensor] = []
        outcome = self._run_on_history(call, args, held)
        captured, left = follow()
        held += map(_value, captured)
        self._emit_modes((self.grad_enabled, self.autocast), lines)
        left = self.sizes.in_call(call, left, lines, self.step())
        specs = _specs_like(args[1], outcome)
        node = self._add(call, (*args, captured, left), {}, outcome, specs, lines)
        self.root.work += 1
        if call.dirty:
            node.meta["mutates"] = tuple(args[0][index] for index in call.dirty)
        return self.results(node, lines)

    def differentiate(
        self, args: tuple[Any, ...], lines: tuple[UserLine, ...]
    ) -> tuple[Node | None, ...]:
        """Record a call of `gradients`; return a node for each gradient, or None."""
        outcome = self._run_on_history(gradients, args)
        refuse_sparse(outcome)
        node = self._add(gradients, args, {}, outcome, _specs_like(args[1], outcome), lines)
        self.backwards += 1
        self.root.work += 1
        self.unknown_strides.add(node)  # kernels of the backward choose strides as well
        self.differentiates = True
        return self.results(node, lines)

    def call_transform(
        self,
        target: Any,
        args: tuple[object, ...],
        device: torch.device | Sequence[torch.device],
        lines: tuple[UserLine, ...],
    ) -> tuple[Any, ...]:
        """Record a call that runs graphs of its own (transforms.py, targets/control_flow.py) and
        writes to no argument; return a node for each item of its flat result. `device`: that of all
        results, or of each.
        """
        outcome = self._run_on_history(target, args)
        devices = [device] * len(outcome) if isinstance(device, torch.device) else device
        specs = tuple(map(spec_on, outcome, devices))
        node = self._add(target, args, {}, outcome, specs, lines)
        self.root.work += 1
        self.unknown_strides.add(node)
        known = [self._nodes.get(value) for value in outcome]
        return tuple(
            self._taken(node, index, lines) if one is None else one
            for index, one in enumerate(known)
        )

    def _run_on_history(self, target: Any, args: tuple[Any, ...], *more: object) -> Any:
        """Run a call on the meta tensors of nodes, by the kernels of the device they are on."""
        devices = (spec.device for node in tensor_nodes_in(args) for spec in specs_in(node))
        accelerator = next((device for device in devices if device.type != "cpu"), CPU)
        values = (*map_nodes(args, _value), *more)
        with kernels_on(accelerator):
            return run_on_history(target, values, self.grad_enabled, self.sizes)

    def reachable_leaves(self, outputs: Sequence[Node]) -> list[Node | None]:
        """Return the leaves that a backward from the nodes reaches; None for one outside."""
        return [self._nodes.get(leaf) for leaf in reachable_leaves(list(map(_value, outputs)))]

    def has_history(self, node: Node) -> bool:
        """Return whether autograd has recorded the result of a node."""
        return any(tensor.requires_grad for tensor in tensors_in(node.meta["val"]))

    def history(self, outputs: Sequence[Node]) -> dict[AutogradNode, None]:
        """Return the autograd nodes of meta tensors that a backward from these nodes runs."""
        return history_of(list(map(_value, outputs)))

    def is_output(self, node: Node) -> bool:
        """Return whether the node was made an output."""
        return node in self._outputs

    def differentiable_outputs(self) -> list[Node]:
        """Return the outputs whose history no backward of the graph has freed."""
        found = self._outputs_with_history()
        return [node for node in found if not (self.backwards and has_freed_history(_value(node)))]

    def _outputs_with_history(self) -> list[Node]:
        return [n for n in self._outputs if n.op != "placeholder" and _value(n).requires_grad]

    def is_fresh(self, gradient: Node, others: Sequence[Node | None]) -> bool:
        """Return whether the engine created the tensor for this one leaf only."""
        mine = _value(gradient)
        return sum(_value(other) is mine for other in others if other is not None) == 1

    def require_grad(self, node: Node, lines: tuple[UserLine, ...]) -> Node:
        """Make a tensor of the graph a leaf that requires grad, and return its new node."""
        value = _value(node)
        run_on_meta("requires_grad_", (value,), {}, self.grad_enabled)
        made = self.graph.call_method("requires_grad_", (node,))
        self._describe(made, value, spec_on(value, device_of(node)), lines)
        made.meta["step"] = self.step()
        self._nodes[value] = made
        self.leaves.append(made)
        self.differentiates = True
        return made

    def _taken(self, node: Node, index: int, lines: tuple[UserLine, ...]) -> Node | None:
        """Return the node of one result; a result written in place keeps its node."""
        value = node.meta["val"][index]
        if value is None or any(value is _value(dirty) for dirty in node.meta.get("mutates", ())):
            return None if value is None else self._nodes[value]
        taken = self.graph.call_function(operator.getitem, (node, index))
        self._describe(taken, value, node.meta["spec"][index], lines)
        self._nodes[value] = taken
        return taken

    def assert_false(self, wrong: Node, lines: tuple[UserLine, ...] = ()) -> None:
        """Record an assertion: the graph raises if the one-element bool `wrong` is true.
        `_linalg_check_errors` raises if its integers are not zero, on every device and before
        anything else happens; `_assert_async` would make the GPU unusable for the process.
        """
        info = self.call("to", (wrong, torch.int32), {}, lines)
        check = aten._linalg_check_errors.default
        node = self.graph.call_function(check, (info, ASSERTION), {"is_matrix": True})
        node.meta.update(val=None, spec=None, lines=lines, step=self.step())
        self.assertions.append(node)

    def set_grad_enabled(self, mode: bool) -> None:
        """Note that the program changes the grad mode; a node is added before the next call."""
        self.grad_enabled = mode

    def set_autocast(self, mode: Autocast) -> None:
        """Note that the program changes autocast; nodes are added before the next call."""
        self.autocast = mode
        self.has_cast = self.has_cast or mode != OFF

    def _add(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        value: object,
        spec: object,
        lines: tuple[UserLine, ...],
    ) -> Node:
        """Add a call in the modes of the program, and describe its result."""
        self._emit_modes((self.grad_enabled, self.autocast), lines)
        kind = "call_method" if isinstance(target, str) else "call_function"
        if target is operator.pow and not isinstance(args[0], Node):
            target = torch.pow  # fx writes (-2) ** x as -2 ** x, which is -(2 ** x)
        node = add_node(self.graph, kind, target, args, kwargs)
        self._describe(node, value, spec, lines)
        node.meta["step"] = self.step()
        if self.grad_enabled and any(tensor.requires_grad for tensor in tensors_in(value)):
            self.differentiates = True
        return node

    def results(self, node: Node, lines: tuple[UserLine, ...]) -> tuple[Node | None, ...]:
        """Return a node for each result of a call with several."""
        return tuple(self._taken(node, index, lines) for index in range(len(node.meta["val"])))

    def _unpack(
        self, node: Node, value: object, device: torch.device, lines: tuple[UserLine, ...]
    ) -> object:
        """Add getitem nodes for the tensors of a sequence; return it with those nodes."""
        if isinstance(value, torch.Tensor):
            if value not in self._nodes:
                self._nodes[value] = node
            return self._nodes[value]
        if not isinstance(value, tuple | list):
            return value
        items = []
        for index, item in enumerate(value):
            if next(tensors_in(item), None) is None:
                items.append(item)
                continue
            taken = self.graph.call_function(operator.getitem, (node, index))
            self._describe(taken, item, spec_on(item, device), lines)
            items.append(self._unpack(taken, item, device, lines))
        return rebuilt(value, items)

    def _settle(self, target: Target, value: object, given: list[Node]) -> object:
        """Return a fresh view if real kernels choose the strides: contiguous() and reshape() may
        then copy, although they are no-ops on meta tensors.
        """
        if isinstance(value, torch.Tensor) and target_name(target) in ("contiguous", "reshape"):
            node = self._nodes.get(value)
            if node in self.unknown_strides:
                return run_on_meta("view_as", (value, value), {}, self.grad_enabled)
        return value

    def _note_draw(self) -> None:
        """Note that the next call draws random numbers; a graph may refuse it."""

    def _is_input(self, value: torch.Tensor) -> bool:
        """Return whether it is an input of the frame; those of a region belong to its caller."""
        return self.root is self and self._nodes[value].op == "placeholder"

    def _describe(
        self, node: Node, value: object, spec: object, lines: tuple[UserLine, ...]
    ) -> None:
        lines = lines_of_call(lines, target_name(node.target))
        node.meta.update(val=value, spec=spec, lines=lines)
        is_input = node.op == "placeholder"
        self.inference.note(value, is_input)
        if is_input:
            return
        if self.fresh_size is not None and isinstance(value, torch.Tensor):
            self.sizes.add_result(node, () if value.is_nested else value.shape)
        if self.inference.holds(value):
            node.meta["inference"] = True
        device = getattr(spec, "device", None)
        certain = strides_are_certain(node.target, device) and not any(
            source in self.unknown_strides for source in node.all_input_nodes
        )
        if not certain and node.target != "contiguous":
            self.unknown_strides.add(node)

    def _emit_modes(self, modes: tuple[bool, Autocast], lines: tuple[UserLine, ...]) -> None:
        (grad, cast), (old_grad, old_cast) = modes, self._emitted_modes
        changes: list[tuple[Any, Any]] = [(switch_grad_mode, (grad,))] if grad != old_grad else []
        for device in DEVICES:
            dtype, old = cast.dtype_on(device), old_cast.dtype_on(device)
            if dtype is not old and dtype is not None:
                changes.append((torch.set_autocast_dtype, (device, dtype)))
            if (dtype is None) != (old is None):
                changes.append((torch.set_autocast_enabled, (device, dtype is not None)))
        for target, arguments in changes:
            node = self.graph.call_function(target, arguments)
            node.meta.update(val=None, spec=None, lines=lines)
        self._emitted_modes = modes

    def _note_writes(self, writer: Node, written: tuple[Node, ...]) -> None:
        self.writes.note(writer, written)
        found: list[tuple[int, Node]] = []
        for memory in set(map(storage_of, written)):
            found += self._inputs_over.get(memory, ())
        for _, node in sorted(found, key=operator.itemgetter(0)):
            self.mutated_inputs.setdefault(node, self.step())
            self.input_writes.append(node)


def _value(node: Node) -> Any:
    return as_torch(node.meta["val"])


def _specs_like(sources: Sequence[Node | None], values: Sequence[object]) -> tuple[object, ...]:
    """Return the spec of each value on the device of its source; None without either."""
    return tuple(
        None if value is None or source is None else spec_on(value, device_of(source))
        for value, source in zip(values, sources, strict=True)
    )


def _identifier(name: str) -> str:
    clean = "".join(char if char.isalnum() or char == "_" else "_" for char in name).strip("_")
    while "__" in clean:
        clean = clean.replace("__", "_")
    if not clean or clean[0].isdigit() or clean == "self":
        return f"_{clean}"
    return clean
