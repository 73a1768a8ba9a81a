"""Compiles translation units to libraries in parallel.

In: the units of a source. Out: for every kernel the library that defines it. A single unit is
compiled on the calling thread; several units and the objects linked with them are compiled on all
processors. On a compiler error or Ctrl-C the running compilers are stopped; finished libraries are
in the cache for the next attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from ..codegen.plan import Unit
from ..devices import Target
from ..platforms import usable_processors
from .store import Store
from .toolchain import Library, build_library, build_object, missing_objects

__all__ = ["build_units"]

# A limit on concurrent compilers: each takes some 100 MB, and a container may grant fewer
# processors than the machine has.
_MAX_COMPILERS = 16


def build_units(
    units: Sequence[Unit],
    target: Target,
    store: Store,
    seconds: float,
    report: Callable[[str], None],
    cancel: threading.Event | None = None,
) -> dict[str, Library]:
    """Return kernel name -> its library. `seconds` limits one compiler; `report` receives progress
    messages; `cancel`, set by another thread, stops it. Raises ToolchainError.
    """
    progress = _Progress(target.cxx, sum(len(unit.symbols) for unit in units), report)
    objects = missing_objects((unit.text for unit in units), target, store)
    if len(units) == 1 and not objects:
        (unit,) = units
        libraries = [build_library(unit.text, target, store, unit.symbols, seconds, cancel)]
    else:
        libraries = _build_in_parallel(units, objects, target, store, seconds, progress, cancel)
    return {
        symbol: library
        for unit, library in zip(units, libraries, strict=True)
        for symbol in unit.symbols
    }


class _Progress:
    """Reports built kernels: "g++ 3 of 12 kernels"."""

    def __init__(self, cxx: str, total: int, report: Callable[[str], None]) -> None:
        self._compiler, self._total, self._report = os.path.basename(cxx), total, report
        self._ready = 0
        self.add(0)

    def add(self, kernels: int) -> None:
        self._ready += kernels
        noun = "kernel" if self._total == 1 else "kernels"
        self._report(f"{self._compiler} {self._ready} of {self._total} {noun}")


def _build_in_parallel(
    units: Sequence[Unit],
    objects: Sequence[str],
    target: Target,
    store: Store,
    seconds: float,
    progress: _Progress,
    cancel: threading.Event | None,
) -> list[Library]:
    """Build in a thread pool larger than the number of compiler slots, as a thread that waits for
    an object runs no compiler. An error in an object is reported by the first unit that needs it,
    which tries again.
    """
    stop = _LinkedEvent(cancel)
    slots = threading.Semaphore(min(usable_processors(), _MAX_COMPILERS))
    pool = ThreadPoolExecutor(min(len(objects) + len(units), _MAX_COMPILERS), "jitmagic-compiler")
    try:
        for name in objects:
            pool.submit(build_object, name, target, store, seconds, stop, slots)
        jobs: dict[Future[Library], Unit] = {}
        for unit in units:
            given = (unit.text, target, store, unit.symbols, seconds, stop, slots)
            jobs[pool.submit(build_library, *given)] = unit
        for job in as_completed(jobs):
            job.result()
            progress.add(len(jobs[job].symbols))
        return [job.result() for job in jobs]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class _LinkedEvent(threading.Event):
    """Counts as set also while another event is set."""

    def __init__(self, other: threading.Event | None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())
