"""The ways in which a fuzz program can be compiled: one wrapper per tier.

    cpp blocks numba aten unfused fast   options of jit alone
    sizes                         sizes are symbols from the first call on (dynamic=True)
    frames                        graphs run as torch functions: the tracer by itself
    sized frames                  both of these
    joint                         the partition's ATen graphs, replayed
    loops scheduled               the reference interpreter on the lowered, or the scheduled program
    triton                        generated Triton, run by its interpreter
    cuda                          options of jit alone, inputs and parameters on a GPU

The stages are asked in this order to bisect a wrong answer: the first tier that is wrong names the
stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import jitmagic
from jitmagic.codegen import render
from jitmagic.compile import executable
from jitmagic.devices import Target
from jitmagic.loops import interp
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule

__all__ = ["GENERATED", "TIERS", "compiled_by"]

GENERATED = "cpp"  # what a user gets, hence what is fuzzed unless another tier is named
OPTIONS: dict[str, dict[str, Any]] = {
    "cpp": {},
    "blocks": {"cpu_tier": "blocks"},
    "numba": {"cpu_tier": "numba"},
    "aten": {"cpu_tier": "aten"},
    "unfused": {"fuse": False},
    "frames": {"backend": "eager"},
    "sizes": {"dynamic": True},
    "sized frames": {"dynamic": True, "backend": "eager"},
    "sized aten": {"dynamic": True, "cpu_tier": "aten"},
    "joint": {"backend": "aot_eager"},
    "cuda": {},
}
STAGES = ("loops", "scheduled", "triton")
TIERS = (*OPTIONS, *STAGES)


@contextmanager
def compiled_by(tier: str) -> Iterator[Callable[[Any], Any]]:
    """The wrapper that compiles with the tier, while the context lasts."""
    if tier in OPTIONS:
        yield lambda target: jitmagic.jit(target, options=OPTIONS[tier])
        return
    kept = executable.build_native
    executable.build_native = _builder(tier)
    try:
        yield jitmagic.jit
    finally:
        executable.build_native = kept


def _builder(tier: str) -> Callable[..., Any]:
    """Stands in for build_native: the program is interpreted, not rendered and loaded."""

    def build(gm: Any, name: str, target: Target, options: Options, *rest: Any) -> Any:
        program = lower(gm, name)
        if tier == "triton":
            return _triton(program, target, options)
        if tier == "scheduled":
            program = schedule(program, target, options).program

        def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
            with torch._C._AutoDispatchBelowADInplaceOrView():
                return tuple(interp.run(program, inputs))

        return run

    return build


def _triton(program: Any, target: Target, options: Options) -> Callable[..., Any]:
    from tests.codegen.interpreted import run_interpreted

    gpu = replace(target, device="cuda", tier="triton", isa="sm_90", lanes=1, multiprocessors=132)
    plan, source = render(schedule(program, gpu, options), gpu)

    def run(*inputs: torch.Tensor) -> Sequence[Any]:
        outputs, left = run_interpreted(source, plan, [t.detach() for t in inputs])
        with torch.no_grad():
            for t, after in zip(inputs, left, strict=True):
                if not torch.equal(t.detach(), after):
                    t.detach().copy_(after)
        return tuple(outputs)

    return run
