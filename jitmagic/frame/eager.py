"""Makes entries that run the user's code as plain Python, for calls that are not compiled.

Input: the reason why such calls are not compiled, and the guards that recognise them. Output: an
Entry. Other calls can still be compiled: one unusual first call does not leave a function eager.
"""

from __future__ import annotations

import torch

from .. import _frame
from ..bytecode import FrameSnapshot
from ..compat.modes import records_operations
from ..compat.tensors import transforms_of_thread
from ..devices import all_rows
from ..errors import UserLine
from ..guards.guard import Guard
from ..guards.state import read_state
from ..records import Eager, Outcome
from ..torch_types import AnyFunction
from .ledger import Variant
from .native import Entry, GuardProgram, lower_guards
from .never_hooked import frame_reader, users_line
from .patched_builtins import replaced_builtin

__all__ = ["eager_entry", "entry_like", "is_observed", "reason_for_eager", "reason_not_to_trace"]


def eager_entry(
    run: AnyFunction,
    snapshot: FrameSnapshot,
    guards: tuple[Guard, ...],
    outcome: Outcome,
) -> Entry:
    """Return an entry that runs matching calls as plain Python; others can still be compiled."""
    steps, _ = lower_guards(guards, (), snapshot.globals, snapshot.builtins)
    made = Entry(GuardProgram(steps), run)
    made.notes = Variant(guards, outcome)
    return made


def entry_like(entry: Entry, run: AnyFunction, outcome: Outcome) -> Entry:
    """Return an entry with the same guards that runs something else."""
    made = Entry(entry.program, run)
    made.notes = Variant(entry.notes.guards, outcome, constants=entry.notes.constants)
    return made


def reason_not_to_trace(snapshot: FrameSnapshot) -> Eager | None:
    """Return why a frame need not be traced (it inspects its own frame, and where), or None."""
    reader = frame_reader(snapshot.code, snapshot.globals)
    if reader is None:
        return None
    line = reader.lineno or snapshot.code.co_firstlineno
    where = UserLine(snapshot.code.co_filename, line, snapshot.name)
    return Eager(f"it inspects its own frame or namespace ({reader.arg})", where)


def is_observed() -> bool:
    """Return whether an observer makes every call run the original now."""
    return _frame.traced() or _frame.observed() or replaced_builtin() is not None or _records()


def _records() -> bool:
    """Return whether torch.func.functionalize records the operations of this call."""
    return "Functionalize" in transforms_of_thread()


def reason_for_eager() -> Eager | None:
    """Return why no call is compiled now, or None.

    A sys.settrace tracer must see every line; a mode must see each of the user's operations, and
    none of jitmagic's. Replaced builtins would also run inside the compiler.
    """
    if _frame.traced():
        return Eager("a debugger or another tracer (sys.settrace) traces its lines")
    if (name := replaced_builtin()) is not None:
        return Eager(f"builtins.{name} is replaced")
    if records_operations():
        return Eager("it is called inside jitmagic.lazy(), which records its operations")
    state = read_state()
    if _records():
        return Eager("it is called under torch.func.functionalize", users_line())
    if _frame.packs():
        return Eager(
            "hooks of saved tensors are active and may change the tensors that eager saves"
        )
    for row in all_rows():
        if not row.traces_autocast and torch.is_autocast_enabled(row.type):
            return Eager(f"autocast is on for {row.type!r}, a device of an extension")
    if not (state.function_modes or state.dispatch_modes):
        return None
    return Eager("a torch function mode or dispatch mode is active")
