"""laps: how long each operation of a graph takes, eager and compiled, on tensors that are made up.

Comes in: a traced graph, or a plan with its kernels. Goes out: `Laps`: seconds of each operation,
the least of several runs, and of the quietest run without a clock in it. What the clock costs, a
wait for the GPU included, is the difference between the two and the same for each operation: it is
taken off. On the CPU, where it is known, the rest is what others did to the machine and is taken
off in proportion: a matrix product that was disturbed leaves nothing of what is quick. Runs are
made in the sandbox and leave the generators of random numbers as they were.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ...codegen.plan import KernelSource, Plan
from ...frame.sandbox import sandbox
from ...graph.gradients import gradients
from ...graph.node_meta import tensors_in
from ...graph.operators.autocast import restoring_modes
from ...options import Options
from ...runtime.examples import example
from ...runtime.load import load
from ...runtime.steps import timed_calls, with_laps
from ...spec import TensorSpec
from ...target import Target
from ..checking.cases import same_random_numbers

__all__ = [
    "Laps",
    "differentiate",
    "differentiates",
    "laps_of_graph",
    "laps_of_plan",
    "made_up",
    "made_up_input",
    "operations",
    "quiet",
]

SECONDS = 0.06  # of runs, for each graph and side; one of each is made in any case
LONG = 0.3  # seconds of a run that is made once
SHORT = 0.04  # of a run that is made twice at least
RUNS = 20
_TICKS = 100
_NUMBER = "jitmagic.cost"  # on a node of autograd: that of the operation which made it
_engine: Any = torch.autograd.Variable._execution_engine
_OPERATIONS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Laps:
    """Seconds of each operation, in order, and of the whole."""

    each: tuple[float, ...]
    whole: float


class _Clock:
    """Laps of one run; a GPU is waited for."""

    def __init__(self, count: int) -> None:
        self.seconds = [0.0] * count
        self.number = -1
        self.waits = torch.cuda.is_initialized()
        self.since = time.perf_counter()

    def now(self) -> float:
        if self.waits:
            torch.cuda.synchronize()
        return time.perf_counter()

    def ends(self, number: int) -> None:
        """The operation with that number has ended."""
        self.seconds[number] += self.now() - self.since
        self.since = time.perf_counter()

    def begins(self, number: int) -> None:
        """An operation begins, which ends the one before."""
        if self.number >= 0:
            self.ends(self.number)
        self.number = number


Run = Callable[[], object]
Lapped = Callable[[], _Clock]


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing of the user's sees what is run here, and no random number is missing afterwards."""
    with sandbox(), same_random_numbers():
        yield


def _measured(whole: Run, lapped: Lapped) -> Laps:
    """In turns, so that what else the machine does hits both. The first run, in which libraries
    start their threads, counts only where a second one would take too long.
    """
    wholes, runs = [_seconds(whole)], [lapped().seconds]
    fewest = 1
    if wholes[0] < LONG:
        wholes, runs, fewest = [], [], 1 + (wholes[0] < SHORT)
    ends = time.perf_counter() + SECONDS
    while len(runs) < fewest or (time.perf_counter() < ends and len(runs) < RUNS):
        wholes.append(_seconds(whole))
        runs.append(lapped().seconds)
    quietest = [min(values) for values in zip(*runs, strict=True)]
    least = min(*wholes, sum(quietest))  # the clock never makes a run shorter
    return Laps(_without_clock(quietest, least, _clock_costs()), least)


def _clock_costs() -> float:
    """At most, of one lap; of a GPU's nobody knows how long a wait is."""
    clock = _Clock(1)
    if clock.waits:
        return math.inf
    for _ in range(_TICKS):
        clock.ends(0)
    return 2 * clock.seconds[0] / _TICKS + 1e-7


def _seconds(run: Run) -> float:
    clock = _Clock(1)
    run()
    clock.ends(0)
    return clock.seconds[0]


def _without_clock(
    seconds: Sequence[float], whole: float, most: float = math.inf
) -> tuple[float, ...]:
    """What is over is the clock's, up to `most` for each; an operation that takes less than it
    takes nothing.
    """
    left = list(seconds)
    goal = max(whole, sum(left) - most * len(left))
    for _ in left:
        timed = sum(value > 0 for value in left)
        over = sum(left) - goal
        if over <= 0 or not timed:
            break
        left = [max(0.0, value - over / timed) for value in left]
    scale = min(1.0, whole / total) if (total := sum(left)) > 0 else 1.0
    return tuple(value * scale for value in left)


# -- compiled code --------------------------------------------------------------------------------


