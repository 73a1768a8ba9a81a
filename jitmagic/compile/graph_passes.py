"""Runs the registered passes on the graphs of a compile, and checks each result; and jitmagic's own
pass over ATen graphs, which joins collectives.

Input: the result of a stage. Output: the same with edited graphs, or an edited LoopProgram. After
each pass the metas of new nodes are inferred, dead nodes are erased, and the graph must have the
inputs, outputs and writes that it had. A pass that raises or breaks this raises PassFailed; a pass
that does not end runs into the time limit of the compile.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from ..autograd.nodes import (
    alias_root,
    copy_graph,
    erase_dead,
    flat_outputs,
    module_of,
    placeholders,
)
from ..autograd.result import Joint, Partition
from ..budget import check
from ..errors import PassFailed, is_ours
from ..extend.passes import PassContext, RegisteredPass, passes_for
from ..graph.distributed.waited import is_waited
from ..graph.memory import memory_of
from ..graph.node_meta import mutated_by
from ..graph.passes import describe_edited, drop_dead_code, state_of
from ..graph.symbolic.concrete import Values
from ..late import late_names
from ..loops.ir import Buffer, LoopProgram
from ..options import Options
from ..records import JOINS, USERS_PASS, Recording
from ..schedule.dependencies import storages, writes_of
from ..spec import TensorSpec
from ..symbols.size import is_same
from ..torch_types import OpOverload
from ..trace.result import Trace

if TYPE_CHECKING:
    from ..autograd.verify import describe_calls, normalized_strides
    from ..graph.distributed.joining import join_collectives
    from ..graph.verify import verify
    from ..loops.verify import verify as verify_loops
else:
    late_names(
        globals(),
        {
            "autograd.verify": "describe_calls, normalized_strides",
            "graph.distributed.joining": "join_collectives",
            "graph.verify": "verify",
            "loops.verify": "verify as verify_loops",
        },
    )

__all__ = ["edit_captured", "edit_joint", "edit_loops", "edit_parts", "with_joined_collectives"]

aten = torch.ops.aten
_COPY = aten.copy_.default
# Metas that say what no data flow shows: what a checkpointed region is run again from, gradients of
# custom autograd functions, and numbers that differ from call to call.
_HIDDEN = ("enters", "tangents", "traced_float")


def edit_captured(traced: Trace, record: Recording) -> None:
    """Run the passes of the stage "captured" on the graph of a trace, in place."""
    training = torch.is_grad_enabled() and bool(traced.grad_inputs)
    _run_passes(traced.graph, "captured", training, _captured, record)


def edit_joint(joint: Joint, record: Recording) -> Joint:
    """Run the passes of the stage "joint", in place."""
    before = flat_outputs(joint.module)
    _run_passes(joint.module, "joint", bool(joint.grad_inputs), _aten, record)
    after = flat_outputs(joint.module)
    # A new node that computes a result is saved for the backward where eager saves the result.
    saved = {
        new: joint.eager_saved[old]
        for old, new in zip(before, after, strict=True)
        if old is not None and new is not None and old is not new and old in joint.eager_saved
    }
    return replace(joint, eager_saved={**joint.eager_saved, **saved}) if saved else joint


def edit_parts(parts: Partition, record: Recording) -> Partition:
    """Run the passes of the stages "forward" and "backward"."""
    training = parts.backward is not None
    run = partial(_edited, training=training, record=record)
    backward = None if parts.backward is None else run(parts.backward, "backward")
    return replace(parts, forward=run(parts.forward, "forward"), backward=backward)


def edit_loops(program: LoopProgram, training: bool, record: Recording) -> LoopProgram:
    """Run the passes of the stage "loops"."""
    context = PassContext("loops", training, record.name)
    for one in passes_for("loops", training):
        with record.stage(f"{USERS_PASS}{one.name}"):
            returned = _call(one, program, context)
            with _checking(one):
                program = program if returned is None else _checked_loops(returned, program)
    return program


def with_joined_collectives(
    gm: GraphModule,
    name: str,
    options: Options,
    record: Recording,
    values: Values = MappingProxyType({}),
) -> GraphModule:
    """Return the graph with small collectives joined, if the options ask for it. `values`: those of
    its symbols. All tiers run this graph, as all ranks must start the same collectives.
    """
    joins = options.collectives == "joined"
    if not joins or not any(is_waited(node.target) for node in gm.graph.nodes):
        return gm
    with record.stage(f"{name}: {JOINS}") as stage:
        made = stage.keep(join_collectives(gm, values, exact=options.precision != "fast"))
    return made.module


def _checked_loops(made: object, before: LoopProgram) -> LoopProgram:
    """Return the result of a pass; raise if it is not valid in the place of the program."""
    if not isinstance(made, LoopProgram):
        raise TypeError(f"it returned a {type(made).__name__}, not a LoopProgram or None")
    verify_loops(made)
    first, other = ((one.name, one.inputs, len(one.outputs)) for one in (before, made))
    if first != other:
        raise ValueError("they change the name, the inputs or the number of outputs")
    for old, new in zip(_ends_of(before), _ends_of(made), strict=True):
        if not _is_same_buffer(before.buffers.get(old), made.buffers.get(new)):
            raise ValueError(f"they change the shape, strides, dtype or device of {old}")
    written = [_written_by_loops(one) for one in (before, made)]
    if written[0] != written[1]:
        names = [", ".join(sorted(some)) or "none" for some in written]
        raise ValueError(f"they write to other inputs: {names[1]} instead of {names[0]}")
    if _shared_memory(before) != _shared_memory(made):
        raise ValueError("they change which inputs and outputs share memory")
    return made


def _ends_of(program: LoopProgram) -> list[str]:
    return [name or "" for name in (*program.inputs, *program.outputs)]


def _is_same_buffer(old: Buffer | None, new: Buffer | None) -> bool:
    if old is None or new is None or (old.dtype, old.device) != (new.dtype, new.device):
        return old is new
    first, other = (old.shape, old.stride), (new.shape, new.stride)
    return len(old.shape) == len(new.shape) and all(
        is_same(a, b) for pair in zip(first, other, strict=True) for a, b in zip(*pair, strict=True)
    )


def _written_by_loops(program: LoopProgram) -> set[str]:
    owner = storages(program)
    written = {owner[name] for step in program.steps for name in writes_of(step)}
    return written & {*program.inputs}


def _shared_memory(program: LoopProgram) -> list[int]:
    """Return for each input and output the first one in the same memory."""
    owner = storages(program)
    memory = [owner.get(name, name) for name in _ends_of(program)]
    return [memory.index(one) for one in memory]


def _edited(gm: GraphModule, stage: str, *, training: bool, record: Recording) -> GraphModule:
    """Return an edited copy: without gradients, the forward graph is the joint graph itself."""
    if not passes_for(stage, training):
        return gm
    nodes: dict[Node, Node] = {}
    graph = copy_graph(gm.graph, nodes)
    graph.output_node().meta.update(gm.graph.output_node().meta)
    copy = module_of(graph, dict(gm.named_buffers()), type(gm).__name__)
    _run_passes(copy, stage, training, _aten, record)
    return copy


# -- one kind of graphs ----------------------------------------------------------------------------


class _Graphs(NamedTuple):
    """The rules for a kind of graphs. `begin` returns what describes the nodes after an edit."""

    begin: Callable[[GraphModule], Callable[[], None]]
    written: Callable[[GraphModule], set[str]]  # names of the inputs that the graph writes to


def _begin_captured(gm: GraphModule) -> Callable[[], None]:
    before = state_of(gm.graph)

    def end() -> None:
        describe_edited(gm.graph, before)
        verify(gm)
        drop_dead_code(gm.graph)

    return end


def _written_by_program(gm: GraphModule) -> set[str]:
    writes = [target for node in gm.graph.nodes for target in mutated_by(node)]
    memory = {storage for target in writes for storage in memory_of(target)}
    return {node.name for node in placeholders(gm) if memory & memory_of(node)}


def _begin_aten(gm: GraphModule) -> Callable[[], None]:
    before = set(gm.graph.nodes)

    def end() -> None:
        erase_dead(gm.graph)
        for node in set(gm.graph.nodes) - before:
            _check_call(node)
        describe_calls(gm)

    return end


def _check_call(node: Node) -> None:
    """Check that a new node is one that the later stages know."""
    target = node.target
    if node.op in ("get_attr", "output") or target is operator.getitem:
        return
    if not isinstance(target, OpOverload):
        name = getattr(target, "__name__", target)
        raise ValueError(f"calls {name}: calls of this stage are ATen overloads")
    if target._schema.is_mutable and target is not _COPY:
        raise ValueError(f"writes in place by {target}: calls of this stage are functional")


def _written_by_copies(gm: GraphModule) -> set[str]:
    copies = [node for node in gm.graph.nodes if node.target is _COPY]
    return {alias_root(node.all_input_nodes[0]).name for node in copies}


_captured = _Graphs(_begin_captured, _written_by_program)
_aten = _Graphs(_begin_aten, _written_by_copies)


# -- one pass --------------------------------------------------------------------------------------


def _run_passes(
    gm: GraphModule, stage: str, training: bool, kind: _Graphs, record: Recording
) -> None:
    context = PassContext(stage, training, record.name)
    for one in passes_for(stage, training):
        with record.stage(f"{USERS_PASS}{one.name}"):
            _run_pass(one, gm, context, kind)


def _run_pass(one: RegisteredPass, gm: GraphModule, context: PassContext, kind: _Graphs) -> None:
    describe, before, nodes = kind.begin(gm), _Signature.of(gm, kind), list(gm.graph.nodes)
    returned = _call(one, gm, context)
    with _checking(one):
        if returned is not None:
            raise ValueError(f"returned a {type(returned).__name__}: it has to edit the graph")
        gm.graph.lint()
        _check_ends(gm, before)
        describe()
        _check_dropped(gm, nodes)
        if (changed := before.difference(_Signature.of(gm, kind))) is not None:
            raise ValueError(changed)
    gm.recompile()


def _call(one: RegisteredPass, edited: Any, context: PassContext) -> object:
    run: Callable[..., object] = one.run
    try:
        with _interruptible():
            return run(edited, context)
    except Exception as error:  # the user's code may raise anything
        why = f"raised {type(error).__name__}: {error}"
        raise PassFailed(one.name, one.stage, why) from error


@contextmanager
def _checking(one: RegisteredPass) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch raises many kinds for a call that does not fit
        made = "wrong loops:" if one.stage == "loops" else "a wrong graph: it"
        raise PassFailed(one.name, one.stage, f"made {made} {error}") from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """Check the time limit of the compile at each line of the user's code."""
    if sys.gettrace() is not None:  # a debugger or a coverage tool
        yield
        return

    def watch(frame: FrameType, event: str, argument: object) -> Any:
        if is_ours(frame):
            return None
        check()
        return watch

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(None)


