"""hook: what the native frame hook asks, and how to switch it off for a while.

Comes in: a code object whose frame is about to begin, called from tagged code. Goes out: a call
stub with a handle of the family's own, or None. Importing this module tells the native part whom
to ask; the hook itself is installed only while a tagged call needs it.
"""

from __future__ import annotations

from types import CodeType, TracebackType
from typing import Any

from .. import _frame
from .follow import stub_code
from .handle import Family, Handle
from .library import library_function
from .skip import reason_to_skip

__all__ = ["Suspended", "stub_for"]


def stub_for(code: CodeType, namespace: dict[str, Any]) -> CodeType | None:
    """The stub to run instead of `code`; None: never ask again."""
    family = _frame.current_family()
    if not isinstance(family, Family) or reason_to_skip(code, namespace) is not None:
        return None
    handle = Handle.of_callee(code, namespace, family, library_function(code, namespace))
    return stub_code(handle)


_frame.set_callback(stub_for)


class Suspended:
    """`with Suspended():` tagged functions and their callees run as plain Python on this thread."""

    __slots__ = ()

    def __enter__(self) -> None:
        _frame.suspend()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _frame.resume_hook()
