"""Products, convolutions, factorisations, Fourier transforms."""

from __future__ import annotations

from functools import partial

from .operation import define

__all__: list[str] = []

_define_unprobed = partial(define, can_be_probed=False)

define(
    "matmul mm bmm mv dot vdot inner addmm addmv addbmm baddbmm linear bilinear einsum tensordot "
    "chain_matmul",
    operands="one kind",
    is_product=True,
)
define("addr ger outer", operands="one kind")
# The kernel reads beyond the stand-ins of probes, of 8 by 8 elements (a crash on torch 2.13).
_define_unprobed("_weight_int8pack_mm")
define(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    operands="one kind",
    is_product=True,
    kernel_strides=True,
)
define("convolution", operands="one kind", kernel_strides=True)
define("convolution* _convolution* conv_transpose*", kernel_strides=True)

_define_unprobed("linalg_*", raises="data", kernel_strides=True)
_define_unprobed("_linalg_* jitmagic::numpy_*", raises="data")
define(
    "linalg_matmul linalg_multi_dot linalg_vecdot",
    raises="data",
    operands="one kind",
    is_product=True,
    kernel_strides=True,
)
_define_unprobed(
    "linalg_inv linalg_cholesky linalg_solve linalg_lu_factor linalg_ldl_factor linalg_tensorinv "
    "linalg_tensorsolve linalg_matrix_power",
    raises="often",
    kernel_strides=True,
)
_define_unprobed("inverse", raises="often")
_define_unprobed("linalg_cross", raises="data", operands="one dtype", kernel_strides=True)
define("cross", operands="one dtype")
_define_unprobed("svd", raises="data", kernel_strides=True)
_define_unprobed(
    "cholesky cholesky_ex cholesky_solve cholesky_inverse logdet slogdet lu lu_solve "
    "lu_unpack triangular_solve",
    raises="data",
)
_define_unprobed("pinverse det geqrf ormqr orgqr qr")
define("fft_*", kernel_strides=True)
define("fft_fftfreq fft_rfftfreq")  # they return a range and run no transform
