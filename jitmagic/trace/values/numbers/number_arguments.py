"""Records calls with varying numbers that 0-dim tensors cannot replace: sizes, and other floats.

Input: a call whose arguments are nodes and, at the top level, Scalars. Output: the call in the
graph. A float, or an int where a call takes floats, becomes a node that reads it at run time
(graph/symbolic/number_ranges.py). Guards restrict it to the range in which torch takes the same
path for all numbers. In a function under a transform of torch.func, the transform's node takes the
number; its range is found after the function has been traced. Any other int becomes a size. Any
other float raises `Specialize`, which makes it a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from torch.fx import Node

from ....graph.builder import GraphBuilder, map_nodes
from ....graph.symbolic.number_ranges import (
    Call,
    add_number,
    range_of_number,
    takes_float,
)
from ....graph.symbolic.sym_node import with_hints
from ....graph.target_names import Target, call_name
from ....guards.source import Source
from ....symbols.context import Specialize
from ....symbols.expr import Expr
from ....symbols.interval import ANY_FLOAT, Interval
from ....symbols.probe import floats_in
from ....symbols.size import is_tensor_symbol
from ....symbols.symbolic_numbers import symbols_of
from ...region import TransformBuilder
from ..base import Machine
from .arithmetic import Scalar

__all__ = ["call_with_numbers", "keep_numbers_of_transform", "refuse_numbers"]

Arguments = Mapping[int | str, Any]
"""The arguments of a call, by position and by name: nodes, Scalars and constants."""

_EXAMPLE = 0.41421356237309503  # an arbitrary value between 0 and 1
_USUAL = Interval(-1e30, 1e30)  # numbers read from tensors are asserted to be inside


def call_with_numbers(
    machine: Machine, target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Record the call with each number as a size, a run-time float or a constant."""
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    for key, arg in given.items():
        if not isinstance(arg, Scalar):
            continue
        # As constants, the floats of dropout, leaky_relu, losses and norms took a variant for each
        # value. Of 274 cases (137 calls, ten values, forward and gradient), 69 compiled at most
        # twice; read at run time, 236 do.
        found = _as_number(machine, target, given, key, arg) if _varies(arg) else None
        if found is None:
            found = arg.as_size(machine)
        given[key] = refuse_numbers(call_name(target), arg) if found is None else found
    positional, named = _arguments(given)
    return machine.graph.call(target, positional, named, machine.lines())


def _varies(number: Scalar) -> bool:
    """Return False for a float computed from sizes only, a constant for each tuple of sizes."""
    return number.kind is int or not all(map(is_tensor_symbol, symbols_of(number.expr)))


def _arguments(given: Arguments) -> tuple[tuple[object, ...], dict[str, object]]:
    named = {name: arg for name, arg in given.items() if isinstance(name, str)}
    return tuple(arg for name, arg in given.items() if not isinstance(name, str)), named


def _as_number(
    machine: Machine,
    target: Target,
    given: Arguments,
    key: int | str,
    number: Scalar,
) -> Node | None:
    """Return a node for a float that the call reads at run time, or None if it may not vary.

    The number is narrowed to the range in which torch takes the same path.
    """
    graph = machine.graph
    metas = with_hints(map_nodes(dict(given), lambda node: node.meta["val"]))
    hints = {name: _hint(machine, arg) for name, arg in metas.items()}

    def call(others: Arguments) -> Call:
        return lambda changed: _arguments({**others, key: changed})

    grad = graph.grad_enabled
    # An int where torch takes a float (a probability) would otherwise be specialised: one variant
    # for each value.
    if number.kind is int:
        if not _is_given(number) or not takes_float(target, call(hints), hints[key], grad):
            return None
        number = number.as_float(machine)
        hints[key] = float(hints[key])
    if graph.root is not graph:
        # A transform has rules of its own for a call, so the range is searched when the whole
        # transform can be run, not for this call on plain tensors.
        return _in_transform(machine, graph, number, hints[key])
    found = _range(target, call, hints, given, key, grad)
    if found is None or not _may_be_within(machine, number, found):
        return None
    number.keep_within(machine, found, f"an argument of {call_name(target)}()")
    node = number.argument(machine, full=True)
    return add_number(graph.graph, node, hints[key], found, machine.lines(), machine.step)


