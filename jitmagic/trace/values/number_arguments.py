"""Calls with numbers that have no form on tensors: sizes, and floats that are read at run time.

Comes in: a call whose arguments hold nodes and, at the top level, ScalarValues. Goes out: the call
in the graph. An int is a size, or a constant of one vector of sizes. A float is a node that reads
it when the graph runs (graph/number_ranges.py), in the range where torch does the same for all
numbers: the guards keep to that. Elsewhere it is a constant: `Specialize` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torch.fx import Node

from ...graph.builder import GraphBuilder, map_nodes
from ...graph.number_ranges import add_number, range_of_number, samples_in
from ...graph.propagate import Target, call_name
from ...graph.sym_node import with_hints
from ...symbols.context import Specialize
from ...symbols.interval import ANY_FLOAT, Interval
from ...symbols.scalar import symbols_of
from .base import Machine
from .scalars import ScalarValue

__all__ = ["call_with_numbers", "refuse_numbers"]


def call_with_numbers(
    machine: Machine, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The call with ints, each a size or a constant of one vector of sizes, and floats."""
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    for place, arg in given.items():
        if not isinstance(arg, ScalarValue):
            continue
        found = arg.as_size(machine)
        if found is None:
            found = _as_number(machine, target, given, place, arg)
        given[place] = refuse_numbers(call_name(target), arg) if found is None else found
    positional, named = _arguments(given)
    return machine.graph.call(target, positional, named, machine.lines())


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
    """A node for a float that the call reads when it runs; None: it is to be a constant. The range
    of the number is narrowed to those for which torch does the same.
    """
    graph: GraphBuilder = machine.graph
    numbers = [arg for arg in given.values() if isinstance(arg, ScalarValue)]
    known = machine.symbols.has_hints([one.expr for one in numbers])
    if number.kind is not float or graph.root is not graph or not known:
        return None
    metas = map_nodes(dict(given), lambda node: with_hints(node.meta["val"]))
    hints = {
        name: machine.symbols.value_of(arg.expr) if isinstance(arg, ScalarValue) else arg
        for name, arg in metas.items()
    }
    found: Interval | None = ANY_FLOAT
    for others in _with_others(hints, given):

        def arguments(changed: float, others: Mapping[Any, Any] = others) -> Any:
            return _arguments({**others, place: changed})

        around = range_of_number(target, arguments, hints[place], graph.grad_enabled)
        found = None if around is None or found is None else found.narrowed(around)
    if found is None:
        return None
    number.keep_within(machine, found, f"an argument of {call_name(target)}()")
    node = number.argument(machine, full=True)
    return add_number(graph.graph, node, hints[place], found, machine.lines(), graph.step())


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
