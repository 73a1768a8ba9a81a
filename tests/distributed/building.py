"""Runs as one of several ranks that need the same kernels, and prints which of them it compiles.

python -m tests.distributed.building RANK SIZE FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of

from .launching import answer, leave

_SCRIPT = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in *.cpp) sha256sum < "$argument" >> "{log}.$RANK_OF_TEST";; esac
done
exec "{compiler}" "$@"
"""


def counting_compiler(folder: Path, compiler: str) -> Path:
    """Write a compiler that notes the hash of each text that a rank compiles."""
    script = folder / "c++"
    script.write_text(_SCRIPT.format(log=folder / "texts", compiler=compiler))
    script.chmod(0o700)
    return script


def _compiled_texts(folder: Path, rank: int) -> list[str]:
    """Return the hashes of the texts that a rank has compiled since the last call."""
    log = folder / f"texts.{rank}"
    found = log.read_text().split("\n")[:-1] if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def _run(step: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Compile a step and its backward; return the number of its kernels."""
    options = {"persist": False, "keep": "compiled", "background": False, "cpu_tier": "cpp"}
    tagged = jitmagic.jit(step, options=options)
    loss = tagged(x)
    loss.backward()
    torch.testing.assert_close(loss, step(x))
    handle = handle_of(tagged)
    assert handle is not None
    return sum(record.kernels for record in handle.journal)


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def together(x: Tensor) -> Tensor:
        return model(x).softmax(-1).square().sum()

    def later(x: Tensor) -> Tensor:
        return model(x).exp().tanh().sum()

    kernels, texts = [_run(together, torch.randn(6, 8))], [_compiled_texts(folder, rank)]
    dist.barrier()
    for turn in range(size):  # rank 0 first
        if turn == rank:
            kernels.append(_run(later, torch.randn(6, 8)))
        dist.barrier()
    texts.append(_compiled_texts(folder, rank))
    answer({"kernels": kernels, "texts": texts})
    leave()


if __name__ == "__main__":
    main()
