"""Reads what `torch.compiler.set_stance` asks of calls that no variant fits.

Comes in: the module that torch keeps the stance in, if the program has loaded it: jitmagic does not
import it. Goes out: whether such a call is compiled, runs as eager or raises. Variants that there
are go on being used, which is what the stances of recompiles say; under `force_eager` the native
dispatcher runs the original (extensions/frame/observers_tensor.cpp).
"""

from __future__ import annotations

import sys
from enum import Enum

__all__ = ["OnMiss", "on_miss"]

_HOLDER = "torch._dynamo.eval_frame"


class OnMiss(Enum):
    """The fate of a call that no variant fits."""

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
    """The stance in force; its backend is torch.compile's alone."""
    stance = getattr(sys.modules.get(_HOLDER), "_stance", None)
    return _READ.get(str(getattr(stance, "stance", "default")), OnMiss.COMPILE)
