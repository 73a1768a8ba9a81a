"""torch.autograd.grad within the traced code, and leaves that it makes to differentiate by.

Comes in: values of the graph. Goes out: one node that runs autograd's engine over what the graph
has computed so far (graph/gradients.py), or a break where history from outside of the graph, a mode
or a form of the call decides what eager gives.
"""

from __future__ import annotations

from typing import Any

import torch

from ...graph.autocast import OFF
from ...graph.propagate import EagerRaises
from ..breaks import GraphBreak, RefusedTorchCall, TorchCallFailed, UnsupportedArguments
from ..values.base import Args, Kwargs, Machine, Value
from ..values.sequences import SequenceValue, TupleValue
from ..values.tensor import TensorValue, lift, record
from .registry import handles

__all__: list[str] = []

_NAME = "torch.autograd.grad"
_PARAMETERS = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
    "allow_unused", "is_grads_batched", "materialize_grads",
)  # fmt: skip


@handles(torch.autograd.grad)
def _grad(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    outputs = _tensors(machine, given["outputs"], "outputs")
    inputs = _tensors(machine, given["inputs"], "inputs")
    create = _flag(machine, given, "create_graph") is True
    keep = _flag(machine, given, "retain_graph")
    _refuse_forms(machine, given)
    _refuse_foreign_history(machine, inputs)
    incoming = _incoming(machine, outputs, given.get("grad_outputs"))
    call = (
        *([value.node for value in group] for group in (outputs, inputs, incoming)),
        create if keep is None else bool(keep),
        create,
        bool(_flag(machine, given, "allow_unused")),
    )
    try:
        made = machine.graph.differentiate(call, machine.lines())
    except EagerRaises as error:
        kind = type(error.error).__name__
        reason = TorchCallFailed.of(name=_NAME, error=f"{kind}: {error}")
        raise GraphBreak(reason) from None
    return TupleValue(
        machine.constant(None) if node is None else lift(machine, node) for node in made
    )


def _tensors(machine: Machine, value: Value, what: str) -> list[TensorValue]:
    if not isinstance(value, TensorValue | SequenceValue):
        raise _unfollowed(f"{what}: {value.describe()}")
    items = value.items if isinstance(value, SequenceValue) else [value]
    found = [item.realize(machine) for item in items]
    tensors = [item for item in found if isinstance(item, TensorValue)]
    if not tensors or len(tensors) < len(found):
        raise _unfollowed(f"{what} that are no tensors")
    return tensors


def _flag(machine: Machine, given: dict[str, Value], name: str) -> Any:
    return given[name].as_constant(machine) if name in given else None


def _refuse_forms(machine: Machine, given: dict[str, Value]) -> None:
    for name in ("is_grads_batched", "materialize_grads"):
        if _flag(machine, given, name):
            raise _unfollowed(name)
    if _flag(machine, given, "only_inputs") is False:
        raise _unfollowed("only_inputs")


def _refuse_foreign_history(machine: Machine, inputs: list[TensorValue]) -> None:
    """What the engine would find that the graph does not have."""
    graph = machine.graph
    if graph.modes_vary:
        raise _refused("it is called in a backward")
    if graph.has_cast or graph.autocast != OFF:
        raise _refused("the graph has operations under autocast")
    specs = [node.meta["spec"] for node in graph.inputs]
    if any(value.node in graph.inputs for value in inputs) and any(
        spec.requires_grad and not spec.is_leaf for spec in specs
    ):
        raise _refused("an input of the graph was computed from others before")


def _incoming(
    machine: Machine, outputs: list[TensorValue], given: Value | None
) -> list[TensorValue]:
    """The gradients that come into the outputs: given, or ones for outputs of one element."""
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
        if meta.numel() != 1 or meta.is_complex():
            raise _unfollowed("no grad_outputs for an output of several elements")
        value = record(machine, torch.ones_like, [output])
        assert isinstance(value, TensorValue)
    if value.meta.shape != meta.shape or value.meta.dtype is not meta.dtype:
        raise _unfollowed("grad_outputs of another shape or dtype")
    return value


def _unfollowed(what: str) -> GraphBreak:
    return GraphBreak(UnsupportedArguments.of(name=_NAME, what=what))


def _refused(why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=_NAME, why=why))
