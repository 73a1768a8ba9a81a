"""What `torch.compiler.set_stance` asks of calls that no variant fits.

Comes in: the module that torch keeps the stance in, if the program has loaded it: nothing of ours
does. Goes out: whether such a call is compiled, runs as eager or raises. Variants that there are go
on being used, which is what the stances of recompiles say; `force_eager` says otherwise, and asking
for it would cost every call, so that is told once.
"""

from __future__ import annotations

import sys
from enum import Enum

from ..errors import warn

__all__ = ["OnMiss", "on_miss", "tell_of_stance"]

_HOLDER = "torch._dynamo.eval_frame"


class OnMiss(Enum):
    """What a call comes to that no variant fits."""

    COMPILE = "compile"
    EAGER = "eager"
    RAISE = "raise"


_READ = {
    "force_eager": OnMiss.EAGER,
    "eager_on_recompile": OnMiss.EAGER,
    "fail_on_recompile": OnMiss.RAISE,
}


def _stance() -> str:
    stance = getattr(sys.modules.get(_HOLDER), "_stance", None)
    return str(getattr(stance, "stance", "default"))


def on_miss() -> OnMiss:
    """As the stance says; what it says of first calls and backends is torch.compile's alone."""
    return _READ.get(_stance(), OnMiss.COMPILE)


def tell_of_stance(told: set[str], label: str, has_variants: bool) -> None:
    """Once per tagged function: what of the stance is not done."""
    stance = _stance()
    if stance == "default" or f"stance {stance}" in told:
        return
    told.add(f"stance {stance}")
    if stance not in _READ:
        warn(
            f"torch.compiler.set_stance({stance!r}) is not for jitmagic: {label} is compiled at "
            "its first call\n  hint: backend='aot_eager', or dynamic=True for sizes that change"
        )
    elif stance == "force_eager" and has_variants:
        warn(
            f"torch.compiler.set_stance('force_eager'): calls of {label} that fit what is compiled "
            "run compiled all the same\n  hint: JITMAGIC_DISABLE=1 runs all as eager"
        )
