"""torch.utils.checkpoint without reentry: a region of the graph that backward computes again.

Comes in: the call. Goes out: what the function returns, followed as any call, with its nodes marked
(`meta["checkpoint"]`: a number per region); autograd/partition.py keeps what enters a region and
what was drawn in it. Eager runs the function a second time: where that would be noticed (it writes
to what was there before, prints, or draws other numbers) the call is a graph break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node
from torch.utils import checkpoint

from ...graph.memory import storage_of
from ..breaks import GraphBreak, RefusedTorchCall
from ..values.base import Args, Kwargs, Machine, Value
from ..values.originals import beneath
from .registry import handles

__all__: list[str] = []

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
    graph = machine.graph
    before, changes = list(graph.graph.nodes), machine.effects.changes
    result = args[0].realize(machine).call(machine, args[1:], given)
    made = _since(graph.graph.nodes, before)
    if machine.effects.changes != changes or _writes_outside(made, before):
        raise _refused("backward runs it again, and it changes what was there before")
    if any("random" in node.meta for node in made) and not same_draws.as_constant(machine):
        raise _refused("backward draws other numbers (preserve_rng_state=False)")
    _mark(made, len(before))
    return result


def _is(machine: Machine, value: Value, wanted: object) -> bool:
    value.guard_identity(machine)
    known = value.as_constant(machine) if value.is_constant(machine) else value.identity()
    return known is wanted


def _refused(why: str) -> GraphBreak:
    return GraphBreak(RefusedTorchCall.of(name="torch.utils.checkpoint.checkpoint", why=why))


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


def _mark(made: Sequence[Node], region: int) -> None:
    """A region inside of another belongs to the outer one: that is what is run again."""
    for node in made:
        node.meta["checkpoint"] = region
