"""Lists the frozen classes that artifacts are made of; their names are part of the format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache

from ..autograd.replay import ReplayInput, ReplayModes, ReplayState, ResultPlace
from ..autograd.result import AliasStep, Output
from ..bytecode.user_signature import UserSignature
from ..codegen import plan as plans
from ..devices import Target
from ..errors import ModulePath, UserLine
from ..frame.ledger import Comparable
from ..graph.autocast_mode import Autocast
from ..guards.guard import AutocastDetails, ClassFact, Guard, NameFact, StateFacts
from ..guards.source import Source
from ..records import Compiled, Eager
from ..runtime.native import Step
from ..spec import TensorSpec
from ..symbols.context_facts import ContextFacts
from ..symbols.expr import Expr
from ..symbols.interval import Interval
from ..symbols.size import DataSize, OffsetOf, SizeOf, StrideOf
from ..trace.residual.template import Template
from ..trace.result import GraphInput
from ..trace.varying.origins import Count, DrawnNumber, InputNumber, KnownCount

__all__ = ["vocabulary"]

_FAMILIES: tuple[type, ...] = (AliasStep, Expr, Guard, Output, Source, plans.PlanStep, plans.Slot)
_OTHERS: tuple[type, ...] = (
    *(
        Autocast,
        AutocastDetails,
        ClassFact,
        Comparable,
        Compiled,
        ContextFacts,
        DataSize,
        GraphInput,
        Eager,
        Interval,
        ModulePath,
        NameFact,
    ),
    *(Count, DrawnNumber, InputNumber, KnownCount),
    *(OffsetOf, ReplayInput, SizeOf, StateFacts, Step, StrideOf, Target, Template, TensorSpec),
    *(
        ReplayModes,
        ReplayState,
        ResultPlace,
        UserLine,
        UserSignature,
        plans.KernelSource,
        plans.LaunchGrid,
        plans.Layout,
        plans.Plan,
    ),
    *(plans.SizeVector, plans.Slot, plans.Unit),
)


@cache
def vocabulary() -> dict[str, type]:
    """Return the classes by name."""
    found = [*_OTHERS, *(cls for family in _FAMILIES for cls in _subclasses(family))]
    return {one.__name__: one for one in found}


def _subclasses(family: type) -> Iterator[type]:
    below: list[type] = family.__subclasses__()
    for cls in below:
        # @dataclass(slots=True) makes a second class; the first is a subclass until it is freed.
        if getattr(sys.modules[cls.__module__], cls.__name__, None) is cls:
            yield cls
        yield from _subclasses(cls)
