"""Keeps a stub up to date when its function gets other code or defaults in place.

Input: a tagged function and its stub; later, from the native watcher, each assignment to the
function's `__code__`, `__defaults__` or `__kwdefaults__` (%autoreload assigns all three). Output:
the same assignment to the stub, with a new handle for new code, so that nothing compiled from the
old code is reached again. This happens at the assignment, not at the next call, because a call
binds its arguments before any dispatcher sees it. Invariant: neither functions nor stubs are kept
alive.
"""

from __future__ import annotations

import weakref
from types import CodeType, FunctionType
from typing import Any

from .. import _frame
from ..bytecode import call_stub
from ..errors import Unsupported, warn
from ..records import Eager, Failed
from .eager import reason_not_to_trace
from .handle import Handle
from .native import Dispatcher
from .never_hooked import suspendable, unsuitable
from .original import PieceOriginal
from .torch_compile_boundary import export_twin, hide
from .user_tracebacks import strip_stub_frames

__all__ = ["follow", "handle_in", "stub_code"]

_stubs: weakref.WeakKeyDictionary[FunctionType, weakref.WeakSet[FunctionType]]
_stubs = weakref.WeakKeyDictionary()


def stub_code(handle: Handle) -> CodeType:
    """Return code with the original's signature that calls the handle's dispatcher."""
    code = handle.original.code
    if suspendable(code) is not None:
        return hide(_generator_code(handle, code))
    return hide(call_stub(code, handle.dispatcher, strip_stub_frames))


def _generator_code(handle: Handle, code: CodeType) -> CodeType:
    """Return code of the same kind of generator or coroutine that calls compiled pieces."""

    def make_piece(flat: Any) -> Dispatcher:
        original = PieceOriginal(flat.code, handle.original.namespace, name=handle.name)
        handle.pieces.append(Handle(original, handle.family, flat=flat))
        return handle.pieces[-1].dispatcher

    if (reads := reason_not_to_trace(handle.original.snapshot(()))) is not None:
        if handle.options.fullgraph:
            raise Unsupported(reads.why, "call it in another way, or without fullgraph=True", None)
        handle.given_up = reads
        handle.report_eager(reads, partly=False)
        return handle.code_for_deep_recursion()
    try:
        made = handle.family.compiler.rewrite(code, make_piece, strip_stub_frames)
    except Exception as error:  # a bug of the rewriting: plain Python still gives the right answer
        if handle.options.on_error == "raise":
            raise
        handle.pieces.clear()
        handle.given_up = Failed.of(error, "rewrite")
        warn(handle.given_up.report(handle.label, "runs as eager"))
        return handle.code_for_deep_recursion()
    if made is None:
        handle.given_up = Eager("there is nothing to compile between its suspension points")
        return handle.code_for_deep_recursion()
    return made.replace(co_consts=(*made.co_consts, handle.dispatcher))


def handle_in(code: CodeType) -> Handle | None:
    """Return the handle whose dispatcher a code object calls, or None."""
    handle: Handle | None = None
    for constant in code.co_consts:
        if type(constant) is Dispatcher:
            handle = constant.owner
    return handle  # a generator's own dispatcher comes after those of its pieces


def follow(function: FunctionType, stub: FunctionType) -> None:
    """Apply every later assignment to the function's code or defaults to its stub too."""
    _frame.watch_functions(_changed)
    _stubs.setdefault(function, weakref.WeakSet()).add(stub)


def _changed(function: FunctionType, attribute: str, value: object) -> None:
    for stub in list(_stubs.get(function, ())):
        handle = handle_in(stub.__code__)
        if handle is None:
            continue  # the stub's own code was replaced: it is not a stub any more
        setattr(export_twin(stub), attribute, value)
        if attribute == "__code__" and isinstance(value, CodeType):
            _give_code(stub, function, value, handle)
        else:
            setattr(stub, attribute, value)


def _give_code(stub: FunctionType, function: FunctionType, code: CodeType, old: Handle) -> None:
    """Give the stub a handle for the new code; the old handle dies with its last running call."""
    handle = Handle.of_function(function, old.options, old.family.compiler, code)
    handle.dispatcher.stub = weakref.ref(stub)
    reason = unsuitable(code)
    if reason is None:
        stub.__code__ = stub_code(handle)
    else:  # the dispatcher among its constants still marks it as tagged
        stub.__code__ = handle.code_for_deep_recursion()
        warn(f"{handle.label} has new code and runs as eager: {reason}")
