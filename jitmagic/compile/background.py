"""Ends a compile whose C++ kernels are missing and builds them in the background.

The option `background` decides. Such a compile returns a PendingBuild and leaves only the kernels
in the cache: calls run in eager until they are built, then a new compile starts over with the
guards of its own call. `runtime/background_builds.py` has the thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ..codegen.plan import KernelSource
from ..devices import Target
from ..options import Options
from ..records import BUILDING, PendingBuild, Recording
from ..runtime.background_builds import build_ahead, missing_units

__all__ = ["build_in_background", "left_to_background", "may_wait"]


def may_wait(options: Options) -> bool:
    """Return whether a compile may end with missing kernels; tuning needs them at once."""
    return options.background is not False and options.backend == "native" and not options.tunes


def left_to_background(
    source: KernelSource | None, target: Target, options: Options, record: Recording
) -> bool:
    """Return whether the kernels are missing and are left to the background build."""
    if record.wanted is None or (missing := missing_units(source, target, options)) is None:
        return False
    record.wanted.append(missing)
    return True


def build_in_background(record: Recording) -> PendingBuild:
    """Build the missing kernels on another thread, with the progress line."""

    def around(build: Callable[[Callable[[str], None]], None]) -> None:
        with record.stage(BUILDING) as stage:
            build(lambda text: stage.say(f"{text}, in the background"))

    return PendingBuild(build_ahead(record.wanted or (), around).wait, record.stages)
