"""Times a compiled variant against eager during its first calls and keeps the faster one.

Input: each call that passes the variant's guards, while extensions/frame/compared.cpp asks. Output:
the entry that this call runs, compiled or plain Python, and finally the measurement: by the host's
clock, and by the GPU's if that still works when a call has returned (gpu_timing.py). Invariant:
each call runs exactly once, on one side. Random draws, writes and prints happen as in any program;
nothing is copied or repeated for a measurement. In a distributed program the first rank that has
measured enough decides for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...compat.autograd import sequence_number, top_saved_hooks
from ...figures import median
from ...ranks.decisions import decide, decided, is_shared
from ...records import COMPILED, CompileRecord, Eager, Journal, Measured
from ...replacements import is_replacing
from ..agreement.identity import variant_name
from ..eager import entry_like
from ..ledger import Comparable, Ledger
from ..native import Entry
from ..original import Original
from .backward_timing import BackwardTimer, Sample
from .batch_timing import MOST_SECONDS, BatchTiming
from .gpu_timing import GpuInterval, can_be_timed, has_room

__all__ = [
    "PLAN", "PLAN_AFTER_EAGER", "PLAN_ON_GPU", "Comparison", "comparison_paused", "judge",
]  # fmt: skip

_WARM_UP = "cce"  # not counted: compiles the backward, fills memory pools and caches
# A program of so few calls gains nothing from a comparison, and should not pay eager's peak memory.
_WARM_UP_ON_GPU = "ccce"
# Eager is warm if it ran the calls before the compile (pay_back.py): a measurement of few steps has
# then seen its last call of eager.
_WARM_UP_AFTER_EAGER = "cc"
_BLOCK = 4
# Thue-Morse order: drift (clock rate, a filling cache) affects both sides equally.
_ROW = "ceececceecceceececce"
PLAN, PLAN_ON_GPU = _WARM_UP + _ROW, _WARM_UP_ON_GPU + _ROW
PLAN_AFTER_EAGER = _WARM_UP_AFTER_EAGER + _ROW
# Calls repeated because something was compiled in them (new sizes). If more calls than this
# compile, compiling is the normal cost of a call and counts.
_COMPILING = 32
# Further calls to wait for pending backwards and GPU work once all timed calls were made.
_PATIENCE = 256
_MARGIN = 1.05  # of eager's time: a smaller difference is not a loss
# Calls per side. For equal speeds these numbers decide for compiled code in 1 of 5 comparisons and
# against it in 1 of 26 (without the margin): dropping good code costs more than keeping bad.
_TO_KEEP, _TO_GIVE_UP = 4, 8
# Two calls decide for compiled code that is faster by this factor: where a step takes 0.1 s, those
# that eager runs for the comparison are felt, and a program of 20 steps gained nothing.
_CLEARLY, _TO_KEEP_CLEARLY = 1.25, 2
_KEEP, _GIVE_UP = "compiled", "eager"  # what the ranks of a distributed program decide


class Comparison:
    """The value of `Entry.comparison` while a variant is measured; times at most 20 calls."""

    def __init__(
        self,
        compiled: Entry,
        original: Original,
        ledger: Ledger,
        journal: Journal,
        record: CompileRecord,
        on_slower: Callable[[Eager], None],
        eager_is_warm: bool = False,
    ) -> None:
        """`record`: of the compile; `on_slower` is called if eager wins; `eager_is_warm`: it ran
        calls of this function before.
        """
        self._compiled, self._eager = compiled, entry_like(compiled, original.plain, COMPILED)
        # what the ranks of a distributed program decide on; empty if there is only one
        self._subject = variant_name(original, compiled.notes.guards) if is_shared() else ""
        self._where = compiled.notes.comparable or Comparable()
        self._plan = PLAN if self._where.device is None else PLAN_ON_GPU
        if eager_is_warm:
            self._plan = PLAN_AFTER_EAGER
        self._counted_from = len(self._plan) - len(_ROW)
        self._ledger, self._journal, self._record = ledger, journal, record
        self._on_slower = on_slower
        self._samples: list[Sample] = []
        self._backward_timer = BackwardTimer(self._where.device)
        self._ongoing: Sample | None = None
        self._interval: GpuInterval | None = None
        self._first_node = 0
        self._compiles = 0  # records of the journal, when the call began
        self._waited = self._repeated = 0

    def start(self) -> None:
        """Begin with the next call."""
        self._compiled.comparison = self

    def begin(self) -> Entry | None:
        """Return the entry that this call runs and times; None runs compiled code untimed."""
        if self._ongoing is not None:
            return None  # a call of another thread is being timed
        if is_replacing():
            return None
        if _has_saved_tensor_hooks():
            self._keep(None)
            return None
        if self._where.device is not None and not can_be_timed():
            return None
        self._backward_timer.interrupt()
        if (choice := decided(self._subject)) is not None:  # by another rank
            return None if self._conclude(choice == _KEEP) else self._eager
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
        self._ongoing, self._first_node = sample, sequence_number()
        self._compiles = len(self._journal)
        self._interval = GpuInterval(device) if device is not None else None
        return self._eager if sample.is_eager else self._compiled

    def end(self, result: object, nanoseconds: int, in_graphs: int) -> None:
        """Record the time of the call that begin() started and that has returned `result`, and the
        part of it in compiled graphs.
        """
        sample, self._ongoing = self._ongoing, None
        if sample is not None and not self._is_repeated(sample):
            sample.forward, sample.in_graphs = nanoseconds, in_graphs
            if self._interval is not None:
                self._interval.end(nanoseconds)
                sample.gpu_intervals.append(self._interval)
            if torch.is_grad_enabled():
                self._backward_timer.watch(sample, result, self._first_node)

    def _is_repeated(self, sample: Sample) -> bool:
        """Return whether the time includes a compile, so that another call is timed instead."""
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
        """Discard the timed call: it raised or was not made."""
        self._ongoing = None

    def _decide(self, is_last: bool) -> bool | None:
        """Return whether the compiled code is kept; None if more calls are needed."""
        if any(s.is_pending or (is_last and not s.is_gpu_done) for s in self._samples):
            self._waited += is_last
            if self._waited <= _PATIENCE:
                return None
        keep = judge(self._times(is_eager=False), self._times(is_eager=True))
        if keep is None and not is_last:
            return None
        if self._subject:
            choice = decide(self._subject, _GIVE_UP if keep is False else _KEEP)
            return None if choice is None else self._conclude(choice == _KEEP)
        return self._conclude(keep is not False)

    def _conclude(self, keep: bool) -> bool:
        """Use compiled code or eager from now on; return which."""
        compiled, eager = self._times(is_eager=False), self._times(is_eager=True)
        measured = None
        if compiled and eager:
            calls = min(len(compiled), len(eager))
            measured = Measured(median(compiled), median(eager), calls, self._outside())
        if keep:
            self._keep(measured)
        else:
            self._fall_back(measured)
        return keep

    def _keep(self, measured: Measured | None) -> None:
        """Run compiled code untimed from now on, after timing short calls in batches."""
        self._compiled.comparison = None
        if measured is not None:
            self._compiled.notes.comparable = None  # other processes need not measure again
            self._compiled.notes.changed(self._compiled)
        self._record_times(measured)
        has_backward = any(sample.mark is not None for sample in self._samples)
        if measured and measured.eager < MOST_SECONDS and not has_backward and self._is_on_cpu:
            BatchTiming(self._compiled, self._eager, self._record_times).start()

    @property
    def _is_on_cpu(self) -> bool:
        return self._where.device is None

    def _record_times(self, measured: Measured | None) -> None:
        self._record = self._journal.amend(self._record, measured, COMPILED)

    def _fall_back(self, measured: Measured | None) -> None:
        """Run plain Python from now on; nothing in jitmagic holds the compiled code any more."""
        self._compiled.comparison = None
        times = "" if measured is None else f": {measured.times}"
        outcome = self._eager.notes.outcome = Eager(f"measured slower{times}")
        if self._ledger.replace(self._compiled, self._eager):
            self._journal.amend(self._record, measured, outcome)
            self._on_slower(outcome)

    def _times(self, is_eager: bool) -> list[float]:
        """Return one side's usable times in seconds."""
        return [sample.seconds for sample in self._counted() if sample.is_eager == is_eager]

    def _counted(self) -> list[Sample]:
        """Return the calls with a usable time; if backwards run, only those with one."""
        counted = [s for s in self._samples if s.counts and s.has_time]
        if any(sample.backwards for sample in counted):
            counted = [sample for sample in counted if sample.backwards]
        return counted

    def _outside(self) -> float | None:
        """Return the median of the seconds that compiled calls spend outside of compiled graphs."""
        if not self._is_on_cpu:
            return None  # kernels run asynchronously: the host returns from a graph before they end
        return median(s.outside for s in self._counted() if not s.is_eager)