def laps_of_plan(
    plan: Plan,
    source: KernelSource | None,
    target: Target,
    options: Options,
    given: Sequence[Tensor],
) -> tuple[Laps, tuple[Any, ...]]:
    """Of the launches and ATen calls of a plan on these inputs, and what it returns."""
    clock = _Clock(0)
    count = len(timed_calls(plan))
    number: Iterator[int] = iter(())

    def lap() -> None:
        clock.ends(next(number))

    run = load(plan, source, target, options).run
    timed = with_laps(plan, source, target, options, lap)

    def lapped() -> _Clock:
        nonlocal clock, number
        clock, number = _Clock(count), iter(range(count))
        timed(*given)
        return clock

    with torch.no_grad():
        results = run(*given)
        return _measured(lambda: run(*given), lapped), results


# -- eager ----------------------------------------------------------------------------------------


def operations(graph: Graph) -> list[Node]:
    """The nodes that are calls."""
    return [node for node in graph.nodes if node.op in _OPERATIONS]


def laps_of_graph(gm: GraphModule, specs: Sequence[TensorSpec], differentiated: bool) -> Laps:
    """Of the operations of a traced graph, called one by one as eager calls them, with their part
    in the backward pass (the autograd nodes that they made) where it is `differentiated`.
    """
    given = [made_up_input(spec) for spec in specs]
    wanted = [tensor for tensor in given if tensor.requires_grad]
    count = len(operations(gm.graph))
    clock = _Clock(0)
    records = differentiated or differentiates(gm)

    def after(number: int, value: object) -> None:
        if clock.number >= 0:  # a backward inside the graph: its last node has ended
            clock.begins(-1)
        clock.ends(number)
        if records:
            for node in _new_nodes(value, number):
                node.register_prehook(lambda _: clock.begins(number))
            clock.since = clock.now()

    timed, plain = _with_calls(gm, after), restoring_modes(gm, gm.forward)

    def lapped() -> _Clock:
        nonlocal clock
        clock = _Clock(count)
        results = timed(*given)
        if differentiated:
            differentiate(results, wanted)
            clock.begins(-1)
        return clock

    def whole() -> None:
        results = plain(*given)
        if differentiated:
            differentiate(results, wanted)

    with torch.set_grad_enabled(records):
        return _measured(whole, lapped)


def differentiates(gm: GraphModule) -> bool:
    """Return whether the graph itself asks for gradients: a training step with its backward
    inside.
    """
    return any(node.target is gradients for node in gm.graph.nodes)


def differentiate(results: object, inputs: list[Tensor]) -> None:
    """The backward pass from ones, which stores no gradient."""
    ends = [tensor for tensor in tensors_in(results) if tensor.requires_grad]
    tangents = [torch.ones_like(tensor) for tensor in ends]
    # What torch.autograd.grad calls, which imports symbolic shapes at its first use (1 s).
    _engine.run_backward(
        tuple(ends),
        tuple(tangents),
        keep_graph=False,
        create_graph=False,
        inputs=tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def _new_nodes(value: object, number: int) -> Iterator[Any]:
    """The autograd nodes behind a value that no operation before it has made."""
    stack: list[Any] = [tensor.grad_fn for tensor in tensors_in(value)]
    while stack:
        node = stack.pop()
        if node is not None and _NUMBER not in node.metadata:
            node.metadata[_NUMBER] = number
            stack.extend(before for before, _ in node.next_functions)
            yield node


def made_up(spec: TensorSpec) -> Tensor:
    """A tensor like it. A weight is as small as one that is trained: through a dozen layers of ones
    gradients become denormal, and a product of such numbers takes 20 times as long.
    """
    tensor: Tensor = example(spec.shape, spec.stride, spec.dtype, spec.device)
    is_dense = tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()
    if spec.requires_grad and spec.is_leaf and tensor.ndim > 1 and is_dense and tensor.numel():
        tensor.mul_(tensor.shape[0] / tensor.numel())
    return tensor


def made_up_input(spec: TensorSpec) -> Tensor:
    """The same, with a history where it is no leaf."""
    tensor = made_up(spec)
    if not spec.requires_grad:
        return tensor
    tensor.requires_grad_(True)
    return tensor if spec.is_leaf else tensor.clone()


def _with_calls(gm: GraphModule, after: Callable[[int, object], None]) -> Callable[..., Any]:
    """The graph, with a call after each operation."""

    def told(number: int, value: object) -> None:
        after(number, value)

    copied = Graph()
    copied.output(copied.graph_copy(gm.graph, {}))
    for number, node in enumerate(operations(copied)):
        with copied.inserting_after(node):
            copied.call_function(told, (number, node))
    timed = GraphModule(gm, copied)
    return restoring_modes(timed, timed.forward)
