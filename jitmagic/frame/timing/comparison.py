"""Comparison: a compiled variant beside eager, on its first calls, until one of them is kept.

Comes in: each call that passes the variant's guards, while extensions/frame/compared.cpp asks. Goes
out: the entry that this call runs, compiled or plain Python, and at last what was measured: on the
host's clock, and where a GPU works on when a call has returned on the GPU's too (`spans`).
Invariant: each call runs once, as the one or as the other. What it draws, writes and prints happens
as in any program; nothing is copied or repeated for the sake of a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from ...records import COMPILED, CompileRecord, Eager, Journal, Measured
from ..eager import entry_like
from ..ledger import Comparable, Ledger
from ..native import Entry
from .backward_timing import Laps, Sample
from .batch_timing import MOST_SECONDS, Streaks
from .gpu_timing import Span, can_be_timed, has_room

__all__ = ["PLAN", "PLAN_ON_GPU", "Comparison", "compiled_alone", "judge"]

_next_node = torch._C._autograd._get_sequence_nr
_WARM_UP = "cce"  # not counted: the backward is compiled, memory and caches are filled
# A program of so few calls gains nothing by a comparison, and need not hold eager's memory for it.
_WARM_UP_ON_GPU = "ccce"
_BLOCK = 4
# Thue-Morse: what drifts (a clock rate, a cache that fills) meets both sides alike.
_ROW = "ceececceecceceececce"
PLAN, PLAN_ON_GPU = _WARM_UP + _ROW, _WARM_UP_ON_GPU + _ROW
# Calls in which something was compiled (for sizes that were new) and that were made again. More are
# the rule, and what they take is what a call takes.
_COMPILING = 32
# Calls that are waited for backwards and for the GPU, when all that are timed have been made.
_PATIENCE = 256
_MARGIN = 1.05  # of eager's time: less is no loss
# Calls of each. Where both take the same time, so many say in 1 of 5 rows that compiled code is the
# faster, in 1 of 26 that it is slower, the margin aside: giving up code that is good costs more.
_TO_KEEP, _TO_GIVE_UP = 4, 8


class Comparison:
    """What `Entry.comparison` is while the variant is measured. At most 20 calls are timed."""

    def __init__(
        self,
        compiled: Entry,
        plain: Callable[..., Any],
        ledger: Ledger,
        journal: Journal,
        record: CompileRecord,
        lost: Callable[[Eager], None],
    ) -> None:
        """`plain`: the original; `record`: of the compile; `lost` is told that eager is kept."""
        self._compiled, self._eager = compiled, entry_like(compiled, plain, COMPILED)
        self._where = compiled.notes.comparable or Comparable()
        self._plan = PLAN if self._where.device is None else PLAN_ON_GPU
        self._counted_from = len(self._plan) - len(_ROW)
        self._ledger, self._journal, self._record, self._lost = ledger, journal, record, lost
        self._samples: list[Sample] = []
        self._laps = Laps(self._where.device)
        self._ongoing: Sample | None = None
        self._span: Span | None = None
        self._first_node = 0
        self._compiles = 0  # records of the journal, when the call began
        self._waited = self._repeated = 0

    def start(self) -> None:
        """From the next call on."""
        self._compiled.comparison = self

    def begin(self) -> Entry | None:
        """What a call runs, to be timed; None: compiled code, and nothing is timed."""
        if self._ongoing is not None:
            return None  # a call of another thread is being timed
        if _checkpointed():
            self._keep(None)
            return None
        if self._where.device is not None and not can_be_timed():
            return None
        self._laps.interrupt()
        at = len(self._samples)
        counted = at - self._counted_from
        is_last = at >= len(self._plan)  # threads that begin at once may have made one more
        if is_last or (counted > 0 and counted % _BLOCK == 0):
            keep = self._decide(is_last)
            if keep is not None:
                return None if keep else self._eager
        return None if is_last else self._begin(Sample(self._plan[at] == "e", counted >= 0))

    def _begin(self, sample: Sample) -> Entry | None:
        device = self._where.device
        if sample.is_eager and device is not None and not has_room(device, self._where.nbytes):
            self._keep(None)
            return None
        self._samples.append(sample)
        self._ongoing, self._first_node = sample, _next_node()
        self._compiles = len(self._journal)
        self._span = Span(device) if device is not None else None
        return self._eager if sample.is_eager else self._compiled

    def end(self, result: Any, nanoseconds: int) -> None:
        """The call that begin() answered has returned."""
        sample, self._ongoing = self._ongoing, None
        if sample is not None and not self._is_repeated(sample):
            sample.forward = nanoseconds
            if self._span is not None:
                self._span.end(nanoseconds)
                sample.spans.append(self._span)
            if torch.is_grad_enabled():
                self._laps.watch(sample, result, self._first_node)

    def _is_repeated(self, sample: Sample) -> bool:
        """Whether the call tells how long a compile takes: the next one is made in its place."""
        is_repeated = (
            sample.counts
            and len(self._journal) > self._compiles
            and self._repeated < _COMPILING
            and sample in self._samples
        )
        if is_repeated:
            self._repeated += 1
            self._samples.remove(sample)
        return is_repeated

    def drop(self) -> None:
        """It raised instead, or was not made."""
        self._ongoing = None

    def _decide(self, is_last: bool) -> bool | None:
        """Whether the compiled code is kept; None: more is to be seen."""
        if any(s.is_pending or (is_last and not s.is_through) for s in self._samples):
            self._waited += is_last
            if self._waited <= _PATIENCE:
                return None
        compiled, eager = self._times(is_eager=False), self._times(is_eager=True)
        keep = judge(compiled, eager)
        if keep is None and not is_last:
            return None
        measured = None
        if compiled and eager:
            calls = min(len(compiled), len(eager))
            measured = Measured(median(compiled), median(eager), calls)
        if keep is False:
            self._hand_back(measured)
            return False
        self._keep(measured)
        return True

    def _keep(self, measured: Measured | None) -> None:
        """Its calls run compiled code, and nothing is timed any more; what short calls take in a
        loop is found out by those that follow.
        """
        self._compiled.comparison = None
        self._told(measured)
        has_backward = any(sample.mark is not None for sample in self._samples)
        if measured and measured.eager < MOST_SECONDS and not has_backward and self._is_on_cpu:
            Streaks(self._compiled, self._eager, self._told).start()

    @property
    def _is_on_cpu(self) -> bool:
        return self._where.device is None

    def _told(self, measured: Measured | None) -> None:
        self._record = self._journal.amend(self._record, measured, COMPILED)

    def _hand_back(self, measured: Measured | None) -> None:
        """Its calls run as plain Python; nothing of ours holds the compiled code."""
        self._compiled.comparison = None
        times = "" if measured is None else f": {measured.times}"
        outcome = self._eager.notes.outcome = Eager(f"measured slower{times}")
        if self._ledger.replace(self._compiled, self._eager):
            self._journal.amend(self._record, measured, outcome)
            self._lost(outcome)

    def _times(self, is_eager: bool) -> list[float]:
        """Seconds of the calls of one side that tell something: where backwards run, those whose
        backward is known.
        """
        counted = [s for s in self._samples if s.counts and s.tells]
        if any(sample.backwards for sample in counted):
            counted = [sample for sample in counted if sample.backwards]
        return [sample.seconds for sample in counted if sample.is_eager == is_eager]


@contextmanager
def compiled_alone(entry: Entry) -> Iterator[None]:
    """Calls that it fits run it: none is a turn of eager, and none is timed."""
    waiting, entry.comparison = entry.comparison, None
    try:
        yield
    finally:
        if entry.comparison is None:
            entry.comparison = waiting


def judge(compiled: Sequence[float], eager: Sequence[float]) -> bool | None:
    """Whether compiled code is kept, by the times of its calls and of eager's; None: it is not
    clear. One is faster where half of its calls take less than any call of the other (a precedence
    test, Nelson 1963): other processes only ever add to a time, so slow calls tell nothing. Four
    calls that are each slower than any of eager's four, by the margin, are chance in 1 of 70 rows.
    """
    calls = min(len(compiled), len(eager))
    if calls >= _TO_KEEP and _half_take(compiled) < min(eager):
        return True
    if calls >= _TO_KEEP and _MARGIN * max(eager) < min(compiled):
        return False
    if calls >= _TO_GIVE_UP and _MARGIN * _half_take(eager) < min(compiled):
        return False
    return None


def _half_take(times: Sequence[float]) -> float:
    """What half of the calls take at most."""
    return sorted(times)[(len(times) - 1) // 2]


def _checkpointed() -> bool:
    """Whether hooks on saved tensors are in force: torch.utils.checkpoint runs a call a second time
    and refuses it if it saves others than the first did, so both have to run the same code.
    """
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
