"""Calls with numbers that have no form on tensors: sizes, and floats that are read at run time.

Comes in: a call whose arguments hold nodes and, at the top level, ScalarValues. Goes out: the call
in the graph. A float, or an int where a call takes floats, is a node that reads it when the graph
runs (graph/symbolic/number_ranges.py), in the range where torch does the same for all numbers:
guards keep to that. Under a transform of torch.func it is the transform that takes the number:
where that does the same is told once the function has been followed. Another int is a size, or a
constant of one vector of sizes; a float is a constant else: `Specialize` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from torch.fx import Node

from ....graph.builder import GraphBuilder, map_nodes
from ....graph.propagate import Target, call_name
from ....graph.symbolic.number_ranges import (
    Call,
    add_number,
    range_of_number,
    samples_in,
    takes_float,
)
from ....graph.symbolic.sym_node import with_hints
from ....guards.source import Source
from ....symbols.context import Specialize
from ....symbols.expr import Expr
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.scalar import symbols_of
from ....symbols.size import is_tensor_symbol
from ...region import TransformBuilder
from ..base import Machine
from .scalars import ScalarValue

__all__ = ["call_with_numbers", "keep_numbers_of_transform", "refuse_numbers"]

_EXAMPLE = 0.41421356237309503
_USUAL = Interval(-1e30, 1e30)  # what is not in there is asserted not to come


def call_with_numbers(
    machine: Machine, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The call with ints, each a size or a constant of one vector of sizes, and floats."""
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    for place, arg in given.items():
        if not isinstance(arg, ScalarValue):
            continue
        found = _as_number(machine, target, given, place, arg) if _varies(arg) else None
        if found is None:
            found = arg.as_size(machine)
        given[place] = refuse_numbers(call_name(target), arg) if found is None else found
    positional, named = _arguments(given)
    return machine.graph.call(target, positional, named, machine.lines())


def _varies(number: ScalarValue) -> bool:
    """Whether it is no float computed of sizes, of which there is one for each vector of them."""
    return number.kind is int or not all(map(is_tensor_symbol, symbols_of(number.expr)))


def _arguments(given: Mapping[int | str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = {name: arg for name, arg in given.items() if isinstance(name, str)}
    return tuple(arg for name, arg in given.items() if not isinstance(name, str)), named


def _as_number(
    machine: Machine,
    target: Target,
    given: Mapping[int | str, Any],
    place: int | str,
    number: ScalarValue,
) -> Node | None:
    """A node for a float that the call reads when it runs; None: it is no number that may vary. The
    range of the number is narrowed to those for which torch does the same.
    """
    graph = machine.graph
    metas = with_hints(map_nodes(dict(given), lambda node: node.meta["val"]))
    hints = {name: _hint(machine, arg) for name, arg in metas.items()}

    def call(others: Mapping[Any, Any]) -> Call:
        return lambda changed: _arguments({**others, place: changed})

    grad = graph.grad_enabled
    if number.kind is int:
        if not _is_given(number) or not takes_float(target, call(hints), hints[place], grad):
            return None
        number = number.as_float(machine)
        hints[place] = float(hints[place])
    if graph.root is not graph:
        return _in_transform(machine, graph, number, hints[place])
    found = _range(target, call, hints, given, place, grad)
    if found is None or not _may_be_within(machine, number, found):
        return None
    number.keep_within(machine, found, f"an argument of {call_name(target)}()")
    node = number.argument(machine, full=True)
    return add_number(graph.graph, node, hints[place], found, machine.lines(), machine.step)


def _in_transform(
    machine: Machine, graph: GraphBuilder, number: ScalarValue, hint: float
) -> Node | None:
    """A node of the root graph, which the function under the transform captures. One that was
    computed in the function has other values at other levels.
    """
    root, tensor = graph.root, number.node
    if not isinstance(graph, TransformBuilder) or tensor is None or tensor.graph is not root.graph:
        return None
    node = add_number(root.graph, tensor, hint, ANY_FLOAT, machine.lines(), machine.step)
    graph.numbers[node] = number
    return node


def _range(
    target: Target,
    call: Callable[[Mapping[Any, Any]], Call],
    hints: Mapping[Any, Any],
    given: Mapping[Any, Any],
    place: Any,
    grad: bool,
) -> Interval | None:
    found: Interval | None = ANY_FLOAT
    for others in _with_others(hints, given):
        around = range_of_number(target, call(others), hints[place], grad)
        found = None if around is None or found is None else found.narrowed(around)
    return found


def _may_be_within(machine: Machine, number: ScalarValue, limits: Interval) -> bool:
    return machine.symbols.has_hints((number.expr,)) or _USUAL.within(limits)


def keep_numbers_of_transform(
    machine: Machine,
    target: Any,
    given: Sequence[Node],
    captured: Sequence[Node],
    numbers: Mapping[Node, ScalarValue],
) -> None:
    """Narrow the numbers that the function under a transform takes to where the transform is alike:
    its levels may have formulas of their own.
    """
    metas = with_hints(tuple(node.meta["val"] for node in given))
    hints = dict(enumerate(with_hints(tuple(node.meta["val"] for node in captured))))
    readers: dict[Expr, list[int]] = {}
    for place, node in enumerate(captured):
        if node in numbers:
            readers.setdefault(numbers[node].expr, []).append(place)

    def call(others: Mapping[Any, Any], places: Sequence[int]) -> Call:
        def arguments(changed: float) -> Any:
            return (metas, tuple({**others, **dict.fromkeys(places, changed)}.values())), {}

        return arguments

    # All that read a number read the same one, so it is tried once for all of them.
    for places in readers.values():
        number = numbers[captured[places[0]]]
        others = {place: node for place, node in enumerate(captured) if place not in places}
        calls = partial(call, places=places)
        found = _range(target, calls, hints, others, places[0], machine.graph.grad_enabled)
        if found is None or not _may_be_within(machine, number, found):
            refuse_numbers(f"torch.func.{target.__name__}", number)
        number.keep_within(machine, found, f"an argument of torch.func.{target.__name__}()")
        for place in places:
            captured[place].meta["range"] = found


def _hint(machine: Machine, arg: Any) -> Any:
    """The value in this call; of a float that data decide, one that it might have."""
    if not isinstance(arg, ScalarValue):
        return arg
    if machine.symbols.has_hints((arg.expr,)):
        return machine.symbols.value_of(arg.expr)
    return 2 if arg.kind is int else _EXAMPLE


def _is_given(number: ScalarValue) -> bool:
    """Whether it is computed of ints that the call of the frame is given, no sizes."""
    return all(isinstance(symbol.origin, Source) for symbol in symbols_of(number.expr))


def refuse_numbers(name: str, *numbers: ScalarValue) -> NoReturn:
    symbols = dict.fromkeys(symbol for number in numbers for symbol in symbols_of(number.expr))
    raise Specialize(symbols, f"an argument of {name}()")


def _with_others(hints: Mapping[Any, Any], given: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
    """The arguments as they are in this call, and with numbers that vary already elsewhere in their
    ranges: a call may compare one with the other.
    """
    yield hints
    for name, arg in given.items():
        if isinstance(arg, Node) and (limits := arg.meta.get("range")) is not None:
            yield from ({**hints, name: number} for number in samples_in(limits))
