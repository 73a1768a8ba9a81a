"""Judges the results of generated kernels by eager's, and the errors of both by float64."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, equal, isfinite
from torch.testing import assert_close


def steps(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions longer than 1."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in sizes if size != 1 and tensor.numel())


def compare(
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    where: str = "",
    strides: Callable[[Tensor], tuple[int, ...]] = Tensor.stride,
) -> None:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    assert (got.dtype, got.shape) == (eager.dtype, eager.shape), where
    assert strides(got) == strides(eager), where
    if not eager.dtype.is_floating_point:
        assert equal(got, eager), where
        return
    if eager.dtype.itemsize == 1:  # torch compares no floats of eight bits
        got, eager = got.float(), eager.float()
    finite = isfinite(eager)
    special = [t.masked_fill(finite, 0) for t in (got, eager)]
    assert_close(*special, rtol=0, atol=0, equal_nan=True)
    a, b, c = (t[finite].double() for t in (got, eager, exact))
    if a.numel():
        error, of_eager = (a - c).abs().max(), (b - c).abs().max()
        allowed = 2 * of_eager + 1e-6 * c.abs().max()
        assert error <= allowed, f"{where}: {error} > {allowed}, eager {of_eager}"
