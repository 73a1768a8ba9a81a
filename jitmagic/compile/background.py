"""Lets calls run in eager while a compile goes on in the background.

The option `background` decides how. With "auto", the stages after the trace run on another thread:
`compile_on_worker` returns a PendingBuild, and the first call after the end makes the entry of what
they built. With True or a number, only C++ kernels are built in the background: such a compile
leaves nothing but kernels in the cache, and once they are built a new one starts over with the
guards of its own call. `runtime/background_builds.py` has the thread.

A stage may run on the other thread because its input is data and because torch's modes are each
thread's own: `thread_state.py` sets those of the call. Tracing reads live objects, so it does not
leave the calling thread, and neither does the making of the entry. An error on the other thread
leaves no result: the compile starts over on the calling thread, which meets it again and reports
it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ..budget import OutOfTime, within
from ..codegen.plan import KernelSource
from ..devices import Target
from ..errors import warn, warnings_deferred
from ..frame.sandbox import sandbox
from ..late import short_turns
from ..options import Options
from ..records import BUILDING, PendingBuild, Recording
from ..runtime.background_builds import build_ahead, exiting, missing_units, run_later
from ..symbols.probe import noting
from .thread_state import ThreadState

__all__ = ["build_in_background", "compile_on_worker", "left_to_background", "may_wait"]


def may_wait(options: Options) -> bool:
    """Return whether a compile may end with missing kernels; tuning needs them at once."""
    is_asked = options.background is not False and options.background != "auto"
    return is_asked and options.backend == "native" and not options.tunes


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


def compile_on_worker(
    build: Callable[[], Any],
    finish: Callable[[Callable[[], Any]], Any],
    record: Recording,
    options: Options,
) -> PendingBuild:
    """Run `build` on another thread; on the calling thread, `finish` makes an entry of its result.

    `finish` takes a function that returns the result, or raises OutOfTime as `build` did.
    """
    job = _CompileJob(build, record, options)
    run_later(job)
    return PendingBuild(job.wait, record.stages, lambda: finish(job.end) if job.is_usable else None)


class _CompileJob:
    """Represents the stages of one compile that run on another thread."""

    def __init__(self, build: Callable[[], Any], record: Recording, options: Options) -> None:
        self._build: Callable[[], Any] | None = build
        self._record, self._seconds = record, options.budget
        self._state = ThreadState.read()
        self._done, self._process = threading.Event(), os.getpid()
        self._result: Any = None
        self._over: OutOfTime | None = None
        self._warnings: list[Any] = []
        self.is_usable = False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` and return whether it is done. A forked child has no such thread."""
        return self._process != os.getpid() or self._done.wait(seconds)

    def run(self) -> None:
        """Run the stages on the thread that calls; an error leaves no result."""
        build, self._build = self._build, None
        assert build is not None
        try:
            with (
                self._state.entered(),
                sandbox(whole=False),
                short_turns(),
                within(self._seconds, exiting),
                noting(self._record.asked),
                warnings_deferred() as self._warnings,
            ):
                self._result = build()
            self.is_usable = not self._state.is_outdated
        except OutOfTime as over:
            self._over, self.is_usable = over, True
        except Exception:  # the compile starts over on the calling thread, which reports it
            self.is_usable = False
        finally:
            self._done.set()

    def end(self) -> Any:
        """Return the result, after the warnings of the stages, or raise OutOfTime."""
        for warning in self._warnings:
            warn(*warning)
        if self._over is not None:
            raise self._over
        return self._result
