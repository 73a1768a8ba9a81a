"""torch.cond, while_loop, scan and map: nodes over the graphs of the functions that they take.

torch's own Python functions for them are inlined: they check and flatten the arguments and end in a
call of a higher-order operator. That call becomes one node (graph/targets/control_flow.py). Each
function is traced once into a graph, in which the tensors that it reads from outside are captured.
The predicate is not read by the trace, so one graph serves both branches and any number of steps.
Whatever torch refuses (side effects, results that share memory with inputs, results that differ
between branches or steps) is a graph break: torch then raises its error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.fx import Node

from ....compat.operators import ASSOCIATIVE_SCAN, COND, MAP, SCAN, WHILE_LOOP
from ....compat.pytree import tree_flatten
from ....graph.memory import storage_of
from ....graph.node_meta import device_of, spec_on
from ....graph.propagate import DataDependent, EagerRaises
from ....graph.targets.control_flow import CARRIED, Body, ControlFlow
from ....graph.targets.transforms import Slot
from ....lazy_dataclass import dataclass, replace
from ....spec import TensorSpec
from ....symbols.symbolic_numbers import Symbol
from ...breaks import BodyRefused, GraphBreak, TorchCallFailed
from ...effects import EffectLog
from ...region import BodyBuilder
from ...structures import lower_structure, raise_structure
from ...values.base import Args, Machine, ObservedError, Value
from ...values.containers.sequences import ListValue, TupleValue
from ...values.numbers.arithmetic import Scalar
from ...values.numbers.number import NumberValue, scalar_of
from ...values.numbers.tensor_numbers import Reading, number_of
from ...values.objects.operators import unpack
from ...values.tensors.tensor import TensorValue, lift
from ..registry import handles

__all__ = ["BodyCall", "TracedBody", "with_captured"]


@handles(COND)
def _cond(machine: Machine, pred: Value, yes: Value, no: Value, operands: Value) -> Value:
    call = BodyCall(machine, "cond")
    given = unpack(machine, operands)
    if pred.python_type(machine) in (bool, int, float):
        return (yes if pred.truth(machine) else no).realize(machine).call(machine, given, {})
    leaves, _ = tree_flatten(lower_structure(machine, operands, call.name, lambda value: Slot(0)))
    if not isinstance(pred, TensorValue) or not all(isinstance(leaf, Slot) for leaf in leaves):
        call.refuse("the predicate or an operand is not a tensor")
    if pred.meta.numel() != 1:
        call.refuse("the predicate has several elements")
    true, false = (call.trace(function, lambda region: given) for function in (yes, no))
    leaves, _ = tree_flatten(true.structure)
    if true.structure != false.structure or not all(isinstance(x, Slot | int) for x in leaves):
        call.refuse("its results differ between the branches, or are not tensors and ints")
    call.check_alike(true.specs, false.specs, "the branches")
    return call.record([pred], [true, false], true.structure)


@handles(WHILE_LOOP)
def _while_loop(
    machine: Machine, test: Value, step: Value, carried: Value, additional: Value
) -> Value:
    call = BodyCall(machine, "while_loop")
    given, rest = unpack(machine, carried), unpack(machine, additional)
    call.ints = frozenset(
        n for n, value in enumerate(given) if value.realize(machine).python_type(machine) is int
    )
    carry = call.tensors(TupleValue([_as_tensor(machine, value) for value in given]))
    specs = [_spec(value) for value in carry]
    while True:
        made = [call.trace(one, call.with_inputs(specs, rest)) for one in (test, step)]
        if made[0].structure != Slot(0) or made[0].specs[0].shape:
            call.refuse("the condition is not a 0-dim tensor of bools")
        if (again := call.with_history(specs, made[1].specs)) == specs:
            return call.record(carry, made, made[1].structure, len(carry))
        specs = again


@handles(SCAN)
def _scan(
    machine: Machine, combine: Value, init: Value, xs: Value, additional: Value | None = None
) -> Value:
    call = BodyCall(machine, "scan")
    rest = [] if additional is None else unpack(machine, additional)
    return _over_rows(call, combine, call.tensors(init), call.tensors(xs), rest)


@handles(MAP)
def _map(machine: Machine, function: Value, xs: Value, additional: Value) -> Value:
    call = BodyCall(machine, "map")
    return _over_rows(call, function, [], call.tensors(xs), unpack(machine, additional))


@handles(ASSOCIATIVE_SCAN)
def _associative_scan(machine: Machine, combine: Value, xs: Value, additional: Value) -> Value:
    """Inline the formula in the module of the caller, which takes a logarithm of calls."""
    formula = machine.frame.globals.store.get("generic_associative_scan")
    if formula is None:
        BodyCall(machine, "associative_scan").refuse("the operator is called by itself")
    function: Value = formula.realize(machine)
    return function.call(machine, [combine, xs], {"additional_inputs": additional})


def _over_rows(
    call: BodyCall, function: Value, carry: list[TensorValue], xs: list[TensorValue], rest: Args
) -> Value:
    """Record a node that calls the function for each row of `xs`, in order."""
    rows = [spec_on(value.meta.select(0, 0), device_of(value.node)) for value in xs]
    rows = [replace(row, storage_offset=0) for row in rows]
    specs = [_spec(value) for value in carry]
    while True:
        made = call.trace(function, call.with_inputs([*specs, *rows], rest))
        if carry and _slots_in(made.structure, 0) != len(carry):
            call.refuse("what it carries on has another structure")
        again = call.with_history(specs, made.specs[: len(carry)])
        if again == specs:
            return call.record([*carry, *xs], [made], made.structure, len(carry))
        specs = again


def _slots_in(structure: object, place: int) -> int | None:
    """Return the number of tensors in one item of a pair; None for anything else."""
    if not isinstance(structure, tuple) or len(structure) != 2:
        return None
    leaves, _ = tree_flatten(structure[place])
    return sum(isinstance(leaf, Slot) for leaf in leaves)


@dataclass(frozen=True, slots=True)
class TracedBody:
    """A function traced into a graph. `structure`: its result, with a Slot for each tensor."""

    body: Body
    captured: tuple[Node, ...]
    specs: list[TensorSpec]
    structure: Any
    draws: bool


class BodyCall:
    """One call of an operator that takes functions. `shares`: their results may be their inputs."""

    def __init__(self, machine: Machine, kind: str, shares: bool = False) -> None:
        self.machine, self.kind, self.name = machine, kind, f"torch.{kind}"
        self.shares = shares
        self.ints: frozenset[int] = frozenset()  # the carried values that are ints of Python

    def refuse(self, why: str) -> NoReturn:
        raise GraphBreak(BodyRefused.of(name=self.name, why=why))

    def _refused(self, broken: GraphBreak) -> GraphBreak:
        """Return the break of a body as one of the whole call, at the same line."""
        if isinstance(broken.reason, BodyRefused):
            return broken
        made = GraphBreak(BodyRefused.of(name=self.name, why=broken.reason.message))
        made.where, made.mark = broken.where, broken.mark
        return made

    def tensors(self, sequence: Value) -> list[TensorValue]:
        values = [value.realize(self.machine) for value in unpack(self.machine, sequence)]
        tensors = [value for value in values if isinstance(value, TensorValue)]
        if len(tensors) < len(values):
            self.refuse("a value that is not a tensor is carried from step to step")
        return tensors

    # -- tracing a function ----------------------------------------------------------------------

    def with_inputs(
        self, specs: Sequence[TensorSpec], rest: Args
    ) -> Callable[[BodyBuilder], list[Value]]:
        """Return a function that makes the arguments of a body: inputs like these, then `rest`."""

        def arguments(region: BodyBuilder) -> list[Value]:
            nodes = [region.feed("given", n, spec) for n, spec in enumerate(specs)]
            values = (self._int(one) if n in self.ints else lift(self.machine, one)
                      for n, one in enumerate(nodes))  # fmt: skip
            return [*values, *rest]

        return arguments

    def _int(self, node: Node) -> Value:
        """Return the int that a loop carries in a tensor; the loop checks its range."""
        symbols = self.machine.symbols
        origin = Reading(symbols.count_of(Reading))
        if origin in symbols.constants:
            self.refuse("it needs the value of an int that is carried")
        symbol = Symbol(f"{self.kind} {origin.number}", int, CARRIED, origin)
        symbols.add(symbol, None)
        return NumberValue(Scalar(int, symbol, node))

    def trace(self, function: Value, arguments: Callable[[BodyBuilder], Args]) -> TracedBody:
        machine = self.machine
        region = BodyBuilder(machine.notes, self.name)
        outer = machine.notes, machine.effects
        log = _BodyEffects(self, machine)
        machine.notes, machine.effects = region.notes, log  # type: ignore[misc]
        try:
            answer = function.realize(machine).call(machine, arguments(region), {})
            if self.ints:
                answer = _as_tensor(machine, answer)
            returned: list[TensorValue] = []

            def slot(value: TensorValue) -> Slot:
                returned.append(value)
                return Slot(len(returned) - 1)

            structure = lower_structure(machine, answer, self.name, slot)
            nodes = [region.local(value.node) for value in returned]
        except ObservedError as error:
            self.refuse(f"it raises {error.error.python_type(machine).__name__}")
        except GraphBreak as broken:
            raise self._refused(broken) from None
        finally:
            machine.notes, machine.effects = outer  # type: ignore[misc]
        self._check_memory(region, nodes)
        draws = any(node.meta.get("random") for node in region.graph.nodes)
        specs = [spec_on(node.meta["val"], device_of(node)) for node in nodes]
        body, captured = region.close(nodes)
        return TracedBody(body, captured, specs, structure, draws)

    def _check_memory(self, region: BodyBuilder, nodes: Sequence[Node]) -> None:
        if not nodes:
            self.refuse("it returns no tensor")
        memory = [storage_of(node) for node in nodes]
        shared = len({*memory}) < len(memory) or {*memory} & {*map(storage_of, region.inputs)}
        if shared and not self.shares:
            self.refuse("a result shares memory with an input or with another result")

    # -- comparing results -----------------------------------------------------------------------

    def check_alike(
        self, first: Sequence[TensorSpec], second: Sequence[TensorSpec], where: str
    ) -> None:
        def described(spec: TensorSpec) -> object:
            pairs = zip(spec.shape, spec.stride, strict=True)
            steps = tuple(step for n, step in pairs if not (type(n) is int and n < 2))
            return spec.shape, steps, spec.dtype, spec.device

        if list(map(described, first)) != list(map(described, second)):
            self.refuse(f"its results have other shapes, strides or dtypes in {where}")

    def with_history(
        self, given: Sequence[TensorSpec], made: Sequence[TensorSpec]
    ) -> list[TensorSpec]:
        """Return the specs of what a loop carries, which require grad if a step's results do."""
        self.check_alike(given, made, "the next step")
        return [
            replace(one, requires_grad=True, is_leaf=False) if other.requires_grad else one
            for one, other in zip(given, made, strict=True)
        ]

    # -- the node --------------------------------------------------------------------------------

    def record(
        self,
        given: Sequence[TensorValue],
        made: Sequence[TracedBody],
        structure: object,
        carried: int = 0,
    ) -> Value:
        machine, graph = self.machine, self.machine.graph
        captured = list(dict.fromkeys(node for one in made for node in one.captured))
        bodies = [with_captured(one, captured) for one in made]
        ends = [one.specs for one in (made if self.kind == "cond" else made[-1:])]
        differentiable = [any(s.requires_grad for s in alike) for alike in zip(*ends, strict=True)]
        target = ControlFlow(
            self.kind, bodies, len(given), carried, differentiable, tuple(self.ints)
        )
        nodes = [value.node for value in given] + captured
        devices = [spec.device for spec in made[-1].specs]
        try:
            results = graph.call_transform(target, tuple(nodes), devices, machine.lines())
        except (EagerRaises, DataDependent) as error:
            raise GraphBreak(TorchCallFailed.of(name=self.name, error=str(error))) from None
        node = next(n for n in reversed(graph.graph.nodes) if n.target is target)
        node.meta["data_dependent"] = True
        if any(one.draws for one in made):
            node.meta["random"] = True

        def leaf(index: object) -> Value | None:
            if not isinstance(index, Slot):
                return None
            result = results[index.index]
            if index.index not in self.ints:
                return lift(machine, result)
            return number_of(machine, result, "item") or self.refuse("it carries an int")

        return raise_structure(machine, structure, leaf)


