"""How results of generated kernels are judged: by eager; float64 tells whose the error is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, equal, isfinite
from torch.testing import assert_close


def steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides that matter."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride for size, stride in sizes if size != 1 and tensor.numel())


def compare(
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    where: str = "",
    strides: Callable[[Tensor], tuple[int, ...]] = Tensor.stride,
) -> None:
    """Errors are at most twice eager's plus a few roundings; all but finite floats is the same."""
    assert (got.dtype, got.shape) == (eager.dtype, eager.shape), where
    assert strides(got) == strides(eager), where
    if not eager.dtype.is_floating_point:
        assert equal(got, eager), where
        return
    finite = isfinite(eager)
    special = [t.masked_fill(finite, 0) for t in (got, eager)]
    assert_close(*special, rtol=0, atol=0, equal_nan=True)
    a, b, c = (t[finite].double() for t in (got, eager, exact))
    if a.numel():
        error, of_eager = (a - c).abs().max(), (b - c).abs().max()
        allowed = 2 * of_eager + 1e-6 * c.abs().max()
        assert error <= allowed, f"{where}: {error} > {allowed}, eager {of_eager}"
