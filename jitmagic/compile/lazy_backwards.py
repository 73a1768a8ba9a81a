"""Builds backwards at their first use, calls after the forward.

Input: a function that builds the backward, and the graph to replay if it fails. Output: an
executable, never an error: the forward has already run compiled, so eager cannot take over the
frame. A failed backward is replayed op by op, with one warning per function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch.fx import GraphModule

from ..autograd.autograd_function import BackwardCache, fx_executable
from ..autograd.nodes import node_spec, placeholders
from ..autograd.result import Partition
from ..autograd.stages import split_stages
from ..budget import OutOfTime, within
from ..errors import CompileFailed, PassFailed, warn
from ..frame.sandbox import sandbox
from ..options import Options
from ..records import COMPILED, Failed, Recording, TookTooLong
from ..runtime.examples import examples
from ..runtime.native import Step, split_graph
from ..torch_types import Executable

__all__ = [
    "at_first_use",
    "build_backward",
    "prepare_backward",
    "stand_in_inputs",
    "warn_of_replay",
    "warn_once",
]


def prepare_backward(
    build: Callable[..., Executable],
    parts: Partition,
    options: Options,
    record: Recording,
    later: Recording,
) -> BackwardCache | None:
    """Return a backward that is built at its first use, recorded in `later`; None without one."""
    if parts.backward is None:
        return None
    if record.wanted:
        # Never run: its kernels are collected, to be built together with the forward's.
        _build_stages(build, parts.backward, options, record)
    backward = BackwardCache.of(lambda gm: build_backward(build, gm, options, later), parts)
    record.later.append(weakref.ref(backward))  # for status(), which must not keep it alive
    if record.leaves_thread:
        backward()  # no call waits for it
    return backward


def build_backward(
    build: Callable[..., Executable],
    gm: GraphModule,
    options: Options,
    record: Recording,
) -> Executable:
    """Return the executable of a backward graph, at its first use."""

    def made(record: Recording) -> Executable:
        return _build_stages(build, gm, options, record)

    return at_first_use(made, lambda: gm, options, record)


def _build_stages(
    build: Callable[..., Executable], gm: GraphModule, options: Options, record: Recording
) -> Executable:
    """Build a backward: one executable, or one for each of its stages."""

    def built(graph: GraphModule) -> Executable:
        make_inputs = partial(stand_in_inputs, graph)
        return build(graph, "backward", options, record, make_inputs, training=True)

    split = split_stages(gm)
    if split is None:
        return built(gm)
    steps = [Step(built(one.graph), *one.slots) for one in split.subgraphs]
    return split_graph(len(placeholders(gm)), steps, split.outputs)


def at_first_use(
    build: Callable[[Recording], Executable],
    graph: Callable[[], GraphModule],
    options: Options,
    record: Recording,
) -> Executable:
    """Build a backward after its forward has run; if that fails, replay the graph of `graph`."""
    record = record.for_later()
    failed: Failed
    try:
        with sandbox(), within(options.budget):
            run = build(record)
    except (Exception, OutOfTime) as error:  # a replay still gives the right gradients
        failed = Failed.of(error, record.failed_in)
        if isinstance(error, OutOfTime):
            failed = TookTooLong.after(options.budget, record.stages)
        record.end(failed)
        if options.on_error == "raise" or isinstance(error, PassFailed):
            if isinstance(error, OutOfTime):
                raise CompileFailed(failed.why) from None
            raise
        what = f"the backward of {record.name}"
        warn_once(record, what, failed.report(what, "is replayed op by op"))
        return fx_executable(graph())
    if record.stages:  # otherwise the backward was built before
        record.end(COMPILED)
    return run


def warn_of_replay(record: Recording, is_outdated: bool = False) -> None:
    """Warn that a backward is no faster than eager's. `is_outdated`: the Python state that it
    relied on has changed since it was traced.
    """
    if is_outdated:
        warn_once(
            record,
            "outdated",
            f"the backward of {record.name} reads Python's state (an attribute, a variable, a "
            "mode), which has changed since the forward: such backwards run op by op",
        )
        return
    warn_once(
        record,
        "replay",
        f"{record.name} is differentiated twice (create_graph) or for a batch of gradients: "
        "such backwards run op by op",
    )


def warn_once(record: Recording, what: str, text: str) -> None:
    """Warn once per function, however many variants of it are compiled."""
    if what not in record.reported:
        record.reported.add(what)
        warn(text)


def stand_in_inputs(gm: GraphModule) -> list[torch.Tensor]:
    """Return example inputs of a backward, whose real inputs are unknown when it is compiled."""
    return examples([node_spec(node) for node in placeholders(gm)])