def _as_tensor(machine: Machine, value: Value) -> Value:
    """Return the value with tensors in place of the ints and bools in it."""
    value = value.realize(machine)
    if type(value) in (TupleValue, ListValue):
        items = [_as_tensor(machine, item) for item in unpack(machine, value)]
        return ListValue(items) if isinstance(value, ListValue) else TupleValue(items)
    if value.python_type(machine) not in (int, bool) or isinstance(value, TensorValue):
        return value
    scalar = value.scalar if isinstance(value, NumberValue) else scalar_of(machine, value)
    return value if scalar is None else lift(machine, scalar.argument(machine, full=True))


def _spec(value: TensorValue) -> TensorSpec:
    spec: TensorSpec = spec_on(value.meta, device_of(value.node))
    return replace(spec, storage_offset=0)


def with_captured(traced: TracedBody, captured: Sequence[Node]) -> Body:
    """Return the body with the indices of its captured tensors among those of all bodies."""
    places = [captured.index(node) for node in traced.captured]
    feeds = [(group, places[n] if group == "captured" else n) for group, n in traced.body.feeds]
    reaches = tuple(places[n] for n in traced.body.reaches)
    return replace(traced.body, feeds=tuple(feeds), reaches=reaches)


# -- side effects ----------------------------------------------------------------------------------


