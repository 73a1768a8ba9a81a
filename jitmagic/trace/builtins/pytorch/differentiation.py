"""torch.autograd.grad, backward() and zero_grad() within the traced code.

One node runs autograd's engine over the graph so far (graph/gradients.py); backward() also sets the
new values of `.grad`. The call is a break where history from outside of the graph, hooks, a mode or
unusual arguments affect eager's result.

zero_grad makes each parameter's gradient None, whatever it was, or writes zeros to it. If the
parameters cannot be traced, the same call happens at the exit; no gradient may be read in this
graph after it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import Node

from ....call_warnings import raises_warnings
from ....compat.flags import get_warn_always
from ....graph.gradients import copied_gradient, first_gradient
from ....graph.node_meta import device_of
from ....graph.propagate import DataDependent, EagerRaises
from ....graph.symbolic.data_split import makers_in
from ....graph.targets.regions import FunctionCall
from ....guards.state import anomaly_mode
from ...breaks import GraphBreak, RefusedTorchCall, TorchCallFailed, UnsupportedArguments
from ...python_loops.training import note_gradients
from ...values.autograd.traced_backwards import has_outdated_facts
from ...values.base import Args, Kwargs, Machine, ObservedError, Value
from ...values.containers.mappings import ViewValue
from ...values.containers.sequences import SequenceValue, TupleValue
from ...values.objects.callables import BuiltinValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import is_none, unpack
from ...values.tensors.gradients import (
    GRADIENTS_GONE,
    read_gradient,
    rely_on_no_hooks,
    store_gradient,
)
from ...values.tensors.tensor import TensorValue, lift, record
from ...values.tensors.tensor_hooks import TensorHook, hooks_run_by
from ..registry import handles
from .process_state import read_state

__all__: list[str] = []


# -- torch.autograd.grad ---------------------------------------------------------------------------


_NAME = "torch.autograd.grad"
_ones_like = torch.ones_like  # this object, even if it is replaced later
_PARAMETERS = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
    "allow_unused", "is_grads_batched", "materialize_grads",
)  # fmt: skip


@handles(torch.autograd.grad)
def _grad(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    arguments = dict(zip(_PARAMETERS, args, strict=False))
    outputs = _tensors(machine, arguments["outputs"], "outputs")
    inputs = _tensors(machine, arguments["inputs"], "inputs")
    create = _flag(machine, arguments, "create_graph") is True
    keep = _flag(machine, arguments, "retain_graph")
    _refuse_forms(machine, arguments)
    _refuse_foreign_history(machine, inputs)
    if hooks_run_by(machine, outputs):
        raise _refused("a tensor has hooks")
    for value in inputs:  # the engine runs the hooks of tensors whose gradient it computes
        rely_on_no_hooks(machine, value)
    incoming = _incoming(machine, outputs, arguments.get("grad_outputs"))
    call = (
        *([value.node for value in group] for group in (outputs, inputs, incoming)),
        create if keep is None else bool(keep),
        create,
        bool(_flag(machine, arguments, "allow_unused")),
    )
    computed = _run(machine, _NAME, call)
    return TupleValue(
        machine.constant(None) if node is None else lift(machine, node) for node in computed
    )


def _run(machine: Machine, name: str, call: tuple[object, ...]) -> tuple[Node | None, ...]:
    if machine.graph.is_transformed:
        raise _refused("it is called under a transform of torch.func", name)
    if has_outdated_facts(machine.notes):
        raise _refused(
            "the backward of an autograd function reads what the frame has changed", name
        )
    lives = machine.notes.live_inputs()
    if any(live.is_inference() for live in lives):  # a compiled graph saves nothing, eager raises
        raise _refused("autograd cannot save an inference tensor", name)
    changed = machine.graph.default_dtype is not None
    if changed and any(isinstance(n.target, FunctionCall) for n in machine.graph.graph.nodes):
        raise _refused("it runs the program's own backward under another default dtype", name)
    if makers_in(list(machine.graph.graph.nodes)):  # its pieces are differentiated by the engine
        raise _refused("a part of the same graph runs in eager", name)
    try:
        nodes: tuple[Node | None, ...] = machine.graph.differentiate(call, machine.lines())
    except DataDependent as why:
        raise _refused(str(why), name) from None
    except EagerRaises as error:
        kind = type(error.error).__name__
        reason = TorchCallFailed.of(name=name, error=f"{kind}: {error}")
        raise GraphBreak(reason) from None
    return nodes


# -- backward() ------------------------------------------------------------------------------------

_BACKWARD = "torch.autograd.backward"
_BACKWARD_PARAMETERS = (
    "tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs",
)  # fmt: skip


@handles(torch.Tensor.backward)
def _backward_method(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    # The function has one more parameter before the last, `grad_variables`.
    return _backward(machine, [*args[:4], machine.constant(None), *args[4:]], {})


@handles(torch.autograd.backward)
def _backward(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Compute the gradients of all leaves that the engine would reach, and accumulate them."""
    arguments = dict(zip(_BACKWARD_PARAMETERS, args, strict=False))
    if not is_none(arguments.get("grad_variables", machine.constant(None))):
        raise _unfollowed("other arguments", _BACKWARD)
    create = bool(_flag(machine, arguments, "create_graph"))
    keep = _flag(machine, arguments, "retain_graph")
    outputs = _tensors(machine, arguments["tensors"], "tensors")
    leaves = _leaves(machine, outputs, arguments.get("inputs"))
    incoming = _incoming(machine, outputs, arguments.get("grad_tensors"))
    watched = hooks_run_by(machine, outputs)
    # Hooks are traced for plain gradients of all leaves only.
    if watched and (create or "inputs" in arguments):
        raise _refused("a tensor has hooks", _BACKWARD)
    if create:
        _warn_of_cycles(machine)
    retained = [watch.tensor for watch in watched if watch.hook is None]
    start = [value.node for value in outputs], [value.node for value in incoming]
    replaced = _run_hooks(machine, start, watched)
    call = (
        start[0],
        [tensor.node for tensor in (*leaves, *retained)],
        start[1],
        # As in eager, retain_graph defaults to create_graph.
        create if keep is None else bool(keep),
        create,
        True,
        *_extra(replaced),
    )
    made = _run(machine, _BACKWARD, call)
    note_gradients(machine)
    others = (*made, *start[1], *replaced.values())
    for tensor, gradient in zip((*leaves, *retained), made, strict=True):
        if gradient is None:
            continue
        if create:
            _accumulate_with_history(machine, tensor, gradient)
        elif tensor in leaves:
            _accumulate(machine, tensor, gradient, machine.graph.is_fresh(gradient, others))
        else:
            _retain(machine, tensor, replaced.get(tensor.node, gradient))
    return machine.constant(None)


