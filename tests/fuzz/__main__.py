"""python -m tests.fuzz --seed N --count M [--tier T]: run programs, print the smallest that fail.

A worker process runs the seeds, so that a crash or a hang of compiled code is one more finding; the
parent starts it anew behind the seed that killed it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import subprocess
import sys
import time

LONGEST = 120  # seconds that one program may take: else it hangs


def main() -> None:
    """Either end of the pipe."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tier", default="cpp")
    parser.add_argument("--show", action="store_true", help="print every program")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options)
    else:
        _supervise(options)


def _supervise(options: argparse.Namespace) -> None:
    seed, last, failures = options.seed, options.seed + options.count, 0
    started = time.monotonic()
    while seed < last:
        command = [sys.executable, "-m", "tests.fuzz", "--worker", "--tier", options.tier]
        command += ["--seed", str(seed), "--count", str(last - seed)]
        command += ["--show"] if options.show else []
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        current = seed
        for line in worker.stdout:
            if line.startswith("@seed "):
                current = int(line.split()[1])
                continue
            failures += line.startswith("=== ")
            print(line, end="", flush=True)
        code = worker.wait()
        if code == 0:
            break
        failures += 1
        print(f"=== seed {current}: the process died with {code}", flush=True)
        _show(current)
        seed = current + 1
    print(f"{options.count} programs, {failures} failures, {time.monotonic() - started:.0f} s")
    sys.exit(1 if failures else 0)


def _show(seed: int) -> None:
    from .generate import generate

    print(_text(generate(seed)), flush=True)


def _text(program: object) -> str:
    from .program import HEAD

    return program.source().removeprefix(HEAD)  # type: ignore[attr-defined]


def _work(options: argparse.Namespace) -> None:
    import torch

    from .check import find
    from .generate import generate

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.enable()
    torch.set_num_threads(int(os.environ.get("FUZZ_THREADS", "2")))
    for seed in range(options.seed, options.seed + options.count):
        print(f"@seed {seed}", flush=True)
        program = generate(seed)
        if options.show:
            print(_text(program), flush=True)
        found = find(program, options.tier, lambda: signal.alarm(LONGEST))
        if found is not None:
            smallest, unlike, stage = found
            if unlike.kind == "fallback":
                print(f"~ seed {seed}: {' '.join(unlike.text.split())}", flush=True)
                continue
            print(
                f"=== seed {seed}: {unlike.kind} ({stage})\n{unlike.text}\n{_text(smallest)}\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
