"""Builds C++ kernels, and runs whole compiles, on a background thread while calls run in eager, or
run the programs that a source has for that time.

In: rendered sources. Out: a `BackgroundBuild`; when it is done, the disk cache has their libraries,
and a later compile on the user's thread loads them. Or a `Replacement`: when it is done, calls of
the interpreted kernels run the compiled ones. The background thread handles text alone and
never touches tensors, user objects or torch's state. It does not report compiler errors: the later
compile meets them again and does. Compilers that still run when the process exits are killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..codegen.plan import KernelSource, Unit
from ..devices import Target
from ..devices.cpu import INTERPRETED
from ..errors import warn
from ..late import late_names
from ..lazy_dataclass import dataclass, field
from ..options import Options
from ..platforms import usable_processors
from ..protocols import Protocol
from ..replacements import Replacement
from .store import store_of

if TYPE_CHECKING:
    from .toolchain import is_built, time_limit
    from .translation_units import build_units
else:
    late_names(
        globals(),
        {"runtime.toolchain": "is_built, time_limit", "runtime.translation_units": "build_units"},
    )

__all__ = [
    "BackgroundBuild", "MissingUnits", "build_ahead", "exiting", "is_interpreted_meanwhile",
    "missing_units", "replace_later", "run_later", "was_built_ahead",
]  # fmt: skip

Report = Callable[[str], None]
Replace = Callable[[str, int, object], None]
Wrap = Callable[[Callable[[Report], None]], None]
# Seconds that process exit waits for the thread to end; its compilers are killed at once.
_EXIT_SECONDS = 5.0
_HEAD_START = 0.03


@dataclass(frozen=True, slots=True)
class MissingUnits:
    """Lists the translation units of one source whose libraries are not in the cache."""

    units: tuple[Unit, ...]
    target: Target
    options: Options


def missing_units(
    source: KernelSource | None, target: Target, options: Options
) -> MissingUnits | None:
    """Return the units to build before the compile, or None if it need not wait. A unit is built
    ahead only once: if that failed, the compile builds it itself and reports why.
    """
    if source is None or target.tier != "cpp":
        return None
    store = store_of(options)
    units = tuple(
        unit
        for unit in source.units
        if _digest(unit, target) not in _tried and not is_built(unit.text, target, store)
    )
    return MissingUnits(units, target, options) if units else None


@dataclass(eq=False)
class BackgroundBuild:
    """Represents one build in the background, of several sources."""

    wanted: Sequence[MissingUnits]
    wrap: Wrap
    done: threading.Event = field(default_factory=threading.Event)
    process: int = field(default_factory=os.getpid)

    @property
    def is_done(self) -> bool:
        """Return whether a compile need not wait; true in a forked child, which has no building
        thread.
        """
        return self.done.is_set() or self.process != os.getpid()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` and return whether the build is done."""
        return self.is_done or self.done.wait(seconds)

    def run(self) -> None:
        """Build on the background thread. Errors (a text that g++ rejects, a full disk) are
        ignored, as the later compile meets and reports them.
        """
        try:
            with contextlib.suppress(Exception):
                self.wrap(self._build)
        finally:
            digests = {_digest(u, part.target) for part in self.wanted for u in part.units}
            _tried.update(digests)
            _unused.update(digests)
            self.done.set()

    def _build(self, report: Report) -> None:
        for part in self.wanted:
            store = store_of(part.options)
            seconds = time_limit(part.options)
            build_units(part.units, part.target, store, seconds, report, exiting)


class Job(Protocol):
    """Something to do on the background thread."""

    def run(self) -> None:
        """Do it; errors are handled within."""