def _run_hooks(
    machine: Machine, start: tuple[list[Node], list[Node]], watched: list[TensorHook]
) -> dict[Node, Node]:
    """Return the gradients that hooks replace, by the node of their tensor.

    Each hook runs with the engine's gradient of its tensor after the hooks before it. The backend
    computes the common parts of these calls of the engine once.
    """
    replaced: dict[Node, Node] = {}
    for watch in watched:
        if watch.hook is None:
            continue
        node = watch.tensor.node
        gradient = replaced.get(node)
        if gradient is None:
            call = (start[0], [node], start[1], True, False, True, *_extra(replaced))
            (gradient,) = _run(machine, _BACKWARD, call)
        answer = None if gradient is None else _answer(machine, watch, gradient)
        if answer is not None:
            replaced[node] = answer
    return replaced


def _extra(replaced: dict[Node, Node]) -> tuple[list[Node], ...]:
    """Return the further arguments of `gradients`."""
    return (list(replaced), list(replaced.values())) if replaced else ()


def _answer(machine: Machine, watched: TensorHook, gradient: Node) -> Node | None:
    """Return the result of a hook, run without grad mode as in the engine."""
    assert watched.hook is not None
    meta: torch.Tensor = gradient.meta["val"]
    version = meta._version
    with _without_grad_mode(machine):
        try:
            answer = watched.hook.call(machine, [lift(machine, gradient)], {}).realize(machine)
        except ObservedError:  # the engine would have accumulated some gradients by then
            raise _refused("a hook raises", _BACKWARD) from None
    if meta._version != version:
        # The engine may pass the same gradient to other nodes, which would see the write.
        raise _refused("a hook writes to a gradient", _BACKWARD)
    if is_none(answer):
        return None
    if not isinstance(answer, TensorValue) or answer.meta.requires_grad:
        raise _refused("a hook returns something other than a gradient", _BACKWARD)
    alike = (answer.meta.shape, answer.meta.dtype) == (meta.shape, meta.dtype)
    if not alike or device_of(answer.node) != device_of(gradient):
        raise _refused("a hook returns a gradient of another kind", _BACKWARD)
    return answer.node


