"""Backwards, which are built at their first use, calls after the forward.

Comes in: what builds one, and the graph that can be replayed instead. Goes out: the executable,
whatever happens: the forward has run by then, so the frame cannot be eager any more. What the user
should know of it is told once per function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.fx import GraphModule

from ..autograd.partial import backward_without
from ..autograd.result import Partition
from ..autograd.shell import BackwardCache, fx_executable
from ..budget import OutOfTime, within
from ..errors import CompileFailed, warn
from ..frame.sandbox import sandbox
from ..options import Options
from ..records import COMPILED, Failed, Recording, TookTooLong
from ..runtime.examples import examples
from ..runtime.native import Executable

__all__ = ["at_first_use", "made_up", "prepare_backward", "tell_of_replay", "tell_once"]


def prepare_backward(
    build: Callable[..., Executable],
    parts: Partition,
    options: Options,
    record: Recording,
    later: Recording,
    make_inputs: Callable[[], Sequence[torch.Tensor]],
) -> BackwardCache | None:
    """What builds it calls later, as the record `later`; None: nothing is differentiated."""
    if parts.backward is None:
        return None
    if record.wanted:
        # Nothing runs it: its kernels are wanted, to be built beside the forward's.
        build(backward_without(parts, ()), "backward", options, record, make_inputs)
    backward = BackwardCache.of(lambda gm: _build_backward(build, gm, options, later), parts)
    record.later.append(weakref.ref(backward))  # status asks it, and keeps nothing alive
    return backward


def _build_backward(
    build: Callable[..., Executable],
    gm: GraphModule,
    options: Options,
    record: Recording,
) -> Executable:
    def made(record: Recording) -> Executable:
        return build(gm, "backward", options, record, partial(made_up, gm))

    return at_first_use(made, lambda: gm, options, record)


def at_first_use(
    build: Callable[[Recording], Executable],
    graph: Callable[[], GraphModule],
    options: Options,
    record: Recording,
) -> Executable:
    """A backward, when the forward has run and the frame cannot be eager any more. `graph`: what
    is replayed where it cannot be built.
    """
    record = record.for_later()
    failed: Failed
    try:
        with sandbox(), within(options.budget):
            run = build(record)
    except (Exception, OutOfTime) as error:  # the gradients still have a right answer
        failed = Failed.of(error, record.failed_in)
        if isinstance(error, OutOfTime):
            failed = TookTooLong.after(options.budget, record.stages)
        record.end(failed)
        if options.on_error == "raise":
            if isinstance(error, OutOfTime):
                raise CompileFailed(failed.why) from None
            raise
        what = f"the backward of {record.name}"
        tell_once(record, what, failed.report(what, "is replayed op by op"))
        return fx_executable(graph())
    if record.stages:  # else it was there already
        record.end(COMPILED)
    return run


def tell_of_replay(record: Recording, is_outdated: bool = False) -> None:
    """Nothing is wrong, but this backward is no quicker than eager's. `is_outdated`: what it relied
    on of Python's state has changed since it was traced.
    """
    if is_outdated:
        tell_once(
            record,
            "outdated",
            f"the backward of {record.name} reads Python's state (an attribute, a variable, a "
            "mode), which has changed since the forward: such backwards run op by op",
        )
        return
    tell_once(
        record,
        "replay",
        f"{record.name} is differentiated twice (create_graph) or for a batch of gradients: "
        "such backwards run op by op",
    )


def tell_once(record: Recording, what: str, text: str) -> None:
    """Once per function, however many variants of it are compiled."""
    if what not in record.reported:
        record.reported.add(what)
        warn(text)


def made_up(gm: GraphModule) -> list[torch.Tensor]:
    """Tensors of the right kind: what a backward is given is not known when it is compiled."""
    return examples([node.meta["spec"] for node in gm.graph.nodes if node.op == "placeholder"])
