"""torch.istft: what audio models leave the spectrum by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from tests.covering import covered

from ..counts import counts_of

HANN, SHORT = torch.hann_window(16), torch.hamming_window(12)
HOW: dict[str, dict[str, Any]] = {
    "plain": {"window": HANN},
    "no window": {},
    "a window as wide as it needs": {"window": SHORT, "win_length": 12, "hop_length": 3},
    "normalized": {"window": HANN, "normalized": True},
    "a length": {"window": HANN, "length": 100},
    "not centered": {"center": False},
    "both sides": {"window": HANN, "onesided": False},
}


@covered(how=HOW, shape=[(2, 128), (128,)], backend=["eager", "native"])
def test_as_eager(how: str, shape: tuple[int, ...], backend: str) -> None:
    options = dict(HOW[how])
    forward = {name: value for name, value in options.items() if name != "length"}

    def filtered(x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 16, return_complex=True, **forward)
        return torch.istft(spectrum * torch.sigmoid(spectrum.abs()), 16, **options)

    run = jitmagic.jit(filtered, backend=backend)
    for seed in range(2):
        torch.manual_seed(seed)
        x, y = (torch.randn(shape, generator=torch.manual_seed(seed)) for _ in "xy")
        x.requires_grad_()
        y.requires_grad_()
        ours, wanted = run(x), filtered(y)
        if backend == "eager":
            assert torch.equal(ours, wanted)
        torch.testing.assert_close(ours, wanted)
        ours.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert counts_of(run).breaks == 0


def test_a_window_that_leaves_gaps_raises_as_eager() -> None:
    def back(x: Tensor, window: Tensor) -> Tensor:
        return torch.istft(x, 16, 8, window=window, center=False)

    run, x = jitmagic.jit(back), torch.randn(9, 5, dtype=torch.complex64)
    torch.testing.assert_close(run(x, torch.ones(16)), back(x, torch.ones(16)))
    for call in (back, run):
        with pytest.raises(RuntimeError, match="window overlap add min"):
            call(x, torch.zeros(16))