def _in_transform(
    machine: Machine, graph: GraphBuilder, number: Scalar, hint: float
) -> Node | None:
    """Return a node of the root graph, which the function under the transform captures, or None.

    A number computed inside the function may differ between levels of the transform.
    """
    root, tensor = graph.root, number.node
    if not isinstance(graph, TransformBuilder) or tensor is None or tensor.graph is not root.graph:
        return None
    node = add_number(root.graph, tensor, hint, ANY_FLOAT, machine.lines(), machine.step)
    graph.numbers[node] = number
    return node


def _range(
    target: Target,
    call: Callable[[Arguments], Call],
    hints: Arguments,
    given: Arguments,
    key: int | str,
    grad: bool,
) -> Interval | None:
    found: Interval | None = ANY_FLOAT
    for others in _with_others(hints, given):
        around = range_of_number(target, call(others), hints[key], grad)
        found = None if around is None or found is None else found.narrowed(around)
    return found


def _may_be_within(machine: Machine, number: Scalar, limits: Interval) -> bool:
    return machine.symbols.has_hints((number.expr,)) or _USUAL.within(limits)


def keep_numbers_of_transform(
    machine: Machine,
    target: Callable[..., object],
    given: Sequence[Node],
    captured: Sequence[Node],
    numbers: Mapping[Node, Scalar],
) -> None:
    """Narrow the numbers that a transformed function captures to a range with one path in torch.

    The range is searched with the transform applied: its rules differ from those of plain tensors.
    """
    metas = with_hints(tuple(node.meta["val"] for node in given))
    hints: dict[int | str, Any] = dict(
        enumerate(with_hints(tuple(node.meta["val"] for node in captured)))
    )
    readers: dict[Expr, list[int]] = {}
    for index, node in enumerate(captured):
        if node in numbers:
            readers.setdefault(numbers[node].expr, []).append(index)

    def call(others: Arguments, indices: Sequence[int]) -> Call:
        def arguments(changed: float) -> Any:
            changes: Arguments = dict.fromkeys(indices, changed)
            return (metas, tuple({**others, **changes}.values())), {}

        return arguments

    # Captures of one number vary together, so one range is searched for all of them. A search for
    # each capture compiled vmap(elu + layer_norm * s) in 6.9 s, this in 1.6 s.
    for indices in readers.values():
        number = numbers[captured[indices[0]]]
        others: Arguments = {
            index: node for index, node in enumerate(captured) if index not in indices
        }
        calls = partial(call, indices=indices)
        found = _range(target, calls, hints, others, indices[0], machine.graph.grad_enabled)
        if found is None or not _may_be_within(machine, number, found):
            refuse_numbers(f"torch.func.{target.__name__}", number)
        number.keep_within(machine, found, f"an argument of torch.func.{target.__name__}()")
        for index in indices:
            captured[index].meta["range"] = found


def _hint(machine: Machine, arg: object) -> Any:
    """Return the value in this call; for a number read from a tensor, a plausible example."""
    if not isinstance(arg, Scalar):
        return arg
    if machine.symbols.has_hints((arg.expr,)):
        return machine.symbols.value_of(arg.expr)
    return 2 if arg.kind is int else _EXAMPLE


def _is_given(number: Scalar) -> bool:
    """Return whether the number depends only on inputs of the frame, not on sizes."""
    return all(isinstance(symbol.origin, Source) for symbol in symbols_of(number.expr))


def refuse_numbers(name: str, *numbers: Scalar) -> NoReturn:
    symbols = dict.fromkeys(symbol for number in numbers for symbol in symbols_of(number.expr))
    raise Specialize(symbols, f"an argument of {name}()")


def _with_others(hints: Arguments, given: Arguments) -> Iterator[Arguments]:
    """Yield the arguments of this call, then ones with samples for other varying arguments.

    torch's path may depend on two numbers at once, which a call may compare.
    """
    yield hints
    for name, arg in given.items():
        if isinstance(arg, Node) and (limits := arg.meta.get("range")) is not None:
            # A node with a range is a number that an earlier iteration of the caller narrowed.
            yield from ({**hints, name: number} for number in floats_in(limits))
