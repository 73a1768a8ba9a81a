"""The cost of launching user-written Triton kernels. Run: python -m tests.bench.user_kernels

One graph with 1 and with 10 launches on 1024 elements, so that the host is what is measured; a
tuned kernel; sizes that change from call to call. `--record` needs no GPU and shows the host's part
alone: Triton compiles for sm_90, and its driver and libcuda do nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

import jitmagic

from .timing import interleave


@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)


def _measured(launch: Callable[[], object], quantiles: object) -> list[float]:
    launch()
    return [1.0, 1.0, 1.0]


add_one_tuned = triton.autotune(
    [triton.Config({"BLOCK": block}) for block in (256, 512)], ["n"], do_bench=_measured
)(add_one)


def one(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_one[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


def ten(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    for _ in range(10):
        add_one[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        x = out
    return out


def tuned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_one_tuned[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out


def _over(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> Callable[[], object]:
    following = cycle(inputs).__next__
    for tensor in inputs * 4:
        fn(tensor)
    return lambda: fn(following())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.user_kernels")
    parser.add_argument("--record", action="store_true", help="no GPU: the host's part alone")
    record = parser.parse_args().record
    if record:
        _without_gpu()
    device = torch.device("cpu" if record else "cuda")
    vector = [torch.zeros(1024, device=device)]
    several = [torch.zeros(1024 + 16 * n, device=device) for n in range(8)]
    print(f"{'':24}{'eager':>12}{'jitmagic':>12}{'graphs':>12}{'compile':>12}{'c. graphs':>12}")
    for fn, inputs in ((one, vector), (ten, vector), (tuned, vector), (one, several)):
        torch._dynamo.reset()
        jitmagic.reset()
        contestants = {"eager": _over(fn, inputs), "jitmagic": _over(jitmagic.jit(fn), inputs)}
        if not record:
            graphs = "reduce-overhead"
            contestants["graphs"] = _over(jitmagic.jit(fn, mode=graphs), inputs)
            contestants["compile"] = _over(torch.compile(fn), inputs)
            contestants["c. graphs"] = _over(torch.compile(fn, mode=graphs), inputs)
        found = interleave(contestants)
        title = f"{fn.__name__}, {len(inputs)} size{'s' * (len(inputs) > 1)}"
        print(f"{title:24}" + "".join(f"{one.seconds * 1e6:9.2f} us" for one in found.values()))


def _without_gpu() -> None:
    """Replace Triton's driver and libcuda by ones that do nothing."""
    from tests.runtime.recorded_launches import Recorder  # noqa: PLC0415 - replaces libcuda

    Recorder(Path(tempfile.mkdtemp()), keeps=False)


if __name__ == "__main__":
    main()
