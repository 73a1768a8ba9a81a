"""Interrupts at random points, and threads that call, compile, reset and change state at once.

    python -m tests.frame.stress --interrupts 500
    python -m tests.frame.stress --threads 8 --minutes 5

Every value is compared with eager's. Prints what was done, one line for each mistake, and ends with
1 if there was any. `--seed` repeats a run's choices (not the moments at which threads change).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

import jitmagic

Tensors = tuple[torch.Tensor, ...]
Program = Callable[..., torch.Tensor]
SHAPES = ((3,), (2, 4), (5, 3), (1, 2, 3))


def _pointwise(x: torch.Tensor, k: float) -> torch.Tensor:
    return (x.sin() * k + 1).relu()


def _reduction(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.softmax(x * k, -1).sum(-1)


def _with_a_break(x: torch.Tensor, k: float) -> torch.Tensor:
    y = x * 2
    jitmagic.graph_break()
    return _callee(y, k) - 1


def _callee(x: torch.Tensor, k: float) -> torch.Tensor:
    jitmagic.graph_break()
    return x.cos() + k


def _of_the_grad_mode(x: torch.Tensor, k: float) -> torch.Tensor:
    return x.exp() * (k if torch.is_grad_enabled() else -k)


def _writing(x: torch.Tensor, k: float) -> torch.Tensor:
    y = x.clone()
    y.mul_(k).add_(1)
    return y


PROGRAMS: tuple[Program, ...] = (
    _pointwise, _reduction, _with_a_break, _of_the_grad_mode, _writing,
)  # fmt: skip


@dataclass
class Findings:
    """Counts of the calls, and the wrong results."""

    calls: int = 0
    interrupted: int = 0
    mistakes: list[str] = field(default_factory=list)

    def call(self, program: Program, tagged: Program, draw: random.Random) -> None:
        """One call of both, with gradients half of the time."""
        x = torch.randn(draw.choice(SHAPES), requires_grad=draw.random() < 0.5)
        k = draw.choice((0.5, 2.0, 3.0))
        with torch.set_grad_enabled(draw.random() < 0.8):
            wanted = program(x, k)
            got = tagged(x, k)
        self.calls += 1
        self._compare(program, got, wanted)
        if wanted.requires_grad:
            gradients = [torch.autograd.grad(out.sum(), x)[0] for out in (got, wanted)]
            self._compare(program, *gradients)

    def _compare(self, program: Program, got: torch.Tensor, wanted: torch.Tensor) -> None:
        if got.requires_grad != wanted.requires_grad or not torch.allclose(got, wanted, atol=1e-5):
            self.mistakes.append(f"{program.__name__}: {got} instead of {wanted}")


# --------------------------------------------------------------------------------------- interrupts


@contextlib.contextmanager
def _interrupt_after(seconds: float) -> Iterator[None]:
    """KeyboardInterrupt in this thread, unless the block ends sooner; never after the block."""
    target, over, lock = threading.get_ident(), threading.Event(), threading.Lock()

    def interrupt() -> None:
        if not over.wait(seconds):
            with lock:
                if not over.is_set():
                    _raise_in(target, KeyboardInterrupt)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        with lock:
            _take_back(target)
        thread.join()


class _TakenBack(BaseException):
    """Replaces an interrupt that has not been raised yet."""


def _take_back(thread: int) -> None:
    """Replace a pending interrupt and raise the replacement here. Setting NULL in its place would
    leave CPython's flag set, and 3.11 then executes traced frames in an endless loop.
    """
    with contextlib.suppress(_TakenBack):
        _raise_in(thread, _TakenBack)
        while True:  # until the interpreter looks at the flag
            pass


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    raised = ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _state() -> tuple[object, ...]:
    """The state that an interrupted call must not change."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.is_autocast_enabled("cpu"),
        jitmagic._frame.suspended(),
        jitmagic._frame.active(),
    )


def interrupts(count: int, seed: int) -> Findings:
    """Interrupts `count` calls at random points of compiling and running; all must be right."""
    findings, draw = Findings(), random.Random(seed)
    tagged = {program: jitmagic.jit(program) for program in PROGRAMS}
    for program in PROGRAMS:
        findings.call(program, tagged[program], draw)
    before = _state()
    while findings.interrupted < count:
        program = draw.choice(PROGRAMS)
        if draw.random() < 0.6:  # most interrupts are to meet a compile
            jitmagic.reset()
        seconds = draw.choice((0.0002, 0.002, 0.02, 0.1)) * draw.random()
        try:
            with _interrupt_after(seconds):
                for _ in range(4):
                    findings.call(program, tagged[program], draw)
        except KeyboardInterrupt:
            findings.interrupted += 1
        if _state() != before:
            findings.mistakes.append(f"state after an interrupt: {_state()}, before: {before}")
            return findings
        findings.call(program, tagged[program], draw)
    return findings


# ------------------------------------------------------------------------------------------ threads


def threads(number: int, seconds: float, seed: int) -> Findings:
    """`number` threads share tagged functions, each with its own grad mode, for so long."""
    shared = {program: jitmagic.jit(program) for program in PROGRAMS}
    results, end = [Findings() for _ in range(number)], time.monotonic() + seconds
    running = [
        threading.Thread(target=_work, args=(shared, results[i], random.Random(seed + i), end))
        for i in range(number)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    mistakes = [mistake for each in results for mistake in each.mistakes]
    return Findings(sum(each.calls for each in results), 0, mistakes)


def _work(
    shared: dict[Program, Program], findings: Findings, draw: random.Random, end: float
) -> None:
    own = {program: jitmagic.jit(program) for program in PROGRAMS}
    while time.monotonic() < end:
        program = draw.choice(PROGRAMS)
        try:
            findings.call(program, draw.choice((shared, own))[program], draw)
            if draw.random() < 0.01:
                jitmagic.reset()
            elif draw.random() < 0.02:
                own[program] = jitmagic.jit(program)
        except Exception as error:  # whatever it is, eager had none
            findings.mistakes.append(f"{program.__name__}: {type(error).__name__}: {error}")


# -------------------------------------------------------------------------------------- the command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interrupts", type=int, default=0, metavar="N")
    parser.add_argument("--threads", type=int, default=0, metavar="N")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    warnings.simplefilter("ignore", jitmagic.errors.RecompileWarning)
    mistakes: list[str] = []
    if chosen.interrupts:
        done = interrupts(chosen.interrupts, chosen.seed)
        print(f"{done.interrupted} interrupts, {done.calls} calls, {len(done.mistakes)} mistakes")
        mistakes += done.mistakes
    if chosen.threads:
        done = threads(chosen.threads, 60 * chosen.minutes, chosen.seed)
        print(f"{chosen.threads} threads, {done.calls} calls, {len(done.mistakes)} mistakes")
        mistakes += done.mistakes
    for mistake in mistakes[:20]:
        print("  " + mistake)
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
