"""Handle and Family: what stands behind a dispatcher, and what belongs to one tagged function.

Comes in: calls that no entry fits. Goes out: a new entry, or the original run as plain Python,
with the reason on show in `outcome`. A Family is one tagged function with all that was compiled
because of it (its resume functions, callees the hook found); they share options, compiler and
journal. Invariants: one compile at a time per handle; an entry is used only after its guards
passed for the very call it was made from; when the root handle dies, the family's entries go with
it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from types import CodeType, FunctionType
from typing import Any

from .. import _frame, notice
from ..bytecode import FrameSnapshot
from ..errors import RecompileWarning, SizesDiffer, Unsupported, UserLine, warn
from ..options import Options
from ..records import AT_LIMIT, Eager, Failed, Journal, Missed, Outcome, PendingBuild, Recording
from .eager import entry_like, is_watched, under_mode
from .family import Compiler, Family
from .ledger import Growing, Later, Ledger, why_not
from .library import LibraryFunction, library_function
from .native import Dispatcher, Entry, continue_with
from .original import Original
from .retries import FOREVER, Retries
from .skip import is_library_file, is_of_library, users_line
from .stance import OnMiss, on_miss
from .timing.comparison import Comparison
from .warned import growth_warning, limit_warning

__all__ = ["Handle", "all_handles"]

Values = tuple[Any, ...]  # of the arguments, in the order of the code's variables

_MOST_FAILURES = 2  # variants whose compile failed, after which no other is tried
# Marks on an error after which the original does not run in place of the graph.
_SHOWN_AS_IT_IS = ("__jitmagic_wrote__", "__jitmagic_from_hook__", "__jitmagic_from_backend__")
_AFTER_LIMIT = 2  # variants of a callee once what calls it has reached its limit

_serials = itertools.count(1)
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def all_handles() -> list[Handle]:
    """Every handle alive, in no order."""
    return list(_handles)


class Handle:
    """One dispatcher's Python side: compiles on a miss, keeps the ledger, explains its state."""

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
        self._flat, self._root, self._goes_on = flat, root, flat is not None
        plain = "" if library is None else library.plain
        self._declared = Eager(plain) if plain else None
        # why calls without an entry run as eager
        self._given_up: Eager | Failed | None = self._declared
        self._retries: Retries | None = None  # where given up is not for good
        # for whom its callees are hooked when it runs as eager
        self._hooked = None if plain else family
        self._compiling_thread: int | None = None
        self.building: PendingBuild | None = None  # while kernels are being built in the background
        self._began_as_eager = not root  # under the stance eager_then_compile
        self._lock = threading.RLock()
        self.serial = next(_serials)
        self.dispatcher = Dispatcher(original.qualname, original.arity, self._missed, self._failed)
        self.dispatcher.owner, self.dispatcher.family = self, family
        self.dispatcher.title = original.title
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
        """The root handle of a tagged function; `code`: what it is about to be given."""
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
        namespace: dict[str, Any],
        family: Family,
        library: LibraryFunction | None = None,
    ) -> Handle:
        """The handle of code that the hook found; the code holds the handle, not the other way."""
        family.drop_dead()
        return cls(Original(code, namespace, weak=True), family, library=library)

    def for_resume(self, flat: Any) -> Handle:
        """The handle of a resume function of this one; its values are all plain arguments."""
        original = Original(flat.code, self.original.namespace, name=self.name)
        return Handle(original, self.family, flat=flat)

    def resume_dispatcher(self, flat: Any) -> Dispatcher:
        """The dispatcher of a new resume function: what residuals continue with."""
        return self.for_resume(flat).dispatcher

    def __del__(self) -> None:
        if self._root:
            self.family.close()

    # ---------------------------------------------------------------------------------- to be read

    @property
    def is_root(self) -> bool:
        """Whether this is the tagged function itself, not a resume function or a callee."""
        return self._root

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

    @property
    def run_plainly(self) -> Original:
        """The original, called with the dispatcher's values."""
        return self.original

    def run_hooked(self, *values: Any) -> Any:
        """The original, with its callees hooked: what an entry runs that is not compiled."""
        return self.original.run(values, self._hooked)

    def must_raise(self, recording: Recording) -> bool:
        """Whether the user sees an error of the compile: it is their backend's, or they asked."""
        return recording.backend_raised or self.options.on_error == "raise"

    @property
    def label(self) -> str:
        """What the user calls it: a method with its class, a notebook's cell `<cell>`."""
        return self.original.label

    @property
    def goes_on(self) -> UserLine | None:
        """Of a resume function: where in the user's function it goes on."""
        if not self._goes_on:
            return None
        return UserLine(self.original.code.co_filename, self.original.first_line, self.label)

    @property
    def source_lines(self) -> tuple[str, int, tuple[str, ...]]:
        """File, first line number and lines of the original; none where the source is unknown."""
        return self.original.source_lines

    @property
    def is_compiling(self) -> bool:
        """Whether a call of it is being compiled right now."""
        return self._compiling_thread is not None

    @property
    def outcome(self) -> Outcome | None:
        """What calls that no entry fits come to, else that of the entry used last; None before the
        first call.
        """
        if self._given_up is not None:
            return self._given_up
        entries = self.dispatcher.entries
        latest: Outcome | None = entries[0].notes.outcome if entries else None
        return latest

    @property
    def given_up(self) -> Eager | Failed | None:
        """What calls come to that no entry fits; None: they are compiled."""
        return self._given_up

    def waiting(self) -> list[Later]:
        """Backwards of its variants that are compiled when they are first used."""
        return [later for entry in self.dispatcher.entries for later in entry.notes.waiting()]

    # -------------------------------------------------------------- asked by the native dispatcher

    def code_set_aside(self) -> CodeType:
        """The code that the stub has deep in a recursion; a constant names the dispatcher."""
        code = self.original.code
        return code.replace(co_consts=(*code.co_consts, self.dispatcher))

    def run_original(self, values: Values) -> Any:
        """The original with the dispatcher's values; nothing is compiled."""
        return self.original.run(values)

    # ------------------------------------------------------------------------------------- the miss

    def _missed(self, values: Values) -> Any:
        if _frame.suspended() or self._compiling_thread == threading.get_ident():
            return self.original.run(values)
        if is_watched():
            if "notice" not in self.family.reported and (watched := under_mode()) is not None:
                self._tell_of_plain_python(watched, partly=False)
            return self.original.run(values)
        if (asked := on_miss()) is OnMiss.EAGER_FIRST:
            asked = OnMiss.COMPILE if self._began_as_eager else OnMiss.EAGER
            self._began_as_eager = True
        if self._given_up is None and asked is OnMiss.RAISE:
            raise self._refused_by_stance(values)
        if asked is not OnMiss.COMPILE:
            return self.original.run(values)
        is_open = self._given_up is None or (self._retries is not None and self._retries.count())
        if is_open and self.compile_for(values):
            return continue_with(self.dispatcher, *values)
        waits = self._given_up is None  # a later call may be compiled, callees and all
        return self.original.run(values, None if waits else self._hooked)

    def _refused_by_stance(self, values: Values) -> Unsupported:
        missed = self.why_missed(values)
        return Unsupported(
            f"{self.label} would be compiled for this call, and torch.compiler.set_stance says "
            f"fail_on_recompile: {missed[0][1].what if missed else 'it is the first'}",
            "",
            self.goes_on,
        )

    def compile_for(self, values: Values) -> bool:
        """Whether there is an entry for these values now."""
        with self._lock:
            if any(entry.check(values) for entry in self.dispatcher.entries):
                return True  # another thread was here first
            retries = self._retries
            if self._given_up is not None and (retries is None or not retries.is_due):
                return False
            begun = self.building
            if begun is not None and not begun.wait(0):
                return False
            self.building = None
            self.ledger.sweep()
            if retries is not None:
                return self._try_again(retries, values, begun)
            if self.ledger.is_full(values, self._limit):
                self._reach_limit(values)
                return False
            if self._grows(values):
                return False
            return self._compile(values, begun)

    def _try_again(self, retries: Retries, values: Values, begun: PendingBuild | None) -> bool:
        """One more variant though they are full, in the place of the one used least."""
        is_taken = begun is not None or retries.takes(self.why_missed(values))
        is_made = is_taken and self._compile(values, begun)
        if self._retries is retries and self.building is None:  # not given up for good
            retries.end()
            self.ledger.make_room(values, self._limit)
            self._run_plainly()
        return is_made

    def _compile(self, values: Values, begun: PendingBuild | None = None) -> bool:
        """`begun`: the compile whose kernels are built by now."""
        snapshot = self.original.snapshot(values)
        number, occasion = self.ledger.begin(snapshot)
        own = (self.name, self.journal, self.serial, number, occasion)
        recording = Recording(*own, self.family.reported, self.original.title)
        recording.stages += () if begun is None else begun.building
        result = self._run_compiler(snapshot, recording)
        if isinstance(result, PendingBuild):
            self.ledger.begun -= 1
            self.building = None if result.wait(self.options.patience) else result
            return self.building is None and self._compile(values, result)
        outcome = result.notes.outcome if isinstance(result, Entry) else result
        if isinstance(outcome, Failed):
            self._tell_failure(outcome)
        if isinstance(result, Entry) and not result.check(values):
            which = why_not(result, snapshot)
            result = Eager(
                "its guards do not hold for the call they were made from"
                + (f": {which}" if which else "")
            )
            warn(f"{self.label} runs as eager: {result.why}")
            outcome = result
        record = recording.end(outcome)
        if isinstance(result, Entry):
            self.ledger.add(result, values, snapshot)
            if result.notes.comparable is not None:
                plain = self.original.plain
                Comparison(result, plain, self.ledger, self.journal, record, self._lost).start()
        else:
            self._give_up(result)
        ends = result.notes.ends if isinstance(result, Entry) else None
        self._tell_of_plain_python(ends or outcome, partly=ends is not None)
        if self.ledger.failures >= _MOST_FAILURES:
            self._give_up(self.ledger.last_failure)
        return isinstance(result, Entry)

    def _run_compiler(
        self, snapshot: FrameSnapshot, recording: Recording
    ) -> Entry | Eager | Failed | PendingBuild:
        self._compiling_thread = threading.get_ident()
        _frame.suspend()
        try:
            return self.family.compiler.compile(self, snapshot, recording)
        except Unsupported as error:  # fullgraph=True: the user asked to be told
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

    def _tell_of_plain_python(self, plain: Outcome, *, partly: bool, once: str = "notice") -> None:
        """Once per tagged function; of a failed compile there is a warning."""
        if isinstance(plain, Eager) and once not in self.family.reported:
            self.family.reported.add(once)
            code = self.original.code
            first_line = UserLine(code.co_filename, code.co_firstlineno, self.label)
            where = plain.where or first_line
            if is_library_file(where.filename):  # the inside of a library says nothing to its user
                where = users_line() or where
            if not self._leaves_to_callee(where):
                notice.show(self.label, plain.why, where, partly, self.options.notices)

    def _leaves_to_callee(self, where: UserLine) -> bool:
        """Whether this is a cell's top level, and the line a tagged function's, which tells too."""
        if self.family.compiler.is_listed:
            return False
        listed = (h for h in all_handles() if h.is_root and h.family.compiler.is_listed)
        return any(handle.original.has_line(where) for handle in listed)

    def _tell_failure(self, failed: Failed) -> None:
        if self.name not in self.family.reported:
            self.family.reported.add(self.name)
            warn(failed.report(self.label, "runs as eager"))

    def _failed(self, entry: Entry, values: Values, error: Exception) -> Any:
        """A graph raised. Eager says what the user should see, unless inputs may have changed, or
        the error is that of the user's backend or of a hook on saved tensors (checkpointing ends a
        second run so). Of SizesDiffer nothing has run.
        """
        may_have_written = entry.mutates and not isinstance(error, SizesDiffer)
        if may_have_written or any(hasattr(error, mark) for mark in _SHOWN_AS_IT_IS):
            raise error
        result = self.original.run(values)
        if (why := self.ledger.why_given_up(entry, error)) is None:
            return result  # a branch that is hardly ever taken, and now was
        outcome = Eager(why)
        self.ledger.replace(entry, entry_like(entry, self.run_hooked, outcome))
        warn(f"{self.label} runs as {outcome}")
        return result

    def _lost(self, outcome: Eager) -> None:
        """A variant was slower than eager, whose entry has taken its place."""
        if self._root and not self.ledger.is_compiled:
            self.family.close()  # what only compiled code calls
        self._tell_of_plain_python(outcome, partly=not self._root, once="slower")

    # ------------------------------------------------------------------------------------ the limit

    @property
    def _limit(self) -> int:
        """What varies in every call of a function varies in most of what it calls: the parts that
        see nothing of it are worth compiling, the others are not worth the whole budget again.
        """
        limit = self.options.recompile_limit
        return min(limit, _AFTER_LIMIT) if self._is_below_limit else limit

    @property
    def _is_below_limit(self) -> bool:
        """Whether this is a callee of the user's in a function that has reached its limit."""
        return self.family.limit_reached and self.original.is_weak and self.library is None

    def _reach_limit(self, values: Values) -> None:
        missed = self.why_missed(values)
        difference = missed[0][1].what if missed else "a guarded object is gone"
        if self.options.fullgraph:
            raise Unsupported(
                f"{self.label} was compiled {self.ledger.count} times, which is its recompile "
                f"limit, and fullgraph=True leaves no way to run as eager: {difference}",
                f'options={{"recompile_limit": {2 * self.options.recompile_limit}}}, or make what '
                "varies an argument that is a tensor",
                self.goes_on,
            )
        self._give_up(AT_LIMIT, Retries())
        if self._is_below_limit:
            return  # that calls run as eager has been said
        self.family.limit_reached |= not self.original.is_weak
        where, limit = self.goes_on, self.options.recompile_limit
        lineno = None if where is None else where.lineno
        edit = missed[0][1].edit if missed else ""
        part, count = self._named_for_user(), self.ledger.count
        text = limit_warning(part, lineno, count, limit, difference, edit)
        warn(text, RecompileWarning, where or users_line())

    def _grows(self, values: Values) -> bool:
        """Whether this call is one of a row in which something grows, each a variant of its own."""
        if self.options.fullgraph:
            return False  # the limit will raise
        snapshot = self.original.snapshot(values)
        # Each new size is planned: where all are new, symbols that nobody asked for save nothing.
        asked = Growing(self._root, self.family.sizes_grow, bool(self.options.dynamic))
        growth = self.ledger.growth(snapshot, values, asked)
        if growth is not None and not growth.may_end:
            self._stop_growing(growth.why)
        return growth is not None

    def _stop_growing(self, grows: str) -> None:
        """A cache, a counter, a list that grows: each variant would be for one call."""
        self.family.sizes_grow = True
        self._give_up(Eager(f"sizes grow with every call: {grows}"), Retries(settles=True))
        if not self._is_below_limit:
            self.family.limit_reached = True
            text = growth_warning(self._named_for_user(), grows)
            warn(text, RecompileWarning, users_line())

    def _named_for_user(self) -> str:
        """A function of a library together with the user's that calls it."""
        where = users_line()
        if where is None or not is_of_library(self.original.code):
            return self.label
        return f"{self.label}, called in {where.function} (line {where.lineno}),"

    def why_missed(self, values: Values) -> Missed:
        """For each entry, most recently used first, what keeps it from fitting these values."""
        return self.ledger.why_missed(self.original.snapshot(values))

    def _give_up(self, outcome: Eager | Failed, retries: Retries | None = None) -> None:
        """Calls without an entry run the original from now on; None: for ever."""
        self._given_up, self._retries = outcome, retries
        self.ledger.count_uses()
        self._run_plainly()

    def _run_plainly(self) -> None:
        """On the fast path, until the next retry."""
        original = self.original
        if original.is_weak:
            if not self.dispatcher.entries:
                _frame.skip(original.code, self.family)
        else:
            left = FOREVER if self._retries is None else self._retries.handed_over()
            self.dispatcher.give_up(original.plain, original.arity, left)

    # ---------------------------------------------------------------------------------------- reset

    def reset(self, options: Options | None = None) -> None:
        """As if never called (with new options): root handles take their family along."""
        with self._lock:
            if options is not None:
                self.family.options = options
            if self._root:
                self.family.close()
                self.family.limit_reached = self.family.sizes_grow = False
                self.family.reported.clear()
                self.journal.records.clear()
            self.drop()
            self.ledger.forget()
            self._given_up, self.building, self._retries = self._declared, None, None
            self._flat = None if self._root else self._flat
            self._began_as_eager = not self._root

    def drop(self) -> None:
        """Take out all entries, and the stub that the hook may have put on the code."""
        self.dispatcher.clear()
        self.dispatcher.give_up(None, 0)
        if self.original.is_alive:
            _frame.forget(self.original.code, self.family)

    def __repr__(self) -> str:
        return f"<jitmagic handle of {self.original.qualname}: {self.outcome}>"