def _retain(machine: Machine, tensor: TensorValue, gradient: Node) -> None:
    """Set `.grad` as the hook of retain_grad() does: a copy, or a sum that is a new tensor."""
    with _without_grad_mode(machine):
        value = lift(machine, gradient)
        if tensor.grad is None or is_none(tensor.grad):
            layout = machine.constant(torch.contiguous_format)
            tensor.grad = record(machine, "clone", [value], {"memory_format": layout})
        else:
            tensor.grad = record(machine, operator.add, [tensor.grad, value])


@contextmanager
def _without_grad_mode(machine: Machine) -> Iterator[None]:
    """Disable grad mode, as the engine does for the code that it calls."""
    mode = machine.graph.grad_enabled
    machine.graph.set_grad_enabled(False)
    try:
        yield
    finally:
        machine.graph.set_grad_enabled(mode)


def _leaves(
    machine: Machine, outputs: list[TensorValue], inputs: Value | None
) -> list[TensorValue]:
    """Return the leaves whose gradients are accumulated: all in the history, or those requested."""
    graph = machine.graph
    if graph.modes_vary or graph.root is not graph:
        raise _refused("it is called in a backward", _BACKWARD)
    nodes = graph.reachable_leaves([output.node for output in outputs])
    if not nodes:
        raise _refused("no tensor requires grad", _BACKWARD)
    if any(node is None for node in nodes):
        raise _refused("the history goes on outside of the graph", _BACKWARD)
    leaves = [value for node in nodes if isinstance(value := lift(machine, node), TensorValue)]
    if any(leaf.node is not node for leaf, node in zip(leaves, nodes, strict=True)):
        raise _refused("a leaf no longer requires grad", _BACKWARD)
    if inputs is not None and not is_none(inputs):
        wanted = _tensors(machine, inputs, "inputs")
        if len(set(wanted)) < len(wanted) or any(tensor not in leaves for tensor in wanted):
            raise _unfollowed("such inputs", _BACKWARD)
        leaves = wanted
    # In anomaly mode the engine looks for nan after each node and prints the traceback of its
    # forward. The graph has one node for all of them.
    if read_state(machine, anomaly_mode).truth(machine):
        raise _refused("anomaly mode is on", _BACKWARD)
    for leaf in leaves:
        rely_on_no_hooks(machine, leaf)
    return leaves


def _accumulate(machine: Machine, leaf: TensorValue, gradient: Node, own: bool) -> None:
    """Add to `.grad`, in place if there is one, so that other holders of that tensor see it."""
    before = leaf.get_attr(machine, "grad").realize(machine)
    if is_none(before):
        # AccumulateGrad takes over a gradient that nothing else refers to (`own`) and copies any
        # other, so that a later write to `.grad` does not change it.
        total = machine.graph.call(first_gradient, (gradient, leaf.node, own))
        store_gradient(machine, leaf, lift(machine, total))
        return
    if not isinstance(before, TensorValue) or before.meta.requires_grad:
        raise _refused("it adds to a gradient with a history", _BACKWARD)
    with _without_grad_mode(machine):
        record(machine, "add_", [before, lift(machine, gradient)])


def _accumulate_with_history(machine: Machine, leaf: TensorValue, gradient: Node) -> None:
    """Set `.grad` to a new tensor: with create_graph=True nothing is written in place."""
    before = leaf.get_attr(machine, "grad").realize(machine)
    if is_none(before):
        total = lift(machine, machine.graph.call(copied_gradient, (gradient, leaf.node)))
    elif isinstance(before, TensorValue):
        total = record(machine, operator.add, [before, lift(machine, gradient)])
    else:
        raise _refused("it adds to such a gradient", _BACKWARD)
    store_gradient(machine, leaf, total)


def _warn_of_cycles(machine: Machine) -> None:
    """Record the engine's warning about create_graph=True, which it gives once per process.

    Only the engine knows whether it has. A filter that makes it an error would end the program at
    its line.
    """
    if not machine.graph.grad_enabled:
        raise _refused("grad mode is off", _BACKWARD)
    if read_state(machine, get_warn_always).truth(machine) or raises_warnings(UserWarning):
        raise _refused("it warns", _BACKWARD)
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), requires_grad=True).backward(create_graph=True)


def _tensors(machine: Machine, value: Value, what: str) -> list[TensorValue]:
    if isinstance(value, ViewValue):  # of a dictionary of parameters
        value = TupleValue(unpack(machine, value))
    if not isinstance(value, TensorValue | SequenceValue):
        raise _unfollowed(f"{what}: {value.describe()}")
    items = value.items if isinstance(value, SequenceValue) else [value]
    values = [item.realize(machine) for item in items]
    tensors = [item for item in values if isinstance(item, TensorValue)]
    if not tensors or len(tensors) < len(values):
        raise _unfollowed(f"{what} that are not tensors")
    return tensors


