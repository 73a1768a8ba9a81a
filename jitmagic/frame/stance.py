"""Reads the stance of `torch.compiler.set_stance` for calls that no variant fits.

Input: the module in which torch keeps the stance, if the program has loaded it; jitmagic does not
import it. Output: whether such a call is compiled, runs as eager or raises. Existing variants stay
in use, as the stances about recompiles require; under `force_eager` the native dispatcher runs the
original (extensions/frame/observers_tensor.cpp).
"""

from __future__ import annotations

import sys
from enum import Enum

__all__ = ["OnMiss", "on_miss"]

_HOLDER = "torch._dynamo.eval_frame"


class OnMiss(Enum):
    """The action on a miss."""

    COMPILE = "compile"
    EAGER = "eager"
    EAGER_FIRST = "eager first"
    RAISE = "raise"


_READ = {
    "force_eager": OnMiss.EAGER,
    "eager_on_recompile": OnMiss.EAGER,
    "fail_on_recompile": OnMiss.RAISE,
    "eager_then_compile": OnMiss.EAGER_FIRST,
    "aot_eager_then_compile": OnMiss.EAGER_FIRST,
}


def on_miss() -> OnMiss:
    """Return the action that the current stance asks for; the stance's backend is ignored."""
    stance = getattr(sys.modules.get(_HOLDER), "_stance", None)
    return _READ.get(str(getattr(stance, "stance", "default")), OnMiss.COMPILE)
