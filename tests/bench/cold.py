"""First-call latency, each figure from a process of its own.

Run as a script with a contestant's name it prints JSON: seconds of the first call of a small
function after `import torch`, and of one further small function. `measure` runs it for every
contestant, ours with an empty and with a warm kernel cache.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
import tempfile
import time

from tests.processes import ROOT, child_environment


def _child(contestant: str) -> None:
    import torch

    x, y = torch.randn(8, 64), torch.randn(8, 64)
    started = time.perf_counter()
    if contestant == "torch.compile":
        tag = torch.compile
    else:
        import jitmagic

        tag = jitmagic.jit

    def first(x, y):
        return torch.relu(x * y + 2).sum(-1)

    def second(x, y):
        return torch.sigmoid(x - y).amax(-1) * 3

    tag(first)(x, y)
    between = time.perf_counter()
    tag(second)(x, y)
    done = time.perf_counter()
    print(json.dumps({"first": between - started, "further": done - between}))


def _run(contestant: str, cache: str) -> dict[str, float]:
    environment = child_environment(
        JITMAGIC_CACHE_DIR=cache,
        TORCHINDUCTOR_CACHE_DIR=cache,
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="0",
    )
    out = subprocess.run(
        [sys.executable, "-m", "tests.bench.cold", contestant],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(out.stdout.strip().splitlines()[-1])


def measure(rivals: bool = True) -> dict[str, dict[str, float]]:
    """{contestant and cache state: {"first": s, "further": s}}"""
    # As pip does. Where PYTHONDONTWRITEBYTECODE is set, an edited checkout would be parsed again by
    # each process: 0.9 s of CPU time, three times what a first compile takes without it.
    compileall.compile_dir(ROOT / "jitmagic", quiet=1)
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        found = {
            "jitmagic, cold": _run("jitmagic", cache),
            "jitmagic, warm": _run("jitmagic", cache),
        }
        if rivals:
            found["torch.compile, cold"] = _run("torch.compile", other)
            found["torch.compile, warm"] = _run("torch.compile", other)
    return found


if __name__ == "__main__":
    _child(sys.argv[1])
