"""Three ways to tell jitmagic about calls that it cannot follow, each of which is a graph break.

    python demos/extend_calls.py

A checksum written in C is replaced by Python code, a function that logs becomes a node of the
graph, and a setting from a file becomes a constant. The compiled function is one graph.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path

import torch
from torch import Tensor

import jitmagic
from jitmagic import extend

SETTINGS = Path(tempfile.mkdtemp()) / "settings.json"


@extend.assume_constant_result
def setting(name: str) -> float:
    """Read a setting. It is read at each compile, not at each call."""
    return float(json.loads(SETTINGS.read_text())[name])


@extend.allow_in_graph
def normalized(x: Tensor, *, eps: float) -> Tensor:
    """Normalise rows; the file is opened when the graph is recorded, and not at a call."""
    with SETTINGS.open("a"):
        return x / (x.norm(dim=-1, keepdim=True) + eps)


@extend.substitute_in_graph(zlib.adler32)
def adler32(data: bytes, value: int = 1, /) -> int:
    """Compute what zlib.adler32 does, in Python that the tracer follows."""
    low, high = value & 0xFFFF, value >> 16
    for byte in data:
        low = (low + byte) % 65521
        high = (high + low) % 65521
    return high << 16 | low


def program(x: Tensor) -> Tensor:
    rotated = x.roll(zlib.adler32(b"jitmagic") % 8, -1)
    return normalized(rotated, eps=setting("eps")).square().sum(-1)


def main() -> None:
    SETTINGS.write_text('{"eps": 1e-3}')
    x = torch.randn(4, 8)
    fast = jitmagic.jit(program)
    print(f"as eager: {torch.allclose(fast(x), program(x))}")
    print(f"graphs: {len(jitmagic.graphs(program)(x))}")


if __name__ == "__main__":
    main()
