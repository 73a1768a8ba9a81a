"""Compiles a tagged function or module before its first call.

In: the tagged object, and arguments of calls as `jitmagic.save` takes them. Out: entries that these
calls will use, in this process and, if they are kept on disk, in later ones. Nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api import tagged_handle
from ..errors import Unsupported, warn
from ..frame.binding import bind
from ..records import Compiled
from .examples import calls_of

__all__ = ["aot"]


def aot(fn: Any) -> Callable[..., Any]:
    """`aot(fn)(*examples)`: compile a tagged function or module for calls like these; return `fn`.

    examples: the arguments of one call, or several calls, each a tuple of arguments or a dict of
        arguments by name

    Backwards are compiled too, where gradients are recorded. A frame with a graph break is compiled
    up to the break, with a warning that names its line: the rest is compiled when it is reached.
    Raises TypeError if `fn` is not tagged, and what a compile with fullgraph=True raises.
    """
    handle = tagged_handle(fn)

    def compile_for(*examples: Any) -> Any:
        for args, kwargs in calls_of(examples):
            _, values = bind(fn, args, kwargs)
            if not handle.compile_for(values):
                raise Unsupported(f"{handle.label} is not compiled: {handle.outcome}", "", None)
            entry = handle.dispatcher.entries[0]
            if not isinstance(entry.notes.outcome, Compiled):
                warn(f"{handle.label} runs as {entry.notes.outcome}")
            elif entry.notes.ends is not None:
                warn(f"{handle.label} is compiled up to a graph break: {entry.notes.ends.why}")
            for later in entry.notes.pending():
                later()
        return fn

    return compile_for
