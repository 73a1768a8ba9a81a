"""ahead: C++ kernels built on a thread of their own, while the user's calls run as eager.

Comes in: rendered sources. Goes out: a `Build`, after which the cache on disk has their libraries,
so that a compile finds them there. The thread sees text alone: no tensor, no object of the user's
and none of torch's state, which all belong to the compile that follows. What a compiler refuses is
left to that compile too, which tries again and tells of it. When the process exits, compilers at
work are stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..codegen.plan import KernelSource, Unit
from ..options import Options
from ..target import Target
from .store import open_store
from .toolchain import SECONDS, is_built
from .units import build_units

__all__ = ["Build", "Wanted", "build_ahead", "still_missing", "was_built_ahead"]

Tell = Callable[[str], None]
Around = Callable[[Callable[[Tell], None]], None]
# What a thread gets to end in when the process exits; compilers are killed at once.
_EXIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Units of one source that nobody has built."""

    units: tuple[Unit, ...]
    target: Target
    options: Options


def still_missing(source: KernelSource | None, target: Target, options: Options) -> Wanted | None:
    """What of a source has to be built first; None where a compile need not wait. A unit is built
    ahead once: where that did not help, the compile has to say why.
    """
    if source is None or target.tier != "cpp":
        return None
    store = open_store(options.cache_dir)
    units = tuple(
        unit
        for unit in source.units
        if _digest(unit, target) not in _tried and not is_built(unit.text, target, store)
    )
    return Wanted(units, target, options) if units else None


@dataclass(eq=False)
class Build:
    """Sources under way."""

    wanted: Sequence[Wanted]
    around: Around
    done: threading.Event = field(default_factory=threading.Event)
    process: int = field(default_factory=os.getpid)

    @property
    def is_done(self) -> bool:
        """Whether a compile need not wait; after a fork nobody builds for the child."""
        return self.done.is_set() or self.process != os.getpid()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it was done within so many seconds."""
        return self.is_done or self.done.wait(seconds)

    def run(self) -> None:
        """On the thread. What fails (a refused text, a full disk) the compile meets again."""
        try:
            with contextlib.suppress(Exception):
                self.around(self._build)
        finally:
            digests = {_digest(u, part.target) for part in self.wanted for u in part.units}
            _tried.update(digests)
            _unused.update(digests)
            self.done.set()

    def _build(self, tell: Tell) -> None:
        for part in self.wanted:
            store = open_store(part.options.cache_dir)
            seconds = part.options.compile_seconds or SECONDS  # no call waits for it
            build_units(part.units, part.target, store, seconds, tell, _exiting)


class _Worker:
    """One thread, while there is something to build."""

    def __init__(self) -> None:
        self._queue: deque[Build] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, build: Build) -> None:
        with self._lock:
            self._queue.append(build)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="jitmagic-background", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while (build := self._next()) is not None:
            build.run()

    def _next(self) -> Build | None:
        with self._lock:
            if self._queue and not _exiting.is_set():
                return self._queue.popleft()
            self._thread = None
            return None

    def stop(self) -> None:
        """The process exits: compilers are killed, and what waits is not begun."""
        _exiting.set()
        if (thread := self._thread) is not None:
            thread.join(_EXIT_SECONDS)


def was_built_ahead(source: KernelSource, target: Target) -> bool:
    """Whether the compile that asks, the first to load it, is what its kernels were built for: to
    the user they were compiled, and did not come from the cache.
    """
    digests = {_digest(unit, target) for unit in source.units}
    found = not digests.isdisjoint(_unused)
    _unused.difference_update(digests)
    return found


_tried: set[str] = set()
_unused: set[str] = set()  # built, and not yet loaded
_exiting = threading.Event()
_worker = _Worker()


def build_ahead(wanted: Sequence[Wanted], around: Around) -> Build:
    """Begin; builds of one process run one after the other, each with all processors. `around`
    calls what it is given, with what is to be told how far that is.
    """
    build = Build(tuple(wanted), around)
    _worker.add(build)
    return build


def _digest(unit: Unit, target: Target) -> str:
    return hashlib.sha256(f"{target.cxx}\0{target.isa}\0{unit.text}".encode()).hexdigest()


def _stop() -> None:
    _worker.stop()


def _after_fork() -> None:
    """The child has no such thread, and the lock may have been held by it."""
    global _worker  # noqa: PLW0603 - nothing of the parent's is of use
    _worker = _Worker()


os.register_at_fork(after_in_child=_after_fork)
# Before the threads of ThreadPoolExecutor are waited for, which are those of build_units.
threading._register_atexit(_stop)  # type: ignore[attr-defined]
