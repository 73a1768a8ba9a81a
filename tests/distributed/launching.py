"""Starts processes that are the ranks of one program, and collects what they print."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from ..processes import ROOT, child_environment

__all__ = ["Ended", "answer", "launch", "leave"]

_ANSWER = "@answer "  # begins the line in which a rank answers; libraries print too
QUIET = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit status, its answer (None if it gave none), its standard error."""

    status: int
    answer: Any
    error: str


def answer(value: Any) -> None:
    """Print a rank's answer."""
    print(f"\n{_ANSWER}{json.dumps(value)}", flush=True)


def leave() -> NoReturn:
    """End a rank. One of 16 processes aborts at the end of Python where gloo and a model in
    DistributedDataParallel are still there (torch 2.13, without jitmagic).
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def launch(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    size: int = 2,
    seconds: float = 100.0,
    environments: Sequence[Mapping[str, str]] = (),
    during: Callable[[list[subprocess.Popen[str]]], None] = lambda processes: None,
) -> list[Ended]:
    """Run `python -m module RANK SIZE FOLDER *arguments` for each rank, which all end in `seconds`.

    `environments`: further variables of each rank; `during` is called while they run.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = []
    for rank in range(size):
        command = [sys.executable, "-m", module, str(rank), str(size), str(folder), *arguments]
        own = environments[rank] if environments else {}
        env = child_environment(**{**QUIET, **own})
        processes.append(subprocess.Popen(command, env=env, cwd=ROOT, **pipes))
    end = time.monotonic() + seconds
    try:
        during(processes)
        outputs = [one.communicate(timeout=max(1.0, end - time.monotonic())) for one in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    pairs = zip(processes, outputs, strict=True)
    return [Ended(one.returncode, _answer_in(out), error) for one, (out, error) in pairs]


def _answer_in(output: str) -> Any:
    lines = [line for line in output.splitlines() if line.startswith(_ANSWER)]
    return json.loads(lines[-1].removeprefix(_ANSWER)) if lines else None
