"""Formats the warnings that a frame has reached its recompile limit, or grows with every call.

Input: the frame's name, and the guard that failed, in words. Output: a text that says what
happened, what runs as eager from now on, and a hint.
"""

from __future__ import annotations

from types import CodeType

from ..errors import Unsupported, UserLine
from .never_hooked import is_of_library, users_line

__all__ = ["growth_warning", "limit_refusal", "limit_warning", "named_for_user"]


def named_for_user(label: str, code: CodeType) -> str:
    """Return the label; a library function's names the calling user function too."""
    where = users_line()
    if where is None or not is_of_library(code):
        return label
    return f"{label}, called in {where.function} (line {where.lineno}),"


def limit_refusal(
    label: str, count: int, limit: int, difference: str, line: UserLine | None
) -> Unsupported:
    """Return the error for a call beyond the recompile limit that must not run as eager."""
    return Unsupported(
        f"{label} was compiled {count} times, which is its recompile limit, and fullgraph=True "
        f"forbids running as eager: {difference}",
        f'options={{"recompile_limit": {2 * limit}}}, or pass the varying value as a tensor '
        "argument",
        line,
    )


def limit_warning(
    part: str, lineno: int | None, count: int, limit: int, difference: str, edit: str
) -> str:
    """Return the warning that `part` was compiled `count` times and has reached its limit.

    `lineno`: where its resume function starts. Users do not call that themselves; most often it
    comes from a loop with a graph break in it.
    """
    if lineno is None:
        hint = edit or "pass the varying value as a tensor argument"
    else:
        part = f"{part} from line {lineno} on, after a graph break,"
        hint = "remove the break (jitmagic.explain shows it), tag what a loop calls, not the loop"
    return (
        f"{part} was compiled {count} times and no variant fits this call; such calls run as eager "
        "from now on, except that one more variant is compiled whenever their number has doubled\n"
        f"  first difference: {difference}\n"
        f'  hint: {hint}, or give jit options={{"recompile_limit": {2 * limit}}}'
    )


def growth_warning(part: str, grows: str) -> str:
    """Return the warning that a size of `part` grows with every call."""
    return (
        f"{part}: {grows} and grows by one with every call, so that each variant serves one "
        "call; new sizes run as eager from now on, until the size stops growing\n"
        "  hint: allocate the final size once and write into it, or compile the part that does not "
        "depend on it"
    )
