"""line_timing: measures each operation of a graph, eager and compiled, on synthetic tensors.

Input: a traced graph, or a plan with its kernels. Output: `OperationTimes`, the least seconds of
each operation over several runs, and of a whole run without a clock inside. The difference of sum
and whole is the overhead of the clock (with a GPU, of synchronizing), which is subtracted in equal
parts from all operations. On the CPU the overhead of a clock is known, so any further difference is
due to load on the machine. It is removed by scaling: if the delay of one matrix product were
subtracted in equal parts, all short operations would become 0. Runs happen in the sandbox and
restore the random generators.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...autograd.nodes import copy_graph
from ...autograd.recording.origins import mark_new
from ...codegen.plan import KernelSource, Plan
from ...compat.autograd import run_backward
from ...devices import Target
from ...frame.sandbox import sandbox
from ...graph.autocast_mode import restoring_modes
from ...graph.gradients import gradients
from ...graph.node_meta import tensors_in
from ...lazy_dataclass import dataclass
from ...options import Options
from ...runtime.examples import example
from ...runtime.load import load
from ...runtime.step_timing import timed_calls, with_laps
from ...spec import TensorSpec
from ...torch_types import AnyFunction
from ..builds import operations_of
from ..checking.cases import same_random_numbers

__all__ = [
    "OperationTimes",
    "differentiate",
    "differentiates",
    "isolated",
    "synthetic",
    "synthetic_input",
    "time_graph",
    "time_plan",
]

SECONDS = 0.06  # budget of runs for each graph, eager and compiled; at least one run is made
LONG = 0.3  # a run that takes longer is made only once
SHORT = 0.04  # a run that takes less is made at least twice
RUNS = 20
_TICKS = 100
_NUMBER = "jitmagic.cost"  # key in an autograd node's metadata: the index of its operation


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Holds the seconds of each operation, in order, and of the whole run."""

    each: tuple[float, ...]
    whole: float


class _Clock:
    """Accumulates seconds per operation in one run, synchronizing with the GPU."""

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
        """Record the end of an operation."""
        self.seconds[number] += self.now() - self.since
        self.since = time.perf_counter()

    def begins(self, number: int) -> None:
        """Record the start of an operation, which is the end of the previous one."""
        if self.number >= 0:
            self.ends(self.number)
        self.number = number


Run = Callable[[], object]
Lapped = Callable[[], _Clock]


@contextmanager
def isolated() -> Iterator[None]:
    """Run the block in the sandbox, invisible to hooks and modes of the user, and restore the
    random generators.
    """
    with sandbox(), same_random_numbers():
        yield


def _measured(whole: Run, lapped: Lapped) -> OperationTimes:
    """Run without and with a clock in turns, so that load on the machine affects both.

    The first run, in which libraries start their threads, counts only if it takes too long to be
    repeated.
    """
    wholes, runs = [_seconds(whole)], [lapped().seconds]
    fewest = 1
    if wholes[0] < LONG:
        wholes, runs, fewest = [], [], 1 + (wholes[0] < SHORT)
    ends = time.perf_counter() + SECONDS
    while len(runs) < fewest or (time.perf_counter() < ends and len(runs) < RUNS):
        wholes.append(_seconds(whole))
        runs.append(lapped().seconds)
    least_each = [min(values) for values in zip(*runs, strict=True)]
    least = min(*wholes, sum(least_each))  # a run is never slower without a clock
    return OperationTimes(_without_clock(least_each, least, _clock_costs()), least)


def _clock_costs() -> float:
    """Return an upper bound on the seconds of one clock reading; infinite with a GPU."""
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
    """Subtract the clock's overhead, at most `most` per operation, then scale to `whole`."""
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


def time_plan(
    plan: Plan,
    source: KernelSource | None,
    target: Target,
    options: Options,
    given: Sequence[Tensor],
) -> tuple[OperationTimes, tuple[Tensor, ...]]:
    """Time the launches and ATen calls of a plan on these inputs; return its results too."""
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


def time_graph(
    gm: GraphModule, specs: Sequence[TensorSpec], differentiated: bool
) -> OperationTimes:
    """Time the operations of a traced graph, called one by one as eager calls them.

    differentiated: also run the backward, and add each autograd node's time to its operation
    """
    given = [synthetic_input(spec) for spec in specs]
    wanted = [tensor for tensor in given if tensor.requires_grad]
    count = len(operations_of(gm.graph))
    clock = _Clock(0)
    records = differentiated or differentiates(gm)

    def after(number: int, value: object) -> None:
        if clock.number >= 0:  # a backward inside the graph ran: its last autograd node has ended
            clock.begins(-1)
        clock.ends(number)
        if records:
            for node in mark_new(tensors_in(value), _NUMBER, number):
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
    """Return whether the graph contains a backward, as that of a whole training step does."""
    return any(node.target is gradients for node in gm.graph.nodes)


def differentiate(results: object, inputs: list[Tensor]) -> None:
    """Run the backward pass from tangents of ones, without storing gradients."""
    ends = [tensor for tensor in tensors_in(results) if tensor.requires_grad]
    tangents = [torch.ones_like(tensor) for tensor in ends]
    run_backward(ends, tangents, inputs)


def synthetic(spec: TensorSpec) -> Tensor:
    """Return a synthetic tensor of a spec, with weights scaled down as trained ones are.

    With unscaled weights, gradients become denormal after a dozen layers, and a matrix product of
    denormal numbers takes 20 times as long.
    """
    tensor: Tensor = example(spec.shape, spec.stride, spec.dtype, spec.device)
    is_dense = tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()
    if spec.requires_grad and spec.is_leaf and tensor.ndim > 1 and is_dense and tensor.numel():
        tensor.mul_(tensor.shape[0] / tensor.numel())
    return tensor


def synthetic_input(spec: TensorSpec) -> Tensor:
    """Return a synthetic tensor with the spec's requires_grad; a non-leaf has a grad_fn."""
    tensor = synthetic(spec)
    if not spec.requires_grad:
        return tensor
    tensor.requires_grad_(True)
    return tensor if spec.is_leaf else tensor.clone()


def _with_calls(gm: GraphModule, after: Callable[[int, object], None]) -> AnyFunction:
    """Return the graph's forward with a call of `after` inserted after each operation."""

    def record_end(number: int, value: object) -> None:
        after(number, value)

    copied = copy_graph(gm.graph)
    for number, node in enumerate(operations_of(copied)):
        with copied.inserting_after(node):
            copied.call_function(record_end, (number, node))
    timed = GraphModule(gm, copied)
    return restoring_modes(timed, timed.forward)
