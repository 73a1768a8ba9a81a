"""torch.utils.checkpoint: nodes of the graph that backward recomputes.

The function is traced like any call and its nodes are marked (`meta["checkpoint"]`, one
`Recomputed` for each call). autograd/partition.py saves the inputs of these nodes and their random
numbers. Eager runs the function a second time; where that would be visible (it writes to memory
from before the call, prints, or draws other numbers) the call is a graph break. Guards on Python
state that it reads are checked again by the backward (trace/values/autograd/backward_facts.py).

The reentrant form gives the same gradients where an argument requires grad, all results do, and
what the function captures are leaves; otherwise it is a graph break. Its backward raises, as in
eager, if `torch.autograd.grad` calls it.

Selective checkpointing: the policy, or list of operators, that `context_fn` gives to
`create_selective_checkpoint_contexts` is rebuilt for each compile and asked about each ATen call.
What a policy reads is not guarded: it decides about memory, not values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils import checkpoint

from ....graph.memory import storage_of
from ....graph.targets.recomputed import Policy, Recomputed, Rerun
from ....guards.source import Globals
from ...breaks import GraphBreak, RefusedTorchCall, UnsupportedArguments
from ...result import Recipe
from ...values.autograd.backward_facts import BackwardFacts
from ...values.autograd.rebuilt_objects import ObjectRebuilder
from ...values.autograd.traced_backwards import SavedObjects
from ...values.base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, TupleValue
from ...values.numbers.number import NumberValue
from ...values.objects.monkey_patches import unwrap_function
from ...values.tensors.tensor import TensorValue
from ..registry import handles

__all__: list[str] = []

_NAME = "torch.utils.checkpoint.checkpoint"
_SELECTIVE = "torch.utils.checkpoint.create_selective_checkpoint_contexts"
_STANDARD = {"context_fn": checkpoint.noop_context_fn, "debug": False, "use_reentrant": False}
# Settings that control the comparison of the second run with the first, and its early stop.
_NO_MATTER = ("determinism_check", "early_stop")


@handles(checkpoint.checkpoint, unwrap_function(checkpoint.checkpoint))
def _checkpoint(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if machine.graph.is_transformed:  # its backward is an error in eager
        raise _refused("it is called under a transform of torch.func")
    own = {name: kwargs[name].realize(machine) for name in _STANDARD if name in kwargs}
    given = {name: value for name, value in kwargs.items() if name not in (*_STANDARD, *_NO_MATTER)}
    same_draws = given.pop("preserve_rng_state", machine.constant(True)).realize(machine)
    policy = _policy_of(machine, own)
    is_reentrant = "use_reentrant" in own and _is(machine, own["use_reentrant"], True)
    if is_reentrant:
        del own["use_reentrant"]
        if own or given or policy is not None:
            raise _refused("its reentrant form takes no such argument")
        _check_reentrant_arguments(machine, args[1:])
    others = [name for name, value in own.items() if not _is(machine, value, _STANDARD[name])]
    # Without the argument torch 2.13 warns and takes the reentrant form, which runs the function
    # without grad mode and nests a call of the engine in the backward.
    if others or not (is_reentrant or "use_reentrant" in own):
        what = others[0] if others else "use_reentrant"
        raise _refused(f"{what} affects the backward alone")
    before, changes = list(machine.graph.graph.nodes), machine.effects.changes
    keeps_draws = bool(same_draws.as_constant(machine))
    # Inside of another region or a backward, which runs again as a whole under facts of its own.
    if machine.backward_facts is not None:
        result, region = args[0].realize(machine).call(machine, args[1:], given), Recomputed(None)
    else:
        result, region = _followed(machine, args, given, keeps_draws, policy, is_reentrant)
    # Eager runs the function twice, so a write or an effect would happen twice.
    made = _since(machine.graph.graph.nodes, before)
    if machine.effects.changes != changes or _writes_outside(made, before):
        raise _refused("backward runs it again, and it changes older objects")
    if any("random" in node.meta for node in made) and not keeps_draws:
        raise _refused("backward draws other numbers (preserve_rng_state=False)")
    if is_reentrant and machine.graph.grad_enabled:
        _check_reentrant_results(args[1:], result, made)
    _mark(made, region)
    return result


def _followed(
    machine: Machine,
    args: Args,
    given: Kwargs,
    keeps_draws: bool,
    policy: Value | None,
    is_reentrant: bool,
) -> tuple[Value, Recomputed]:
    """Return the function's result, and how backward can run it again."""
    facts = BackwardFacts(machine, _NAME)
    names = list(given)
    with facts.followed():
        function, *rest = [facts.rebind(arg) for arg in (*args, *given.values())]
        positional, named = rest[: len(args) - 1], rest[len(args) - 1 :]
        result = function.realize(machine).call(
            machine, positional, dict(zip(names, named, strict=True))
        )
        result = _checked_result(machine, result.realize(machine))
        facts.check_copies()
        chosen = () if policy is None else (policy,)
        make, left = ObjectRebuilder(machine, facts).rebuilt([*chosen, *args, *given.values()])
    if facts.is_stale:
        raise _refused("it reads an object that the frame has changed")
    if not all(isinstance(node, Node) for node in left):
        raise _refused("it takes a size")
    rerun = Rerun(
        make, len(left), names, facts.guards, keeps_draws, policy is not None, is_reentrant
    )
    for index, node in enumerate(left):
        node.meta.setdefault("enters", {})[rerun] = index
    return result, Recomputed(rerun, None if policy is None else _maker_of_policy(machine, policy))


