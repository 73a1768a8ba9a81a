"""Warns that a frame has reached its recompile limit, or grows with every call.

Input: the frame, and the guard that failed, in words. A warning says what happened, what runs as
eager from now on, and a hint.
"""

from __future__ import annotations

from ..errors import RecompileWarning, Unsupported, UserLine, warn
from ..options import Options
from ..records import Missed
from .never_hooked import is_of_library, users_line
from .original import Original

__all__ = ["limit_refusal", "warn_of_growth", "warn_of_limit"]


def _difference_in(missed: Missed) -> str:
    """Return the first guard that failed in the variant used last."""
    return missed[0][1].what if missed else "a guarded object is gone"


def _named_for_user(original: Original) -> str:
    """Return the label; a library function's names the calling user function too."""
    where, label = users_line(), original.label
    if where is None or not is_of_library(original.code):
        return label
    return f"{label}, called in {where.function} (line {where.lineno}),"


def limit_refusal(
    label: str, count: int, options: Options, missed: Missed, line: UserLine | None
) -> Unsupported:
    """Return the error for a call beyond the recompile limit that must not run as eager."""
    limit = options.recompile_limit
    option = "fullgraph=True" if options.fullgraph else f'collectives="{options.collectives}"'
    return Unsupported(
        f"{label} was compiled {count} times, which is its recompile limit, and {option} "
        f"forbids running as eager: {_difference_in(missed)}",
        f'options={{"recompile_limit": {2 * limit}}}, or pass the varying value as a tensor '
        "argument",
        line,
    )


def warn_of_limit(
    original: Original, start: UserLine | None, count: int, limit: int, missed: Missed
) -> None:
    """Warn that code was compiled `count` times and has reached its limit.

    `start`: where its resume function starts. Users do not call that themselves; most often it
    comes from a loop with a graph break in it.
    """
    part, edit = _named_for_user(original), missed[0][1].edit if missed else ""
    if start is None:
        hint = edit or "pass the varying value as a tensor argument"
    else:
        part = f"{part} from line {start.lineno} on, after a graph break,"
        hint = "remove the break (jitmagic.explain shows it), tag what a loop calls, not the loop"
    text = (
        f"{part} was compiled {count} times and no variant fits this call; such calls run as eager "
        "from now on, except that one more variant is compiled whenever their number has doubled\n"
        f"  first difference: {_difference_in(missed)}\n"
        f'  hint: {hint}, or give jit options={{"recompile_limit": {2 * limit}}}'
    )
    warn(text, RecompileWarning, start or users_line())


def warn_of_growth(original: Original, grows: str) -> None:
    """Warn that a size grows with every call."""
    text = (
        f"{_named_for_user(original)}: {grows} and grows by one with every call, so that each "
        "variant serves one call; new sizes run as eager from now on, until the size stops "
        "growing\n  hint: allocate the final size once and write into it, or compile the part that "
        "does not depend on it"
    )
    warn(text, RecompileWarning, users_line())