class _Signature(NamedTuple):
    """The properties of a graph that later stages and the caller rely on."""

    inputs: tuple[str, ...]
    outputs: tuple[TensorSpec | None, ...]
    written: set[str]

    @classmethod
    def of(cls, gm: GraphModule, kind: _Graphs) -> _Signature:
        inputs = tuple(node.name for node in placeholders(gm))
        specs = [None if node is None else node.meta["spec"] for node in flat_outputs(gm)]
        return cls(inputs, tuple(specs), kind.written(gm))

    def difference(self, other: _Signature) -> str | None:
        """Return what another graph does differently; None if nothing."""
        for at, (old, new) in enumerate(zip(self.outputs, other.outputs, strict=True)):
            if (changed := _changed(old, new)) is not None:
                return f"changes output {at}: {changed}"
        if self.written != other.written:
            names = [", ".join(sorted(names)) or "none" for names in (self.written, other.written)]
            return f"writes to other inputs: {names[1]} instead of {names[0]}"
        return None


def _changed(old: TensorSpec | None, new: TensorSpec | None) -> str | None:
    if old is None or new is None:
        return None if old is new else f"it is {new}, not {old}"
    old, new = (
        replace(normalized_strides(one), is_leaf=True, cls=torch.Tensor, storage_offset=0)
        for one in (old, new)
    )
    if old == new:
        return None
    if replace(old, stride=()) != replace(new, stride=()):
        return f"it is {new}, not {old}"
    return f"its strides are {new.stride}, not {old.stride} (clone or contiguous() restores them)"


