"""What a GPU's kernels draw into memory that is not row-major: number for number eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic

pytestmark = pytest.mark.device

LAYOUTS = {
    "row-major": lambda: torch.randn(6, 5, 4, 3, device="cuda"),
    "transposed": lambda: torch.randn(3, 4, 5, 6, device="cuda").permute(3, 2, 1, 0),
    "turned": lambda: torch.randn(4, 6, 3, 5, device="cuda").permute(1, 3, 0, 2),
    "channels_last": lambda: torch.randn(6, 5, 4, 3, device="cuda").to(
        memory_format=torch.channels_last
    ),
    "with gaps": lambda: torch.randn(12, 5, 4, 9, device="cuda")[::2, :, :, ::3],
}
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout in place": lambda x: F.dropout(x, 0.5, True, inplace=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature dropout": lambda x: F.dropout2d(x, 0.5, True),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "like": lambda x: torch.rand_like(x) + x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_numbers_are_eagers(draw: str, layout: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return DRAWS[draw](y) + y, DRAWS[draw](x)

    found = []
    for call in (run, jitmagic.jit(run)):
        torch.manual_seed(5)
        x = LAYOUTS[layout]()
        torch.cuda.manual_seed(7)
        found.append((*call(x), x, torch.rand(3, device="cuda")))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_a_dtype_without_a_kernel_raises_after_what_came_before(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> None:
        x.masked_fill_(x > 0, -2.5)
        F.dropout(y, 0.5, True, inplace=True)

    found = []
    for call in (run, jitmagic.jit(run)):
        x, y = torch.ones(3, device="cuda"), torch.ones(3, dtype=dtype, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            call(x, y)
        found.append((x, y, str(caught.value).partition("\n")[0]))
    assert found[0][2] == found[1][2]
    assert torch.equal(found[0][0], found[1][0])
