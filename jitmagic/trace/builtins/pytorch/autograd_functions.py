"""torch.autograd.Function.apply: the forward is inlined, the backward is a region of the graph.

The forward's operations are recorded without gradients. One node after them attaches the autograd
history to the results. Its backward is traced at the call too, under the frame's guards: a nested
graph (region.py) of the incoming gradients and of what the forward stored on `ctx`. If nothing
requires grad there is no such node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.fx import Node

from ....compat.autograd import FunctionBase, PlainFunction
from ....graph.node_meta import device_of, spec_on, value_of
from ....graph.propagate import EagerRaises
from ....graph.targets.regions import FunctionCall, ProgramBackward, Region
from ....graph.wrappers.wrapping import is_wrapper
from ....spec import TensorSpec
from ...breaks import BackwardRefused, GraphBreak, RefusedTorchCall, TorchCallFailed
from ...effects import EffectLog
from ...input_memory import check_written_inputs
from ...region import RegionBuilder
from ...values.autograd.backward_facts import BackwardFacts
from ...values.autograd.function_context import FunctionContext
from ...values.autograd.rebuilt_objects import ObjectRebuilder
from ...values.base import Args, Kwargs, Machine, ObservedError, Value
from ...values.containers.sequences import TupleValue
from ...values.contexts.torch_contexts import set_grad_mode
from ...values.objects.binding import bind_arguments
from ...values.objects.class_facts import NOTHING, guard_attribute
from ...values.objects.classes import ClassValue
from ...values.objects.constants import ConstantValue
from ...values.objects.functions import CellValue, FunctionValue
from ...values.tensors.tensor import TensorValue, lift
from ..registry import AS_GIVEN, handles, method

__all__ = ["forward_alone"]

_Function: Any = torch.autograd.Function
_BASE = vars(PlainFunction)
_ONCE = once_differentiable(lambda ctx: None).__code__
_SPECIAL = ("boxed_grads_call", "clear_saved_tensors_on_access")  # since torch 2.13


# torch 2.14 made `apply` a classmethod in C; before, a Python classmethod called that one.
@method(FunctionBase, "apply", like=AS_GIVEN)
def _apply(machine: Machine, cls: Value, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(cls, ClassValue):
        raise _refused(cls.describe(), "it is not called on a class")
    for name in _SPECIAL:
        if _fact(machine, cls, name) not in (False, NOTHING):
            raise _refused(cls.live.__name__, f"it sets {name}")
    return _Call(machine, cls, args, kwargs).run()


if isinstance(vars(_Function)["apply"], classmethod):
    handles(_Function.apply.__func__)(
        lambda machine, args, kwargs: _apply(machine, args[0], args[1:], kwargs)
    )


def forward_alone(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """Call the forward of an autograd function without gradients, and add no history."""
    return _Call(machine, cls, args, kwargs).forward_without_gradients()


def _fact(machine: Machine, cls: ClassValue, name: str) -> object:
    """Return the attribute of the class and guard it."""
    raw = cls.peek(machine, name)
    if isinstance(raw, Value):
        raise _refused(cls.live.__name__, f"its {name} was written by the traced code")
    guard_attribute(machine, cls.live, name, raw)
    return raw


def _refused(name: str, why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=f"{name}.apply", why=why))


class _Named(_Function):  # type: ignore[misc]
    """Called with a keyword to test whether `apply` accepts it."""

    @staticmethod
    def forward(x: object) -> object:
        return x

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass


@cache
def _takes_keywords() -> bool:
    """Return whether `apply` accepts keywords: torch 2.11 raises TypeError, 2.13 reorders them."""
    try:
        _Named.apply(x=None)
    except TypeError:
        return False
    return True


class _Call:
    """One call of `apply`."""

    def __init__(self, machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> None:
        self.machine, self.cls, self.name = machine, cls, cls.live.__name__
        self.two_parts = _fact(machine, cls, "setup_context") is not _BASE["setup_context"]
        self.forward = cls.get_attr(machine, "forward").realize(machine)
        self.args = self._bound(args, kwargs)
        kind: type = cls.live._backward_cls  # type: ignore[attr-defined]
        self.context = FunctionContext(machine, kind, self.args)
        self.inputs = [_node(arg) for arg in self.args]

    def _bound(self, args: Args, kwargs: Kwargs) -> list[Value]:
        """Return the forward's arguments, with keywords and defaults in order."""
        if kwargs and not _takes_keywords():
            raise _refused(self.name, "this torch takes no keywords there")
        # Only with setup_context does torch bind the arguments to the signature of forward. A
        # combined forward(ctx, ...) gets them as they were passed.
        if not self.two_parts or not isinstance(self.forward, FunctionValue):
            if kwargs:
                raise _refused(self.name, "it is called with keywords")
            return list(args)
        code = self.forward.code
        # 8 is CO_VARKEYWORDS.
        if code.co_kwonlyargcount or code.co_flags & 8:
            raise _refused(self.name, "its forward has keyword-only parameters")
        slots = bind_arguments(self.machine, self.forward, args, kwargs)
        bound = [slots[name] for name in code.co_varnames[: code.co_argcount]]
        # 4 is CO_VARARGS.
        if code.co_flags & 4:
            rest = slots[code.co_varnames[code.co_argcount]]
            assert isinstance(rest, TupleValue)
            bound += rest.items
        return [value.realize(self.machine) for value in bound]

    # -- the forward -----------------------------------------------------------------------------

    def run(self) -> Value:
        machine, graph = self.machine, self.machine.graph
        if graph.is_transformed:  # levels that the trace does not see may need its backward
            raise _refused(self.name, "it is called under a transform of torch.func")
        last = next(iter(reversed(graph.graph.nodes)), None)
        mode = graph.grad_enabled
        differentiates = mode and any(n is not None and _requires_grad(n) for n in self.inputs)
        output = self.forward_without_gradients()
        made = output.items if isinstance(output, TupleValue) else [output]
        results = [value.realize(machine) for value in made]
        returned = {node for node in self.inputs if node in map(_node, results)} - {None}
        dirty = self.context.marked["mark_dirty"]
        if differentiates or returned or dirty:
            self._refuse_foreign(results, last)
            results = self._give_history(results, differentiates)
        return TupleValue(results) if isinstance(output, TupleValue) else results[0]

    def forward_without_gradients(self) -> Value:
        machine, context = self.machine, self.context
        graph = machine.graph
        # In a backward (`varies`) the program may not switch the grad mode, so the region's setter
        # breaks. This switch is torch's own, hence the plain assignment.
        mode, varies = graph.grad_enabled, graph.modes_vary
        if varies:
            graph.grad_enabled = False
        elif mode:
            set_grad_mode(machine, False)
        try:
            if not self.two_parts:
                return self.forward.call(machine, [context, *self.args], {}).realize(machine)
            output = self.forward.call(machine, self.args, {}).realize(machine)
            setup = self.cls.get_attr(machine, "setup_context").realize(machine)
            setup.call(machine, [context, TupleValue(self.args), output], {})
            return output
        finally:
            if varies:
                graph.grad_enabled = mode
            elif mode:
                set_grad_mode(machine, mode)

    def _refuse_foreign(self, results: Sequence[Value], last: Node | None) -> None:
        """Break for results that are neither inputs nor made by the forward: autograd
        changes them. Tensors without history that the graph made before may change.
        """
        own = set(self.inputs)
        for node in reversed(self.machine.graph.graph.nodes):
            if node is last:
                break
            own |= {node} if node.op != "placeholder" else set()
        nodes = {node for value in results if (node := _node(value)) is not None} - own
        if not all(map(self._is_without_history, nodes)):
            raise _refused(self.name, "it returns a tensor that is neither an input nor its own")

    def _is_without_history(self, node: Node) -> bool:
        """Return whether the node makes a tensor of its own that autograd does not know."""
        is_made = node.graph is self.machine.graph.graph and node.op.startswith("call")
        tensor = node.meta["val"]
        return is_made and not tensor.requires_grad and not tensor._is_view()

    # -- the node --------------------------------------------------------------------------------

    def _give_history(self, results: Sequence[Value], differentiates: bool) -> list[Value]:
        machine, graph = self.machine, self.machine.graph
        nodes = [_node(value) for value in results]
        marked = {name: [_node(v) for v in of] for name, of in self.context.marked.items()}
        given = tuple(self.inputs), tuple(nodes), tuple(marked["save_for_backward"])
        if any(is_wrapper(value_of(node)) for part in given for node in part if node is not None):
            raise _refused(self.name, "an argument, result or saved tensor is a tensor subclass")
        # torch warns of such a mark when apply() returns.
        if any(node not in self.inputs for node in marked["mark_dirty"]):
            raise _refused(self.name, "it marks a tensor as dirty that is not an input")
        # torch raises for this, with setup_context only.
        if self.two_parts and {*nodes} & {*self.inputs} & {*given[2]} - {None}:
            raise _refused(self.name, "it returns an input that it saves")
        constant = [n for n in marked["mark_non_differentiable"] if n in nodes]
        _, once = self._backward(self.cls) if differentiates else (None, False)
        call = FunctionCall(
            self.name,
            dirty=[self.inputs.index(node) for node in marked["mark_dirty"]],
            constant=[nodes.index(node) for node in constant],
            materialize=self.context.materialize,
            once=once,
        )

        def follow() -> tuple[tuple[Node, ...], tuple[object, ...]]:
            return self._follow(call, nodes) if differentiates else ((), ())

        try:
            made = graph.call_function(call, given, machine.lines(), follow)
        except EagerRaises as error:
            kind = type(error.error).__name__
            raise GraphBreak(
                TorchCallFailed.of(name=f"{self.name}.apply", error=f"{kind}: {error}")
            ) from None
        if graph.root.mutated_inputs:
            check_written_inputs(machine, machine.notes.root)
        pairs = zip(results, made, strict=True)
        return [value if node is None else self._renewed(value, node) for value, node in pairs]

    def _renewed(self, value: Value, node: Node) -> Value:
        """Return the value of a result under its new node.

        It is the tensor that the forward returned, or a new one for an input that was returned as
        it is.
        """
        assert isinstance(value, TensorValue)
        if value.node is node:
            return value
        if value.node in self.inputs:
            return lift(self.machine, node)
        value.node = node
        self.machine.notes.owners[node] = value
        return value

    # -- the backward ----------------------------------------------------------------------------

    def _backward(self, cls: ClassValue) -> tuple[Value, bool]:
        """Return the class's backward, and whether it is once_differentiable."""
        names = ("backward", "vjp")
        own = [n for n in names if _fact(self.machine, cls, n) is not _BASE[n]]
        if len(own) != 1:
            raise _refused(self.name, "it has no backward, or two")
        return _without_once(self.machine, cls.get_attr(self.machine, own[0]).realize(self.machine))

    def _follow(
        self, call: FunctionCall, made: Sequence[Node | None]
    ) -> tuple[tuple[Node, ...], tuple[object, ...]]:
        """Trace the backward of the call; return what it captures and what is left on `ctx`."""
        facts = self.machine.backward_facts
        if facts is not None and self.cls.live in facts.functions:
            # A linear function is its own backward's backward: all_reduce calls itself without end.
            # Derivatives of so high an order run the program's code.
            rebuilder = ObjectRebuilder(self.machine, facts, in_backward=True)
            make, left = rebuilder.original(self.cls, self.context.attributes)
            call.original = ProgramBackward(make, ())
            return (), left
        if facts is not None:  # in the backward of another function
            facts.functions.append(self.cls.live)
            call.backward, captured = self._region(made, self.cls)
            facts.functions.pop()
            return captured, ()
        facts = BackwardFacts(self.machine, self.name)
        facts.functions.append(self.cls.live)
        with facts.followed():
            cls = facts.rebind(self.cls).realize(self.machine)
            assert isinstance(cls, ClassValue)
            self.context.rebind = facts.rebind
            call.backward, captured = self._region(made, cls)
            facts.check_copies()
            rebuilder = ObjectRebuilder(self.machine, facts)
            make, left = rebuilder.original(self.cls, self.context.attributes)
        call.original = ProgramBackward(make, facts.guards)
        return captured, left

    def _region(
        self, made: Sequence[Node | None], cls: ClassValue
    ) -> tuple[Region, tuple[Node, ...]]:
        """Return the backward as a region, and the nodes that it captured."""
        machine, outer = self.machine, self.machine.notes
        region = RegionBuilder(outer, self.name)
        # Effects of the backward happen when it runs, which may be twice or never. They go into a
        # log of their own, which has to stay empty.
        effects, machine.effects, machine.notes = machine.effects, EffectLog(), region.notes  # type: ignore[misc]
        try:
            gradients = [self._gradient(region, n, node) for n, node in enumerate(made)]
            self.context.saved = TupleValue(self._saved(region))
            backward, _ = self._backward(cls)
            answer = backward.call(machine, [self.context, *gradients], {}).realize(machine)
            returned = self._returned(answer)
            if machine.effects.count:
                raise self._unfollowed("it has side effects")
        except ObservedError as error:
            kind = error.error.python_type(machine).__name__
            raise self._unfollowed(f"it raises {kind}") from None
        finally:
            machine.notes, machine.effects = outer, effects  # type: ignore[misc]
        return region.close(returned)

    def _gradient(self, region: RegionBuilder, index: int, node: Node | None) -> Value:
        """Return the gradient that the backward receives for a result."""
        context = self.context
        constant = [_node(value) for value in context.marked["mark_non_differentiable"]]
        if node is None or (not context.materialize and node in constant):
            return ConstantValue(None)
        spec = spec_on(node.meta["val"].detach(), device_of(node))
        floats = spec.dtype.is_floating_point or spec.dtype.is_complex
        made = region.feed("gradient", index, _wanting(spec) if floats else spec)
        # Autograd promises no layout: the gradient of x.sum() is expanded, with strides of 0.
        region.unknown_strides.add(made)
        return lift(self.machine, made)

    def _saved(self, region: RegionBuilder) -> list[Value]:
        """Return the values of `saved_tensors` with the history that they have now."""
        values: list[Value] = []
        for index, saved in enumerate(self.context.marked["save_for_backward"]):
            if not isinstance(saved, TensorValue):
                values.append(ConstantValue(None))
                continue
            node = region.feed("saved", index, spec_on(saved.meta, device_of(saved.node)))
            if saved.node in region.unknown_strides:
                region.unknown_strides.add(node)
            made = region.notes.owners[node] = TensorValue(node, saved.kind)
            values.append(made)
        return values

    def _returned(self, answer: Value) -> list[Node | None]:
        """Return the nodes of the gradients, one for each argument of the forward."""
        parts = answer.items if isinstance(answer, TupleValue) else [answer]
        values = [value.realize(self.machine) for value in parts]
        # torch accepts more gradients than arguments if the extra ones are None.
        extra = values[len(self.args) :]
        if len(values) < len(self.args) or any(_node(value) is not None for value in extra):
            count = f"{len(values)} gradients for {len(self.args)} arguments"
            raise self._unfollowed(f"it returns {count}")
        for value in values:
            # A number is refused by the engine with an error of its own.
            known = isinstance(value, TensorValue) or (
                value.is_constant(self.machine) and value.as_constant(self.machine) is None
            )
            if not known:
                raise self._unfollowed(f"it returns a {value.describe()}")
        return [_node(value) for value in values[: len(self.args)]]

    def _unfollowed(self, why: str) -> GraphBreak:
        return GraphBreak(BackwardRefused.of(name=self.name, why=why))


def _node(value: Value) -> Node | None:
    return value.node if isinstance(value, TensorValue) else None


def _requires_grad(node: Node) -> bool:
    wanted: bool = node.meta["val"].requires_grad
    return wanted


def _wanting(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a gradient with a history, for a backward that is differentiated."""
    return replace(spec, requires_grad=True, is_leaf=False)


def _without_once(machine: Machine, backward: Value) -> tuple[Value, bool]:
    """Return the function inside torch's once_differentiable, which the node applies."""
    if not isinstance(backward, FunctionValue) or backward.code is not _ONCE:
        return backward, False
    cell = backward.closure[_ONCE.co_freevars.index("fn")].realize(machine)
    inner = cell.load(machine) if isinstance(cell, CellValue) else None
    if inner is None:
        raise _refused("once_differentiable", "its function is not known")
    return inner.realize(machine), True
