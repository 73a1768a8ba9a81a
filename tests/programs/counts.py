"""What a tagged function has been compiled to, counted from the records that pipeline keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitmagic.api import handle_of
from jitmagic.records import COMPILED, Compiled
from jitmagic.trace.result import Break, Trace


@dataclass(frozen=True)
class Counts:
    """Graphs that compute something, graph breaks, and kernels, resume functions included.

    A backward is counted when it has been compiled, which happens at its first use; frames that run
    as eager are not.
    """

    graphs: int
    breaks: int
    kernels: int


def counts_of(tagged: Callable[..., Any]) -> Counts:
    """Everything compiled for a tagged function or module so far."""
    handle = handle_of(tagged)
    assert handle is not None, f"{tagged!r} is not tagged"
    records = [record for record in handle.journal if record.outcome == COMPILED]
    traces = [found for r in records if isinstance(found := r.result("trace"), Trace)]
    return Counts(
        graphs=sum(_computes(trace) for trace in traces),
        breaks=sum(isinstance(trace.exit, Break) for trace in traces),
        kernels=sum(record.kernels for record in records),
    )


def eager_of(tagged: Callable[..., Any]) -> list[tuple[str, str]]:
    """Names of frames that run as eager, and why."""
    handle = handle_of(tagged)
    assert handle is not None, f"{tagged!r} is not tagged"
    return [(r.name, r.outcome.why) for r in handle.journal if not isinstance(r.outcome, Compiled)]


def _computes(trace: Trace) -> bool:
    nodes = trace.graph.graph.nodes
    return any(node.op not in ("placeholder", "output", "get_attr") for node in nodes)
