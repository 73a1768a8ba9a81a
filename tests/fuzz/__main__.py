"""python -m tests.fuzz --seed N --count M [--tier T] [--jobs J]: run programs, print the smallest
that fail.

Worker processes run the seeds, so that a crash or a hang of compiled code is one more finding. The
tier is generated C++ unless another is named.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import time
from typing import Any

from tests.workers import Pool, serve

from .tiers import GENERATED

GPU_LOST = 75  # an exit status
LONGEST = 120  # seconds that one program may take: else it hangs


def main() -> None:
    """Either end of the pipe."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tier", default=GENERATED)
    parser.add_argument("--jobs", type=int, default=1, help="processes; seeds are dealt out")
    parser.add_argument("--sizes", action="store_true", help="sizes change, programs read them")
    parser.add_argument("--show", action="store_true", help="print every program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options)
    else:
        _supervise(options)


def _supervise(options: argparse.Namespace) -> None:
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz", "--worker", "--tier", options.tier]
    command += [flag for flag in ("--show", "--sizes") if getattr(options, flag[2:])]
    pool = Pool(command, options.jobs)
    for seed in range(options.seed, options.seed + options.count):
        pool.add(str(seed))
    failed: list[str] = []
    for outcome in pool.outcomes():
        failed += [outcome.task for line in outcome.lines if line.startswith("=== ")]
        for line in outcome.lines:
            print(line, flush=True)
        if outcome.died == GPU_LOST:
            print(f"~ seed {outcome.task}: an assertion of eager's own kernel fails", flush=True)
        elif outcome.died is not None:
            failed.append(outcome.task)
            print(f"=== seed {outcome.task}: the process died with {outcome.died}", flush=True)
            print(_text(_program(int(outcome.task), options)), flush=True)
    seeds = f" (seeds {', '.join(failed)})" if failed else ""
    seconds = time.monotonic() - started
    print(f"{options.count} programs, {len(failed)} failures{seeds}, {seconds:.0f} s")
    sys.exit(1 if failed else 0)


def _program(seed: int, options: argparse.Namespace) -> Any:
    from .generate import generate
    from .sizes import with_sizes

    program = generate(seed)
    return with_sizes(program, seed) if options.sizes else program


def _text(program: object) -> str:
    from .program import HEAD

    return program.source().removeprefix(HEAD)  # type: ignore[attr-defined]


def _work(options: argparse.Namespace) -> None:
    import torch

    from .check import find
    from .oracle import GpuLost

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.enable()
    torch.set_num_threads(int(os.environ.get("FUZZ_THREADS", "2")))
    # By its layout cuDNN takes a kernel of TF32 or one of float32: neither is to blame.
    torch.backends.cudnn.allow_tf32 = False

    def handle(seed: str) -> None:
        program = _program(int(seed), options)
        if options.show:
            print(_text(program), flush=True)
        try:
            found = find(program, options.tier, lambda: signal.alarm(LONGEST))
        except GpuLost:
            os._exit(GPU_LOST)  # the next task gets a process of its own
        if found is None:
            return
        smallest, unlike, stage = found
        if unlike.kind == "fallback":
            print(f"~ seed {seed}: {' '.join(unlike.text.split())}", flush=True)
            return
        text = f"=== seed {seed}: {unlike.kind} ({stage})\n{unlike.text}\n{_text(smallest)}\n"
        print(text, flush=True)

    serve(handle)


if __name__ == "__main__":
    main()
