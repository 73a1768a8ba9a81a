"""What a tagged function has been compiled to, counted from the records that pipeline keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jitmagic.api import handle_of
from jitmagic.records import COMPILED, Compiled, CompileRecord
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
    records = _compiled(tagged)
    traces = _traces(records)
    return Counts(
        graphs=sum(_computes(trace) for trace in traces),
        breaks=sum(isinstance(trace.exit, Break) for trace in traces),
        kernels=sum(record.kernels for record in records),
    )


def breaks_of(tagged: Callable[..., Any]) -> list[str]:
    """The reason of each graph break so far."""
    exits = [trace.exit for trace in _traces(_compiled(tagged))]
    return [str(exit_.reason) for exit_ in exits if isinstance(exit_, Break)]


def eager_of(tagged: Callable[..., Any]) -> list[tuple[str, str]]:
    """Names of frames that run as eager, and why."""
    records = _journal(tagged)
    return [(r.name, r.outcome.why) for r in records if not isinstance(r.outcome, Compiled)]


def _journal(tagged: Callable[..., Any]) -> list[CompileRecord]:
    handle = handle_of(tagged)
    assert handle is not None, f"{tagged!r} is not tagged"
    return list(handle.journal)


def _compiled(tagged: Callable[..., Any]) -> list[CompileRecord]:
    return [record for record in _journal(tagged) if record.outcome == COMPILED]


def _traces(records: Sequence[CompileRecord]) -> list[Trace]:
    return [found for r in records if isinstance(found := r.result("trace"), Trace)]


def _computes(trace: Trace) -> bool:
    nodes = trace.graph.graph.nodes
    return any(node.op not in ("placeholder", "output", "get_attr") for node in nodes)
