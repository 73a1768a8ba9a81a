"""Traces lookups by a str input (`table[name]`) without guarding the str's value.

Input: an unread str of the call (an unrealized `Lazy`), constants that the program joins with it,
and a container. Output: a source that looks up the str of each call. One variant then serves every
str whose entry passes the guards. Any other use realizes the str, and a guard fixes its value.
"""

from __future__ import annotations

import types
from collections.abc import Sequence

from ....guards.guard import TypeIs
from ....guards.source import Joined, Source
from ..base import Lazy, Machine, Value
from ..objects.constants import ConstantValue

__all__ = ["Text", "is_alike", "joined_text", "text_input"]

Text = tuple[str, Source]

# Objects that are guarded by identity or value: a guard on the str is then no stricter.
_BY_VALUE = (
    str, bytes, bool, type(None), type, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, types.ModuleType,
)  # fmt: skip


def text_input(value: Value) -> Text | None:
    """Return (text, source) of an unread str input, else None."""
    # Code that has realized the str may have read its value, which is guarded then anyway.
    if not isinstance(value, Lazy) or value.real is not None or type(value.obj) is not str:
        return None
    return None if value.source is None else (value.obj, value.source)


def is_alike(found: object) -> bool:
    """Return whether another object could pass the guards on the found one."""
    return not isinstance(found, _BY_VALUE)


def joined_text(machine: Machine, pieces: Sequence[Value]) -> Value | None:
    """Return the concatenation of constants and one unread str, or None for other pieces."""
    texts = [text_input(piece) for piece in pieces]
    at = [index for index, text in enumerate(texts) if text is not None]
    if len(at) != 1 or (text := texts[at[0]]) is None:
        return None
    before = _constants(machine, pieces[: at[0]])
    after = _constants(machine, pieces[at[0] + 1 :])
    if before is None or after is None:
        return None
    # The concatenation holds for an exact str: a subclass may define `__radd__` or `__format__`.
    machine.guard(TypeIs(text[1], str))
    if not before and not after:
        return pieces[at[0]]
    return machine.lazy(before + text[0] + after, Joined(text[1], before, after))


def _constants(machine: Machine, pieces: Sequence[Value]) -> str | None:
    parts = [piece.realize(machine) for piece in pieces]
    texts = [part.value for part in parts if isinstance(part, ConstantValue)]
    known = [text for text in texts if type(text) is str]
    return "".join(known) if len(known) == len(parts) else None