def _check_reentrant_arguments(machine: Machine, args: Args) -> None:
    if machine.backward_facts is not None:
        raise _refused("its reentrant form is nested")
    # A call must hold an object for its backward, which then checks how it is called.
    machine.notes.root.of(SavedObjects).index(Globals())
    if machine.graph.grad_enabled and not any(map(_requires_grad, args)):
        raise _refused("without an argument that requires grad, its reentrant form warns")


def _requires_grad(value: Value) -> bool:
    return isinstance(value, TensorValue) and value.meta.requires_grad


def _check_reentrant_results(args: Args, result: Value, made: Sequence[Node]) -> None:
    """Break where eager's reentrant form gives other gradients: it differentiates arguments and
    leaves, and all of its results require grad.
    """
    given = {value.node for value in args if isinstance(value, TensorValue)}
    results = result.items if isinstance(result, TupleValue) else (result,)
    memory = {storage_of(node) for node in given}
    for value in results:
        if not _requires_grad(value) or storage_of(value.node) in memory:  # type: ignore[attr-defined]
            raise _refused("its reentrant form makes every result require grad")
    inside = set(made)
    for node in (source for one in made for source in one.all_input_nodes):
        meta = node.meta.get("val")
        if node in inside or node in given or not isinstance(meta, torch.Tensor):
            continue
        if meta.requires_grad and not meta.is_leaf:
            raise _refused("its reentrant form captures a tensor that the program has computed")


class _Contexts(Value):
    """One of the two contexts that `create_selective_checkpoint_contexts` returns."""

    __slots__ = ("created_at_step", "policy")

    def __init__(self, machine: Machine, policy: Value) -> None:
        super().__init__()
        self.policy, self.created_at_step = policy, machine.step

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a context of selective checkpointing", self.created_at_step)


@handles(checkpoint.create_selective_checkpoint_contexts)
def _selective_contexts(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise GraphBreak(UnsupportedArguments.of(name=_SELECTIVE, what="such arguments"))
    return TupleValue([_Contexts(machine, args[0]) for _ in range(2)])


def _policy_of(machine: Machine, own: dict[str, Value]) -> Value | None:
    """Return the policy that `context_fn` makes, and remove the argument; None if it makes none."""
    function = own.get("context_fn")
    if function is None or _is(machine, function, checkpoint.noop_context_fn):
        return None
    made = function.call(machine, [], {}).realize(machine)
    contexts = made.realized(machine) if isinstance(made, TupleValue) else []
    if len(contexts) != 2 or not all(isinstance(one, _Contexts) for one in contexts):
        return None  # the argument stays, and is refused
    del own["context_fn"]
    first = contexts[0]
    assert isinstance(first, _Contexts)
    return first.policy.realize(machine)


def _maker_of_policy(machine: Machine, policy: Value) -> Callable[[], Policy]:
    """Return a function that builds the policy anew from the present objects of the frame."""
    facts = BackwardFacts(machine, _SELECTIVE)
    make, left = ObjectRebuilder(machine, facts).rebuilt([policy])
    if left:
        raise _refused("its policy reads a tensor or a number of the frame")
    sources = machine.notes.root.of(SavedObjects)
    held = tuple(source.read(machine.snapshot) for source in sources)
    return lambda: Policy(make((), held)[0])


def _checked_result(machine: Machine, result: Value) -> Value:
    """Return the result, if it contains only constants and tensors that the function has made."""
    if isinstance(result, TupleValue) and result.source is None:
        return TupleValue([_checked_result(machine, item) for item in result.realized(machine)])
    if isinstance(result, ListValue) and result.source is None:
        return ListValue([_checked_result(machine, item) for item in result.realized(machine)])
    if isinstance(result, DictValue) and result.source is None and result.kind is dict:
        pairs = [
            (
                _checked_result(machine, key.realize(machine)),
                _checked_result(machine, value.realize(machine)),
            )
            for key, value in result.pairs.values()
        ]
        return DictValue.of(machine, pairs)
    is_size = isinstance(result, NumberValue) and result.scalar.is_size
    if is_size or isinstance(result, TensorValue):
        return result
    if result.is_constant(machine):
        return machine.constant(result.as_constant(machine))
    raise _refused(f"it returns a {result.describe()}")


def _is(machine: Machine, value: Value, wanted: object) -> bool:
    value.guard_identity(machine)
    known = value.as_constant(machine) if value.is_constant(machine) else value.identity()
    return known is wanted


def _refused(why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name=_NAME, why=why))


def _since(nodes: Any, before: Sequence[Node]) -> list[Node]:
    """Return the nodes recorded since then; inputs are inserted before everything else."""
    known = set(before)
    return [node for node in nodes if node not in known and node.op != "placeholder"]


def _writes_outside(made: Sequence[Node], before: Sequence[Node]) -> bool:
    """Return whether a node writes to memory from before the region, or to an input."""
    written = {storage_of(node) for one in made for node in one.meta.get("mutates", ())}
    read = (node for one in made for node in one.all_input_nodes if node.op == "placeholder")
    return any(storage_of(node) in written for node in (*before, *read) if "val" in node.meta)


def _mark(made: Sequence[Node], region: Recomputed) -> None:
    """Mark the nodes of a region; an inner region belongs to the outer one, which runs again."""
    for node in made:
        node.meta["checkpoint"] = region
