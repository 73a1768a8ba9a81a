"""What tiles Triton's kernels get, by their texts: each choice was measured on an H200."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jitmagic.codegen.plan import KernelSource

from .for_gpu import compiled

BF16 = torch.bfloat16


def source_of(program: Callable[..., object], *inputs: Tensor) -> KernelSource:
    return compiled(program, *inputs)[1]


def images(channels: int, dtype: torch.dtype = BF16) -> Tensor:
    """Return images whose memory is never touched."""
    shape = 64, channels, 56, 56
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("channels", "dtype", "points"),
    [(256, BF16, 2048), (64, BF16, 2048), (192, BF16, 1024), (256, torch.float32, 2048),
     (1024, torch.float32, 1024)],
)  # fmt: skip
def test_threads_load_the_values_of_their_columns_once(channels, dtype, points):
    source = source_of(lambda x, w: x * w.view(-1, 1, 1), images(channels, dtype),
                       torch.empty(channels, dtype=dtype))  # fmt: skip
    (grid,) = source.grids.values()
    assert grid.grid[0] == 64 * 56 * 56 * channels // points
    assert grid.num_warps == 4


def test_a_small_result_gets_a_program_for_each_core():
    source = source_of(lambda x, w: x * w, torch.empty(64, 256), torch.empty(256))
    (grid,) = source.grids.values()
    assert grid.grid[0] == 128


def products_summed() -> Callable[..., Tensor]:
    def sums(x: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            x = x * other
        return x.float().sum((0, 2, 3))

    return sums


@pytest.mark.parametrize(("tensors", "stages"), [(1, 0), (2, 2), (3, 0)])
def test_steps_in_flight_of_sums_over_columns(tensors, stages):
    source = source_of(products_summed(), *(images(256) for _ in range(tensors)))
    assert ("num_stages" in source.text) == bool(stages)
    assert f"num_stages={stages}" in source.text or not stages


def test_steps_in_flight_of_a_variance_over_columns():
    source = source_of(lambda x: F.batch_norm(x, None, None, training=True), images(256))
    assert "num_stages=3" in source.text


def test_rows_load_their_weights_as_their_elements():
    """Else Triton brings the rows to the layout of the one row of weights."""
    x, w = torch.empty(4096, 192, dtype=BF16), torch.empty(192, dtype=BF16)
    text = source_of(lambda x, w: F.layer_norm(x, (192,), w), x, w).text
    assert "tl.load(x1 + tl.broadcast_to(j0, [8, 256]), mask=j0_in" in text
    whole = source_of(lambda x, w: F.layer_norm(x, (4096,), w), x.view(-1, 4096), torch.empty(4096))
    assert "broadcast_to" not in whole.text
