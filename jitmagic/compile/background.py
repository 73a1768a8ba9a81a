"""Eager while C++ kernels are built in the background, by the rules of the option `background`.

Comes in: the recording of a compile, and what it renders. Goes out: Begun, where kernels have to be
built first: those are all that such a compile leaves, and the one that finds them built starts
over, with the guards of its own call. The thread is runtime/ahead.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from ..codegen.plan import KernelSource
from ..options import Options
from ..records import BUILDING, Begun, Recording
from ..runtime.ahead import build_ahead, missing_units
from ..target import Target

__all__ = ["build_in_background", "left_to_background", "may_wait"]


def may_wait(options: Options) -> bool:
    """Whether a compile ends where kernels are missing; tuning needs them at once."""
    return options.background is not False and options.backend == "native" and not options.tunes


def left_to_background(
    source: KernelSource | None, target: Target, options: Options, record: Recording
) -> bool:
    """Whether the kernels are missing, and are left to the background."""
    if record.wanted is None or (missing := missing_units(source, target, options)) is None:
        return False
    record.wanted.append(missing)
    return True


def build_in_background(record: Recording) -> Begun:
    """Build what was left, on another thread, with the progress line."""

    def around(build: Callable[[Callable[[str], None]], None]) -> None:
        with record.stage(BUILDING) as stage:
            build(lambda text: stage.say(f"{text}, running as eager meanwhile"))

    return Begun(build_ahead(record.wanted or (), around).wait, record.stages)
