"""Compiles a recorded batch: the ATen calls inside `jitmagic.lazy()`, in the order of the program.

Input: a batch as `_lazy` describes it. Output: a callable of its inputs, which returns the final
contents of its outputs; or None, after a warning, and the batch then runs one operation after
another. The graph holds the recorded calls as they are, with writes and views; the joint graph
makes them functional, as it does for a traced frame. Sizes and numbers are constants of a batch, so
the same calls are compiled for at most `recompile_limit` of them. Every compile is recorded in
`journal`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ..autograd.autograd_function import make_callable
from ..autograd.joint import trace_joint
from ..autograd.partition import partition
from ..budget import OutOfTime, within
from ..compile.executable import build_executable
from ..compile.graph_passes import edit_joint, edit_parts
from ..errors import UserLine, warn
from ..extension import lazy_module
from ..frame.sandbox import sandbox
from ..graph.lazy_module import LazyModule
from ..options import Options, make_options
from ..records import COMPILED, Failed, Journal, Recording, TookTooLong
from ..spec import spec_of
from ..torch_types import Executable, OpOverload

__all__ = ["Batch", "Call", "compile_batch", "forget", "graph_of", "journal"]

NAME = "jitmagic.lazy()"
journal = Journal()
_compiled: Counter[tuple[tuple[str, str], ...]] = Counter()  # batches with the same calls
_reported: set[str] = set()
Reference = tuple[int]  # the number of a value; no argument of an ATen call is a tuple otherwise


class Call(NamedTuple):
    """A recorded call. Its results are the values from `first` on.

    counts: for each result its length if it is a list, or -1; None for a write to its first
        argument, which has no new value
    line: (file, line number, function) of the user's code
    """

    name: str
    overload: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    first: int
    counts: tuple[int, ...] | None
    line: tuple[str, int, str] | None

    @property
    def op(self) -> OpOverload:
        """Return the operator."""
        namespace, _, name = self.name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name)
        found: OpOverload = getattr(packet, self.overload or "default")
        return found


class Batch(NamedTuple):
    """A recorded batch: its calls, its inputs with their values' numbers, and its outputs."""

    calls: Sequence[Call]
    inputs: Sequence[tuple[int, torch.Tensor]]
    outputs: Sequence[int]

    @classmethod
    def of(cls, described: tuple[Any, Any, Any]) -> Batch:
        """Read the description that `_lazy` makes."""
        calls, inputs, outputs = described
        return cls([Call(*call) for call in calls], inputs, outputs)


def compile_batch(described: tuple[Any, Any, Any]) -> Executable | None:
    """Return the compiled batch; None if a stage failed, or if the same calls were compiled for too
    many sizes and numbers.
    """
    options, batch = make_options(), Batch.of(described)
    calls = tuple((call.name, call.overload) for call in batch.calls)
    _compiled[calls] += 1
    if _compiled[calls] > options.recompile_limit:
        return None
    record = Recording(NAME, journal, reported=_reported)
    failed: Failed
    try:
        with sandbox(), torch.no_grad(), within(options.budget):
            run = _compile(batch, options, record)
    except (Exception, OutOfTime) as error:  # eager's kernels give the same values
        failed = Failed.of(error, record.failed_in)
        if isinstance(error, OutOfTime):
            failed = TookTooLong.after(options.budget, record.stages)
        record.end(failed)
        if options.on_error == "raise":
            raise
        if failed.is_new(_reported, failed.error):
            warn(failed.report("operations that jitmagic.lazy() recorded", "run one by one"))
        return None
    record.end(COMPILED)
    return run


def forget() -> None:
    """Forget all compiled batches."""
    lazy_module().forget()
    _compiled.clear()
    journal.records.clear()


def _compile(batch: Batch, options: Options, record: Recording) -> Executable:
    with record.stage("record") as stage:
        gm = stage.keep(graph_of(batch))
    tensors = [tensor for _, tensor in batch.inputs]
    specs = [spec_of(tensor) for tensor in tensors]
    with record.stage("joint") as stage:
        joint = stage.keep(trace_joint(gm, specs, grad_enabled=False))
    joint = edit_joint(joint, record)
    with record.stage("partition") as stage:
        parts = stage.keep(edit_parts(partition(joint), record))
    run = build_executable(parts.forward, "forward", options, record, lambda: tensors)
    return make_callable(parts, run, None, gm)


def graph_of(batch: Batch) -> GraphModule:
    """Return the torch-level graph of a batch; its placeholders are the batch's inputs."""
    graph = Graph()
    values: dict[int, Node] = {}
    for number, tensor in batch.inputs:
        values[number] = graph.placeholder(f"input_{number}")
        values[number].meta["spec"] = spec_of(tensor)
    for call in batch.calls:
        _add(graph, call, values)
    graph.output(tuple(values[number] for number in batch.outputs))
    return LazyModule(torch.nn.Module(), graph, "Lazy")


def _add(graph: Graph, call: Call, values: dict[int, Node]) -> None:
    resolve = partial(_resolved, values=values)
    args = tuple(map(resolve, call.args))
    kwargs = {name: resolve(value) for name, value in call.kwargs.items()}
    node = graph.call_function(call.op, args, kwargs)
    lines = (UserLine(*call.line),) if call.line else ()
    node.meta["lines"] = lines
    if call.counts is None:
        return
    number = call.first
    for place, count in enumerate(call.counts):
        part = node
        if len(call.counts) > 1:
            part = graph.call_function(operator.getitem, (node, place))
            part.meta["lines"] = lines
        for item in range(max(count, 0)):
            values[number] = graph.call_function(operator.getitem, (part, item))
            values[number].meta["lines"] = lines
            number += 1
        if count < 0:
            values[number] = part
            number += 1


def _resolved(value: object, values: Mapping[int, Node]) -> Any:
    if isinstance(value, tuple):
        return values[value[0]]
    return [_resolved(item, values) for item in value] if isinstance(value, list) else value