@contextmanager
def comparison_paused(entry: Entry) -> Iterator[None]:
    """Run only compiled code for this entry inside the block, without timing."""
    waiting, entry.comparison = entry.comparison, None
    try:
        yield
    finally:
        if entry.comparison is None:
            entry.comparison = waiting


def judge(compiled: Sequence[float], eager: Sequence[float]) -> bool | None:
    """Return whether compiled code is kept given both sides' times; None if that is not clear.

    One side is faster if half of its calls take less than any call of the other (a precedence test,
    Nelson 1963). Other processes only add to a time, so slow calls carry no information: on a
    loaded machine the times of one call were 1.5 or 25 ms, which a rank-sum test took for no
    difference. Four calls each slower than all four of eager's, by the margin, are chance in 1 of
    70 comparisons.
    """
    calls = min(len(compiled), len(eager))
    if calls >= _TO_KEEP_CLEARLY and _CLEARLY * max(compiled) < min(eager):
        return True
    if calls >= _TO_KEEP and _lower_median(compiled) < min(eager):
        return True
    if calls >= _TO_KEEP and _MARGIN * max(eager) < min(compiled):
        return False
    if calls >= _TO_GIVE_UP and _MARGIN * _lower_median(eager) < min(compiled):
        return False
    return None


def _lower_median(times: Sequence[float]) -> float:
    """Return the lower median."""
    return sorted(times)[(len(times) - 1) // 2]


def _has_saved_tensor_hooks() -> bool:
    """Return whether hooks on saved tensors are active, so that both runs must use the same code.

    torch.utils.checkpoint runs a call twice and raises if the second run saves other tensors.
    """
    return top_saved_hooks(True) is not None
