"""Orders the fused steps and builds the final program.

In: the groups. Out: a LoopProgram: every group turned into its final step, sorted so that each
comes after its dependencies, and otherwise in the user's order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..loops.ir import Alias, Extern, LoopProgram, Nest, Step
from .dependencies import loads_of, reads_of
from .fuse import Fusion
from .groups import Group, Groups
from .tile import final_nest, without_one_hot_sums, without_roundings

__all__ = ["drop_dead_stores", "operations_in", "ordered_program"]


def ordered_program(fusion: Fusion, exact: bool = True) -> LoopProgram:
    """Return the program after fusion, without buffers that no step uses any more.

    `exact`: keep the roundings of eager's intermediate 16-bit tensors that fusion has removed.
    """
    program, alive = fusion.program, fusion.groups.alive
    names: dict[str, int] = {}
    fixed = (group.step for group in alive.values())
    taken = {step.name for step in fixed if isinstance(step, Extern | Alias)}
    steps: list[Step] = []
    for group in _sorted(fusion.groups):
        step = group.step
        if isinstance(step, Nest):
            name = _unique(_name(group), names, taken)
            outer, stores = without_one_hot_sums(group.outer, group.stores)
            stores = stores if exact else without_roundings(stores)
            step = final_nest(name, outer, stores, group.origins, program.buffers)
        steps.append(step)
    used = {name for step in steps for name in _mentioned(step)}
    used.update(program.inputs, program.constants, (n for n in program.outputs if n is not None))
    buffers = {name: buffer for name, buffer in program.buffers.items() if name in used}
    return replace(program, buffers=buffers, steps=tuple(steps))


def drop_dead_stores(fusion: Fusion) -> None:
    """Drop stores that only their own nest reads, and emptied nests, users first."""
    graph, alive = fusion.graph, fusion.groups.alive
    readers: dict[str, int] = {}
    for group in alive.values():
        for name in _read_by(group):
            readers[name] = readers.get(name, 0) + 1
    # Users first: a dropped nest may leave its operands without readers.
    for key, group in sorted(alive.items(), key=lambda item: -item[1].members):
        if not group.is_nest:
            continue
        own = {load.buffer for load in group.shape.loads}
        live = []
        for store in group.stores:
            root = graph.storage[store.buffer]
            elsewhere = readers.get(store.buffer, 0) - (store.buffer in own)
            if elsewhere or root in graph.escaping or root in graph.mutated:
                live.append(store)
        if not live:
            del alive[key]
            for name in own:
                readers[name] -= 1
        elif len(live) < len(group.stores):
            group.rewrite(group.outer, live)
            for name in own.difference(load.buffer for load in group.shape.loads):
                readers[name] -= 1


def _mentioned(step: Step) -> tuple[str, ...]:
    if isinstance(step, Nest):
        return (*(s.buffer for s in step.stores), *(load.buffer for load in loads_of(step.stores)))
    named = (getattr(step, "name", None), *(getattr(step, "results", None) or ()))
    return (*reads_of(step), *(name for name in named if name is not None))


def _read_by(group: Group) -> set[str]:
    if group.is_nest:
        return {load.buffer for load in group.shape.loads}
    return set(reads_of(group.step))


def _sorted(groups: Groups) -> list[Group]:
    """Return the groups in program order; a dependency that fusion moved later is pulled before its
    first user.
    """
    # Delaying the user instead would run all independent steps first and keep their results alive,
    # such as the regions that a checkpointed backward recomputes
    # (four tiny layers under AMP: a pool of 868 kB instead of 281).
    alive = groups.alive
    result: dict[int, Group] = {}
    waiting = sum(group.members for group in alive.values())
    for start in sorted(alive):
        stack = [start]
        while stack:
            group = alive[stack[-1]]
            missing = groups.owners(group.before & waiting)
            if stack[-1] in result or not missing:
                result.setdefault(stack.pop(), group)
                waiting &= ~group.members
            else:
                stack.extend(sorted(missing, reverse=True))
    return list(result.values())


def _name(group: Group) -> str:
    """Return a C identifier made of the ATen nodes inside, such as `softmax`, so that people
    recognise the kernel.
    """
    return "_".join(operations_in(group.origins)[:5]) or "nest"


def operations_in(origins: Sequence[str]) -> list[str]:
    """Return the operations of a kernel, from the names of its ATen nodes: `add`, `relu`."""
    # torch.fx appends the overload and a number to node names.
    plain = [re.sub(r"(_default|_tensor|_scalar)?(_\d+)?$", "", origin) for origin in origins]
    return list(dict.fromkeys(re.sub(r"\W", "_", word) for word in plain if word))


def _unique(name: str, used: dict[str, int], taken: set[str]) -> str:
    number = used.get(name, 0)
    while f"{name}_{number}" in taken:  # the name of an extern call
        number += 1
    used[name] = number + 1
    return f"{name}_{number}"