def _check_dropped(gm: GraphModule, before: Sequence[Node]) -> None:
    """Check that no node is gone of which a later stage reads more than its result."""
    after = dict.fromkeys(gm.graph.nodes)
    left = [value for node in after for value in _hidden_in(node)]
    for node in before:
        hidden = () if node in after else _hidden_in(node)
        if any(all(value is not other for other in left) for value in hidden):
            raise ValueError(
                f"drops {node.name}, on which later stages rely: set its target, or copy its meta "
                "to the node in its place"
            )


def _hidden_in(node: Node) -> list[object]:
    return [value for key, value in node.meta.items() if key in _HIDDEN]


def _check_ends(gm: GraphModule, before: _Signature) -> None:
    """Check the inputs, and the number and kind of the outputs."""
    if tuple(node.name for node in placeholders(gm)) != before.inputs:
        raise ValueError(f"changes the inputs, which were {', '.join(before.inputs)}")
    outputs: Sequence[object] | object = gm.graph.output_node().args[0]
    if not isinstance(outputs, tuple | list):
        raise ValueError("returns no flat tuple")
    if len(outputs) != len(before.outputs):
        raise ValueError(f"has {len(outputs)} outputs, not {len(before.outputs)}")
    for at, (node, spec) in enumerate(zip(outputs, before.outputs, strict=True)):
        if not isinstance(node, Node if spec is not None else Node | None):
            raise ValueError(f"has the constant {node!r} as output {at}")
