"""The notice: one dim line per tagged function, where it first runs as plain Python, and why.

Comes in: what happened, on the user's line. Goes out: a line on standard error where somebody
watches (a terminal, a notebook); a pipe, a file or pytest gets none unless `notices="always"` asks.
It is no warning, so that `-W error` does not turn a slower call into a failing one; but a filter
that ignores `EagerNotice` silences it, as does `options={"notices": "never"}`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TextIO

from .errors import EagerNotice, UserLine

__all__ = ["tell"]

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def tell(name: str, why: str, where: UserLine, partly: bool, notices: str) -> None:
    """Say that `name` runs (partly) as plain Python; `notices`: the option."""
    stream = sys.stderr
    watched = stream is not None and _is_watched(stream)
    if notices == "never" or not (watched or notices == "always") or _is_ignored():
        return
    line = (
        f"jitmagic: {name} runs {'partly ' if partly else ''}as plain Python: "
        f"{Path(where.filename).name}, line {where.lineno}, in {where.function or name}: {why} "
        '(more: jitmagic.explain(fn)(*args); to hide this: options={"notices": "never"})'
    )
    try:
        stream.write(f"{_DIM}{line}{_PLAIN}\n" if watched else f"{line}\n")
        stream.flush()
    except (OSError, ValueError):  # a terminal that went away or cannot show the name
        return


def _is_watched(stream: TextIO) -> bool:
    return not stream.closed and (
        stream.isatty() or type(stream).__module__.partition(".")[0] == "ipykernel"
    )


def _is_ignored() -> bool:
    """Whether the first filter that is about notices in general ignores them."""
    for action, message, category, module, lineno in warnings.filters:
        if issubclass(EagerNotice, category) and message is module is None and not lineno:
            return action == "ignore"
    return False