class _BodyEffects(EffectLog):
    """Refuses effects on objects from outside of a body; those that it makes are its own."""

    def __init__(self, call: BodyCall, machine: Machine) -> None:
        super().__init__()
        self._call, self._existing = call, _reachable(machine.frames)

    def _check(self, target: Value) -> None:
        if target.source is not None or id(target) in self._existing:
            self._call.refuse("it changes an object from outside of it")

    def set_attr(self, target: Value, name: str, value: Value, setter: object = None) -> None:
        self._check(target)

    def del_attr(self, target: Value, name: str) -> None:
        self._check(target)

    def contents(self, container: Any) -> None:
        self._check(container)

    def perform(self, callee: Value, args: Any = (), kwargs: Any = None) -> None:
        self._call.refuse(f"it calls {callee.describe()}")

    def call_cache(self, cached: Value, args: Any, kwargs: Any) -> None:
        self.perform(cached)

    def draw(self, generator: Value, perform: Any, name: str) -> NoReturn:
        self._call.refuse(f"it calls {name}")


def _reachable(frames: Sequence[object]) -> dict[int, object]:
    """Return the objects of the tracer that these frames refer to, by id."""
    found: dict[int, object] = {}
    waiting: list[object] = [frames]
    while waiting:
        one = waiting.pop()
        plain = type(one) in (list, tuple, dict)
        if id(one) in found or not (plain or type(one).__module__.startswith("jitmagic.trace")):
            continue
        found[id(one)] = one
        waiting += gc.get_referents(one)
    return found
