"""Handle: compiles when no entry of a dispatcher fits a call (a miss).

Output: a new entry; or the call runs as plain Python, and `outcome` has the reason. Invariants: one
compile at a time per handle; an entry is used only after its guards passed for the call it was
compiled for; a family's entries die with its root handle.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from .. import _frame
from ..bytecode import FrameSnapshot
from ..errors import SizesDiffer, Unsupported, UserLine, warn
from ..options import Options
from ..records import (
    AT_LIMIT,
    Eager,
    Failed,
    Journal,
    Missed,
    Outcome,
    PendingBuild,
    Postponed,
    Recording,
)
from ..torch_types import Namespace, Values
from .agreement.limits import post_limit
from .eager import entry_like, is_observed, reason_for_eager
from .eager_reports import refused_by_stance, report_once
from .family import Compiler, Family
from .ledger import GrowthQuery, Lazy, Ledger, why_not
from .library import LibraryFunction, library_function
from .native import Dispatcher, Entry, continue_with
from .original import Original, PieceOriginal
from .recompile_warnings import limit_refusal, warn_of_growth, warn_of_limit
from .retries import FOREVER, Retries
from .stance import OnMiss, on_miss
from .timing.comparison import Comparison
from .timing.pay_back import AT_ONCE, PayBack, Terms

__all__ = ["Handle", "all_handles"]


_MOST_FAILURES = 2  # failed compiles, after which no other is tried
# Attributes that mark an error to re-raise: the original must not run in place of the graph.
_RAISED_AS_IS = ("__jitmagic_wrote__", "__jitmagic_from_hook__", "__jitmagic_from_backend__")
_AFTER_LIMIT = 2  # variants of a callee once its caller reached the limit

_serials = itertools.count(1)
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def all_handles() -> list[Handle]:
    """Return every live handle, in no particular order."""
    return list(_handles)


class Handle:
    """The Python side of one dispatcher: compiles on a miss and owns the ledger of variants."""

    def __init__(
        self,
        original: Original,
        family: Family,
        *,
        flat: Any = None,
        root: bool = False,
        library: LibraryFunction | None = None,
    ) -> None:
        self.original, self.family, self.library = original, family, library
        self.name = original.name
        self._flat, self._is_resume = flat, flat is not None
        self.is_root = root  # the tagged function itself, not a resume function or a callee
        plain = "" if library is None else library.plain
        self._declared = Eager(plain) if plain else None
        # why calls that no entry fits run as eager; None: they are compiled
        self.given_up: Eager | Failed | None = self._declared
        self._retries: Retries | None = None  # None: given up permanently
        # the family for which callees are hooked when it runs as eager
        self._hooked = None if plain else family
        self._compiling_thread: int | None = None
        self.building: PendingBuild | None = None  # while it is compiled in the background
        self.pay_back = PayBack()
        self._is_piece = isinstance(original, PieceOriginal)
        self._began_as_eager = not (root or self._is_piece)  # under the stance eager_then_compile
        self.lock = threading.RLock()
        self.serial = next(_serials)
        self.dispatcher = Dispatcher(original.qualname, original.arity, self._missed, self._failed)
        self.dispatcher.owner, self.dispatcher.family = self, family
        self.dispatcher.title = original.title
        self.pieces: list[Handle] = []  # of a generator
        self.ledger = Ledger(self.dispatcher, library)
        if not root:
            family.members.append(self)
        _handles.add(self)

    @classmethod
    def of_function(
        cls,
        function: FunctionType,
        options: Options,
        compiler: Compiler,
        code: CodeType | None = None,
    ) -> Handle:
        """Create the root handle of a tagged function; `code` is code that it is about to get."""
        family = Family(options, compiler, Journal())
        original = Original.of_function(function, code)
        family.tagged = original.code
        library = library_function(original.code, original.namespace)
        declared = library if library is not None and library.plain else None
        return cls(original, family, root=True, library=declared)

    @classmethod
    def of_callee(
        cls,
        code: CodeType,
        namespace: Namespace,
        family: Family,
        library: LibraryFunction | None = None,
    ) -> Handle:
        """Create the handle of code that the hook found; the code owns the handle."""
        family.drop_dead()
        return cls(Original(code, namespace, weak=True), family, library=library)

    def resume_dispatcher(self, flat: Any) -> Dispatcher:
        """Create a resume function's dispatcher, which residuals continue with; all its values are
        plain arguments.
        """
        original = Original(flat.code, self.original.namespace, name=self.name)
        return Handle(original, self.family, flat=flat).dispatcher

    def __del__(self) -> None:
        if self.is_root:
            self.family.close()

    # ---------------------------------------------------------------------------------- properties

    @property
    def options(self) -> Options:
        """The family's options."""
        return self.family.options

    @property
    def journal(self) -> Journal:
        """The family's compiles, oldest first."""
        return self.family.journal

    @property
    def flat(self) -> Any:
        """The tracer's view of the code."""
        if self._flat is None:
            self._flat = self.family.compiler.flatten(self.original.code)
        return self._flat

    def run_hooked(self, *values: object) -> object:
        """Run the original with its callees hooked; entries without compiled code call this."""
        return self.original.run(values, self._hooked)

    def must_raise(self, recording: Recording) -> bool:
        """Return whether to raise a compile error: a backend or a pass raised it, or
        on_error="raise".
        """
        return recording.extension_raised or self.options.on_error == "raise"

    @property
    def label(self) -> str:
        """The user's name for the function: a method with its class, a notebook's cell `<cell>`."""
        return self.original.label

    @property
    def resume_line(self) -> UserLine | None:
        """The user's line where a resume function starts; None for other handles."""
        if not self._is_resume:
            return None
        return UserLine(self.original.code.co_filename, self.original.first_line, self.label)

    @property
    def starts_frame(self) -> bool:
        """True except for resume functions: a function, or a piece of a generator."""
        return not self._is_resume or self._is_piece

    @property
    def is_compiling(self) -> bool:
        """True while one of its calls is being compiled."""
        return self._compiling_thread is not None

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of calls that no entry fits, else of the last used entry, if any."""
        if self.given_up is not None:
            return self.given_up
        entries = self.dispatcher.entries
        latest: Outcome | None = entries[0].notes.outcome if entries else None
        return latest

    def pending(self) -> list[Lazy]:
        """Return its variants' backwards that are compiled at first use and are not built yet."""
        return [later for entry in self.dispatcher.entries for later in entry.notes.pending()]

    # ------------------------------------------------------------- called by the native dispatcher

    def code_for_deep_recursion(self) -> CodeType:
        """Return the original's code with the dispatcher as a constant, for a deep recursion."""
        code = self.original.code
        return code.replace(co_consts=(*code.co_consts, self.dispatcher))

    def run_original(self, values: Values) -> object:
        """Run the original with the dispatcher's values; nothing is compiled."""
        return self.original.run(values)

    # ------------------------------------------------------------------------------------- the miss

    def _missed(self, values: Values) -> object:
        if _frame.suspended() or self._compiling_thread == threading.get_ident():
            return self.original.run(values)
        if is_observed():
            if "notice" not in self.family.reported and (watched := reason_for_eager()) is not None:
                self.report_eager(watched, partly=False)
            return self.original.run(values)
        if (asked := on_miss()) is OnMiss.EAGER_FIRST:
            asked = OnMiss.COMPILE if self._began_as_eager else OnMiss.EAGER
            self._began_as_eager = True
        if self.given_up is None and asked is OnMiss.RAISE:
            raise refused_by_stance(self, self.why_missed(values))
        if asked is not OnMiss.COMPILE:
            return self.original.run(values)
        is_open = self.given_up is None or (self._retries is not None and self._retries.count())
        if is_open and self.compile_for(values, at_once=False):
            return continue_with(self.dispatcher, *values)
        if self.given_up is not None:
            return self.original.run(values, self._hooked)
        # A later call may compile the frame and inline its callees.
        return self.pay_back.run(lambda: self.original.run(values), values)

    def compile_for(self, values: Values, *, at_once: bool = True) -> bool:
        """Return whether an entry fits now, after compiling one if allowed, `at_once` or later."""
        with self.lock:
            if any(entry.check(values) for entry in self.dispatcher.entries):
                return True  # another thread has compiled it
            retries = self._retries
            if self.given_up is not None and (retries is None or not retries.is_due):
                return False
            begun = self.building
            if begun is not None and not begun.wait(None if at_once else 0):
                return False
            self.building = None
            if begun is not None and begun.finish is not None:
                return self._install(begun, values)
            self.ledger.sweep()
            if retries is not None:
                return self._retry(retries, values, begun)
            if self.ledger.is_full(values, self._limit):
                self._reach_limit(values)
                return False
            if self._grows(values):
                return False
            known = self.original, self.options
            terms = AT_ONCE if begun or at_once else self.pay_back.terms(values, *known)
            return terms is not None and self._compile(values, begun, terms)

    def _retry(self, retries: Retries, values: Values, begun: PendingBuild | None) -> bool:
        """Compile one more variant beyond the limit; it replaces the least used one."""
        is_taken = begun is not None or retries.takes(self.why_missed(values))
        if is_taken:
            post_limit(self.original, retries.passed)
        is_made = is_taken and self._compile(values, begun)
        if self._retries is retries and self.building is None:  # not given up for good
            retries.end()
            self.ledger.make_room(values, self._limit)
            self._run_plainly()
        return is_made

    def _compile(
        self, values: Values, begun: PendingBuild | None = None, terms: Terms = AT_ONCE
    ) -> bool:
        """Compile a variant; `begun` is an earlier compile whose kernels are built by now."""
        snapshot = self.original.snapshot(values)
        number, occasion = self.ledger.begin(snapshot)
        recording = Recording(self.name, self.journal, self.serial, number, occasion)
        recording.reported, recording.title = self.family.reported, self.original.title
        recording.stages += () if begun is None else begun.building
        terms.write_to(recording)
        result = self._run_compiler(snapshot, recording)
        if isinstance(result, Postponed):
            self.ledger.postpone(snapshot)
            self.pay_back.postpone(terms)
            return False
        self.pay_back.forget(result)
        if isinstance(result, PendingBuild):
            self.ledger.begun -= 1
            if result.finish is not None:
                self.building = replace(result, call=(values, snapshot, recording))
                return False
            self.building = None if result.wait(self.options.patience) else result
            return self.building is None and self._compile(values, result)
        return self._accept(result, (values, snapshot, recording))

    def _install(self, begun: PendingBuild, values: Values) -> bool:
        """Use what was compiled in the background; return whether an entry fits this call."""
        _, snapshot, recording = begun.call
        result = self._run_compiler(snapshot, recording, begun.finish)
        if result is None:
            return self._compile(values)
        self.ledger.begun += 1
        self._accept(result, begun.call, is_late=True)
        return any(entry.check(values) for entry in self.dispatcher.entries)

    def _accept(self, result: Any, call: tuple[Any, ...], *, is_late: bool = False) -> bool:
        """Record the result of a compile for a call, which is over if it `is_late`."""
        values, snapshot, recording = call
        outcome = result.notes.outcome if isinstance(result, Entry) else result
        if isinstance(outcome, Failed) and outcome.is_new(self.family.reported, self.name):
            warn(outcome.report(self.label, "runs as eager"))
        if isinstance(result, Entry) and not is_late and not result.check(values):
            which = why_not(result, snapshot)
            result = Eager(
                "its guards do not hold for the call they were made for"
                + (f": {which}" if which else "")
            )
            warn(f"{self.label} runs as eager: {result.why}")
            outcome = result
        record = recording.end(outcome)
        if isinstance(result, Entry):
            self.ledger.add(result, values, snapshot)
            if result.notes.comparable is not None:
                given = self.original, self.ledger, self.journal, record, self._on_slower
                # calls before this compile ran as eager
                Comparison(result, *given, eager_is_warm=self.pay_back.is_costly).start()
        else:
            self._give_up(result)
        ends = result.notes.ends if isinstance(result, Entry) else None
        self.report_eager(ends or outcome, partly=ends is not None)
        if self.ledger.failures >= _MOST_FAILURES:
            self._give_up(self.ledger.last_failure)
        return isinstance(result, Entry)

    def _run_compiler(self, snapshot: FrameSnapshot, recording: Recording, end: Any = None) -> Any:
        """Compile, or call `end` for what was compiled in the background."""
        self._compiling_thread = threading.get_ident()
        _frame.suspend()
        try:
            return end() if end else self.family.compiler.compile(self, snapshot, recording)
        except Unsupported as error:  # fullgraph=True: the user asked for an error
            recording.end(Failed.of(error))
            raise
        except Exception as error:  # a stage failed: the user's call still has a right answer
            failed = Failed.of(error, recording.failed_in)
            if not self.must_raise(recording):
                return failed
            recording.end(failed)
            raise
        except BaseException as error:  # Ctrl-C: the next call starts over
            recording.end(Failed.of(error, recording.failed_in))
            raise
        finally:
            _frame.resume_hook()
            self._compiling_thread = None

    def report_eager(self, plain: Outcome, *, partly: bool, once: str = "notice") -> None:
        """Report once per tagged function that it runs as plain Python."""
        report_once(self, plain, all_handles, partly=partly, once=once)

    def _failed(self, entry: Entry, values: Values, error: Exception) -> object:
        """Return eager's result after an entry's graph raised, or re-raise its error.

        It is re-raised if inputs may have been written, or if it comes from the user's backend or a
        hook on saved tensors (checkpointing ends its second run by raising).
        """
        may_have_written = entry.mutates and not isinstance(error, SizesDiffer)
        if may_have_written or any(hasattr(error, mark) for mark in _RAISED_AS_IS):
            raise error
        result = self.original.run(values)
        if (why := self.ledger.why_given_up(entry, error)) is None:
            return result  # a rarely taken branch, speculated the other way
        outcome = Eager(why)
        self.ledger.replace(entry, entry_like(entry, self.run_hooked, outcome))
        warn(f"{self.label} runs as {outcome}")
        return result

    def _on_slower(self, outcome: Eager) -> None:
        """Report that a variant lost to eager, whose entry has replaced it."""
        if self.is_root and not self.ledger.is_compiled:
            self.family.close()  # callees that only compiled code calls
        self.report_eager(outcome, partly=not self.is_root, once="slower")

    # ------------------------------------------------------------------------------------ the limit

    @property
    def _limit(self) -> int:
        """The recompile limit; smaller for callees once the root has reached its own: what varies
        in one function varies in most.
        """
        limit = self.options.recompile_limit
        return min(limit, _AFTER_LIMIT) if self._is_below_limit else limit

    @property
    def _is_below_limit(self) -> bool:
        """True for a user's callee in a function that has reached its limit."""
        return self.family.limit_reached and self.original.is_weak and self.library is None

    def _reach_limit(self, values: Values) -> None:
        missed = self.why_missed(values)
        limit, count = self.options.recompile_limit, self.ledger.count
        if self.options.never_eager:
            raise limit_refusal(self.label, count, self.options, missed, self.resume_line)
        self._give_up(AT_LIMIT, Retries())
        post_limit(self.original)
        if not self._is_below_limit:  # else already reported for the root
            self.family.limit_reached |= not self.original.is_weak
            warn_of_limit(self.original, self.resume_line, count, limit, missed)

    def _grows(self, values: Values) -> bool:
        """Return whether this call belongs to a series in which something grows per call."""
        if self.options.never_eager:
            return False  # the limit will raise
        snapshot = self.original.snapshot(values)
        # Each new size is planned anyway, so undeclared symbols save nothing if all sizes are new.
        asked = GrowthQuery(self.is_root, self.family.sizes_grow, bool(self.options.dynamic))
        growth = self.ledger.growth(snapshot, values, asked)
        if growth is not None and not growth.may_end:
            self._stop_growing(growth.why)
        return growth is not None

    def _stop_growing(self, grows: str) -> None:
        """Give up: for a growing cache, counter or list each variant would serve one call."""
        self.family.sizes_grow = True
        self._give_up(Eager(f"sizes grow with every call: {grows}"), Retries(settles=True))
        post_limit(self.original)
        if not self._is_below_limit:
            self.family.limit_reached = True
            warn_of_growth(self.original, grows)

    def follow_limit(self, passed: int) -> None:
        """Stop compiling as another rank does or, after `passed` eager calls, try once more."""
        with self.lock:
            if self._retries is not None and passed >= self._retries.passed:
                self._retries.left = 0
                self._run_plainly()
            elif self.given_up is None and self.building is None and self.dispatcher.entries:
                self._give_up(AT_LIMIT, Retries())

    def why_missed(self, values: Values) -> Missed:
        """Return for each entry, last used first, why it does not fit these values."""
        return self.ledger.why_missed(self.original.snapshot(values))

    def _give_up(self, outcome: Eager | Failed, retries: Retries | None = None) -> None:
        """Stop compiling: on a miss the original runs from now on; without `retries`, forever."""
        self.given_up, self._retries = outcome, retries
        self.ledger.count_uses()
        self._run_plainly()

    def _run_plainly(self) -> None:
        """Let the dispatcher call the original natively until the next retry."""
        original = self.original
        if original.is_weak:
            if not self.dispatcher.entries:
                _frame.skip(original.code, self.family)
        else:
            left = FOREVER if self._retries is None else self._retries.take_left()
            self.dispatcher.give_up(original.plain, original.arity, left)

    # ---------------------------------------------------------------------------------------- reset

    def reset(self, options: Options | None = None) -> None:
        """Return to the state before the first call (with new options); a root resets its family
        too.
        """
        with self.lock:
            if options is not None:
                self.family.options = options
            if self.is_root:
                self.family.close()
                self.family.limit_reached = self.family.sizes_grow = False
                self.family.reported.clear()
                self.journal.records.clear()
            self.drop()
            for piece in self.pieces:
                piece.reset()
            self.family.members.extend(self.pieces)
            self.ledger.forget()
            self.given_up, self.building, self._retries = self._declared, None, None
            self.pay_back = PayBack()
            self._flat = None if self.is_root else self._flat
            self._began_as_eager = not (self.is_root or self._is_piece)

    def drop(self) -> None:
        """Remove all entries, and the stub that the hook may have put on the code."""
        self.dispatcher.clear()
        self.dispatcher.give_up(None, 0)
        if self.original.is_alive:
            _frame.forget(self.original.code, self.family)

    def __repr__(self) -> str:
        return f"<jitmagic handle of {self.original.qualname}: {self.outcome}>"