def _flag(machine: Machine, arguments: dict[str, Value], name: str) -> object:
    return arguments[name].as_constant(machine) if name in arguments else None


def _refuse_forms(machine: Machine, arguments: dict[str, Value]) -> None:
    for name in ("is_grads_batched", "materialize_grads"):
        if _flag(machine, arguments, name):
            raise _unfollowed(name)
    if _flag(machine, arguments, "only_inputs") is False:
        raise _unfollowed("only_inputs")


def _refuse_foreign_history(machine: Machine, inputs: list[TensorValue]) -> None:
    """Break if the engine would find history that is not in the graph."""
    graph = machine.graph
    if graph.modes_vary:
        raise _refused("it is called in a backward")
    specs = [node.meta["spec"] for node in graph.inputs]
    if any(value.node in graph.inputs for value in inputs) and any(
        spec.requires_grad and not spec.is_leaf for spec in specs
    ):
        raise _refused("an input of the graph was computed from others before")


def _incoming(
    machine: Machine, outputs: list[TensorValue], given: Value | None
) -> list[TensorValue]:
    """Return the gradients of the outputs: those passed, or ones for outputs of one element."""
    if given is None or (given.is_constant(machine) and given.as_constant(machine) is None):
        values: list[Value] = [machine.constant(None) for _ in outputs]
    else:
        values = given.items if isinstance(given, SequenceValue) else [given]
    if len(values) != len(outputs):
        raise _unfollowed(f"{len(values)} grad_outputs for {len(outputs)} outputs")
    pairs = zip(outputs, values, strict=True)
    return [_seed(machine, output, value.realize(machine)) for output, value in pairs]


def _seed(machine: Machine, output: TensorValue, value: Value) -> TensorValue:
    meta = output.meta
    if not isinstance(value, TensorValue):
        # torch makes the gradient of ones for real scalar outputs only.
        if meta.numel() != 1 or meta.is_complex():
            raise _unfollowed("no grad_outputs for an output of several elements")
        value = record(machine, _ones_like, [output])
        assert isinstance(value, TensorValue)
    if value.meta.shape != meta.shape or value.meta.dtype is not meta.dtype:
        raise _unfollowed("grad_outputs of another shape or dtype")
    return value


def _unfollowed(what: str, name: str = _NAME) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=name, what=what))


def _refused(why: str, name: str = _NAME) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=name, why=why))


# -- zero_grad() -----------------------------------------------------------------------------------


def _register(function: object) -> None:
    @handles(function)
    def _clear(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        owner, *given = args
        known = isinstance(owner, InstanceValue) and len(given) < 2
        if not known:
            owner.refuse(machine, "zero_grad()")
        if given and not given[0].truth(machine):
            _write_zeros(machine, _parameters(machine, owner))
            return machine.constant(None)
        try:
            parameters = _parameters(machine, owner)
        except GraphBreak:
            if owner.source is None:
                raise
            machine.effects.perform(BuiltinValue(function), args, kwargs)
            # The call happens after the graph: gradients read from here on would be the old ones.
            machine.notes.marks.add(GRADIENTS_GONE)
            return machine.constant(None)
        for parameter in parameters:
            store_gradient(machine, parameter, machine.constant(None))
        return machine.constant(None)


_register(torch.optim.Optimizer.zero_grad)
_register(torch.nn.Module.zero_grad)


def _parameters(machine: Machine, owner: Value) -> list[TensorValue]:
    if issubclass(owner.python_type(machine), torch.nn.Module):
        found = unpack(machine, owner.call_method(machine, "parameters", [], {}))
    else:
        groups = unpack(machine, owner.get_attr(machine, "param_groups"))
        key = machine.constant("params")
        lists = [group.realize(machine).get_item(machine, key) for group in groups]
        found = [parameter for one in lists for parameter in unpack(machine, one)]
    parameters = [parameter.realize(machine) for parameter in found]
    if not all(isinstance(parameter, TensorValue) for parameter in parameters):
        owner.refuse(machine, "zero_grad()")
    return parameters  # type: ignore[return-value]


def _write_zeros(machine: Machine, parameters: list[TensorValue]) -> None:
    """Write zeros one by one, where eager uses lists; the order does not matter."""
    for parameter in parameters:
        gradient = read_gradient(machine, parameter)
        if is_none(gradient):
            continue
        if not isinstance(gradient, TensorValue) or gradient.meta.requires_grad:
            raise GraphBreak(UnsupportedArguments.of(name="zero_grad", what="such gradients"))
        record(machine, "zero_", [gradient])
