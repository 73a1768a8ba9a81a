"""lowered: `jitmagic.lower` compiles for one call without making it, and shows each stage.

    low = jitmagic.lower(fn)(*args)
    low.as_text("torch" | "aten" | "loops" | "cpp" | "triton" | "numba")
    low.cost()        flops and bytes of one run of the forward graph
    low.compile()     a callable, which has .memory()

Input: a function or module, and arguments. Output: a `Lowered` of the frame up to its first graph
break. Code after a break is compiled only when the compiled function gets there.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..api import handle_of, original_of, tagged_copy, tagged_handle
from ..autograd.result import Partition
from ..errors import UsageError
from ..frame.binding import bind, values_of
from ..graph.operators.registered import registered_cost
from ..lazy_dataclass import dataclass
from ..loops.ir import Extern, Nest
from ..loops.show import show
from ..records import Compiled, CompileRecord
from ..schedule.dependencies import reads_of, writes_of
from ..schedule.score import buffer_bytes
from ..spec import TensorSpec
from ..torch_types import AnyFunction
from ..trace.result import Trace
from .builds import Build, builds_of, graphs_of, partitions_of
from .explanation.html import STYLE
from .words import Question, refuse_arguments, size

__all__ = ["CompiledCall", "Cost", "Lowered", "Memory", "lower"]

STAGES = ("torch", "aten", "loops", "cpp", "triton", "numba")


@dataclass(frozen=True, slots=True, repr=False)
class Cost:
    """The work of one run of the forward graph.

    flops: torch's formula for matrix products and the like (a multiply-add counts two), otherwise
    one for each element of a result
    bytes: read and written by kernels and ATen calls, as if there were no caches
    """

    flops: int
    bytes: int

    def __repr__(self) -> str:
        return f"{self.flops:,} flops, {size(self.bytes)} read and written"


@dataclass(frozen=True, slots=True, repr=False)
class Memory:
    """Bytes of one call.

    outputs: results and tensors saved for the backward; workspace: temporaries
    """

    inputs: int
    outputs: int
    workspace: int

    def __repr__(self) -> str:
        return (
            f"inputs {size(self.inputs)}, results and saved tensors {size(self.outputs)}, "
            f"workspace {size(self.workspace)}"
        )


def lower(fn: AnyFunction, /, *arguments: object, **options: object) -> Question[Lowered]:
    """`lower(fn)(*args)`: capture and compile that call without making it.

    `fn` may be plain or tagged and is not changed. Raises what a compile with fullgraph=True
    raises.
    """
    refuse_arguments("lower", arguments)
    copy = tagged_copy(fn, options)
    handle = tagged_handle(copy)

    def run(*args: object, **kwargs: object) -> Lowered:
        target = original_of(fn)
        if isinstance(target, torch.nn.Module):
            forward = original_of(type(target).forward)
            handle.compile_for(values_of(forward, (target, *args), kwargs))
        else:
            handle.compile_for(bind(copy, args, kwargs)[1])
        return Lowered(handle.label, tuple(handle.journal), copy)

    return Question("lower", fn, run)


@dataclass(frozen=True, slots=True, repr=False)
class Lowered:
    """The result of each stage of one compile."""

    name: str
    records: tuple[CompileRecord, ...]
    call: AnyFunction

    @property
    def why_not(self) -> str:
        """The reason why nothing was compiled; "" if something was."""
        outcomes = [r.outcome for r in self.records if not isinstance(r.outcome, Compiled)]
        known = handle_of(self.call)
        if known is not None and known.outcome is not None and not outcomes:
            outcomes = [] if isinstance(known.outcome, Compiled) else [known.outcome]
        return outcomes[-1].why if outcomes else ""

    @property
    def builds(self) -> list[Build]:
        """The executables, forward first."""
        return builds_of(self.records)

    def as_text(self, stage: str = "aten") -> str:
        """Return the result of a stage as text; "" if the compile did not use that stage."""
        if stage not in STAGES:
            raise UsageError.unknown("stage", stage, STAGES)
        return "\n".join(self._texts(stage))

    def _texts(self, stage: str) -> list[str]:
        if stage == "torch":
            traces = [record.result("trace") for record in self.records]
            return [trace.graph.code.strip() for trace in traces if isinstance(trace, Trace)]
        if stage == "aten":
            return [gm.code.strip() for parts in self._partitions() for gm in graphs_of(parts)]
        if stage == "loops":
            return [show(build.schedule.program) for build in self.builds]
        sources = [build.source for build in self.builds if build.source is not None]
        return [source.text for source in sources if source.language == stage]

    def _partitions(self) -> list[Partition]:
        return [parts for record in self.records for parts in partitions_of(record)]

    def cost(self) -> Cost:
        """Return flops and bytes of the forward graph."""
        nodes = [node for p in self._partitions() for node in p.forward.graph.nodes]
        flops = sum(_flops(node) for node in nodes if node.op == "call_function")
        return Cost(flops, sum(_traffic(b) for b in self.builds if b.name != "backward"))

    def compile(self) -> CompiledCall:
        """Return a callable that runs the compiled code."""
        return CompiledCall(self)

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.name} runs as eager: {self.why_not}"
        cost = self.cost()
        stages = [stage for stage in STAGES if self.as_text(stage)]
        return f"{self.name}: {cost}; .as_text({', '.join(map(repr, stages))})"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"{STYLE}<div class='jitmagic'><b>{escape(str(self))}</b>"]
        for stage in STAGES:
            if text := self.as_text(stage):
                parts.append(
                    f"<details><summary>{stage}</summary><pre>{escape(text)}</pre></details>"
                )
        return "".join((*parts, "</div>"))


class CompiledCall:
    """The compiled function; a call that fails its guards is compiled as for `jit`."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered

    def __repr__(self) -> str:
        return f"<compiled {self._lowered.name}: call it; .memory() has the bytes of a call>"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._lowered.call(*args, **kwargs)

    def memory(self) -> Memory:
        """Return the bytes of a forward call, read from the execution plans."""
        plans = [build for build in self._lowered.builds if build.name != "backward"]
        return Memory(
            sum(_bytes_of(b, name) for b in plans for name in b.schedule.program.inputs),
            sum(build.plan.allocated_bytes for build in plans),
            sum(build.plan.pool_bytes for build in plans),
        )


def _traffic(build: Build) -> int:
    steps = [s for s in build.schedule.program.steps if isinstance(s, Nest | Extern)]
    names = [name for step in steps for name in (*set(reads_of(step)), *set(writes_of(step)))]
    return sum(_bytes_of(build, name) for name in names)


def _bytes_of(build: Build, name: str) -> int:
    return buffer_bytes(build.schedule.program.buffers[name])


def _flops(node: torch.fx.Node) -> int:
    if (registered := registered_cost(node)) is not None:
        return int(registered)
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return sum(math.prod(spec.shape) for spec in _specs(node.meta.get("spec")))
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _shape)
    return int(formula(*args, **kwargs, out_val=_shape(node)))


def _shape(node: torch.fx.Node) -> tuple[Any, ...]:
    """Return the shape of a node's result, or a tuple of shapes, for torch's flop formulas."""
    specs = _specs(node.meta.get("spec"))
    return specs[0].shape if len(specs) == 1 else tuple(spec.shape for spec in specs)


def _specs(value: object) -> list[TensorSpec]:
    if isinstance(value, tuple | list):
        return [spec for part in value for spec in _specs(part)]
    return [value] if isinstance(value, TensorSpec) else []
