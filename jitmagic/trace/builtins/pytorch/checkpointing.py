"""torch.utils.checkpoint without reentry: a region of the graph that backward computes again.

Comes in: the call. Goes out: what the function returns, followed as any call, with its nodes marked
(`meta["checkpoint"]`: a `Recomputed` per region); autograd/partition.py keeps what enters a region
and what was drawn in it. Eager runs the function a second time: where that would be noticed (it
writes to what was there before, prints, or draws other numbers) the call is a graph break. What it
reads of Python's state is looked at again by the backward
(trace/values/autograd/backward_facts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node
from torch.utils import checkpoint

from ....graph.memory import storage_of
from ....graph.recomputed import Recomputed, Rerun
from ...breaks import GraphBreak, RefusedTorchCall
from ...values.autograd.backward_facts import BackwardFacts
from ...values.autograd.rebuilt_objects import ObjectRebuilder
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import ListValue, TupleValue
from ...values.numbers.dimensions import DimensionValue
from ...values.objects.monkey_patches import beneath
from ...values.tensors.tensor import TensorValue
from ..registry import handles

__all__: list[str] = []

_NAME = "torch.utils.checkpoint.checkpoint"
_STANDARD = {"context_fn": checkpoint.noop_context_fn, "debug": False, "use_reentrant": False}
# What decides whether a second run is compared with the first, and where it ends.
_NO_MATTER = ("determinism_check", "early_stop")


@handles(checkpoint.checkpoint, beneath(checkpoint.checkpoint))
def _checkpoint(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    own = {name: kwargs[name].realize(machine) for name in _STANDARD if name in kwargs}
    given = {name: value for name, value in kwargs.items() if name not in (*_STANDARD, *_NO_MATTER)}
    same_draws = given.pop("preserve_rng_state", machine.constant(True)).realize(machine)
    others = [name for name, value in own.items() if not _is(machine, value, _STANDARD[name])]
    if "use_reentrant" not in own or others:
        what = others[0] if others else "use_reentrant"
        raise _refused(f"{what} asks for what is done in backward alone")
    before, changes = list(machine.graph.graph.nodes), machine.effects.changes
    keeps_draws = bool(same_draws.as_constant(machine))
    if machine.later is not None:
        result, region = args[0].realize(machine).call(machine, args[1:], given), Recomputed(None)
    else:
        result, region = _followed(machine, args, given, keeps_draws)
    made = _since(machine.graph.graph.nodes, before)
    if machine.effects.changes != changes or _writes_outside(made, before):
        raise _refused("backward runs it again, and it changes what was there before")
    if any("random" in node.meta for node in made) and not keeps_draws:
        raise _refused("backward draws other numbers (preserve_rng_state=False)")
    _mark(made, region)
    return result


def _followed(
    machine: Machine, args: Args, given: Kwargs, keeps_draws: bool
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
        result = _of_tensors(machine, result.realize(machine))
        facts.check_copies()
        make, left = ObjectRebuilder(machine, facts).rebuilt([*args, *given.values()])
    if facts.is_stale:
        raise _refused("it reads what the frame has changed")
    if not all(isinstance(node, Node) for node in left):
        raise _refused("it takes a size")
    rerun = Rerun(make, len(left), names, facts.guards, keeps_draws)
    for place, node in enumerate(left):
        node.meta.setdefault("enters", {})[rerun] = place
    return result, Recomputed(rerun)


def _of_tensors(machine: Machine, result: Value) -> Value:
    """The result, if it holds nothing but tensors and constants that the function has made."""
    if isinstance(result, TupleValue) and result.source is None:
        return TupleValue([_of_tensors(machine, item) for item in result.realized(machine)])
    if isinstance(result, ListValue) and result.source is None:
        return ListValue([_of_tensors(machine, item) for item in result.realized(machine)])
    if isinstance(result, DictValue) and result.source is None and result.kind is dict:
        pairs = [
            (
                _of_tensors(machine, key.realize(machine)),
                _of_tensors(machine, value.realize(machine)),
            )
            for key, value in result.pairs.values()
        ]
        return DictValue.of(machine, pairs)
    if isinstance(result, TensorValue | DimensionValue):
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
    """What was recorded since; inputs are put before everything else."""
    known = set(before)
    return [node for node in nodes if node not in known and node.op != "placeholder"]


def _writes_outside(made: Sequence[Node], before: Sequence[Node]) -> bool:
    """Whether any node writes to memory that was there before the region, or to that of an input
    that the region was the first to read."""
    written = {storage_of(node) for one in made for node in one.meta.get("mutates", ())}
    read = (node for one in made for node in one.all_input_nodes if node.op == "placeholder")
    return any(storage_of(node) in written for node in (*before, *read) if "val" in node.meta)


def _mark(made: Sequence[Node], region: Recomputed) -> None:
    """A region inside of another belongs to the outer one: that is what is run again."""
    for node in made:
        node.meta["checkpoint"] = region
