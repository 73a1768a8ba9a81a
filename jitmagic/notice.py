"""Prints one dim line when a tagged function first runs as plain Python: the line and the reason.

The line goes to standard error of a terminal, or to a display in a notebook, which shows standard
error in red. If output is not interactive (a pipe, a file, pytest), it is printed only with
`notices="always"`. It is not a Python warning, so that `-W error` does not turn a slower call into
a failing one; a filter that ignores `EagerNotice` silences it, as does `options={"notices":
"never"}`.
"""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

from .errors import EagerNotice, UserLine, notebook_shell

__all__ = ["dim", "show"]

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# As html.escape, whose module loads all 2,231 names of HTML characters (1.6 ms).
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def show(name: str, why: str, where: UserLine, partly: bool, notices: str) -> None:
    """Print that `name` runs (partly) as plain Python; `notices` is the option."""
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
    """Return how to see more and how to hide the line, in the form for cells or for scripts."""
    if where.is_in_cell:
        return "more: %%compile --explain; to hide this: %%compile --quiet"
    return 'more: jitmagic.explain(fn)(*args); to hide this: options={"notices": "never"}'


def dim(text: str) -> str:
    """Return a dim line for the output of a notebook's cell, as HTML."""
    return f"<div style='opacity:.75;font-size:12px'>{text.translate(_ESCAPES)}</div>"


def _is_notebook(stream: TextIO) -> bool:
    kind = type(stream).__module__.partition(".")[0]
    return kind == "ipykernel" and not stream.closed and notebook_shell() is not None


def _is_ignored() -> bool:
    """Return whether the first warning filter that matches every notice ignores them."""
    for action, message, category, module, lineno in warnings.filters:
        if issubclass(EagerNotice, category) and message is module is None and not lineno:
            return action == "ignore"
    return False
