"""The Python side of the native frame hook, and how to suspend it.

Input: a code object whose frame is about to run, called from tagged code. Output: a call stub with
a handle of the same family, or None. Importing this module registers the callback; the hook itself
is installed only while a tagged call needs it.
"""

from __future__ import annotations

from types import CodeType, FunctionType, TracebackType

from .. import _frame
from ..torch_types import AnyFunction, Namespace
from .code_updates import stub_code
from .family import Family
from .handle import Handle
from .library import library_function
from .native import call_plainly
from .never_hooked import is_of_jitmagic, reason_to_skip

__all__ = ["Suspended", "call_with_hooked_callees", "stub_for"]


def stub_for(code: CodeType, namespace: Namespace) -> CodeType | bool | None:
    """Return the stub to run in place of `code`, or how to skip it.

    False skips it for this family, None for all families and for good, True skips its callees too.
    True is for library functions that are declared plain, and for jitmagic's own Python: compiling
    at first use may create torch.fx modules, and torch.compile may have wrapped functions of those.

    Tagged code is never skipped. Neither is a `forward` of torch's containers: an instance may have
    its own forward that calls the class's.
    """
    family = _frame.current_family()
    if not isinstance(family, Family):
        return None
    library = library_function(code, namespace)
    if is_of_jitmagic(code) or (library is not None and library.plain):
        return True
    if code is not family.tagged and reason_to_skip(code, namespace) is not None:
        # Another family may have tagged a module with this `forward`, so it is not for good.
        return False if code.co_name == "forward" else None
    handle = Handle.of_callee(code, namespace, family, library)
    return stub_code(handle)


_frame.set_callback(stub_for)


class Suspended:
    """`with Suspended():` makes tagged functions and callees plain Python on this thread."""

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
    function: AnyFunction, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Call `function` as plain Python, with its callees hooked like those of the current frame.

    A callable without Python code has no frame to hook.
    """
    if not isinstance(function, FunctionType):
        return function(*args, **kwargs)
    return call_plainly(function, args, kwargs, _frame.current_family())
