"""Runs families of ordinary operations in a process of its own and prints which of them import
sympy or torch._dynamo.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic

T = torch.ones
INDEX = torch.zeros(4, 4, dtype=torch.int64)
ROWS = torch.tensor([0, 1, 2, 3])
LABELS = torch.zeros(4, dtype=torch.int64)
aten = torch.ops.aten


def image(rank: int) -> Callable[[Tensor], Tensor]:
    """The input as a batch of one image with that many dimensions."""
    return lambda x: x.sum() + T(1, 1, *(4,) * rank) * x.view(-1)[0]


ONE, TWO, THREE = image(1), image(2), image(3)
# Of a 4 x 4 matrix that requires grad.
FAMILIES: dict[str, Callable[[Tensor], object]] = {
    "mse, broadcast": lambda x: F.mse_loss(x, T(4)),
    "l1, broadcast": lambda x: F.l1_loss(x, T(4)),
    "huber": lambda x: F.huber_loss(x, T(4, 4)),
    "smooth_l1, broadcast": lambda x: F.smooth_l1_loss(x, T(4)),
    "kl_div": lambda x: F.kl_div(x, T(4, 4), reduction="batchmean"),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), T(4, 4)),
    "poisson_nll": lambda x: F.poisson_nll_loss(x, T(4, 4)),
    "triplet": lambda x: F.triplet_margin_loss(x, x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "multi_margin": lambda x: F.multi_margin_loss(x, LABELS),
    "index_add": lambda x: x.index_add(0, ROWS, x),
    "index_copy": lambda x: x.index_copy(0, ROWS, x),
    "index_fill": lambda x: x.index_fill(0, ROWS, 1.0),
    "index_put": lambda x: x.index_put((ROWS,), x),
    "cat of columns": lambda x: torch.cat([x.t(), x.t()]),
    "scatter": lambda x: x.scatter(0, INDEX, x),
    "scatter_add": lambda x: x.scatter_add(0, INDEX, x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, INDEX, x, "amax"),
    "take": lambda x: x.take(INDEX),
    "take_along_dim": lambda x: x.take_along_dim(INDEX, 0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x),
    "max_pool3d": lambda x: F.max_pool3d(THREE(x), 2),
    "avg_pool3d": lambda x: F.avg_pool3d(THREE(x), 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(THREE(x), 2),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(THREE(x), 2),
    "reflect 1d": lambda x: F.pad(ONE(x), (1, 1), mode="reflect"),
    "reflect 2d": lambda x: F.pad(TWO(x), (1,) * 4, mode="reflect"),
    "reflect 3d": lambda x: F.pad(THREE(x), (1,) * 6, mode="reflect"),
    "replicate 2d": lambda x: F.pad(TWO(x), (1,) * 4, mode="replicate"),
    "replicate 3d": lambda x: F.pad(THREE(x), (1,) * 6, mode="replicate"),
    "circular": lambda x: F.pad(TWO(x), (1,) * 4, mode="circular"),
    "bicubic": lambda x: F.interpolate(TWO(x), scale_factor=2, mode="bicubic"),
    "trilinear": lambda x: F.interpolate(THREE(x), scale_factor=2, mode="trilinear"),
    "grid_sample": lambda x: F.grid_sample(TWO(x), T(1, 2, 2, 2), align_corners=False),
    "unfold": lambda x: F.fold(F.unfold(TWO(x), 2), (4, 4), 2),
    "conv3d": lambda x: F.conv3d(THREE(x), T(1, 1, 2, 2, 2)),
    "cdist": lambda x: torch.cdist(x, x + 1),
    "pdist": lambda x: F.pdist(x),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "fft": lambda x: torch.fft.fft2(x).abs(),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "complex": lambda x: torch.complex(x, x).abs(),
    "complex product": lambda x: (torch.view_as_complex(x.view(8, 2)) * 2j).real,
    "polar": lambda x: torch.polar(x, x).real,
    "foreach": lambda x: torch._foreach_mul(torch._foreach_add([x], [x]), 2.0)[0],
    "foreach_addcdiv": lambda x: torch._foreach_addcdiv([x], [x], [x], 2.0)[0],
    "lerp": lambda x: x.lerp(x * 2, 0.5),
    "addmv": lambda x: torch.addmv(x[0], x, x[1]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "cross": lambda x: torch.cross(x[:, :3], x[:, 1:], dim=1),
    "trace": lambda x: x.trace(),
    "kthvalue": lambda x: x.kthvalue(2).values,
    "aminmax": lambda x: torch.aminmax(x, dim=0).max,
    "quantile": lambda x: x.quantile(0.5),
    "inverse": lambda x: torch.linalg.inv(x + torch.eye(4) * 9),
    "solve": lambda x: torch.linalg.solve(x + torch.eye(4) * 9, x),
    "determinant": lambda x: torch.linalg.det(x + torch.eye(4) * 9),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4)),
    "nan_to_num": lambda x: x.nan_to_num(),
    "searchsorted": lambda x: x + torch.searchsorted(x.detach(), x.detach()),
    "bucketize": lambda x: x + torch.bucketize(x.detach(), torch.arange(3.0)),
    "isin": lambda x: x * torch.isin(x.detach(), x.detach()),
    "isclose": lambda x: x * torch.isclose(x, x),
    "special": lambda x: torch.special.i1(x) + torch.special.entr(x),
    "atan2": lambda x: x.atan2(x + 1) + x.hypot(x) + x.copysign(x),
    "vmap": lambda x: torch.func.vmap(torch.sin)(x),
}


def main() -> None:
    """Forward and backward of each, in their order."""
    for name, run in FAMILIES.items():
        x = (torch.arange(16.0).view(4, 4) / 16).requires_grad_()
        made = jitmagic.jit(run, backend="aot_eager")(x)
        try:
            made.real.sum().backward()
        except RuntimeError as error:
            if "is not implemented" not in str(error):  # torch 2.11: of aminmax
                raise
        for module in ("sympy", "torch._dynamo"):
            if module in sys.modules:
                print(f"{name}: {module}")
                return


if __name__ == "__main__":
    main()