class _Worker:
    """Runs one thread while there is something to build."""

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        with self._lock:
            self._queue.append(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="jitmagic-background", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # and what it holds, before the wait for the next

    def _next(self) -> Job | None:
        with self._lock:
            if self._queue and not exiting.is_set():
                return self._queue.popleft()
            self._thread = None
            return None

    def stop(self) -> None:
        """Kill the compilers and start no more, as the process exits."""
        exiting.set()
        if (thread := self._thread) is not None:
            thread.join(_EXIT_SECONDS)


def was_built_ahead(source: KernelSource, target: Target) -> bool:
    """Return whether the kernels were built ahead for this compile, the first one to load them.
    Reports then count them as compiled, not as found in the cache.
    """
    digests = {_digest(unit, target) for unit in source.units}
    found = not digests.isdisjoint(_unused)
    _unused.difference_update(digests)
    return found


_tried: set[str] = set()
_unused: set[str] = set()  # built but not yet loaded
exiting = threading.Event()  # set when the process exits
_worker = _Worker()


def run_later(job: Job) -> None:
    """Run a job on the background thread, after those that it has already."""
    _worker.add(job)


def build_ahead(wanted: Sequence[MissingUnits], wrap: Wrap) -> BackgroundBuild:
    """Start a build; the builds of one process run one after the other, each on all processors.
    `wrap` calls its argument with a function that reports progress.
    """
    build = BackgroundBuild(tuple(wanted), wrap)
    _worker.add(build)
    return build


def is_interpreted_meanwhile(source: KernelSource | None, target: Target, options: Options) -> bool:
    """Return whether calls may run interpreted kernels until those of a source are built: one is
    not in the cache, a processor is free for the compiler, and no option asks for compiled code.
    """
    asks = (
        options.cpu_tier != "auto"
        or options.background != "auto"
        or options.backend != "native"
        or options.keep != "faster"
        or options.mode != "default"
        or options.on_error != "eager"
    )
    if asks or source is None or source.language != "cpp" or target.processor:
        return False
    if target.isa not in INTERPRETED or usable_processors() < 2:
        return False
    store = store_of(options)
    return not all(is_built(unit.text, target, store) for unit in source.units)


class _ReplacingJob:
    """Builds the kernels of a source, which then run in place of the interpreted ones."""

    def __init__(
        self, source: KernelSource, target: Target, options: Options, replace: Replace
    ) -> None:
        self._source, self._target, self._options = source, target, options
        self._replace = replace
        self.replacement = Replacement(os.path.basename(target.cxx))
        self.replacement.begin()

    def run(self) -> None:
        """Build them on the background thread; if that fails, warn, as no compile will."""
        error, options = "", self._options
        # The call that has begun this would share Python with it: 5 of 20 ms of a first call.
        exiting.wait(_HEAD_START)
        seconds = time_limit(options)
        try:
            libraries = build_units(
                self._source.units, self._target, store_of(options), seconds, _ignore, exiting
            )
            for name, library in libraries.items():
                self._replace(name, library.address(name), library)
        except Exception as failed:  # calls go on with the interpreted kernels
            error = str(failed)
        self.replacement.end(error)
        if error and not exiting.is_set():
            with contextlib.suppress(Exception):  # a filter may make an error of it
                warn(f"kernels stay interpreted: the C++ compiler failed\n{error}")


def _ignore(_: str) -> None:
    """Ignore a progress message: no call waits."""


def replace_later(
    source: KernelSource, target: Target, options: Options, replace: Replace
) -> Replacement:
    """Build the kernels of a source on the background thread. `replace` is called there with each
    one's name, address and library.
    """
    job = _ReplacingJob(source, target, options, replace)
    _worker.add(job)
    return job.replacement


def _digest(unit: Unit, target: Target) -> str:
    return hashlib.sha256(f"{target.cxx}\0{target.isa}\0{unit.text}".encode()).hexdigest()


def _stop() -> None:
    _worker.stop()


def _after_fork() -> None:
    """Replace the worker: a fork copies no threads, and its lock may have been held."""
    global _worker  # noqa: PLW0603 - the parent's worker is useless here
    _worker = _Worker()


os.register_at_fork(after_in_child=_after_fork)
# Registered to run before ThreadPoolExecutor waits for its threads, those of build_units.
threading._register_atexit(_stop)  # type: ignore[attr-defined]
