"""The notice: one dim line per tagged function, where it first runs as plain Python, and why.

Comes in: what happened, on the user's line. Goes out: a line where somebody watches: on a
terminal's standard error, in a notebook a display, for what stands on standard error there is red.
A pipe, a file or pytest gets none unless `notices="always"` asks.
It is no warning, so that `-W error` does not turn a slower call into a failing one; but a filter
that ignores `EagerNotice` silences it, as does `options={"notices": "never"}`.
"""

from __future__ import annotations

import sys
import warnings
from html import escape
from typing import TextIO

from .errors import EagerNotice, UserLine, notebook_shell

__all__ = ["dim", "tell"]

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def tell(name: str, why: str, where: UserLine, partly: bool, notices: str) -> None:
    """Say that `name` runs (partly) as plain Python; `notices`: the option."""
    stream = sys.stderr
    notebook = stream is not None and _is_notebook(stream)
    watched = notebook or (stream is not None and not stream.closed and stream.isatty())
    if notices == "never" or not (watched or notices == "always") or _is_ignored():
        return
    source = f" `{where.text}`" if where.text else ""
    line = (
        f"jitmagic: {name} runs {'partly ' if partly else ''}as plain Python: "
        f"{where.file}, line {where.lineno}, in {where.function or name}:{source} {why} "
        f"({_advice(where)})"
    )
    if notebook:
        shown = {"text/plain": line, "text/html": dim(line)}
        notebook_shell().display_pub.publish(data=shown, metadata={})
        return
    try:
        stream.write(f"{_DIM}{line}{_PLAIN}\n" if watched else f"{line}\n")
        stream.flush()
    except (OSError, ValueError):  # a terminal that went away or cannot show the name
        return


def _advice(where: UserLine) -> str:
    """Return how to see more and how to hide the line, where it was written."""
    if where.is_in_cell:
        return "more: %%compile --explain; to hide this: %%compile --quiet"
    return 'more: jitmagic.explain(fn)(*args); to hide this: options={"notices": "never"}'


def dim(text: str) -> str:
    """A line beside what a notebook's cell shows, as HTML."""
    return f"<div style='opacity:.75;font-size:12px'>{escape(text)}</div>"


def _is_notebook(stream: TextIO) -> bool:
    kind = type(stream).__module__.partition(".")[0]
    return kind == "ipykernel" and not stream.closed and notebook_shell() is not None


def _is_ignored() -> bool:
    """Whether the first filter that is about notices in general ignores them."""
    for action, message, category, module, lineno in warnings.filters:
        if issubclass(EagerNotice, category) and message is module is None and not lineno:
            return action == "ignore"
    return False
