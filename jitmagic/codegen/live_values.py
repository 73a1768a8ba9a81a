"""Orders the values of a point so that few of them are held at once.

In: a kernel in linear form, whose values stand in the order in which its stores ask for them. Out:
the same kernel; where several stores read the same elements, as neighbouring results of a
convolution do, their values are computed in turns, each element is loaded just before its first
use, and so most can be forgotten soon. Eight results of a 7x7 window are 18,312 instructions for
sm_90 in the order of the stores, most of them spills, and 5,344 in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..lazy_dataclass import replace
from ..loops.ir import Cast, IndexValue, Load, Value, walk
from .kernel import Kernel, Let, Open, Program, Store, Var
from .kernel_values import variables_in

__all__ = ["with_few_live_values"]

_MANY = 32  # values at once that are worth another order


def with_few_live_values(kernel: Kernel, in_steps: Callable[[], Kernel]) -> Kernel:
    """Return the kernel, in another order if it would hold many values at once. `in_steps` makes
    its linear form with a variable for each operation.
    """
    lets, stores = _parts(kernel)
    if len(stores) < 2 or (before := _most_live(lets, stores)) <= _MANY:
        return kernel
    apart = in_steps()
    lets, stores = _parts(apart)
    heads = apart.body[: len(apart.body) - len(lets) - len(stores)]
    is_straight = apart.body == (*heads, *lets, *stores)
    if not is_straight or not all(isinstance(each, (Program, Open)) for each in heads):
        return kernel
    ordered = _in_turns(lets)
    if 2 * _most_live(ordered, stores) > before:
        return kernel
    return replace(apart, body=(*heads, *ordered, *stores))


def _parts(kernel: Kernel) -> tuple[list[Let], list[Store]]:
    body = kernel.body
    lets = [each for each in body if isinstance(each, Let)]
    return lets, [each for each in body if isinstance(each, Store)]


def _read(value: Value) -> set[Value]:
    """Return the variables that an expression reads."""
    found: set[Value] = set()
    for node in walk((value,)):
        match node:
            case Var():
                found.add(node)
            case Load(index=offsets):
                found.update(*map(variables_in, offsets))
            case IndexValue(expr):
                found.update(variables_in(expr))
    return found


def _sources(lets: Sequence[Let]) -> set[Value]:
    """Return the variables of elements and of conditions."""
    found: set[Value] = set()
    for each in lets:
        value = each.value
        while isinstance(value, Cast):
            value = value.value
        if isinstance(value, Load) or value in found or value.dtype == torch.bool:
            found.add(each.target)
    return found


def _in_turns(lets: Sequence[Let]) -> list[Let]:
    """Return the values by the number of values that they follow from, elements before their
    use.
    """
    by_var, sources = {each.target: each for each in lets}, _sources(lets)
    place = {each.target: number for number, each in enumerate(lets)}
    depth: dict[Value, int] = {}
    for each in lets:
        below = (depth[var] for var in _read(each.value) if var in depth)
        depth[each.target] = max(below, default=0) + (each.target not in sources)
    made: dict[Value, Let] = {}

    def make(each: Let) -> None:
        for var in sorted(_read(each.value) & by_var.keys(), key=place.__getitem__):
            if var not in made:
                make(by_var[var])
        made[each.target] = each

    for each in sorted(lets, key=lambda each: (depth[each.target], place[each.target])):
        if each.target not in sources:
            make(each)
    for each in lets:
        if each.target not in made:
            make(each)
    return list(made.values())


def _most_live(lets: Sequence[Let], stores: Sequence[Store]) -> int:
    """Return the most values that are held at once, until their last use."""
    last = {each.target: len(lets) for each in lets}
    end = {var for store in stores for var in _read(store.value)}
    for number, each in enumerate(lets):
        for var in _read(each.value):
            if var in last and var not in end:
                last[var] = number
    begins = {each.target: number for number, each in enumerate(lets)}
    changes = [0] * (len(lets) + 2)
    for var, begin in begins.items():
        changes[begin] += 1
        changes[last[var] + 1] -= 1
    held = most = 0
    for change in changes:
        held += change
        most = max(most, held)
    return most
