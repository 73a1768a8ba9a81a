"""Checks that a trace returns and changes what Python returns and changes, for one program."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.options import Options
from jitmagic.trace import result as r
from jitmagic.trace.machine import trace

from .replaying import Replay


def plain(value: Any) -> Any:
    """Return a comparable form: objects by class and attributes, all else by type and value."""
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, type) or callable(value):
        return value.__qualname__ if hasattr(value, "__qualname__") else type(value)
    if hasattr(value, "__dict__") and not isinstance(value, enum.Enum):
        return type(value), plain(vars(value))
    return type(value), value


def agree(fn: Callable[..., Any], make: Callable[[], tuple]) -> None:
    """Raise AssertionError where the trace and Python differ."""
    wanted_args, args = make(), make()
    wanted = fn(*wanted_args)
    for default in fn.__defaults__ or ():
        default.clear()  # what the first run left in a mutable default
    snapshot = FrameSnapshot.of_call(fn, args)
    made = trace(snapshot, Options())
    assert isinstance(made.exit, r.Return), f"{made.exit.reason.message} at {made.exit.where}"
    assert plain(args) == plain(make()), "tracing changed an argument"
    got = Replay(made, snapshot).run()
    assert plain(got) == plain(wanted), f"{got!r} instead of {wanted!r}"
    assert plain(args) == plain(wanted_args), f"{args!r} instead of {wanted_args!r}"
