"""hook: what the native frame hook asks, and how to switch it off for a while.

Comes in: a code object whose frame is about to begin, called from tagged code. Goes out: a call
stub with a handle of the family's own, or None. Importing this module tells the native part whom
to ask; the hook itself is installed only while a tagged call needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any

from .. import _frame
from .family import Family
from .follow import stub_code
from .handle import Handle
from .library import library_function
from .native import call_plainly
from .skip import is_of_jitmagic, reason_to_skip

__all__ = ["Suspended", "call_with_hooked_callees", "stub_for"]


def stub_for(code: CodeType, namespace: dict[str, Any]) -> CodeType | bool | None:
    """The stub to run instead of `code`; False: not for this family; None: never ask again; True:
    nor about what it calls. Calls have our own Python run too: what they compile late makes modules
    of torch.fx, around which torch.compile may have put functions of its own.

    What is tagged is never skipped, a container of torch's neither: its instance may have a forward
    of its own that calls the class's.
    """
    family = _frame.current_family()
    if not isinstance(family, Family):
        return None
    if is_of_jitmagic(code):
        return True
    if code is not family.tagged and reason_to_skip(code, namespace) is not None:
        return False if code.co_name == "forward" else None  # others may be tagged as modules
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


def call_with_hooked_callees(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call `function` as plain Python; the hook acts on what it calls as it does around it.

    A callable without Python code of its own has no frame that the hook could take.
    """
    if not isinstance(function, FunctionType):
        return function(*args, **kwargs)
    return call_plainly(function, args, kwargs, _frame.current_family())
