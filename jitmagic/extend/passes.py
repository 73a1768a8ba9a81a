"""Registers passes, which edit the graphs of a compile.

Input: a stage and a function of a graph and a `PassContext`. Output: `passes_for`, which
compile/graph_passes.py asks at each stage. Stages, in order:

    captured   calls of torch functions and methods, as the program makes them; inputs are the
               tensors that it reads, parameters included
    joint      functional ATen calls: inputs, then one tangent for each result that requires grad;
               outputs are the results, then the gradients. Writes to inputs are final aten.copy_
    forward    the part of the joint graph that a call runs; outputs: results, then saved tensors
    backward   the part that a backward runs; inputs: saved tensors, then tangents
    loops      the forward, or the backward, as loops: a `jitmagic.loops.ir.LoopProgram`, before
               loops are fused
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from torch.fx import GraphModule

from ..errors import UsageError
from ..lazy_dataclass import dataclass
from .registry import Registration, Registry, as_decorator

__all__ = [
    "PASSES",
    "STAGES",
    "GraphPass",
    "LoopPass",
    "PassContext",
    "RegisteredPass",
    "passes_for",
    "register_pass",
]

STAGES = ("captured", "joint", "forward", "backward", "loops")


@dataclass(frozen=True, slots=True)
class PassContext:
    """Describes the graph that a pass gets.

    training: whether gradients may be computed: grad mode is on, and an input requires grad
    function: the name of the tagged function
    """

    stage: str
    training: bool
    function: str


GraphPass = Callable[[GraphModule, PassContext], None]
LoopPass = Callable[[Any, PassContext], Any]  # of a LoopProgram: another one, or None


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredPass:
    """A pass with the graphs that it is for; `training`: None means all."""

    name: str
    stage: str
    training: bool | None
    run: LoopPass


PASSES: Registry[RegisteredPass] = Registry("pass")


@overload
def register_pass(
    stage: str, run: LoopPass, /, *, training: bool | None = None, name: str | None = None
) -> Registration: ...
@overload
def register_pass(
    stage: str, /, *, training: bool | None = None, name: str | None = None
) -> Callable[[LoopPass], LoopPass]: ...


def register_pass(
    stage: str,
    run: LoopPass | None = None,
    /,
    *,
    training: bool | None = None,
    name: str | None = None,
) -> Registration | Callable[[LoopPass], LoopPass]:
    """Register `run(graph_module, context) -> None`, which may edit the graph of a stage in place.
    For the stage "loops" it is `run(program, context) -> program`: a LoopProgram cannot be changed,
    so the pass returns an edited one, or None.

    stage: "captured", "joint", "forward", "backward" or "loops" (`help(jitmagic.extend.passes)`)
    training: only graphs that gradients may be asked of (True), only others (False), or all
    name: for messages, and for `unregister`; by default the function's

    Passes of a stage run in the order of registration. New nodes need no metadata, and dead nodes
    need not be erased. After each pass the graph is checked: its inputs, the shapes, dtypes and
    devices of its outputs, and the inputs that it writes to are the same as before; loops are also
    checked by the rules of their IR. A pass that breaks this, or raises, is an error that names it.

    Registering or removing a pass makes all tagged functions compile again at their next call, as
    `jitmagic.reset()` does.

    With a function, it returns a `Registration`, which a `with` block removes at its end; without
    one, a decorator. Raises UsageError for a name that is taken, and for an unknown stage.
    """
    if stage not in STAGES:
        raise UsageError.unknown("stage", stage, STAGES)
    if training not in (None, True, False):
        raise UsageError(f"training is None, True or False, not {training!r}")
    if run is None:
        return as_decorator(lambda run: register_pass(stage, run, training=training, name=name))
    if not callable(run):
        raise UsageError(f"a pass is a function of a graph and a context, not {run!r}")
    chosen = str(getattr(run, "__name__", type(run).__name__)) if name is None else name
    return PASSES.add(chosen, RegisteredPass(chosen, stage, training, run))


def passes_for(stage: str, training: bool) -> tuple[RegisteredPass, ...]:
    """Return the passes for a graph, in the order in which they run."""
    rows = PASSES.rows.values()
    return tuple(p for p in rows if p.stage == stage and p.training in (None, training))
