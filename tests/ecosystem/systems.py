"""The systems that a case runs under, and what each says about graphs afterwards.

torch.compile runs with backend="eager": only what it captures is of interest here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import Compiled
from jitmagic.trace.result import Break, Trace
from tests.programs.counts import counts_of, eager_of

__all__ = ["Captured", "Eager", "Jitmagic", "TorchCompile", "keywords_of"]


@dataclass(frozen=True)
class Captured:
    """Graphs, graph breaks and frames that ran as eager; `why` has the reasons of both."""

    graphs: int = 0
    breaks: int = 0
    why: tuple[str, ...] = ()
    eager: int = 0

    @classmethod
    def read(cls, kept: dict[str, Any]) -> Captured:
        return cls(**{**kept, "why": tuple(kept["why"])})


class Eager:
    def tag(self, target: Any) -> Any:
        return target

    def captured(self) -> Captured:
        return Captured()


class Jitmagic:
    def __init__(self, backend: str = "native") -> None:
        jitmagic.reset()
        self.keywords = {"backend": backend}
        self._tagged: list[Callable[..., Any]] = []

    def tag(self, target: Any) -> Any:
        tagged = jitmagic.jit(target, **self.keywords)
        self._tagged.append(tagged)
        return tagged

    def captured(self) -> Captured:
        counts = [counts_of(tagged) for tagged in self._tagged]
        why = [reason for tagged in self._tagged for reason in _reasons(tagged)]
        return Captured(
            graphs=sum(count.graphs for count in counts),
            breaks=sum(count.breaks for count in counts),
            why=tuple(dict.fromkeys(why)),
            eager=sum(len(eager_of(tagged)) for tagged in self._tagged),
        )


def _reasons(tagged: Callable[..., Any]) -> list[str]:
    """Of breaks the user's or library's line too."""
    handle = handle_of(tagged)
    assert handle is not None
    reasons = []
    for record in handle.journal:
        trace = record.result("trace")
        if not isinstance(record.outcome, Compiled):
            reasons.append(f"{record.name}: {record.outcome}")
        elif isinstance(trace, Trace) and isinstance(trace.exit, Break):
            reasons.append(f"{trace.exit.reason.message} @ {trace.exit.where}")
    return reasons


class TorchCompile:
    def __init__(self) -> None:
        torch.compiler.reset()
        self._counters = torch._dynamo.utils.counters
        self._counters.clear()

    def tag(self, target: Any) -> Any:
        if isinstance(target, nn.Module):
            target.compile(backend="eager")
            return target
        return torch.compile(target, backend="eager")

    def captured(self) -> Captured:
        reasons, frames = self._counters["graph_break"], self._counters["frames"]
        return Captured(
            graphs=self._counters["stats"]["unique_graphs"],
            breaks=sum(reasons.values()),
            why=tuple(str(reason).strip().partition("\n")[0] for reason in reasons),
            eager=frames["total"] - frames["ok"],
        )


def keywords_of(tag: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Return what `jitmagic.jit` is called with by a case's tag; None: another system's tag.

    Cases of `jitmagic.integrations` leave the tagging to the integration then.
    """
    system = getattr(tag, "__self__", None)
    return system.keywords if isinstance(system, Jitmagic) else None
